//! `CURRENT`: the file that makes a directory a database, and names the valid manifest.
//!
//! ```text
//! offset size
//!      0    8  magic "sapwood\n"
//!      8    4  format version
//!     12   16  database id: random, in every other file too
//!     28    8  number of the manifest
//!     36    8  span: most bytes of a segment of the data file
//!     44    8  bytes that the manifest has at least: as many as at the last proper close
//!     52    4  CRC-32C of bytes 0..52
//! ```
//! It is replaced as a whole: written to a temporary file, synced, renamed, directory synced. A new
//! database's `CURRENT` is created after all its other files. Newer formats keep magic, version and checksum
//! where they are, so that a newer database can be told from a damaged one.

use crate::bytecode::Reader;
use crate::database_id::DatabaseId;
use crate::error::{DATA, Error, Result};
use crate::operation::NUMBER_MAX;
use crate::version::manifest;
use crate::whole_file;
use psync::Volume;

pub(crate) const FILE: &str = "CURRENT";
pub(crate) const TEMPORARY: &str = "CURRENT.tmp";
/// The format that is written.
pub(crate) const FORMAT: u32 = 14;
/// The oldest format that is read (9 knows no merging; 8 no expiry; 7 has neither removals of ranges in the log nor estimated numbers of records): in
/// place of granules it counts slots, which are as long as the span. Opening for writing begins a manifest of the present format.
pub(crate) const FORMAT_OF_SLOTS: u32 = 6;
const MAGIC: &[u8; 8] = b"sapwood\n";
const LEN: usize = 56;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Current {
    /// The format of the manifest.
    pub format: u32,
    pub database: DatabaseId,
    pub manifest: u64,
    pub span: u64,
    pub manifest_len: u64,
}

impl Current {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(LEN);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&self.format.to_le_bytes());
        out.extend_from_slice(&self.database.0);
        out.extend_from_slice(&self.manifest.to_le_bytes());
        out.extend_from_slice(&self.span.to_le_bytes());
        out.extend_from_slice(&self.manifest_len.to_le_bytes());
        let crc = crc32c::crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads and decodes what `volume` has.
    pub fn read(volume: &dyn Volume) -> Result<Self> {
        // A large file is not ours, and its beginning tells.
        let Some(bytes) = whole_file::read(volume, FILE, 4096)? else {
            return Err(Error::corrupt(FILE, 0, "it is missing", "a file", "none"));
        };
        match Self::decode(&bytes, &volume.describe()) {
            // Other programs have a file of this name too, but not beside such others.
            Err(Error::NotADatabase { .. }) if has_other_files(volume)? => {
                let (expected, found) = (format!("{MAGIC:02x?}"), format!("{:02x?}", &bytes[..MAGIC.len()]));
                Err(Error::corrupt(FILE, 0, "magic", expected, found))
            }
            decoded => decoded,
        }
    }

    /// Decodes what `encode` wrote; `path` is for messages.
    pub fn decode(bytes: &[u8], path: &str) -> Result<Self> {
        let corrupt = |offset, what: &str, expected: String, found: String| {
            Err(Error::corrupt(FILE, offset, what, expected, found))
        };
        if bytes.len() >= MAGIC.len() && !bytes.starts_with(MAGIC) {
            let reason = format!("its {FILE} begins with {:02x?}, not with {:02x?}", &bytes[..8], MAGIC);
            return Err(Error::NotADatabase { path: path.into(), reason });
        }
        let mut reader = Reader::new(bytes);
        let mut parse = || {
            Some((
                reader.array::<8>()?,
                reader.u32()?,
                reader.array()?,
                reader.u64()?,
                reader.u64()?,
                reader.u64()?,
                reader.u32()?,
            ))
        };
        let Some((_, format, database, manifest, span, manifest_len, crc)) = parse() else {
            return corrupt(
                0,
                "length of the file",
                format!("{LEN} bytes"),
                format!("{} bytes", bytes.len()),
            );
        };
        let actual = crc32c::crc32c(&bytes[..LEN - 4]);
        if actual != crc {
            return corrupt(52, "checksum", format!("{crc:08x}"), format!("{actual:08x}"));
        }
        if format > FORMAT {
            return Err(Error::NewerFormat { path: path.into(), found: format, supported: FORMAT });
        }
        if (1..FORMAT_OF_SLOTS).contains(&format) {
            return Err(Error::OlderFormat { path: path.into(), found: format, supported: FORMAT });
        }
        if bytes.len() != LEN {
            return corrupt(
                0,
                "length of the file",
                format!("{LEN} bytes"),
                format!("{} bytes", bytes.len()),
            );
        }
        if manifest >= NUMBER_MAX {
            return corrupt(28, "manifest number", format!("less than {NUMBER_MAX}"), manifest.to_string());
        }
        if !span.is_power_of_two() || span > 1 << 40 || format == 0 {
            return corrupt(36, "span", "a power of two".into(), span.to_string());
        }
        Ok(Self { format, database: DatabaseId(database), manifest, span, manifest_len })
    }

    /// Makes this the database's `CURRENT`, atomically and durably. `Poisoned`: it may or may not have
    /// happened.
    pub fn store(&self, volume: &dyn Volume) -> Result<()> {
        whole_file::replace(volume, (TEMPORARY, FILE), &self.encode())
    }
}

