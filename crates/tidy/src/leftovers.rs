//! What work leaves behind: marks to come back to, code in comments, files of merges and editors, names that say
//! nothing.

use crate::tokens;
use crate::{Tree, Violation};

/// Macros that have no place in finished work.
const MACROS: &[&str] = &["todo", "dbg", "unimplemented"];

/// Words in comments that mean unfinished work (split, so that this file does not hold them).
const MARKS: &[&str] = &[concat!("FIX", "ME"), concat!("XX", "X"), concat!("TO", "DO")];

/// Endings of files that tools leave.
const ENDINGS: &[&str] = &[".orig", ".rej", ".bak", ".swp", "~"];

/// Names of files and folders that say nothing of what is in them.
const EMPTY_NAMES: &[&str] = &["common", "utils", "util", "shared", "helpers", "helper", "misc"];

/// Reports leftovers.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut add = |path: &str, line, what, why, remedy| {
        found.push(Violation { path: path.to_owned(), line, what, why, remedy });
    };
    for file in tree.files() {
        let path = file.path.as_str();
        if ENDINGS.iter().any(|ending| path.ends_with(ending)) {
            add(path, 1, "left by a merge or an editor".to_owned(), "it is no part of the work", "remove it");
        }
        if !path.ends_with(".rs") {
            continue;
        }
        for part in path.split('/') {
            let name = part.trim_end_matches(".rs");
            if EMPTY_NAMES.contains(&name) {
                let why = "such a name says nothing, so anything ends up in it";
                add(path, 1, format!("{name:?} is no name"), why, "name it for the idea in it, or split it");
            }
        }
        let tokens = tokens::of(&file.text);
        for (at, token) in tokens.iter().enumerate() {
            if let [name, "!", "(" | "[" | "{"] = tokens::window(&tokens, at)
                && MACROS.contains(&name)
            {
                add(
                    path,
                    token.line,
                    format!("{name}! is there"),
                    "it is for work in progress",
                    "finish or remove it",
                );
            }
        }
        for (line, text) in file.lines() {
            for mark in MARKS.iter().filter(|mark| has_word(text, mark)) {
                add(
                    path,
                    line,
                    format!("{mark} is there"),
                    "nobody comes back to it",
                    "do it, or open an issue",
                );
            }
            if text.trim_start().strip_prefix("//").is_some_and(is_code) {
                let what = format!("commented-out code: {}", text.trim());
                add(path, line, what, "nobody knows whether it still holds; git keeps the old", "remove it");
            }
        }
    }
    found
}

fn has_word(text: &str, word: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|part| part == word)
}

/// Whether what follows `//` looks like code and not like prose.
fn is_code(comment: &str) -> bool {
    if comment.starts_with(['/', '!']) {
        return false;
    }
    let code = comment.trim();
    let begins = |starts: &[&str]| starts.iter().any(|start| code.starts_with(start));
    let ends = |ends: &[&str]| ends.iter().any(|end| code.ends_with(end));
    (begins(&["let ", "use ", "return ", "mod ", "pub ", "self.", "const "]) && ends(&[";", "{"]))
        || (begins(&["fn ", "pub fn ", "struct ", "enum ", "impl ", "if ", "for ", "while ", "match "])
            && ends(&["{"]))
        || (begins(&["#[", "#!["]) && ends(&["]"]))
        || matches!(code, "}" | "};" | "})" | "});" | "} else {")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canary() {
        let lines = [
            "fn f() { todo!() }",
            "let _ = (\"todo!()\", dbg!(1));",
            concat!("// FIX", "ME later"),
            concat!("// ", "let a = 1;"),
            concat!("//  ", "   }"),
            concat!("    // ", "fn g() {"),
            "// let us see: prose; with marks",
            "// use the older one",
            "/// let a = 1;",
        ];
        let tree = Tree::of(&[("crates/x/src/a.rs", &lines.join("\n"))]);
        let found: Vec<_> = check(&tree).into_iter().map(|found| found.line).collect();
        assert_eq!(found, [1, 2, 3, 4, 5, 6]);
        let tree = Tree::of(&[
            ("a.md.orig", ""),
            ("tests/common/mod.rs", ""),
            ("src/utils.rs", ""),
            ("utils.md", ""),
        ]);
        assert_eq!(check(&tree).len(), 3);
    }
}
