//! csv: a header, then rows (RFC 4180).
//!
//! ```text
//! key,value                       keys and values themselves
//! beagle,1820
//!
//! key_escaped,value_escaped       the same with the escapes of tsv: what a dump writes, since csv cannot hold all bytes
//! a\x00b,\xff
//!
//! name,year                       any other table: one column is the key (the first unless told), and the value is the
//! fram,1892                       row as a JSON object, columns in order: {"name":"fram","year":"1892"}
//! ```
//! With a key column told, the value is always the row.

use super::lines::LINE_MAX;
use super::{ReadError, Record, RecordReader, RecordWriter};
use crate::escape::{escape, shown, unescape};
use std::collections::HashSet;
use std::io::{self, BufRead, Read, Write};

/// Reads csv.
pub struct Reader<R> {
    rows: csv::Reader<Limited<R>>,
    header: Option<csv::StringRecord>,
    key_column: Option<String>,
    key_index: usize,
    kind: Kind,
    over: bool,
}

/// What the header makes of the rows.
#[derive(Clone, Copy)]
enum Kind {
    Plain,
    Escaped,
    Table,
}

const PLAIN: [&str; 2] = ["key", "value"];
const ESCAPED: [&str; 2] = ["key_escaped", "value_escaped"];

#[derive(Debug, thiserror::Error)]
#[error("a row of more than {LINE_MAX} bytes; is a quote left open?")]
struct Endless;

/// Lets no row grow without bound: fails when too much was read since the last row ended.
struct Limited<R> {
    input: R,
    since: std::rc::Rc<std::cell::Cell<usize>>,
}

impl<R: BufRead> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.since.get() > LINE_MAX {
            return Err(io::Error::other(Endless));
        }
        let read = self.input.read(buffer)?;
        self.since.set(self.since.get() + read);
        Ok(read)
    }
}

impl<R: BufRead> Reader<R> {
    /// Reads from `input`; the key is the column `key_column`, by number (from 1) or name.
    pub fn new(input: R, key_column: Option<&str>) -> Self {
        let limited = Limited { input, since: std::rc::Rc::default() };
        let rows = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(limited);
        Self {
            rows,
            header: None,
            key_column: key_column.map(str::to_owned),
            key_index: 0,
            kind: Kind::Table,
            over: false,
        }
    }

    fn read_row(&mut self) -> Result<Option<(u64, csv::StringRecord)>, ReadError> {
        let mut row = csv::StringRecord::new();
        self.rows.get_ref().since.set(0);
        let line = self.rows.position().line();
        match self.rows.read_record(&mut row) {
            Ok(true) => Ok(Some((row.position().map_or(line, csv::Position::line), row))),
            Ok(false) => Ok(None),
            Err(error) => {
                let line = error.position().map_or(line, csv::Position::line);
                match error.into_kind() {
                    csv::ErrorKind::Io(error)
                        if error.get_ref().is_some_and(|inner| inner.is::<Endless>()) =>
                    {
                        Err(ReadError::End { line, what: error.to_string() })
                    }
                    csv::ErrorKind::Io(error) => Err(ReadError::Io(error)),
                    csv::ErrorKind::Utf8 { err, .. } => {
                        let what = format!("column {} is not UTF-8", err.field() + 1);
                        Err(ReadError::Bad { line, column: 1, what })
                    }
                    _ => Err(ReadError::Bad { line, column: 1, what: "expected a row of csv".into() }),
                }
            }
        }
    }

    fn read_header(&mut self) -> Result<bool, ReadError> {
        let (line, header) = match self.read_row() {
            Ok(None) => return Ok(false),
            Ok(Some(row)) => row,
            // Without a header no row means anything.
            Err(ReadError::Bad { line, what, .. }) => return Err(ReadError::End { line, what }),
            Err(other) => return Err(other),
        };
        let end = |what| Err(ReadError::End { line, what });
        let mut seen = HashSet::new();
        if let Some(twice) = header.iter().find(|name| !seen.insert(*name)) {
            return end(format!("two columns are called {}; give each a name of its own", shown(twice)));
        }
        if let Some(wanted) = &self.key_column {
            let by_name = header.iter().position(|name| name == wanted);
            let by_number =
                wanted.parse::<usize>().ok().filter(|n| (1..=header.len()).contains(n)).map(|n| n - 1);
            self.key_index = by_name.or(by_number).ok_or_else(|| {
                let columns = header.iter().take(20).map(escape_short).collect::<Vec<_>>().join(", ");
                ReadError::End { line, what: format!("there is no column {wanted:?}; there are: {columns}") }
            })?;
        } else if header == PLAIN[..] {
            self.kind = Kind::Plain;
        } else if header == ESCAPED[..] {
            self.kind = Kind::Escaped;
        }
        self.header = Some(header);
        Ok(true)
    }

