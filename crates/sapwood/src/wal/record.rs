//! The format of log files: the header of a generation, and the head of a record.
//!
//! Invariants:
//! 1. A record is valid in one place only: its checksum is seeded with the database, the generation and the
//!    offset, so bytes in the wrong file, at the wrong offset or from another database are not taken for a
//!    record.
//! 2. The head has a checksum of its own, which covers the body's checksum. So a length is trusted only after
//!    it has been checked, and a head testifies to what was durable (see [`RecordHeader::durable`]) even if its body is
//!    damaged.
//! 3. Nothing testifies to its own durability: the claim of a header or record never exceeds its own position.
//! 4. Decoding treats bytes as untrusted: it neither panics nor allocates more than an error message.
//! 5. Every later format keeps the header's first 80 bytes in place, with the checksum over them, so that this
//!    program can tell a newer file from a damaged one.

use super::{Record, file_name};
use crate::bytecode::Reader;
use crate::database_id::DatabaseId;
use crate::encryption::{Encryption, TRAILER};
use crate::error::{Error, Result};
use crate::operation::SeqNo;
use bytes::Bytes;
use std::fmt;

/// Bytes of a generation's header, as the format has it.
pub(crate) const HEADER_LEN: usize = 80;
/// Bytes of a record before its body, as the format has it.
pub(crate) const HEAD_LEN: usize = 40;
/// Bytes of the context of a body's encryption, as the format has it.
const CONTEXT_LEN: usize = 16 + 8 + 8 + HEAD_LEN - 16;
/// Bit of the number of operations, as the format has it: a time comes before them.
pub(crate) const HAS_TIME: u32 = 1 << 31;
/// Bytes of a time, as the format has it.
pub(crate) const TIME_LEN: usize = 8;
/// The longest body a record can have, in bytes: a longer one is refused when read, so that damage costs no memory.
pub(crate) const BODY_LEN_MAX: usize = 64 << 20;
/// The log format that is written, and the newest that can be read.
pub(crate) const FORMAT: u32 = 1;

const HEADER_MAGIC: [u8; 8] = *b"SapwdLog";
/// Neither text nor UTF-8, so it is rare in bodies, which are searched for it after damage.
pub(crate) const RECORD_MAGIC: [u8; 4] = [0xf6, b'W', 0xb1, b'R'];

const _: () = assert!(BODY_LEN_MAX <= u32::MAX as usize, "a body's length is a u32");

/// A position in the log: bytes over all generations since the database was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Lsn(pub u64);

