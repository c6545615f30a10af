//! The pager: takes nodes from the cache or, many with one parallel read, from the device, and lets nothing pass that
//! is not what the mapping table says.
//!
//! Invariants:
//! 1. Every node that it gives out has the id, the length and the checksum of its address: a flipped bit, another
//!    node's bytes and an older version of the same node are all noticed.
//! 2. Only checked nodes, and records of checked nodes, come into the cache.
//! 3. Reads that were begun and not waited for hold no more memory in buffers than may be idle, or one set of them: whoever is in the middle
//!    of a walk may stay there for as long as he likes. Those that were dropped hold theirs until they are done, and are no longer counted: psync keeps few.

use crate::error::{Error, Result};
use crate::node::{Node, NodeId, Refusal};
use crate::operation::KeyspaceId;
use crate::store::cache::Cache;
use crate::store::frames::Frames;
use crate::store::mapping_table::{Address, Position};
use crate::store::rent::Rents;
use crate::store::scan_lengths::ScanLengths;
use crate::store::segment::Segments;
use crate::store::stage::{Claim, Stage};
use bytes::Bytes;
use mpsearch::{Extent, Run, runs};
use psync::{AlignedBuffer, BufferPool, FileId, InFlight, Read, ReadInto, Volume};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Name of the data file.
pub(crate) const FILE: &str = "data";

/// How a set of nodes is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gather {
    /// Each by itself, whatever lies beside it. The cache is offered each.
    Single,
    /// Neighbours on the device with one request, and not into the cache. For scans, which put there what they need.
    Runs,
    /// As `Runs`, and from the stage what is there. For whoever writes: flush, cleansing, collector.
    Staged,
    /// As `Runs`, to fill the stage.
    Ahead,
    /// As `Runs`, and past the cache: what is on the device. For a check.
    Verify,
}

/// Longest request that brings several nodes, and how many useless bytes may lie between two of them: below these, one
/// longer request costs less than two.
const RUN_MAX: usize = 256 << 10;
const GAP_MAX: usize = 16 << 10;

/// Memory of a pager, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub cache: u64,
    /// Read buffers that are kept idle.
    pub buffers: usize,
    /// Frames that are kept idle, whatever is in use.
    pub frames: usize,
}

/// See the module.
pub(crate) struct Pager {
    volume: Arc<dyn Volume>,
    file: FileId,
    span: u64,
    alignment: usize,
    pio_max: usize,
    pub cache: Cache,
    buffers: BufferPool,
    /// Bytes of memory in buffers that what was begun may hold, and holds.
    aloft_max: usize,
    aloft: Arc<AtomicUsize>,
    frames: Arc<Frames>,
    /// What is read ahead of the flush.
    pub stage: Stage,
    /// What range searches pay for log pieces.
    pub rents: Rents,
    /// How long they have been.
    pub lengths: ScanLengths,
    pub counters: PagerCounters,
}

/// What the pager has done since the database was opened.
#[derive(Debug, Default)]
pub(crate) struct PagerCounters {
    /// Records found in the cache.
    pub record_hits: AtomicU64,
    /// Nodes found in the cache, and not.
    pub hits: AtomicU64,
    pub misses: AtomicU64,
    /// Parallel reads and the requests in them.
    pub read_sets: AtomicU64,
    pub reads: AtomicU64,
    pub bytes_read: AtomicU64,
    /// Nodes that a flush took from the stage.
    pub ahead: AtomicU64,
}

