//! Why a command ends without success: a message for people, and an exit code for programs.

use crate::output;
use sapwood::Error;
use std::fmt::Write;
use std::process::ExitCode;

/// See the module.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    Damage(String),
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    Other(String),
    #[error("{0}")]
    Interrupted(String),
    /// Whoever read our output has had enough.
    #[error("the output was closed")]
    Closed,
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// The same, and what else is to be told.
    pub fn and(self, more: &str) -> Self {
        let with = |why: String| why + more;
        match self {
            Failure::NotFound(why) => Failure::NotFound(with(why)),
            Failure::Damage(why) => Failure::Damage(with(why)),
            Failure::Usage(why) => Failure::Usage(with(why)),
            Failure::Other(why) => Failure::Other(with(why)),
            Failure::Interrupted(why) => Failure::Interrupted(with(why)),
            Failure::Closed => Failure::Closed,
        }
    }

    /// Tells people, and gives the exit code.
    pub fn tell(&self) -> ExitCode {
        if !matches!(self, Failure::Closed) {
            output::tell(format_args!("sapwood: {self}"));
        }
        ExitCode::from(match self {
            Failure::Closed => 0,
            Failure::NotFound(_) | Failure::Damage(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Other(_) => 3,
            Failure::Interrupted(_) => 130,
        })
    }
}

/// Adds damaged places, one a line, and how many are left out.
pub(crate) fn list_damage(text: &mut String, damage: &[Error], left_out: u64) {
    for place in damage {
        let _ = match place {
            Error::Corrupt { file, offset, what, expected, found } => {
                write!(text, "\n  {file}, byte {offset}: {what}; expected {expected}, found {found}")
            }
            other => write!(text, "\n  {other}"),
        };
    }
    if left_out > 0 {
        let _ = write!(text, "\n  and {left_out} more");
    }
}

impl From<sapwood::Error> for Failure {
    fn from(error: sapwood::Error) -> Self {
        match &error {
            sapwood::Error::BadOption { .. }
            | sapwood::Error::BadName { .. }
            | sapwood::Error::NoChanges { .. }
            | sapwood::Error::ChangesGone { .. }
            | sapwood::Error::OtherHistory { .. }
            | sapwood::Error::BadPosition { .. }
            | sapwood::Error::NoExpiry { .. }
            | sapwood::Error::KeyEmpty
            | sapwood::Error::KeyTooLong { .. }
            | sapwood::Error::ValueTooLong { .. } => Failure::Usage(error.to_string()),
            sapwood::Error::NoBackup { .. } | sapwood::Error::NotArchived { .. } => {
                Failure::NotFound(error.to_string())
            }
            sapwood::Error::BackupDamaged { .. } => Failure::Damage(error.to_string()),
            sapwood::Error::LargeValues { keyspace } => Failure::Usage(format!(
                "keyspace {keyspace:?} has large values: `sapwood put DB KEY --from FILE` sets one, `get DB KEY --to FILE` writes one to a \
                 file, `scan DB` lists keys and lengths; for records choose another one with --keyspace"
            )),
            sapwood::Error::NoLargeValues { keyspace } => Failure::Usage(format!(
                "keyspace {keyspace:?} has records, and takes no large values: `sapwood put DB KEY VALUE` sets one; for large values choose \
                 another name with --keyspace"
            )),
            // But for a backup to a directory, which says so itself.
            sapwood::Error::Stopped => {
                Failure::Interrupted("interrupted: run it again, and it begins anew".to_owned())
            }
            _ => Failure::Other(error.to_string()),
        }
    }
}

impl From<psync::Error> for Failure {
    fn from(error: psync::Error) -> Self {
        Failure::Other(error.to_string())
    }
}

/// Only output gives bare I/O errors: those of input come with the name of the file.
impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        output::failed(error)
    }
}
