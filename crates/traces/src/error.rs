//! What can be wrong with a trace: where, what, and what to do about it.

/// See the module.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file cannot be read any further.
    #[error("behind line {line}: {error}; see that the file can be read")]
    Io {
        /// The last line that was read.
        line: u64,
        /// What the system says.
        error: std::io::Error,
    },
    /// A line is longer than any operation.
    #[error(
        "line {line}: longer than {most} bytes; this is no trace in the format {format}: choose another with --format"
    )]
    TooLong {
        /// The line.
        line: u64,
        /// Most bytes of a line.
        most: usize,
        /// What was expected.
        format: &'static str,
    },
    /// A line is not text.
    #[error("line {line}: not UTF-8; is the file compressed? Unpack it first")]
    NotText {
        /// The line.
        line: u64,
    },
    /// A word that names no operation.
    #[error(
        "line {line}: there is no operation {word:?}; write load, search, insert, update, delete or range (or read, get, write, put, scan)"
    )]
    NoOperation {
        /// The line.
        line: u64,
        /// The word.
        word: String,
    },
    /// The `Type` of a block request is neither of the two.
    #[error("line {line}: the type {word:?} is neither Read nor Write; correct or remove the line")]
    NoType {
        /// The line.
        line: u64,
        /// The word.
        word: String,
    },
    /// Something that should be a number is none, or is too large.
    #[error("line {line}: {field} is {text:?}; write a whole number from 0 to {most}")]
    NotANumber {
        /// The line.
        line: u64,
        /// Which field.
        field: &'static str,
        /// What is there.
        text: String,
        /// The largest that can be.
        most: u64,
    },
    /// A line has not all fields, or too many.
    #[error("line {line}: {found} fields; a line is `{expected}`")]
    Fields {
        /// The line.
        line: u64,
        /// How many there are.
        found: usize,
        /// What a line looks like.
        expected: &'static str,
    },
    /// A range that ends before it begins.
    #[error(
        "line {line}: the range ends at {end}, not behind its first key {key}; write `range FIRST END` with END > FIRST"
    )]
    EmptyRange {
        /// The line.
        line: u64,
        /// Its first key.
        key: u64,
        /// The first key behind it.
        end: u64,
    },
    /// More indexes than can be told apart.
    #[error("line {line}: more than 256 volumes; split the file by volume")]
    TooManyTrees {
        /// The line.
        line: u64,
    },
    /// Records that are there at the beginning do not come at the beginning, index by index, in order.
    #[error(
        "line {line}: `load` of key {key} out of place; loads come before all else, by index and ascending key: sort them, or use insert"
    )]
    LoadOutOfPlace {
        /// The line.
        line: u64,
        /// The key.
        key: u64,
    },
}

impl TraceError {
    /// The line that is wrong.
    pub fn line(&self) -> u64 {
        match self {
            TraceError::Io { line, .. }
            | TraceError::TooLong { line, .. }
            | TraceError::NotText { line }
            | TraceError::NoOperation { line, .. }
            | TraceError::NoType { line, .. }
            | TraceError::NotANumber { line, .. }
            | TraceError::Fields { line, .. }
            | TraceError::EmptyRange { line, .. }
            | TraceError::TooManyTrees { line }
            | TraceError::LoadOutOfPlace { line, .. } => *line,
        }
    }
}

/// At most the beginning of what was found, for messages.
pub(crate) fn beginning(text: &str) -> String {
    const SHOWN: usize = 40;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

pub(crate) fn number(line: u64, field: &'static str, text: &str, most: u64) -> Result<u64, TraceError> {
    let wrong = || TraceError::NotANumber { line, field, text: beginning(text), most };
    text.parse().ok().filter(|number| *number <= most).ok_or_else(wrong)
}
