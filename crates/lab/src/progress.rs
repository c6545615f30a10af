//! Progress of an experiment: a bar with the time left on a terminal, a plain line now and then otherwise. All of it on
//! standard error; results go to standard output.

use crate::failure::{Failure, Result};
use indicatif::{ProgressBar, ProgressStyle};
use std::cell::Cell;
use std::io::{IsTerminal, Write, stderr, stdout};
use std::time::{Duration, Instant};

const LINE_EVERY: Duration = Duration::from_secs(10);

/// Tells people something on standard error, if they listen.
pub(crate) fn tell(text: impl std::fmt::Display) {
    let _ = writeln!(stderr().lock(), "{text}");
}

/// Prints a line, or several, as a result.
pub(crate) fn print(text: impl std::fmt::Display) -> Result<()> {
    let mut output = stdout().lock();
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::BrokenPipe => Failure::Closed,
        _ => Failure::Io(format!("standard output: {error}")),
    };
    writeln!(output, "{text}").and_then(|()| output.flush()).map_err(failed)
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    what: String,
    began: Instant,
    last_line: Cell<Instant>,
    total: Cell<u64>,
    done: Cell<u64>,
}

impl Progress {
    /// Of `what`, whose number of steps is told later by [`Progress::expect`].
    pub fn new(what: &str) -> Self {
        let bar = stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(0);
            let template = "{prefix} [{bar:30}] {pos} of {len}, {eta} left: {msg}";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.set_prefix(what.to_owned());
            bar
        });
        let now = Instant::now();
        let (total, done) = (Cell::new(0), Cell::new(0));
        Self { bar, what: what.to_owned(), began: now, last_line: Cell::new(now), total, done }
    }

    /// Of nothing, told to nobody.
    pub fn silent() -> Self {
        let now = Instant::now();
        let (total, done) = (Cell::new(0), Cell::new(0));
        Self { bar: None, what: String::new(), began: now, last_line: Cell::new(now), total, done }
    }

    /// There will be so many steps more.
    pub fn expect(&self, steps: usize) {
        self.total.set(self.total.get() + steps as u64);
        if let Some(bar) = &self.bar {
            bar.set_length(self.total.get());
        }
    }

    /// A step begins.
    pub fn step(&self, detail: &str) {
        let done = self.done.get();
        if let Some(bar) = &self.bar {
            bar.set_message(detail.to_owned());
            bar.set_position(done);
        } else if self.last_line.get().elapsed() >= LINE_EVERY {
            self.last_line.set(Instant::now());
            let total = self.total.get();
            if total == 0 {
                return;
            }
            let left =
                self.began.elapsed().as_secs_f64() * total.saturating_sub(done) as f64 / done.max(1) as f64;
            tell(format_args!("{}: {done} of {total} points, about {left:.0} s left", self.what));
        }
        self.done.set(done + 1);
    }
}

impl Progress {
    /// How the step that runs is doing, for those who watch a bar.
    pub fn detail(&self, detail: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(detail.to_owned());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
