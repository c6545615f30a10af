//! The keys that data is encrypted with. They are random, and known by their numbers, which count from 1.

use super::{NONCE, TAG};
use chacha20poly1305::aead::AeadInOut;
use chacha20poly1305::{KeyInit, XChaCha20Poly1305};
use rand::TryRngCore;
use rand::rngs::OsRng;
use zeroize::Zeroizing;

/// Bytes of a key, as the format and the cipher have it.
pub(super) const KEY: usize = 32;

/// A key of the cipher.
#[derive(Clone)]
pub(super) struct CipherKey(Zeroizing<[u8; KEY]>);

impl CipherKey {
    pub fn new(bytes: Zeroizing<[u8; KEY]>) -> Self {
        Self(bytes)
    }

    /// Of the operating system's random bytes. The error: it has none.
    pub fn random() -> std::io::Result<Self> {
        let mut bytes = Zeroizing::new([0; KEY]);
        OsRng.try_fill_bytes(&mut bytes[..]).map_err(std::io::Error::other)?;
        Ok(Self(bytes))
    }

    pub fn bytes(&self) -> &[u8; KEY] {
        &self.0
    }

    fn cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new((&*self.0).into())
    }

    /// Encrypts in place, and returns the tag.
    pub fn encrypt(&self, nonce: &[u8; NONCE], context: &[u8], content: &mut [u8]) -> [u8; TAG] {
        let encrypted = self.cipher().encrypt_inout_detached(nonce.into(), context, content.into());
        let Ok(tag) = encrypted else { unreachable!("content of less than 2^38 bytes") };
        tag.into()
    }

    /// Decrypts in place, if the tag is right.
    pub fn decrypt(&self, nonce: &[u8; NONCE], context: &[u8], content: &mut [u8], tag: &[u8; TAG]) -> bool {
        self.cipher().decrypt_inout_detached(nonce.into(), context, content.into(), tag.into()).is_ok()
    }
}

/// All data keys of a database. There is at least one; the newest encrypts.
#[derive(Clone)]
pub(super) struct DataKeys(Vec<CipherKey>);

impl DataKeys {
    /// `None` without a key.
    pub fn new(keys: Vec<CipherKey>) -> Option<Self> {
        (!keys.is_empty()).then_some(Self(keys))
    }

    /// These and a new one.
    pub fn and_new(&self) -> std::io::Result<Self> {
        let mut keys = self.0.clone();
        keys.push(CipherKey::random()?);
        Ok(Self(keys))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn newest(&self) -> (u32, &CipherKey) {
        let last = self.0.len() - 1;
        (last as u32 + 1, &self.0[last])
    }

    pub fn get(&self, number: u32) -> Option<&CipherKey> {
        self.0.get(number.checked_sub(1)? as usize)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &CipherKey)> {
        (1..).zip(&self.0)
    }

    #[cfg(test)]
    pub fn first() -> Self {
        Self(vec![CipherKey::random().unwrap()])
    }
}