/// Whether the directory has what every database has besides.
fn has_other_files(volume: &dyn Volume) -> Result<bool> {
    let is_ours = |name: &str| name == DATA || manifest::number_of(name).is_some();
    Ok(volume.list()?.iter().any(|entry| is_ours(&entry.name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: Current = Current {
        format: FORMAT,
        database: DatabaseId([9; 16]),
        manifest: 12,
        span: 64 << 20,
        manifest_len: 99,
    };

    #[test]
    fn golden_bytes_and_back() {
        let bytes = SOUND.encode();
        assert_eq!(bytes.len(), LEN);
        assert_eq!(&bytes[..12], b"sapwood\n\x0e\0\0\0");
        assert_eq!(Current::decode(&bytes, "db").unwrap(), SOUND);
    }

    #[test]
    fn what_is_wrong_is_told_apart() {
        let sound = SOUND.encode();
        assert!(matches!(Current::decode(b"PK\x03\x04 a zip file", "db"), Err(Error::NotADatabase { .. })));
        let of_format = |format: u8| {
            let mut other = sound.clone();
            other[8] = format;
            let crc = crc32c::crc32c(&other[..LEN - 4]);
            other[LEN - 4..].copy_from_slice(&crc.to_le_bytes());
            Current::decode(&other, "db")
        };
        assert!(matches!(of_format(15), Err(Error::NewerFormat { found: 15, supported: 14, .. })));
        assert!(matches!(of_format(5), Err(Error::OlderFormat { found: 5, supported: 14, .. })));
        assert_eq!(of_format(6).unwrap(), Current { format: FORMAT_OF_SLOTS, ..SOUND });
        assert_eq!(of_format(7).unwrap(), Current { format: 7, ..SOUND });
        assert_eq!(of_format(8).unwrap(), Current { format: 8, ..SOUND });
        assert_eq!(of_format(9).unwrap(), Current { format: 9, ..SOUND });
        assert_eq!(of_format(10).unwrap(), Current { format: 10, ..SOUND });
        assert!(matches!(of_format(0), Err(Error::Corrupt { .. })));
        for len in 0..LEN {
            assert!(
                matches!(Current::decode(&sound[..len], "db"), Err(Error::Corrupt { .. })),
                "length {len}"
            );
        }
        for bit in 64..8 * LEN {
            let mut flipped = sound.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(Current::decode(&flipped, "db"), Err(Error::Corrupt { .. })), "bit {bit}");
        }
    }
}
