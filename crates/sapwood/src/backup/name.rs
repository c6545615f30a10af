//! The names of blobs in a target.
//!
//! Invariant: a name is read only if it is exactly what would be written, so that one blob has one name.

use std::fmt;

/// See the module. Fields: number of the backup; of segments, the segment's number, and where its part begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum BlobName {
    Manifest(u64),
    Keys(u64),
    Version(u64),
    Log(u64),
    Archive(u64),
    Segment { segment: u64, from: u64, to: u64, backup: u64 },
}

impl BlobName {
    /// The number of the backup for which it was written.
    pub fn backup(self) -> u64 {
        match self {
            Self::Manifest(backup)
            | Self::Keys(backup)
            | Self::Version(backup)
            | Self::Log(backup)
            | Self::Archive(backup)
            | Self::Segment { backup, .. } => backup,
        }
    }

    /// `None`: the blob is a stranger's.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let kind = parts.next()?;
        let mut number = || parts.next()?.parse::<u64>().ok();
        let name = match kind {
            "backup" => Self::Manifest(number()?),
            "keys" => Self::Keys(number()?),
            "version" => Self::Version(number()?),
            "log" => Self::Log(number()?),
            "archive" => Self::Archive(number()?),
            "segment" => {
                Self::Segment { segment: number()?, from: number()?, to: number()?, backup: number()? }
            }
            _ => return None,
        };
        (name.to_string() == text && name.backup() < u64::MAX).then_some(name)
    }
}

impl fmt::Display for BlobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Manifest(backup) => write!(f, "backup-{backup:06}"),
            Self::Keys(backup) => write!(f, "keys-{backup:06}"),
            Self::Version(backup) => write!(f, "version-{backup:06}"),
            Self::Log(backup) => write!(f, "log-{backup:06}"),
            Self::Archive(backup) => write!(f, "archive-{backup:06}"),
            Self::Segment { segment, from, to, backup } => {
                write!(f, "segment-{segment:010}-{from}-{to}-{backup:06}")
            }
        }
    }
}

/// The name of the mark that this number was given to a backup, of which nothing else may be left. It is empty.
pub(super) fn mark(number: u64) -> String {
    format!("given-{number:06}")
}

/// The number of a mark.
pub(super) fn marked(text: &str) -> Option<u64> {
    let number = text.strip_prefix("given-")?.parse().ok()?;
    (mark(number) == text && number < u64::MAX).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_strangers_are_none_of_ours() {
        let names = [
            BlobName::Manifest(1),
            BlobName::Version(1_234_567),
            BlobName::Log(999_999),
            BlobName::Archive(2),
            BlobName::Segment { segment: 17, from: 0, to: 4096, backup: 3 },
        ];
        for name in names {
            assert_eq!(BlobName::parse(&name.to_string()), Some(name));
            assert!(name.to_string().len() <= 80);
        }
        for stranger in [
            "",
            "backup",
            "backup-1",
            "backup-000001-",
            "backup-+00001",
            "log-000001.tmp",
            "LOCK",
            "segment-17-0-1-3",
        ] {
            assert_eq!(BlobName::parse(stranger), None, "{stranger:?}");
        }
        assert_eq!((marked(&mark(17)), BlobName::parse(&mark(17))), (Some(17), None));
        assert_eq!((marked("given-17"), marked("given-000017.tmp")), (None, None));
    }
}
