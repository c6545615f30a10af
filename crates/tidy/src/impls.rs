//! The methods of a type lie in the type's own folder.
//!
//! Invariants:
//! 1. a type that is declared in `a/b.rs` may have inherent `impl` blocks in `a/b.rs`, in files beside it and in folders
//!    below `a`; one that is declared in `a.rs` in `a.rs` and below `a`;
//! 2. implementations of traits are free, and so are tests.

use crate::tokens;
use crate::{Tree, Violation};
use std::collections::BTreeMap;

const SOURCE: &str = "crates/sapwood/src/";

/// Reports inherent implementations of types of the store that are declared in another folder.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let files: Vec<_> = tree
        .ending(".rs")
        .filter_map(|file| Some((file.path.strip_prefix(SOURCE)?.trim_end_matches(".rs"), file)))
        .collect();
    let mut homes: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (module, file) in &files {
        // A file at the top owns the folder of its name; another belongs to the folder it lies in.
        let home = module.rsplit_once('/').map_or(*module, |(folder, _)| folder);
        let tokens = tokens::of(&file.text);
        for at in 0..tokens.len() {
            if let ["struct" | "enum" | "union", name] = tokens::window(&tokens, at) {
                homes.entry(name.to_owned()).or_default().push(home.to_owned());
            }
        }
    }
    let mut found = Vec::new();
    for (module, file) in &files {
        let tokens = tokens::of(&file.text);
        for at in 0..tokens.len() {
            if tokens[at].text != "impl" || (at > 0 && !is_start_of_item(&tokens[at - 1].text)) {
                continue;
            }
            let Some(name) = inherent(&tokens, at) else { continue };
            let Some(homes) = homes.get(name) else { continue };
            let is_at_home = homes.iter().any(|home| {
                module
                    .strip_prefix(home.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            });
            if !is_at_home {
                found.push(Violation {
                    path: file.path.clone(),
                    line: tokens[at].line,
                    what: format!("methods of {name}, which is declared in {}", homes.join(", ")),
                    why: "a type whose methods lie everywhere is an object on which everything hangs",
                    remedy: "make it a function, or a type of its own with what it needs",
                });
            }
        }
    }
    found
}

fn is_start_of_item(before: &str) -> bool {
    matches!(before, "}" | "{" | ";" | "]")
}

/// The name of the type, if the `impl` at `at` is not of a trait.
fn inherent(tokens: &[tokens::Token], at: usize) -> Option<&str> {
    let (mut depth, mut name) = (0, None);
    for token in &tokens[at + 1..] {
        match token.text.as_str() {
            "<" => depth += 1,
            ">" => depth -= 1,
            "for" if depth == 0 => return None,
            "{" | "where" if depth == 0 => return name,
            text if depth == 0 && text.starts_with(|c: char| c.is_alphabetic()) => name = Some(text),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canary() {
        let tree = Tree::of(&[
            ("crates/sapwood/src/a.rs", "struct Top; struct Of<'a, T>(&'a T); fn f(x: impl Fn(Low)) {}"),
            ("crates/sapwood/src/a/b.rs", "impl Top {} impl<'a, T: Fn() -> u8> Of<'a, T> { fn x() {} }"),
            ("crates/sapwood/src/c/d.rs", "pub struct Low; impl Low {}"),
            ("crates/sapwood/src/c/e/f.rs", "impl Low {}"),
            ("crates/sapwood/src/c.rs", "use x::Top; impl std::fmt::Debug for Top {} impl Vec<Low> {}"),
            (
                "crates/sapwood/src/g.rs",
                "impl Top {}\n#[test] impl<T> Of<'_, T> where T: Copy {}\nimpl c::d::Low {}",
            ),
        ]);
        let found: Vec<_> = check(&tree).into_iter().map(|found| (found.path, found.line)).collect();
        let at = |line| ("crates/sapwood/src/g.rs".to_owned(), line);
        assert_eq!(found, [at(1), at(2), at(3)]);
    }
}
