//! What a rule answers.

use std::fmt;

/// One place that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The file, from the root of the repository.
    pub path: String,
    /// Its line, from 1.
    pub line: usize,
    /// What is there.
    pub what: String,
    /// Why that is not wanted.
    pub why: &'static str,
    /// What to do about it.
    pub remedy: &'static str,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, line, what, why, remedy } = self;
        write!(f, "{path}:{line}: {what}\n    why: {why}\n    do:  {remedy}")
    }
}

/// Fails a test with all that was found.
///
/// # Panics
/// If anything was found.
pub fn report(violations: &[Violation]) {
    let lines: Vec<String> = violations.iter().map(ToString::to_string).collect();
    assert!(lines.is_empty(), "{} broken house rule(s):\n{}", lines.len(), lines.join("\n"));
}
