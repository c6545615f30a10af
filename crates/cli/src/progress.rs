//! Progress of long work: a bar with rate and time left on a terminal, a plain line now and then otherwise.

use crate::output::tell;
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

const LINE_EVERY: Duration = Duration::from_secs(5);

/// See the module. Writes to standard error.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    what: String,
    began: Instant,
    last_line: Instant,
    total: Option<u64>,
}

impl Progress {
    /// Progress in bytes of an input of `total` bytes, if that is known.
    pub fn bytes(what: &str, total: Option<u64>) -> Self {
        Self::new(
            what,
            total,
            "{msg} [{bar:30}] {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
            "{msg} {bytes}, {bytes_per_sec}",
        )
    }

    /// Progress in steps.
    pub fn steps(what: &str, total: Option<u64>) -> Self {
        Self::new(
            what,
            total,
            "{msg} [{bar:30}] {human_pos} of {human_len}, {eta} left",
            "{msg} {human_pos}, {per_sec}",
        )
    }

    /// Work that cannot tell how far it is.
    pub fn waiting(what: &str) -> Self {
        let progress = Self::new(what, None, "", "{spinner} {msg} ({elapsed})");
        if let Some(bar) = &progress.bar {
            bar.enable_steady_tick(Duration::from_millis(100));
        }
        progress
    }

    fn new(what: &str, total: Option<u64>, known: &str, unknown: &str) -> Self {
        let now = Instant::now();
        let bar = std::io::stderr().is_terminal().then(|| {
            let (bar, template) = match total {
                Some(total) => (ProgressBar::new(total), known),
                None => (ProgressBar::new_spinner(), unknown),
            };
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.set_message(what.to_owned());
            bar
        });
        Self { bar, what: what.to_owned(), began: now, last_line: now, total }
    }

    /// Tells how far the work is. `detail` is for the plain lines.
    pub fn at(&mut self, position: u64, detail: &str) {
        if let Some(bar) = &self.bar {
            bar.set_position(position);
        } else if self.last_line.elapsed() >= LINE_EVERY {
            self.last_line = Instant::now();
            let share = self.total.filter(|total| *total > 0).map(|total| {
                let left = self.began.elapsed().as_secs_f64() * (total.saturating_sub(position)) as f64
                    / position.max(1) as f64;
                format!(", {:.0} %, about {left:.0} s left", 100.0 * position as f64 / total as f64)
            });
            tell(format_args!("{}: {detail}{}", self.what, share.unwrap_or_default()));
        }
    }

    /// Tells something in between.
    pub fn say(&self, text: impl std::fmt::Display) {
        match &self.bar {
            Some(bar) => bar.suspend(|| tell(text)),
            None => tell(text),
        }
    }

    /// Takes the bar away.
    pub fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Bytes as people read them.
pub(crate) fn human_bytes(bytes: u64) -> String {
    HumanBytes(bytes).to_string()
}
