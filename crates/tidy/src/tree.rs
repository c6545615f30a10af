//! The text files that rules look at.
//!
//! Invariants: paths are relative to the root and have `/` on every system; files that git ignores, binary files and
//! files over 4 MiB are not there; files are in order of path.

use std::path::Path;
use std::{fs, io};

const FILE_MAX: u64 = 4 << 20;

/// Where the source of the store lies.
const STORE: &str = "crates/sapwood/src/";

/// One text file.
#[derive(Clone, Debug)]
pub struct File {
    /// From the root of the tree.
    pub path: String,
    /// All of it.
    pub text: String,
}

impl File {
    /// The path without the name, without a slash at its end.
    pub fn folder(&self) -> &str {
        self.path.rsplit_once('/').map_or("", |(folder, _)| folder)
    }

    /// Whether all of it is tests.
    pub fn is_of_tests(&self) -> bool {
        self.path.ends_with("/tests.rs") || self.path.contains("/tests/")
    }

    /// The number of lines before its tests: 0 if all of it is tests, and more than it has if there are none.
    pub fn lines_before_tests(&self) -> usize {
        if self.is_of_tests() {
            return 0;
        }
        self.text.lines().position(|line| line == "mod tests {").unwrap_or(usize::MAX)
    }

    /// Lines and their numbers, from 1.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, line))
    }
}

/// A repository.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    files: Vec<File>,
}

impl Tree {
    /// Everything below `root` that git would not ignore.
    ///
    /// # Errors
    /// What the system says.
    pub fn load(root: &Path) -> io::Result<Self> {
        let mut files = Vec::new();
        let mut walk = ignore::WalkBuilder::new(root);
        walk.hidden(false).require_git(false).filter_entry(|entry| entry.file_name() != ".git");
        for entry in walk.build() {
            let entry = entry.map_err(io::Error::other)?;
            let is_file = entry.file_type().is_some_and(|kind| kind.is_file());
            if !is_file || entry.metadata().map_err(io::Error::other)?.len() > FILE_MAX {
                continue;
            }
            let Ok(text) = String::from_utf8(fs::read(entry.path())?) else { continue };
            let relative = entry.path().strip_prefix(root).map_err(io::Error::other)?;
            let parts: Vec<_> =
                relative.components().map(|part| part.as_os_str().to_string_lossy()).collect();
            files.push(File { path: parts.join("/"), text });
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Self { files })
    }

    /// A tree of these paths and texts.
    pub fn of(files: &[(&str, &str)]) -> Self {
        let file = |(path, text): &(&str, &str)| File { path: (*path).to_owned(), text: (*text).to_owned() };
        Self { files: files.iter().map(file).collect() }
    }

    /// The source files of the store, without those that are tests as a whole.
    pub fn of_store(&self) -> impl Iterator<Item = &File> {
        self.ending(".rs").filter(|file| file.path.starts_with(STORE) && !file.is_of_tests())
    }

    /// All files.
    pub fn files(&self) -> impl Iterator<Item = &File> {
        self.files.iter()
    }

    /// The files whose names end in `ending`.
    pub fn ending(&self, ending: &str) -> impl Iterator<Item = &File> {
        self.files().filter(move |file| file.path.ends_with(ending))
    }

    /// The file of that path.
    pub fn file(&self, path: &str) -> Option<&File> {
        self.files().find(|file| file.path == path)
    }

    /// Whether there is a file or a folder of that path.
    pub fn has(&self, path: &str) -> bool {
        path.is_empty()
            || self.files().any(|file| {
                file.path.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            })
    }
}
