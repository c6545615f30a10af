//! `sapwood-lab report`: one page, and one Markdown file, of all records.

use crate::arguments::Report;
use crate::failure::{Failure, Result};
use crate::progress::print;
use crate::record::{Record, write_whole};
use crate::report;
use std::path::Path;

pub(super) fn report(arguments: &Report) -> Result<()> {
    let records = Record::load_all(&arguments.results)?;
    if records.is_empty() {
        let what =
            format!("no record is in {}: `sapwood-lab run all` makes some", arguments.results.display());
        return Err(Failure::CannotRun(what));
    }
    let html = arguments.html.clone().unwrap_or_else(|| arguments.results.join("report.html"));
    let markdown = arguments.markdown.clone().unwrap_or_else(|| arguments.results.join("reproduction.md"));
    write_whole(&html, &report::html(&records)?)?;
    let pictures = from(&markdown, &arguments.results)?;
    write_whole(&markdown, &report::markdown(&records, &pictures)?)?;
    print(format_args!("{}\n{}", html.display(), markdown.display()))
}

/// The way from a file to a directory, as a link has it: empty, or with a slash at its end.
fn from(file: &Path, dir: &Path) -> Result<String> {
    let whole = |path: &Path| path.canonicalize().map_err(|error| Failure::at("find", path, error));
    let parent = match file.parent() {
        Some(parent) if parent != Path::new("") => whole(parent)?,
        _ => whole(Path::new("."))?,
    };
    let dir = whole(dir)?;
    let mut up = String::new();
    let mut base = parent.as_path();
    loop {
        if let Ok(rest) = dir.strip_prefix(base) {
            let down: Vec<_> = rest.iter().map(|part| format!("{}/", part.to_string_lossy())).collect();
            return Ok(format!("{up}{}", down.concat()));
        }
        let Some(above) = base.parent() else { return Ok(format!("{}/", dir.display())) };
        base = above;
        up.push_str("../");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_from_the_file_to_the_records() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("docs/records")).unwrap();
        std::fs::create_dir_all(dir.path().join("other")).unwrap();
        let way =
            |file: &str, records: &str| from(&dir.path().join(file), &dir.path().join(records)).unwrap();
        assert_eq!(way("docs/all.md", "docs/records"), "records/");
        assert_eq!(way("docs/records/all.md", "docs/records"), "");
        assert_eq!(way("other/all.md", "docs/records"), "../docs/records/");
    }
}
