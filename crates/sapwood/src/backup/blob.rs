//! Blobs: what a backup consists of. A blob says itself what it is, so blobs one behind the other are a stream.
//!
//! ```text
//! blob = header chunk* end
//!
//! header (64 bytes)                                  chunk
//! offset size                                        offset size
//!      0    8  magic "SapBLOB\n"                          0    4  len: 1 byte to 1 MiB
//!      8    4  format version, see below                  4    4  CRC-32C, see below
//!     12    4  kind, see below                            8  len  content
//!     16   16  id of the database that was backed up
//!     32    8  number of the backup                  end (16 bytes)
//!     40    8  a, see below                               0    4  zero
//!     48    8  b, see below                               4    4  CRC-32C, see below
//!     56    4  zero                                       8    8  bytes of content
//!     60    4  CRC-32C of bytes 0..60
//!
//! kind          a                          b                               content
//! 1 segment     segment number             first byte in the segment       bytes of the segment
//! 2 log         first sequence number      last sequence number            frames: commits that are not in the trees
//! 3 version     span                       epoch                           frames: edits that make the version
//! 4 manifest    zero                       zero                            what the backup consists of
//! 5 keys        zero                       zero                            the file `KEYS` of an encrypted database
//! 6 archive     operation before it        last operation of the backup    frames: commits, and events of keyspaces
//!
//! frame  = 4 bytes len, then so many bytes: an edit, a commit, or an event
//! commit = 8 bytes first sequence number, 4 bytes operations, body of the batch. In archives bit 31 of
//!          the operations may be set: then 8 bytes of time come before the body, as in the log
//! event  = 8 bytes operation before it, 4 bytes zero, 8 bytes its time in milliseconds since 1970, the edit that makes it happen
//! ```
//! The CRC of a chunk covers the CRC of the header, the number of the chunk (8 bytes), its length and its content; that of the end the
//! CRC of the header, those of all chunks, and the bytes of content.
//!
//! The format version is 1; of an encrypted database it is 2, but for segments, whose nodes are encrypted as they are. Then the content of
//! each chunk of log, version and archive is encrypted ([`crate::encryption`]), and a last chunk has no content but a trailer. The context:
//! bytes 0..60 of the header, the number of the chunk (8 bytes), and a byte, 1 if it is the last. Archives, and manifests that tell of
//! them, have the versions 3 and 4 in place of 1 and 2.
//!
//! Invariants:
//! 1. A chunk is valid in one place of one blob.
//! 2. Nothing of a chunk is handed on before its checksum was found right.
//! 3. A reader has one chunk in memory, and allocates nothing for what a length claims beyond that.

use crate::backup::damage;
use crate::bytecode::Reader;
use crate::database_id::DatabaseId;
use crate::encryption::{Encryption, TRAILER};
use crate::error::{Error, Result};
use std::io;

const MAGIC: &[u8; 8] = b"SapBLOB\n";
/// The version of the format (a count of formats): the first one; of what is encrypted, and what says so, one more; of archives, and what
/// names them, two more.
const FORMAT: u32 = 1;
const FORMAT_LAST: u32 = 4;
/// Bytes of the header, as the format has it.
pub(super) const HEADER: usize = 64;
/// Bytes of a chunk before its content, as the format has it.
const CHUNK_HEAD: usize = 8;
/// Bytes of the end, as the format has it.
pub(super) const END: usize = 16;
/// Most bytes of content in a chunk: so few that a reader has little in memory before it checks them.
pub(super) const CHUNK_MAX: usize = 1 << 20;

/// What a blob has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Segment,
    Log,
    Version,
    Manifest,
    Keys,
    Archive,
}

impl Kind {
    fn number(self) -> u32 {
        match self {
            Self::Segment => 1,
            Self::Log => 2,
            Self::Version => 3,
            Self::Manifest => 4,
            Self::Keys => 5,
            Self::Archive => 6,
        }
    }

    /// Whether its content are frames, which are encrypted if the database is.
    fn is_of_frames(self) -> bool {
        matches!(self, Self::Log | Self::Version | Self::Archive)
    }

    fn of(number: u32) -> Option<Self> {
        [Self::Segment, Self::Log, Self::Version, Self::Manifest, Self::Keys, Self::Archive]
            .into_iter()
            .find(|kind| kind.number() == number)
    }
}

