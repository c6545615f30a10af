//! What is sound, and cannot be read by this build of the program.

use crate::error::Error;

/// The option that the program was built without, if a node was written with it.
pub(crate) const UNSUPPORTED: &str = "compression";

impl Error {
    /// Whether a node is such that this build of the program cannot read it: it is not damaged.
    pub(crate) fn is_unsupported(&self) -> bool {
        matches!(self, Self::BadOption { option, .. } if *option == UNSUPPORTED)
    }
}
