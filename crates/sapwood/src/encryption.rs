//! Encryption at rest: how nodes, records of the log, edits of the manifest and blobs of backups are encrypted.
//!
//! ```text
//! the user's key ──▶ data keys (`KEYS`) ──▶ nodes, records of the log, edits, blobs of backups
//!
//! encrypted = content │ trailer: number of the data key (4) │ nonce (24) │ tag (16)
//! ```
//! XChaCha20-Poly1305 (draft-irtf-cfrg-xchacha): 256-bit keys, nonces of 192 bits. What is authenticated besides the content, the
//! *context*, says where it belongs: of a node what its header says, of a record and an edit its file and its place there.
//!
//! Invariants:
//! 1. No nonce is used twice with a key: each is 16 random bytes, drawn when the database is opened, and a counter.
//! 2. In an encrypted database nothing is believed that was not encrypted with one of its data keys for the place where it is found. That what
//!    comes behind is missing is not noticed where a power loss could have cut it off: the last records of the log, the last edits of the manifest.
//! 3. A data key is durable in `KEYS` before anything is encrypted with it.
//! 4. Keys are wiped from memory when they are dropped, and are in no message.

mod data_keys;
mod key;
mod keys_file;

pub use key::EncryptionKey;
#[cfg(any(fuzzing, test))]
pub(crate) use keys_file::seal_keys;
pub(crate) use keys_file::{CONTENT_MAX, FILE, TEMPORARY, content};

use crate::error::{Error, KeyProblem, Result};
use crate::random::random;
use arc_swap::ArcSwap;
use data_keys::DataKeys;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of a data key's number, of a nonce and of a tag, and of all of them behind what is encrypted, as the format has it.
const NUMBER: usize = 4;
const NONCE: usize = 24;
const TAG: usize = 16;
pub(crate) const TRAILER: usize = NUMBER + NONCE + TAG;

/// How a database is encrypted, if it is. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Encryption {
    inner: Option<Arc<Inner>>,
}

struct Inner {
    keys: ArcSwap<DataKeys>,
    /// The random part of all nonces, and how many were used.
    prefix: [u8; 16],
    used: AtomicU64,
}

/// Why something that should be encrypted cannot be decrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undecryptable {
    Short,
    UnknownKey(u32),
    Forged,
}

impl Undecryptable {
    /// What was expected, and what was found, for messages about damage.
    pub fn told(self) -> (&'static str, String) {
        match self {
            Self::Short => ("a trailer behind it", "fewer bytes than a trailer has".to_owned()),
            Self::UnknownKey(number) => (
                "a data key that KEYS has",
                format!("data key {number}: it was not encrypted for this database, or KEYS is older"),
            ),
            Self::Forged => (
                "what was encrypted for this place",
                "something else: it was changed, moved or forged".to_owned(),
            ),
        }
    }
}

impl Encryption {
    pub const NONE: Self = Self { inner: None };

    fn with(keys: DataKeys) -> Result<Self> {
        let (keys, prefix) = (ArcSwap::from_pointee(keys), random()?);
        Ok(Self { inner: Some(Arc::new(Inner { keys, prefix, used: AtomicU64::new(0) })) })
    }

    pub fn is_on(&self) -> bool {
        self.inner.is_some()
    }

    /// The number of the data key that encrypts; 0 if there is none.
    pub fn newest_key(&self) -> u32 {
        self.inner.as_ref().map_or(0, |inner| inner.keys.load().newest().0)
    }

    /// Bytes that encryption adds.
    pub fn added(&self) -> usize {
        if self.is_on() { TRAILER } else { 0 }
    }

    /// Encrypts what `bytes` has from `from` on, for the place that `context` names, and appends the trailer; nothing if the database is
    /// not encrypted.
    pub fn encrypt(&self, context: &[u8], bytes: &mut Vec<u8>, from: usize) {
        if self.is_on() {
            let content = bytes.len();
            bytes.resize(content + TRAILER, 0);
            self.encrypt_in_place(context, &mut bytes[from..]);
        }
    }

    /// The same, where `bytes` has room for the trailer behind the content.
    pub fn encrypt_in_place(&self, context: &[u8], bytes: &mut [u8]) {
        let Some(inner) = &self.inner else { return };
        let (content, trailer) = bytes.split_at_mut(bytes.len() - TRAILER);
        let mut nonce = [0; NONCE];
        nonce[..16].copy_from_slice(&inner.prefix);
        nonce[16..].copy_from_slice(&inner.used.fetch_add(1, Relaxed).to_le_bytes());
        let keys = inner.keys.load();
        let (number, key) = keys.newest();
        let tag = key.encrypt(&nonce, context, content);
        trailer[..NUMBER].copy_from_slice(&number.to_le_bytes());
        trailer[NUMBER..NUMBER + NONCE].copy_from_slice(&nonce);
        trailer[NUMBER + NONCE..].copy_from_slice(&tag);
    }

