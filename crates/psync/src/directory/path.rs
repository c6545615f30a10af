//! A directory as a path, where the standard library has no calls that start from an open directory.

use crate::{Access, Entry};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A directory. See the module above.
#[derive(Debug)]
pub(crate) struct Directory(PathBuf);

/// What a name leads to: the standard library tells no more of a file here than when it was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity(SystemTime);

impl Identity {
    /// The identity of an open file.
    pub fn of(file: &File) -> io::Result<Self> {
        Ok(Self(file.metadata()?.created()?))
    }
}

/// Whether no name leads to the open file any more. Not known here; [`Directory::has`] is.
pub(crate) fn is_removed(_: &File) -> io::Result<bool> {
    Ok(false)
}

impl Directory {
    /// Opens the directory at `path`.
    pub fn open(path: &Path) -> io::Result<Self> {
        if fs::metadata(path)?.is_dir() {
            Ok(Self(path.to_owned()))
        } else {
            Err(io::ErrorKind::NotADirectory.into())
        }
    }

    /// Directories cannot be opened, and so not locked.
    pub fn reopened(&self) -> io::Result<File> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Opens the file `name`, or creates it.
    pub fn open_file(&self, name: &str, access: Access, _direct: bool) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(access.write).create(access.create && access.write);
        options.create_new(access.create_new && access.write);
        options.open(self.0.join(name))
    }

    /// Renames a file, and replaces another of that name.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.0.join(from), self.0.join(to))
    }

    /// Removes the file `name`.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.0.join(name))
    }

    /// What `name` leads to now; `None` if there is no such name.
    pub fn identity(&self, name: &str) -> io::Result<Option<Identity>> {
        match fs::symlink_metadata(self.0.join(name)) {
            Ok(metadata) => Ok(Some(Identity(metadata.created()?))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether `name` leads to the file of this identity, which is open.
    pub fn has(&self, name: &str, identity: &Identity) -> io::Result<bool> {
        Ok(self.identity(name)?.as_ref() == Some(identity))
    }

    /// Lists plain files and symbolic links, in any order.
    pub fn list(&self) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            let entry = entry?;
            match entry.metadata() {
                Ok(metadata) if !metadata.is_dir() => {
                    let name = entry.file_name().to_string_lossy().into_owned();
                    entries.push(Entry { name, len: metadata.len() });
                }
                Ok(_) => {}
                // Removed since it was listed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(entries)
    }

    /// The names of what `list` lists.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            let entry = entry?;
            match entry.file_type() {
                Ok(kind) if !kind.is_dir() => names.push(entry.file_name().to_string_lossy().into_owned()),
                Ok(_) => {}
                // Removed since it was listed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(names)
    }

    /// The system makes names durable by itself.
    pub fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
