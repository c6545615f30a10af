//! jsonl: one JSON object a line.
//!
//! ```text
//! {"key": "beagle", "value": "1820"}
//! {"key_base64": "AP8=", "value_base64": "/w=="}      bytes that are no text
//! {"key": "fram", "year": 1892, "crew": 16}           anything else: the value is the line itself
//! ```
//! The member that is the key is `key` unless told; with another one the value is always the line itself.
//!
//! Invariants:
//! 1. numbers are taken as they are written, digit for digit: none is turned into a binary number and back;
//! 2. a line that names a key or a value twice is refused: neither is more right than the other.

use super::lines::Lines;
use super::{ReadError, Record, RecordReader, RecordWriter};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::fmt;
use std::io::{self, BufRead, Write};

/// Reads jsonl.
pub struct Reader<R> {
    lines: Lines<R>,
    key_column: Option<String>,
}

impl<R: BufRead> Reader<R> {
    /// Reads from `input`; the key is the member `key_column`.
    pub fn new(input: R, key_column: Option<&str>) -> Self {
        Self { lines: Lines::new(input), key_column: key_column.map(str::to_owned) }
    }
}

/// The members of an object, in order, their values as they are written.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfObject;
        impl<'de> Visitor<'de> for OfObject {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(OfObject)
    }
}

impl<'a> Members<'a> {
    /// The value of the only member called `name`.
    fn one(&self, name: &str) -> Result<Option<&'a RawValue>, String> {
        let mut found = self.0.iter().filter(|(member, _)| member == name).map(|(_, value)| *value);
        match (found.next(), found.next()) {
            (_, Some(_)) => Err(format!("there are two members {name:?}; keep one of them")),
            (one, None) => Ok(one),
        }
    }

    /// A member as bytes: under its own name as text, or under `NAME_base64`. The other of the two may only be there if
    /// the names are not ours.
    fn bytes(&self, name: &str, names_are_ours: bool) -> Result<Option<Vec<u8>>, String> {
        let encoded = format!("{name}_base64");
        match (self.one(name)?, self.one(&encoded)?) {
            (Some(_), Some(_)) if names_are_ours => {
                Err(format!("there are both {name:?} and {encoded:?}; keep one of them"))
            }
            (Some(value), _) => text(name, value.get()).map(Some),
            (None, Some(value)) => {
                let text: String = serde_json::from_str(value.get())
                    .map_err(|_| format!("{encoded:?} is not a string of text"))?;
                BASE64_STANDARD.decode(text).map(Some).map_err(|error| format!("{encoded:?}: {error}"))
            }
            (None, None) => Ok(None),
        }
    }
}

/// The bytes of a string, or of a number as it is written.
fn text(name: &str, raw: &str) -> Result<Vec<u8>, String> {
    match raw.as_bytes().first() {
        Some(b'"') => serde_json::from_str::<String>(raw).map(String::into_bytes).map_err(|_| {
            format!("{name:?} is no text: half of a surrogate pair; use {name}_base64 for bytes")
        }),
        Some(b'-' | b'0'..=b'9') => Ok(raw.as_bytes().to_vec()),
        _ => Err(format!("{name:?} is neither a string nor a number")),
    }
}

fn parse(line: &[u8], key_column: Option<&str>) -> Result<Record, (usize, String)> {
    let members: Members = serde_json::from_slice(line).map_err(|error| {
        if error.is_data() {
            let hint = if line.starts_with(b"[") { "; jq -c '.[]' FILE makes lines of an array" } else { "" };
            return (1, format!("expected an object: {{\"key\": ..., \"value\": ...}}{hint}"));
        }
        // The place is ours to tell; the parser's own "at line 1" is of this line alone.
        let what = error.to_string();
        let what = what.split_once(" at line ").map_or(what.as_str(), |(what, _)| what);
        (error.column(), what.to_owned())
    })?;
    let bad = |what| (1, what);
    let name = key_column.unwrap_or("key");
    let key = members.bytes(name, key_column.is_none()).map_err(bad)?;
    let key = key.ok_or_else(|| (1, format!("there is no member {name:?}")))?;
    if key.is_empty() {
        return Err((1, "the key is empty".into()));
    }
    let mut value = None;
    if key_column.is_none() && members.0.len() == 2 {
        let is_string = members.one("value").map_err(bad)?.is_some_and(|value| value.get().starts_with('"'));
        if is_string || members.one("value_base64").map_err(bad)?.is_some() {
            value = members.bytes("value", true).map_err(bad)?;
        }
    }
    Ok(Record { keyspace: None, key, value: value.unwrap_or_else(|| line.to_vec()) })
}

