//! Why the program ends without success: a message for people, and an exit code for programs.

use crate::row::Missing;
use std::path::Path;
use std::process::ExitCode;

/// See the module.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// An experiment's conditions cannot be had here.
    #[error("{0}")]
    CannotRun(String),
    /// The command line asks for something that is not there.
    #[error("{0}")]
    Usage(String),
    /// Files or devices failed.
    #[error("{0}")]
    Io(String),
    /// What was to be kept is more than fits.
    #[error("{0}")]
    NoRoom(String),
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// Whoever read our output has had enough.
    #[error("the output was closed")]
    Closed,
}

/// The answer of most of what the laboratory does.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// The program's exit code for it.
    pub fn code(&self) -> u8 {
        match self {
            Failure::Closed => 0,
            Failure::CannotRun(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Io(_) | Failure::NoRoom(_) => 3,
            Failure::Interrupted => 130,
        }
    }

    /// Tells people, and gives the exit code.
    pub(crate) fn tell(&self) -> ExitCode {
        if !matches!(self, Failure::Closed) {
            crate::progress::tell(format_args!("sapwood-lab: {self}"));
        }
        ExitCode::from(self.code())
    }

    /// Something that the system said of a path.
    pub(crate) fn at(doing: &str, path: &Path, error: impl std::fmt::Display) -> Self {
        Failure::Io(format!("{doing} {}: {error}", path.display()))
    }
}

impl From<psync::Error> for Failure {
    fn from(error: psync::Error) -> Self {
        match error {
            psync::Error::Full { .. } => Failure::NoRoom(error.to_string()),
            other => Failure::Io(other.to_string()),
        }
    }
}

impl From<Missing> for Failure {
    fn from(missing: Missing) -> Self {
        Failure::CannotRun(format!("the record is not complete: {missing}; run the experiment again"))
    }
}
