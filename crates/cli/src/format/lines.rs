//! Lines of bounded length.

use super::{ReadError, Record};
use memchr::memchr;
use std::io::{BufRead, Read};

/// Bytes. A longer line holds no record: a key of 64 KiB and a value of 16 MiB fit, the greatest lengths, with six bytes for each, as
/// JSON has control characters (`\u0000`).
pub(super) const LINE_MAX: usize = 100 << 20;

/// What some programs put in front of UTF-8. It is no part of the first line.
pub(super) const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Reads line by line and counts.
pub(super) struct Lines<R> {
    input: R,
    buffer: Vec<u8>,
    pub number: u64,
    /// Whether no more can be read.
    is_over: bool,
    /// Whether the last line had an end. One that has none may be cut off.
    pub is_whole: bool,
    /// The rest of a line that was too long is still to be passed over.
    is_within_line: bool,
}

impl<R: BufRead> Lines<R> {
    pub fn new(input: R) -> Self {
        Self { input, buffer: Vec::new(), number: 0, is_over: false, is_whole: true, is_within_line: false }
    }

    /// The record of the next line that has one: `parse` gives none for a line to skip, and else a record, or the column (from 1) where
    /// the line is bad, and why.
    pub fn next_record(
        &mut self,
        mut parse: impl FnMut(&[u8]) -> Option<Result<Record, (usize, String)>>,
    ) -> Option<Result<Record, ReadError>> {
        while !self.is_over {
            let parsed = match self.next_line() {
                Ok(None) => return None,
                Ok(Some(line)) => parse(line),
                Err(error) => {
                    self.is_over = !matches!(error, ReadError::Bad { .. });
                    return Some(Err(error));
                }
            };
            if let Some(parsed) = parsed {
                let bad = |(column, what)| ReadError::Bad { line: self.number, column: column as u64, what };
                return Some(parsed.map_err(bad));
            }
        }
        None
    }

    /// The next line without its end, or `None` behind the last. After a line that is too long the next one follows.
    pub fn next_line(&mut self) -> Result<Option<&[u8]>, ReadError> {
        while self.is_within_line {
            let chunk = self.input.fill_buf()?;
            let end = memchr(b'\n', chunk);
            self.is_within_line = end.is_none() && !chunk.is_empty();
            let passed = end.map_or(chunk.len(), |end| end + 1);
            self.input.consume(passed);
        }
        self.buffer.clear();
        let read = self.input.by_ref().take(LINE_MAX as u64 + 1).read_until(b'\n', &mut self.buffer)?;
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        self.is_whole = self.buffer.last() == Some(&b'\n');
        if read > LINE_MAX {
            self.is_within_line = !self.is_whole;
            return Err(ReadError::Bad {
                line: self.number,
                column: 1,
                what: format!("a line of more than {LINE_MAX} bytes"),
            });
        }
        if self.number == 1 && self.buffer.starts_with(BYTE_ORDER_MARK) {
            self.buffer.drain(..BYTE_ORDER_MARK.len());
        }
        if self.is_whole {
            self.buffer.pop();
            if self.buffer.last() == Some(&b'\r') {
                self.buffer.pop();
            }
        }
        Ok(Some(&self.buffer))
    }
}
