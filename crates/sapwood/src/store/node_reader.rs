//! From addresses to nodes: what is read from the data file, with which requests, into which memory; nothing passes that is not what the mapping
//! table says. What need not be read, and what becomes of a node, is for the [`pager`](super::pager) to know.
//!
//! ```text
//! addresses ─▶ plan: extents in file order, neighbours as runs ─▶ carry_out ───────────────────▶ nodes, each copied and checked
//!                                                               └▶ begin ─ in flight ─┬ finish ┘
//!                                                                                     └ finish_in_place ▶ nodes that lie where they were read, checked
//! ```
//! Nodes that go to a cache or to users are copied, so that one of them does not keep the others' memory. What a flush reads ahead it lets go as it goes on, neighbours
//! together: that stays in the buffers, which come back to the pool when their last node is let go.
//!
//! Invariants:
//! 1. Every node that it gives out has the id, the length and the checksum of its address: a flipped bit, another
//!    node's bytes and an older version of the same node are all noticed.
//! 2. Reads that were begun and not waited for hold no more memory in buffers than may be idle, or one set of them: whoever is in the middle
//!    of a walk may stay there for as long as he likes. Who has some in flight takes more than half of it only while nobody else has any; but for the one who [bounds it himself](Leave::Own). Those that were dropped hold theirs until they are done, and are
//!    no longer counted: psync keeps few, and little.

use crate::error::{Error, Result};
use crate::node::{Node, NodeId, Refusal};
use crate::store::frames::Frames;
use crate::store::mapping_table::Address;
use crate::store::segment::Segments;
use bytes::Bytes;
use mpsearch::{Extent, Run, runs};
use psync::{AlignedBuffer, BufferPool, FileId, InFlight, Read, ReadInto, Volume};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Name of the data file.
pub(crate) const FILE: &str = "data";

/// Longest request that brings several nodes, and how many useless bytes may lie between two of them: below these, one
/// longer request costs less than two.
const RUN_MAX: usize = 256 << 10;
const GAP_MAX: usize = 16 << 10;

/// See the module.
pub(crate) struct NodeReader {
    volume: Arc<dyn Volume>,
    file: FileId,
    span: u64,
    alignment: usize,
    pio_max: usize,
    buffers: BufferPool,
    /// Bytes of memory in buffers that what was begun may hold, and holds.
    aloft_max: usize,
    aloft: Arc<AtomicUsize>,
    frames: Arc<Frames>,
    pub counters: ReadCounters,
}

/// What was read since the database was opened: parallel reads, the requests in them, and bytes.
#[derive(Debug, Default)]
pub(crate) struct ReadCounters {
    pub sets: AtomicU64,
    pub requests: AtomicU64,
    pub bytes: AtomicU64,
}

/// Which requests bring some of the nodes that are wanted.
pub(crate) struct Plan {
    /// These nodes, by where they are in the file and in what is wanted.
    members: Vec<(u64, usize)>,
    runs: Vec<Run>,
}

impl Begun {
    /// Bytes of memory that it holds.
    pub fn bytes(&self) -> usize {
        self.allowance.bytes
    }

    /// Whether nothing is in flight: it was read before it was answered, as some devices do always.
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
pub(crate) struct Begun {
    reads: InFlight,
    allowance: Allowance,
}

impl NodeReader {
    /// Keeps so many bytes of read buffers idle.
    pub fn new(
        volume: Arc<dyn Volume>,
        file: FileId,
        span: u64,
        pio_max: usize,
        idle_buffers: usize,
        frames: Arc<Frames>,
    ) -> Self {
        let alignment = volume.limits().alignment.max(1);
        Self {
            volume,
            file,
            span,
            alignment,
            pio_max: pio_max.max(1),
            buffers: BufferPool::new(idle_buffers),
            aloft_max: idle_buffers,
            aloft: Arc::default(),
            frames,
            counters: ReadCounters::default(),
        }
    }

    /// PioMax: the most nodes to ask for at once.
    pub fn pio_max(&self) -> usize {
        self.pio_max
    }

    /// Where buffers come from.
    pub fn buffers(&self) -> &BufferPool {
        &self.buffers
    }

    /// Bytes of read buffers that may be idle.
    pub fn buffers_max(&self) -> u64 {
        self.aloft_max as u64
    }

    /// Where nodes have their memory.
    pub fn frames(&self) -> &Arc<Frames> {
        &self.frames
    }

