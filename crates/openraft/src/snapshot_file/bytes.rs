//! The bytes of a snapshot file on the disk: as they are, or encrypted with a key if the database is encrypted.
//!
//! ```text
//! encrypted  head | block …
//! head       "SapSeal1" | id of the file (16 random bytes)
//! block      nonce (24 random bytes) | content, encrypted: 65,536 bytes, the last one fewer | tag (16)
//! ```
//! XChaCha20-Poly1305. What is authenticated besides a block's content: the head, and the block's number as u64 LE.
//!
//! Invariants:
//! 1. No nonce is used twice with a key: each is random whenever a block is written, also for the second time.
//! 2. Nothing is given out that was not encrypted with the key for this place of this file. That the file ends where it should is
//!    for the content to show: it has a last chunk.

use super::damage;
use crate::error::{Error, Result};
use chacha20poly1305::aead::AeadInOut;
use chacha20poly1305::{KeyInit, XChaCha20Poly1305};
use rand::TryRngCore;
use rand::rngs::OsRng;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

const MAGIC: &[u8; 8] = b"SapSeal1";
const HEAD: usize = 24;
/// Bytes of content in a block, as the format has it.
const BLOCK: usize = 64 << 10;
const NONCE: usize = 24;
const TAG: usize = 16;
/// Bytes of a whole block on the disk.
const SLOT: u64 = (NONCE + BLOCK + TAG) as u64;

/// The key of the snapshot files of a group. It is a record of the database, which is encrypted.
#[derive(Clone)]
pub(crate) struct SnapshotKey(Zeroizing<[u8; 32]>);

impl SnapshotKey {
    /// A new one, of the system's random bytes.
    pub fn random() -> Result<Self> {
        random().map(|bytes| Self(Zeroizing::new(bytes))).map_err(Error::file("reading", "random bytes"))
    }

    pub fn new(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl std::fmt::Debug for SnapshotKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SnapshotKey(..)")
    }
}

fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    OsRng.try_fill_bytes(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

/// A file whose content is read and written at a position.
#[derive(Debug)]
pub(super) struct Bytes {
    file: File,
    path: PathBuf,
    /// Bytes of content, and where the next ones are read or written.
    len: u64,
    position: u64,
    sealed: Option<Sealed>,
}

/// What an encrypted file has more.
struct Sealed {
    cipher: XChaCha20Poly1305,
    head: [u8; HEAD],
    /// The block that is in memory.
    number: Option<u64>,
    content: Vec<u8>,
    /// Whether it has to be written.
    is_changed: bool,
}

impl std::fmt::Debug for Sealed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sealed(block {:?})", self.number)
    }
}

impl Sealed {
    fn new(key: &SnapshotKey, head: [u8; HEAD]) -> Self {
        let cipher = XChaCha20Poly1305::new(key.bytes().into());
        Self { cipher, head, number: None, content: Vec::new(), is_changed: false }
    }

    fn context(&self, number: u64) -> [u8; HEAD + 8] {
        let mut context = [0; HEAD + 8];
        context[..HEAD].copy_from_slice(&self.head);
        context[HEAD..].copy_from_slice(&number.to_le_bytes());
        context
    }

    /// Writes the block that is in memory.
    fn store(&mut self, file: &mut File) -> io::Result<()> {
        let Some(number) = self.number.filter(|_| self.is_changed) else { return Ok(()) };
        let nonce: [u8; NONCE] = random()?;
        let mut slot = Vec::with_capacity(NONCE + self.content.len() + TAG);
        slot.extend_from_slice(&nonce);
        slot.extend_from_slice(&self.content);
        let (context, content) = (self.context(number), &mut slot[NONCE..]);
        let tag = self.cipher.encrypt_inout_detached(&nonce.into(), &context, content.into());
        let tag = tag.map_err(|_| io::Error::other("a block is too long for the cipher"))?;
        slot.extend_from_slice(&tag);
        file.seek(SeekFrom::Start(place(number)))?;
        file.write_all(&slot)?;
        self.is_changed = false;
        Ok(())
    }

    /// Brings a block of a file with `len` bytes of content into memory.
    fn load(&mut self, file: &mut File, number: u64, len: u64) -> io::Result<()> {
        if self.number == Some(number) {
            return Ok(());
        }
        self.store(file)?;
        self.number = None;
        let content = (len - number * BLOCK as u64).min(BLOCK as u64) as usize;
        self.content.clear();
        if content > 0 {
            file.seek(SeekFrom::Start(place(number)))?;
            let mut nonce = [0; NONCE];
            file.read_exact(&mut nonce)?;
            self.content.resize(content, 0);
            file.read_exact(&mut self.content)?;
            let mut tag = [0; TAG];
            file.read_exact(&mut tag)?;
            let context = self.context(number);
            let content = (&mut *self.content).into();
            let opened = self.cipher.decrypt_inout_detached(&nonce.into(), &context, content, &tag.into());
            if opened.is_err() {
                self.content.clear();
                return Err(io::Error::new(
                    ErrorKind::InvalidData,
                    format!("block {number} is not what was encrypted with this node's key for this place"),
                ));
            }
        }
        self.number = Some(number);
        Ok(())
    }
}

