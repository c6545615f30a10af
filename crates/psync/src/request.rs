//! What one member of a psync set asks for.
//!
//! Invariants, checked by every device before anything is submitted:
//! 1. a set is all reads or all writes (the types see to that);
//! 2. no two writes of a set overlap;
//! 3. on a file opened for direct I/O every offset, length and buffer address is a multiple of
//!    [`Limits::alignment`](crate::Limits::alignment).

/// An open file of a [`Volume`](crate::Volume). Valid until closed; a closed one is refused, never confused
/// with a newer file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub(crate) u32);

impl FileId {
    /// An id for a device that is implemented outside this crate.
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The bare number, for devices implemented outside this crate and for messages.
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// Fill all of `buffer` from `file`, beginning at byte `offset`.
#[derive(Debug)]
pub struct Read<'a> {
    /// Where to read.
    pub file: FileId,
    /// First byte, from the beginning of the file.
    pub offset: u64,
    /// Filled completely, or the set fails with [`Error::Short`](crate::Error::Short).
    pub buffer: &'a mut [u8],
}

/// Put all of `data` into `file`, beginning at byte `offset`; the file grows where it must.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// Where to write.
    pub file: FileId,
    /// First byte, from the beginning of the file.
    pub offset: u64,
    /// Written completely, or the set fails.
    pub data: &'a [u8],
}

/// A member of a mingled set: see [`Disk::mingled`](crate::Disk::mingled).
#[derive(Debug)]
pub enum Request<'a> {
    /// To be read.
    Read(Read<'a>),
    /// To be written.
    Write(Write<'a>),
}

/// Refuses two writes of a set that touch the same bytes: nobody could say which would win.
pub(crate) fn refuse_overlap(set: &[Write<'_>]) -> crate::Result<()> {
    let mut ranges: Vec<_> = set.iter().map(|w| (w.file, w.offset, w.offset + w.data.len() as u64)).collect();
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        if pair[0].0 == pair[1].0 && pair[0].2 > pair[1].1 {
            return Err(crate::Error::Invalid(format!(
                "two writes of one set overlap at byte {}",
                pair[1].1
            )));
        }
    }
    Ok(())
}
