//! Rows of csv (RFC 4180), in bounded memory and strictly: a quote that is left open must not swallow the rows behind it.
//!
//! The readers that exist end an open quote at the end of the file, and take what follows a closing quote as a part of the
//! field; both turn a forgotten quote into one long value without a word. This one names the place where the quote was
//! opened, and goes on with the line behind that place.
//!
//! Invariants:
//! 1. `raw[at..]` is what was read and is in no row yet; it begins with a line, whose number is `line`;
//! 2. no field is longer than `field_max`, and no row than [`LINE_MAX`]: more is never held;
//! 3. after a fault the next row begins with a line behind the one at fault, and behind all rows that were given.

use crate::format::ReadError;
use crate::format::lines::{BYTE_ORDER_MARK, LINE_MAX};
use memchr::{memchr, memchr_iter, memchr2, memchr3, memrchr};
use std::io::BufRead;

/// A longer field is in no database: it is the most that a value may have.
pub(super) const FIELD_MAX: usize = 16 << 20;

/// Bytes taken from the input at a time.
const CHUNK: usize = 64 << 10;

/// A table of more columns is taken for none.
const COLUMNS_MAX: usize = 1 << 20;

/// Finds rows. See the module.
pub(super) struct Rows<R> {
    input: R,
    raw: Vec<u8>,
    at: usize,
    line: u64,
    is_first: bool,
    /// The rest of a line that was too long is still to be passed over.
    is_within_line: bool,
    /// Bytes that a field may have.
    pub field_max: usize,
    /// Columns that each row must have.
    pub columns: Option<usize>,
}

/// The fields of a row.
#[derive(Default)]
pub(super) struct Row {
    /// The line in which it begins.
    pub line: u64,
    text: Vec<u8>,
    ends: Vec<usize>,
    /// Where the first quote opens that is closed in another line, counted from the row's beginning.
    spanning: Option<usize>,
}

impl Row {
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn field(&self, index: usize) -> &[u8] {
        let Some(end) = self.ends.get(index) else { return &[] };
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.text[start..*end]
    }
}

fn count_lines(bytes: &[u8]) -> u64 {
    memchr_iter(b'\n', bytes).count() as u64
}

fn wrong_columns(expected: usize, found: impl std::fmt::Display, row: &Row) -> String {
    let quote = if row.spanning.is_some() { "; is the quote that opens here left open?" } else { "" };
    format!("expected {expected} columns, found {found}{quote}")
}

/// What ends a field.
enum End {
    Comma,
    Row,
}

impl<R: BufRead> Rows<R> {
    pub fn new(input: R) -> Self {
        Self {
            input,
            raw: Vec::new(),
            at: 0,
            line: 1,
            is_first: true,
            is_within_line: false,
            field_max: FIELD_MAX,
            columns: None,
        }
    }

    /// Lines that are in the rows so far.
    pub fn lines(&self) -> u64 {
        self.line - 1
    }

    /// Reads more. False at the end.
    fn fill(&mut self) -> Result<bool, ReadError> {
        if self.at >= self.raw.len() / 2 {
            self.raw.drain(..self.at);
            self.at = 0;
        }
        let chunk = self.input.fill_buf()?;
        let taken = chunk.len().min(CHUNK);
        self.raw.extend_from_slice(&chunk[..taken]);
        self.input.consume(taken);
        Ok(taken > 0)
    }

    /// The byte at this distance from `at`.
    fn byte(&mut self, index: usize) -> Result<Option<u8>, ReadError> {
        while self.raw.len() <= self.at + index {
            if !self.fill()? {
                return Ok(None);
            }
        }
        Ok(Some(self.raw[self.at + index]))
    }

    /// Where the first of the bytes that `find` looks for is, from `from` on; or where the input ends, or `most` bytes
    /// are over.
    fn find(
        &mut self,
        from: usize,
        most: usize,
        find: impl Fn(&[u8]) -> Option<usize>,
    ) -> Result<usize, ReadError> {
        let mut searched = from;
        loop {
            let unsearched = self.raw.get(self.at + searched..).unwrap_or_default();
            if let Some(found) = find(unsearched) {
                return Ok(searched + found);
            }
            searched += unsearched.len();
            if searched - from > most || !self.fill()? {
                return Ok(searched);
            }
        }
    }

