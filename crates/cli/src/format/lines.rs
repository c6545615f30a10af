//! Lines of bounded length.

use super::ReadError;
use std::io::{BufRead, Read};

/// A longer line holds no record: keys and values of the greatest length fit, escaped in the longest way.
pub(super) const LINE_MAX: usize = 72 << 20;

/// What some programs put in front of UTF-8. It is no part of the first line.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Reads line by line and counts.
pub(super) struct Lines<R> {
    input: R,
    buffer: Vec<u8>,
    pub number: u64,
}

impl<R: BufRead> Lines<R> {
    pub fn new(input: R) -> Self {
        Self { input, buffer: Vec::new(), number: 0 }
    }

    /// The next line without its end, or `None` behind the last.
    pub fn next_line(&mut self) -> Result<Option<&[u8]>, ReadError> {
        self.buffer.clear();
        let read = self.input.by_ref().take(LINE_MAX as u64 + 1).read_until(b'\n', &mut self.buffer)?;
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        if self.number == 1 && self.buffer.starts_with(BYTE_ORDER_MARK) {
            self.buffer.drain(..BYTE_ORDER_MARK.len());
        }
        if read > LINE_MAX {
            return Err(ReadError::End {
                line: self.number,
                what: format!("a line of more than {LINE_MAX} bytes"),
            });
        }
        if self.buffer.last() == Some(&b'\n') {
            self.buffer.pop();
            if self.buffer.last() == Some(&b'\r') {
                self.buffer.pop();
            }
        }
        Ok(Some(&self.buffer))
    }
}
