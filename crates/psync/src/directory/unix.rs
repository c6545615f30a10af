//! A directory as a descriptor.

use crate::{Access, Entry};
use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::path::Path;

/// An open directory. See the module above.
#[derive(Debug)]
pub(crate) struct Directory(File);

/// What a name leads to. No other file has it while this one is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    /// The identity of an open file.
    pub fn of(file: &File) -> io::Result<Self> {
        Ok(Attributes::of(file)?.identity)
    }
}

/// What is asked of files again and again.
struct Attributes {
    identity: Identity,
    links: u64,
}

impl Attributes {
    fn of(file: &File) -> io::Result<Self> {
        Ok(Self::get(|| statx_of(file, c"", AtFlags::EMPTY_PATH), || fs::fstat(file))?)
    }

    fn of_name(directory: &File, name: &str) -> Result<Self, Errno> {
        let not_followed = AtFlags::SYMLINK_NOFOLLOW;
        Self::get(|| statx_of(directory, name, not_followed), || fs::statat(directory, name, not_followed))
    }

    /// Asks by `exactly` if the system has that, otherwise by `all`.
    fn get(
        exactly: impl FnOnce() -> Result<Self, Errno>,
        all: impl FnOnce() -> Result<Stat, Errno>,
    ) -> Result<Self, Errno> {
        match exactly() {
            Err(Errno::NOSYS | Errno::PERM) => Ok(Self::from_stat(&all()?)),
            result => result,
        }
    }

    // The types of these fields differ between systems.
    #[allow(clippy::unnecessary_cast)]
    fn from_stat(stat: &Stat) -> Self {
        let identity = Identity { device: stat.st_dev as u64, inode: stat.st_ino as u64 };
        Self { identity, links: stat.st_nlink as u64 }
    }
}

/// Asks for no times. Where these are asked for, Linux (from 6.13 on) gives the file another time with its next write,
/// whenever that is, and a sync after each write took 170 us in place of 110.
#[cfg(target_os = "linux")]
fn statx_of(at: &File, name: impl rustix::path::Arg, flags: AtFlags) -> Result<Attributes, Errno> {
    let wanted = fs::StatxFlags::INO | fs::StatxFlags::NLINK;
    let found = fs::statx(at, name, flags, wanted)?;
    let device = fs::makedev(found.stx_dev_major, found.stx_dev_minor);
    Ok(Attributes { identity: Identity { device, inode: found.stx_ino }, links: found.stx_nlink.into() })
}

#[cfg(not(target_os = "linux"))]
fn statx_of(_: &File, _: impl rustix::path::Arg, _: AtFlags) -> Result<Attributes, Errno> {
    Err(Errno::NOSYS)
}

/// Whether no name leads to the open file any more.
pub(crate) fn is_removed(file: &File) -> io::Result<bool> {
    Ok(Attributes::of(file)?.links == 0)
}

impl Directory {
    /// Opens the directory at `path`.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(File::from(again(|| fs::open(path, flags, Mode::empty()))?)))
    }

    /// The same directory, opened anew: a lock taken on it is another one's than this one's.
    pub fn reopened(&self) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(File::from(again(|| fs::openat(&self.0, c".", flags, Mode::empty()))?))
    }

    /// Opens the file `name`, or creates it. With `direct`, the page cache is bypassed.
    pub fn open_file(&self, name: &str, access: Access, direct: bool) -> io::Result<File> {
        let mut flags = OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NOCTTY;
        flags |= if access.write { OFlags::RDWR } else { OFlags::RDONLY };
        if access.write && access.create_new {
            flags |= OFlags::CREATE | OFlags::EXCL;
        } else if access.write && access.create {
            flags |= OFlags::CREATE;
        }
        #[cfg(target_os = "linux")]
        if direct {
            flags |= OFlags::DIRECT;
        }
        #[cfg(not(target_os = "linux"))]
        let _ = direct;
        Ok(File::from(again(|| fs::openat(&self.0, name, flags, Mode::from_raw_mode(0o666)))?))
    }

    /// A file without a name, for direct I/O.
    #[cfg(target_os = "linux")]
    pub fn nameless(&self) -> io::Result<File> {
        let flags = OFlags::TMPFILE | OFlags::DIRECT | OFlags::RDWR | OFlags::CLOEXEC;
        Ok(File::from(again(|| fs::openat(&self.0, c".", flags, Mode::from_raw_mode(0o600)))?))
    }

    /// Makes a new folder in it, and returns it.
    #[cfg(target_os = "linux")]
    pub fn make_folder(&self, name: &str) -> io::Result<Self> {
        fs::mkdirat(&self.0, name, Mode::from_raw_mode(0o700))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self(File::from(again(|| fs::openat(&self.0, name, flags, Mode::empty()))?)))
    }

    /// Removes an empty folder.
    #[cfg(target_os = "linux")]
    pub fn remove_folder(&self, name: &str) -> io::Result<()> {
        Ok(fs::unlinkat(&self.0, name, AtFlags::REMOVEDIR)?)
    }

    /// Renames a file, and replaces another of that name.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(fs::renameat(&self.0, from, &self.0, to)?)
    }

    /// Removes the file `name`.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        Ok(fs::unlinkat(&self.0, name, AtFlags::empty())?)
    }

    /// What `name` leads to now; `None` if there is no such name.
    pub fn identity(&self, name: &str) -> io::Result<Option<Identity>> {
        match Attributes::of_name(&self.0, name) {
            Ok(found) => Ok(Some(found.identity)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether `name` leads to the file of this identity, which is open.
    pub fn has(&self, name: &str, identity: &Identity) -> io::Result<bool> {
        Ok(self.identity(name)?.as_ref() == Some(identity))
    }

    /// Lists plain files and symbolic links, in any order.
    pub fn list(&self) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in Dir::read_from(&self.0)? {
            let entry = entry?;
            if let Some(stat) = self.file(entry.file_name())? {
                let name = entry.file_name().to_string_lossy().into_owned();
                entries.push(Entry { name, len: u64::try_from(stat.st_size).unwrap_or(0) });
            }
        }
        Ok(entries)
    }

    /// The names of what `list` lists. Most file systems tell them without a call for each.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.0)? {
            let entry = entry?;
            let is_file = match entry.file_type() {
                FileType::Unknown => self.file(entry.file_name())?.is_some(),
                kind => is_file(kind),
            };
            if is_file {
                names.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        Ok(names)
    }

    /// What is known of a plain file or symbolic link; `None` if it is anything else, or was removed.
    fn file(&self, name: &CStr) -> io::Result<Option<Stat>> {
        match fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat).filter(|stat| is_file(FileType::from_raw_mode(stat.st_mode)))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes the names in it durable.
    pub fn sync(&self) -> io::Result<()> {
        self.0.sync_all()
    }
}

fn is_file(kind: FileType) -> bool {
    matches!(kind, FileType::RegularFile | FileType::Symlink)
}

/// Repeats a call that a signal interrupted.
fn again<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}
