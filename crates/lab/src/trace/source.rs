//! Traces in files, or from standard input: which format, and the steps one after the other.
//!
//! Invariant: nothing is read ahead of what is asked for, but a buffer.

use super::error::TraceError;
use super::{Step, msr_csv, plain};
use crate::failure::{Failure, Result};
use clap::ValueEnum;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

/// How a trace is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// One operation a line: `search 17`, `insert 17 170`, `range 10 20`, `delete 17`
    Plain,
    /// Block trace of the SNIA repository: Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime
    Msr,
}

/// A trace that is being read.
pub struct Source {
    name: PathBuf,
    steps: Box<dyn Iterator<Item = std::result::Result<Step, TraceError>>>,
}

impl Source {
    /// Opens a file, or standard input for `-`. Without a format, one whose name ends in .csv is a block trace.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(path: &Path, format: Option<Format>) -> Result<Self> {
        let is_csv = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("csv"));
        let guessed = if is_csv { Format::Msr } else { Format::Plain };
        let input: Box<dyn BufRead> = if path == Path::new("-") {
            Box::new(BufReader::new(io::stdin()))
        } else {
            let file = File::open(path).map_err(|error| Failure::at("open", path, error))?;
            Box::new(BufReader::with_capacity(1 << 16, file))
        };
        Ok(Self::over(path, format.unwrap_or(guessed), input))
    }

    fn over(name: &Path, format: Format, input: impl BufRead + 'static) -> Self {
        let steps: Box<dyn Iterator<Item = _>> = match format {
            Format::Plain => Box::new(plain::Reader::new(input)),
            Format::Msr => Box::new(msr_csv::Reader::new(input)),
        };
        Self { name: name.to_owned(), steps }
    }
}

impl Iterator for Source {
    type Item = Result<Step>;

    fn next(&mut self) -> Option<Result<Step>> {
        let named = |error: TraceError| match error {
            TraceError::Io { .. } => Failure::Io(format!("{}: {error}", self.name.display())),
            wrong => Failure::CannotRun(format!("{}: {wrong}", self.name.display())),
        };
        Some(self.steps.next()?.map_err(named))
    }
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "trace {}", self.name.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_and_the_line_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let told = |name: &str, text: &str, format| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            let failed = Source::open(&path, format).unwrap().find_map(Result::err);
            failed.map(|failure| (failure.code(), failure.to_string()))
        };
        assert!(told("a.csv", "1,a,0,Read,0,512,1\n", None).is_none());
        let (code, message) = told("a.csv", "search 7\n", None).unwrap();
        assert!(code == 1 && message.contains("a.csv: line 1: 1 fields"), "{message}");
        assert!(told("a.csv", "search 7\n", Some(Format::Plain)).is_none());
        assert!(told("b", "look 7\n", None).unwrap().1.contains("b: line 1: there is no operation \"look\""));
        assert_eq!(Source::open(&dir.path().join("none"), None).unwrap_err().code(), 3);
        // A directory opens, but cannot be read.
        let failed = Source::open(dir.path(), None).unwrap().find_map(Result::err).unwrap();
        assert_eq!(failed.code(), 3, "{failed}");
    }
}
