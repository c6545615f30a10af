//! `docs/format.md` says of files on disk what the code says: the same drawings, and the same constants.
//!
//! Invariants:
//! 1. the code is the source: a drawing in the document is a copy of one in the comments of the file that the block's
//!    opening line names, and each drawing of a file in `DRAWN` has a copy;
//! 2. a constant in the document is a table row: a link to its file with its name as text, then its value as in the code;
//!    each constant of a file in `DRAWN` has a row, unless `NO_FORMAT` has it;
//! 3. constants of tests are not looked at.

use crate::tokens::{self, Token};
use crate::{File, Tree, Violation};
use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};
use std::collections::{BTreeMap, BTreeSet};

const DOCUMENT: &str = "docs/format.md";

/// Files that are about the format and nothing else.
const DRAWN: &[&str] = &[
    "crates/sapwood/src/version/current.rs",
    "crates/sapwood/src/version/manifest/format.rs",
    "crates/sapwood/src/version/edit.rs",
    "crates/sapwood/src/wal/record.rs",
    "crates/sapwood/src/operation.rs",
    "crates/sapwood/src/storage/node.rs",
    "crates/sapwood/src/backup/blob.rs",
    "crates/sapwood/src/backup/manifest.rs",
    "crates/sapwood/src/storage/compressed.rs",
    "crates/sapwood/src/storage/packed.rs",
    "crates/sapwood/src/storage/encrypted.rs",
    "crates/sapwood/src/encryption.rs",
    "crates/sapwood/src/encryption/keys_file.rs",
    "crates/typed/src/schema.rs",
    "crates/typed/src/key.rs",
    "crates/typed/src/value.rs",
];

/// Their constants that change nothing on disk: an estimate of lengths ends in this, or it is about memory, or says something of types.
const NO_FORMAT: &[&str] = &[
    "_IN_EDIT",
    "SAVES",
    "UNTRIED_MAX",
    "ONE",
    "LEAF_MAX",
    "SHARED_FROM",
    "IS_PREFIX_FREE",
    "CAPACITY",
    "GATHERED",
];

const WHY: &str = "whoever reads a database with the document at hand is misled";

/// Reports drawings and constants that differ between the document and the code, or are missing in one of them.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let Some(document) = tree.file(DOCUMENT) else {
        return vec![violation(DOCUMENT, 1, "it is missing".to_owned(), "write it")];
    };
    let mut found = Vec::new();
    let (drawings, rows) = read(document);
    let paths: BTreeSet<&str> =
        rows.iter().map(|row| row.path.as_str()).chain(DRAWN.iter().copied()).collect();
    let of_files: BTreeMap<&str, Vec<Constant>> =
        paths.into_iter().map(|path| (path, tree.file(path).map(constants).unwrap_or_default())).collect();
    for Drawing { line, path, text } in &drawings {
        let there = tree.file(path).map(drawn).unwrap_or_default();
        if !there.contains(text) {
            let what = format!("this drawing is not in the comments of {path}");
            found.push(violation(DOCUMENT, *line, what, "copy it from there"));
        }
    }
    for Row { line, path, name, value } in &rows {
        match of_files[path.as_str()].iter().find(|constant| constant.name == *name) {
            None => {
                let what = format!("{path} has no constant {name}");
                found.push(violation(DOCUMENT, *line, what, "name it as it is there"));
            }
            Some(constant) if constant.value != *value => {
                let what = format!("{name} is {} in {path}, not {value}", constant.value);
                found.push(violation(DOCUMENT, *line, what, "write the code's value, and say what it means"));
            }
            Some(_) => {}
        }
    }
    for path in DRAWN {
        let Some(file) = tree.file(path) else {
            found.push(violation(path, 1, "it is missing".to_owned(), "correct DRAWN in formats.rs"));
            continue;
        };
        for text in drawn(file) {
            if !drawings.iter().any(|drawing| drawing.path == *path && drawing.text == text) {
                let first = text.lines().next().unwrap_or_default().to_owned();
                let what = format!("the drawing that begins with {first:?} is not in {DOCUMENT}");
                found.push(violation(path, 1, what, "copy it to the document"));
            }
        }
        for Constant { line, name, .. } in &of_files[path] {
            let is_format = !NO_FORMAT.iter().any(|ending| name.ends_with(ending));
            if is_format && !rows.iter().any(|row| row.path == *path && row.name == *name) {
                let what = format!("the constant {name} is not in {DOCUMENT}");
                found.push(violation(
                    path,
                    *line,
                    what,
                    "give it a row, or add it to NO_FORMAT in formats.rs",
                ));
            }
        }
    }
    found
}