/// The beginning of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Whether the database is encrypted, as far as that makes a difference: in segments it makes none.
    pub is_encrypted: bool,
    /// Whether it is an archive, or a manifest that tells of archives.
    pub has_archive: bool,
    pub kind: Kind,
    pub database: DatabaseId,
    pub backup: u64,
    pub a: u64,
    pub b: u64,
}

impl Header {
    /// Whether chunks are encrypted.
    fn has_encrypted_chunks(&self) -> bool {
        self.is_encrypted && self.kind.is_of_frames()
    }

    fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(MAGIC);
        let format = FORMAT + u32::from(self.is_encrypted) + 2 * u32::from(self.has_archive);
        bytes[8..12].copy_from_slice(&format.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.kind.number().to_le_bytes());
        bytes[16..32].copy_from_slice(&self.database.0);
        bytes[32..40].copy_from_slice(&self.backup.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.a.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.b.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..HEADER - 4]);
        bytes[HEADER - 4..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; HEADER], place: &Place<'_>) -> Result<Self> {
        let mut reader = Reader::new(bytes);
        let mut fields = || {
            let magic = reader.array::<8>()?;
            let (format, kind) = (reader.u32()?, reader.u32()?);
            let database = DatabaseId(reader.array()?);
            let (backup, a, b) = (reader.u64()?, reader.u64()?, reader.u64()?);
            Some((magic, format, kind, database, (backup, a, b)))
        };
        let Some((magic, format, kind, database, (backup, a, b))) = fields() else {
            return Err(place.damage(0, "the header", "64 bytes", "fewer"));
        };
        if magic != *MAGIC {
            return Err(place.damage(0, "the magic", hex(MAGIC), hex(&magic)));
        }
        let crc = crc_of(bytes);
        let actual = crc32c::crc32c(&bytes[..HEADER - 4]);
        if crc != actual {
            return Err(place.damage(
                0,
                "the header's checksum",
                hex(&crc.to_le_bytes()),
                hex(&actual.to_le_bytes()),
            ));
        }
        if format > FORMAT_LAST {
            let path = format!("{} in {}", place.name, place.target);
            return Err(Error::NewerFormat { path, found: format, supported: FORMAT_LAST });
        }
        if format < FORMAT {
            let expected = format!("{FORMAT} to {FORMAT_LAST}");
            return Err(place.damage(8, "the format of the backup", expected, format));
        }
        let Some(kind) = Kind::of(kind) else {
            return Err(place.damage(12, "the kind of the blob", "1 to 6", kind));
        };
        let bits = format - FORMAT;
        let (is_encrypted, has_archive) = (bits & 1 > 0, bits & 2 > 0);
        Ok(Self { is_encrypted, has_archive, kind, database, backup, a, b })
    }
}

/// The last four bytes of a header: its checksum.
fn crc_of(header: &[u8; HEADER]) -> u32 {
    let [.., a, b, c, d] = *header;
    u32::from_le_bytes([a, b, c, d])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// By what a blob is told from any other of its name: its length, and the checksum at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seal {
    /// Bytes of the whole blob.
    pub len: u64,
    pub crc: u32,
}

impl Seal {
    /// The seal of a blob of `len` bytes that ends with these, if they are the end of one with so many bytes of content.
    pub fn of_end(end: &[u8; END], len: u64, content: u64) -> Option<Self> {
        let (zero, rest) = end.split_first_chunk()?;
        let (crc, rest) = rest.split_first_chunk()?;
        let is_end = *zero == [0; 4] && *rest == content.to_le_bytes();
        is_end.then(|| Self { len, crc: u32::from_le_bytes(*crc) })
    }
}

/// The checksum of a chunk.
fn crc_of_chunk(header: u32, number: u64, content: &[u8]) -> u32 {
    let crc = crc32c::crc32c_append(header, &number.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &(content.len() as u32).to_le_bytes());
    crc32c::crc32c_append(crc, content)
}

/// The checksums of the chunks so far, and how many there were.
#[derive(Clone, Copy)]
struct Sums {
    header: u32,
    chunks: u64,
    all: u32,
    content: u64,
}

impl Sums {
    fn of(header: &[u8; HEADER]) -> Self {
        let header = crc_of(header);
        Self { header, chunks: 0, all: header, content: 0 }
    }

    /// The checksum of the next chunk.
    fn next(&mut self, content: &[u8]) -> u32 {
        let crc = crc_of_chunk(self.header, self.chunks, content);
        self.chunks += 1;
        self.all = crc32c::crc32c_append(self.all, &crc.to_le_bytes());
        self.content += content.len() as u64;
        crc
    }

