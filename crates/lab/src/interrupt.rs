//! Ctrl-C, as the crate `interrupt` has it: looked at between points, so that scratch files go.

pub(crate) use ::interrupt::pressed;

/// From now on Ctrl-C (and a request to terminate) is noted instead of killing the program.
pub(crate) fn watch() {
    ::interrupt::watch("sapwood-lab", "the next run removes what it left");
}
