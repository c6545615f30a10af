//! The format that traces are kept in, and that people write by hand or with a few lines of script: text, one operation a
//! line.
//!
//! ```text
//! # a comment
//! load 17 170          the record is there when the trace begins; all of these come first
//! search 17
//! insert 18 180        without a value, the key is the value
//! update 18 181
//! delete 17
//! range 10 20          keys from 10 up to, not including, 20
//! insert 18 180 @3     of index 3; without @, of index 0
//! ```
//! `read` and `get` stand for search, `write` and `put` for insert, `scan` for range. Words are separated by blanks or tabs;
//! empty lines are skipped.
//!
//! Invariants:
//! 1. A step that was written reads back as it was.
//! 2. Loads come before all else, those of an index together and with ascending keys, so that an index can be built from them
//!    as they come.

use crate::error::{TraceError, beginning, number};
use crate::steps::{Format, Steps};
use crate::{Op, Step};
use std::io::{self, Write};

const EXPECTED: &str = "OPERATION KEY [VALUE or END] [@INDEX]";

/// Writes a step as a line.
///
/// # Errors
/// The output's.
pub fn write(output: &mut impl Write, step: Step) -> io::Result<()> {
    let Step { tree, op, key, value } = step;
    match op {
        Op::Search | Op::Delete => write!(output, "{} {key}", op.name())?,
        Op::Insert | Op::Update | Op::Load if value == key => write!(output, "{} {key}", op.name())?,
        Op::Insert | Op::Update | Op::Load | Op::Range => write!(output, "{} {key} {value}", op.name())?,
    }
    if tree > 0 {
        write!(output, " @{tree}")?;
    }
    output.write_all(b"\n")
}

/// Reads steps; ends behind the first error.
pub type Reader<R> = Steps<R, Loads>;

/// Where the loads are.
#[derive(Default)]
pub struct Loads {
    /// Index and key of the last one.
    last: Option<(u8, u64)>,
    seen: Vec<u8>,
    over: bool,
}

impl Loads {
    /// Whether this step may come here.
    fn admit(&mut self, step: Step) -> bool {
        if step.op != Op::Load {
            self.over = true;
            return true;
        }
        let is_next = match self.last {
            Some((tree, key)) if tree == step.tree => key < step.key,
            _ => !self.seen.contains(&step.tree),
        };
        if self.last.is_none_or(|(tree, _)| tree != step.tree) {
            self.seen.push(step.tree);
        }
        self.last = Some((step.tree, step.key));
        is_next && !self.over
    }
}

impl Format for Loads {
    const NAME: &'static str = "plain";

    fn step(&mut self, line: u64, text: &str) -> Result<Option<Step>, TraceError> {
        if text.is_empty() || text.starts_with('#') {
            return Ok(None);
        }
        let step = parse(line, text)?;
        match self.admit(step) {
            true => Ok(Some(step)),
            false => Err(TraceError::LoadOutOfPlace { line, key: step.key }),
        }
    }
}

