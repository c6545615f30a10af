//! `unsafe` stays in the I/O layer, and where a measurement pays for it.

use crate::tokens;
use crate::{Tree, Violation};

/// Folders and files that may hold it. The queue's map: half the memory an entry of the best one without (docs/adr/0015-opq-tree.md);
/// the frames of nodes: a fifth less resident memory under many threads (docs/adr/0019-own-memory.md); the tests of both run under Miri. The arena's adapter to LMDB: its bindings call opening a memory map unsafe.
const ALLOWED: &[&str] = &[
    "crates/psync/src/",
    "crates/sapwood/src/opq/map",
    "crates/sapwood/src/storage/frames.rs",
    "crates/sapwood/src/storage/frames/lists.rs",
    // What a signal does is asked and said by calls alone.
    "crates/interrupt/src/ignored.rs",
    "crates/peers/src/allocator.rs",
    "crates/peers/src/store/lmdb.rs",
];

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
                why: "hardly anything needs it, and what is unsafe must be reviewed in few places",
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
