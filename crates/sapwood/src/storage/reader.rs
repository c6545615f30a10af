//! Reads nodes from the data file: plans the requests, reads into buffers, and checks every node against its
//! address in the mapping table. The [`pager`](crate::cache::pager) decides what has to be read and what happens to
//! the nodes.
//!
//! ```text
//! addresses ─▶ plan: extents in file order, neighbours as runs ─▶ submit_and_wait ─────────────▶ nodes, each copied and checked
//!                                                               └▶ begin ─ in flight ─┬ finish ┘
//!                                                                                     └ finish_in_place ▶ nodes that lie where they were read, checked
//! ```
//! Nodes for a cache or for users are copied, so that one node does not keep the memory of the others. Two kinds
//! stay in their buffers, which go back to the pool when their last node is dropped: nodes that a flush reads
//! ahead, since the flush drops neighbours together as it goes on; and short nodes that were read to look
//! something up ([`Keep::Briefly`]).
//!
//! Invariants:
//! 1. Every node that it returns has the id, the length and the checksum of its address: a flipped bit,
//!    another node's bytes and an older version of the same node are all noticed.
//! 2. Reads in flight hold at most as many bytes of buffers as may be idle, or one set of buffers: a reader
//!    in the middle of a walk may rest there for as long as it likes. A reader that has some in flight takes
//!    more than half of this only while no other has any. A caller that
//!    [bounds its reads itself](InFlightLimit::Own) is excepted. Reads that were dropped hold their buffers until
//!    they are done, and are no longer counted: psync keeps few, and little.
//! 3. One parallel read brings no more bytes than that either, or than [`TOGETHER_MIN`] if that is more, unless it is
//!    a single request: what does not fit is read by the next one.

mod in_flight;
mod verify;

pub(crate) use in_flight::InFlightLimit;
pub(crate) use verify::verify_stored;

use crate::encryption::Encryption;
use crate::error::{Error, Result};
use crate::latency::{Latencies, Timed};
use crate::storage::compressed::{self, StoredNode, is_compressed};
use crate::storage::dictionary::Dictionaries;
use crate::storage::encrypted;
use crate::storage::frames::Frames;
use crate::storage::mapping_table::Address;
use crate::storage::node::{Node, NodeId, SHARED_FROM};
use crate::storage::segment::Segments;
use crate::storage::striped::Striped;
use bytes::Bytes;
use in_flight::Permit;
use mpsearch::{Extent, Run, runs};
use psync::{AlignedBuffer, BufferPool, FileId, InFlight, Read, ReadInto, Volume};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use verify::{verify, verify_node};

/// Name of the data file.
pub(crate) const FILE: &str = crate::error::DATA;

/// Greatest length of a request that brings several nodes, and most useless bytes between two of them: below
/// these, one longer request costs less than two.
const RUN_MAX: usize = 256 << 10;
const GAP_MAX: usize = 16 << 10;

/// So many bytes are read together in any case, however small the memory budget: PioMax leaves of 8 KiB.
const TOGETHER_MIN: usize = 512 << 10;

/// See the module.
pub(crate) struct NodeReader {
    volume: Arc<dyn Volume>,
    file: FileId,
    span: u64,
    alignment: usize,
    pio_max: usize,
    buffers: BufferPool,
    /// Bytes of buffers that reads in flight may hold, and do hold.
    in_flight_max: usize,
    in_flight: Arc<AtomicUsize>,
    frames: Arc<Frames>,
    encryption: Encryption,
    is_closed: AtomicBool,
    /// Says what an error of reading is a sign of, if other processes may write.
    reword: OnceLock<Box<dyn Fn(Error) -> Error + Send + Sync>>,
    pub counters: Striped<ReadCounters>,
    latencies: Latencies,
}

/// What was read since the database was opened: parallel reads, their requests, and bytes.
#[derive(Debug, Default)]
pub(crate) struct ReadCounters {
    pub sets: AtomicU64,
    pub requests: AtomicU64,
    pub bytes: AtomicU64,
}

/// A node to read: its offset in the file, its id and its address.
type Place = (u64, NodeId, Address);

/// The requests that bring some of the wanted nodes.
pub(crate) struct Plan {
    /// These nodes: their offsets in the file, and their indices among the wanted ones.
    members: Vec<(u64, usize)>,
    runs: Vec<Run>,
    dictionaries: Dictionaries,
}