fn parse(line: u64, text: &str) -> Result<Step, TraceError> {
    let mut words: Vec<&str> = text.split_ascii_whitespace().take(5).collect();
    let found = words.len();
    let op = match words[0] {
        "search" | "read" | "get" => Op::Search,
        "insert" | "write" | "put" => Op::Insert,
        "range" | "scan" => Op::Range,
        "load" => Op::Load,
        "update" => Op::Update,
        "delete" => Op::Delete,
        word => return Err(TraceError::NoOperation { line, word: beginning(word) }),
    };
    let mut tree = 0;
    if let Some(name) = words.last().and_then(|word| word.strip_prefix('@')) {
        tree = number(line, "the index behind @", name, u64::from(u8::MAX))? as u8;
        words.pop();
    }
    let at_most = if matches!(op, Op::Search | Op::Delete) { 2 } else { 3 };
    let at_least = if op == Op::Range { 3 } else { 2 };
    if !(at_least..=at_most).contains(&words.len()) {
        return Err(TraceError::Fields { line, found, expected: EXPECTED });
    }
    let key = number(line, "the key", words[1], u64::MAX)?;
    let value = match words.get(2) {
        Some(word) if op == Op::Range => number(line, "the end", word, u64::MAX)?,
        Some(word) => number(line, "the value", word, u64::MAX)?,
        None if at_most == 3 => key,
        None => 0,
    };
    if op == Op::Range && value <= key {
        return Err(TraceError::EmptyRange { line, key, end: value });
    }
    Ok(Step { tree, op, key, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        let steps: Vec<_> = Reader::new(text.as_bytes()).collect();
        match steps.last() {
            Some(Err(error)) => error.to_string(),
            _ => panic!("{text:?} was taken: {steps:?}"),
        }
    }

    #[test]
    fn all_that_is_written_reads_back() {
        let mut steps = vec![
            Step::new(0, Op::Load, 0, 5),
            Step::new(0, Op::Load, u64::MAX, u64::MAX),
            Step::new(255, Op::Load, 7, 0),
        ];
        for tree in [0, 1, 255] {
            for key in [0, 9, u64::MAX - 1] {
                steps.push(Step::new(tree, Op::Search, key, 0));
                steps.push(Step::new(tree, Op::Insert, key, u64::MAX));
                steps.push(Step::new(tree, Op::Update, key, key));
                steps.push(Step::new(tree, Op::Delete, key, 0));
                steps.push(Step::new(tree, Op::Range, key, key + 1));
            }
        }
        let mut text = b"# synthetic\n\n".to_vec();
        steps.iter().for_each(|step| write(&mut text, *step).unwrap());
        let read: Vec<_> = Reader::new(&text[..]).map(Result::unwrap).collect();
        assert_eq!(read, steps, "{}", String::from_utf8(text).unwrap());
    }

    #[test]
    fn what_people_write_is_understood() {
        let text = "\u{feff}get 1\r\n  put\t2  \n# done\nscan 1 3 @2\nwrite 4 9";
        let read: Vec<_> = Reader::new(text.as_bytes()).map(Result::unwrap).collect();
        let expected = [
            Step::new(0, Op::Search, 1, 0),
            Step::new(0, Op::Insert, 2, 2),
            Step::new(2, Op::Range, 1, 3),
            Step::new(0, Op::Insert, 4, 9),
        ];
        assert_eq!(read, expected);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line_and_a_remedy() {
        assert!(
            refused("search 1\nserach 2\n")
                .starts_with("line 2: there is no operation \"serach\"; write load, ")
        );
        assert!(refused("search\n").contains("1 fields; a line is `OPERATION KEY [VALUE or END] [@INDEX]`"));
        assert!(refused("search 1 2\n").contains("3 fields"));
        assert!(refused("insert 1 2 3 4 5\n").contains("5 fields"));
        assert!(refused("range 7\n").contains("2 fields"));
        assert!(
            refused("search -1\n")
                .contains("the key is \"-1\"; write a whole number from 0 to 18446744073709551615")
        );
        assert!(refused("insert 1 18446744073709551616\n").contains("the value is"));
        assert!(refused("search 1 @256\n").contains("whole number from 0 to 255"));
        assert!(refused("@1\n").contains("no operation"));
        assert!(refused("range 7 7\n").contains("write `range FIRST END` with END > FIRST"));
        assert!(refused("load 5\nload 5\n").starts_with("line 2: `load` of key 5 out of place"));
        assert!(refused("load 5\nsearch 5\nload 6\n").starts_with("line 3: "));
        assert!(refused("load 5\nload 1 @1\nload 6\n").starts_with("line 3: "));
        assert!(refused(&format!("# {}\n", "x".repeat(5000))).contains("longer than 4096 bytes"));
        let broken: Vec<_> = Reader::new(&b"search 1\nsearch \xff\nsearch 3\n"[..]).collect();
        assert!(
            broken.len() == 2 && broken[1].as_ref().unwrap_err().to_string().contains("line 2: not UTF-8")
        );
    }
}
