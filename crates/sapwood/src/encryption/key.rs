//! The key that a user gives.

use super::data_keys::CipherKey;
use crate::error::{Error, KeyProblem, Result};
use crate::random::no_random;
use std::fs::File;
use std::io::ErrorKind::{InvalidInput, PermissionDenied, Unsupported};
use std::io::{Read, Write};
use std::path::Path;
use zeroize::{Zeroize, Zeroizing};

/// Hexadecimal digits of a key file, and bytes of one at most: nothing of what a larger file has is a key.
const DIGITS: usize = 64;
const FILE_MAX: u64 = 1024;

/// A key of 256 bits that a database is [encrypted](crate::Builder::encryption_key) with. It is wiped from memory when it is dropped, and is
/// not printed.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let (path, file) = (dir.path().join("ships.db"), dir.path().join("ships.key"));
/// use sapwood::{Database, EncryptionKey};
///
/// let key = EncryptionKey::generate()?;
/// key.save(&file)?; // keep a copy elsewhere: without it nothing can be read
/// let db = Database::builder().encryption_key(key).open(&path)?;
/// db.keyspace("ships")?.insert("fram", "1892")?;
/// # drop(db);
/// let db = Database::builder().encryption_key(EncryptionKey::from_file(&file)?).open(&path)?;
/// assert!(db.keyspace("ships")?.contains("fram")?);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct EncryptionKey(CipherKey);

impl EncryptionKey {
    /// A new key, of the operating system's random bytes.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// let key = sapwood::EncryptionKey::generate()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// I/O errors: the operating system has no random bytes.
    pub fn generate() -> Result<Self> {
        Ok(Self(CipherKey::random().map_err(no_random)?))
    }

    /// The key with these bytes, which must be random: a password is none.
    ///
    /// ```
    /// let from_a_vault = [0x5a; 32];
    /// let key = sapwood::EncryptionKey::from_bytes(from_a_vault);
    /// ```
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(CipherKey::new(Zeroizing::new(bytes)))
    }

    /// Reads a key file: 64 hexadecimal digits, which white space may surround.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let file = dir.path().join("ships.key");
    /// sapwood::EncryptionKey::generate()?.save(&file)?;
    /// let key = sapwood::EncryptionKey::from_file(&file)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::EncryptionKey`] if it is no key file; I/O errors if it cannot be read.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let mut text = Zeroizing::new(Vec::with_capacity(FILE_MAX as usize));
        let file = std::fs::File::open(path).map_err(|error| of_file("open", path, error))?;
        file.take(FILE_MAX).read_to_end(&mut text).map_err(|error| of_file("read", path, error))?;
        let not_one =
            || Error::EncryptionKey { path: path.display().to_string(), problem: KeyProblem::NoKeyFile };
        let digits = text.trim_ascii();
        if digits.len() != DIGITS {
            return Err(not_one());
        }
        let mut bytes = Zeroizing::new([0; DIGITS / 2]);
        for (byte, pair) in bytes.iter_mut().zip(digits.as_chunks::<2>().0) {
            let digit = |digit: u8| char::from(digit).to_digit(16).map(|digit| digit as u8);
            let (Some(high), Some(low)) = (digit(pair[0]), digit(pair[1])) else { return Err(not_one()) };
            *byte = high << 4 | low;
        }
        Ok(Self(CipherKey::new(bytes)))
    }

    /// Writes a key file, which must not exist, and which on Unix only its owner may read.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let file = dir.path().join("ships.key");
    /// let key = sapwood::EncryptionKey::generate()?;
    /// key.save(&file)?;
    /// assert!(key.save(&file).is_err(), "no key is overwritten");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// I/O errors if the file exists or cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut text = Zeroizing::new(String::with_capacity(DIGITS + 1));
        for byte in self.0.bytes() {
            for digit in [byte >> 4, byte & 15] {
                text.push(char::from_digit(digit.into(), 16).unwrap_or('0'));
            }
        }
        text.push('\n');
        let written = options.open(path).and_then(|mut file| {
            let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
            let written = written.and_then(|()| sync_name(path));
            if written.is_err() {
                // What is cut off is no key, what may not last is none to rely on, and both would be in the way of the next attempt.
                let _ = std::fs::remove_file(path);
            }
            written
        });
        text.zeroize();
        written.map_err(|error| of_file("write", path, error))
    }

    pub(super) fn cipher(&self) -> &CipherKey {
        &self.0
    }
}

/// Makes the name of a file durable, where directories can be synced: a database must not outlive its key.
fn sync_name(path: &Path) -> std::io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = if cfg!(unix) { File::open(parent).and_then(|it| it.sync_all()) } else { Ok(()) };
    match synced {
        Err(error) if matches!(error.kind(), InvalidInput | Unsupported | PermissionDenied) => Ok(()),
        synced => synced,
    }
}

fn of_file(operation: &'static str, path: &Path, error: std::io::Error) -> Error {
    io_error(operation, path.display().to_string(), error)
}

fn io_error(operation: &'static str, file: String, source: std::io::Error) -> Error {
    psync::Error::Io { operation, file, offset: None, source }.into()
}

impl std::fmt::Debug for EncryptionKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EncryptionKey(..)")
    }
}
