//! Makes a directory, and those above it that are missing, durably: files in it are not safe before its name is.

use crate::directory::{Directory, cannot_sync};
use crate::{Error, Result};
use std::io;
use std::path::Path;

/// The directories whose names are to be made durable, from the top: those that are missing, and before them one that is empty. That may have
/// been made by a process that came to its end before its name was durable.
fn unsafe_names(path: &Path) -> Vec<&Path> {
    let is_empty = |path: &Path| std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    let mut names = Vec::new();
    for directory in path.ancestors() {
        let is_there = directory.exists();
        if !is_there || is_empty(directory) {
            names.push(directory);
        }
        if is_there {
            break;
        }
    }
    names.reverse();
    names
}

/// Makes the directory, if there is none. The path is absolute.
pub(crate) fn make_directory(path: &Path) -> Result<()> {
    let wrap = |error| Error::from_io("create", &path.display().to_string(), None, error);
    // One after the other: where one is, the names of those above are durable.
    for name in unsafe_names(path) {
        match std::fs::create_dir(name) {
            Err(_) if name.is_dir() => {}
            made => made.map_err(wrap)?,
        }
        let Some(above) = name.parent() else { continue };
        match Directory::open(above).and_then(|above| above.sync()) {
            // Whoever may make names in a directory may not read it, and only who may read it can sync it.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                sync_file_system(name).map_err(wrap)?;
            }
            Err(source) if cannot_sync(&source) => {
                return Err(Error::NotSynced { directory: above.display().to_string(), source });
            }
            synced => synced.map_err(wrap)?,
        }
    }
    Ok(())
}

/// Makes everything in the file system of a directory durable.
#[cfg(target_os = "linux")]
fn sync_file_system(path: &Path) -> io::Result<()> {
    Ok(rustix::fs::syncfs(std::fs::File::open(path)?)?)
}

#[cfg(not(target_os = "linux"))]
fn sync_file_system(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_not_be_durable_is_made_or_synced_from_the_top() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path();
        std::fs::write(root.join("other"), "").unwrap();
        let path = root.join("a/b/db");
        let names = || {
            unsafe_names(&path).iter().map(|name| name.file_name().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(), ["a", "b", "db"]);
        // A process that was killed there.
        std::fs::create_dir(root.join("a")).unwrap();
        assert_eq!(names(), ["a", "b", "db"]);
        std::fs::write(root.join("a/other"), "").unwrap();
        assert_eq!(names(), ["b", "db"]);
        make_directory(&path).unwrap();
        assert_eq!(names(), ["db"]);
        std::fs::write(path.join("CURRENT"), "").unwrap();
        assert!(names().is_empty());
        make_directory(&path).unwrap();
        assert!(make_directory(&path.join("CURRENT/x")).is_err());
    }
}