    /// Bytes of memory in buffers that were begun to be read into.
    #[cfg(test)]
    pub fn aloft(&self) -> usize {
        self.aloft.load(Relaxed)
    }

    /// One node, without the lists of a plan: a get has one node to read.
    pub fn read_one(&self, segments: &Segments, id: NodeId, address: Address) -> Result<Node> {
        let offset = self.file_offset(segments, (id, address))?;
        let request = Extent { offset, len: address.len as usize }.aligned(self.alignment);
        let mut buffer = self.buffers.take(request.len);
        let read = Read { file: self.file, offset: request.offset, buffer: &mut buffer };
        self.volume.read(&mut [read]).map_err(unread)?;
        self.count(1, 1, request.len as u64);
        self.node_of(&buffer, request.offset, offset, id, address)
    }

    /// Which requests bring those of the wanted nodes that are `missing`: one each, or neighbours together.
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
            .map(|(offset, index)| Extent { offset: *offset, len: wanted[*index].1.len as usize })
            .collect();
        let (run_max, gap_max) = if together { (RUN_MAX, GAP_MAX) } else { (0, 0) };
        let runs = runs(&extents, self.alignment, run_max, gap_max);
        Ok(Plan { members, runs })
    }

    /// Carries out the requests, waits for them, and gives out each node beside its place in what is wanted.
    pub fn carry_out(
        &self,
        plan: &Plan,
        wanted: &[(NodeId, Address)],
        node: impl FnMut(usize, Node),
    ) -> Result<()> {
        if plan.is_empty() {
            return Ok(());
        }
        let mut buffers: Vec<_> = plan.runs.iter().map(|run| self.buffers.take(run.len)).collect();
        let requests = plan.runs.iter().zip(&mut buffers);
        let mut set: Vec<_> =
            requests.map(|(run, buffer)| Read { file: self.file, offset: run.offset, buffer }).collect();
        self.volume.read(&mut set).map_err(unread)?;
        self.count_plan(plan);
        self.take_in(plan, &buffers, wanted, node)
    }

    /// Has the device begin with the requests, into spare buffers as far as there are any. `None` if there is nothing
    /// to read, or too much was begun already.
    pub fn begin(&self, plan: &Plan, spare: &mut Vec<AlignedBuffer>, leave: Leave) -> Option<Begun> {
        if plan.is_empty() {
            return None;
        }
        let runs = plan.runs.iter();
        let shared = match leave {
            Leave::Shared { mine } => {
                let bytes = runs.clone().map(|run| AlignedBuffer::capacity_for(run.len)).sum();
                Some(Allowance::of(bytes, &self.aloft, self.aloft_max, mine)?)
            }
            Leave::Own => None,
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
        let allowance = shared.unwrap_or_else(|| Allowance::own(held()));
        let reads = self.volume.begin(reads);
        self.count_plan(plan);
        Some(Begun { reads, allowance })
    }

    /// As [`NodeReader::carry_out`], of what was begun. Its buffers are spare then.
    pub fn finish(
        &self,
        begun: Begun,
        plan: &Plan,
        wanted: &[(NodeId, Address)],
        spare: &mut Vec<AlignedBuffer>,
        node: impl FnMut(usize, Node),
    ) -> Result<()> {
        let buffers = begun.reads.wait().map_err(unread)?;
        self.take_in(plan, &buffers, wanted, node)?;
        // The pages of a buffer that was just used need not be found anew.
        *spare = buffers;
        Ok(())
    }

    /// As [`NodeReader::finish`], for nodes that are soon let go, and neighbours together: they keep the buffers, if they are half of their memory at least.
    pub fn finish_in_place(
        &self,
        begun: Begun,
        plan: &Plan,
        wanted: &[(NodeId, Address)],
        mut node: impl FnMut(usize, Node),
    ) -> Result<()> {
        for (run, buffer) in plan.runs.iter().zip(begun.reads.wait().map_err(unread)?) {
            let members = &plan.members[run.members.clone()];
            let useful: usize = members.iter().map(|(_, index)| wanted[*index].1.len as usize).sum();
            if 2 * useful < buffer.capacity() {
                self.copy_out(plan, run, &buffer, wanted, &mut node)?;
                continue;
            }
            let all = Bytes::from_owner(buffer);
            for (offset, index) in members {
                let ((id, address), start) = (wanted[*index], (offset - run.offset) as usize);
                let bytes = all.slice(start..start + address.len as usize);
                node(*index, verify(bytes, *offset, id, address)?);
            }
        }
        Ok(())
    }

    fn file_offset(&self, segments: &Segments, (id, address): (NodeId, Address)) -> Result<u64> {
        segments.file_offset(address.position, address.len as usize, self.span).ok_or_else(|| {
            let what = format!("address of {id}");
            Error::corrupt(FILE, address.position.0, what, "a place in a segment", "a place outside of all")
        })
    }

    fn count_plan(&self, plan: &Plan) {
        let sets = plan.runs.len().div_ceil(self.pio_max);
        let bytes = plan.runs.iter().map(|run| run.len as u64).sum();
        self.count(sets as u64, plan.runs.len() as u64, bytes);
    }

    fn count(&self, sets: u64, requests: u64, bytes: u64) {
        self.counters.sets.fetch_add(sets, Relaxed);
        self.counters.requests.fetch_add(requests, Relaxed);
        self.counters.bytes.fetch_add(bytes, Relaxed);
    }

    /// Makes nodes of what was read.
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

    /// Makes nodes of what a run has brought.
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
            node(*index, self.node_of(buffer, run.offset, *offset, id, address)?);
        }
        Ok(())
    }

    /// The node at `offset` of the file, of which a buffer has the bytes from another offset on.
    fn node_of(
        &self,
        buffer: &AlignedBuffer,
        from: u64,
        offset: u64,
        id: NodeId,
        address: Address,
    ) -> Result<Node> {
        let start = (offset - from) as usize;
        // A copy, so that a value that a user keeps does not keep a large aligned buffer.
        let bytes = self.frames.copy(&buffer[start..start + address.len as usize]);
        verify(bytes, offset, id, address)
    }
}

