//! A source file begins with what it is for.

use crate::{Tree, Violation};

/// Reports files below `src` that do not begin with `//!`.
pub fn check(tree: &Tree) -> Vec<Violation> {
    tree.ending(".rs")
        .filter(|file| file.folder().split('/').any(|part| part == "src") && !file.text.starts_with("//!"))
        .map(|file| Violation {
            path: file.path.clone(),
            line: 1,
            what: "does not begin with `//!`".to_owned(),
            why: "whoever opens it should learn first what it is for",
            remedy: "say in a few lines what it is for, and its invariants",
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canary() {
        let tree = Tree::of(&[
            ("src/a.rs", "//! A."),
            ("src/b/c.rs", "// C."),
            ("tests/d.rs", ""),
            ("src/e.rs", ""),
        ]);
        let found: Vec<_> = check(&tree).into_iter().map(|found| found.path).collect();
        assert_eq!(found, ["src/b/c.rs", "src/e.rs"]);
    }
}
