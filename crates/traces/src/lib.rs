//! Traces: operations on indexes in the order in which they happened, or were made up; what a step is, and how traces are written
//! down and read.
//!
//! ```text
//! Step ◀── plain, msr_csv ◀── steps ◀── lines ◀── a file
//! ```
//! Invariant: nothing holds a whole trace: decoders give one step after the other, in bounded memory.

pub mod error;
mod lines;
pub mod msr_csv;
pub mod plain;
mod steps;

pub use steps::Steps;

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Op {
    /// Is there before the trace begins.
    Load,
    /// Looks a key up.
    Search,
    /// Sets the value of a key.
    Insert,
    /// Sets the value of a key that is there.
    Update,
    /// Removes a key.
    Delete,
    /// Gives all records from one key up to another.
    Range,
}

impl Op {
    /// All of them.
    pub const ALL: [Op; 6] = [Op::Load, Op::Search, Op::Insert, Op::Update, Op::Delete, Op::Range];

    /// As [`plain`] has it.
    pub fn name(self) -> &'static str {
        match self {
            Op::Load => "load",
            Op::Search => "search",
            Op::Insert => "insert",
            Op::Update => "update",
            Op::Delete => "delete",
            Op::Range => "range",
        }
    }
}

/// One operation of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Which index it is for.
    pub tree: u8,
    /// What it does.
    pub op: Op,
    /// To which key; of a range the first.
    pub key: u64,
    /// The value of [`Op::Load`], [`Op::Insert`] and [`Op::Update`]; of a range the first key behind it; else 0.
    pub value: u64,
}

impl Step {
    /// A step.
    pub fn new(tree: u8, op: Op, key: u64, value: u64) -> Self {
        Self { tree, op, key, value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::Path;

    /// As the fuzzer asks it.
    fn any_bytes(input: &[u8]) {
        let steps: Vec<_> = plain::Reader::new(input).collect();
        assert!(steps.len() <= input.len());
        let mut again = Vec::new();
        steps.iter().flatten().for_each(|step| plain::write(&mut again, *step).unwrap());
        let read: Vec<_> = plain::Reader::new(&again[..]).map(Result::unwrap).collect();
        assert!(read.iter().eq(steps.iter().flatten()), "{}", String::from_utf8_lossy(&again));
        let mut reader = msr_csv::Reader::new(input);
        let mut volumes = reader.by_ref().map_while(Result::ok).map(|step| usize::from(step.tree)).max();
        assert!(volumes.take().is_none_or(|most| most < reader.volumes().len()));
        assert!(reader.next().is_none(), "it goes on behind an error");
    }

    #[test]
    fn the_corpus_is_decoded_or_refused() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
        for name in ["trace_plain", "trace_msr"] {
            let files: Vec<_> = std::fs::read_dir(corpus.join(name)).unwrap().flatten().collect();
            assert!(!files.is_empty(), "{name} has no corpus");
            files.iter().for_each(|file| any_bytes(&std::fs::read(file.path()).unwrap()));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(input in prop::collection::vec(any::<u8>(), 0..400)) {
            any_bytes(&input);
        }

        #[test]
        fn any_words_are_decoded_or_refused(
            words in prop::collection::vec("search|load|range|insert|delete|@[0-9]{1,4}|[0-9]{1,21}|Read|Write|,| |\n|#|-", 0..80),
        ) {
            any_bytes(words.join(" ").as_bytes());
            any_bytes(words.join(",").as_bytes());
        }
    }
}
