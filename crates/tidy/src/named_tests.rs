//! A test that a document names is there.
//!
//! Invariant: a name is what stands in backticks and has at least `WORDS` words joined by underscores, behind any path. Shorter
//! ones may be fields, files or options.

use crate::{Tree, Violation};
use std::collections::BTreeSet;

/// Words of a name, at least: no field or option has as many.
const WORDS: usize = 5;
/// Records of what was, with the names of their time.
const RECORDS: &str = "research/";

/// Reports names of functions that are not in the code.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let code = tree.ending(".rs").flat_map(|file| file.text.split("fn ").skip(1)).map(first_name);
    let code: BTreeSet<_> = code.collect();
    let mut found = Vec::new();
    for file in tree.ending(".md").filter(|file| !file.path.starts_with(RECORDS)) {
        for (index, line) in file.text.lines().enumerate() {
            for quoted in line.split('`').skip(1).step_by(2) {
                let name = quoted.rsplit("::").next().unwrap_or_default();
                if is_long(name) && !code.contains(name) {
                    found.push(Violation {
                        path: file.path.clone(),
                        line: index + 1,
                        what: format!("`{name}`, of which there is no function"),
                        why: "a document that names a test of old says that something is tested which may not be",
                        remedy: "name the test as it is called now, or say what became of it",
                    });
                }
            }
        }
    }
    found
}

fn first_name(text: &str) -> &str {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or_default()
}

fn is_long(name: &str) -> bool {
    let is_of_a_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    name.chars().all(is_of_a_name) && name.split('_').filter(|word| !word.is_empty()).count() >= WORDS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canary() {
        let document = "`a_test_that_is_there`, `iter::tests::a_test_that_has_gone` and `another_one_that_has_gone`,\n\
            but `a_short_one`, `a_name_of_a file` and `A_NAME_OF_A_CONSTANT` are none";
        let tree = Tree::of(&[
            ("docs/testing.md", document),
            ("research/docs/notebook.md", document),
            ("crates/a/src/lib.rs", "#[test]\nfn a_test_that_is_there() {}\n// another_one_that_has_gone"),
        ]);
        let found: Vec<_> = check(&tree).into_iter().map(|found| (found.line, found.what)).collect();
        let gone = |name: &str| (1, format!("`{name}`, of which there is no function"));
        assert_eq!(found, [gone("a_test_that_has_gone"), gone("another_one_that_has_gone")]);
    }
}