impl Lsn {
    /// The position `bytes` further on. Saturates: positions come from files, and a saturated one matches
    /// nothing.
    pub fn plus(self, bytes: u64) -> Self {
        Self(self.0.saturating_add(bytes))
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Why some bytes are not as they should be. File and offset turn it into [`Error::Corrupt`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flaw {
    pub what: &'static str,
    pub expected: String,
    pub found: String,
}

impl Flaw {
    pub fn new(what: &'static str, expected: impl ToString, found: impl ToString) -> Self {
        Self { what, expected: expected.to_string(), found: found.to_string() }
    }

    pub fn at(self, file: impl Into<String>, offset: u64) -> Error {
        Error::corrupt(file, offset, self.what, self.expected, self.found)
    }
}

/// Why some bytes are not a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HeaderFlaw {
    /// Never completely written, or damaged; only the caller can tell which.
    Broken(Flaw),
    /// Valid, but of a newer format.
    Newer(u32),
}

/// The beginning of every log file. Integers are little-endian.
///
/// ```text
/// offset  bytes
///  0      8      magic "SapwdLog"
///  8      4      format version
/// 12      4      CRC-32C of bytes 0..12 and 16..80
/// 16     16      database id
/// 32      8      generation, as in the file's name
/// 40      8      base: LSN of this file's first byte
/// 48      8      the generation that this one continues; 0 if none. Those in between are void
/// 56      8      valid bytes of that generation with its header; 0 if none
/// 64      8      durable: everything below this LSN was durable when the header was made; at most base
/// 72      8      sequence number that comes first
/// 80             the first record
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub database: DatabaseId,
    pub generation: u64,
    pub base: Lsn,
    pub previous_generation: u64,
    pub previous_len: u64,
    pub durable: Lsn,
    pub first_seq: SeqNo,
}

impl Header {
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0..8].copy_from_slice(&HEADER_MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.database.0);
        bytes[32..40].copy_from_slice(&self.generation.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.base.0.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.previous_generation.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.previous_len.to_le_bytes());
        bytes[64..72].copy_from_slice(&self.durable.0.to_le_bytes());
        bytes[72..80].copy_from_slice(&self.first_seq.to_le_bytes());
        let crc = header_crc(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes the header from the first bytes of a file.
    pub fn decode(bytes: &[u8]) -> std::result::Result<Self, HeaderFlaw> {
        let broken = |flaw| Err(HeaderFlaw::Broken(flaw));
        let Some(bytes) = bytes.first_chunk::<HEADER_LEN>() else {
            return broken(Flaw::new("the log header is cut off", HEADER_LEN, bytes.len()));
        };
        let fields = |bytes: &[u8]| {
            let mut reader = Reader::new(bytes);
            let magic = reader.array::<8>()?;
            let (format, crc) = (reader.u32()?, reader.u32()?);
            let header = Self {
                database: DatabaseId(reader.array()?),
                generation: reader.u64()?,
                base: Lsn(reader.u64()?),
                previous_generation: reader.u64()?,
                previous_len: reader.u64()?,
                durable: Lsn(reader.u64()?),
                first_seq: reader.u64()?,
            };
            Some((magic, format, crc, header))
        };
        let Some((magic, format, crc, header)) = fields(bytes) else {
            return broken(Flaw::new("the log header is cut off", HEADER_LEN, bytes.len()));
        };
        if magic != HEADER_MAGIC {
            return broken(Flaw::new("the magic of a log file", hex(&HEADER_MAGIC), hex(&magic)));
        }
        let computed = header_crc(bytes);
        if crc != computed {
            return broken(Flaw::new("the log header's checksum", hex32(computed), hex32(crc)));
        }
        if format > FORMAT {
            return Err(HeaderFlaw::Newer(format));
        }
        Ok(header)
    }

    /// Checks that this header belongs to the log of `database` as `generation`, and is consistent in itself.
    pub fn check(&self, database: DatabaseId, generation: u64) -> std::result::Result<(), Flaw> {
        if self.database != database {
            return Err(Flaw::new("the log file belongs to another database", database, self.database));
        }
        if self.generation != generation {
            return Err(Flaw::new("the log file's generation", generation, self.generation));
        }
        if self.previous_generation >= generation {
            return Err(Flaw::new(
                "the generation that this log file continues",
                format!("less than {generation}"),
                self.previous_generation,
            ));
        }
        if self.durable > self.base {
            return Err(Flaw::new(
                "what was durable when the log file was made",
                format!("at most {}", self.base),
                self.durable,
            ));
        }
        Ok(())
    }
}

fn header_crc(bytes: &[u8; HEADER_LEN]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[16..])
}

/// The position of a record, which seeds its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordPosition {
    pub database: DatabaseId,
    pub generation: u64,
    /// From the beginning of the generation's file, in bytes.
    pub offset: u64,
}

impl RecordPosition {
    fn seed(&self) -> u32 {
        let crc = crc32c::crc32c(&self.database.0);
        let crc = crc32c::crc32c_append(crc, &self.generation.to_le_bytes());
        crc32c::crc32c_append(crc, &self.offset.to_le_bytes())
    }
}

/// The beginning of a record; its body follows. Integers are little-endian.
///
/// ```text
/// offset  bytes
///  0      4      magic f6 57 b1 52
///  4      4      CRC-32C of database id, generation, offset of this record in the file, and bytes 8..40
///  8      4      length of the body in bytes, at most 64 MiB, and a trailer's 44 bytes if the database is encrypted
/// 12      4      CRC-32C of the body
/// 16      4      operations in the body: the sequence numbers it takes, at least 1; bit 31: a time comes before them
/// 20      4      epoch of the writer: never goes down, and up after each attempt to write that failed
/// 24      8      first sequence number
/// 32      8      durable: everything below this LSN was durable when the record was made
/// 40             the body: a time, if there is one (8 bytes, in milliseconds since 1970, format 14), and the operations; if the database is encrypted, so is the body (see [`crate::encryption`]). Its context: database id, generation, offset
///                of this record in the file, and bytes 16..40
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub len: u32,
    pub body_crc: u32,
    pub count: u32,
    pub has_time: bool,
    pub epoch: u32,
    pub first_seq: SeqNo,
    pub durable: Lsn,
}

