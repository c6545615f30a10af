//! csv: a header, then rows (RFC 4180, strictly: see `rows`).
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

mod rows;

use self::rows::{FIELD_MAX, Row, Rows};
use super::{NUL, ReadError, Record, RecordReader, RecordWriter};
use crate::escape::{escape, shown, unescape};
use std::collections::HashSet;
use std::io::{self, BufRead, Write};

/// Reads csv.
pub struct Reader<R> {
    rows: Rows<R>,
    row: Row,
    header: Option<Vec<String>>,
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

impl<R: BufRead> Reader<R> {
    /// Reads from `input`; the key is the column `key_column`, by number (from 1) or name.
    pub fn new(input: R, key_column: Option<&str>) -> Self {
        Self {
            rows: Rows::new(input),
            row: Row::default(),
            header: None,
            key_column: key_column.map(str::to_owned),
            key_index: 0,
            kind: Kind::Table,
            over: false,
        }
    }

    /// The fields of the row that was read, as text.
    fn texts(&self) -> Result<Vec<&str>, ReadError> {
        let bad = |what| ReadError::Bad { line: self.row.line, column: 1, what };
        let text = |index| match std::str::from_utf8(self.row.field(index)) {
            Ok(text) if text.contains('\0') => Err(bad(format!("column {}: {NUL}", index + 1))),
            Ok(text) => Ok(text),
            Err(_) => Err(bad(format!("column {} is not UTF-8", index + 1))),
        };
        (0..self.row.len()).map(text).collect()
    }

    fn read_header(&mut self) -> Result<bool, ReadError> {
        if !self.rows.read(&mut self.row)? {
            return Ok(false);
        }
        let header: Vec<String> = self.texts()?.into_iter().map(str::to_owned).collect();
        let line = self.row.line;
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
                let columns =
                    header.iter().take(20).map(|name| escape_short(name)).collect::<Vec<_>>().join(", ");
                ReadError::End { line, what: format!("there is no column {wanted:?}; there are: {columns}") }
            })?;
        } else if header == PLAIN {
            self.kind = Kind::Plain;
        } else if header == ESCAPED {
            self.kind = Kind::Escaped;
            // A byte may take four.
            self.rows.field_max = 4 * FIELD_MAX;
        }
        self.rows.columns = Some(header.len());
        self.header = Some(header);
        Ok(true)
    }

    fn read_one(&mut self) -> Result<Option<Record>, ReadError> {
        if self.header.is_none() {
            match self.read_header() {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                // Without a header no row means anything.
                Err(ReadError::Bad { line, what, .. }) => return Err(ReadError::End { line, what }),
                Err(other) => return Err(other),
            }
        }
        if !self.rows.read(&mut self.row)? {
            return Ok(None);
        }
        let texts = self.texts()?;
        let bad = |what: String| ReadError::Bad { line: self.row.line, column: 1, what };
        let text = |index: usize| texts.get(index).copied().unwrap_or_default();
        let key = text(self.key_index);
        if key.is_empty() {
            return Err(bad("the key is empty".into()));
        }
        let unescaped = |index: usize| {
            let what = "expected \\t, \\n, \\r, \\\\ or \\xHH after a backslash";
            unescape(text(index).as_bytes()).map_err(|_| bad(what.into()))
        };
        let (key, value) = match self.kind {
            Kind::Plain => (key.into(), text(1).into()),
            Kind::Escaped => (unescaped(0)?, unescaped(1)?),
            Kind::Table => {
                let names = self.header.iter().flatten();
                let object: serde_json::Map<_, _> =
                    names.zip(&texts).map(|(name, field)| (name.clone(), (*field).into())).collect();
                (key.into(), serde_json::Value::Object(object).to_string().into_bytes())
            }
        };
        Ok(Some(Record { keyspace: None, key, value }))
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
        self.rows.lines().max(1)
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
