//! Ctrl-C: noted, and looked at between records and while waiting for input, so that a command ends in order. A second one
//! ends it at once, which a database survives.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

static FIRST: OnceLock<Instant> = OnceLock::new();

/// What comes sooner after the first is no second one: programs like `timeout` send it to a process and to its group.
const SECOND_AFTER: Duration = Duration::from_secs(1);

/// From now on Ctrl-C (and a request to terminate) is noted instead of killing the program.
pub(crate) fn watch() {
    // Without a handler Ctrl-C kills the program, which the database survives too.
    let _ = ctrlc::set_handler(|| {
        if FIRST.get_or_init(Instant::now).elapsed() > SECOND_AFTER {
            std::process::exit(130);
        }
    });
}

/// Whether Ctrl-C was pressed.
pub(crate) fn pressed() -> bool {
    FIRST.get().is_some()
}
