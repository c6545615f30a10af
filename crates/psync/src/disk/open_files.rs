//! The files that a disk has open, by their ids.

use crate::directory::Identity;
use crate::mapping::Mapped;
use crate::{Error, FileId, Result};
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// An open file.
pub(super) struct OpenFile {
    pub name: Arc<str>,
    pub file: Arc<File>,
    pub direct: bool,
    pub write: bool,
    pub mapped: Arc<Mapped>,
    pub identity: Identity,
    /// Whether this volume itself has removed the file's name, or given it to another file.
    pub lost_name: AtomicBool,
}

/// The open files, sorted by id. There are few, and ids only grow: a binary search is faster than hashing.
#[derive(Default)]
pub(super) struct Files(Vec<(FileId, Arc<OpenFile>)>);

impl Files {
    fn place(&self, id: FileId) -> Result<usize> {
        let found = self.0.binary_search_by_key(&id, |(id, _)| *id);
        found.map_err(|_| Error::Invalid(format!("file {} is not open", id.number())))
    }

    pub fn get(&self, id: FileId) -> Result<&Arc<OpenFile>> {
        self.place(id).map(|place| &self.0[place].1)
    }

    pub fn insert(&mut self, id: FileId, file: OpenFile) {
        // A thread that opened a file at the same time may have inserted a higher id first.
        let place = self.0.partition_point(|(other, _)| *other < id);
        self.0.insert(place, (id, Arc::new(file)));
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &Arc<OpenFile>> {
        self.0.iter().map(|(_, file)| file)
    }

    /// One that is this file.
    pub fn of_identity(&self, identity: Identity) -> Option<Arc<OpenFile>> {
        self.all().find(|file| file.identity == identity).cloned()
    }

    pub fn remove(&mut self, id: FileId) -> Result<Arc<OpenFile>> {
        self.place(id).map(|place| self.0.remove(place).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_files_are_found_in_whatever_order_they_came() {
        let opened = |name: &str| OpenFile {
            name: name.into(),
            file: Arc::new(tempfile::tempfile().unwrap()),
            direct: false,
            write: false,
            mapped: Arc::default(),
            identity: Identity::of(&tempfile::tempfile().unwrap()).unwrap(),
            lost_name: AtomicBool::new(false),
        };
        let mut files = Files::default();
        for number in [3, 1, 7, 2] {
            files.insert(FileId::new(number), opened(&number.to_string()));
        }
        assert_eq!(&*files.remove(FileId::new(2)).unwrap().name, "2");
        for number in 0..9 {
            match files.get(FileId::new(number)) {
                Ok(file) => assert_eq!(*file.name, *number.to_string()),
                Err(error) => assert!([0, 2, 4, 5, 6, 8].contains(&number), "{number}: {error}"),
            }
        }
        assert!(files.remove(FileId::new(2)).is_err());
    }
}
