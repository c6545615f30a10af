//! The tables of ARCHITECTURE.md in which the last column says what a row may use.
//!
//! Invariant: each row names rows above it only, so that no circle is allowed; what does not is reported.

use crate::{File, Violation};

/// The page that has them.
pub(crate) const PAGE: &str = "ARCHITECTURE.md";

/// What a row says.
pub(crate) struct Row<'a> {
    pub name: &'a str,
    /// In the page.
    pub line: usize,
    /// Names of rows above.
    pub may_use: Vec<&'a str>,
}

/// The rows of a table: lines that have a name.
pub(crate) fn rows<'a>(
    page: &'a File,
    name: impl Fn(&'a str) -> Option<&'a str>,
    why: &'static str,
    found: &mut Vec<Violation>,
) -> Vec<Row<'a>> {
    let mut rows: Vec<Row<'a>> = Vec::new();
    for (line, text) in page.lines() {
        let Some(name) = name(text) else { continue };
        let known: Vec<_> = rows.iter().map(|row| row.name).collect();
        let last = text.trim_end().trim_end_matches('|').rsplit('|').next().unwrap_or_default().trim();
        let may_use = match last {
            "all above" => known.clone(),
            some => some.split(',').map(str::trim).filter(|name| !name.is_empty()).collect(),
        };
        for other in may_use.iter().filter(|name| !known.contains(name)) {
            found.push(Violation {
                path: page.path.clone(),
                line,
                what: format!("{name} may use {other}, which is no row above it"),
                why,
                remedy: "name rows above, or put the row further down",
            });
        }
        rows.push(Row { name, line, may_use });
    }
    rows
}