    fn end(&self) -> u32 {
        crc32c::crc32c_append(self.all, &self.content.to_le_bytes())
    }
}

/// What encrypts the chunks of a blob.
struct Chunks {
    encryption: Encryption,
    /// The blob's header, without its checksum.
    header: [u8; HEADER - 4],
}

impl Chunks {
    fn of(encryption: &Encryption, header: &[u8; HEADER]) -> Self {
        let mut before = [0; HEADER - 4];
        before.copy_from_slice(&header[..HEADER - 4]);
        Self { encryption: encryption.clone(), header: before }
    }

    /// The context of a chunk.
    fn context(&self, number: u64, is_last: bool) -> Vec<u8> {
        [&self.header[..], &number.to_le_bytes(), &[u8::from(is_last)]].concat()
    }
}

/// Writes a blob.
pub(super) struct BlobWriter<'w> {
    out: &'w mut dyn io::Write,
    encrypted: Option<Chunks>,
    sums: Sums,
    len: u64,
    /// Content that is not a chunk yet.
    gathered: Vec<u8>,
}

/// Content is gathered up to so many bytes.
const GATHERED: usize = 64 << 10;

impl<'w> BlobWriter<'w> {
    pub fn begin(out: &'w mut dyn io::Write, header: &Header, encryption: &Encryption) -> io::Result<Self> {
        let bytes = header.encode();
        out.write_all(&bytes)?;
        let encrypted = header.has_encrypted_chunks().then(|| Chunks::of(encryption, &bytes));
        Ok(Self { out, encrypted, sums: Sums::of(&bytes), len: HEADER as u64, gathered: Vec::new() })
    }

    /// Appends content, and gathers short pieces.
    pub fn put(&mut self, content: &[u8]) -> io::Result<()> {
        if self.gathered.len() + content.len() > GATHERED {
            self.put_gathered()?;
        }
        if content.len() >= GATHERED {
            return content.chunks(CHUNK_MAX).try_for_each(|chunk| self.put_chunk(chunk));
        }
        self.gathered.extend_from_slice(content);
        Ok(())
    }

    fn put_gathered(&mut self) -> io::Result<()> {
        let gathered = std::mem::take(&mut self.gathered);
        if !gathered.is_empty() {
            self.put_chunk(&gathered)?;
        }
        self.gathered = gathered;
        self.gathered.clear();
        Ok(())
    }

    fn put_chunk(&mut self, content: &[u8]) -> io::Result<()> {
        self.put_encrypted(content, false)
    }

    fn put_encrypted(&mut self, content: &[u8], is_last: bool) -> io::Result<()> {
        let Some(chunks) = &self.encrypted else { return self.put_stored(content) };
        let mut chunk = content.to_vec();
        chunks.encryption.encrypt(&chunks.context(self.sums.chunks, is_last), &mut chunk, 0);
        self.put_stored(&chunk)
    }

    fn put_stored(&mut self, content: &[u8]) -> io::Result<()> {
        let crc = self.sums.next(content);
        self.out.write_all(&(content.len() as u32).to_le_bytes())?;
        self.out.write_all(&crc.to_le_bytes())?;
        self.out.write_all(content)?;
        self.len += (CHUNK_HEAD + content.len()) as u64;
        Ok(())
    }

    pub fn end(mut self) -> io::Result<Seal> {
        self.put_gathered()?;
        if self.encrypted.is_some() {
            self.put_encrypted(b"", true)?;
        }
        let crc = self.sums.end();
        self.out.write_all(&[0; 4])?;
        self.out.write_all(&crc.to_le_bytes())?;
        self.out.write_all(&self.sums.content.to_le_bytes())?;
        Ok(Seal { len: self.len + END as u64, crc })
    }
}

/// Where a blob is read, for messages.
pub(super) struct Place<'p> {
    pub target: &'p str,
    pub name: &'p str,
}

impl Place<'_> {
    fn damage(&self, at: u64, what: &str, expected: impl ToString, found: impl ToString) -> crate::Error {
        damage(self.target, self.name, at, what, expected, found)
    }
}

/// Bytes from front to back.
pub(super) trait Input {
    /// Fills the buffer. False if the input ends before its first byte.
    ///
    /// # Errors
    /// The input's own; damage if it ends within the buffer.
    fn fill(&mut self, buffer: &mut [u8]) -> Result<bool>;

    /// Where it is, for messages: a name, and the byte at which this blob begins.
    fn place(&self) -> Place<'_>;
}

