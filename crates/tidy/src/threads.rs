//! The store starts no thread outside its pool.
//!
//! Invariant: `std::thread::Builder`, `spawn` and `scope` come up in the pool and in tests only.

use crate::tokens;
use crate::{Tree, Violation};

const POOL: &str = "crates/sapwood/src/pool.rs";

/// Reports starts of threads.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for file in tree.of_store().filter(|file| file.path != POOL) {
        let tests = file.lines_before_tests();
        let tokens = tokens::of(&file.text);
        for at in 0..tokens.len() {
            let ["thread", ":", ":", what] = tokens::window(&tokens, at) else { continue };
            let starts = matches!(what, "Builder" | "spawn" | "scope" | "{");
            if starts && tokens[at].line <= tests {
                found.push(Violation {
                    path: file.path.clone(),
                    line: tokens[at].line,
                    what: format!("thread::{what}"),
                    why: "the user says how many threads the store may have",
                    remedy: "begin the work on the pool",
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
            ("crates/sapwood/src/pool.rs", "std::thread::spawn(f)"),
            (
                "crates/sapwood/src/a.rs",
                "std::thread::spawn(f);\nuse std::thread::{Builder};\nthread::current();\nmod tests {\nstd::thread::scope(f)}",
            ),
            ("crates/sapwood/src/a/tests.rs", "std::thread::spawn(f)"),
            ("crates/psync/src/threads.rs", "std::thread::spawn(f)"),
        ]);
        let found: Vec<_> = check(&tree).into_iter().map(|found| (found.path, found.line)).collect();
        let at = |line| ("crates/sapwood/src/a.rs".to_owned(), line);
        assert_eq!(found, [at(1), at(2)]);
    }
}
