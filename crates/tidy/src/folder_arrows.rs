//! Which folders inside the store's crate may use which other modules of it: as the table of ARCHITECTURE.md has it.
//!
//! Invariants:
//! 1. folders are the rows of the table, single low files the list behind it, and everything else in the crate is a top-level
//!    file, which may use everything, or holds its tests;
//! 2. each row names rows above it only, so that no circle is allowed;
//! 3. a name that `lib.rs` re-exports counts as a use of the module that it comes from;
//! 4. tests (`tests.rs`, `tests/`, `mod tests`) of folders that may use `db`, or are in `TESTED_FROM_ABOVE`, may use everything: they
//!    open a database.

use crate::architecture::{PAGE, rows};
use crate::tokens::{self, Token};
use crate::{File, Tree, Violation};
use std::collections::BTreeMap;

const SOURCE: &str = "crates/sapwood/src/";

/// How the list of low files begins.
const LOW_BEGINS: &str = "using only one another:";

/// What everyone may use besides: limits that `lib.rs` itself defines.
const OPEN: &[&str] = &["KEY_LEN_MAX"];

/// Folders below `db` whose tests open a database all the same, and so may use everything.
const TESTED_FROM_ABOVE: &[&str] =
    &["flow", "iter", "reserve", "publish", "space", "commit", "background", "backup", "stats"];

const WHY: &str =
    "arrows between folders go one way, so that each can be tested and replaced without those above it";

/// What ARCHITECTURE.md says of folders and files.
#[derive(Default)]
struct Table<'a> {
    /// A folder or single file, and what it may use besides itself and the low files; in order.
    folders: Vec<(&'a str, Vec<&'a str>)>,
    /// Files that everyone may use, and that use only one another.
    low: Vec<&'a str>,
}

impl<'a> Table<'a> {
    fn may_use(&self, module: &str) -> Option<&[&'a str]> {
        self.folders.iter().find(|(folder, _)| *folder == module).map(|(_, above)| above.as_slice())
    }

    /// Reads the page.
    fn read(page: &'a File, found: &mut Vec<Violation>) -> Self {
        let name = |line: &'a str| {
            let (folder, _) = line.strip_prefix("| [")?.split_once("](crates/sapwood/src/")?;
            Some(folder)
        };
        let rows = rows(page, name, WHY, found);
        let folders = rows.into_iter().map(|row| (row.name, row.may_use)).collect();
        let behind = page.text.split_once(LOW_BEGINS).map_or("", |(_, list)| list);
        let list = behind.split("\n\n").next().unwrap_or_default();
        // What is in parentheses tells of a file, and may name others.
        let outside = list.split('(').map(|part| part.rsplit(')').next().unwrap_or_default());
        Self { folders, low: outside.flat_map(|part| part.split('`').skip(1).step_by(2)).collect() }
    }
}

/// Reports uses of `crate::X` that the table does not have.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    let table = tree.file(PAGE).map(|page| Table::read(page, &mut found)).unwrap_or_default();
    let root = tree.file(&format!("{SOURCE}lib.rs")).map(|file| tokens::of(&file.text)).unwrap_or_default();
    let origins = re_exports(&root);
    for file in tree.ending(".rs") {
        let Some(path) = file.path.strip_prefix(SOURCE) else { continue };
        let (module, in_folder) = match path.split_once('/') {
            Some((folder, rest)) => (folder, rest != "tests.rs" && !rest.starts_with("tests/")),
            None => (path.trim_end_matches(".rs"), false),
        };
        let above: &[&str] = match table.may_use(module) {
            Some(allowed) => allowed,
            None if table.low.contains(&module) => &[],
            None if in_folder => {
                let remedy = "add it to the table of ARCHITECTURE.md, or to the list behind it";
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
            let everyone = table.low.contains(&used) || OPEN.contains(&used);
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

    const PAGE_TEXT: &str = "\
| folder | what it has | may use |
|---|---|---|
| [opq](crates/sapwood/src/opq.rs) | the queue, `x` | |
| [wal](crates/sapwood/src/wal.rs) | the log | |
| [storage](crates/sapwood/src/storage.rs) | nodes | |
| [version](crates/sapwood/src/version.rs) | where | storage |
| [tree](crates/sapwood/src/tree.rs) | lookup | storage, version, opq |
| [background](crates/sapwood/src/background.rs) | flush | all above |

No folder uses one below it. On top: `top`. At the bottom, used by all and
using only one another: `error` (of `reading`, of `writing`), `bytecode`
(integers), `value`.

`db` is no part of the list.
";

    fn of(files: &[(&str, &str)]) -> Vec<(usize, String)> {
        let mut files = files.to_vec();
        if !files.iter().any(|(path, _)| *path == PAGE) {
            files.push((PAGE, PAGE_TEXT));
        }
        check(&Tree::of(&files)).into_iter().map(|found| (found.line, found.what)).collect()
    }

    fn whats(path: &str, text: &str) -> Vec<(usize, String)> {
        of(&[(path, text)])
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
        for top in ["top.rs", "top/tests.rs", "top/tests/x.rs"] {
            assert_eq!(whats(&format!("crates/sapwood/src/{top}"), "use crate::tree::T;"), []);
        }
        assert_eq!(whats("crates/sapwood/src/wal/tests/x.rs", "use crate::tree::T;").len(), 1);
        assert_eq!(whats("crates/sapwood/src/background/flush/tests.rs", "use crate::db::D;"), []);
        assert_eq!(whats("crates/sapwood/src/storage/tests.rs", "use crate::db::D;").len(), 1);
        let found = of(&[
            ("crates/sapwood/src/lib.rs", "mod error; pub use error::{Error, Result}; pub use db::Database;"),
            ("crates/sapwood/src/wal.rs", "fn f() -> crate::Result<crate::Database> {}"),
        ]);
        assert_eq!(found, [(1, "wal uses crate::db".to_owned())]);
        assert_eq!(whats("crates/sapwood/src/tree/view.rs", "use crate::{opq, version::X, tree::Y};"), []);
        assert_eq!(whats("crates/sapwood/src/background/flush.rs", "use crate::{opq, wal, value};"), []);
        assert_eq!(whats("crates/sapwood/src/opq.rs", "use crate::{reading, x};").len(), 2);
    }

    #[test]
    fn the_table_has_no_circles() {
        let row = "| [opq](crates/sapwood/src/opq.rs) | the queue, `x` | ";
        let page = PAGE_TEXT.replace(row, &format!("{row}wal "));
        assert_eq!(of(&[(PAGE, &page)]), [(3, "opq may use wal, which is no row above it".to_owned())]);
        let found = of(&[("crates/sapwood/src/wal/x.rs", ""), (PAGE, "")]);
        assert_eq!(found, [(1, "folder wal is not in the table".to_owned())]);
    }
}
