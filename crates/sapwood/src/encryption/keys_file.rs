//! `KEYS`: the data keys of an encrypted database, each encrypted with the user's key.
//!
//! ```text
//! offset size
//!      0    8  magic "SapKEYS\n"
//!      8    4  format version
//!     12   16  database id
//!     28    4  n: data keys, at least 1; the newest is the last
//!     32 76*n  each: its number, from 1 on (4), nonce (24), encrypted data key (32), tag (16)
//!      …    4  CRC-32C of all bytes before
//! ```
//! The context that a data key is authenticated with: magic, format version, database id, its number. The file is replaced as a whole, as
//! `CURRENT` is: written to a temporary file, synced, renamed, directory synced. It is created before `CURRENT`.

use super::data_keys::{CipherKey, DataKeys, KEY};
use super::{Encryption, EncryptionKey, NONCE, TAG, key_error};
use crate::bytecode::Reader;
use crate::database_id::DatabaseId;
use crate::error::{Error, KeyProblem, Result};
use crate::random::{no_random, random};
use crate::whole_file;
use psync::Volume;
use std::sync::Arc;
use zeroize::Zeroizing;

/// Name of the file, and while it is written.
pub(crate) const FILE: &str = "KEYS";
pub(crate) const TEMPORARY: &str = "KEYS.tmp";
const MAGIC: &[u8; 8] = b"SapKEYS\n";
/// The format that is written, and the newest that is read (a count of formats).
const FORMAT: u32 = 1;
/// Bytes before the keys, of each key and behind them, as the format has it.
const HEAD: usize = 32;
const WRAPPED: usize = 4 + NONCE + KEY + TAG;
const END: usize = 4;
/// Most data keys (count): one each day for some years, and as many copies of copies, each of which adds one. The file stays short.
const KEYS_MAX: usize = 2048;
/// Data keys (count) behind which the key is not changed any more: a database can be copied after that.
const CHANGED_MAX: usize = 1024;
/// Most bytes of the file.
pub(crate) const CONTENT_MAX: usize = HEAD + KEYS_MAX * WRAPPED + END;

/// What a data key is authenticated with.
fn context(head: &[u8], number: u32) -> Vec<u8> {
    [&head[..HEAD - 4], &number.to_le_bytes()].concat()
}

/// The content of the file.
fn encode(database: DatabaseId, keys: &DataKeys, key: &EncryptionKey) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(HEAD + WRAPPED * keys.len() + END);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&FORMAT.to_le_bytes());
    out.extend_from_slice(&database.0);
    out.extend_from_slice(&(keys.len() as u32).to_le_bytes());
    for (number, data_key) in keys.iter() {
        let nonce: [u8; NONCE] = random()?;
        let mut wrapped = Zeroizing::new(*data_key.bytes());
        let tag = key.cipher().encrypt(&nonce, &context(&out, number), &mut wrapped[..]);
        out.extend_from_slice(&number.to_le_bytes());
        out.extend_from_slice(&nonce);
        out.extend_from_slice(&wrapped[..]);
        out.extend_from_slice(&tag);
    }
    let crc = crc32c::crc32c(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    Ok(out)
}

fn corrupt<T>(offset: usize, what: &str, expected: String, found: String) -> Result<T> {
    Err(Error::corrupt(FILE, offset as u64, what, expected, found))
}

/// Checks the content of a file as far as that needs no key of the user's. Returns the database that it is of, and how many data keys it
/// has. `path`: of what, for messages.
fn check(bytes: &[u8], path: &str) -> Result<(DatabaseId, u32)> {
    let (len, least) = (bytes.len(), HEAD + WRAPPED + END);
    if len < least || !(len - HEAD - END).is_multiple_of(WRAPPED) {
        return corrupt(
            0,
            "length of the file",
            format!("{least} bytes, or {WRAPPED} more a key"),
            len.to_string(),
        );
    }
    if !bytes.starts_with(MAGIC) {
        return corrupt(0, "magic", format!("{MAGIC:02x?}"), format!("{:02x?}", &bytes[..8]));
    }
    let (content, crc) = bytes.split_at(len - END);
    let actual = crc32c::crc32c(content).to_le_bytes();
    if crc != actual {
        return corrupt(len - END, "checksum", format!("{crc:02x?}"), format!("{actual:02x?}"));
    }
    let mut reader = Reader::new(&content[8..]);
    let head = (reader.u32(), reader.array().map(DatabaseId), reader.u32());
    let (Some(format), Some(database), Some(count)) = head else {
        return corrupt(0, "length of the file", format!("{least} bytes"), len.to_string());
    };
    if format > FORMAT {
        return Err(Error::NewerFormat { path: path.into(), found: format, supported: FORMAT });
    }
    let found = (len - HEAD - END) / WRAPPED;
    if count as usize != found || found > KEYS_MAX {
        return corrupt(28, "number of keys", format!("{found}, and at most {KEYS_MAX}"), count.to_string());
    }
    Ok((database, count))
}

