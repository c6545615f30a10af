//! Ctrl-C: noted, and looked at between points, so that scratch files go. A second one ends the program at once.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

static FIRST: OnceLock<Instant> = OnceLock::new();

/// What comes sooner after the first is no second one: programs like `timeout` send it to a process and to its group.
const SECOND_AFTER: Duration = Duration::from_secs(1);

/// From now on Ctrl-C (and a request to terminate) is noted instead of killing the program.
pub(crate) fn watch() {
    // Without a handler Ctrl-C kills the program; the next run removes what it left.
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
