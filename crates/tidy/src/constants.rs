//! Every number with a name says what it counts, and why it is so large.
//!
//! A constant of the store that is a number, a duration or a range of numbers has a doc comment with
//! 1. a unit: one of `UNITS`, a part (`1/16`), or a type that has one (`Duration`);
//! 2. a reason: one of `REASONS`, or what follows a colon, a semicolon or a bracket. A value without a digit follows from
//!    other constants, and needs none.
//!
//! Constants in a row, of which only the first has a comment, share it. No constant is exempt. The words cannot tell a good
//! reason from a bad one; they see to it that there is one to argue with.

use crate::{Tree, Violation};

/// Words that name what is counted.
const UNITS: &[&str] = &[
    "byte",
    "bytes",
    "kib",
    "mib",
    "gib",
    "ns",
    "ms",
    "percent",
    "hundred",
    "thousandths",
    "count",
    "counts",
    "number",
    "often",
    "times",
    "part",
    "fraction",
    "capacity",
    "bit",
    "bits",
    "level",
    "levels",
    "version",
    "format",
    "tag",
    "tags",
    "granules",
    "pages",
    "nodes",
    "leaves",
    "keys",
    "changes",
    "records",
    "blocks",
    "pieces",
    "runs",
    "groups",
    "batches",
    "portions",
    "threads",
    "operations",
    "addresses",
    "ids",
    "searches",
    "lengths",
    "copies",
    "slots",
    "buckets",
    "bucket",
    "keyspaces",
    "conflicts",
    "ingestions",
    "generations",
    "neighbouring",
    "entries",
    "places",
    "flushes",
    "children",
    "buffers",
    "batch",
];

/// Words with which a reason begins.
const REASONS: &[&str] = &[
    "because",
    "since",
    "so",
    "otherwise",
    "would",
    "must",
    "cannot",
    "need",
    "needs",
    "enough",
    "cost",
    "costs",
    "worth",
    "fit",
    "fits",
    "paper",
    "format",
    "measured",
];

/// Reports constants without a unit or a reason.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for file in tree.of_store() {
        let (mut comment, mut shared) = (String::new(), String::new());
        for (index, line) in file.text.lines().take(file.lines_before_tests()).enumerate() {
            let line = line.trim();
            if let Some(text) = line.strip_prefix("///") {
                comment += text;
                continue;
            }
            if line.starts_with("#[") {
                continue;
            }
            let comment = std::mem::take(&mut comment);
            let Some((name, kind, value)) = constant(line) else {
                shared.clear();
                continue;
            };
            if !comment.is_empty() {
                shared = comment;
            }
            let lacks = match (is_measured(kind), kind.contains("Duration") || has_unit(&shared)) {
                (false, _) => continue,
                (true, false) => "a unit",
                (true, true) if has_digit(value) && !has_reason(&shared) => "a reason",
                _ => continue,
            };
            found.push(Violation {
                path: file.path.clone(),
                line: index + 1,
                what: format!("{name} without {lacks}"),
                why: "a number without a reason can be neither defended nor changed",
                remedy: "say in its comment what it counts, and why it is not smaller or larger (tidy/src/constants.rs has the words)",
            });
        }
    }
    found
}

/// Name, type and value of the constant that is defined in a line.
fn constant(line: &str) -> Option<(&str, &str, &str)> {
    let at = line.strip_prefix("const ").or_else(|| {
        let (before, rest) = line.split_once("const ")?;
        (before.starts_with("pub") && before.len() <= "pub(in crate::x) ".len()).then_some(rest)
    })?;
    let (name, rest) = at.split_once(": ")?;
    let (kind, value) = rest.split_once(" =")?;
    (name != "_").then_some((name, kind, value))
}

/// Whether values of the type are numbers, ranges of numbers or durations.
fn is_measured(kind: &str) -> bool {
    const NUMBERS: &[&str] =
        &["u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "isize", "f32", "f64"];
    let first = kind.trim_start_matches('(').split([',', ')']).next().unwrap_or_default();
    NUMBERS.contains(&first) || kind.contains("Duration") || kind.contains("Range")
}

fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_alphanumeric()).map(str::to_lowercase)
}

fn has_unit(comment: &str) -> bool {
    comment.contains("1/") || comment.contains('%') || words(comment).any(|word| UNITS.contains(&&*word))
}

fn has_reason(comment: &str) -> bool {
    comment.contains([':', ';', '(']) || words(comment).any(|word| REASONS.contains(&&*word))
}

fn has_digit(value: &str) -> bool {
    value
        .split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .any(|token| token.starts_with(|c: char| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canary() {
        let text = "\
const BARE: usize = 7;
/// Some more, since there must be some.
pub const NO_UNIT: u64 = 7;
/// Bytes of a buffer.
pub(super) const NO_REASON: std::ops::RangeInclusive<u64> = 1..=7;
/// How long it waits.
const ALSO_NO_REASON: Duration = Duration::from_secs(7);
const SHARES_IT: (usize, usize) = (7, 8);

const ALONE_AGAIN: u8 = 1;
/// Bytes of a buffer: less would be too few.
const GOOD: usize = 7;
const SHARES: usize = 8;
/// Bytes of two.
const FOLLOWS: usize = GOOD + SHARES;
/// This part (1/4), or the rest would be too small.
const PART: u64 = 4;
/// No number.
const NAME: &str = \"7\";
const _: () = assert!(GOOD == 7);
fn f(a: *const u8) {}
mod tests {
const IN_TESTS: usize = 7;
";
        let tree = Tree::of(&[
            ("crates/sapwood/src/a.rs", text),
            ("crates/sapwood/src/a/tests.rs", "const A: u8 = 1;"),
            ("crates/psync/src/a.rs", "const A: u8 = 1;"),
        ]);
        let found: Vec<_> = check(&tree).into_iter().map(|found| (found.line, found.what)).collect();
        let expected = [
            (1, "BARE without a unit"),
            (3, "NO_UNIT without a unit"),
            (5, "NO_REASON without a reason"),
            (7, "ALSO_NO_REASON without a reason"),
            (8, "SHARES_IT without a unit"),
            (10, "ALONE_AGAIN without a unit"),
        ];
        assert_eq!(found, expected.map(|(line, what)| (line, what.to_owned())));
    }
}