/// Where a block is.
fn place(number: u64) -> u64 {
    HEAD as u64 + number * SLOT
}

impl Bytes {
    /// A new file.
    pub fn create(path: &Path, how: &OpenOptions, key: Option<&SnapshotKey>) -> Result<Self> {
        let mut file = how.open(path).map_err(Error::file("creating", path))?;
        let sealed = key.map(|key| {
            let mut head = [0; HEAD];
            head[..MAGIC.len()].copy_from_slice(MAGIC);
            head[MAGIC.len()..].copy_from_slice(&random::<{ HEAD - MAGIC.len() }>()?);
            file.write_all(&head)?;
            Ok(Sealed::new(key, head))
        });
        let sealed = sealed.transpose().map_err(Error::file("writing", path))?;
        Ok(Self { file, path: path.to_owned(), len: 0, position: 0, sealed })
    }

    /// A file that is there, to be read. With a key, it must be encrypted.
    pub fn open(path: &Path, key: Option<&SnapshotKey>) -> Result<Self> {
        let wrap = || Error::file("reading", path);
        let mut file = File::open(path).map_err(Error::file("opening", path))?;
        let size = file.metadata().map_err(wrap())?.len();
        let Some(key) = key else {
            return Ok(Self { file, path: path.to_owned(), len: size, position: 0, sealed: None });
        };
        let mut head = [0; HEAD];
        let mut found = Vec::new();
        (&mut file).take(HEAD as u64).read_to_end(&mut found).map_err(wrap())?;
        if found.len() != HEAD || !found.starts_with(MAGIC) {
            let found = format!("{:?}", found.get(..MAGIC.len()));
            return Err(damage(path, 0, "the magic of an encrypted file", format!("{MAGIC:?}"), found));
        }
        head.copy_from_slice(&found);
        let (whole, rest) = ((size - HEAD as u64) / SLOT, (size - HEAD as u64) % SLOT);
        let added = (NONCE + TAG) as u64;
        if rest != 0 && rest <= added {
            let expected = format!("more than {added} bytes");
            return Err(damage(path, place(whole), "the last block", expected, format!("{rest}")));
        }
        let len = whole * BLOCK as u64 + rest.saturating_sub(added);
        Ok(Self { file, path: path.to_owned(), len, position: 0, sealed: Some(Sealed::new(key, head)) })
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    /// Where the next bytes are read or written.
    pub fn position(&self) -> u64 {
        self.position
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes all content out. The position stays.
    pub fn clear(&mut self) -> io::Result<()> {
        self.file.set_len(self.sealed.as_ref().map_or(0, |_| HEAD as u64))?;
        self.len = 0;
        if let Some(sealed) = &mut self.sealed {
            sealed.content.clear();
            (sealed.number, sealed.is_changed) = (None, false);
        }
        Ok(())
    }

    pub fn sync(&mut self) -> io::Result<()> {
        self.flush()?;
        self.file.sync_all()
    }
}

impl Read for Bytes {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Self { file, len, position, sealed, .. } = self;
        let read = match sealed {
            None => file.read(buffer)?,
            Some(_) if *position >= *len || buffer.is_empty() => 0,
            Some(sealed) => {
                sealed.load(file, *position / BLOCK as u64, *len)?;
                let from = &sealed.content[(*position % BLOCK as u64) as usize..];
                let read = from.len().min(buffer.len());
                buffer[..read].copy_from_slice(&from[..read]);
                read
            }
        };
        *position += read as u64;
        Ok(read)
    }
}

impl Write for Bytes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Self { file, len, position, sealed, .. } = self;
        let written = match sealed {
            None => file.write(bytes)?,
            Some(_) if *position > *len => {
                return Err(io::Error::new(
                    ErrorKind::InvalidInput,
                    format!("byte {position} of an encrypted file of {len} bytes: there would be a hole"),
                ));
            }
            Some(sealed) => {
                sealed.load(file, *position / BLOCK as u64, *len)?;
                let at = (*position % BLOCK as u64) as usize;
                let written = bytes.len().min(BLOCK - at);
                if sealed.content.len() < at + written {
                    sealed.content.resize(at + written, 0);
                }
                sealed.content[at..at + written].copy_from_slice(&bytes[..written]);
                sealed.is_changed |= written > 0;
                written
            }
        };
        *position += written as u64;
        *len = (*len).max(*position);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.sealed {
            Some(sealed) => sealed.store(&mut self.file),
            None => self.file.flush(),
        }
    }
}

