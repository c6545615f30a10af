//! Small file systems that are mounted for one test, which takes root: to be filled, to be made read-only, of any kind.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::Command;
use tempfile::{NamedTempFile, TempDir};

/// A file system of its own, unmounted when dropped.
pub struct Mounted(TempDir);

impl Mounted {
    /// 2 MiB in memory, of a kind as `mount -t` calls it. `None`, said loudly, where it cannot be mounted.
    #[allow(dead_code, reason = "not every test that mounts cares for it")]
    pub fn in_memory(kind: &str) -> Option<Self> {
        Self::by(|path| run("mount", &["-t", kind, "-o", "size=2m", "psync-test", path]))
    }

    /// ext4 in a file, mounted with these options.
    #[allow(dead_code, reason = "not every test that mounts cares for it")]
    pub fn ext4(options: &str) -> Option<Self> {
        let image = NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a scratch file");
        image.as_file().set_len(16 << 20).expect("space for it");
        let image = image.path().to_str().expect("a plain path");
        // The mount keeps the image, whose name goes.
        Self::by(|path| {
            run("mkfs.ext4", &["-q", "-F", image])
                && run("mount", &["-o", &format!("loop,{options}"), image, path])
        })
    }

    fn by(mount: impl FnOnce(&str) -> bool) -> Option<Self> {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a scratch directory");
        if mount(text(dir.path())) {
            return Some(Self(dir));
        }
        eprintln!("SKIPPED: no file system can be mounted here (this takes root)");
        None
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Mounts it again, with other options.
    #[allow(dead_code, reason = "not every test that mounts cares for it")]
    pub fn remount(&self, options: &str) {
        assert!(run("mount", &["-o", &format!("remount,{options}"), text(self.path())]), "remount {options}");
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        run("umount", &["-l", text(self.path())]);
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// Whether a program was there and ended well.
pub fn run(program: &str, arguments: &[&str]) -> bool {
    let output = Command::new(program).args(arguments).output();
    output.is_ok_and(|output| output.status.success())
}