/// The data keys in the content of a file, and the database that it is of. `path`: of what, for messages.
fn decode(bytes: &[u8], key: &EncryptionKey, path: &str) -> Result<(DatabaseId, DataKeys)> {
    let (database, count) = check(bytes, path)?;
    let content = &bytes[..bytes.len() - END];
    let mut reader = Reader::new(&content[HEAD..]);
    let mut keys = Vec::with_capacity(count as usize);
    for expected in 1..=count {
        let at = content.len() - reader.remaining();
        let wrapped = (|| Some((reader.u32()?, reader.array()?, reader.array()?, reader.array()?)))();
        let Some((number, nonce, wrapped, tag)) = wrapped else {
            return corrupt(at, "a data key", format!("{WRAPPED} bytes"), "fewer".into());
        };
        if number != expected {
            return corrupt(at, "number of a data key", expected.to_string(), number.to_string());
        }
        let mut wrapped: Zeroizing<[u8; KEY]> = Zeroizing::new(wrapped);
        if !key.cipher().decrypt(&nonce, &context(content, number), &mut wrapped[..], &tag) {
            if keys.is_empty() {
                return key_error(path, KeyProblem::Wrong);
            }
            return corrupt(
                at,
                "a data key",
                "one that the key opens".into(),
                "another, or a forged one".into(),
            );
        }
        keys.push(CipherKey::new(wrapped));
    }
    match DataKeys::new(keys) {
        Some(keys) => Ok((database, keys)),
        None => corrupt(28, "number of keys", "at least 1".into(), "0".into()),
    }
}

/// Makes beginning, length and checksum of some bytes right, for fuzzing.
#[cfg(any(fuzzing, test))]
pub(crate) fn seal_keys(bytes: &mut Vec<u8>) {
    let count = (bytes.len() / WRAPPED).clamp(1, KEYS_MAX);
    bytes.resize(HEAD + count * WRAPPED + END, 0);
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    bytes[28..HEAD].copy_from_slice(&(count as u32).to_le_bytes());
    let end = bytes.len() - END;
    let crc = crc32c::crc32c(&bytes[..end]);
    bytes[end..].copy_from_slice(&crc.to_le_bytes());
}

/// What `KEYS` has; `None` if there is none.
pub(crate) fn content(volume: &dyn Volume) -> Result<Option<Vec<u8>>> {
    whole_file::read(volume, FILE, CONTENT_MAX + 1)
}

/// Replaces the file, atomically and durably. [`Error::Poisoned`]: it may or may not have happened.
fn store(volume: &dyn Volume, content: &[u8]) -> Result<()> {
    whole_file::replace(volume, (TEMPORARY, FILE), content)
}

impl Encryption {
    /// Gives a new database its first data key, if it is to be encrypted.
    pub fn create(volume: &dyn Volume, database: DatabaseId, key: Option<&EncryptionKey>) -> Result<Self> {
        let Some(key) = key else { return Ok(Self::NONE) };
        let first = CipherKey::random().map_err(no_random)?;
        let Some(keys) = DataKeys::new(vec![first]) else { return Ok(Self::NONE) };
        store(volume, &encode(database, &keys, key)?)?;
        Self::with(keys)
    }

    /// Reads the data keys of a database. `path`: where it is, for messages.
    pub fn read(
        volume: &dyn Volume,
        database: DatabaseId,
        key: Option<&EncryptionKey>,
        path: &str,
    ) -> Result<Self> {
        let content = content(volume)?;
        match (content, key) {
            (None, None) => Ok(Self::NONE),
            (None, Some(_)) => key_error(path, KeyProblem::Needless),
            (Some(_), None) => key_error(path, KeyProblem::Needed),
            (Some(content), Some(key)) => {
                let (of, keys) = decode(&content, key, path)?;
                if of != database {
                    return Err(Error::corrupt(FILE, 12, "database id", database, of));
                }
                Self::with(keys)
            }
        }
    }

    /// From now on the database opens with this key, and what is written is encrypted with a new data key.
    pub fn change_key(
        &self,
        volume: &dyn Volume,
        database: DatabaseId,
        key: &EncryptionKey,
        path: &str,
    ) -> Result<()> {
        let Some(inner) = &self.inner else { return key_error(path, KeyProblem::Needless) };
        let keys = inner.keys.load();
        if keys.len() >= CHANGED_MAX {
            return key_error(path, KeyProblem::TooMany);
        }
        let keys = keys.and_new().map_err(no_random)?;
        store(volume, &encode(database, &keys, key)?)?;
        inner.keys.store(Arc::new(keys));
        Ok(())
    }

