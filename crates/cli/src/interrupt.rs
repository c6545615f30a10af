//! Ctrl-C, as the crate `interrupt` has it.

pub(crate) use ::interrupt::pressed;

/// From now on Ctrl-C (and a request to terminate) is noted instead of killing the program.
pub(crate) fn watch() {
    ::interrupt::watch("sapwood", "what was committed is in the database");
}