    /// Decrypts in place what was encrypted for the place that `context` names. Returns the length of the content, which is the front; all
    /// of it if the database is not encrypted.
    pub fn decrypt(&self, context: &[u8], encrypted: &mut [u8]) -> std::result::Result<usize, Undecryptable> {
        if !self.is_on() {
            return Ok(encrypted.len());
        }
        let len = encrypted.len().checked_sub(TRAILER).ok_or(Undecryptable::Short)?;
        let (content, trailer) = encrypted.split_at_mut(len);
        self.decrypt_parts(context, content, trailer).map(|()| len)
    }

    /// The same where the trailer does not lie behind the content.
    pub fn decrypt_parts(
        &self,
        context: &[u8],
        content: &mut [u8],
        trailer: &[u8],
    ) -> std::result::Result<(), Undecryptable> {
        let Some(inner) = &self.inner else { return Ok(()) };
        let (number, rest) = trailer.split_first_chunk::<NUMBER>().ok_or(Undecryptable::Short)?;
        let (nonce, tag) = rest.split_first_chunk::<NONCE>().ok_or(Undecryptable::Short)?;
        let tag = tag.first_chunk::<TAG>().ok_or(Undecryptable::Short)?;
        let number = u32::from_le_bytes(*number);
        let keys = inner.keys.load();
        let key = keys.get(number).ok_or(Undecryptable::UnknownKey(number))?;
        if key.decrypt(nonce, context, content, tag) { Ok(()) } else { Err(Undecryptable::Forged) }
    }

    /// One with a random key.
    #[cfg(test)]
    pub fn for_test() -> Self {
        Self::with(DataKeys::first()).expect("the system has random bytes")
    }

    /// The same with the keys that there are now: none comes later.
    pub fn frozen(&self) -> Result<Self> {
        let Some(inner) = &self.inner else { return Ok(Self::NONE) };
        Self::with(DataKeys::clone(&inner.keys.load()))
    }
}

impl std::fmt::Debug for Encryption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.is_on() { "Encryption(on)" } else { "Encryption(none)" })
    }
}

/// The error for a key that does not fit.
fn key_error<T>(path: &str, problem: KeyProblem) -> Result<T> {
    Err(Error::EncryptionKey { path: path.into(), problem })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn encryption() -> Encryption {
        Encryption::for_test()
    }

    #[test]
    fn what_is_encrypted_comes_back_where_it_belongs_and_nowhere_else() {
        let encryption = encryption();
        let mut bytes = b"head content".to_vec();
        encryption.encrypt(b"here", &mut bytes, 5);
        assert_eq!((&bytes[..5], bytes.len()), (&b"head "[..], 12 + TRAILER));
        assert!(!bytes.windows(7).any(|window| window == b"content"));
        let open = |context: &[u8], bytes: &[u8]| {
            let mut bytes = bytes[5..].to_vec();
            encryption.decrypt(context, &mut bytes).map(|len| bytes[..len].to_vec())
        };
        assert_eq!(open(b"here", &bytes).unwrap(), b"content");
        assert_eq!(open(b"there", &bytes), Err(Undecryptable::Forged));
        for bit in 8 * 5..8 * bytes.len() {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(open(b"here", &flipped).is_err(), "bit {bit}");
        }
        for len in 5..bytes.len() {
            assert!(open(b"here", &bytes[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn no_nonce_comes_twice() {
        let (first, second) = (encryption(), encryption());
        let mut nonces = HashSet::new();
        for number in 0..1000 {
            let encryption = if number % 3 == 0 { &first } else { &second };
            let mut bytes = b"the same".to_vec();
            encryption.encrypt(b"", &mut bytes, 0);
            assert!(nonces.insert(bytes[8 + NUMBER..][..NONCE].to_vec()));
        }
        assert!(nonces.iter().any(|nonce| nonces.iter().any(|other| nonce[..16] != other[..16])));
    }

    #[test]
    fn without_a_key_everything_stays_as_it_is() {
        let mut bytes = b"content".to_vec();
        Encryption::NONE.encrypt(b"", &mut bytes, 0);
        assert_eq!(bytes, b"content");
        assert_eq!((Encryption::NONE.decrypt(b"", &mut bytes), Encryption::NONE.added()), (Ok(7), 0));
    }
}
