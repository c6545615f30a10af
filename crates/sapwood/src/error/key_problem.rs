//! What is wrong with the key of an encrypted database.

/// What is wrong with a key: see [`Error::EncryptionKey`](crate::Error::EncryptionKey).
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let path = dir.path().join("ships.db");
/// use sapwood::{Database, EncryptionKey, Error, KeyProblem};
///
/// drop(Database::builder().encryption_key(EncryptionKey::generate()?).open(&path)?);
/// let opened = Database::open(&path);
/// assert!(matches!(opened, Err(Error::EncryptionKey { problem: KeyProblem::Needed, .. })));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyProblem {
    /// The database or backup is encrypted, and no key was given.
    Needed,
    /// It is encrypted with another key.
    Wrong,
    /// It is not encrypted, and a key was given.
    Needless,
    /// The file is no key file.
    NoKeyFile,
    /// The key was changed as often as it can be.
    TooMany,
}

impl std::fmt::Display for KeyProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Needed => "it is encrypted, and no key was given: give the key that it was created with, or changed to since",
            Self::Wrong => {
                "it is encrypted with another key: its key may have been changed since, or this is a key of another database"
            }
            Self::Needless => {
                "a key was given, but it is not encrypted: open it without a key; to encrypt it, copy it into a new database that has one"
            }
            Self::NoKeyFile => "it is no key file: 64 hexadecimal digits are expected",
            Self::TooMany => "its key was changed as often as it can be: copy it into a new database",
        })
    }
}