fn violation(path: &str, line: usize, what: String, remedy: &'static str) -> Violation {
    Violation { path: path.to_owned(), line, what, why: WHY, remedy }
}

/// A drawing in the document, and the file that it is taken from.
struct Drawing {
    line: usize,
    path: String,
    text: String,
}

/// A row of the document for a constant.
struct Row {
    line: usize,
    path: String,
    name: String,
    value: String,
}

/// Drawings and rows of the document. Other blocks and rows are passed over.
fn read(document: &File) -> (Vec<Drawing>, Vec<Row>) {
    let (mut drawings, mut rows) = (Vec::new(), Vec::new());
    let mut drawing: Option<Drawing> = None;
    let mut row: Option<Row> = None;
    let (mut in_link, mut cell) = (false, 0);
    for (event, range) in Parser::new_ext(&document.text, Options::ENABLE_TABLES).into_offset_iter() {
        let line = 1 + document.text[..range.start].matches('\n').count();
        match event {
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(info))) => {
                let path = info.strip_prefix("text ").map(|path| path.trim().to_owned());
                drawing = path.map(|path| Drawing { line, path, text: String::new() });
            }
            Event::Text(text) if drawing.is_some() => {
                if let Some(drawing) = &mut drawing {
                    drawing.text.push_str(&text);
                }
            }
            Event::End(TagEnd::CodeBlock) => {
                drawings.extend(
                    drawing.take().map(|drawing| Drawing { text: trimmed(&drawing.text), ..drawing }),
                );
            }
            Event::Start(Tag::TableRow) => (row, cell) = (None, 0),
            Event::Start(Tag::TableCell) => cell += 1,
            Event::Start(Tag::Link { dest_url, .. }) if cell == 1 => {
                in_link = true;
                let path = dest_url.trim_start_matches("../").to_owned();
                row = Some(Row { line, path, name: String::new(), value: String::new() });
            }
            Event::End(TagEnd::Link) => in_link = false,
            Event::Code(text) if in_link && cell == 1 => {
                if let Some(row) = &mut row {
                    row.name.push_str(&text);
                }
            }
            Event::Code(text) if cell == 2 => {
                if let Some(row) = &mut row
                    && row.value.is_empty()
                {
                    row.value = joined(&tokens::of(&text));
                }
            }
            Event::End(TagEnd::TableRow) => {
                rows.extend(row.take().filter(|row| !row.name.is_empty()));
                cell = 0;
            }
            _ => {}
        }
    }
    (drawings, rows)
}

/// The blocks of `text` in the comments of a file.
fn drawn(file: &File) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut block: Option<String> = None;
    for (_, line) in file.lines() {
        let line = line.trim_start();
        let Some(comment) = line.strip_prefix("//!").or_else(|| line.strip_prefix("///")) else {
            block = None;
            continue;
        };
        let comment = comment.strip_prefix(' ').unwrap_or(comment);
        match &mut block {
            None if comment.trim_end() == "```text" => block = Some(String::new()),
            None => {}
            Some(text) if comment.trim_end() == "```" => {
                blocks.push(trimmed(text));
                block = None;
            }
            Some(text) => {
                text.push_str(comment);
                text.push('\n');
            }
        }
    }
    blocks
}

