//! The directory that a [`Disk`](crate::Disk) has opened: names are looked up in it and in no other, whatever
//! happens to its path.
//!
//! Invariants:
//! 1. On unix all names are resolved from the descriptor of the directory (`openat`, `renameat`, `unlinkat`). A
//!    directory that is moved is followed; one that takes its place, that is mounted over it, or that a symbolic
//!    link leads to from now on, is never touched.
//! 2. Elsewhere names are resolved from the path. [`Directory::has`] tells whether it still leads to the same
//!    files; the caller asks before each change.
//! 3. The last component of a name is never followed if it is a symbolic link: a sync of this directory says
//!    nothing about a file in another one.

#[cfg(not(unix))]
mod path;
#[cfg(unix)]
mod unix;

#[cfg(not(unix))]
pub(crate) use path::{Directory, Identity, is_removed};
#[cfg(unix)]
pub(crate) use unix::{Directory, Identity, is_removed};

use std::io;

/// Whether the system refused to sync the directory because this file system cannot (CIFS, some FUSE file
/// systems), as opposed to having failed.
pub(crate) fn cannot_sync(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_list() {
        let place = tempfile::tempdir().unwrap();
        for name in ["b", "a", "long name of a file"] {
            std::fs::write(place.path().join(name), name).unwrap();
        }
        std::fs::create_dir(place.path().join("folder")).unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink("nowhere", place.path().join("link")).unwrap();
        let directory = Directory::open(place.path()).unwrap();
        let mut listed: Vec<_> = directory.list().unwrap().into_iter().map(|entry| entry.name).collect();
        let mut names = directory.names().unwrap();
        listed.sort();
        names.sort();
        assert_eq!(names, listed);
        assert_eq!(names.len(), if cfg!(unix) { 4 } else { 3 });
    }

    #[cfg(unix)]
    #[test]
    fn what_cannot_be_synced_is_told_from_what_failed() {
        let errno = io::Error::from_raw_os_error;
        for refused in [libc::EINVAL, libc::EOPNOTSUPP, libc::ENOSYS] {
            assert!(cannot_sync(&errno(refused)), "{refused}");
        }
        for failed in [libc::EIO, libc::ENOSPC, libc::EROFS, libc::EACCES, libc::ENOENT] {
            assert!(!cannot_sync(&errno(failed)), "{failed}");
        }
    }
}
