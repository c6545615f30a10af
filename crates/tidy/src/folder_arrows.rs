//! Which folders inside the store's crate may use which other modules of it.
//!
//! Invariants:
//! 1. folders are what `FOLDERS` says, single low files what `LOW` says, and everything else in the crate
//!    is a top-level file, which may use everything, or holds its tests;
//! 2. a name that `lib.rs` re-exports counts as a use of the module that it comes from;
//! 3. tests (`tests.rs`, `tests/`, `mod tests`) of folders that may use `db`, or are in `TESTED_FROM_ABOVE`, may use everything: they
//!    open a database.

use crate::tokens::{self, Token};
use crate::{File, Tree, Violation};
use std::collections::BTreeMap;

const SOURCE: &str = "crates/sapwood/src/";

/// The bottom: files that everyone may use, and that use only one another.
const LOW: &[&str] = &[
    "bounds",
    "bytecode",
    "clock",
    "database_id",
    "compression",
    "durability",
    "error",
    "estimator",
    "even_sample",
    "expiring_bytes",
    "expiry",
    "health",
    "latency",
    "lock_order",
    "merge",
    "merging",
    "operation",
    "random",
    "source",
    "spans",
    "answer",
    "pool",
    "value",
    "watchdog",
    "whole_file",
];

/// What everyone may use besides: limits that `lib.rs` itself defines.
const OPEN: &[&str] = &["KEY_LEN_MAX"];

/// A folder or single file, and what it may use besides itself and `LOW`. Each may use those above it in this list.
const FOLDERS: &[(&str, &[&str])] = &[
    ("opq", &[]),
    ("encryption", &[]),
    ("wal", &["encryption"]),
    ("conflict", &[]),
    ("storage", &["encryption"]),
    ("log_area", &["storage"]),
    ("cache", &["encryption", "storage", "log_area"]),
    ("version", &["encryption", "storage", "log_area", "cache"]),
    ("tree", &["storage", "log_area", "cache", "version", "opq"]),
    ("current_state", &["cache", "version", "tree", "opq"]),
    ("flow", &["conflict", "storage", "log_area", "cache", "version", "tree", "opq", "current_state"]),
    ("iter", &["cache", "opq", "tree", "current_state"]),
    ("reserve", &[]),
    ("followers", &["storage"]),
    ("publish", &["storage", "version", "current_state", "reserve", "followers"]),
    ("tree_writer", &["storage", "flow"]),
    ("space", &["wal", "storage", "version", "current_state", "reserve", "followers", "publish"]),
    (
        "commit",
        &[
            "conflict",
            "cache",
            "version",
            "opq",
            "wal",
            "current_state",
            "flow",
            "reserve",
            "followers",
            "publish",
            "space",
        ],
    ),
    (
        "background",
        &[
            "storage",
            "log_area",
            "cache",
            "version",
            "tree",
            "opq",
            "current_state",
            "flow",
            "publish",
            "tree_writer",
            "space",
            "commit",
        ],
    ),
    ("backup", &["encryption", "storage", "version", "wal", "commit"]),
    (
        "db",
        &[
            "encryption",
            "conflict",
            "storage",
            "log_area",
            "cache",
            "version",
            "tree",
            "opq",
            "wal",
            "current_state",
            "flow",
            "iter",
            "reserve",
            "followers",
            "publish",
            "tree_writer",
            "space",
            "commit",
            "background",
            "backup",
            "stats",
        ],
    ),
];

/// Folders below `db` whose tests open a database all the same, and so may use everything.
const TESTED_FROM_ABOVE: &[&str] =
    &["flow", "iter", "reserve", "publish", "space", "commit", "background", "backup"];

const WHY: &str =
    "arrows between folders go one way, so that each can be tested and replaced without those above it";