impl ReadsInFlight {
    /// Bytes of buffers that it holds.
    pub fn bytes(&self) -> usize {
        self.permit.bytes
    }

    /// Whether nothing is in flight any more: some devices always read before they return.
    pub fn has_ended(&self) -> bool {
        self.reads.has_ended()
    }
}

impl Plan {
    /// Whether there is nothing to read.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }
}

/// Reads in flight. See [`NodeReader::begin`].
pub(crate) struct ReadsInFlight {
    reads: InFlight,
    permit: Permit,
}

impl NodeReader {
    /// Keeps `idle_buffers` bytes of read buffers idle.
    pub fn new(
        (volume, file): (Arc<dyn Volume>, FileId),
        span: u64,
        pio_max: usize,
        (idle_buffers, frames): (usize, Arc<Frames>),
        encryption: Encryption,
        latencies: Latencies,
    ) -> Self {
        let alignment = volume.limits().alignment.max(1);
        Self {
            volume,
            file,
            span,
            alignment,
            pio_max: pio_max.max(1),
            buffers: BufferPool::new(idle_buffers),
            in_flight_max: idle_buffers,
            in_flight: Arc::default(),
            frames,
            encryption,
            is_closed: AtomicBool::new(false),
            reword: OnceLock::new(),
            counters: Striped::default(),
            latencies,
        }
    }

    /// PioMax: the most nodes to ask for at once.
    pub fn pio_max(&self) -> usize {
        self.pio_max
    }

    /// The pool that buffers come from.
    pub fn buffers(&self) -> &BufferPool {
        &self.buffers
    }

    /// Bytes of read buffers that may be idle.
    pub fn buffers_max(&self) -> u64 {
        self.in_flight_max as u64
    }

    /// The frames that nodes are copied into.
    pub fn frames(&self) -> &Arc<Frames> {
        &self.frames
    }

    /// How nodes are encrypted.
    pub fn encryption(&self) -> &Encryption {
        &self.encryption
    }

    /// Bytes of buffers that reads in flight hold.
    #[cfg(test)]
    pub fn bytes_in_flight(&self) -> usize {
        self.in_flight.load(Relaxed)
    }

    /// From now on nothing is read: others may open the database, and write where nodes were.
    pub fn close(&self) {
        self.is_closed.store(true, SeqCst);
    }

    /// From now on errors of reading are what `reword` makes of them.
    pub fn reword_errors(&self, reword: impl Fn(Error) -> Error + Send + Sync + 'static) {
        let _ = self.reword.set(Box::new(reword));
    }

    /// What an error of reading is a sign of.
    pub fn reword(&self, error: Error) -> Error {
        match self.reword.get() {
            Some(reword) => reword(error),
            None => error,
        }
    }

    /// The result of reading something, or the error that the database was closed, before or meanwhile. (A node that was
    /// found sound is what it was.)
    fn unless_closed<T>(&self, read: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.is_closed.load(SeqCst) {
            return Err(Error::Closed);
        }
        read().map_err(|error| match self.is_closed.load(SeqCst) {
            true => Error::Closed,
            false => self.reword(error),
        })
    }

    /// One node, without the lists of a plan: a get has one node to read.
    pub fn read_one(&self, segments: &Segments, id: NodeId, address: Address, keep: Keep) -> Result<Node> {
        self.unless_closed(|| self.read_alone(segments, id, address, keep))
    }

    fn read_alone(&self, segments: &Segments, id: NodeId, address: Address, keep: Keep) -> Result<Node> {
        let offset = self.file_offset(segments, (id, address))?;
        let request = Extent { offset, len: address.len() as usize }.aligned(self.alignment);
        let mut buffer = self.buffers.take(request.len);
        let read = Read { file: self.file, offset: request.offset, buffer: &mut buffer };
        self.latencies.timed(Timed::Read, || self.volume.read(&mut [read])).map_err(unread)?;
        self.count(1, 1, request.len as u64);
        self.node_alone(buffer, request.offset, (offset, id, address), keep, &segments.dictionaries)
    }

