//! The store has no lock without a rank.
//!
//! Invariant: the names of locks that check no order come up in the table of ranks and in tests only.

use crate::tokens;
use crate::{Tree, Violation};

const RANKS: &str = "crates/sapwood/src/lock_order.rs";

/// Reports locks that are not ranked.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for file in tree.of_store().filter(|file| file.path != RANKS) {
        let tests = file.lines_before_tests();
        for token in tokens::of(&file.text) {
            if matches!(&*token.text, "Mutex" | "RwLock" | "ReentrantMutex") && token.line <= tests {
                found.push(Violation {
                    path: file.path.clone(),
                    line: token.line,
                    what: format!("{} without a rank", token.text),
                    why: "the order of locks stands in one table, and debug builds check it",
                    remedy: "use RankedMutex or RankedRwLock of lock_order.rs, with a line in its table",
                });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canary() {
        let tree = Tree::of(&[
            ("crates/sapwood/src/lock_order.rs", "use parking_lot::Mutex;"),
            (
                "crates/sapwood/src/a.rs",
                "use parking_lot::Mutex;\nstruct A(RankedMutex<u8>);\nfn f(a: std::sync::RwLock<u8>) {}\nmod tests {\nMutex::new(1)}",
            ),
            ("crates/sapwood/src/a/tests.rs", "Mutex::new(1)"),
            ("crates/psync/src/a.rs", "Mutex::new(1)"),
        ]);
        let found: Vec<_> = check(&tree).into_iter().map(|found| (found.path, found.line)).collect();
        let at = |line| ("crates/sapwood/src/a.rs".to_owned(), line);
        assert_eq!(found, [at(1), at(3)]);
    }
}