    fn read_one(&mut self) -> Result<Option<Record>, ReadError> {
        if self.header.is_none() && !self.read_header()? {
            return Ok(None);
        }
        let Some((line, row)) = self.read_row()? else { return Ok(None) };
        let header = self.header.clone().unwrap_or_default();
        let bad = |what: String| ReadError::Bad { line, column: 1, what };
        if row.len() != header.len() {
            return Err(bad(format!("expected {} columns, found {}", header.len(), row.len())));
        }
        let key = row.get(self.key_index).unwrap_or_default();
        if key.is_empty() {
            return Err(bad("the key is empty".into()));
        }
        let field = |index: usize| row.get(index).unwrap_or_default().as_bytes();
        let unescaped = |index: usize| {
            let what = "expected \\t, \\n, \\r, \\\\ or \\xHH after a backslash";
            unescape(field(index)).map_err(|_| bad(what.into()))
        };
        match self.kind {
            Kind::Plain => {
                return Ok(Some(Record { keyspace: None, key: field(0).to_vec(), value: field(1).to_vec() }));
            }
            Kind::Escaped => {
                return Ok(Some(Record { keyspace: None, key: unescaped(0)?, value: unescaped(1)? }));
            }
            Kind::Table => {}
        }
        let object: serde_json::Map<_, _> =
            header.iter().zip(&row).map(|(name, field)| (name.to_owned(), field.into())).collect();
        let value = serde_json::Value::Object(object).to_string().into_bytes();
        Ok(Some(Record { keyspace: None, key: key.as_bytes().to_vec(), value }))
    }
}

impl<R: BufRead> RecordReader for Reader<R> {
    fn next_record(&mut self) -> Option<Result<Record, ReadError>> {
        if self.over {
            return None;
        }
        let record = self.read_one();
        self.over = matches!(record, Err(ReadError::Io(_) | ReadError::End { .. }) | Ok(None));
        record.transpose()
    }

    fn line(&self) -> u64 {
        // The position is that of what comes next.
        self.rows.position().line().saturating_sub(1).max(1)
    }
}

fn escape_short(name: &str) -> String {
    escape(name.chars().take(40).collect::<String>().as_bytes())
}

/// The error of the output itself, not wrapped: who writes wants to know whether it was closed.
fn bare(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => io::Error::other(format!("csv: {other:?}")),
    }
}

/// Writes csv with the header `key_escaped,value_escaped`.
pub struct Writer<W: Write> {
    output: csv::Writer<W>,
}

impl<W: Write> Writer<W> {
    /// Writes to `output`.
    pub fn new(output: W) -> Self {
        Self { output: csv::Writer::from_writer(output) }
    }
}

impl<W: Write> RecordWriter for Writer<W> {
    fn begin(&mut self, _: &str, _: u64) -> io::Result<()> {
        self.output.write_record(ESCAPED).map_err(bare)
    }

    fn record(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.output.write_record([escape(key), escape(value)]).map_err(bare)
    }

    fn end(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(input: &str, key_column: Option<&str>) -> Vec<String> {
        let mut reader = Reader::new(input.as_bytes(), key_column);
        std::iter::from_fn(|| reader.next_record())
            .map(|record| match record {
                Ok(record) => {
                    let text = |bytes| String::from_utf8(bytes).unwrap();
                    format!("{}={}", text(record.key), text(record.value))
                }
                Err(error) => error.to_string(),
            })
            .collect()
    }

    #[test]
    fn rows_become_objects_under_the_chosen_key() {
        let input = "name,year\nbeagle,1820\n\"fram, the\",1892\nbad\n,1\n";
        assert_eq!(
            texts(input, None),
            [
                r#"beagle={"name":"beagle","year":"1820"}"#,
                r#"fram, the={"name":"fram, the","year":"1892"}"#,
                "4:1: expected 2 columns, found 1",
                "5:1: the key is empty"
            ]
        );
        assert_eq!(
            texts("name,year\nbeagle,1820\n", Some("year"))[0],
            r#"1820={"name":"beagle","year":"1820"}"#
        );
        assert_eq!(
            texts("name,year\nbeagle,1820\n", Some("2"))[0],
            r#"1820={"name":"beagle","year":"1820"}"#
        );
        assert!(texts("name,year\nbeagle,1820\n", Some("flag"))[0].contains("there are: name, year"));
    }
}