    /// How many of the next reads, of so many bytes each, may be in memory together: at least one.
    pub fn fits(&self, lens: impl Iterator<Item = usize>) -> usize {
        let mut bytes = 0;
        let fits = |len: &usize| {
            bytes += len;
            bytes <= self.in_flight_max.max(TOGETHER_MIN)
        };
        lens.take_while(fits).count().max(1)
    }

    /// Plans the requests for the `missing` ones of the wanted nodes: one each, or one for neighbours if
    /// `together`.
    pub fn plan(
        &self,
        segments: &Segments,
        wanted: &[(NodeId, Address)],
        missing: Vec<usize>,
        together: bool,
    ) -> Result<Plan> {
        let mut members = missing
            .into_iter()
            .map(|index| Ok((self.file_offset(segments, wanted[index])?, index)))
            .collect::<Result<Vec<_>>>()?;
        members.sort_unstable();
        let extents: Vec<_> = members
            .iter()
            .map(|(offset, index)| Extent { offset: *offset, len: wanted[*index].1.len() as usize })
            .collect();
        let (run_max, gap_max) = if together { (RUN_MAX, GAP_MAX) } else { (0, 0) };
        let runs = runs(&extents, self.alignment, run_max, gap_max);
        Ok(Plan { members, runs, dictionaries: segments.dictionaries.clone() })
    }

    /// Makes the requests, waits for them, and calls `node` with each node and its index among the wanted
    /// ones.
    pub fn submit_and_wait(
        &self,
        plan: &Plan,
        wanted: &[(NodeId, Address)],
        keep: Keep,
        mut node: impl FnMut(usize, Node),
    ) -> Result<()> {
        if plan.is_empty() {
            return Ok(());
        }
        self.unless_closed(|| self.read_all(plan, wanted, keep, &mut node))
    }

    fn read_all(
        &self,
        plan: &Plan,
        wanted: &[(NodeId, Address)],
        keep: Keep,
        node: &mut impl FnMut(usize, Node),
    ) -> Result<()> {
        self.read_runs(plan, |run, buffer| {
            match &plan.members[run.members.clone()] {
                [(offset, index)] => {
                    let (id, address) = wanted[*index];
                    let place = (*offset, id, address);
                    node(*index, self.node_alone(buffer, run.offset, place, keep, &plan.dictionaries)?);
                }
                _ => self.copy_out(plan, run, &buffer, wanted, node)?,
            }
            Ok(())
        })
    }

    /// Nodes as they are stored, neighbours with one request, in the order asked.
    pub fn read_stored(&self, segments: &Segments, wanted: &[(NodeId, Address)]) -> Result<Vec<StoredNode>> {
        let plan = self.plan(segments, wanted, (0..wanted.len()).collect(), true)?;
        let mut nodes = vec![None; wanted.len()];
        self.unless_closed(|| {
            self.read_runs(&plan, |run, buffer| {
                for (offset, index) in &plan.members[run.members.clone()] {
                    let ((id, address), start) = (wanted[*index], (offset - run.offset) as usize);
                    let bytes = Bytes::copy_from_slice(&buffer[start..start + address.len() as usize]);
                    nodes[*index] = Some(verify_stored(bytes, *offset, id, address)?);
                }
                Ok(())
            })
        })?;
        Ok(nodes.into_iter().flatten().collect())
    }

    /// Makes the requests, as many at once as may be in memory together, and calls `each` with what each has brought.
    fn read_runs(&self, plan: &Plan, mut each: impl FnMut(&Run, AlignedBuffer) -> Result<()>) -> Result<()> {
        let mut rest = &plan.runs[..];
        while !rest.is_empty() {
            let runs;
            (runs, rest) = rest.split_at(self.fits(rest.iter().map(|run| run.len)));
            let mut buffers: Vec<_> = runs.iter().map(|run| self.buffers.take(run.len)).collect();
            let requests = runs.iter().zip(&mut buffers);
            let mut set: Vec<_> =
                requests.map(|(run, buffer)| Read { file: self.file, offset: run.offset, buffer }).collect();
            self.latencies.timed(Timed::Read, || self.volume.read(&mut set)).map_err(unread)?;
            self.count_runs(runs);
            runs.iter().zip(buffers).try_for_each(|(run, buffer)| each(run, buffer))?;
        }
        Ok(())
    }