/// Reads a blob.
pub(super) struct BlobReader<'i, I> {
    input: &'i mut I,
    pub header: Header,
    encrypted: Option<Chunks>,
    /// Whether the last of the encrypted chunks was read.
    is_at_last: bool,
    sums: Sums,
    len: u64,
    chunk: Vec<u8>,
    seal: Option<Seal>,
}

impl<'i, I: Input> BlobReader<'i, I> {
    /// Reads the header. `None`: the input has ended.
    pub fn begin(input: &'i mut I) -> Result<Option<Self>> {
        let mut bytes = [0; HEADER];
        if !input.fill(&mut bytes)? {
            return Ok(None);
        }
        let header = Header::decode(&bytes, &input.place())?;
        let sums = Sums::of(&bytes);
        let encrypted = header.has_encrypted_chunks().then(|| Chunks::of(&Encryption::NONE, &bytes));
        let (len, chunk) = (HEADER as u64, Vec::new());
        Ok(Some(Self { input, header, encrypted, is_at_last: false, sums, len, chunk, seal: None }))
    }

    /// From now on chunks are decrypted, if they are encrypted.
    pub fn decrypt(&mut self, encryption: &Encryption) -> Result<()> {
        if let Some(chunks) = &mut self.encrypted {
            if !encryption.is_on() {
                return Err(self.damage("what comes before an encrypted blob", "its keys", "none"));
            }
            chunks.encryption = encryption.clone();
        } else if encryption.is_on() && self.header.kind.is_of_frames() {
            return Err(self.damage("the blob", "an encrypted one", "one that is not"));
        }
        Ok(())
    }

    /// Damage at the place where the blob has been read to.
    pub fn damage(&self, what: &str, expected: impl ToString, found: impl ToString) -> crate::Error {
        self.input.place().damage(self.len, what, expected, found)
    }