/// By whose leave something is in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Leave {
    /// That of all walks together. Whoever asks has so many bytes in flight already.
    Shared { mine: usize },
    /// His own: he bounds it himself.
    Own,
}

/// Leave to have so many bytes of buffers in flight.
struct Allowance {
    bytes: usize,
    all: Arc<AtomicUsize>,
}

impl Allowance {
    fn own(bytes: usize) -> Self {
        Self { bytes, all: Arc::new(AtomicUsize::new(bytes)) }
    }

    /// One more is let go if others hold nothing.
    fn of(bytes: usize, all: &Arc<AtomicUsize>, max: usize, mine: usize) -> Option<Self> {
        let most = |before| if mine == 0 || before == mine { max } else { max / 2 };
        let more = |before| (before == 0 || before + bytes <= most(before)).then_some(before + bytes);
        all.fetch_update(Relaxed, Relaxed, more).ok()?;
        Some(Self { bytes, all: Arc::clone(all) })
    }
}

impl Drop for Allowance {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Relaxed);
    }
}

/// What a failed read of nodes means.
fn unread(error: psync::Error) -> Error {
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

/// Checks that the bytes at `offset` of the data file are the node that they should be.
fn verify(bytes: Bytes, offset: u64, id: NodeId, address: Address) -> Result<Node> {
    let node = Node::decode(bytes).map_err(|Refusal { at, what, expected, found }| {
        Error::corrupt(FILE, offset + at as u64, format!("{what} ({id})"), expected, found)
    })?;
    if node.name().id != id {
        return Err(Error::corrupt(FILE, offset + 8, "node id", id, node.name().id));
    }
    if node.crc() != address.crc {
        let what = format!("{id} is an older version than the mapping table points to");
        return Err(Error::corrupt(
            FILE,
            offset + 36,
            what,
            format!("checksum {:08x}", address.crc),
            format!("{:08x}", node.crc()),
        ));
    }
    Ok(node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_some_in_flight_leaves_half_to_others_unless_he_is_alone() {
        let all = Arc::default();
        let of = |bytes, mine| Allowance::of(bytes, &all, 100, mine);
        let first = of(40, 0).expect("half and more");
        let second = of(50, 40).expect("he is alone");
        assert!(of(20, 90).is_none(), "more than all");
        drop(of(10, 0).expect("what is left"));
        drop(second);
        let other = of(10, 0).expect("half");
        assert!(of(10, 40).is_none() && of(10, 10).is_none(), "not alone any more");
        drop(of(50, 0).expect("who has nothing yet"));
        drop((first, other));
        assert_eq!(all.load(Relaxed), 0, "what was refused is not counted");
        drop(of(500, 0).expect("one of any length, if nobody else has any"));
    }
}