    /// Takes bytes, and counts the lines that end in them.
    fn take(&mut self, bytes: usize) {
        self.line += count_lines(&self.raw[self.at..self.at + bytes]);
        self.at += bytes;
    }

    /// Goes to the end of the line that `index` is in, and tells what is wrong with its row.
    fn fault(&mut self, index: usize, what: String) -> ReadError {
        let before = &self.raw[self.at..self.at + index];
        let line = self.line + count_lines(before);
        let column = index - memrchr(b'\n', before).map_or(0, |end| end + 1) + 1;
        let rest = &self.raw[self.at + index..];
        let end = memchr2(b'\n', b'\r', rest);
        self.is_within_line = end.is_none();
        self.take(index + end.unwrap_or(rest.len()));
        ReadError::Bad { line, column: column as u64, what }
    }

    /// Goes to the beginning of the next row. False at the end.
    fn begin(&mut self) -> Result<bool, ReadError> {
        if std::mem::take(&mut self.is_first) {
            self.byte(BYTE_ORDER_MARK.len() - 1)?;
            if self.raw.starts_with(BYTE_ORDER_MARK) {
                self.at = BYTE_ORDER_MARK.len();
            }
        }
        while self.is_within_line {
            match memchr2(b'\n', b'\r', &self.raw[self.at..]) {
                Some(end) => {
                    self.at += end;
                    self.is_within_line = false;
                }
                None => {
                    self.at = self.raw.len();
                    if !self.fill()? {
                        return Ok(false);
                    }
                }
            }
        }
        loop {
            match self.byte(0)? {
                None => return Ok(false),
                Some(b'\n') => self.take(1),
                Some(b'\r') => {
                    self.line_end(0)?;
                }
                Some(_) => return Ok(true),
            }
        }
    }

    /// Takes the line end that is at `index`, with all before it: LF, CR LF, or CR alone, as old Macs have it.
    fn line_end(&mut self, index: usize) -> Result<(), ReadError> {
        let is_alone = self.byte(index)? == Some(b'\r') && self.byte(index + 1)? != Some(b'\n');
        if is_alone {
            self.take(index + 1);
            self.line += 1;
        } else {
            self.take(index + 1 + usize::from(self.raw[self.at + index] == b'\r'));
        }
        Ok(())
    }

    /// Reads the next row into `row`. False at the end.
    pub fn read(&mut self, row: &mut Row) -> Result<bool, ReadError> {
        row.text.clear();
        row.ends.clear();
        row.spanning = None;
        if !self.begin()? {
            return Ok(false);
        }
        row.line = self.line;
        let mut index = 0;
        let over = loop {
            let (end, at) = match self.byte(index)? {
                Some(b'"') => self.quoted(index, row)?,
                _ => self.plain(index, row)?,
            };
            row.ends.push(row.text.len());
            if at > LINE_MAX {
                let place = row.spanning.unwrap_or(index);
                return Err(self.fault(place, format!("a row of more than {LINE_MAX} bytes")));
            }
            // At once: an open quote may make a row of all that follows.
            let columns = self.columns.unwrap_or(COLUMNS_MAX);
            if row.len() > columns {
                let place = row.spanning.unwrap_or(index);
                return Err(self.fault(place, wrong_columns(columns, "more", row)));
            }
            match end {
                End::Comma => index = at + 1,
                End::Row => break at,
            }
        };
        if let Some(columns) = self.columns.filter(|columns| *columns != row.len()) {
            let what = wrong_columns(columns, row.len(), row);
            if let Some(quote) = row.spanning {
                return Err(self.fault(quote, what));
            }
            let line = self.line;
            self.end_row(over)?;
            return Err(ReadError::Bad { line, column: 1, what });
        }
        self.end_row(over)?;
        Ok(true)
    }

    /// Takes the row that ends at `index`, and its line end if it has one.
    fn end_row(&mut self, index: usize) -> Result<(), ReadError> {
        if self.byte(index)?.is_some() {
            return self.line_end(index);
        }
        self.take(index);
        self.line += 1;
        Ok(())
    }

