//! mdb: the text that LMDB's `mdb_dump` and Berkeley DB's `db_dump` write, and their `load` programs read.
//!
//! ```text
//! VERSION=3
//! format=bytevalue            or print
//! database=ships              a named database; becomes the keyspace
//! type=btree
//! mapsize=1048576             and other NAME=VALUE lines
//! HEADER=END
//!  626561676c65               a key: one space, then two hexadecimal digits a byte
//!  31383230                   its value
//! DATA=END                    another header may follow
//! ```
//! With `format=print` printable bytes stand for themselves, a backslash for `\\`, and other bytes for `\HH`.

use super::lines::Lines;
use super::{NUL, ReadError, Record, RecordReader, RecordWriter};
use crate::escape::{hex, shown};
use std::io::{self, BufRead, Write};

/// Reads dumps.
pub struct Reader<R> {
    lines: Lines<R>,
    state: State,
    print: bool,
    database: Option<String>,
    is_value_unwanted: bool,
    /// Databases whose headers came since somebody asked.
    begun: Vec<Option<String>>,
}

#[derive(PartialEq, Eq)]
enum State {
    Header { first: bool },
    Data,
    Over,
}

impl<R: BufRead> Reader<R> {
    /// Reads from `input`.
    pub fn new(input: R) -> Self {
        Self {
            lines: Lines::new(input),
            state: State::Header { first: true },
            print: false,
            database: None,
            is_value_unwanted: false,
            begun: Vec::new(),
        }
    }

    fn bad<T>(&mut self, column: usize, what: impl Into<String>) -> Result<T, ReadError> {
        Err(ReadError::Bad { line: self.lines.number, column: column as u64, what: what.into() })
    }

    /// What makes all that follows unreadable.
    fn end<T>(&mut self, what: impl Into<String>) -> Result<T, ReadError> {
        self.state = State::Over;
        Err(ReadError::End { line: self.lines.number.max(1), what: what.into() })
    }

    /// Reads a header up to `HEADER=END`. False at the end of the file.
    fn header(&mut self, first: bool) -> Result<bool, ReadError> {
        self.print = false;
        self.database = None;
        let mut begun = false;
        loop {
            let line = match self.lines.next_line() {
                Err(ReadError::Bad { what, .. }) => return self.end(what),
                other => other?,
            };
            let Some(line) = line else {
                return if begun || first {
                    self.end("the file ends within a header; expected HEADER=END")
                } else {
                    Ok(false)
                };
            };
            let line = match std::str::from_utf8(line) {
                Ok(line) => line.to_owned(),
                Err(_) if begun => return self.end(NO_TEXT),
                // It is no header at all.
                Err(_) => String::from_utf8_lossy(line).into_owned(),
            };
            if line.is_empty() && !begun {
                continue;
            }
            if !begun && !line.starts_with("VERSION=") {
                return self.end(format!("expected VERSION=3, found {}; {NOT_TEXT}", shown(&line)));
            }
            begun = true;
            let Some((name, value)) = line.split_once('=') else {
                return self.end(format!("expected NAME=VALUE in the header, found {}", shown(&line)));
            };
            match (name, value) {
                ("HEADER", "END") => {
                    self.begun.push(self.database.clone());
                    return Ok(true);
                }
                ("VERSION", "3" | "2") => {}
                ("VERSION", other) => {
                    return self.end(format!("dumps of version {} are not known; 3 is", shown(other)));
                }
                ("format", "bytevalue") => self.print = false,
                ("format", "print") => self.print = true,
                ("format", other) => {
                    return self
                        .end(format!("format={} is not known; bytevalue and print are", shown(other)));
                }
                ("type", "btree" | "hash") => {}
                ("type", other) => {
                    return self
                        .end(format!("type={} has no keys of bytes; btree and hash have", shown(other)));
                }
                ("duplicates" | "dupsort" | "dupfixed", "1") => {
                    return self
                        .end("the database has several values for a key, which has no counterpart here");
                }
                ("database", name) => self.database = Some(name.to_owned()),
                _ => {}
            }
        }
    }

