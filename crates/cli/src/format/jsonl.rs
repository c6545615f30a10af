//! jsonl: one JSON object a line.
//!
//! ```text
//! {"key": "beagle", "value": "1820"}
//! {"key_base64": "AP8=", "value_base64": "/w=="}      bytes that are no text
//! {"key": "fram", "year": 1892, "crew": 16}           anything else: the value is the line itself
//! ```
//! The member that is the key is `key` unless told; with another one the value is always the line itself.

use super::lines::Lines;
use super::{ReadError, Record, RecordReader, RecordWriter};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value};
use std::io::{self, BufRead, Write};

/// Reads jsonl.
pub struct Reader<R> {
    lines: Lines<R>,
    key_column: Option<String>,
    over: bool,
}

impl<R: BufRead> Reader<R> {
    /// Reads from `input`; the key is the member `key_column`.
    pub fn new(input: R, key_column: Option<&str>) -> Self {
        Self { lines: Lines::new(input), key_column: key_column.map(str::to_owned), over: false }
    }
}

/// A member as bytes: under its own name as text, or under `NAME_base64`.
fn member(object: &Map<String, Value>, name: &str) -> Result<Option<Vec<u8>>, String> {
    let encoded = format!("{name}_base64");
    if let Some(value) = object.get(&encoded) {
        let text = value.as_str().ok_or_else(|| format!("{encoded:?} is not a string"))?;
        return BASE64_STANDARD.decode(text).map(Some).map_err(|error| format!("{encoded:?}: {error}"));
    }
    match object.get(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone().into_bytes())),
        Some(Value::Number(number)) => Ok(Some(number.to_string().into_bytes())),
        Some(_) => Err(format!("{name:?} is neither a string nor a number")),
    }
}

fn parse(line: &[u8], key_column: Option<&str>) -> Result<Record, (usize, String)> {
    let object = match serde_json::from_slice(line) {
        Ok(Value::Object(object)) => object,
        Ok(_) => return Err((1, "expected an object: {\"key\": ..., \"value\": ...}".into())),
        Err(error) => {
            // The place is ours to tell; the parser's own "at line 1" is of this line alone.
            let what = error.to_string();
            let what = what.split_once(" at line ").map_or(what.as_str(), |(what, _)| what);
            return Err((error.column(), what.to_owned()));
        }
    };
    let name = key_column.unwrap_or("key");
    let key = member(&object, name).map_err(|what| (1, what))?;
    let key = key.ok_or_else(|| (1, format!("there is no member {name:?}")))?;
    if key.is_empty() {
        return Err((1, "the key is empty".into()));
    }
    let plain = key_column.is_none()
        && object.len() == 2
        && (object.contains_key("value_base64") || object.get("value").is_some_and(Value::is_string));
    let value = if plain { member(&object, "value").map_err(|what| (1, what))? } else { None };
    Ok(Record { keyspace: None, key, value: value.unwrap_or_else(|| line.to_vec()) })
}

impl<R: BufRead> RecordReader for Reader<R> {
    fn next_record(&mut self) -> Option<Result<Record, ReadError>> {
        while !self.over {
            let line = self.lines.number + 1;
            let parsed = match self.lines.next_line() {
                Ok(None) => return None,
                Ok(Some(line)) if line.trim_ascii().is_empty() => continue,
                Ok(Some(line)) => parse(line, self.key_column.as_deref()),
                Err(error) => {
                    self.over = true;
                    return Some(Err(error));
                }
            };
            return Some(parsed.map_err(|(column, what)| ReadError::Bad {
                line,
                column: column.max(1) as u64,
                what,
            }));
        }
        None
    }

    fn line(&self) -> u64 {
        self.lines.number
    }
}

/// Writes jsonl.
pub struct Writer<W> {
    output: W,
}

impl<W: Write> Writer<W> {
    /// Writes to `output`.
    pub fn new(output: W) -> Self {
        Self { output }
    }
}

/// A record as an object that [`Reader`] reads.
pub(crate) fn object(key: &[u8], value: Option<&[u8]>) -> Value {
    let mut object = Map::new();
    let mut put = |name: &str, bytes: &[u8]| match std::str::from_utf8(bytes) {
        Ok(text) => object.insert(name.to_owned(), text.into()),
        Err(_) => object.insert(format!("{name}_base64"), BASE64_STANDARD.encode(bytes).into()),
    };
    put("key", key);
    match value {
        Some(value) => put("value", value),
        None => object.insert("value".to_owned(), Value::Null),
    };
    Value::Object(object)
}

impl<W: Write> RecordWriter for Writer<W> {
    fn begin(&mut self, _: &str, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn record(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        writeln!(self.output, "{}", object(key, Some(value)))
    }

    fn end(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_three_kinds_and_bad_ones() {
        let lines = "{\"key\":\"a\",\"value\":\"1\"}\n{\"key\":\"fram\",\"year\":1892}\n{\"sku\":7,\"key\":\"x\"}\n[1]\n{\"key\"\n";
        let read = |key_column| -> Vec<String> {
            let mut reader = Reader::new(lines.as_bytes(), key_column);
            std::iter::from_fn(|| reader.next_record())
                .map(|record| match record {
                    Ok(record) => format!(
                        "{} = {}",
                        String::from_utf8_lossy(&record.key),
                        String::from_utf8_lossy(&record.value)
                    ),
                    Err(error) => error.to_string(),
                })
                .collect()
        };
        let found = read(None);
        assert_eq!(found[0], "a = 1");
        assert_eq!(found[1], "fram = {\"key\":\"fram\",\"year\":1892}");
        assert!(found[3].starts_with("4:1: expected an object"), "{}", found[3]);
        assert!(found[4].starts_with("5:6:"), "{}", found[4]);
        assert_eq!(read(Some("sku"))[2], "7 = {\"sku\":7,\"key\":\"x\"}");
    }
}
