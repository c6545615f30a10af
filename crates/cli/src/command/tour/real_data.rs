//! A real data set that the machine has: Debian's package index, else the packages that are installed, else the files of
//! the Rust toolchain that built this program.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// See the module.
pub(super) struct RealData {
    pub what: String,
    pub records: Vec<(Vec<u8>, Vec<u8>)>,
    pub bytes: u64,
}

/// Bytes that are enough for a tour.
const ENOUGH: u64 = 64 << 20;
/// Fewer records than this show nothing.
const RECORDS_MIN: usize = 100;

pub(super) fn find() -> RealData {
    let index = Command::new("apt-cache").arg("dumpavail").stderr(Stdio::null()).output();
    let index = index.ok().filter(|output| output.status.success()).map(|output| stanzas(&output.stdout));
    let candidates = [
        ("Debian's package index (apt-cache dumpavail)", index.unwrap_or_default()),
        ("the packages installed here (/var/lib/dpkg/status)", {
            fs::read("/var/lib/dpkg/status").map(|text| stanzas(&text)).unwrap_or_default()
        }),
    ];
    for (what, records) in candidates {
        if records.len() >= RECORDS_MIN {
            return counted(what, records);
        }
    }
    let root = toolchain().unwrap_or_else(|| PathBuf::from("."));
    let mut records = BTreeMap::new();
    let mut bytes = 0;
    files(&root, &root, &mut bytes, &mut records);
    counted(&format!("the files of {}", root.display()), records)
}

fn counted(what: &str, records: BTreeMap<Vec<u8>, Vec<u8>>) -> RealData {
    let bytes = records.iter().map(|(key, value)| (key.len() + value.len()) as u64).sum();
    RealData { what: what.to_owned(), records: records.into_iter().collect(), bytes }
}

/// Paragraphs of `Field: text` lines under package name, version and architecture.
fn stanzas(text: &[u8]) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let text = String::from_utf8_lossy(text);
    let mut records = BTreeMap::new();
    for stanza in text.split("\n\n") {
        let field = |name: &str| {
            stanza.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).unwrap_or_default()
        };
        let package = field("Package");
        if !package.is_empty() {
            let key = format!("{package} {} {}", field("Version"), field("Architecture"));
            records.insert(key.into_bytes(), stanza.trim().as_bytes().to_vec());
        }
    }
    records
}

fn toolchain() -> Option<PathBuf> {
    let output = Command::new("rustc").args(["--print", "sysroot"]).stderr(Stdio::null()).output().ok()?;
    let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    path.is_dir().then_some(path)
}

fn beginning(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(path)?.take(most).read_to_end(&mut content)?;
    Ok(content)
}

/// All files below `dir`, as far as that is enough, in pieces of 16 KiB, under their path and the piece's number.
fn files(root: &Path, dir: &Path, bytes: &mut u64, records: &mut BTreeMap<Vec<u8>, Vec<u8>>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let Ok(kind) = entry.file_type() else { continue };
        if *bytes >= ENOUGH {
            return;
        }
        if kind.is_dir() {
            files(root, &path, bytes, records);
        } else if kind.is_file()
            && let Ok(content) = beginning(&path, ENOUGH - *bytes)
        {
            let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            for (piece, data) in content.chunks(16 << 10).enumerate() {
                *bytes += data.len() as u64;
                records.insert(format!("{name}#{piece:05}").into_bytes(), data.to_vec());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stanzas_are_records() {
        let text = b"Package: fram\nVersion: 1892\nArchitecture: all\nDescription: a ship\n for ice\n\nPackage: beagle\n\n\n";
        let records = stanzas(text);
        assert_eq!(records.len(), 2);
        assert!(records[&b"fram 1892 all"[..]].ends_with(b"for ice"));
    }

    /// One of many gigabytes was read whole.
    #[test]
    fn of_a_long_file_no_more_is_read_than_is_enough() {
        let dir = tempfile::tempdir().unwrap();
        File::create(dir.path().join("long")).unwrap().set_len(ENOUGH + (1 << 20)).unwrap();
        let (mut bytes, mut records) = (0, BTreeMap::new());
        files(dir.path(), dir.path(), &mut bytes, &mut records);
        assert_eq!(bytes, ENOUGH);
    }

    #[test]
    fn there_is_always_something() {
        assert!(find().records.len() > 10);
    }
}
