//! What can go wrong in a tree.

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong in a tree.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed. What a failed update has changed is unknown: recover the tree before it is used again.
    #[error(transparent)]
    Device(#[from] psync::Error),
    /// The flash failed, or was used against its rules. What a failed update has changed is unknown: recover the tree before
    /// it is used again.
    #[error(transparent)]
    Flash(#[from] flash::Error),
    /// Bytes are not what was written there.
    #[error(
        "{file} is damaged at byte {offset}: {what}: expected {expected}, found {found}; restore it from a copy or build it anew"
    )]
    Corrupt {
        /// The file.
        file: String,
        /// First byte of the page or record.
        offset: u64,
        /// What is wrong.
        what: String,
        /// What should be there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// The structure breaks one of its own rules; found by [`Index::check`](crate::Index::check).
    #[error("an invariant does not hold: {0}")]
    Broken(String),
    /// The flash is full: what it holds is whole, and nothing more goes in. A tree that keeps changes in memory may ask to be
    /// recovered first.
    #[error("{0}")]
    Full(String),
    /// Options that cannot work.
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    pub(crate) fn corrupt(
        file: &str,
        offset: u64,
        what: impl Into<String>,
        expected: impl ToString,
        found: impl ToString,
    ) -> Self {
        Self::Corrupt {
            file: file.to_owned(),
            offset,
            what: what.into(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    pub(crate) fn broken(what: impl Into<String>) -> Self {
        Self::Broken(what.into())
    }
}