impl Pager {
    pub fn new(volume: Arc<dyn Volume>, file: FileId, span: u64, pio_max: usize, room: Room) -> Self {
        let alignment = volume.limits().alignment.max(1);
        let frames = Frames::new(room.frames);
        Self {
            volume,
            file,
            span,
            alignment,
            pio_max: pio_max.max(1),
            cache: Cache::new(room.cache, Arc::clone(&frames)),
            buffers: BufferPool::new(room.buffers),
            aloft_max: room.buffers,
            aloft: Arc::default(),
            frames,
            stage: Stage::default(),
            rents: Rents::default(),
            lengths: ScanLengths::default(),
            counters: PagerCounters::default(),
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

    /// Idle read buffers, in bytes.
    pub fn idle_buffers(&self) -> usize {
        self.buffers.idle_bytes()
    }

    /// Pages of frames in use, and idle ones.
    #[cfg(test)]
    pub fn frame_pages(&self) -> (usize, usize) {
        self.frames.pages()
    }

    /// Bytes of memory in buffers that were begun to be read into.
    #[cfg(test)]
    pub fn aloft(&self) -> usize {
        self.aloft.load(Relaxed)
    }

    /// The node, if it is in the cache.
    pub fn cached(&self, address: Address) -> Option<Node> {
        self.cache.get(address.position)
    }

    /// A copy of a node's bytes in memory that is meant for nodes.
    pub fn copy(&self, bytes: &[u8]) -> Bytes {
        self.frames.copy(bytes)
    }

    /// Puts a node that was just written into the cache.
    pub fn admit(&self, position: Position, node: Node) {
        self.cache.insert(position, node);
    }

    /// Takes a node out of the cache, because it was replaced or its writing was aborted. Says whether it was there.
    pub fn forget(&self, position: Position) -> bool {
        self.cache.remove(position)
    }

    /// The record of a key in the trees, if it is in the cache, for a reader of a state with this number.
    pub fn record(&self, number: u64, keyspace: KeyspaceId, key: &[u8]) -> Option<Bytes> {
        let found = self.cache.record(number, keyspace, key);
        if found.is_some() {
            self.counters.record_hits.fetch_add(1, Relaxed);
        }
        found
    }

    /// As [`Pager::cached`], and counted: for whoever needs the node.
    pub fn look_up(&self, address: Address) -> Option<Node> {
        let node = self.cached(address);
        self.counters.hits.fetch_add(u64::from(node.is_some()), Relaxed);
        node
    }

    /// One node, as [`Pager::fetch`] with [`Gather::Single`], without the lists of that: a get has one node to read.
    pub fn fetch_one(&self, segments: &Segments, id: NodeId, address: Address) -> Result<Node> {
        if let Some(node) = self.look_up(address) {
            return Ok(node);
        }
        self.counters.misses.fetch_add(1, Relaxed);
        let offset = self.file_offset(segments, (id, address))?;
        let request = Extent { offset, len: address.len as usize }.aligned(self.alignment);
        let mut buffer = self.buffers.take(request.len);
        let read = Read { file: self.file, offset: request.offset, buffer: &mut buffer };
        self.volume.read(&mut [read]).map_err(unread)?;
        self.counters.read_sets.fetch_add(1, Relaxed);
        self.counters.reads.fetch_add(1, Relaxed);
        self.counters.bytes_read.fetch_add(request.len as u64, Relaxed);
        let node = self.node_of(&buffer, request.offset, offset, id, address)?;
        self.cache.offer(address.position, &node);
        Ok(node)
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

    /// Nodes by id and address, in the order asked, with one parallel read of those that are not in the cache.
    pub fn fetch(
        &self,
        segments: &Segments,
        wanted: &[(NodeId, Address)],
        gather: Gather,
    ) -> Result<Vec<Node>> {
        let mut nodes: Vec<Option<Node>> = wanted
            .iter()
            .map(|(_, address)| if gather == Gather::Verify { None } else { self.cached(*address) })
            .collect();
        let mut missing: Vec<usize> = (0..wanted.len()).filter(|index| nodes[*index].is_none()).collect();
        self.counters.hits.fetch_add((wanted.len() - missing.len()) as u64, Relaxed);
        let mut coming = Vec::new();
        if gather == Gather::Staged {
            let claims = self.stage.claim(missing.iter().map(|index| wanted[*index].1.position));
            let needed = missing.len();
            let mut claims = claims.into_iter();
            missing.retain(|index| match claims.next() {
                Some(Claim::Here(node)) => {
                    nodes[*index] = Some(node);
                    false
                }
                Some(Claim::Coming) => {
                    coming.push(*index);
                    false
                }
                Some(Claim::Absent) | None => true,
            });
            self.counters.ahead.fetch_add((needed - missing.len()) as u64, Relaxed);
        }
        self.read(segments, missing, wanted, gather, &mut nodes)?;
        let mut failed = Vec::new();
        for index in coming {
            match self.stage.wait(wanted[index].1.position) {
                Some(node) => nodes[index] = Some(node),
                None => failed.push(index),
            }
        }
        self.read(segments, failed, wanted, gather, &mut nodes)?;
        Ok(nodes.into_iter().flatten().collect())
    }

    fn file_offset(&self, segments: &Segments, (id, address): (NodeId, Address)) -> Result<u64> {
        segments.file_offset(address.position, address.len as usize, self.span).ok_or_else(|| {
            let what = format!("address of {id}");
            Error::corrupt(FILE, address.position.0, what, "a place in a segment", "a place outside of all")
        })
    }

    /// Reads those of the wanted nodes that are missing.
    fn read(
        &self,
        segments: &Segments,
        missing: Vec<usize>,
        wanted: &[(NodeId, Address)],
        gather: Gather,
        nodes: &mut [Option<Node>],
    ) -> Result<()> {
        if missing.is_empty() {
            return Ok(());
        }
        let plan = self.plan(segments, missing, wanted, gather)?;
        let buffers = self.carry_out(&plan)?;
        self.take_in(&plan, &buffers, wanted, gather, nodes)
    }

    /// Which requests bring the missing nodes.
    fn plan(
        &self,
        segments: &Segments,
        missing: Vec<usize>,
        wanted: &[(NodeId, Address)],
        gather: Gather,
    ) -> Result<Plan> {
        self.counters.misses.fetch_add(missing.len() as u64, Relaxed);
        let mut members = missing
            .into_iter()
            .map(|index| Ok((self.file_offset(segments, wanted[index])?, index)))
            .collect::<Result<Vec<_>>>()?;
        members.sort_unstable();
        let extents: Vec<_> = members
            .iter()
            .map(|(offset, index)| Extent { offset: *offset, len: wanted[*index].1.len as usize })
            .collect();
        let (run_max, gap_max) = match gather {
            Gather::Runs | Gather::Staged | Gather::Ahead | Gather::Verify => (RUN_MAX, GAP_MAX),
            Gather::Single => (0, 0),
        };
        let runs = runs(&extents, self.alignment, run_max, gap_max);
        Ok(Plan { members, runs })
    }

    /// Carries out the requests and waits for them.
    fn carry_out(&self, plan: &Plan) -> Result<Vec<AlignedBuffer>> {
        let mut buffers: Vec<_> = plan.runs.iter().map(|run| self.buffers.take(run.len)).collect();
        let requests = plan.runs.iter().zip(&mut buffers);
        let mut set: Vec<_> =
            requests.map(|(run, buffer)| Read { file: self.file, offset: run.offset, buffer }).collect();
        self.volume.read(&mut set).map_err(unread)?;
        self.count(plan);
        Ok(buffers)
    }

    fn count(&self, plan: &Plan) {
        self.counters.read_sets.fetch_add(plan.runs.len().div_ceil(self.pio_max) as u64, Relaxed);
        self.counters.reads.fetch_add(plan.runs.len() as u64, Relaxed);
        self.counters.bytes_read.fetch_add(plan.runs.iter().map(|run| run.len as u64).sum(), Relaxed);
    }

    /// Makes nodes of what was read.
    fn take_in(
        &self,
        plan: &Plan,
        buffers: &[AlignedBuffer],
        wanted: &[(NodeId, Address)],
        gather: Gather,
        nodes: &mut [Option<Node>],
    ) -> Result<()> {
        for (run, buffer) in plan.runs.iter().zip(buffers) {
            for (offset, index) in &plan.members[run.members.clone()] {
                let (id, address) = wanted[*index];
                let node = self.node_of(buffer, run.offset, *offset, id, address)?;
                match gather {
                    Gather::Single => self.cache.offer(address.position, &node),
                    // Whether it is cached is for the search to say.
                    Gather::Runs => drop(self.cache.missed(address.position)),
                    Gather::Staged | Gather::Ahead | Gather::Verify => {}
                }
                nodes[*index] = Some(node);
            }
        }
        Ok(())
    }

    /// As [`Pager::fetch`] with [`Gather::Runs`], of which the reading is still to come.
    pub fn ask(&self, segments: &Segments, wanted: Vec<(NodeId, Address)>) -> Result<Coming> {
        let nodes: Vec<_> = wanted.iter().map(|(_, address)| self.cached(*address)).collect();
        let missing: Vec<usize> = (0..wanted.len()).filter(|index| nodes[*index].is_none()).collect();
        self.counters.hits.fetch_add((wanted.len() - missing.len()) as u64, Relaxed);
        let plan = self.plan(segments, missing, &wanted, Gather::Runs)?;
        Ok(Coming { wanted, nodes, plan, reads: None })
    }

    /// Has the device begin to read what is not here, into spare buffers as far as there are any; unless too much was begun already.
    pub fn begin(&self, coming: &mut Coming, spare: &mut Vec<AlignedBuffer>) {
        if coming.reads.is_some() || coming.plan.runs.is_empty() {
            return;
        }
        let runs = coming.plan.runs.iter();
        let bytes = runs.clone().map(|run| AlignedBuffer::capacity_for(run.len)).sum();
        let Some(allowance) = Allowance::of(bytes, &self.aloft, self.aloft_max) else { return };
        let reads = runs.map(|run| {
            let capacity = AlignedBuffer::capacity_for(run.len);
            let fits = spare.iter().position(|buffer| buffer.capacity() == capacity);
            let mut buffer =
                fits.map_or_else(|| self.buffers.take(run.len), |index| spare.swap_remove(index));
            buffer.set_len(run.len);
            ReadInto { file: self.file, offset: run.offset, buffer }
        });
        coming.reads = Some((self.volume.begin(reads.collect()), allowance));
        self.count(&coming.plan);
    }

    /// What was asked for, in that order. Reads what is not here and was not begun; the buffers of what was are spare then.
    pub fn bring(&self, coming: Coming, spare: &mut Vec<AlignedBuffer>) -> Result<Vec<Node>> {
        let Coming { wanted, mut nodes, plan, reads } = coming;
        match reads {
            Some((reads, _allowance)) => {
                let buffers = reads.wait().map_err(unread)?;
                self.take_in(&plan, &buffers, &wanted, Gather::Runs, &mut nodes)?;
                // The pages of a buffer that was just used need not be found anew.
                *spare = buffers;
            }
            None if plan.runs.is_empty() => {}
            None => self.take_in(&plan, &self.carry_out(&plan)?, &wanted, Gather::Runs, &mut nodes)?,
        }
        Ok(nodes.into_iter().flatten().collect())
    }
}

/// Which requests bring some nodes.
struct Plan {
    /// The nodes, by where they are in the file and in what was asked for.
    members: Vec<(u64, usize)>,
    runs: Vec<Run>,
}

/// Nodes that were asked for: those of the cache are here, the others are to be read or in flight. See [`Pager::ask`].
pub(crate) struct Coming {
    wanted: Vec<(NodeId, Address)>,
    nodes: Vec<Option<Node>>,
    plan: Plan,
    reads: Option<(InFlight, Allowance)>,
}

/// Leave to have so many bytes of buffers in flight.
struct Allowance {
    bytes: usize,
    all: Arc<AtomicUsize>,
}

impl Allowance {
    /// One more is let go if others hold nothing.
    fn of(bytes: usize, all: &Arc<AtomicUsize>, max: usize) -> Option<Self> {
        let allowance = Self { bytes, all: Arc::clone(all) };
        // Given back by the drop, also where it was too much.
        let before = all.fetch_add(bytes, Relaxed);
        (before == 0 || before + bytes <= max).then_some(allowance)
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
