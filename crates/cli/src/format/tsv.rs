//! tsv: one record a line.
//!
//! ```text
//! key TAB value
//! ```
//! A line ends with LF or CR LF. In key and value, `\t`, `\n`, `\r`, `\\` and `\xHH` stand for the byte that they name; all
//! other bytes for themselves, but for NUL, which is in no text. Empty lines are skipped.

use super::lines::Lines;
use super::{NUL, ReadError, Record, RecordReader, RecordWriter};
use crate::escape::{escape, unescape};
use memchr::memchr;
use std::io::{self, BufRead, Write};

/// Reads tsv.
pub struct Reader<R> {
    lines: Lines<R>,
}

impl<R: BufRead> Reader<R> {
    /// Reads from `input`.
    pub fn new(input: R) -> Self {
        Self { lines: Lines::new(input) }
    }
}

fn parse(line: &[u8]) -> Result<Record, (usize, String)> {
    if let Some(nul) = memchr(0, line) {
        return Err((nul, NUL.into()));
    }
    let Some(tab) = line.iter().position(|byte| *byte == b'\t') else {
        return Err((line.len(), "expected a TAB between key and value".into()));
    };
    if tab == 0 {
        return Err((0, "the key is empty".into()));
    }
    let bad =
        |offset: usize| (offset, "expected \\t, \\n, \\r, \\\\ or \\xHH after the backslash".to_owned());
    let key = unescape(&line[..tab]).map_err(bad)?;
    let value = unescape(&line[tab + 1..]).map_err(|offset| bad(tab + 1 + offset))?;
    Ok(Record { keyspace: None, key, value })
}

impl<R: BufRead> RecordReader for Reader<R> {
    fn next_record(&mut self) -> Option<Result<Record, ReadError>> {
        self.lines.next_record(|line| {
            (!line.is_empty()).then(|| parse(line).map_err(|(offset, what)| (offset + 1, what)))
        })
    }

    fn line(&self) -> u64 {
        self.lines.number
    }
}

/// Writes tsv.
pub struct Writer<W> {
    output: W,
}

impl<W: Write> Writer<W> {
    /// Writes to `output`.
    pub fn new(output: W) -> Self {
        Self { output }
    }
}

impl<W: Write> RecordWriter for Writer<W> {
    fn record(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        writeln!(self.output, "{}\t{}", escape(key), escape(value))
    }

    fn end(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_and_column_are_told_and_reading_goes_on() {
        let mut reader = Reader::new(&b"a\t1\n\nno tab\n\tx\nb\\q\t2\nb\\x00\t\\t2\r\n"[..]);
        let mut texts = Vec::new();
        while let Some(record) = reader.next_record() {
            texts.push(match record {
                Ok(record) => format!("{:?}={:?}", record.key, record.value),
                Err(error) => error.to_string(),
            });
        }
        assert_eq!(texts[0], "[97]=[49]");
        assert!(texts[1].starts_with("3:7: expected a TAB"));
        assert!(texts[2].starts_with("4:1: the key is empty"));
        assert!(texts[3].starts_with("5:2: expected \\t"));
        assert_eq!(texts[4], "[98, 0]=[9, 50]");
    }
}
