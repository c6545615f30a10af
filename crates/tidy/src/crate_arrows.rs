//! Which of our crates may depend on which of our crates.

use crate::{Tree, Violation};

/// A crate, and those of ours that it may depend on, in any kind of dependency.
const ARROWS: &[(&str, &[&str])] = &[
    ("psync", &[]),
    ("mpsearch", &[]),
    ("sapwood", &["psync", "mpsearch"]),
    ("interrupt", &[]),
    ("sapwood-cli", &["sapwood", "psync", "interrupt"]),
    ("sapwood-typed", &["sapwood", "sapwood-typed-derive"]),
    ("sapwood-typed-derive", &[]),
    ("sapwood-object-store", &["sapwood"]),
    ("sapwood-openraft", &["sapwood"]),
    ("sapwood-node", &["sapwood", "sapwood-openraft"]),
    ("flash", &["psync"]),
    ("trees", &["psync", "mpsearch", "flash"]),
    ("arena", &[]),
    ("peers", &["arena", "sapwood"]),
    ("traces", &[]),
    ("lab", &["psync", "mpsearch", "sapwood", "flash", "trees", "traces", "arena", "interrupt"]),
    ("tidy", &[]),
];

/// What tests may use besides, where the crate is there to be built upon by it: dev-dependencies only.
const TEST_ARROWS: &[(&str, &[&str])] = &[("flash", &["sapwood"])];

const WHY: &str =
    "arrows between crates go one way, so that each can be understood and used without those above it";

/// Reports dependencies that `ARROWS` does not have.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for file in tree.ending("/Cargo.toml").filter(|file| file.path.starts_with("crates/")) {
        let mut add = |line, what, remedy| {
            found.push(Violation { path: file.path.clone(), line, what, why: WHY, remedy });
        };
        let manifest: toml::Table = match file.text.parse() {
            Ok(manifest) => manifest,
            Err(error) => {
                add(1, format!("cannot be read: {error}"), "correct it");
                continue;
            }
        };
        let package = manifest.get("package").and_then(|package| package.get("name"));
        let name = package.and_then(toml::Value::as_str).unwrap_or_default();
        let Some((_, allowed)) = ARROWS.iter().find(|(known, _)| *known == name) else {
            add(
                1,
                format!("crate {name:?} is not in the table"),
                "add it to ARROWS in crates/tidy/src/crate_arrows.rs",
            );
            continue;
        };
        let in_tests = TEST_ARROWS.iter().find(|(known, _)| *known == name).map_or(&[][..], |(_, more)| more);
        for (dependency, for_tests) in dependencies(&manifest) {
            let ours = ARROWS.iter().any(|(known, _)| *known == dependency);
            let may = allowed.contains(&dependency.as_str())
                || (for_tests && in_tests.contains(&dependency.as_str()));
            if ours && dependency != name && !may {
                let line =
                    file.lines().find(|(_, line)| line.starts_with(&dependency)).map_or(1, |(line, _)| line);
                add(
                    line,
                    format!("{name} depends on {dependency}"),
                    "move what is needed to the lower crate",
                );
            }
        }
    }
    found
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
        let tree = Tree::of(&[
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
                (4, "psync depends on sapwood".to_owned()),
                (1, "sapwood depends on lab".to_owned()),
                (1, "crate \"new\" is not in the table".to_owned()),
                (4, "flash depends on sapwood".to_owned()),
            ]
        );
    }
}