    /// Adds the field that begins at `index`, and has no quotes. Gives where it ends.
    fn plain(&mut self, index: usize, row: &mut Row) -> Result<(End, usize), ReadError> {
        let max = self.field_max;
        let end = self.find(index, max, |bytes| memchr3(b',', b'\n', b'\r', bytes))?;
        if end - index > max {
            return Err(self.fault(index, format!("a field of more than {max} bytes")));
        }
        row.text.extend_from_slice(&self.raw[self.at + index..self.at + end]);
        let is_comma = self.byte(end)? == Some(b',');
        Ok((if is_comma { End::Comma } else { End::Row }, end))
    }

    /// Adds the field whose quote opens at `quote`. Gives where it ends, behind its closing quote.
    fn quoted(&mut self, quote: usize, row: &mut Row) -> Result<(End, usize), ReadError> {
        let max = self.field_max;
        let begin = row.text.len();
        let mut index = quote + 1;
        loop {
            let left = max.saturating_sub(row.text.len() - begin);
            let end = self.find(index, left, |bytes| memchr(b'"', bytes))?;
            if end - index > left {
                let what = format!(
                    "the field that is quoted from here on has more than {max} bytes; is the quote left open?"
                );
                return Err(self.fault(quote, what));
            }
            row.text.extend_from_slice(&self.raw[self.at + index..self.at + end]);
            if self.byte(end)?.is_none() {
                let what = "the quote that opens here is never closed; \
                            a field that begins with a quote ends with one, and has two for each in between";
                return Err(self.fault(quote, what.into()));
            }
            index = end + 1;
            match self.byte(index)? {
                Some(b'"') => {
                    row.text.push(b'"');
                    index += 1;
                }
                Some(b',') => return Ok((End::Comma, self.closed(quote, index, row))),
                Some(b'\n' | b'\r') | None => return Ok((End::Row, self.closed(quote, index, row))),
                Some(_) => {
                    let line_at = |end| self.line + count_lines(&self.raw[self.at..self.at + end]);
                    let at = match line_at(index) {
                        line if line == line_at(quote) => "in the same line".to_owned(),
                        line => format!("in line {line}"),
                    };
                    let what = format!(
                        "the quote that opens here is closed {at}, and neither a comma nor the line's end follows; \
                         is it left open? A quote within quotes is written twice"
                    );
                    return Err(self.fault(quote, what));
                }
            }
        }
    }

