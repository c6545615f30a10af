//! Every source file is part of a crate.
//!
//! Invariant: a file counts as reached if a chain of `mod name;` leads to it from `lib.rs`, `main.rs` or a file in
//! `bin`, the way the compiler looks for it. `#[path]` is not followed: we do not use it.

use crate::tokens;
use crate::{File, Tree, Violation};
use std::collections::BTreeSet;

/// Reports files below `src` that no `mod` leads to.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let sources: Vec<&File> = tree
        .ending(".rs")
        .filter(|file| file.path.starts_with("crates/") && file.path.split('/').nth(2) == Some("src"))
        .collect();
    let mut reached: BTreeSet<&str> = BTreeSet::new();
    let mut todo: Vec<&File> = sources.iter().copied().filter(|file| is_root(&file.path)).collect();
    while let Some(file) = todo.pop() {
        if reached.insert(&file.path) {
            let declared = declared(file);
            todo.extend(sources.iter().filter(|file| declared.contains(&file.path)));
        }
    }
    sources
        .iter()
        .filter(|file| !reached.contains(file.path.as_str()))
        .map(|file| Violation {
            path: file.path.clone(),
            line: 1,
            what: "no `mod` declaration leads to this file".to_owned(),
            why: "a file that is not compiled looks alive and rots",
            remedy: "declare it, or remove it",
        })
        .collect()
}

fn is_root(path: &str) -> bool {
    let mut parts = path.split('/').skip(3);
    matches!(
        (parts.next(), parts.next(), parts.next()),
        (Some("lib.rs" | "main.rs"), None, _) | (Some("bin"), Some(_), None)
    )
}

/// The paths that the compiler would try for each `mod name;` of the file.
fn declared(file: &File) -> BTreeSet<String> {
    let owns_folder = is_root(&file.path) || file.path.ends_with("/mod.rs");
    let mut folder =
        if owns_folder { file.folder().to_owned() } else { file.path.trim_end_matches(".rs").to_owned() };
    let tokens = tokens::of(&file.text);
    // Names of inline modules around, with the depth of braces at which each ends.
    let mut inline: Vec<usize> = Vec::new();
    let (mut depth, mut paths) = (0, BTreeSet::new());
    for at in 0..tokens.len() {
        match tokens::window(&tokens, at) {
            ["mod", name, ";"] => {
                paths.insert(format!("{folder}/{name}.rs"));
                paths.insert(format!("{folder}/{name}/mod.rs"));
            }
            ["mod", name, "{"] => {
                inline.push(depth);
                folder = format!("{folder}/{name}");
            }
            ["{", ..] => depth += 1,
            ["}", ..] => {
                depth -= 1;
                if inline.last() == Some(&depth) {
                    inline.pop();
                    folder.truncate(folder.rfind('/').unwrap_or(0));
                }
            }
            _ => {}
        }
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canary() {
        let tree = Tree::of(&[
            (
                "crates/x/src/lib.rs",
                "pub mod a; mod inner { mod deep; } mod old { pub mod style; } // mod dead;",
            ),
            ("crates/x/src/a.rs", "mod b;"),
            ("crates/x/src/a/b.rs", ""),
            ("crates/x/src/inner/deep/mod.rs", "mod e;"),
            ("crates/x/src/inner/deep/e.rs", ""),
            ("crates/x/src/old/style.rs", ""),
            ("crates/x/src/bin/tool.rs", ""),
            ("crates/x/src/dead.rs", "mod b;"),
            ("crates/x/src/b.rs", ""),
            ("crates/x/tests/t.rs", ""),
        ]);
        let found: Vec<_> = check(&tree).into_iter().map(|found| found.path).collect();
        assert_eq!(found, ["crates/x/src/dead.rs", "crates/x/src/b.rs"]);
    }
}
