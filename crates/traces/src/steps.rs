//! Reads a trace line by line, in any format.
//!
//! Invariant: behind the first error, and behind the end, nothing more is read.

use crate::Step;
use crate::error::TraceError;
use crate::lines::Lines;
use std::io::BufRead;

/// What the lines of a format mean.
pub(crate) trait Format: Default {
    /// What `--format` calls it.
    const NAME: &'static str;

    /// The step on a line, or `None` if there is none to be: the line is empty or a comment.
    fn step(&mut self, line: u64, text: &str) -> Result<Option<Step>, TraceError>;
}

/// The steps of a trace, one after the other; ends behind the first error. Made by [`crate::plain::Reader`] and
/// [`crate::msr_csv::Reader`].
pub struct Steps<R, F> {
    lines: Lines<R>,
    pub(crate) format: F,
    over: bool,
}

#[expect(private_bounds, reason = "there are as many formats as here")]
impl<R: BufRead, F: Format> Steps<R, F> {
    /// Reads from `input`.
    pub fn new(input: R) -> Self {
        Self { lines: Lines::new(input, F::NAME), format: F::default(), over: false }
    }

    fn read(&mut self) -> Result<Option<Step>, TraceError> {
        loop {
            let line = self.lines.number + 1;
            let Some(text) = self.lines.next_line()? else { return Ok(None) };
            if let Some(step) = self.format.step(line, text)? {
                return Ok(Some(step));
            }
        }
    }
}

impl<R: BufRead, F: Format> Iterator for Steps<R, F> {
    type Item = Result<Step, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let step = self.read().transpose();
        self.over = !matches!(step, Some(Ok(_)));
        step
    }
}
