//! Lines of bounded length, numbered, as text.

use crate::error::TraceError;
use std::io::{BufRead, Read};

/// No operation takes more.
const LINE_MAX: usize = 4096;

/// What some programs put in front of UTF-8. It is no part of the first line.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// See the module.
pub(crate) struct Lines<R> {
    input: R,
    format: &'static str,
    buffer: Vec<u8>,
    pub number: u64,
}

impl<R: BufRead> Lines<R> {
    pub fn new(input: R, format: &'static str) -> Self {
        Self { input, format, buffer: Vec::new(), number: 0 }
    }

    /// The next line without its end, or `None` behind the last.
    pub fn next_line(&mut self) -> Result<Option<&str>, TraceError> {
        self.buffer.clear();
        let line = self.number;
        let most = LINE_MAX as u64 + 1;
        let read = self.input.by_ref().take(most).read_until(b'\n', &mut self.buffer);
        if read.map_err(|error| TraceError::Io { line, error })? == 0 {
            return Ok(None);
        }
        self.number += 1;
        let line = self.number;
        if self.buffer.len() > LINE_MAX {
            return Err(TraceError::TooLong { line, most: LINE_MAX, format: self.format });
        }
        if line == 1 && self.buffer.starts_with(BYTE_ORDER_MARK) {
            self.buffer.drain(..BYTE_ORDER_MARK.len());
        }
        std::str::from_utf8(&self.buffer)
            .map(|text| Some(text.trim()))
            .map_err(|_| TraceError::NotText { line })
    }
}
