//! Makes a directory, and those above it that are missing, durably: files in it are not safe before its name is.

use crate::directory::{Directory, cannot_sync};
use crate::{Error, Result};
use std::io;
use std::path::Path;

/// Makes the directory, if there is none. The path is absolute.
pub(crate) fn make_directory(path: &Path) -> Result<()> {
    let wrap = |error| Error::from_io("create", &path.display().to_string(), None, error);
    let is_missing = |path: &&Path| !path.exists();
    let mut made: Vec<_> = path.ancestors().take_while(is_missing).collect();
    std::fs::create_dir_all(path).map_err(wrap)?;
    // An empty one may just have been made by a process that came to its end before this.
    if made.is_empty() && std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none()) {
        made.push(path);
    }
    for made in made {
        let Some(above) = made.parent() else { continue };
        match Directory::open(above).and_then(|above| above.sync()) {
            // Whoever may make names in a directory may not read it, and only who may read it can sync it.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                sync_file_system(made).map_err(wrap)?;
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
