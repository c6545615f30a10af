//! Ctrl-C, as the crate `interrupt` has it.

use crate::failure::{Failure, Result};

pub(crate) use ::interrupt::pressed;

/// From now on Ctrl-C (and a request to terminate) is noted instead of killing the program.
pub(crate) fn watch() {
    watch_leaving("what was committed is in the database");
}

/// The same, for a command that leaves something else if it is ended at once.
pub(crate) fn watch_leaving(left: &'static str) {
    ::interrupt::watch("sapwood", left);
}

/// Ends, after Ctrl-C, a command that removes what it has made.
pub(crate) fn go_on() -> Result<()> {
    if pressed() {
        Err(Failure::Interrupted("interrupted: nothing is left of it".to_owned()))
    } else {
        Ok(())
    }
}