    /// Has the device begin the requests, into spare buffers if there are any. `None` if there is nothing to
    /// read, or too much was begun already.
    pub fn begin(
        &self,
        plan: &Plan,
        spare: &mut Vec<AlignedBuffer>,
        limit: InFlightLimit,
    ) -> Option<ReadsInFlight> {
        if plan.is_empty() || self.is_closed.load(SeqCst) {
            return None;
        }
        let runs = plan.runs.iter();
        let shared = match limit {
            InFlightLimit::Shared { mine } => {
                let bytes = runs.clone().map(|run| AlignedBuffer::capacity_for(run.len)).sum();
                Some(Permit::of(bytes, &self.in_flight, self.in_flight_max, mine)?)
            }
            InFlightLimit::Own => None,
        };
        let reads: Vec<_> = runs
            .map(|run| {
                let capacity = AlignedBuffer::capacity_for(run.len);
                let fits = spare.iter().position(|buffer| buffer.capacity() == capacity);
                let mut buffer = match fits {
                    Some(index) => spare.swap_remove(index),
                    None if shared.is_some() => self.buffers.take(run.len),
                    None => self.buffers.take_or_larger(run.len),
                };
                buffer.set_len(run.len);
                ReadInto { file: self.file, offset: run.offset, buffer }
            })
            .collect();
        let held = || reads.iter().map(|read| read.buffer.capacity()).sum();
        let permit = shared.unwrap_or_else(|| Permit::own(held()));
        let reads = self.volume.begin(reads);
        self.count_runs(&plan.runs);
        Some(ReadsInFlight { reads, permit })
    }

    /// As [`NodeReader::submit_and_wait`], for requests that were begun. Their buffers become spare.
    pub fn finish(
        &self,
        begun: ReadsInFlight,
        plan: &Plan,
        wanted: &[(NodeId, Address)],
        spare: &mut Vec<AlignedBuffer>,
        node: impl FnMut(usize, Node),
    ) -> Result<()> {
        let buffers = self.unless_closed(|| {
            let buffers = self.latencies.timed(Timed::Read, || begun.reads.wait()).map_err(unread)?;
            self.take_in(plan, &buffers, wanted, node)?;
            Ok(buffers)
        })?;
        // The pages of a buffer that was just used need not be faulted in again.
        *spare = buffers;
        Ok(())
    }

    /// As [`NodeReader::finish`], for nodes that are dropped soon, neighbours together: they stay in the
    /// buffer, if they fill at least half of it.
    pub fn finish_in_place(
        &self,
        begun: ReadsInFlight,
        plan: &Plan,
        wanted: &[(NodeId, Address)],
        mut node: impl FnMut(usize, Node),
    ) -> Result<()> {
        for (run, buffer) in plan.runs.iter().zip(begun.reads.wait().map_err(unread)?) {
            let members = &plan.members[run.members.clone()];
            // Compressed and encrypted ones have places of their own.
            let stays = |address: &Address| {
                address.len() as usize == address.memory_len() && !self.encryption.is_on()
            };
            let addresses = members.iter().map(|(_, index)| wanted[*index].1);
            let useful: usize = addresses.filter(stays).map(|address| address.len() as usize).sum();
            if 2 * useful < buffer.capacity() {
                self.copy_out(plan, run, &buffer, wanted, &mut node)?;
                continue;
            }
            let all = Bytes::from_owner(buffer);
            for (offset, index) in members {
                let ((id, address), start) = (wanted[*index], (offset - run.offset) as usize);
                let bytes = all.slice(start..start + address.len() as usize);
                node(*index, self.node_in_place(bytes, (*offset, id, address), &plan.dictionaries)?);
            }
        }
        Ok(())
    }

    fn file_offset(&self, segments: &Segments, (id, address): (NodeId, Address)) -> Result<u64> {
        segments.file_offset(address.position, address.len() as usize, self.span).ok_or_else(|| {
            let what = format!("address of {id}");
            Error::corrupt(
                "manifest",
                address.position.0,
                what,
                "a place in a segment",
                "a place outside of all",
            )
        })
    }

    fn count_runs(&self, runs: &[Run]) {
        let sets = runs.len().div_ceil(self.pio_max);
        let bytes = runs.iter().map(|run| run.len as u64).sum();
        self.count(sets as u64, runs.len() as u64, bytes);
    }