    /// One line of data; `None` at `DATA=END`.
    fn datum(&mut self) -> Result<Option<Vec<u8>>, ReadError> {
        let print = self.print;
        let decoded = match self.lines.next_line() {
            Err(ReadError::Bad { what, .. }) => return self.bad(1, what),
            Err(error) => {
                self.state = State::Over;
                return Err(error);
            }
            Ok(None) => return self.end(CUT_OFF),
            Ok(Some(b"DATA=END")) => return Ok(None),
            Ok(Some([b' ', text @ ..])) => {
                if print {
                    from_print(text)
                } else {
                    from_bytevalue(text)
                }
            }
            // Not skipped: from here on one cannot tell keys from values.
            Ok(Some(_)) => return self.end("expected a line that begins with a space, or DATA=END"),
        };
        if !self.lines.is_whole {
            // What is there of the line is no value, although it looks like one.
            return self.end(CUT_OFF);
        }
        match decoded {
            Ok(bytes) => Ok(Some(bytes)),
            Err((offset, what)) => self.bad(offset + 1, what),
        }
    }

    fn read_one(&mut self) -> Result<Option<Record>, ReadError> {
        loop {
            match self.state {
                State::Over => return Ok(None),
                State::Header { first } => {
                    if !self.header(first)? {
                        self.state = State::Over;
                        return Ok(None);
                    }
                    self.state = State::Data;
                }
                State::Data => {
                    // The value of a bad key is skipped with it, so that keys and values stay paired.
                    if std::mem::take(&mut self.is_value_unwanted) {
                        match self.datum() {
                            Ok(Some(_)) | Err(ReadError::Bad { .. }) => {}
                            Ok(None) => return self.end(NO_VALUE),
                            Err(end) => return Err(end),
                        }
                    }
                    let Some(key) = (match self.datum() {
                        Err(error @ ReadError::Bad { .. }) => {
                            self.is_value_unwanted = true;
                            return Err(error);
                        }
                        other => other?,
                    }) else {
                        self.state = State::Header { first: false };
                        continue;
                    };
                    let Some(value) = self.datum()? else {
                        return self.end(NO_VALUE);
                    };
                    if key.is_empty() {
                        return self.bad(2, "the key (one line above) is empty");
                    }
                    return Ok(Some(Record { keyspace: self.database.clone(), key, value }));
                }
            }
        }
    }
}

fn from_bytevalue(text: &[u8]) -> Result<Vec<u8>, (usize, &'static str)> {
    let pairs = text.chunks(2).enumerate();
    pairs
        .map(|(index, pair)| hex(Some(pair)).ok_or((1 + 2 * index, "expected two hexadecimal digits")))
        .collect()
}

const NOT_TEXT: &str = "this form is text; for the file of an LMDB database itself: \
     mdb_dump -n FILE | sapwood load DB - --format mdb";
const CUT_OFF: &str =
    "the file ends within the data; expected DATA=END. Is it cut off? Its last record is left out";
const NO_TEXT: &str = "this line of the header is not UTF-8, as names of keyspaces are; \
     dump that database alone, without its name, and load it with --keyspace";
const NO_VALUE: &str = "the data ends with a key that has no value";
const LONE_BACKSLASH: &str = "expected \\\\ or two hexadecimal digits after the backslash; \
     some versions of mdb_dump -p write lone backslashes: dump without -p";

fn from_print(text: &[u8]) -> Result<Vec<u8>, (usize, &'static str)> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        let (byte, len) = match (byte, text.get(at + 1)) {
            (b'\\', Some(b'\\')) => (b'\\', 2),
            (b'\\', _) => {
                let byte = hex(text.get(at + 1..at + 3));
                (byte.ok_or((at + 1, LONE_BACKSLASH))?, 3)
            }
            (0, _) => return Err((at + 1, NUL)),
            (other, _) => (*other, 1),
        };
        bytes.push(byte);
        at += len;
    }
    Ok(bytes)
}

impl<R: BufRead> RecordReader for Reader<R> {
    fn next_record(&mut self) -> Option<Result<Record, ReadError>> {
        let record = self.read_one();
        if matches!(record, Err(ReadError::Io(_) | ReadError::End { .. })) {
            self.state = State::Over;
        }
        record.transpose()
    }

    fn line(&self) -> u64 {
        self.lines.number
    }

    fn begun(&mut self) -> Vec<Option<String>> {
        std::mem::take(&mut self.begun)
    }
}

/// Writes dumps, `format=bytevalue`.
pub struct Writer<W> {
    output: W,
}

