//! File systems in files: made, mounted on a loop device, and taken away again.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// How a file system is made and mounted.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub make: &'static [&'static str],
    pub options: &'static str,
}

pub const EXT4: Kind =
    Kind { make: &["mkfs.ext4", "-q", "-F", "-b", "4096", "-J", "size=4"], options: "defaults" };
/// Without delayed allocation: blocks have their place when they are written.
pub const EXT4_AT_ONCE: Kind = Kind { options: "nodelalloc", ..EXT4 };
pub const XFS: Kind = Kind { make: &["mkfs.xfs", "-q", "-f"], options: "defaults" };
pub const BTRFS: Kind = Kind { make: &["mkfs.btrfs", "-q", "-f"], options: "defaults" };

/// Runs a program. `Err` tells what it said.
pub fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let told = Command::new(program).args(arguments).output();
    let Output { status, stdout, stderr } = told.map_err(|error| format!("{program}: {error}"))?;
    if status.success() {
        return Ok(String::from_utf8_lossy(&stdout).into_owned());
    }
    Err(format!("{program} {arguments:?}: {}", String::from_utf8_lossy(&stderr)))
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// A mounted file system, which goes when this goes.
pub struct Mount {
    pub at: PathBuf,
}

impl Mount {
    fn new(arguments: &[&str], at: &Path) -> Result<Self, String> {
        std::fs::create_dir_all(at).map_err(|error| error.to_string())?;
        run("mount", &[arguments, &[text(at)]].concat())?;
        Ok(Self { at: at.to_owned() })
    }

    /// A file system in memory, of at most so many MiB.
    pub fn in_memory(mib: u64, at: &Path) -> Result<Self, String> {
        Self::new(&["-t", "tmpfs", "-o", &format!("size={mib}M"), "tmpfs"], at)
    }

    /// The file system in a file.
    pub fn of(image: &Path, options: &str, at: &Path) -> Result<Self, String> {
        Self::new(&["-o", &format!("loop,{options}"), text(image)], at)
    }

    /// Makes an empty file system in a new file of so many MiB, and mounts it.
    pub fn make(kind: Kind, image: &Path, mib: u64, at: &Path) -> Result<Self, String> {
        let file = std::fs::File::create(image).map_err(|error| error.to_string())?;
        file.set_len(mib << 20).map_err(|error| error.to_string())?;
        run(kind.make[0], &[&kind.make[1..], &[text(image)]].concat())?;
        Self::of(image, kind.options, at)
    }

    /// Empties the journal, so that no block of metadata is on its way.
    pub fn bring_metadata_to_its_place(&self) {
        for step in ["-f", "-u"] {
            run("fsfreeze", &[step, text(&self.at)]).expect("freezes and thaws");
        }
    }

    /// Changes the size of a file system in memory.
    pub fn resize(&self, mib: u64) {
        run("mount", &["-o", &format!("remount,size={mib}M"), text(&self.at)]).expect("another size");
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Somebody may still look into it, as an indexer does.
        for _ in 0..50 {
            if run("umount", &[text(&self.at)]).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        let _ = run("umount", &["-l", text(&self.at)]);
    }
}

/// A directory to work in; `None`, with a word, where root, loop devices or the file system cannot be had.
pub fn ground(kind: Kind) -> Option<TempDir> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let image = dir.path().join("try.img");
    match Mount::make(kind, &image, 320, &dir.path().join("try")) {
        Ok(_) => {
            std::fs::remove_file(image).expect("there");
            Some(dir)
        }
        Err(why) => {
            println!("skipped: {kind:?} cannot be had here ({why})");
            None
        }
    }
}
