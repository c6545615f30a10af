//! Ctrl-C (and a request to terminate): noted, and looked at between steps of the work, so that a command ends in order. A second one
//! ends the program at once, and so does a deadline, whatever the program waits for then. Where the program was started with the end of a
//! session or Ctrl-C ignored (`nohup`, jobs of scripts in the background), it stays so.
//!
//! ```
//! interrupt::watch("the-program", "what was written is whole");
//! for step in 0..3 {
//!     if interrupt::pressed() {
//!         break;
//!     }
//!     println!("step {step}");
//! }
//! ```

#[cfg(unix)]
mod ignored;

use std::io::Write;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

static FIRST: OnceLock<Instant> = OnceLock::new();

/// What comes sooner after the first is no second one: programs like `timeout` send it to a process and to its group. Longer in debug builds, whose
/// tests run where processors are short.
const SECOND_AFTER: Duration = Duration::from_secs(if cfg!(debug_assertions) { 10 } else { 1 });
/// Whatever is not over by then waits for something that may never come: a disk, a pipe that nobody reads. Longer in debug builds, which are slow.
const ENDS_WITHIN: Duration = Duration::from_secs(if cfg!(debug_assertions) { 20 } else { 4 });
/// What debug builds take instead, in seconds: tests know whether a program waits for a slow disk or for ever.
const SECONDS: &str = "INTERRUPT_ENDS_WITHIN";
/// How long the last words may take. Standard error may be what the program waits for.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// What shells expect of a program that Ctrl-C has ended: 128 and the number of SIGINT.
const EXIT_CODE: i32 = 130;

/// From now on Ctrl-C is noted instead of killing `program`. `left` says what the program leaves if it is ended at once, for people
/// to read on standard error. To be called once.
pub fn watch(program: &'static str, left: &'static str) {
    let name = format!("{program}-deadline");
    let watchman = std::thread::Builder::new().name(name).spawn(move || end_in_time(program, left));
    // Without that thread, or without a handler, Ctrl-C kills the program, which has to survive that too.
    if watchman.is_ok() {
        #[cfg(unix)]
        let ignored = ignored::signals();
        let _ = ctrlc::set_handler(|| {
            if FIRST.get_or_init(Instant::now).elapsed() > SECOND_AFTER {
                std::process::exit(EXIT_CODE);
            }
        });
        #[cfg(unix)]
        ignored::ignore(&ignored);
    }
}

fn ends_within() -> Duration {
    let seconds = std::env::var(SECONDS).ok().filter(|_| cfg!(debug_assertions));
    seconds.and_then(|seconds| seconds.parse().ok()).map_or(ENDS_WITHIN, Duration::from_secs)
}

/// Ends the program some time after Ctrl-C, if it has not ended by itself.
fn end_in_time(program: &str, left: &'static str) {
    let ends_within = ends_within();
    let remaining = ends_within.saturating_sub(FIRST.wait().elapsed());
    std::thread::sleep(remaining);
    let words = format!(
        "{program}: still not over {} s after the interrupt: ended at once; {left}",
        ends_within.as_secs()
    );
    let _ = std::thread::Builder::new().spawn(move || writeln!(std::io::stderr().lock(), "{words}"));
    std::thread::sleep(LAST_WORDS);
    std::process::exit(EXIT_CODE);
}

/// Whether Ctrl-C was pressed.
pub fn pressed() -> bool {
    FIRST.get().is_some()
}
