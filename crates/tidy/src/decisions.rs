//! Decision records in `docs/adr` have one form, so that a reader finds the figures of any of them.
//!
//! Invariants: a record is `NNNN-title.md`, begins with its number and title, has each of `PARTS`, and the list in
//! `README.md` beside it links to it.

use crate::{File, Tree, Violation};

const FOLDER: &str = "docs/adr";

/// What each record says.
const PARTS: &[&str] = &["**Context.**", "**Decision.**", "**Consequences.**"];

/// Reports records that lack something, or that the list lacks.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let list = tree.file("docs/adr/README.md").map_or("", |file| file.text.as_str());
    let records =
        tree.ending(".md").filter(|file| file.folder() == FOLDER && !file.path.ends_with("/README.md"));
    records.flat_map(|file| lacks(file, list)).collect()
}

fn lacks(file: &File, list: &str) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut add = |what: String, remedy| {
        let why = "records are found by number, and read for their figures";
        found.push(Violation { path: file.path.clone(), line: 1, what, why, remedy });
    };
    let name = file.path.rsplit('/').next().unwrap_or_default();
    let number = name.split_once('-').filter(|(digits, _)| digits.len() == 4);
    let Some(number) = number.and_then(|(digits, _)| digits.parse::<u32>().ok()) else {
        add(format!("{name:?} is no NNNN-title.md"), "give it the next number");
        return found;
    };
    if !file.text.starts_with(&format!("# {number}. ")) {
        add(format!("it does not begin with \"# {number}. \""), "begin with number and title");
    }
    for part in PARTS.iter().filter(|part| !file.text.contains(**part)) {
        add(format!("there is no {part}"), "say it");
    }
    if !list.contains(&format!("]({name})")) {
        add("the list does not link to it".to_owned(), "add it to docs/adr/README.md");
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canary() {
        let sound = "# 7. Title\n\n**Context.** a\n**Decision.** b\n**Consequences.** c\n";
        let tree = Tree::of(&[
            ("docs/adr/README.md", "[7. Title](0007-title.md) [8](0008-b.md) [9](9-c.md)"),
            ("docs/adr/0007-title.md", sound),
            ("docs/adr/0008-b.md", &sound.replace("**Decision.**", "Decision")),
            ("docs/adr/9-c.md", sound),
            ("docs/adr/0010-d.md", &sound.replace('7', "10")),
            ("docs/other.md", ""),
        ]);
        let found: Vec<_> = check(&tree).into_iter().map(|found| (found.path, found.what)).collect();
        let expected = [
            ("docs/adr/0008-b.md", "it does not begin with \"# 8. \""),
            ("docs/adr/0008-b.md", "there is no **Decision.**"),
            ("docs/adr/9-c.md", "\"9-c.md\" is no NNNN-title.md"),
            ("docs/adr/0010-d.md", "the list does not link to it"),
        ];
        let expected = expected.map(|(path, what)| (path.to_owned(), what.to_owned()));
        assert_eq!(found, expected);
    }
}