    /// What the `KEYS` of this database has: sound, as far as that shows without the user's key, and with all data keys that are known here.
    /// There is none if it is not encrypted.
    pub fn sound_content(&self, volume: &dyn Volume, database: DatabaseId) -> Result<Option<Vec<u8>>> {
        let Some(inner) = &self.inner else { return Ok(None) };
        // Before the file is read, which may be replaced meanwhile by one that has more.
        let known = inner.keys.load().len();
        let Some(content) = content(volume)? else {
            return corrupt(0, "it is missing", "a file".into(), "none".into());
        };
        let (of, count) = check(&content, &volume.describe())?;
        if of != database {
            return corrupt(12, "database id", database.to_string(), of.to_string());
        }
        if (count as usize) < known {
            return corrupt(28, "number of keys", format!("at least {known}"), count.to_string());
        }
        Ok(Some(content))
    }

    /// The data keys in the `KEYS` of a database that is copied.
    pub fn of_copy(content: &[u8], key: Option<&EncryptionKey>, path: &str) -> Result<Self> {
        match key {
            None => key_error(path, KeyProblem::Needed),
            Some(key) => decode(content, key, path).and_then(|(_, keys)| Self::with(keys)),
        }
    }

    /// The same database under another id: what it writes is encrypted with a data key of its own.
    pub fn copy_to(&self, volume: &dyn Volume, database: DatabaseId, key: &EncryptionKey) -> Result<Self> {
        let Some(inner) = &self.inner else { return Ok(Self::NONE) };
        let keys = inner.keys.load();
        if keys.len() >= KEYS_MAX {
            return key_error(&volume.describe(), KeyProblem::TooMany);
        }
        let keys = keys.and_new().map_err(no_random)?;
        store(volume, &encode(database, &keys, key)?)?;
        Self::with(keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use psync::{PassThrough, Read, Simulated};

    const DATABASE: DatabaseId = DatabaseId([7; 16]);
    /// Of the key 9 9 9 ..., the data key 3 3 3 ... and a nonce.
    const GOLDEN: &str = "5361704b4559530a01000000070707070707070707070707070707070100000001000000dcb66b5b97738772f128108932c5111e2f53a2a125757e3bef0f06fddfe2a9e9195cf71fccc7ca91471ce3d0668711d041aa87de68b58ef0707724a5cdd63f96854c83b6cddd6dae7e528d5a";

    fn key(byte: u8) -> EncryptionKey {
        EncryptionKey::from_bytes([byte; 32])
    }

    /// Whether the other decrypts what one encrypts.
    fn opens(one: &Encryption, other: &Encryption) -> bool {
        let mut bytes = b"content".to_vec();
        one.encrypt(b"", &mut bytes, 0);
        other.decrypt(b"", &mut bytes).is_ok()
    }

    fn problem(result: Result<Encryption>) -> Option<KeyProblem> {
        match result {
            Err(Error::EncryptionKey { problem, .. }) => Some(problem),
            _ => None,
        }
    }

    /// A key that was changed as often as it can be: copies of copies can be read.
    #[test]
    fn what_can_be_written_can_be_read() {
        let (volume, path) = (Simulated::new(1), "here");
        let encryption = Encryption::create(&volume, DATABASE, Some(&key(1))).unwrap();
        let changed =
            (0..).find(|_| encryption.change_key(&volume, DATABASE, &key(1), path).is_err()).unwrap();
        assert!(changed > 1000);
        let read = || Encryption::read(&volume, DATABASE, Some(&key(1)), path);
        let mut encryption = read().unwrap();
        for _ in 0..8 {
            encryption = encryption.copy_to(&volume, DATABASE, &key(1)).unwrap();
            assert!(opens(&encryption, &read().unwrap()));
        }
    }

    /// The format cannot change without this test changing, and the format version with it.
    #[test]
    fn golden_bytes() {
        let keys = DataKeys::new(vec![CipherKey::new(Zeroizing::new([3; KEY]))]).unwrap();
        let bytes = encode(DATABASE, &keys, &key(9)).unwrap();
        assert_eq!(bytes.len(), 112);
        assert_eq!(&bytes[..36], b"SapKEYS\n\x01\0\0\0\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x01\0\0\0\x01\0\0\0");
        let digits: Vec<u8> =
            GOLDEN.bytes().map(|digit| char::from(digit).to_digit(16).unwrap() as u8).collect();
        let written: Vec<u8> = digits.as_chunks::<2>().0.iter().map(|[high, low]| high << 4 | low).collect();
        let (database, keys) = decode(&written, &key(9), "").unwrap();
        assert_eq!((database, keys.newest().1.bytes()), (DATABASE, &[3; KEY]));
    }

    #[test]
    fn keys_are_read_with_the_key_only() {
        let volume = Simulated::new(1);
        assert!(!Encryption::read(&volume, DATABASE, None, "").unwrap().is_on());
        assert_eq!(
            problem(Encryption::read(&volume, DATABASE, Some(&key(1)), "")),
            Some(KeyProblem::Needless)
        );
        let first = Encryption::create(&volume, DATABASE, Some(&key(1))).unwrap();
        assert_eq!(problem(Encryption::read(&volume, DATABASE, None, "")), Some(KeyProblem::Needed));
        assert_eq!(problem(Encryption::read(&volume, DATABASE, Some(&key(2)), "")), Some(KeyProblem::Wrong));
        let again = Encryption::read(&volume, DATABASE, Some(&key(1)), "").unwrap();
        assert!(opens(&first, &again) && opens(&again, &first));
        assert!(
            Encryption::read(&volume, DatabaseId([8; 16]), Some(&key(1)), "")
                .is_err_and(|error| error.is_damage())
        );
        first.change_key(&volume, DATABASE, &key(2), "").unwrap();
        assert_eq!(problem(Encryption::read(&volume, DATABASE, Some(&key(1)), "")), Some(KeyProblem::Wrong));
        let changed = Encryption::read(&volume, DATABASE, Some(&key(2)), "").unwrap();
        assert!(opens(&again, &changed) && opens(&first, &changed) && !opens(&changed, &again));
    }

    #[test]
    fn a_copy_encrypts_with_a_key_of_its_own() {
        let (volume, other) = (Simulated::new(1), Simulated::new(2));
        let first = Encryption::create(&volume, DATABASE, Some(&key(1))).unwrap();
        let backed_up = content(&volume).unwrap().unwrap();
        let found = Encryption::of_copy(&backed_up, Some(&key(1)), "").unwrap();
        let copy = found.copy_to(&other, DatabaseId([8; 16]), &key(1)).unwrap();
        first.change_key(&volume, DATABASE, &key(1), "").unwrap();
        assert!(opens(&found, &copy) && !opens(&copy, &first) && !opens(&first, &copy));
        assert!(opens(&copy, &Encryption::read(&other, DatabaseId([8; 16]), Some(&key(1)), "").unwrap()));
    }

    #[test]
    fn every_byte_is_checked() {
        let volume = Simulated::new(1);
        let encryption = Encryption::create(&volume, DATABASE, Some(&key(1))).unwrap();
        encryption.change_key(&volume, DATABASE, &key(1), "").unwrap();
        let sound = content(&volume).unwrap().unwrap();
        assert!(decode(&sound, &key(1), "").is_ok());
        for bit in 0..8 * sound.len() {
            let mut flipped = sound.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&flipped, &key(1), "").is_err_and(|error| error.is_damage()), "bit {bit}");
            // A checksum is no proof.
            if (64..8 * (sound.len() - END)).contains(&bit) {
                let crc = crc32c::crc32c(&flipped[..sound.len() - END]);
                flipped[sound.len() - END..].copy_from_slice(&crc.to_le_bytes());
                assert!(decode(&flipped, &key(1), "").is_err(), "bit {bit}");
            }
        }
        for len in 0..sound.len() {
            assert!(decode(&sound[..len], &key(1), "").is_err(), "{len} bytes");
        }
    }

