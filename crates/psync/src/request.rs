//! The members of a psync set.
//!
//! Invariants, checked by every device before anything is submitted:
//! 1. a set is all reads or all writes (the types ensure this);
//! 2. no two writes of a set overlap;
//! 3. on a file opened for direct I/O every offset, length and buffer address is a multiple of
//!    [`Limits::alignment`](crate::Limits::alignment).

/// An open file of a [`Volume`](crate::Volume). Valid until closed. The id of a closed file is refused, and
/// never refers to a newer file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub(crate) u64);

impl FileId {
    /// Creates an id, for a device that is implemented outside this crate.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The bare number, for devices implemented outside this crate and for messages.
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// A request to fill all of `buffer` from `file`, starting at byte `offset`.
#[derive(Debug)]
pub struct Read<'a> {
    /// The file to read from.
    pub file: FileId,
    /// The first byte, from the beginning of the file.
    pub offset: u64,
    /// The buffer. It is filled completely, or the set fails with [`Error::Short`](crate::Error::Short).
    pub buffer: &'a mut [u8],
}

/// A request to write all of `data` to `file`, starting at byte `offset`. The file grows if necessary.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// The file to write to.
    pub file: FileId,
    /// The first byte, from the beginning of the file.
    pub offset: u64,
    /// The data. It is written completely, or the set fails.
    pub data: &'a [u8],
}

/// A member of a set of both reads and writes: see [`Disk::mingled`](crate::Disk::mingled).
#[derive(Debug)]
pub enum Request<'a> {
    /// A read.
    Read(Read<'a>),
    /// A write.
    Write(Write<'a>),
}

/// Refuses sets in which two writes overlap: the result would be undefined.
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
