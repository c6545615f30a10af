//! Reads in flight: started, but not yet waited for. They own their buffers until they are done.
//!
//! Invariants:
//! 1. Only the device can touch a buffer while it may be written to: the buffer is owned, with everything else
//!    that the read needs, on the heap. Dropping an [`InFlight`] leaves it to the device, which frees it when
//!    it is done. The device holds only a few such sets at a time; beyond that, the drop waits. Leaking an
//!    `InFlight` leaks its buffers.
//! 2. The result is what [`Device::read`](crate::Device::read) would have returned for the same requests.

use crate::completion::conclude;
use crate::forked::OfProcess;
use crate::transfer::{Mover, OwnedRead, OwnedReads};
use crate::{AlignedBuffer, FileId, Read, Result};
use std::sync::Arc;

/// A request to fill all of `buffer` from `file`, starting at byte `offset`: a [`Read`] for
/// [`Device::begin`](crate::Device::begin).
#[derive(Debug)]
pub struct ReadInto {
    /// The file to read from.
    pub file: FileId,
    /// The first byte, from the beginning of the file.
    pub offset: u64,
    /// The buffer. It is filled completely, or the set fails with [`Error::Short`](crate::Error::Short).
    pub buffer: AlignedBuffer,
}

impl ReadInto {
    /// The same request for [`Device::read`](crate::Device::read).
    fn borrowed(&mut self) -> Read<'_> {
        Read { file: self.file, offset: self.offset, buffer: &mut self.buffer }
    }
}

/// A set of reads that has been started: see [`Device::begin`](crate::Device::begin).
#[must_use = "who drops it has the device read for nothing"]
pub struct InFlight(State);

enum State {
    Ended(Result<Vec<AlignedBuffer>>),
    Begun(Box<DiskReads>),
}

impl InFlight {
    /// Completes the reads before it returns: for devices without asynchronous reads.
    pub fn at_once(mut reads: Vec<ReadInto>, read: impl FnOnce(&mut [Read<'_>]) -> Result<()>) -> Self {
        let mut set: Vec<_> = reads.iter_mut().map(ReadInto::borrowed).collect();
        let result = read(&mut set);
        Self::ended(result.map(|()| reads.into_iter().map(|read| read.buffer).collect()))
    }

    pub(crate) fn ended(result: Result<Vec<AlignedBuffer>>) -> Self {
        Self(State::Ended(result))
    }

    pub(crate) fn begun(reads: DiskReads) -> Self {
        Self(State::Begun(Box::new(reads)))
    }

    /// Whether all reads had already ended when the set was started: always on devices without asynchronous
    /// reads, and when too many sets are in flight.
    pub fn has_ended(&self) -> bool {
        matches!(self.0, State::Ended(_))
    }

    /// Waits until all reads have ended. Returns their buffers, in the order of the set.
    ///
    /// # Errors
    /// As [`Device::read`](crate::Device::read). The buffers are then dropped. In a child that was forked meanwhile
    /// [`Error::Forked`](crate::Error::Forked).
    pub fn wait(self) -> Result<Vec<AlignedBuffer>> {
        match self.0 {
            State::Ended(result) => result,
            State::Begun(reads) => reads.wait(),
        }
    }
}

impl std::fmt::Debug for InFlight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.0 {
            State::Ended(_) => "InFlight(ended)",
            State::Begun(_) => "InFlight",
        })
    }
}

/// The reads that a [`Disk`](crate::Disk) has started.
pub(crate) struct DiskReads {
    /// Buffers that are already filled: those of all parts of a large set but the last.
    pub filled: Vec<AlignedBuffer>,
    /// A child that was forked shares the kernel's queues of its parent: if it took completions from these, its parent would wait for them.
    pub begun: OfProcess<Box<dyn OwnedReads>>,
    /// Names of the files, for errors.
    pub names: Vec<Arc<str>>,
    /// Completes short reads.
    pub mover: Arc<dyn Mover>,
}

impl DiskReads {
    fn wait(self) -> Result<Vec<AlignedBuffer>> {
        let mut reads = self.begun.take()?.wait();
        let transfers = reads.iter_mut().map(OwnedRead::transfer).collect();
        conclude(&*self.mover, transfers, "read", |index| &self.names[index])?;
        let mut buffers = self.filled;
        buffers.extend(reads.into_iter().map(|read| read.buffer));
        Ok(buffers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use crate::transfer::Transfer;
    use std::fs::File;
    use std::io::Write;

    /// Moves at most so many bytes at a time.
    struct Slow(usize);

    impl Mover for Slow {
        fn run(&self, set: &mut [Transfer<'_>]) {
            for transfer in set {
                let crate::transfer::Memory::Into(buffer) = &mut transfer.memory else { panic!("a read") };
                let (len, file) = (buffer.len().min(self.0), transfer.file);
                let mut part = Transfer {
                    file,
                    offset: transfer.offset,
                    memory: crate::transfer::Memory::Into(&mut buffer[..len]),
                    outcome: Ok(0),
                };
                part.run_alone();
                transfer.outcome = part.outcome;
            }
        }
    }

    /// Those that were tried once already.
    struct Tried(Vec<OwnedRead>);

    impl OwnedReads for Tried {
        fn wait(self: Box<Self>) -> Vec<OwnedRead> {
            self.0
        }
    }

    fn begun(file: &Arc<File>, step: usize, lens: &[usize]) -> DiskReads {
        let mover = Arc::new(Slow(step));
        let mut at = 0;
        let reads = lens.iter().map(|len| {
            let (offset, buffer) = (at, AlignedBuffer::new(*len));
            at += *len as u64;
            OwnedRead { file: Arc::clone(file), offset, buffer, outcome: Ok(0) }
        });
        let mut reads: Vec<_> = reads.collect();
        for read in &mut reads {
            let mut transfers = [read.transfer()];
            mover.run(&mut transfers);
            let [tried] = transfers;
            read.outcome = tried.outcome;
        }
        let names = lens.iter().map(|len| format!("{len}").into()).collect();
        DiskReads {
            filled: vec![AlignedBuffer::new(1)],
            begun: OfProcess::new(Box::new(Tried(reads))),
            names,
            mover,
        }
    }

    #[test]
    fn what_came_up_short_is_carried_on_to_its_end() {
        let mut file = tempfile::tempfile().unwrap();
        let text: Vec<u8> = (0..1000_u32).map(|n| (n % 251) as u8).collect();
        file.write_all(&text).unwrap();
        let file = Arc::new(file);
        for step in [1, 7, 300, 1000] {
            let found = begun(&file, step, &[100, 400, 500]).wait().unwrap();
            assert_eq!(found[0].len(), 1, "what was filled before comes first");
            assert!(found[1..].iter().flat_map(|buffer| buffer.iter()).eq(&text), "step {step}");
            match begun(&file, step, &[100, 500, 700]).wait().unwrap_err() {
                Error::Short { file, offset: 600, expected: 700, found: 400, .. } => assert_eq!(file, "700"),
                other => panic!("step {step}: {other:?}"),
            }
        }
    }
}
