//! Each public item of the crates that users program with has an example, which runs as a test.
//!
//! Invariants:
//! 1. what `lib.rs` re-exports is public, and so are the public methods of such types, and the methods of such traits;
//! 2. the documentation of each, or of the type whose constant or field it is, has a block of code. Implementations of traits need none.
//!
//! It relies on the form that rustfmt gives: a block ends with a brace below its beginning.

use crate::{File, Tree, Violation};
use std::collections::BTreeSet;

/// Where the sources of these crates lie.
const CRATES: &[&str] = &["crates/sapwood/src/", "crates/typed/src/"];

/// Reports public items without an example.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for source in CRATES {
        let Some(lib) = tree.file(&format!("{source}lib.rs")) else { continue };
        let names = exported(&lib.text);
        let files = tree.ending(".rs").filter(|file| file.path.starts_with(source) && !file.is_of_tests());
        found.extend(files.flat_map(|file| without_example(file, &names)));
    }
    found
}

/// The names that `pub use` statements export.
fn exported(lib: &str) -> BTreeSet<&str> {
    let uses = lib.split("pub use ").skip(1).filter_map(|rest| rest.split(';').next());
    uses.flat_map(|path| {
        let names = path.split_once('{').map_or(path, |(_, names)| names);
        names.split([',', '}', ' ', '\n']).filter_map(|name| name.rsplit("::").next())
    })
    .filter(|name| !name.is_empty())
    .collect()
}

/// What the lines between this one and the braces' end belong to.
#[derive(Clone, Copy)]
enum Within<'f> {
    Nothing,
    Methods(&'f str),
    Trait(&'f str),
}

fn without_example(file: &File, names: &BTreeSet<&str>) -> Vec<Violation> {
    let lines: Vec<&str> = file.text.lines().take(file.lines_before_tests()).collect();
    // Another type of the same name.
    let is_other = |name: &str| {
        let mut declared = lines
            .iter()
            .filter(|line| line.starts_with("pub("))
            .filter_map(|line| line.split_once(") struct "));
        declared.any(|(_, rest)| self::name(rest) == name)
    };
    let own = |name: &&str| !is_other(name);
    let names: &BTreeSet<&str> = &names.iter().copied().filter(own).collect();
    let mut found = Vec::new();
    let mut within = Within::Nothing;
    for (index, line) in lines.iter().enumerate() {
        let item = match within {
            Within::Nothing => {
                top_level(line).filter(|(_, name)| names.contains(name)).map(|(_, name)| name.to_owned())
            }
            Within::Methods(of) => method(line.strip_prefix("    pub ")).map(|name| format!("{of}::{name}")),
            Within::Trait(of) => method(line.strip_prefix("    ")).map(|name| format!("{of}::{name}")),
        };
        if let Some(item) = item
            && !has_example(&lines[..index])
        {
            found.push(Violation {
                path: file.path.clone(),
                line: index + 1,
                what: format!("{item} has no example"),
                why: "a public item is learned from its example, which shows that it works",
                remedy: "give its documentation one that runs",
            });
        }
        if *line == "}" {
            within = Within::Nothing;
        } else if let Some(of) = inherent(line).filter(|of| names.contains(of)) {
            within = Within::Methods(of);
        } else if let Some(("trait", of)) = top_level(line).filter(|(_, of)| names.contains(of)) {
            within = Within::Trait(of);
        }
    }
    found
}

/// The name that a word begins with.
fn name(text: &str) -> &str {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()
}

/// Kind and name of a public item that is declared at the top of a file.
fn top_level(line: &str) -> Option<(&str, &str)> {
    let (kind, rest) = line.strip_prefix("pub ")?.split_once(' ')?;
    matches!(kind, "struct" | "enum" | "trait" | "fn").then(|| (kind, name(rest)))
}

/// The type of an inherent `impl`.
fn inherent(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("impl")?;
    if line.contains(" for ") {
        return None;
    }
    // Behind the generic parameters, if there are any.
    let mut depth = 0;
    let end = rest.char_indices().find_map(|(at, c)| {
        match c {
            '<' => depth += 1,
            '>' if !rest[..at].ends_with('-') => depth -= 1,
            ' ' if depth == 0 => return Some(at),
            _ => {}
        }
        None
    })?;
    Some(name(&rest[end + 1..]))
}

/// The name of a method that is declared in a line.
fn method(line: Option<&str>) -> Option<&str> {
    let mut rest = line?;
    for word in ["const ", "async "] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    rest.strip_prefix("fn ").map(name)
}

/// Whether the documentation at the end of these lines has an example, or is hidden.
fn has_example(before: &[&str]) -> bool {
    let doc = before.iter().rev().take_while(|line| {
        let line = line.trim_start();
        line.starts_with("///") || line.starts_with("#[") || line.starts_with(')')
    });
    doc.into_iter().any(|line| line.contains("/// ```") || line.contains("#[doc(hidden)]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canary() {
        let lib = "pub use a::{A, B,\n    C};\npub use d::D;\n";
        let other = "//! Another A.\npub(super) struct A;\n\nimpl A {\n    pub fn any() {}\n}\n";
        let source = "\
/// Good.
///
/// ```
/// ```
pub struct A;

/// Bad.
#[derive(Debug)]
pub enum B {}

/// Not public.
pub struct X;

impl<T: Fn() -> u8> A {
    /// Good.
    /// ```
    /// ```
    #[must_use]
    pub fn good() {}

    /// Bad.
    pub async fn bad() {}

    fn private() {}
}

impl Clone for A {
    fn clone() {}
}

impl X {
    pub fn any() {}
}

/// Good.
/// ```
/// ```
pub trait D {
    /// Bad.
    fn bad();

    #[doc(hidden)]
    fn hidden();
}

/// Bad.
pub fn C() {}

mod tests {
    /// Bad, but of tests.
    pub fn B() {}
}
";
        let tree = Tree::of(&[
            ("crates/typed/src/lib.rs", lib),
            ("crates/typed/src/a.rs", source),
            ("crates/typed/src/b.rs", other),
        ]);
        let found: Vec<_> = check(&tree).into_iter().map(|found| (found.line, found.what)).collect();
        let expected = [(9, "B"), (22, "A::bad"), (40, "D::bad"), (47, "C")];
        assert_eq!(found, expected.map(|(line, item)| (line, format!("{item} has no example"))));
    }
}
