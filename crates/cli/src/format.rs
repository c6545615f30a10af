//! Forms in which records come and go, one a file. Readers stream, bound what they hold, and say line and column of what
//! they cannot take; writers write what their reader reads.

pub mod csv;
pub mod jsonl;
mod lines;
pub mod mdb;
pub mod tsv;

use std::io::{self, BufRead, Write};
use std::path::Path;

/// What is wrong with a record that has one.
const NUL: &str = "a NUL byte, which is in no text; is the file damaged, or binary?";

/// A record from a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Where the file says that it belongs, if it does.
    pub keyspace: Option<String>,
    /// Its key.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
}

/// Why a record could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It is malformed. The reader can go on with the next one.
    #[error("{line}:{column}: {what}")]
    Bad {
        /// Line, from 1.
        line: u64,
        /// Column in bytes, from 1.
        column: u64,
        /// What is wrong, and what would be right.
        what: String,
    },
    /// Nothing behind this place can be read.
    #[error("{line}:1: {what}")]
    End {
        /// Line, from 1.
        line: u64,
        /// What is wrong.
        what: String,
    },
    /// The input failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Reads records one by one.
pub trait RecordReader {
    /// The next record, or `None` at the end.
    fn next_record(&mut self) -> Option<Result<Record, ReadError>>;

    /// Lines read so far.
    fn line(&self) -> u64;

    /// The keyspaces that the file has begun since this was asked last, with or without records, and with or without a name.
    fn begun(&mut self) -> Vec<Option<String>> {
        Vec::new()
    }
}

/// Writes records.
pub trait RecordWriter {
    /// Begins a keyspace; called before its first record.
    fn begin(&mut self, _keyspace: &str, _bytes: u64) -> io::Result<()> {
        Ok(())
    }

    /// Writes a record.
    fn record(&mut self, key: &[u8], value: &[u8]) -> io::Result<()>;

    /// Ends a keyspace.
    fn end(&mut self) -> io::Result<()>;
}

/// The forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Lines of key TAB value, with \t \n \r \\ \xHH
    Tsv,
    /// Rows with a header: key,value; or any, and the value is the row as a JSON object
    Csv,
    /// One JSON object a line
    Jsonl,
    /// The text of mdb_dump and db_dump (LMDB, Berkeley DB)
    Mdb,
}

impl Format {
    /// What a file's name suggests.
    pub fn of_file(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "tsv" | "txt" => Some(Format::Tsv),
            "csv" => Some(Format::Csv),
            "jsonl" | "ndjson" | "json" => Some(Format::Jsonl),
            "mdb" | "dump" => Some(Format::Mdb),
            _ => None,
        }
    }

    /// What it is called on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Format::Tsv => "tsv",
            Format::Csv => "csv",
            Format::Jsonl => "jsonl",
            Format::Mdb => "mdb",
        }
    }

    /// A reader of this form. `key_column` is for csv and jsonl.
    pub fn reader<'a>(
        self,
        input: impl BufRead + 'a,
        key_column: Option<&str>,
    ) -> Box<dyn RecordReader + 'a> {
        match self {
            Format::Tsv => Box::new(tsv::Reader::new(input)),
            Format::Csv => Box::new(csv::Reader::new(input, key_column)),
            Format::Jsonl => Box::new(jsonl::Reader::new(input, key_column)),
            Format::Mdb => Box::new(mdb::Reader::new(input)),
        }
    }

    /// A writer of this form.
    pub fn writer<'a>(self, output: impl Write + 'a) -> Box<dyn RecordWriter + 'a> {
        match self {
            Format::Tsv => Box::new(tsv::Writer::new(output)),
            Format::Csv => Box::new(csv::Writer::new(output)),
            Format::Jsonl => Box::new(jsonl::Writer::new(output)),
            Format::Mdb => Box::new(mdb::Writer::new(output)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(mut reader: Box<dyn RecordReader + '_>) -> Vec<Result<Record, ReadError>> {
        std::iter::from_fn(|| reader.next_record()).collect()
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            records in prop::collection::vec((prop::collection::vec(any::<u8>(), 1..40), prop::collection::vec(any::<u8>(), 0..60)), 0..12))
        {
            for format in [Format::Tsv, Format::Csv, Format::Jsonl, Format::Mdb] {
                let mut text = Vec::new();
                {
                    let mut writer = format.writer(&mut text);
                    writer.begin("ships", 1000).unwrap();
                    for (key, value) in &records {
                        writer.record(key, value).unwrap();
                    }
                    writer.end().unwrap();
                }
                let read = all(format.reader(&text[..], None));
                prop_assert_eq!(read.len(), records.len(), "{:?}", format);
                for (found, (key, value)) in read.into_iter().zip(&records) {
                    let found = found.unwrap();
                    prop_assert_eq!((&found.key, &found.value), (key, value), "{:?}", format);
                }
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            for format in [Format::Tsv, Format::Csv, Format::Jsonl, Format::Mdb] {
                prop_assert!(all(format.reader(&bytes[..], None)).len() <= bytes.len() + 2);
            }
        }

        #[test]
        fn nearly_right_text_is_read_or_refused(text in "[ \\\\\\t\\n,\"{}:xaf0-9kevalue]{0,200}") {
            for format in [Format::Tsv, Format::Csv, Format::Jsonl] {
                all(format.reader(text.as_bytes(), None));
            }
            let dump = format!("VERSION=3\nformat=print\ntype=btree\nHEADER=END\n{text}");
            all(Format::Mdb.reader(dump.as_bytes(), None));
        }
    }
}