/// Without blanks at the ends of lines.
fn trimmed(text: &str) -> String {
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

#[derive(Debug)]
struct Constant {
    line: usize,
    name: String,
    value: String,
}

/// The constants of a file, in front of its module of tests.
fn constants(file: &File) -> Vec<Constant> {
    let tokens = tokens::of(&file.text);
    let end = (0..tokens.len()).find(|at| tokens::window(&tokens, *at) == ["mod", "tests", "{"]);
    let tokens = &tokens[..end.unwrap_or(tokens.len())];
    let mut found = Vec::new();
    for at in 0..tokens.len() {
        let ["const", name, ":"] = tokens::window(tokens, at) else { continue };
        let Some(equals) = outer(tokens, at + 3, "=") else { continue };
        let Some(end) = outer(tokens, equals + 1, ";").filter(|_| name != "_") else { continue };
        let value = joined(&tokens[equals + 1..end]);
        found.push(Constant { line: tokens[at].line, name: name.to_owned(), value });
    }
    found
}

/// The first `mark` from `from` on that is in no bracket, before a bracket that opened earlier closes. In front of `=` is
/// a type, whose brackets `<` and `>` count too.
fn outer(tokens: &[Token], from: usize, mark: &str) -> Option<usize> {
    let mut depth = 0usize;
    for (at, token) in tokens.iter().enumerate().skip(from) {
        match token.text.as_str() {
            text if text == mark && depth == 0 => return Some(at),
            "(" | "[" | "{" => depth += 1,
            "<" if mark == "=" => depth += 1,
            ")" | "]" | "}" => depth = depth.checked_sub(1)?,
            ">" if mark == "=" => depth = depth.checked_sub(1)?,
            ";" if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

fn joined(tokens: &[Token]) -> String {
    let texts: Vec<_> = tokens.iter().map(|token| token.text.as_str()).collect();
    texts.join(" ").replace("< <", "<<")
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "//! ```text\n//! magic  \n//!   len\n//! ```\n\nconst LEN: usize = 64 << 20;\n\
        const MAGIC: [u8; 2] = *b\"Sa\";\nconst PIECE_IN_EDIT: u8 = 1;\nfn f<const N: usize>() { let a = [0; N]; }\n\
        const _: () = assert!(true);\n#[cfg(test)]\nmod tests {\n const OF_TEST: u8 = 1;\n}\n";

    fn check_with(document: &str, code: &str) -> Vec<(String, usize, String)> {
        let mut files: Vec<_> = DRAWN.iter().map(|path| (*path, "")).collect();
        files[0].1 = code;
        files.push((DOCUMENT, document));
        let found = check(&Tree::of(&files));
        found.into_iter().map(|found| (found.path, found.line, found.what)).collect()
    }

    fn document(drawing: &str, len: &str) -> String {
        let path = DRAWN[0];
        format!(
            "```text {path}\n{drawing}\n```\n\n```text\nanother\n```\n\n| constant | value |\n|---|---|\n\
             | [`LEN`](../{path}) | `{len}`: `64` MiB |\n| [`MAGIC`](../{path}) | `*b\"Sa\"` |\n| plain | `1` |\n"
        )
    }

    #[test]
    fn canary() {
        assert_eq!(check_with(&document("magic\n  len", "64<<20"), CODE), []);
        let whats = |found: Vec<(String, usize, String)>| -> Vec<_> {
            found.into_iter().map(|(path, line, what)| format!("{path}:{line}: {what}")).collect()
        };
        let path = DRAWN[0];
        let other = document("magic\n len", "32 << 20");
        let expected = [
            format!("docs/format.md:1: this drawing is not in the comments of {path}"),
            format!("docs/format.md:12: LEN is 64 << 20 in {path}, not 32 << 20"),
            format!("{path}:1: the drawing that begins with \"magic\" is not in docs/format.md"),
        ];
        assert_eq!(whats(check_with(&other, CODE)), expected);
        let more = CODE.replace("const LEN", "const NEW: u8 = 3;\nconst LENGTH");
        let expected = [
            format!("docs/format.md:12: {path} has no constant LEN"),
            format!("{path}:6: the constant NEW is not in docs/format.md"),
            format!("{path}:7: the constant LENGTH is not in docs/format.md"),
        ];
        assert_eq!(whats(check_with(&document("magic\n  len", "64 << 20"), &more)), expected);
    }
}