impl<W: Write> Writer<W> {
    /// Writes to `output`.
    pub fn new(output: W) -> Self {
        Self { output }
    }

    fn datum(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut line = Vec::with_capacity(2 * bytes.len() + 2);
        line.push(b' ');
        for byte in bytes {
            line.extend(DIGITS[usize::from(byte >> 4)..].iter().take(1));
            line.extend(DIGITS[usize::from(byte & 15)..].iter().take(1));
        }
        line.push(b'\n');
        self.output.write_all(&line)
    }
}

const DIGITS: &[u8; 16] = b"0123456789abcdef";

impl<W: Write> RecordWriter for Writer<W> {
    fn begin(&mut self, keyspace: &str, bytes: u64) -> io::Result<()> {
        // LMDB takes its map's size from here. Only what is used of it takes space, so it is generous: pages may be half
        // empty, and values of just over half a page take a whole one.
        let mapsize = bytes.saturating_mul(8).clamp(64 << 20, 1 << 46).next_multiple_of(1 << 20);
        let database = if keyspace == "default" { String::new() } else { format!("database={keyspace}\n") };
        write!(
            self.output,
            "VERSION=3\nformat=bytevalue\n{database}type=btree\nmapsize={mapsize}\nHEADER=END\n"
        )
    }

    fn record(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.datum(key)?;
        self.datum(value)
    }

    fn end(&mut self) -> io::Result<()> {
        self.output.write_all(b"DATA=END\n")?;
        self.output.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<Result<Record, String>> {
        let mut reader = Reader::new(text.as_bytes());
        std::iter::from_fn(|| reader.next_record())
            .map(|record| record.map_err(|error| error.to_string()))
            .collect()
    }

    fn record(keyspace: Option<&str>, key: &[u8], value: &[u8]) -> Result<Record, String> {
        Ok(Record { keyspace: keyspace.map(str::to_owned), key: key.to_vec(), value: value.to_vec() })
    }

    #[test]
    fn both_formats_and_several_databases() {
        let text = "VERSION=3\nformat=print\ndatabase=ships\ntype=btree\nHEADER=END\n beagle\n 18\\32\\\\\nDATA=END\n\
                    VERSION=3\nformat=bytevalue\ntype=btree\nHEADER=END\n 00ff\n \nDATA=END\n";
        assert_eq!(read(text), [record(Some("ships"), b"beagle", b"182\\"), record(None, b"\x00\xff", b"")]);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        let header = "VERSION=3\nformat=bytevalue\ntype=btree\nHEADER=END\n";
        let found = read(&format!("{header} 6z\n 31\n 62\n 32\nDATA=END\n"));
        assert_eq!(found[0].as_ref().unwrap_err(), "5:2: expected two hexadecimal digits");
        assert_eq!(found[1], record(None, b"b", b"2"));
        // The line is cut off: half a value is none.
        let cut = read(&format!("{header} 61\n 31\n 62\n 3132"));
        assert!(cut.len() == 2 && cut[1].as_ref().unwrap_err().starts_with("8:1: the file ends"), "{cut:?}");
        assert!(read(&format!("{header} 61\n 31\n"))[1].as_ref().unwrap_err().contains("expected DATA=END"));
        assert!(
            read(&format!("{header} 61\nDATA=END\n"))[0]
                .as_ref()
                .unwrap_err()
                .contains("a key that has no value")
        );
        assert!(
            read("VERSION=3\ndupsort=1\nHEADER=END\n")[0].as_ref().unwrap_err().contains("several values")
        );
        assert!(
            read("hello\n")[0].as_ref().unwrap_err().starts_with("1:1: expected VERSION=3, found \"hello\"")
        );
        assert!(read("")[0].is_err());
        let lost = read(&format!("{header} 61\n 31\n\n 62\n 32\nDATA=END\n"));
        assert_eq!(
            lost[1].as_ref().unwrap_err(),
            "7:1: expected a line that begins with a space, or DATA=END"
        );
        assert_eq!(lost.len(), 2, "keys and values would change places");
        let lost = read(&format!("{header} 6z\nDATA=END\nVERSION=3\n"));
        assert_eq!(lost[1].as_ref().unwrap_err(), "6:1: the data ends with a key that has no value");
        assert_eq!(lost.len(), 2);
    }
}
