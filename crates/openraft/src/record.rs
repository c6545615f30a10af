//! Records of the store: a byte with the version, then postcard.
//!
//! Keys of `raft.log` are `group u64 BE | index u64 BE`, those of `raft.meta` `group u64 BE | kind u8`. Big-endian numbers sort as they
//! count, so the entries of a group are one range in their order.

use crate::error::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The version of all records.
const VERSION: u8 = 1;

/// What a record of `raft.meta` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Vote = 1,
    Committed = 2,
    /// The last entry that was purged.
    Purged = 3,
    /// The last entry that was applied.
    Applied = 4,
    Membership = 5,
    /// The number of the current set of keyspaces.
    Set = 6,
    /// The key of the group's snapshot files.
    SnapshotKey = 7,
    /// The id of the node whose vote and log these are.
    Node = 8,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Vote => "the vote",
            Self::Committed => "the committed log id",
            Self::Purged => "the last purged log id",
            Self::Applied => "the last applied log id",
            Self::Membership => "the membership",
            Self::Set => "the number of the set of keyspaces",
            Self::SnapshotKey => "the key of the snapshot files",
            Self::Node => "the id of the node",
        }
    }

    pub fn key(self, group: u64) -> [u8; 9] {
        let mut key = [0; 9];
        key[..8].copy_from_slice(&group.to_be_bytes());
        key[8] = self as u8;
        key
    }

    pub fn decode<T: DeserializeOwned>(self, group: u64, bytes: &[u8]) -> Result<T> {
        decode(group, self.name(), bytes)
    }

    pub fn encode<T: Serialize>(self, value: &T) -> Result<Vec<u8>> {
        encode(self.name(), value)
    }
}

/// The key of an entry of the log.
pub(crate) fn entry_key(group: u64, index: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&group.to_be_bytes());
    key[8..].copy_from_slice(&index.to_be_bytes());
    key
}

/// The index in the key of an entry.
pub(crate) fn index_of(group: u64, key: &[u8]) -> Result<u64> {
    let index = key.get(8..).and_then(|bytes| bytes.try_into().ok());
    index.map(u64::from_be_bytes).ok_or_else(|| Error::Record {
        group,
        what: "the key of an entry",
        reason: format!("it has {} bytes in place of 16", key.len()),
    })
}

pub(crate) fn encode<T: Serialize>(what: &'static str, value: &T) -> Result<Vec<u8>> {
    postcard::to_extend(value, vec![VERSION])
        .map_err(|error| Error::Encode { what, reason: error.to_string() })
}

pub(crate) fn decode<T: DeserializeOwned>(group: u64, what: &'static str, bytes: &[u8]) -> Result<T> {
    let damaged = |reason| Error::Record { group, what, reason };
    let (version, bytes) = bytes.split_first().ok_or_else(|| damaged("it is empty".into()))?;
    if *version != VERSION {
        return Err(damaged(format!("it has version {version}, and this program reads {VERSION}")));
    }
    let (value, rest) = postcard::take_from_bytes(bytes).map_err(|error| damaged(error.to_string()))?;
    if !rest.is_empty() {
        return Err(damaged(format!("{} bytes are left behind it", rest.len())));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_other_versions_cut_ones_and_longer_ones_are_refused() {
        let bytes = encode("a number", &(7u64, "text")).expect("encodes");
        assert_eq!(bytes[0], VERSION);
        assert_eq!(decode::<(u64, String)>(1, "a number", &bytes).expect("decodes"), (7, "text".into()));
        for broken in [&[][..], &[2, 7], &bytes[..bytes.len() - 1], &[&bytes[..], &[0]].concat()] {
            let error = decode::<(u64, String)>(1, "a number", broken).expect_err("is refused");
            assert!(
                error.to_string().contains("group 1") && error.to_string().contains("a number"),
                "{error}"
            );
        }
        assert!(index_of(1, &[0; 15]).is_err());
        assert_eq!(index_of(1, &entry_key(1, 513)).expect("an index"), 513);
    }
}
