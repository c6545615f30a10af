//! What documents point at is there: files, headings, and targets of the Makefile.
//!
//! Invariant: headings are called as GitHub calls them: in lower case, punctuation gone, blanks as hyphens, and a number
//! after those that come again.

use crate::{File, Tree, Violation};
use pulldown_cmark::{CowStr, Event, Parser, Tag, TagEnd};
use std::collections::BTreeMap;

const WHY: &str = "whoever follows it finds nothing";

/// Reports relative links that lead nowhere, and commands `make TARGET` without such a target.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let makefile = tree.file("Makefile").map_or("", |file| file.text.as_str());
    let mut found = Vec::new();
    for file in tree.ending(".md") {
        let line_of = |offset: usize| 1 + file.text[..offset].matches('\n').count();
        let mut add = |line, what, remedy| {
            found.push(Violation { path: file.path.clone(), line, what, why: WHY, remedy });
        };
        let mut in_code = false;
        for (event, range) in Parser::new(&file.text).into_offset_iter() {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    if let Some(what) = broken(tree, file, &dest_url) {
                        add(line_of(range.start), what, "correct the link, or add what it points at");
                    }
                }
                Event::Start(Tag::CodeBlock(_)) => in_code = true,
                Event::End(TagEnd::CodeBlock) => in_code = false,
                Event::Code(text) => {
                    for target in missing_targets(&text, makefile) {
                        add(
                            line_of(range.start),
                            format!("the Makefile has no target {target:?}"),
                            "correct either",
                        );
                    }
                }
                Event::Text(text) if in_code => {
                    for (index, line) in text.lines().enumerate() {
                        for target in missing_targets(line, makefile) {
                            let line = line_of(range.start) + index;
                            add(line, format!("the Makefile has no target {target:?}"), "correct either");
                        }
                    }
                }
                _ => {}
            }
        }
    }
    found
}

/// What is wrong with a link from `file`.
fn broken(tree: &Tree, file: &File, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, heading) = link.split_once('#').map_or((link, None), |(path, heading)| (path, Some(heading)));
    let target = if path.is_empty() { Some(file.path.clone()) } else { resolve(file.folder(), path) };
    let Some(target) = target.filter(|target| tree.has(target)) else {
        return Some(format!("the link to {link} leads nowhere"));
    };
    let document = tree.file(&target).filter(|document| document.path.ends_with(".md"))?;
    let heading = heading?;
    (!headings(document).iter().any(|known| known == heading))
        .then(|| format!("{target} has no heading #{heading}"))
}

/// The path that `relative` means in `folder`; none outside the repository.
fn resolve(folder: &str, relative: &str) -> Option<String> {
    let mut parts: Vec<&str> = match relative.strip_prefix('/') {
        Some(_) => Vec::new(),
        None => folder.split('/').filter(|part| !part.is_empty()).collect(),
    };
    for part in relative.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

fn headings(file: &File) -> Vec<String> {
    let mut heading: Option<String> = None;
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut all = Vec::new();
    for event in Parser::new(&file.text) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::Text(text) | Event::Code(text) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&text);
                }
            }
            Event::End(TagEnd::Heading(_)) => {
                let name = slug(&CowStr::from(heading.take().unwrap_or_default()));
                let times = seen.entry(name.clone()).or_default();
                all.push(if *times == 0 { name } else { format!("{name}-{times}") });
                *times += 1;
            }
            _ => {}
        }
    }
    all
}

fn slug(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Targets that a command line asks of make and the Makefile does not have.
fn missing_targets<'a>(command: &'a str, makefile: &str) -> Vec<&'a str> {
    let mut missing = Vec::new();
    for command in command.split("&&").flat_map(|part| part.split(';')) {
        let mut words = command.trim().trim_start_matches("$ ").split_whitespace();
        if words.next() != Some("make") {
            continue;
        }
        let targets = words.take_while(|word| !word.starts_with('#')).filter(|word| {
            word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
                && !word.starts_with('-')
        });
        missing.extend(targets.filter(|target| {
            !makefile.lines().any(|line| {
                line.strip_prefix(target).is_some_and(|rest| rest.starts_with(':') && !rest.starts_with(":="))
            })
        }));
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canary() {
        let text = "# One, *two* `three`\n\n[a](other.md) [b](../README.md#one-two-three) [c](#one-two-three)\n\
            [d](gone.md)\n[e](../../outside.md)\n[f](#nothing)\n[g](https://a.b/c) [h](../src)\n\
            `make test` make sure, `make nothing`\n\n```sh\n$ make test && make never # make x\nmake all\n```\n";
        let tree = Tree::of(&[
            ("docs/a.md", text),
            ("docs/other.md", ""),
            ("README.md", "# One two three"),
            ("src/lib.rs", ""),
            ("Makefile", "test: ## Test\n\techo\nall := 3\n"),
        ]);
        let found: Vec<_> = check(&tree).into_iter().map(|found| (found.line, found.what)).collect();
        let expected = [
            (4, "the link to gone.md leads nowhere"),
            (5, "the link to ../../outside.md leads nowhere"),
            (6, "docs/a.md has no heading #nothing"),
            (8, "the Makefile has no target \"nothing\""),
            (11, "the Makefile has no target \"never\""),
            (12, "the Makefile has no target \"all\""),
        ];
        assert_eq!(found, expected.map(|(line, what)| (line, what.to_owned())));
    }

    #[test]
    fn headings_that_come_again_are_numbered() {
        let file = File { path: String::new(), text: "# A b\n## A b\n## `x::y` (z)".to_owned() };
        assert_eq!(headings(&file), ["a-b", "a-b-1", "xy-z"]);
    }
}