    /// Does something behind the next read.
    struct Between {
        inner: Simulated,
        work: std::sync::Mutex<Option<Box<dyn FnOnce() + Send>>>,
    }

    impl PassThrough for Between {
        fn inner(&self) -> &dyn Volume {
            &self.inner
        }

        fn read(&self, set: &mut [Read<'_>]) -> psync::Result<()> {
            self.inner().read(set)?;
            self.work.lock().unwrap().take().into_iter().for_each(|work| work());
            Ok(())
        }
    }

    /// `check` told of a file with too few keys.
    #[test]
    fn a_key_that_is_changed_meanwhile_is_no_damage() {
        let volume = Simulated::new(1);
        let encryption = Encryption::create(&volume, DATABASE, Some(&key(1))).unwrap();
        let (changed, inner) = (encryption.clone(), volume.clone());
        let work = move || changed.change_key(&volume, DATABASE, &key(2), "").unwrap();
        let between = Between { inner, work: std::sync::Mutex::new(Some(Box::new(work))) };
        assert!(encryption.sound_content(&between, DATABASE).unwrap().is_some());
        assert!(between.work.lock().unwrap().is_none());
        let (old, new) = (encryption.sound_content(&between, DATABASE), content(&between).unwrap());
        assert_eq!(old.unwrap(), new);
    }
}
