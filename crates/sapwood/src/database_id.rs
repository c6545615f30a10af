//! The random id of a database, created with it and stored in the header of each of its files.

use crate::error::Result;
use crate::random::random;

/// 16 random bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct DatabaseId(pub [u8; 16]);

impl DatabaseId {
    pub fn random() -> Result<Self> {
        Ok(Self(random()?))
    }
}

impl std::fmt::Display for DatabaseId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for DatabaseId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DatabaseId({self})")
    }
}
