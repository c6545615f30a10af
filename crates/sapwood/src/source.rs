//! Sequential reading of files through a window of 1 MiB: logs and manifests.
//!
//! Invariants:
//! 1. Memory: one window, and what is copied out of it.
//! 2. A failed read is an error, never the end of the file.
//! 3. For a repair, what can be read is: a window that cannot be read as a whole is read in parts, down to a page.

use crate::error::{Error, Result};
use bytes::Bytes;
use psync::{Access, AlignedBuffer, Device, FileId, Read, Volume};
use std::ops::Deref;

/// Bytes read at a time: enough for a device's full speed, and little memory.
pub(crate) const WINDOW_LEN: usize = 1 << 20;

/// Bytes that are tried if a whole window cannot be read, and the most that are passed over behind one place that cannot.
const PART: u64 = 64 << 10;
/// Bytes that are tried at least, and passed over where they cannot be read: what devices and page caches read at least.
const PAGE: u64 = 4 << 10;

/// What is done where something cannot be read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unreadable {
    /// It is an error.
    Refused,
    /// What can be read beside it is read, and searches go on behind it.
    PassedOver,
}

/// Bytes at offsets: a file, or memory.
pub(crate) trait Source {
    fn len(&self) -> u64;

    /// Fills `buffer` from `offset` on. The caller keeps the range within the length.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()>;
}

/// A file that is opened and closed elsewhere, up to a length.
pub(crate) struct OpenFile<V> {
    pub volume: V,
    pub file: FileId,
    pub len: u64,
}

impl<V: Deref<Target: Volume>> Source for OpenFile<V> {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        if buffer.is_empty() {
            return Ok(());
        }
        Ok(self.volume.read(&mut [Read { file: self.file, offset, buffer }])?)
    }
}

/// An open file, closed when dropped, of a volume that is borrowed or shared.
pub(crate) struct OwnedFile<V: Deref<Target: Volume>> {
    file: OpenFile<V>,
    /// What offsets and lengths of reads must be multiples of. 1: the page cache is read.
    alignment: u64,
}

/// The same, of a volume that is borrowed.
pub(crate) type FileSource<'a> = OwnedFile<&'a dyn Volume>;

impl<V: Deref<Target: Volume>> OwnedFile<V> {
    pub fn open(volume: V, name: &str) -> psync::Result<Self> {
        Self::open_with(volume, name, Access::default(), 1)
    }

    /// Reads from the device, where direct I/O is available. After a failed sync the page cache shows what the
    /// device may not have.
    pub fn open_direct(volume: V, name: &str) -> psync::Result<Self> {
        let limits = volume.limits();
        let alignment = if limits.direct { limits.alignment as u64 } else { 1 };
        Self::open_with(volume, name, Access { direct: true, ..Access::default() }, alignment)
    }

    fn open_with(volume: V, name: &str, access: Access, alignment: u64) -> psync::Result<Self> {
        let file = volume.open(name, access)?;
        let mut source = Self { file: OpenFile { volume, file, len: 0 }, alignment };
        source.file.len = source.file.volume.len(file)?;
        Ok(source)
    }

    /// The file's beginning, up to byte `len`: what is appended to it later does not count.
    pub fn up_to(mut self, len: u64) -> Self {
        self.file.len = self.file.len.min(len);
        self
    }

    /// Reads a range that is not aligned through a buffer that is.
    fn read_aligned(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let start = offset - offset % self.alignment;
        let skipped = (offset - start) as usize;
        let needed = skipped + buffer.len();
        let mut aligned = AlignedBuffer::new(needed.next_multiple_of(self.alignment as usize));
        let read = Read { file: self.file.file, offset: start, buffer: &mut aligned };
        match self.file.volume.read(&mut [read]) {
            // The end of the file is not aligned.
            Err(psync::Error::Short { found, .. }) if found >= needed => {}
            read => read.map_err(Error::from)?,
        }
        buffer.copy_from_slice(&aligned[skipped..needed]);
        Ok(())
    }
}

impl<V: Deref<Target: Volume>> Source for OwnedFile<V> {
    fn len(&self) -> u64 {
        self.file.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        if self.alignment == 1 || buffer.is_empty() {
            return self.file.read_at(offset, buffer);
        }
        self.read_aligned(offset, buffer)
    }
}

impl<V: Deref<Target: Volume>> Drop for OwnedFile<V> {
    fn drop(&mut self) {
        // Nothing was written through this handle, so nothing can be lost.
        let _ = self.file.volume.close(self.file.file);
    }
}

/// For tests and fuzzing.
#[cfg(any(fuzzing, test))]
impl Source for &[u8] {
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let bytes = usize::try_from(offset).ok().and_then(|offset| self.get(offset..)?.get(..buffer.len()));
        match bytes {
            Some(bytes) => {
                buffer.copy_from_slice(bytes);
                Ok(())
            }
            None => Err(psync::Error::Short {
                operation: "read",
                file: "memory".to_owned(),
                offset,
                expected: buffer.len(),
                found: 0,
            }
            .into()),
        }
    }
}

/// The part of a source that is currently in memory.
pub(crate) struct Window<S> {
    pub source: S,
    bytes: AlignedBuffer,
    start: u64,
    unreadable: Unreadable,
}

impl<S: Source> Window<S> {
    pub fn new(source: S) -> Self {
        let mut bytes = AlignedBuffer::new(source.len().min(WINDOW_LEN as u64) as usize);
        bytes.set_len(0);
        Self { source, bytes, start: 0, unreadable: Unreadable::Refused }
    }

