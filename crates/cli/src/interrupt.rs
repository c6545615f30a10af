//! Ctrl-C: noted, and looked at between records and while waiting for input, so that a command ends in order. The second
//! one ends it at once, which a database survives.

use std::sync::atomic::{AtomicBool, Ordering};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// From now on Ctrl-C (and a request to terminate) is noted instead of killing the program.
pub(crate) fn watch() {
    // Without a handler Ctrl-C kills the program, which the database survives too.
    let _ = ctrlc::set_handler(|| {
        if INTERRUPTED.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    });
}

/// Whether Ctrl-C was pressed.
pub(crate) fn pressed() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}
