//! Why a command ends without success: one line for people, and an exit code for programs.

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
    /// Tells people, and gives the exit code.
    pub fn tell(&self) -> ExitCode {
        if !matches!(self, Failure::Closed) {
            eprintln!("sapwood: {self}");
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

impl From<sapwood::Error> for Failure {
    fn from(error: sapwood::Error) -> Self {
        match &error {
            sapwood::Error::BadOption { .. } | sapwood::Error::BadName { .. } | sapwood::Error::KeyEmpty => {
                Failure::Usage(error.to_string())
            }
            sapwood::Error::Damaged { damage } => {
                let mut text = format!("{} damaged place(s):", damage.len());
                for one in damage {
                    text.push_str(&format!("\n  {one}"));
                }
                Failure::Damage(text)
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

/// What a failed write to standard output means.
impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            Failure::Closed
        } else {
            Failure::Other(error.to_string())
        }
    }
}
