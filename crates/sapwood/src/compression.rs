//! How the nodes of a keyspace are compressed, as users say it. What is done with it: [`crate::storage::compressed`].

use crate::error::{Error, Result};

/// How the records of a keyspace are compressed on disk.
///
/// A leaf that does not become at least a sixteenth shorter is stored as it is, and where leaves do not compress, most are not even tried. In
/// memory nodes are never compressed: what is cached is as fast as without compression.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// use sapwood::{Compression, KeyspaceOptions};
///
/// let options = KeyspaceOptions::new().compression(Compression::Zstd { level: 3 });
/// let logbooks = db.keyspace_with("logbooks", options)?;
/// logbooks.insert("fram 1893-07-24", "Set sail from Vardø. ".repeat(20))?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Compression {
    /// Not at all: for values that are compressed already, and where processor time is scarcer than space.
    None,
    /// LZ4: a few microseconds a leaf, in both directions. The default of a database.
    #[default]
    Lz4,
    /// Zstandard of this level, 1 to 19: shorter than LZ4, and slower, the more so when it is written the higher the level is.
    /// Needs the feature `zstd`, which is on by default.
    Zstd {
        /// 1 to 19; 3 is usual.
        level: u8,
    },
    /// Zstandard with a dictionary, which is trained of the first leaves that the keyspace gets (megabytes, fewer with little memory) and is kept with it: a tenth to a
    /// quarter shorter where records are alike. A dictionary takes some 150 KiB of memory.
    /// Needs the feature `zstd`, which is on by default.
    ZstdDictionary {
        /// 1 to 19; 3 is usual.
        level: u8,
    },
}

/// Levels of Zstandard. Those above 19 take memory that no leaf is worth.
const LEVELS: std::ops::RangeInclusive<u8> = 1..=19;

impl Compression {
    /// Returns an error if there is no such compression here.
    pub(crate) fn check(self) -> Result<()> {
        match self {
            Self::None | Self::Lz4 => Ok(()),
            Self::Zstd { level } | Self::ZstdDictionary { level }
                if cfg!(feature = "zstd") && LEVELS.contains(&level) =>
            {
                Ok(())
            }
            Self::Zstd { level } | Self::ZstdDictionary { level } => {
                let range = if cfg!(feature = "zstd") {
                    "levels of Zstandard are 1 to 19"
                } else {
                    "this program was built without the feature `zstd`"
                };
                Err(Error::BadOption { option: "compression", value: level.into(), range: range.into() })
            }
        }
    }

    /// As the manifest has it: a codec, and its level.
    pub(crate) fn to_bytes(self) -> [u8; 2] {
        match self {
            Self::None => [0, 0],
            Self::Lz4 => [1, 0],
            Self::Zstd { level } => [2, level],
            Self::ZstdDictionary { level } => [3, level],
        }
    }

    /// What [`to_bytes`](Compression::to_bytes) made.
    pub(crate) fn from_bytes(bytes: [u8; 2]) -> Option<Self> {
        match bytes {
            [0, 0] => Some(Self::None),
            [1, 0] => Some(Self::Lz4),
            [2, level] if LEVELS.contains(&level) => Some(Self::Zstd { level }),
            [3, level] if LEVELS.contains(&level) => Some(Self::ZstdDictionary { level }),
            _ => None,
        }
    }
}