impl RecordHeader {
    /// Number of operations, and whether they have a time, as they are stored.
    fn counted(&self) -> u32 {
        self.count | if self.has_time { HAS_TIME } else { 0 }
    }

    pub fn encode(&self, place: &RecordPosition) -> [u8; HEAD_LEN] {
        let mut bytes = [0; HEAD_LEN];
        bytes[0..4].copy_from_slice(&RECORD_MAGIC);
        bytes[8..12].copy_from_slice(&self.len.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.body_crc.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.counted().to_le_bytes());
        bytes[20..24].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.first_seq.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.durable.0.to_le_bytes());
        let crc = crc32c::crc32c_append(place.seed(), &bytes[8..]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes the head of a record from its first bytes. On success, it is what was written at this place.
    pub fn decode(bytes: &[u8], place: &RecordPosition) -> std::result::Result<Self, Flaw> {
        let cut = || Flaw::new("the log record is cut off", format!("{HEAD_LEN} bytes of head"), bytes.len());
        let bytes = bytes.first_chunk::<HEAD_LEN>().ok_or_else(cut)?;
        let fields = |bytes: &[u8]| {
            let mut reader = Reader::new(bytes);
            let magic = reader.array::<4>()?;
            let crc = reader.u32()?;
            let (len, body_crc, counted) = (reader.u32()?, reader.u32()?, reader.u32()?);
            let head = Self {
                len,
                body_crc,
                count: counted & !HAS_TIME,
                has_time: counted & HAS_TIME > 0,
                epoch: reader.u32()?,
                first_seq: reader.u64()?,
                durable: Lsn(reader.u64()?),
            };
            Some((magic, crc, head))
        };
        let (magic, crc, head) = fields(bytes).ok_or_else(cut)?;
        if magic != RECORD_MAGIC {
            return Err(Flaw::new("the magic of a log record", hex(&RECORD_MAGIC), hex(&magic)));
        }
        let computed = crc32c::crc32c_append(place.seed(), &bytes[8..]);
        if crc != computed {
            return Err(Flaw::new("the checksum of a log record's head", hex32(computed), hex32(crc)));
        }
        if head.len as usize > BODY_LEN_MAX + TRAILER {
            let most = format!("at most {}", BODY_LEN_MAX + TRAILER);
            return Err(Flaw::new("the length of a log record's body", most, head.len));
        }
        if head.count == 0 || head.first_seq.checked_add(u64::from(head.count)).is_none() {
            let found = format!("{} from {}", head.count, head.first_seq);
            return Err(Flaw::new("the sequence numbers of a log record", "at least one, below 2^64", found));
        }
        Ok(head)
    }

    /// The context of the body's encryption.
    fn context(&self, place: &RecordPosition) -> [u8; CONTEXT_LEN] {
        let mut context = [0; CONTEXT_LEN];
        context[0..16].copy_from_slice(&place.database.0);
        context[16..24].copy_from_slice(&place.generation.to_le_bytes());
        context[24..32].copy_from_slice(&place.offset.to_le_bytes());
        context[32..36].copy_from_slice(&self.counted().to_le_bytes());
        context[36..40].copy_from_slice(&self.epoch.to_le_bytes());
        context[40..48].copy_from_slice(&self.first_seq.to_le_bytes());
        context[48..56].copy_from_slice(&self.durable.0.to_le_bytes());
        context
    }

    /// Encrypts the body, which has room for the trailer behind it, and sets its checksum.
    pub fn encrypt(&mut self, encryption: &Encryption, place: &RecordPosition, body: &mut [u8]) {
        encryption.encrypt_in_place(&self.context(place), body);
        self.body_crc = crc32c::crc32c(body);
    }

    /// The record with this body, which [`RecordHeader::encrypt`] has encrypted and whose checksum is right.
    ///
    /// # Errors
    /// Damage if it cannot be decrypted: its checksum was right, so no crash has cut it off.
    pub fn decrypt(&self, encryption: &Encryption, place: &RecordPosition, body: Bytes) -> Result<Record> {
        let body = if encryption.is_on() {
            let mut body = Vec::from(body);
            let len = encryption.decrypt(&self.context(place), &mut body).map_err(|why| {
                let (expected, found) = why.told();
                Flaw::new("the encryption of a log record", expected, found)
                    .at(file_name(place.generation), place.offset)
            })?;
            body.truncate(len);
            body.into()
        } else {
            body
        };
        let (time, body) = match body.first_chunk() {
            Some(time) if self.has_time => (Some(u64::from_le_bytes(*time)), body.slice(TIME_LEN..)),
            None if self.has_time => {
                let flaw = Flaw::new("the time of a log record", format!("{TIME_LEN} bytes"), body.len());
                return Err(flaw.at(file_name(place.generation), place.offset));
            }
            _ => (None, body),
        };
        let (first_seq, count) = (self.first_seq, self.count);
        Ok(Record { generation: place.generation, first_seq, count, time, body })
    }

    /// Bytes of head and body.
    pub fn record_len(&self) -> u64 {
        HEAD_LEN as u64 + u64::from(self.len)
    }

    /// The sequence number after the record's last. ([`RecordHeader::decode`] has checked that it exists.)
    pub fn next_seq(&self) -> SeqNo {
        self.first_seq.saturating_add(u64::from(self.count))
    }

    pub fn check_body(&self, body: &[u8]) -> std::result::Result<(), Flaw> {
        let crc = crc32c::crc32c(body);
        if crc != self.body_crc {
            return Err(Flaw::new("the checksum of a log record's body", hex32(self.body_crc), hex32(crc)));
        }
        Ok(())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hex32(crc: u32) -> String {
    format!("{crc:#010x}")
}

/// For fuzzing: a log whose record bodies are pieces of `bytes`, each preceded by its length and its number of
/// operations, followed by as many zeros as a last single byte says.
#[cfg(any(fuzzing, test))]
pub(crate) fn seal(database: DatabaseId, bytes: &[u8]) -> Vec<u8> {
    let mut rest = bytes;
    let records = std::iter::from_fn(|| {
        let [len, count, after @ ..] = rest else { return None };
        let (body, later) = after.split_at(after.len().min(usize::from(*len)));
        rest = later;
        Some((u32::from(*count), body))
    });
    let mut file = sealed(database, 1, 1, records);
    let zeros = rest.first().map_or(0, |zeros| usize::from(*zeros));
    file.resize(file.len() + zeros, 0);
    file
}

/// A log file that continues no other, with these records: numbers of operations, and bodies.
#[cfg(any(fuzzing, test))]
pub(crate) fn sealed<'a>(
    database: DatabaseId,
    generation: u64,
    mut first_seq: SeqNo,
    records: impl Iterator<Item = (u32, &'a [u8])>,
) -> Vec<u8> {
    let header = Header {
        database,
        generation,
        base: Lsn(0),
        previous_generation: 0,
        previous_len: 0,
        durable: Lsn(0),
        first_seq,
    };
    let mut file = header.encode().to_vec();
    for (count, body) in records {
        let place = RecordPosition { database, generation, offset: file.len() as u64 };
        file.extend_from_slice(&sealed_record(
            &place,
            (first_seq, 1),
            Lsn(u64::from(count) * 16),
            (count, body),
        ));
        first_seq += u64::from(count);
    }
    file
}

/// A record of so many operations, from a number on, with this body.
#[cfg(any(fuzzing, test))]
pub(crate) fn sealed_record(
    place: &RecordPosition,
    (first_seq, epoch): (SeqNo, u32),
    durable: Lsn,
    (count, body): (u32, &[u8]),
) -> Vec<u8> {
    let (len, body_crc) = (body.len() as u32, crc32c::crc32c(body));
    let head = RecordHeader { len, body_crc, count, has_time: false, epoch, first_seq, durable };
    [&head.encode(place)[..], body].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATABASE: DatabaseId = DatabaseId(*b"0123456789abcdef");

    fn header() -> Header {
        Header {
            database: DATABASE,
            generation: 7,
            base: Lsn(0x1122_3344),
            previous_generation: 5,
            previous_len: 0x556,
            durable: Lsn(0x1122),
            first_seq: 0x4455,
        }
    }

    fn head() -> RecordHeader {
        RecordHeader {
            len: 5,
            body_crc: crc32c::crc32c(b"hello"),
            count: 3,
            has_time: false,
            epoch: 2,
            first_seq: 0x0102_0304,
            durable: Lsn(0x99),
        }
    }

    const PLACE: RecordPosition = RecordPosition { database: DATABASE, generation: 7, offset: 72 };

    #[test]
    fn the_header_has_these_bytes() {
        let expected = "53617077644c6f6701000000d6ceb8d530313233343536373839616263646566070000000000000044332211000000000500000000000000560500000000000022110000000000005544000000000000";
        assert_eq!(hex(&header().encode()), expected);
        assert_eq!(Header::decode(&header().encode()), Ok(header()));
    }

    #[test]
    fn the_head_of_a_record_has_these_bytes() {
        let expected = "f657b15247f39578050000004cbb719a030000000200000004030201000000009900000000000000";
        assert_eq!(hex(&head().encode(&PLACE)), expected);
        assert_eq!(RecordHeader::decode(&head().encode(&PLACE), &PLACE), Ok(head()));
    }

    #[test]
    fn a_time_comes_before_the_body() {
        let head = RecordHeader { has_time: true, ..head() };
        assert_eq!(head.encode(&PLACE)[16..20], [3, 0, 0, 0x80]);
        assert_eq!(RecordHeader::decode(&head.encode(&PLACE), &PLACE), Ok(head));
        let decrypt = |body: &'static [u8]| head.decrypt(&Encryption::NONE, &PLACE, Bytes::from_static(body));
        let record = decrypt(b"\x05\0\0\0\0\0\0\0body").unwrap();
        assert_eq!((record.time, &record.body[..]), (Some(5), &b"body"[..]));
        assert!(decrypt(b"1234567").unwrap_err().is_damage());
    }

    #[test]
    fn every_flipped_bit_is_seen() {
        let sound = header().encode();
        for bit in 0..HEADER_LEN * 8 {
            let mut bytes = sound;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(Header::decode(&bytes), Err(HeaderFlaw::Broken(_))), "bit {bit}");
        }
        let sound = head().encode(&PLACE);
        for bit in 0..HEAD_LEN * 8 {
            let mut bytes = sound;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(RecordHeader::decode(&bytes, &PLACE).is_err(), "bit {bit}");
        }
        assert!(head().check_body(b"hello").is_ok());
        assert!(head().check_body(b"hellp").is_err());
    }

    #[test]
    fn a_record_is_valid_at_its_own_place_only() {
        let bytes = head().encode(&PLACE);
        assert!(RecordHeader::decode(&bytes, &RecordPosition { offset: 73, ..PLACE }).is_err());
        assert!(RecordHeader::decode(&bytes, &RecordPosition { generation: 8, ..PLACE }).is_err());
        let other = DatabaseId(*b"0123456789abcdeF");
        assert!(RecordHeader::decode(&bytes, &RecordPosition { database: other, ..PLACE }).is_err());
    }

    #[test]
    fn a_newer_format_is_told_from_damage() {
        let mut bytes = header().encode();
        bytes[8] = 9;
        let crc = header_crc(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(Header::decode(&bytes), Err(HeaderFlaw::Newer(9)));
    }

    #[test]
    fn sound_checksums_do_not_excuse_nonsense() {
        for nonsense in [
            RecordHeader { len: (BODY_LEN_MAX + TRAILER) as u32 + 1, ..head() },
            RecordHeader { count: 0, ..head() },
            RecordHeader { first_seq: u64::MAX - 1, ..head() },
        ] {
            assert!(RecordHeader::decode(&nonsense.encode(&PLACE), &PLACE).is_err(), "{nonsense:?}");
        }
        assert!(header().check(DATABASE, 7).is_ok());
        assert!(header().check(DATABASE, 8).is_err());
        assert!(header().check(DatabaseId([0; 16]), 7).is_err());
        assert!(Header { previous_generation: 7, ..header() }.check(DATABASE, 7).is_err());
        assert!(Header { durable: Lsn(0x1122_3345), ..header() }.check(DATABASE, 7).is_err());
    }

    #[test]
    fn too_short_is_refused_at_every_length() {
        for len in 0..HEADER_LEN {
            assert!(Header::decode(&header().encode()[..len]).is_err());
        }
        for len in 0..HEAD_LEN {
            assert!(RecordHeader::decode(&head().encode(&PLACE)[..len], &PLACE).is_err());
        }
    }
}