impl Seek for Bytes {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => self.len.checked_add_signed(by),
        };
        let before = || io::Error::new(ErrorKind::InvalidInput, "a place before the beginning of the file");
        self.position = position.ok_or_else(before)?;
        if self.sealed.is_none() {
            self.file.seek(SeekFrom::Start(self.position))?;
        }
        Ok(self.position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Write(usize),
        Read(usize),
        /// To a part of what is there, in thousandths.
        Seek(u64),
        OpenAgain,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..150_000usize).prop_map(Step::Write),
            3 => (0..150_000usize).prop_map(Step::Read),
            2 => (0..=1000u64).prop_map(Step::Seek),
            1 => Just(Step::OpenAgain),
        ];
        prop::collection::vec(step, 1..20)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        #[test]
        fn it_is_a_file(steps in steps(), is_encrypted: bool) {
            let dir = tempfile::tempdir().expect("a directory");
            let path = dir.path().join("a");
            let key = SnapshotKey::random().expect("random bytes");
            let key = is_encrypted.then_some(&key);
            let how = OpenOptions::new().create_new(true).read(true).write(true).clone();
            let mut bytes = Bytes::create(&path, &how, key).expect("is created");
            let mut model = io::Cursor::new(Vec::new());
            for (number, step) in (0u8..).zip(steps) {
                match step {
                    Step::Write(len) => {
                        let data = vec![number; len];
                        bytes.write_all(&data).expect("writes");
                        model.write_all(&data).expect("writes");
                    }
                    Step::Read(len) => {
                        let (mut found, mut expected) = (Vec::new(), Vec::new());
                        (&mut bytes).take(len as u64).read_to_end(&mut found).expect("reads");
                        (&mut model).take(len as u64).read_to_end(&mut expected).expect("reads");
                        prop_assert!(found == expected);
                    }
                    Step::Seek(part) => {
                        let to = SeekFrom::Start(model.get_ref().len() as u64 * part / 1000);
                        prop_assert_eq!(bytes.seek(to).expect("seeks"), model.seek(to).expect("seeks"));
                    }
                    Step::OpenAgain => {
                        bytes.sync().expect("syncs");
                        let mut again = Bytes::open(&path, key).expect("opens");
                        let mut found = Vec::new();
                        again.read_to_end(&mut found).expect("reads");
                        prop_assert!(found == *model.get_ref());
                    }
                }
                prop_assert_eq!(bytes.len(), model.get_ref().len() as u64);
            }
        }
    }

    #[test]
    fn blocks_that_were_changed_moved_or_are_another_files_are_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a");
        let key = SnapshotKey::random().expect("random bytes");
        let secret = b"nobody else reads this";
        let write = || {
            let how = OpenOptions::new().create(true).truncate(true).read(true).write(true).clone();
            let mut bytes = Bytes::create(&path, &how, Some(&key)).expect("is created");
            bytes.write_all(&secret.repeat(10_000)).expect("writes");
            bytes.sync().expect("syncs");
            std::fs::read(&path).expect("reads")
        };
        let (other, whole) = (write(), write());
        assert!(!whole.windows(secret.len()).any(|window| window == secret));
        let read = |file: &[u8], key| {
            std::fs::write(&path, file).expect("writes");
            let mut content = Vec::new();
            let read = Bytes::open(&path, key).map_err(|error| error.to_string());
            read.and_then(|mut bytes| bytes.read_to_end(&mut content).map_err(|error| error.to_string()))?;
            Ok::<_, String>(content)
        };
        assert!(read(&whole, Some(&key)).expect("reads") == secret.repeat(10_000));
        let refused = |file: &[u8], how: &str| drop(read(file, Some(&key)).expect_err(how));
        for at in (0..whole.len()).step_by(997) {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            refused(&changed, &format!("byte {at}"));
        }
        let block = |number| place(number) as usize..place(number + 1) as usize;
        let mut moved = whole.clone();
        moved.copy_within(block(0), block(1).start);
        refused(&moved, "a block elsewhere");
        let mut foreign = whole.clone();
        foreign[block(1)].copy_from_slice(&other[block(1)]);
        refused(&foreign, "a block of another file");
        refused(&whole[..place(1) as usize + 40], "a block of nothing");
        refused(&whole[..whole.len() - 1], "a cut block");
        refused(b"SapRaft1 and what is not encrypted", "not encrypted");
        refused(&whole[..HEAD - 1], "no head");
        read(&whole, Some(&SnapshotKey::random().expect("random bytes"))).expect_err("another key");
    }
}