    fn fill<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        if !self.input.fill(&mut bytes)? {
            return Err(self.damage("the blob is cut off", format!("{N} bytes"), "none"));
        }
        Ok(bytes)
    }

    /// The next chunk of content. `None`: it has ended, and all of it was right.
    pub fn next(&mut self) -> Result<Option<&[u8]>> {
        let number = self.sums.chunks;
        if self.next_stored()?.is_none() {
            if self.encrypted.is_some() && !self.is_at_last {
                return Err(self.damage("the last chunk", "one that says so", "another"));
            }
            return Ok(None);
        }
        let Some(chunks) = &self.encrypted else { return Ok(Some(&self.chunk)) };
        let is_last = self.chunk.len() == TRAILER;
        match chunks.encryption.decrypt(&chunks.context(number, is_last), &mut self.chunk) {
            Ok(len) if !self.is_at_last => self.chunk.truncate(len),
            Ok(_) => return Err(self.damage("a chunk", "none behind the last one", "one")),
            Err(why) => {
                let (expected, found) = why.told();
                return Err(self.damage("the encryption of a chunk", expected, found));
            }
        }
        self.is_at_last = is_last;
        if is_last { self.next() } else { Ok(Some(&self.chunk)) }
    }

    /// The next chunk as it is stored.
    fn next_stored(&mut self) -> Result<Option<()>> {
        if self.seal.is_some() {
            return Ok(None);
        }
        let [a, b, c, d, e, f, g, h] = self.fill::<CHUNK_HEAD>()?;
        let (len, crc) = (u32::from_le_bytes([a, b, c, d]) as usize, u32::from_le_bytes([e, f, g, h]));
        if len == 0 {
            self.read_end(crc)?;
            return Ok(None);
        }
        let most = CHUNK_MAX + if self.encrypted.is_some() { TRAILER } else { 0 };
        if len > most {
            return Err(self.damage("the length of a chunk", format!("at most {most}"), len));
        }
        self.chunk.resize(len, 0);
        if !self.input.fill(&mut self.chunk)? {
            return Err(self.damage("the blob is cut off", format!("{len} bytes"), "none"));
        }
        let actual = self.sums.next(&self.chunk);
        if actual != crc {
            return Err(self.damage(
                "the checksum of a chunk",
                format!("{crc:08x}"),
                format!("{actual:08x}"),
            ));
        }
        self.len += (CHUNK_HEAD + len) as u64;
        Ok(Some(()))
    }

    fn read_end(&mut self, crc: u32) -> Result<()> {
        let content = u64::from_le_bytes(self.fill()?);
        if content != self.sums.content {
            return Err(self.damage("the bytes of content", content, self.sums.content));
        }
        let actual = self.sums.end();
        if actual != crc {
            return Err(self.damage(
                "the checksum of the blob",
                format!("{crc:08x}"),
                format!("{actual:08x}"),
            ));
        }
        self.seal = Some(Seal { len: self.len + END as u64, crc });
        Ok(())
    }

    /// Reads what is left, and returns the seal.
    pub fn finish(&mut self) -> Result<Seal> {
        while self.next()?.is_some() {}
        self.seal.ok_or_else(|| self.damage("the end of the blob", "16 bytes", "none"))
    }

    /// Calls `each` with each frame of the content, which has at most `most` bytes.
    pub fn frames(
        &mut self,
        most: usize,
        each: &mut dyn FnMut(&[u8]) -> std::result::Result<(), String>,
    ) -> Result<Seal> {
        let mut rest: Vec<u8> = Vec::new();
        while let Some(chunk) = self.next()? {
            rest.extend_from_slice(chunk);
            let mut at = 0;
            while let Some((head, behind)) = rest[at..].split_first_chunk::<4>() {
                let len = u32::from_le_bytes(*head) as usize;
                if len > most {
                    return Err(self.damage("the length of a frame", format!("at most {most}"), len));
                }
                let Some(frame) = behind.get(..len) else { break };
                if let Err(why) = each(frame) {
                    return Err(self.damage("a frame", "one that fits", why));
                }
                at += 4 + len;
            }
            rest.drain(..at);
        }
        if !rest.is_empty() {
            return Err(self.damage("the last frame", "a whole one", format!("{} bytes of it", rest.len())));
        }
        self.finish()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Bytes in memory.
    pub(in crate::backup) struct InMemory<'b>(pub &'b [u8]);

    impl Input for InMemory<'_> {
        fn fill(&mut self, buffer: &mut [u8]) -> Result<bool> {
            if self.0.is_empty() {
                return Ok(false);
            }
            let Some((now, later)) = self.0.split_at_checked(buffer.len()) else {
                return Err(self.place().damage(0, "the blob is cut off", buffer.len(), self.0.len()));
            };
            buffer.copy_from_slice(now);
            self.0 = later;
            Ok(true)
        }

        fn place(&self) -> Place<'_> {
            Place { target: "memory", name: "blob" }
        }
    }

    const HEAD: Header = Header {
        is_encrypted: false,
        has_archive: false,
        kind: Kind::Segment,
        database: DatabaseId([7; 16]),
        backup: 3,
        a: 17,
        b: 4096,
    };

    fn blob(pieces: &[&[u8]]) -> (Vec<u8>, Seal) {
        let mut bytes = Vec::new();
        let mut writer = BlobWriter::begin(&mut bytes, &HEAD, &Encryption::NONE).unwrap();
        pieces.iter().for_each(|piece| writer.put(piece).unwrap());
        let seal = writer.end().unwrap();
        (bytes, seal)
    }

    fn read(bytes: &[u8]) -> Result<(Header, Vec<u8>, Seal)> {
        let mut input = InMemory(bytes);
        let mut reader = BlobReader::begin(&mut input)?.expect("there is a byte");
        let mut content = Vec::new();
        while let Some(chunk) = reader.next()? {
            content.extend_from_slice(chunk);
        }
        Ok((reader.header, content, reader.finish()?))
    }

    #[test]
    fn content_of_any_length_comes_back_and_the_seal_is_its_end() {
        for len in [0, 1, GATHERED - 1, GATHERED, GATHERED + 1, CHUNK_MAX, 3 * CHUNK_MAX + 17] {
            let content: Vec<u8> = (0..len).map(|index| (index % 251) as u8).collect();
            for at in [len / 3, len.min(10), len.saturating_sub(10)] {
                let (first, second) = content.split_at(at);
                let (bytes, seal) = blob(&[first, second, b""]);
                assert_eq!(read(&bytes).unwrap(), (HEAD, content.clone(), seal), "{len} bytes, {at}");
                let of_end = |content| Seal::of_end(bytes.last_chunk().unwrap(), bytes.len() as u64, content);
                assert_eq!((of_end(len as u64), of_end(len as u64 + 1)), (Some(seal), None));
            }
        }
    }

    /// The bytes that a blob of each version of the format has.
    #[test]
    fn golden_bytes() {
        let (bytes, seal) = blob(&[b"beagle"]);
        let expected = "536170424c4f420a010000000100000007070707070707070707070707070707030000000000000011000000000000000010000000000000";
        assert_eq!(hex(&bytes[..56]), expected);
        assert_eq!((bytes.len(), &bytes[72..78]), (64 + 8 + 6 + 16, &b"beagle"[..]));
        assert_eq!(seal.crc, u32::from_le_bytes(bytes[82..86].try_into().unwrap()));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_found() {
        let (bytes, _) = blob(&[&[5; GATHERED], b"beagle", b"fram"]);
        let near = (0..HEADER + 20).chain(bytes.len() - 60..bytes.len());
        for at in near.clone() {
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << bit;
                assert!(read(&flipped).is_err(), "bit {bit} of byte {at}");
            }
        }
        near.filter(|at| *at > 0).for_each(|at| assert!(read(&bytes[..at]).is_err(), "cut at {at}"));
    }

    #[test]
    fn a_chunk_in_the_place_of_another_is_found() {
        let (bytes, _) = blob(&[&[1; GATHERED], &[2; GATHERED]]);
        let (first, len) = (HEADER, CHUNK_HEAD + GATHERED);
        let mut swapped = bytes.clone();
        swapped[first..first + len].copy_from_slice(&bytes[first + len..first + 2 * len]);
        swapped[first + len..first + 2 * len].copy_from_slice(&bytes[first..first + len]);
        assert!(read(&swapped).is_err());
    }

    /// All checksums are right, as who forges a blob can make them.
    #[test]
    fn encrypted_chunks_are_believed_in_their_place_only() {
        let encryption = Encryption::for_test();
        let head = Header { is_encrypted: true, kind: Kind::Log, ..HEAD };
        let stored = |header: &Header, chunks: &[&[u8]]| {
            let mut bytes = Vec::new();
            let mut writer = BlobWriter::begin(&mut bytes, header, &encryption).unwrap();
            writer.encrypted = None;
            chunks.iter().for_each(|chunk| writer.put_stored(chunk).unwrap());
            writer.end().unwrap();
            bytes
        };
        let read = |bytes: &[u8]| {
            let mut input = InMemory(bytes);
            let mut reader = BlobReader::begin(&mut input)?.expect("a byte");
            reader.decrypt(&encryption)?;
            let mut content = Vec::new();
            while let Some(chunk) = reader.next()? {
                content.extend_from_slice(chunk);
            }
            Ok::<_, crate::Error>(content)
        };
        let chunk = |content: &[u8], number, is_last| {
            let (mut bytes, chunks) = (content.to_vec(), Chunks::of(&encryption, &head.encode()));
            encryption.encrypt(&chunks.context(number, is_last), &mut bytes, 0);
            bytes
        };
        let (first, second, last) = (chunk(b"fram", 0, false), chunk(b"vega", 1, false), chunk(b"", 2, true));
        assert_eq!(read(&stored(&head, &[&first, &second, &last])).unwrap(), b"framvega");
        let other = Header { backup: 4, ..head };
        assert!(read(&stored(&other, &[&first, &second, &last])).is_err(), "of another blob");
        assert!(read(&stored(&head, &[&second, &first, &last])).is_err(), "in another order");
        assert!(read(&stored(&head, &[&first, &second])).is_err(), "cut off");
        assert!(
            read(&stored(&head, &[&first, &chunk(b"", 1, false), &last])).is_err(),
            "a last one in the middle"
        );
    }

    #[test]
    fn frames_cross_chunks_and_too_long_ones_are_refused() {
        let frames: Vec<Vec<u8>> =
            [0, 1, 70_000, 5, CHUNK_MAX + 3, 9].iter().map(|len| vec![3; *len]).collect();
        let mut content = Vec::new();
        for frame in &frames {
            content.extend_from_slice(&(frame.len() as u32).to_le_bytes());
            content.extend_from_slice(frame);
        }
        let (bytes, seal) = blob(&[&content]);
        let read = |bytes: &[u8], most| {
            let mut found = Vec::new();
            let mut input = InMemory(bytes);
            let mut reader = BlobReader::begin(&mut input)?.expect("a byte");
            let seal = reader.frames(most, &mut |frame| {
                found.push(frame.to_vec());
                Ok(())
            })?;
            Ok::<_, crate::Error>((found, seal))
        };
        assert_eq!(read(&bytes, 2 << 20).unwrap(), (frames, seal));
        assert!(read(&bytes, CHUNK_MAX).is_err(), "one is longer");
        let (cut, _) = blob(&[&content[..content.len() - 1]]);
        assert!(read(&cut, 2 << 20).is_err(), "the last one is not whole");
    }
}