    /// The same for a repair.
    pub fn of_damaged(source: S) -> Self {
        Self { unreadable: Unreadable::PassedOver, ..Self::new(source) }
    }

    /// Up to `len` bytes from `offset` on; fewer at the end of the source, and at most a window.
    pub fn get(&mut self, offset: u64, len: usize) -> Result<&[u8]> {
        if self.loaded(offset, len).is_none() {
            let rest = self.source.len().saturating_sub(offset);
            let whole = rest.min(WINDOW_LEN as u64) as usize;
            // What follows may be what cannot be read.
            let may_be_less = len < whole && self.unreadable == Unreadable::PassedOver;
            self.load(offset, whole).or_else(|error| match may_be_less {
                true => self.load(offset, len),
                false => Err(error),
            })?;
        }
        let bytes = self.from(offset);
        Ok(bytes.get(..len).unwrap_or(bytes))
    }

    /// What is loaded from `offset` on, if it is at least so many bytes, else what can be loaded: up to a window, and so many at least
    /// unless the source ends before.
    fn ahead(&mut self, offset: u64, least: usize) -> Result<&[u8]> {
        if self.loaded(offset, least).is_none() {
            let rest = self.source.len().saturating_sub(offset);
            let to = |end: u64| (end - offset).min(rest) as usize;
            let of_part = to((offset + least as u64).next_multiple_of(PART));
            let of_page = to((offset + least as u64).next_multiple_of(PAGE));
            let whole = self.load(offset, rest.min(WINDOW_LEN as u64) as usize);
            match self.unreadable {
                Unreadable::Refused => whole?,
                Unreadable::PassedOver => {
                    whole.or_else(|_| self.load(offset, of_part)).or_else(|_| self.load(offset, of_page))?
                }
            }
        }
        Ok(self.from(offset))
    }

    fn load(&mut self, offset: u64, len: usize) -> Result<()> {
        self.bytes.set_len(len);
        self.start = offset;
        self.source.read_at(offset, &mut self.bytes).inspect_err(|_| self.bytes.set_len(0))
    }

    fn from(&self, offset: u64) -> &[u8] {
        let from = usize::try_from(offset - self.start).unwrap_or(usize::MAX);
        self.bytes.get(from..).unwrap_or_default()
    }

    fn loaded(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let from = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        self.bytes.get(from..)?.get(..len)
    }

    /// A copy of `len` bytes from `offset` on. The caller has checked that they exist.
    pub fn copy(&mut self, offset: u64, len: usize) -> Result<Bytes> {
        if len > WINDOW_LEN {
            let mut bytes = vec![0; len];
            self.source.read_at(offset, &mut bytes)?;
            return Ok(bytes.into());
        }
        Ok(Bytes::copy_from_slice(self.get(offset, len)?))
    }

    /// Shows `look` what there is from `from` on, and where it begins, until it has found something that has `len` bytes.
    pub fn search<T>(
        &mut self,
        (from, len): (u64, usize),
        mut look: impl FnMut(&[u8], u64) -> Option<T>,
    ) -> Result<Option<T>> {
        let (mut at, mut step, unreadable) = (from, PAGE, self.unreadable);
        while at.saturating_add(len as u64) <= self.source.len() {
            match self.ahead(at, len) {
                Ok(bytes) => {
                    if let Some(found) = look(bytes, at) {
                        return Ok(Some(found));
                    }
                    // The window may have cut what begins in its last bytes.
                    at += (bytes.len() - (len - 1)) as u64;
                    step = PAGE;
                }
                Err(error) if unreadable == Unreadable::Refused => return Err(error),
                Err(_) => {
                    at = at - at % PAGE + step;
                    step = (2 * step).min(PART);
                }
            }
        }
        Ok(None)
    }

    /// The offset of the next `magic` at or after `from`.
    pub fn find(&mut self, magic: &[u8; 4], from: u64) -> Result<Option<u64>> {
        let magic = memchr::memmem::Finder::new(magic);
        self.search((from, 4), |bytes, at| Some(at + magic.find(bytes)? as u64))
    }

    /// Where the zeros at the end of the source begin, but not before `from`.
    pub fn zeros_at_end(&mut self, from: u64) -> Result<u64> {
        let (mut at, mut end) = (from, from);
        while at < self.source.len() {
            let bytes = self.get(at, WINDOW_LEN)?;
            if let Some(last) = bytes.iter().rposition(|byte| *byte != 0) {
                end = at + last as u64 + 1;
            }
            at += bytes.len() as u64;
        }
        Ok(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_magic_is_found_wherever_it_lies() {
        for from in [0, 1, 7] {
            for at in
                (0..10).chain(WINDOW_LEN - 6..WINDOW_LEN + 12).chain([2 * WINDOW_LEN - 4, 2 * WINDOW_LEN - 3])
            {
                let mut bytes = vec![0; at];
                bytes.extend_from_slice(b"SapE");
                let expected = (at as u64 >= from).then_some(at as u64);
                assert_eq!(
                    Window::new(&bytes[..]).find(b"SapE", from).unwrap(),
                    expected,
                    "{at} from {from}"
                );
                bytes.truncate(at + 3);
                assert_eq!(Window::new(&bytes[..]).find(b"SapE", from).unwrap(), None, "a part of one");
            }
        }
        let bytes = b"SapESapE.SapE";
        let mut window = Window::new(&bytes[..]);
        let all = [0, 1, 4, 5, 9, 10, 99].map(|from| window.find(b"SapE", from).unwrap());
        assert_eq!(all, [Some(0), Some(4), Some(4), Some(9), Some(9), None, None]);
    }
}
