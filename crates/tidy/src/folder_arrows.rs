//! Which folders inside the store's crate may use which other modules of it.
//!
//! Invariants:
//! 1. folders are what `FOLDERS` says, single low files what `LOW` says, and everything else in the crate
//!    is a top-level file, which may use everything, or holds its tests;
//! 2. a name that `lib.rs` re-exports counts as a use of the module that it comes from;
//! 3. who may use the engine has tests (`tests.rs`) that may use everything: they open a database.

use crate::tokens::{self, Token};
use crate::{File, Tree, Violation};
use std::collections::BTreeMap;

const SOURCE: &str = "crates/sapwood/src/";

/// The bottom: files that everyone may use, and that use only one another.
const LOW: &[&str] = &[
    "bytecode",
    "database_id",
    "entries",
    "error",
    "even_sample",
    "node",
    "operation",
    "source",
    "watchdog",
];

/// What everyone may use besides: a top-level file of plain settings, and limits that `lib.rs` itself defines.
const OPEN: &[&str] = &["options", "KEY_LEN_MAX"];

/// A folder, and what it may use besides itself and `LOW`. The last ones are work that the engine does: above it, and not above one
/// another.
const FOLDERS: &[(&str, &[&str])] = &[
    ("queue", &[]),
    ("wal", &[]),
    ("store", &[]),
    ("tree", &["store", "queue"]),
    ("iter", &["store", "queue", "tree", "engine", "database", "keyspace", "value"]),
    ("cleansing", &["store", "tree", "budget", "engine", "publish", "space", "stage_buffers"]),
    (
        "flush",
        &[
            "store",
            "queue",
            "tree",
            "advisor",
            "opq_share",
            "beside",
            "budget",
            "commit",
            "engine",
            "idle",
            "publish",
            "space",
            "stage_buffers",
        ],
    ),
];

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
        let opens_a_database = path.ends_with("/tests.rs") && above.contains(&"engine");
        let tokens = tokens::of(&file.text);
        for (line, used) in uses(&tokens) {
            let used = origins.get(used).copied().unwrap_or(used);
            let everyone = LOW.contains(&used) || OPEN.contains(&used);
            if used != module && !everyone && !opens_a_database && !above.contains(&used) {
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
        let text = "use crate::error::Error;\nuse crate::{store::{A, B},\n  database::C};\n// crate::x\nfn f() { crate::Y }";
        let found = whats("crates/sapwood/src/store/writer.rs", text);
        assert_eq!(
            found,
            [(3, "store uses crate::database".to_owned()), (5, "store uses crate::Y".to_owned())]
        );
        let found = whats("crates/sapwood/src/error.rs", "use crate::tree::T;\nuse crate::bytecode::B;");
        assert_eq!(found, [(1, "error uses crate::tree".to_owned())]);
        let found = whats("crates/sapwood/src/wal.rs", "use super::super::x;");
        assert_eq!(found.len(), 1);
        assert_eq!(whats("crates/sapwood/src/new/x.rs", "").len(), 1, "a folder must be in the table");
        for top in ["database.rs", "database/tests.rs", "database/tests/x.rs"] {
            assert_eq!(whats(&format!("crates/sapwood/src/{top}"), "use crate::tree::T;"), []);
        }
        assert_eq!(whats("crates/sapwood/src/wal/tests/x.rs", "use crate::tree::T;").len(), 1);
        assert_eq!(whats("crates/sapwood/src/flush/tests.rs", "use crate::database::D;"), []);
        assert_eq!(whats("crates/sapwood/src/store/tests.rs", "use crate::database::D;").len(), 1);
        let tree = Tree::of(&[
            (
                "crates/sapwood/src/lib.rs",
                "mod error; pub use error::{Error, Result}; pub use database::Database;",
            ),
            ("crates/sapwood/src/wal.rs", "fn f() -> crate::Result<crate::Database> {}"),
        ]);
        let found: Vec<_> = check(&tree).into_iter().map(|found| found.what).collect();
        assert_eq!(found, ["wal uses crate::database"]);
        assert_eq!(whats("crates/sapwood/src/tree/view.rs", "use crate::{queue, store::X, tree::Y};"), []);
    }
}
