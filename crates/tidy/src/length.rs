//! Files are short enough to read in one go.

use crate::{Tree, Violation};

/// Lines of a source file.
const LINES_MAX: usize = 700;

/// Lines of a file in a `tests` folder.
const TEST_LINES_MAX: usize = 1000;

/// Lines of the README: two screens.
const README_LINES_MAX: usize = 120;

/// Reports longer files.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let sources = tree.ending(".rs").map(|file| {
        let tests = file.folder().split('/').any(|part| part == "tests");
        (file, if tests { TEST_LINES_MAX } else { LINES_MAX })
    });
    sources
        .chain(tree.file("README.md").map(|file| (file, README_LINES_MAX)))
        .filter_map(|(file, max)| {
            let lines = file.lines().count();
            (lines > max).then(|| Violation {
                path: file.path.clone(),
                line: max + 1,
                what: format!("{lines} lines, more than {max}"),
                why: "a file this long holds more than one idea",
                remedy: "find the second idea and give it a file of its own",
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canary() {
        let (fits, long) = ("x\n".repeat(700), "x\n".repeat(701));
        let longest = "x\n".repeat(1001);
        let readme = "x\n".repeat(121);
        let tree = Tree::of(&[
            ("src/a.rs", &fits),
            ("src/b.rs", &long),
            ("tests/c.rs", &long),
            ("tests/d.rs", &longest),
            ("docs/README.md", &readme),
            ("README.md", &readme),
        ]);
        let found: Vec<_> = check(&tree).into_iter().map(|found| (found.path, found.line)).collect();
        assert_eq!(
            found,
            [("src/b.rs".to_owned(), 701), ("tests/d.rs".to_owned(), 1001), ("README.md".to_owned(), 121),]
        );
    }
}
