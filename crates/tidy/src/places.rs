//! Nothing in the repository knows of the machine on which it was written.

use crate::{Tree, Violation};

/// What betrays such a place (split, so that this file does not hold it).
const PLACES: &[&str] =
    &[concat!("../", "shared"), concat!("/wo", "rk/"), concat!("/tmp/", "wt"), concat!("/ro", "ot/")];

/// Reports mentions of such places in any text file.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for file in tree.files() {
        for (line, text) in file.lines() {
            for place in PLACES.iter().filter(|place| text.contains(**place)) {
                found.push(Violation {
                    path: file.path.clone(),
                    line,
                    what: format!("mentions {place}"),
                    why: "nobody else has that place",
                    remedy: "say it without the path, or with one relative to the repository",
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
        let text = PLACES.join("\n");
        let found = check(&Tree::of(&[("a.toml", &text), ("b.md", "../share work/ /tmp")]));
        assert_eq!(found.iter().map(|found| found.line).collect::<Vec<_>>(), [1, 2, 3, 4]);
    }
}
