//! Reads blobs of a target from front to back.

use super::blob::{BlobReader, Header, Input, Kind, Place, Seal};
use super::manifest::BackupManifest;
use super::name::BlobName;
use super::target::Target;
use super::{called, damage};
use crate::database_id::DatabaseId;
use crate::error::Result;

/// Bytes that are asked for at a time: enough for a device's full speed, and little memory.
const WINDOW: usize = 1 << 20;
/// Most bytes of a manifest: of some million segments.
const MANIFEST_MAX: usize = 256 << 20;

/// A blob of a target, read in parts.
pub(super) struct BlobInput<'t> {
    target: &'t dyn Target,
    place: String,
    name: String,
    /// Bytes that were read and not handed on yet.
    window: Vec<u8>,
    at: usize,
    /// Where the window ends in the blob.
    end: u64,
}

impl<'t> BlobInput<'t> {
    pub fn new(target: &'t dyn Target, name: BlobName) -> Self {
        let (place, name) = (target.describe(), name.to_string());
        Self { target, place, name, window: Vec::new(), at: 0, end: 0 }
    }

    /// Reads the header, which must be that of the blob of this name.
    pub fn open(&mut self, kind: Kind, backup: u64) -> Result<BlobReader<'_, Self>> {
        let (place, name) = (self.place.clone(), self.name.clone());
        let Some(reader) = BlobReader::begin(self)? else {
            return Err(damage(&place, &name, 0, "the blob is empty", "64 bytes", "none"));
        };
        let Header { kind: its, backup: of, .. } = reader.header;
        if (its, of) != (kind, backup) {
            let found = format!("{its:?} of backup {of}");
            return Err(reader.damage("what the blob is", format!("{kind:?} of backup {backup}"), found));
        }
        Ok(reader)
    }
}

impl Input for BlobInput<'_> {
    fn fill(&mut self, buffer: &mut [u8]) -> Result<bool> {
        let mut filled = 0;
        while filled < buffer.len() {
            if self.at == self.window.len() {
                self.window.resize(WINDOW, 0);
                let got = self.target.get(&self.name, self.end, &mut self.window);
                self.window.truncate(*got.as_ref().unwrap_or(&0));
                self.at = 0;
                let got = called(self.target, "read", &self.name, got)?;
                self.end += got as u64;
                if got == 0 {
                    break;
                }
            }
            let count = (buffer.len() - filled).min(self.window.len() - self.at);
            buffer[filled..filled + count].copy_from_slice(&self.window[self.at..self.at + count]);
            (filled, self.at) = (filled + count, self.at + count);
        }
        if filled == buffer.len() || filled == 0 {
            return Ok(filled > 0);
        }
        let expected = format!("{} bytes", buffer.len());
        Err(damage(&self.place, &self.name, self.end, "the blob is cut off", expected, filled))
    }

    fn place(&self) -> Place<'_> {
        Place { target: &self.place, name: &self.name }
    }
}

/// The database that an attempt was of, as its version says; `None` if that is damaged, so that it is of no use.
///
/// # Errors
/// [`Error::NewerFormat`]: it is of use to a newer Sapwood.
pub(super) fn database_of(target: &dyn Target, attempt: u64) -> Result<Option<DatabaseId>> {
    let mut input = BlobInput::new(target, BlobName::Version(attempt));
    match input.open(Kind::Version, attempt) {
        Ok(reader) => Ok(Some(reader.header.database)),
        Err(error) if error.is_damage() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads the manifest of a backup.
pub(super) fn read_manifest(target: &dyn Target, number: u64) -> Result<(BackupManifest, Seal)> {
    let mut input = BlobInput::new(target, BlobName::Manifest(number));
    let mut reader = input.open(Kind::Manifest, number)?;
    decode_manifest(&mut reader)
}

/// Reads the content of a manifest, whose header was read.
pub(super) fn decode_manifest<I: Input>(reader: &mut BlobReader<'_, I>) -> Result<(BackupManifest, Seal)> {
    let mut bytes = Vec::new();
    while let Some(chunk) = reader.next()? {
        bytes.extend_from_slice(chunk);
        if bytes.len() > MANIFEST_MAX {
            return Err(reader.damage(
                "the length of a manifest",
                format!("at most {MANIFEST_MAX}"),
                bytes.len(),
            ));
        }
    }
    let seal = reader.finish()?;
    match BackupManifest::decode(&reader.header, &bytes) {
        Ok(manifest) => Ok((manifest, seal)),
        Err(why) => Err(reader.damage("the content of a manifest", "a sound one", why)),
    }
}