    fn count(&self, sets: u64, requests: u64, bytes: u64) {
        let counters = self.counters.mine();
        counters.sets.fetch_add(sets, Relaxed);
        counters.requests.fetch_add(requests, Relaxed);
        counters.bytes.fetch_add(bytes, Relaxed);
    }

    /// Makes nodes from all buffers.
    fn take_in(
        &self,
        plan: &Plan,
        buffers: &[AlignedBuffer],
        wanted: &[(NodeId, Address)],
        mut node: impl FnMut(usize, Node),
    ) -> Result<()> {
        let mut runs = plan.runs.iter().zip(buffers);
        runs.try_for_each(|(run, buffer)| self.copy_out(plan, run, buffer, wanted, &mut node))
    }

    /// Makes nodes from the buffer of one run.
    fn copy_out(
        &self,
        plan: &Plan,
        run: &Run,
        buffer: &AlignedBuffer,
        wanted: &[(NodeId, Address)],
        node: &mut impl FnMut(usize, Node),
    ) -> Result<()> {
        for (offset, index) in &plan.members[run.members.clone()] {
            let (id, address) = wanted[*index];
            node(*index, self.node_of(buffer, run.offset, (*offset, id, address), &plan.dictionaries)?);
        }
        Ok(())
    }

    /// The node at file offset `offset`, the only one wanted from a buffer that begins at file offset `from`.
    fn node_alone(
        &self,
        buffer: AlignedBuffer,
        from: u64,
        (offset, id, address): Place,
        keep: Keep,
        dictionaries: &Dictionaries,
    ) -> Result<Node> {
        let len = address.len() as usize;
        if keep.is_copied(len) {
            return self.node_of(&buffer, from, (offset, id, address), dictionaries);
        }
        let start = (offset - from) as usize;
        let bytes = Bytes::from_owner(buffer).slice(start..start + len);
        self.node_in_place(bytes, (offset, id, address), dictionaries)
    }

    /// The node with these bytes, which stays where it is unless it is compressed or encrypted.
    fn node_in_place(
        &self,
        bytes: Bytes,
        (offset, id, address): Place,
        dictionaries: &Dictionaries,
    ) -> Result<Node> {
        if self.encryption.is_on() || is_compressed(&bytes) {
            return self.node_elsewhere(&bytes, (offset, id, address), dictionaries);
        }
        verify(bytes, offset, id, address)
    }

    /// The node at file offset `offset`, from a buffer that begins at file offset `from`.
    fn node_of(
        &self,
        buffer: &AlignedBuffer,
        from: u64,
        (offset, id, address): Place,
        dictionaries: &Dictionaries,
    ) -> Result<Node> {
        let start = (offset - from) as usize;
        let stored = &buffer[start..start + address.len() as usize];
        if self.encryption.is_on() || is_compressed(stored) {
            return self.node_elsewhere(stored, (offset, id, address), dictionaries);
        }
        // Copied, so that a value that a user keeps does not keep a large aligned buffer.
        verify(self.frames.copy(stored), offset, id, address)
    }

    /// The node that was stored encrypted or compressed.
    fn node_elsewhere(
        &self,
        stored: &[u8],
        (offset, id, address): Place,
        dictionaries: &Dictionaries,
    ) -> Result<Node> {
        let decoded = if self.encryption.is_on() {
            encrypted::decode(&self.encryption, stored, &self.frames, dictionaries)
        } else {
            compressed::decode(stored, &self.frames, dictionaries)
        };
        verify_node(decoded, offset, id, address)
    }
}

/// How long the caller keeps a node that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// As long as it likes: the node is copied into a frame.
    Long,
    /// While it looks something up in the node: one that nothing is shared of stays in its read buffer.
    Briefly,
}

impl Keep {
    /// Whether a node of `len` bytes that was read alone is copied into a frame.
    pub fn is_copied(self, len: usize) -> bool {
        self == Self::Long || len > SHARED_FROM
    }
}

/// The error for a failed read of nodes.
pub(crate) fn unread(error: psync::Error) -> Error {
    match error {
        psync::Error::Short { offset, expected, found, .. } => Error::corrupt(
            FILE,
            offset,
            "the data file ends within a node",
            format!("{expected} bytes"),
            format!("{found} bytes"),
        ),
        other => other.into(),
    }
}
