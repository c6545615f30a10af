//! Ctrl-C: noted, and looked at between records and while waiting for input, so that a command ends in order. A second one
//! ends it at once, which a database survives; so does a deadline, whatever the command waits for then.

use crate::output::tell;
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
    let watchman = std::thread::Builder::new().name("sapwood-deadline".into()).spawn(end_in_time);
    // Without that thread, or without a handler, Ctrl-C kills the program, which the database survives too.
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
            "sapwood: still not over {} s after the interrupt: ended at once; what was committed is in the database",
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
