//! `unsafe` stays in the I/O layer. The one other place is no part of what users get: the arena's adapter to LMDB, whose
//! bindings call opening a memory map unsafe.

use crate::tokens;
use crate::{Tree, Violation};

/// Folders and files that may hold it.
const ALLOWED: &[&str] = &["crates/psync/src/", "crates/peers/src/store/lmdb.rs"];

/// Reports `unsafe` anywhere else.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for file in
        tree.ending(".rs").filter(|file| !ALLOWED.iter().any(|allowed| file.path.starts_with(allowed)))
    {
        for token in tokens::of(&file.text).into_iter().filter(|token| token.text == "unsafe") {
            found.push(Violation {
                path: file.path.clone(),
                line: token.line,
                what: "unsafe".to_owned(),
                why: "only the I/O layer needs it, and what is unsafe must be reviewed in one place",
                remedy: "do it safely, or extend ALLOWED in crates/tidy/src/unsafe_code.rs with good reason",
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canary() {
        let text = "// unsafe\nfn f() { assert!(unsafe { g() }, \"unsafe\") }";
        let tree = Tree::of(&[("crates/psync/src/a.rs", text), ("crates/sapwood/src/a.rs", text)]);
        let found: Vec<_> = check(&tree).into_iter().map(|found| (found.path, found.line)).collect();
        assert_eq!(found, [("crates/sapwood/src/a.rs".to_owned(), 2)]);
    }
}
