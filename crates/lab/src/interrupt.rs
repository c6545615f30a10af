//! Ctrl-C: noted, and looked at between points, so that scratch files go. A second one ends the program at once, and so does
//! a deadline, whatever it waits for then.

use crate::progress::tell;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

static FIRST: OnceLock<Instant> = OnceLock::new();

/// What comes sooner after the first is no second one: programs like `timeout` send it to a process and to its group.
const SECOND_AFTER: Duration = Duration::from_secs(1);
/// Whatever is not over by then waits for something that may never come: a disk, a pipe that nobody reads.
const ENDS_WITHIN: Duration = Duration::from_secs(4);
/// How long the last words may take. Standard error may be what the program waits for.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// From now on Ctrl-C (and a request to terminate) is noted instead of killing the program.
pub(crate) fn watch() {
    let watchman = std::thread::Builder::new().name("sapwood-lab-deadline".into()).spawn(end_in_time);
    // Without that thread, or without a handler, Ctrl-C kills the program, which leaves files that the next run removes.
    if watchman.is_ok() {
        let _ = ctrlc::set_handler(|| {
            if FIRST.get_or_init(Instant::now).elapsed() > SECOND_AFTER {
                std::process::exit(130);
            }
        });
    }
}

/// Ends the program some time after Ctrl-C, if it has not ended by itself.
fn end_in_time() {
    let left = ENDS_WITHIN.saturating_sub(FIRST.wait().elapsed());
    std::thread::sleep(left);
    let _ = std::thread::Builder::new().spawn(|| {
        tell(format_args!(
            "sapwood-lab: still not over {} s after the interrupt: ended at once; the next run removes what it left",
            ENDS_WITHIN.as_secs()
        ));
    });
    std::thread::sleep(LAST_WORDS);
    std::process::exit(130);
}

/// Whether Ctrl-C was pressed.
pub(crate) fn pressed() -> bool {
    FIRST.get().is_some()
}
