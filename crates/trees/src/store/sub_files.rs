//! Numbered files of pages that are only ever written at the end of the newest one.
//!
//! Invariants:
//! 1. A write begins where the one before it ended, or at the beginning of the next file; it never spans two files.
//! 2. Every file but the newest is durable, and so is its name; the newest file's name is durable.

use crate::{Error, Result};
use psync::{Access, AlignedBuffer, BufferPool, FileId, Read, Volume, Write};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Where a page is: 8 bytes in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Address {
    pub file: u32,
    pub page: u32,
}

impl Address {
    pub fn packed(self) -> u64 {
        u64::from(self.file) << 32 | u64::from(self.page)
    }

    pub fn unpacked(word: u64) -> Self {
        Self { file: (word >> 32) as u32, page: word as u32 }
    }
}

#[derive(Clone, Copy, Debug)]
struct SubFile {
    file: FileId,
    pages: u32,
}

/// See the module.
pub(crate) struct SubFiles {
    volume: Arc<dyn Volume>,
    prefix: String,
    page_len: usize,
    buffers: BufferPool,
    files: BTreeMap<u32, SubFile>,
}

const ACCESS: Access = Access { write: true, create: false, create_new: false, direct: true };

impl SubFiles {
    /// No files yet. They will be called `prefix` and a number.
    pub fn new(volume: Arc<dyn Volume>, prefix: &str, page_len: usize) -> Self {
        let buffers = BufferPool::new(8 << 20);
        Self { volume, prefix: prefix.to_owned(), page_len, buffers, files: BTreeMap::new() }
    }

    /// Opens the files that are there. Part of a page at the end of a file does not count as a page.
    pub fn open(volume: Arc<dyn Volume>, prefix: &str, page_len: usize) -> Result<Self> {
        let mut files = Self::new(volume, prefix, page_len);
        for entry in files.volume.list()? {
            let Some(number) = numbered(&entry.name, prefix) else { continue };
            let file = files.volume.open(&entry.name, ACCESS)?;
            let pages = u32::try_from(entry.len / page_len as u64).map_err(|_| {
                Error::corrupt(&entry.name, 0, "length of a file", "less than 2^32 pages", entry.len)
            })?;
            files.files.insert(number, SubFile { file, pages });
        }
        Ok(files)
    }

    pub fn name(&self, number: u32) -> String {
        file_name(&self.prefix, number)
    }

    /// Bytes before a page.
    pub fn offset(&self, page: u32) -> u64 {
        u64::from(page) * self.page_len as u64
    }

    /// Numbers and pages, oldest first.
    pub fn list(&self) -> impl DoubleEndedIterator<Item = (u32, u32)> {
        self.files.iter().map(|(number, file)| (*number, file.pages))
    }

    /// The newest file.
    pub fn newest(&self) -> Option<(u32, u32)> {
        self.list().next_back()
    }

    fn get(&self, number: u32) -> Result<SubFile> {
        let file = self.files.get(&number).copied();
        file.ok_or_else(|| {
            let name = self.name(number);
            Error::corrupt(&name, 0, "file of a node", "a file that is there", "none")
        })
    }

    /// Begins the next file.
    pub fn start_next(&mut self) -> Result<()> {
        self.sync()?;
        let number = self.newest().map_or(1, |(number, _)| number + 1);
        let access = Access { create: true, create_new: true, ..ACCESS };
        let file = self.volume.open(&self.name(number), access)?;
        self.volume.sync_directory()?;
        self.files.insert(number, SubFile { file, pages: 0 });
        Ok(())
    }

    /// Memory for pages, to be filled and given to [`Self::append`].
    pub fn buffer(&self, pages: usize) -> AlignedBuffer {
        self.buffers.take(pages * self.page_len)
    }

    /// Writes whole pages to the end of the newest file with one request.
    pub fn append(&mut self, data: &[u8]) -> Result<()> {
        let (number, page) = self.newest().unwrap_or_default();
        let file = self.get(number)?;
        let count = (data.len() / self.page_len) as u32;
        let pages = page
            .checked_add(count)
            .ok_or_else(|| Error::Invalid(format!("{} holds 2^32 pages: no more fit", self.name(number))))?;
        self.volume.write(&[Write { file: file.file, offset: self.offset(page), data }])?;
        self.files.insert(number, SubFile { pages, ..file });
        Ok(())
    }