    fn closed(&self, quote: usize, end: usize, row: &mut Row) -> usize {
        if memchr2(b'\n', b'\r', &self.raw[self.at + quote..self.at + end]).is_some() {
            row.spanning.get_or_insert(quote);
        }
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Fields = Vec<String>;

    fn rows(text: &[u8], columns: Option<usize>, field_max: usize) -> Vec<Result<(u64, Fields), String>> {
        // Byte by byte, so that everything is cut everywhere.
        let mut rows = Rows::new(std::io::BufReader::with_capacity(1, text));
        (rows.columns, rows.field_max) = (columns, field_max);
        let mut row = Row::default();
        let mut found = Vec::new();
        loop {
            found.push(match rows.read(&mut row) {
                Ok(false) => return found,
                Ok(true) => {
                    let field = |index| String::from_utf8_lossy(row.field(index)).into_owned();
                    Ok((row.line, (0..row.len()).map(field).collect()))
                }
                Err(error) => Err(error.to_string()),
            });
            assert!(found.len() <= text.len() + 1, "it does not end");
        }
    }

    fn fields(text: &str) -> Vec<(u64, Fields)> {
        rows(text.as_bytes(), None, FIELD_MAX).into_iter().map(|row| row.unwrap()).collect()
    }

    fn is_bad(row: &Result<(u64, Fields), String>, place: &str, what: &str) -> bool {
        row.as_ref().is_err_and(|error| error.starts_with(place) && error.contains(what))
    }

    #[test]
    fn line_ends_quotes_and_blank_lines() {
        let row = |line, fields: &[&str]| (line, fields.iter().map(|field| field.to_string()).collect());
        assert_eq!(
            fields("a,b\r\n\n\"c\n\"\"d\"\"\",\r\r\n,5\"\n\"\"\ne,f"),
            [
                row(1, &["a", "b"]),
                row(3, &["c\n\"d\"", ""]),
                row(6, &["", "5\""]),
                row(7, &[""]),
                row(8, &["e", "f"])
            ]
        );
        assert_eq!(fields("a\rb\r"), [row(1, &["a"]), row(2, &["b"])]);
        assert_eq!(fields("\u{feff}\"a\"\n"), [row(1, &["a"])]);
        assert_eq!(fields(""), []);
        assert_eq!(fields("\u{feff}"), []);
    }

    #[test]
    fn an_open_quote_is_named_and_the_next_line_is_read() {
        let found = rows(b"a,b\nc,\"d\ne,f\ng,h\n", Some(2), FIELD_MAX);
        assert!(is_bad(&found[1], "2:3: ", "never closed"), "{found:?}");
        assert_eq!(
            found[2..],
            [Ok((3, vec!["e".into(), "f".into()])), Ok((4, vec!["g".into(), "h".into()]))]
        );
        // Closed by the opening quote of a later row.
        let found = rows(b"a,b\nc,\"d\ne,f\ng,\"h, i\"\n", Some(2), FIELD_MAX);
        assert!(is_bad(&found[1], "2:3: ", "closed in line 4"), "{found:?}");
        assert_eq!(found[3], Ok((4, vec!["g".into(), "h, i".into()])));
        // Closed as if all were well, but for the number of columns.
        let found = rows(b"a,b\nc,\"d\ne,\",f\ng,h\n", Some(2), FIELD_MAX);
        assert!(is_bad(&found[1], "2:3: ", "expected 2 columns, found more; is the quote"), "{found:?}");
        assert!(is_bad(&found[2], "3:3: ", "never closed"), "{found:?}");
        assert_eq!(found[3], Ok((4, vec!["g".into(), "h".into()])));
        // In one line.
        let found = rows(b"\"a \"b\" c\",d\ne,f\n", Some(2), FIELD_MAX);
        assert!(is_bad(&found[0], "1:1: ", "in the same line"), "{found:?}");
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn fields_are_bounded_with_quotes_and_without() {
        for (text, place) in [("a,b\nc,ddddd\ne,f\n", "2:3: "), ("a,b\nc,\"dd\ndd\"\ne,f\n", "2:3: ")] {
            let found = rows(text.as_bytes(), None, 4);
            assert!(is_bad(&found[1], place, "more than 4 bytes"), "{found:?}");
            assert_eq!(found.last().unwrap().as_ref().unwrap().1, ["e", "f"]);
        }
        assert_eq!(rows(b"dddd,\"dd\"\"d\"\n", None, 4).len(), 1);
        assert!(rows(b"dddd,\"dd\"\"d\"\n", None, 4)[0].is_ok());
    }

    /// Faults in one quote of many do not make it read the rest again and again.
    #[test]
    fn many_faults_take_no_longer_than_their_lines() {
        for line in ["\"\n", "a,\"b\n", "x\",\"\"\",\n", "\"\"\"\n", "x,\"\",\"y\n"] {
            let text = line.repeat(20_000);
            let began = std::time::Instant::now();
            rows(text.as_bytes(), Some(2), FIELD_MAX);
            assert!(began.elapsed().as_secs() < 20, "{line:?} took {:?}", began.elapsed());
        }
    }

    proptest! {
        #[test]
        fn what_is_well_formed_is_read_as_the_library_reads_it(
            table in prop::collection::vec(prop::collection::vec("[ab,\"\r\n]{0,6}", 2..4), 0..6))
        {
            let mut text = Vec::new();
            let mut writer = csv::WriterBuilder::new().flexible(true).from_writer(&mut text);
            for row in &table {
                writer.write_record(row).unwrap();
            }
            drop(writer);
            let found: Vec<Fields> = rows(&text, None, FIELD_MAX).into_iter().map(|row| row.unwrap().1).collect();
            prop_assert_eq!(found, table);
        }

        #[test]
        fn whatever_is_read_without_a_fault_the_library_reads_too(text in "[ab,\"\n]{0,40}") {
            let found = rows(text.as_bytes(), None, FIELD_MAX);
            if let Ok(found) = found.into_iter().collect::<Result<Vec<_>, _>>() {
                let mut library = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(text.as_bytes());
                let theirs: Vec<Fields> =
                    library.records().map(|row| row.unwrap().iter().map(str::to_owned).collect()).collect();
                prop_assert_eq!(found.into_iter().map(|row| row.1).collect::<Vec<_>>(), theirs);
            }
        }
    }
}
