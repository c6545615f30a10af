//! The file by which a follower is known to the writer: `follower-` and 16 hexadecimal digits, of which no two are alike.
//!
//! ```text
//! offset size
//!      0    8  magic "SapFOLL\n"
//!      8    4  format version
//!     12   16  database id
//!     28    8  epoch: of the oldest version that it may read; 0: any
//!     36    8  count: another one whenever it says that it is there
//!     44    4  CRC-32C of bytes 0..44
//! ```
//! Invariant: a file that is gone was removed by its follower, or by a writer before it used again what the file protected.

use crate::bytecode::Reader;
use crate::database_id::DatabaseId;
use crate::random::random;
use psync::{Access, Read, Result, Volume, Write};
use std::sync::Arc;

const MAGIC: &[u8; 8] = b"SapFOLL\n";
/// The version of this format, since the file is no part of the database's.
const FORMAT: u32 = 1;
/// Bytes of the file: see the drawing.
const LEN: usize = 48;
const PREFIX: &str = "follower-";

/// Whether this is the name of such a file.
pub(crate) fn is_registration(name: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    name.strip_prefix(PREFIX).is_some_and(|digits| digits.len() == 16 && digits.bytes().all(is_digit))
}

/// What a follower says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registered {
    pub epoch: u64,
    pub count: u64,
}

impl Registered {
    fn encode(self, database: DatabaseId) -> [u8; LEN] {
        let mut out = [0; LEN];
        out[..8].copy_from_slice(MAGIC);
        out[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        out[12..28].copy_from_slice(&database.0);
        out[28..36].copy_from_slice(&self.epoch.to_le_bytes());
        out[36..44].copy_from_slice(&self.count.to_le_bytes());
        let crc = crc32c::crc32c(&out[..44]);
        out[44..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Decodes what `encode` wrote; `None` if it is anything else.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let (magic, format, _database) = (reader.array::<8>()?, reader.u32()?, reader.array::<16>()?);
        let (epoch, count, crc) = (reader.u64()?, reader.u64()?, reader.u32()?);
        let is_sound = magic == *MAGIC && format == FORMAT && crc32c::crc32c(&bytes[..44]) == crc;
        is_sound.then_some(Self { epoch, count })
    }

    /// What the file of this name says; `None` if it is not sound, as while it is written.
    pub fn read(volume: &dyn Volume, name: &str) -> Result<Option<Self>> {
        let file = volume.open(name, Access::default())?;
        let mut bytes = [0; LEN];
        let found = match volume.len(file) {
            Ok(len) if len >= LEN as u64 => volume
                .read(&mut [Read { file, offset: 0, buffer: &mut bytes }])
                .map(|()| Self::decode(&bytes)),
            other => other.map(|_| None),
        };
        volume.close(file)?;
        found
    }
}

/// A follower's own file.
pub(crate) struct Registration {
    volume: Arc<dyn Volume>,
    database: DatabaseId,
    name: String,
    said: Registered,
}

impl Registration {
    /// Registers a follower that may read any version from now on.
    pub fn begin(volume: &Arc<dyn Volume>, database: DatabaseId) -> Result<Self> {
        let name = format!("{PREFIX}{:016x}", u64::from_le_bytes(random()?));
        let access = Access { write: true, create_new: true, ..Access::default() };
        volume.close(volume.open(&name, access)?)?;
        let said = Registered { epoch: 0, count: 0 };
        let mut registration = Self { volume: Arc::clone(volume), database, name, said };
        registration.say(0)?;
        Ok(registration)
    }

    /// Says that it is there, and needs versions from this epoch on. Returns false if the writer has ended the registration.
    pub fn say(&mut self, epoch: u64) -> Result<bool> {
        let volume = &*self.volume;
        let file = match volume.open(&self.name, Access { write: true, ..Access::default() }) {
            Err(psync::Error::NotFound { .. }) => return Ok(false),
            opened => opened?,
        };
        self.said = Registered { epoch, count: self.said.count + 1 };
        let written = volume.write(&[Write { file, offset: 0, data: &self.said.encode(self.database) }]);
        volume.close(file)?;
        written.map(|()| true)
    }

    /// Whether the writer has ended the registration. Unknown is no.
    pub fn is_ended(&self) -> bool {
        match self.volume.open(&self.name, Access::default()) {
            Err(psync::Error::NotFound { .. }) => true,
            opened => {
                opened.map(|file| self.volume.close(file)).ok();
                false
            }
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Err(error) = self.volume.remove(&self.name) {
            tracing::debug!(%error, "the writer removes the file when the lease is over");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes_and_back() {
        let said = Registered { epoch: 12, count: 3 };
        let bytes = said.encode(DatabaseId([9; 16]));
        assert_eq!(&bytes[..12], b"SapFOLL\n\x01\0\0\0");
        assert_eq!(Registered::decode(&bytes), Some(said));
        for (byte, bit) in (0..LEN).flat_map(|byte| (0..8).map(move |bit| (byte, bit))) {
            let mut other = bytes;
            other[byte] ^= 1 << bit;
            assert_eq!(Registered::decode(&other), None, "byte {byte}, bit {bit}");
        }
        (0..LEN).for_each(|len| assert_eq!(Registered::decode(&bytes[..len]), None));
    }

    #[test]
    fn names_are_told_from_others() {
        assert!(is_registration("follower-0123456789abcdef"));
        for other in [
            "follower-",
            "follower-0123456789ABCDEF",
            "follower-0123456789abcde",
            "data",
            "xfollower-0123456789abcdef",
        ] {
            assert!(!is_registration(other), "{other}");
        }
    }

    #[test]
    fn one_that_was_ended_says_so_and_does_not_come_back() {
        let volume: Arc<dyn Volume> = Arc::new(psync::Simulated::new(1));
        let mut registration = Registration::begin(&volume, DatabaseId([9; 16])).unwrap();
        assert!(registration.say(7).unwrap() && !registration.is_ended());
        let name = registration.name.clone();
        assert_eq!(Registered::read(&*volume, &name).unwrap(), Some(Registered { epoch: 7, count: 2 }));
        volume.remove(&name).unwrap();
        assert!(registration.is_ended() && !registration.say(8).unwrap());
        assert!(matches!(Registered::read(&*volume, &name), Err(psync::Error::NotFound { .. })));
    }
}
