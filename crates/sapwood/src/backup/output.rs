//! Writes blobs to a target.

use super::blob::{BlobWriter, Header, Seal};
use super::called;
use super::name::BlobName;
use super::target::Target;
use crate::encryption::Encryption;
use crate::error::{Error, Result};
use std::io;

/// Why a blob could not be written: for the source's sake, or the target's.
pub(super) enum Failure {
    Source(Error),
    Target(io::Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Source(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Target(error)
    }
}

/// Writes a blob.
pub(super) fn put(
    target: &dyn Target,
    name: BlobName,
    (header, encryption): (&Header, &Encryption),
    content: &mut dyn FnMut(&mut BlobWriter<'_>) -> std::result::Result<(), Failure>,
) -> Result<Seal> {
    let (mut seal, mut failed) = (None, None);
    let name = name.to_string();
    let written = target.put(&name, &mut |out| {
        let mut blob = BlobWriter::begin(out, header, encryption)?;
        match content(&mut blob) {
            Ok(()) => {
                seal = Some(blob.end()?);
                Ok(())
            }
            Err(Failure::Target(error)) => Err(error),
            Err(Failure::Source(error)) => {
                let told = io::Error::other(error.to_string());
                failed = Some(error);
                Err(told)
            }
        }
    });
    match failed {
        Some(error) => Err(error),
        None => {
            called(target, "write", &name, written)?;
            let nothing = || io::Error::other("the target did not ask for the content");
            called(target, "write", &name, seal.ok_or_else(nothing))
        }
    }
}

/// Writes the blob of keys, which is not encrypted: it is what `KEYS` has.
pub(super) fn put_keys(target: &dyn Target, number: u64, header: &Header, content: &[u8]) -> Result<Seal> {
    put(target, BlobName::Keys(number), (header, &Encryption::NONE), &mut |blob| Ok(blob.put(content)?))
}