/// Reports uses of `crate::X` that the tables do not have.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    let root = tree.file(&format!("{SOURCE}lib.rs")).map(|file| tokens::of(&file.text)).unwrap_or_default();
    let origins = re_exports(&root);
    for file in tree.ending(".rs") {
        let Some(path) = file.path.strip_prefix(SOURCE) else { continue };
        let (module, in_folder) = match path.split_once('/') {
            Some((folder, rest)) => (folder, rest != "tests.rs" && !rest.starts_with("tests/")),
            None => (path.trim_end_matches(".rs"), false),
        };
        let folder = FOLDERS.iter().find(|(folder, _)| *folder == module);
        let above: &[&str] = match folder {
            Some((_, allowed)) => allowed,
            None if LOW.contains(&module) => &[],
            None if in_folder => {
                let remedy = "add it to FOLDERS or LOW in crates/tidy/src/folder_arrows.rs";
                found.push(violation(file, 1, format!("folder {module} is not in the table"), remedy));
                continue;
            }
            None => continue,
        };
        let may_open_a_database = above.contains(&"db") || TESTED_FROM_ABOVE.contains(&module);
        let tests = if may_open_a_database { file.lines_before_tests() } else { usize::MAX };
        let tokens = tokens::of(&file.text);
        for (line, used) in uses(&tokens) {
            let used = origins.get(used).copied().unwrap_or(used);
            let everyone = LOW.contains(&used) || OPEN.contains(&used);
            if used != module && !everyone && line <= tests && !above.contains(&used) {
                let remedy = "move what is needed to a lower file, or pass it in";
                found.push(violation(file, line, format!("{module} uses crate::{used}"), remedy));
            }
        }
        for (at, token) in tokens.iter().enumerate() {
            if tokens::window(&tokens, at) == ["super", ":", ":", "super"] {
                let what = "super::super hides which module is meant".to_owned();
                found.push(violation(file, token.line, what, "write crate:: and the module's name"));
            }
        }
    }
    found
}

fn violation(file: &File, line: usize, what: String, remedy: &'static str) -> Violation {
    Violation { path: file.path.clone(), line, what, why: WHY, remedy }
}

/// The first names of all paths that begin with `crate::`, also in braces.
fn uses(tokens: &[Token]) -> Vec<(usize, &str)> {
    let mut used = Vec::new();
    for at in 0..tokens.len() {
        if tokens::window(tokens, at) != ["crate", ":", ":"] {
            continue;
        }
        let Some(first) = tokens.get(at + 3) else { continue };
        if first.text != "{" {
            used.push((first.line, first.text.as_str()));
            continue;
        }
        let (mut depth, mut begins) = (1, true);
        for token in &tokens[at + 4..] {
            match token.text.as_str() {
                "{" => depth += 1,
                "}" => depth -= 1,
                "," if depth == 1 => begins = true,
                name if begins => {
                    used.push((token.line, name));
                    begins = false;
                }
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
    }
    used
}

/// By name, the module that `lib.rs` takes it from with `use module::…;`.
fn re_exports(root: &[Token]) -> BTreeMap<&str, &str> {
    let mut origins = BTreeMap::new();
    for at in 0..root.len() {
        if let ["use", module, ":", ":"] = tokens::window(root, at) {
            let names = root[at + 4..].iter().map(|token| token.text.as_str());
            origins.extend(names.take_while(|name| *name != ";").map(|name| (name, module)));
        }
    }
    origins
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whats(path: &str, text: &str) -> Vec<(usize, String)> {
        check(&Tree::of(&[(path, text)])).into_iter().map(|found| (found.line, found.what)).collect()
    }

    #[test]
    fn canary() {
        let text = "use crate::error::Error;\nuse crate::{version::{A, B},\n  error::C};\n// crate::x\nfn f() { crate::Y }";
        let found = whats("crates/sapwood/src/storage/writer.rs", text);
        assert_eq!(
            found,
            [(2, "storage uses crate::version".to_owned()), (5, "storage uses crate::Y".to_owned())]
        );
        let found = whats("crates/sapwood/src/error.rs", "use crate::tree::T;\nuse crate::bytecode::B;");
        assert_eq!(found, [(1, "error uses crate::tree".to_owned())]);
        let found = whats("crates/sapwood/src/wal.rs", "use super::super::x;");
        assert_eq!(found.len(), 1);
        assert_eq!(whats("crates/sapwood/src/new/x.rs", "").len(), 1, "a folder must be in the table");
        for top in ["stats.rs", "stats/tests.rs", "stats/tests/x.rs"] {
            assert_eq!(whats(&format!("crates/sapwood/src/{top}"), "use crate::tree::T;"), []);
        }
        assert_eq!(whats("crates/sapwood/src/wal/tests/x.rs", "use crate::tree::T;").len(), 1);
        assert_eq!(whats("crates/sapwood/src/background/flush/tests.rs", "use crate::db::D;"), []);
        assert_eq!(whats("crates/sapwood/src/storage/tests.rs", "use crate::db::D;").len(), 1);
        let tree = Tree::of(&[
            ("crates/sapwood/src/lib.rs", "mod error; pub use error::{Error, Result}; pub use db::Database;"),
            ("crates/sapwood/src/wal.rs", "fn f() -> crate::Result<crate::Database> {}"),
        ]);
        let found: Vec<_> = check(&tree).into_iter().map(|found| found.what).collect();
        assert_eq!(found, ["wal uses crate::db"]);
        assert_eq!(whats("crates/sapwood/src/tree/view.rs", "use crate::{opq, version::X, tree::Y};"), []);
    }
}
