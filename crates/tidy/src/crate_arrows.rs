//! Which of our crates may depend on which of our crates: as the table of ARCHITECTURE.md has it, whose rows are folders below `crates/`.
//!
//! Invariants:
//! 1. each folder with a manifest has a row, and each row such a folder;
//! 2. each row names rows above it only, so that no circle is allowed.

use crate::architecture::{PAGE, Row, rows};
use crate::{File, Tree, Violation};
use std::collections::BTreeMap;

/// What tests may use besides, where the crate is there to be built upon by it: dev-dependencies only. By folder.
const TEST_ARROWS: &[(&str, &[&str])] = &[("flash", &["sapwood"])];

const WHY: &str =
    "arrows between crates go one way, so that each can be understood and used without those above it";

/// Reports dependencies that the table does not have.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    let name = |line| {
        let (folder, _) = str::strip_prefix(line, "| `")?.split_once('`')?;
        Some(folder)
    };
    let page = tree.file(PAGE);
    let rows = page.map(|page| rows(page, name, WHY, &mut found)).unwrap_or_default();
    let (mut manifests, mut folders) = (Vec::new(), BTreeMap::new());
    for file in tree.ending("/Cargo.toml") {
        let Some(folder) = folder(file) else { continue };
        match file.text.parse::<toml::Table>() {
            Ok(manifest) => {
                folders.insert(package(&manifest).to_owned(), folder);
                manifests.push((file, folder, manifest));
            }
            Err(error) => {
                found.push(violation(file, 1, format!("cannot be read: {error}"), "correct it"));
            }
        }
    }
    for (file, folder, manifest) in &manifests {
        match rows.iter().find(|row| row.name == *folder) {
            Some(row) => check_manifest((file, manifest), row, &folders, &mut found),
            None => {
                let what = format!("crate {folder:?} is not in the table");
                found.push(violation(file, 1, what, "add it to the table of ARCHITECTURE.md"));
            }
        }
    }
    let has_manifest = |row: &&Row<'_>| manifests.iter().any(|(_, folder, _)| *folder == row.name);
    for row in rows.iter().filter(|row| !has_manifest(row)) {
        let what = format!("there is no crate in crates/{}", row.name);
        found.extend(page.map(|page| violation(page, row.line, what, "name its folder, or remove the row")));
    }
    found
}

/// Reports what a crate depends on beyond its row. `folders` has those of our packages.
fn check_manifest(
    (file, manifest): (&File, &toml::Table),
    row: &Row<'_>,
    folders: &BTreeMap<String, &str>,
    found: &mut Vec<Violation>,
) {
    let in_tests = TEST_ARROWS.iter().find(|(known, _)| *known == row.name).map_or(&[][..], |(_, more)| more);
    for (dependency, for_tests) in dependencies(manifest) {
        let Some(folder) = folders.get(&dependency).filter(|folder| **folder != row.name) else { continue };
        let may = row.may_use.contains(folder) || (for_tests && in_tests.contains(folder));
        if !may {
            let line =
                file.lines().find(|(_, line)| line.starts_with(&dependency)).map_or(1, |(line, _)| line);
            let what = format!("{} depends on {folder}", row.name);
            found.push(violation(file, line, what, "move what is needed to the lower crate"));
        }
    }
}

fn violation(file: &File, line: usize, what: String, remedy: &'static str) -> Violation {
    Violation { path: file.path.clone(), line, what, why: WHY, remedy }
}

/// The folder of a manifest below `crates/`.
fn folder(file: &File) -> Option<&str> {
    file.folder().strip_prefix("crates/")
}

fn package(manifest: &toml::Table) -> &str {
    let name = manifest.get("package").and_then(|package| package.get("name"));
    name.and_then(toml::Value::as_str).unwrap_or_default()
}

/// Packages that a manifest depends on, by their real names, everywhere a manifest can say so, and whether for tests alone.
fn dependencies(manifest: &toml::Table) -> Vec<(String, bool)> {
    let mut tables = vec![manifest];
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    tables.extend(targets.into_iter().flat_map(|targets| targets.values()).filter_map(toml::Value::as_table));
    let mut names = Vec::new();
    for table in tables {
        for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let Some(entries) = table.get(kind).and_then(toml::Value::as_table) else { continue };
            for (name, entry) in entries {
                let renamed = entry.get("package").and_then(toml::Value::as_str);
                names.push((renamed.unwrap_or(name).to_owned(), kind == "dev-dependencies"));
            }
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canary() {
        let table = "| `psync` | io | |\n| `sapwood` | engine | psync |\n| `cli` | program | sapwood |\n\
                     | `flash` | SSDs | psync |\n| `lab` | rest | sapwood, tidy |\n| `gone` | | |\n";
        let tree = Tree::of(&[
            (PAGE, table),
            ("crates/cli/Cargo.toml", "[package]\nname = \"sapwood-cli\"\n[dependencies]\npsync = \"1\""),
            (
                "crates/psync/Cargo.toml",
                "[package]\nname = \"psync\"\n[dependencies]\nsapwood = \"1\"\nlibc = \"1\"",
            ),
            (
                "crates/sapwood/Cargo.toml",
                "[package]\nname = \"sapwood\"\n[target.'cfg(unix)'.dev-dependencies]\nx = { package = \"lab\" }",
            ),
            ("crates/new/Cargo.toml", "[package]\nname = \"new\""),
            (
                "crates/flash/Cargo.toml",
                "[package]\nname = \"flash\"\n[dependencies]\nsapwood = \"1\"\n[dev-dependencies]\nsapwood = \"1\"",
            ),
            ("crates/lab/Cargo.toml", "[package]\nname = \"lab\"\n[dependencies]\nsapwood.workspace = true"),
        ]);
        let found: Vec<_> = check(&tree).into_iter().map(|found| (found.line, found.what)).collect();
        assert_eq!(
            found,
            [
                (5, "lab may use tidy, which is no row above it".to_owned()),
                (4, "cli depends on psync".to_owned()),
                (4, "psync depends on sapwood".to_owned()),
                (1, "sapwood depends on lab".to_owned()),
                (1, "crate \"new\" is not in the table".to_owned()),
                (4, "flash depends on sapwood".to_owned()),
                (6, "there is no crate in crates/gone".to_owned()),
            ]
        );
    }
}