impl<R: BufRead> RecordReader for Reader<R> {
    fn next_record(&mut self) -> Option<Result<Record, ReadError>> {
        let key_column = self.key_column.as_deref();
        self.lines.next_record(|line| {
            let is_empty = line.trim_ascii().is_empty();
            (!is_empty).then(|| parse(line, key_column).map_err(|(column, what)| (column.max(1), what)))
        })
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

/// Adds bytes to an object: as text under `name`, or under `NAME_base64`.
pub(crate) fn put_bytes(object: &mut Map<String, Value>, name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => object.insert(name.to_owned(), text.into()),
        Err(_) => object.insert(format!("{name}_base64"), BASE64_STANDARD.encode(bytes).into()),
    };
}

/// A record as an object that [`Reader`] reads.
pub(crate) fn object(key: &[u8], value: Option<&[u8]>) -> Value {
    let mut object = Map::new();
    put_bytes(&mut object, "key", key);
    match value {
        Some(value) => put_bytes(&mut object, "value", value),
        None => _ = object.insert("value".to_owned(), Value::Null),
    }
    Value::Object(object)
}

impl<W: Write> RecordWriter for Writer<W> {
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

    /// Control characters are text, and take six bytes each.
    #[test]
    fn the_longest_line_that_a_dump_writes_is_read() {
        let (key, value) = (vec![1; 64 << 10], vec![0; 16 << 20]);
        let mut written = Vec::new();
        Writer::new(&mut written).record(&key, &value).unwrap();
        let mut reader = Reader::new(&written[..], None);
        let record = reader.next_record().expect("a record").unwrap();
        assert!(record.key == key && record.value == value);
    }

    fn keys(lines: &str, key_column: Option<&str>) -> Vec<String> {
        let mut reader = Reader::new(lines.as_bytes(), key_column);
        std::iter::from_fn(|| reader.next_record())
            .map(|record| match record {
                Ok(record) => String::from_utf8(record.key).unwrap(),
                Err(error) => error.to_string(),
            })
            .collect()
    }

    #[test]
    fn numbers_are_taken_digit_for_digit() {
        let numbers = [
            "123456789012345678901",
            "123456789012345678902",
            "18446744073709551616",
            "-9223372036854775809",
            "0.1000",
            "1.0",
            "1",
            "-0",
            "-0.0",
            "1e400",
            "1E+2",
            "1e2",
            "100",
            "5e-324",
            "1e-9999",
            "3.141592653589793238462643383279",
        ];
        let lines: String =
            numbers.iter().map(|number| format!("{{\"id\" : {number} ,\"v\":[{number}]}}\n")).collect();
        assert_eq!(keys(&lines, Some("id")), numbers);
        assert_eq!(keys(&lines.replace("id", "key"), None), numbers);
        for no_number in
            ["01", "1.", ".5", "+1", "0x1", "1e", "NaN", "Infinity", "-", "true", "null", "[1]", "{}"]
        {
            let line = format!("{{\"key\":{no_number}}}\n");
            assert!(keys(&line, None)[0].starts_with("1:"), "{no_number}");
        }
    }

    #[test]
    fn what_is_there_twice_is_refused() {
        assert_eq!(
            keys("{\"id\":1,\"id\":2}\n", Some("id")),
            ["1:1: there are two members \"id\"; keep one of them"]
        );
        // Names that say the same once they are unescaped are the same.
        assert!(keys("{\"key\":\"a\",\"k\\u0065y\":\"b\"}\n", None)[0].contains("two members"));
        assert!(
            keys("{\"key\":\"a\",\"value\":\"b\",\"value\":\"c\"}\n", None)[0] == "a",
            "the value is the line"
        );
        assert!(keys("{\"key\":\"a\",\"key_base64\":\"YQ==\"}\n", None)[0].contains("both"));
        assert_eq!(keys("{\"img\":\"a\",\"img_base64\":\"zz\"}\n", Some("img")), ["a"]);
    }

    #[test]
    fn text_that_is_none_is_refused_where_it_would_be_changed() {
        assert!(keys("{\"key\":\"\\ud800\",\"value\":\"\"}\n", None)[0].contains("surrogate"));
        assert_eq!(keys("{\"key\":\"\\ud83d\\ude00\",\"value\":\"\"}\n", None), ["\u{1f600}"]);
        // In a value that is the line itself it stays as it is written.
        assert_eq!(keys("{\"key\":\"a\",\"x\":\"\\ud800\"}\n", None), ["a"]);
        let mut reader = Reader::new(&b"{\"key\":\"a\",\"x\":\"\xff\"}\n"[..], None);
        assert!(matches!(reader.next_record(), Some(Err(ReadError::Bad { line: 1, .. }))));
    }
}