    /// Reads single pages with one psync.
    pub fn read(&self, places: &[Address]) -> Result<Vec<AlignedBuffer>> {
        let mut buffers: Vec<_> = places.iter().map(|_| self.buffer(1)).collect();
        let mut set = Vec::with_capacity(places.len());
        for (place, buffer) in places.iter().zip(&mut buffers) {
            let file = self.get(place.file)?;
            if place.page >= file.pages {
                let name = self.name(place.file);
                let expected = format!("less than {}", file.pages);
                return Err(Error::corrupt(&name, 0, "page of a node", expected, place.page));
            }
            set.push(Read { file: file.file, offset: self.offset(place.page), buffer });
        }
        self.volume.read(&mut set)?;
        Ok(buffers)
    }

    /// Reads `count` pages that follow one another, with one request.
    pub fn read_run(&self, first: Address, count: usize) -> Result<AlignedBuffer> {
        let mut buffer = self.buffer(count);
        let file = self.get(first.file)?.file;
        self.volume.read(&mut [Read { file, offset: self.offset(first.page), buffer: &mut buffer }])?;
        Ok(buffer)
    }

    /// Cuts a file to so many pages, durably.
    pub fn truncate(&mut self, number: u32, pages: u32) -> Result<()> {
        let file = self.get(number)?;
        if self.volume.len(file.file)? != self.offset(pages) {
            self.volume.resize(file.file, self.offset(pages))?;
        }
        self.volume.sync(file.file)?;
        self.files.insert(number, SubFile { pages, ..file });
        Ok(())
    }

    /// Makes the newest file durable; the others are.
    pub fn sync(&mut self) -> Result<()> {
        if let Some((number, _)) = self.newest() {
            self.volume.sync(self.get(number)?.file)?;
        }
        Ok(())
    }

    /// Removes a file. After power loss it may be there again.
    pub fn remove(&mut self, number: u32) -> Result<()> {
        if let Some(file) = self.files.remove(&number) {
            self.volume.close(file.file)?;
            self.volume.remove(&self.name(number))?;
        }
        Ok(())
    }

    /// Bytes in all files.
    pub fn space(&self) -> u64 {
        self.files.values().map(|file| self.offset(file.pages)).sum()
    }
}

impl Drop for SubFiles {
    fn drop(&mut self) {
        for file in self.files.values() {
            // Whoever needs it durable has synced it.
            let _ = self.volume.close(file.file);
        }
    }
}

/// The name of a numbered file.
pub(crate) fn file_name(prefix: &str, number: u32) -> String {
    format!("{prefix}{number:010}")
}

/// The number in a name that [`file_name`] makes.
pub(crate) fn numbered(name: &str, prefix: &str) -> Option<u32> {
    let number = name.strip_prefix(prefix)?.parse().ok()?;
    (file_name(prefix, number) == name).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use psync::Simulated;

    #[test]
    fn only_names_of_its_own_are_its_files() {
        assert_eq!(numbered("as-0000000012", "as-"), Some(12));
        for foreign in ["as-12", "as-00000000012", "as-0000000012x", "map-0000000012", "as-+000000012"] {
            assert_eq!(numbered(foreign, "as-"), None, "{foreign}");
        }
    }

    #[test]
    fn writes_go_to_the_end_and_pages_that_are_not_there_are_refused() {
        let volume = Arc::new(Simulated::new(1).with_alignment(128));
        let mut files = SubFiles::new(Arc::clone(&volume) as _, "f", 128);
        files.start_next().unwrap();
        let mut two = files.buffer(2);
        two[..128].fill(1);
        two[128..].fill(2);
        files.append(&two).unwrap();
        files.append(&two[..128]).unwrap();
        assert_eq!(files.newest(), Some((1, 3)));
        files.start_next().unwrap();
        files.append(&two).unwrap();
        let read = files.read(&[Address { file: 2, page: 1 }, Address { file: 1, page: 2 }]).unwrap();
        assert_eq!((read[0][0], read[1][0]), (2, 1));
        for missing in [Address { file: 1, page: 3 }, Address { file: 3, page: 0 }] {
            assert!(matches!(files.read(&[missing]), Err(Error::Corrupt { .. })));
            assert_eq!(Address::unpacked(missing.packed()), missing);
        }
        drop(files);
        let mut files = SubFiles::open(volume, "f", 128).unwrap();
        assert_eq!(files.list().collect::<Vec<_>>(), [(1, 3), (2, 2)]);
        files.truncate(2, 1).unwrap();
        files.remove(1).unwrap();
        assert_eq!((files.list().collect::<Vec<_>>(), files.space()), (vec![(2, 1)], 128));
    }
}
