//! Ctrl-C: noted, and looked at between batches, so that a command ends in order.

use std::sync::atomic::{AtomicBool, Ordering};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// From now on Ctrl-C (and a request to terminate) is noted instead of killing the program.
pub(crate) fn watch() {
    // Without a handler Ctrl-C kills the program, which the database survives too.
    let _ = ctrlc::set_handler(|| INTERRUPTED.store(true, Ordering::Relaxed));
}

/// Whether Ctrl-C was pressed.
pub(crate) fn pressed() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}
