//! The pager: fetches nodes from the cache, or nodes read ahead from the prefetch buffer, and has the others read from
//! the device, many with one parallel read ([`NodeReader`]). It decides which nodes are offered to the cache.
//!
//! Invariant: only checked nodes, and records of checked nodes, come into the cache.

use crate::cache::Cache;
use crate::cache::prefetch_buffer::{Claim, PrefetchBuffer};
use crate::cache::scan_lengths::ScanLengths;
use crate::encryption::Encryption;
use crate::error::Result;
use crate::latency::Latencies;
use crate::log_area::read_cost::ReadCosts;
use crate::operation::KeyspaceId;
use crate::storage::frames::Frames;
use crate::storage::mapping_table::{Address, Position};
use crate::storage::node::{Node, NodeId};
use crate::storage::reader::{InFlightLimit, NodeReader, Plan, ReadsInFlight};
use crate::storage::sample_room::SampleRoom;
use crate::storage::segment::Segments;
use crate::storage::striped::Striped;
use bytes::Bytes;
use psync::{AlignedBuffer, FileId, Volume};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

pub(crate) use crate::storage::reader::{FILE, Keep};

/// How a set of nodes is read, and what happens to the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadMode {
    /// Each node with its own request, whatever lies beside it, to look something up in it. Each is offered to the
    /// cache.
    Single,
    /// As `Single`, for a writer: these reads do not count as ones that a reader waits for.
    Inner,
    /// Neighbours on the device with one request, and not offered to the cache. For scans, which put the
    /// nodes that they need there themselves.
    Runs,
    /// As `Runs`, but takes nodes from the prefetch buffer if they are there. For writers: flush, cleansing, collector.
    Prefetched,
    /// As `Runs`, to fill the prefetch buffer.
    Ahead,
    /// As `Runs`, but bypasses the cache to read what is on the device. For a check.
    Verify,
}

impl ReadMode {
    fn keep(self) -> Keep {
        if self == Self::Single { Keep::Briefly } else { Keep::Long }
    }
}

/// Memory of a pager, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PagerMemory {
    pub cache: u64,
    /// Read buffers that are kept idle.
    pub buffers: usize,
    /// Frames that are kept idle, however many are in use.
    pub frames: usize,
}

/// See the module.
pub(crate) struct Pager {
    pub reader: NodeReader,
    pub cache: Cache,
    /// Bytes that iterators hold ([`IteratorMemory`]).
    iterator_bytes: AtomicUsize,
    /// Nodes read ahead of the flush.
    pub prefetch: PrefetchBuffer,
    /// What range searches charge for log pieces.
    pub read_costs: ReadCosts,
    /// How long range searches have been.
    pub lengths: ScanLengths,
    pub counters: Striped<PagerCounters>,
    pub latencies: Latencies,
    /// For what dictionaries are trained of.
    pub samples: SampleRoom,
}

/// Counters since the database was opened.
#[derive(Debug, Default)]
pub(crate) struct PagerCounters {
    /// Records found in the cache.
    pub record_hits: AtomicU64,
    /// Nodes found in the cache, and nodes not found.
    pub hits: AtomicU64,
    pub misses: AtomicU64,
    /// Of the misses, leaves and log pieces that readers requested, and whatever a `multi_get` had to read.
    pub waited_for: AtomicU64,
    /// Nodes that a flush took from the prefetch buffer.
    pub ahead: AtomicU64,
}

impl Pager {
    pub fn new(
        (volume, file): (Arc<dyn Volume>, FileId),
        span: u64,
        pio_max: usize,
        room: PagerMemory,
        encryption: Encryption,
        latencies: Latencies,
    ) -> Self {
        let frames = Frames::new(room.frames);
        let memory = (room.buffers, frames);
        Self {
            cache: Cache::new(room.cache, Arc::clone(&memory.1)),
            reader: NodeReader::new((volume, file), span, pio_max, memory, encryption, latencies.clone()),
            iterator_bytes: AtomicUsize::new(0),
            prefetch: PrefetchBuffer::default(),
            read_costs: ReadCosts::default(),
            lengths: ScanLengths::default(),
            counters: Striped::default(),
            latencies,
            // A sixteenth of the memory budget, but for the smallest: an eighth of 4 MiB.
            samples: SampleRoom::new(4 * room.buffers),
        }
    }

    /// Bytes that iterators hold.
    pub fn iterator_bytes(&self) -> usize {
        self.iterator_bytes.load(Relaxed)
    }

    /// PioMax: the most nodes to ask for at once.
    pub fn pio_max(&self) -> usize {
        self.reader.pio_max()
    }

    /// Leaves and log pieces that readers requested and that were not in the cache, since the database was
    /// opened.
    pub fn waited_for(&self) -> u64 {
        self.counters.total(|counters| &counters.waited_for)
    }

    /// The node, if it is in the cache.
    pub fn cached(&self, address: Address) -> Option<Node> {
        self.cache.get(address.position)
    }

    /// Puts a node into the cache.
    pub fn admit(&self, position: Position, node: Node) {
        self.cache.insert(position, node);
    }

    /// Removes a node from the cache, because it was replaced or its writing was aborted. Returns whether it
    /// was there.
    pub fn forget(&self, position: Position) -> bool {
        self.cache.remove(position)
    }

    /// The record of a key in the trees, if it is cached, for a reader of the state with this number.
    pub fn record(&self, number: u64, keyspace: KeyspaceId, key: &[u8]) -> Option<Bytes> {
        let found = self.cache.record(number, keyspace, key);
        if found.is_some() {
            self.counters.mine().record_hits.fetch_add(1, Relaxed);
        }
        found
    }

    /// As [`Pager::cached`], and counted as a hit: for callers that need the node.
    pub fn look_up(&self, address: Address) -> Option<Node> {
        let node = self.cached(address);
        if node.is_some() {
            self.counters.mine().hits.fetch_add(1, Relaxed);
        }
        node
    }

    /// One node, as [`Pager::fetch`] with [`ReadMode::Single`], without its lists: a get reads one node.
    pub fn fetch_one(&self, segments: &Segments, id: NodeId, address: Address, keep: Keep) -> Result<Node> {
        if let Some(node) = self.look_up(address) {
            return Ok(node);
        }
        let counters = self.counters.mine();
        counters.misses.fetch_add(1, Relaxed);
        let node = self.reader.read_one(segments, id, address, keep)?;
        // Only readers fetch a single leaf or log piece here: writers fetch several, or inner nodes.
        if !node.name().is_inner() {
            counters.waited_for.fetch_add(1, Relaxed);
        }
        self.cache.offer(address.position, &node, keep);
        Ok(node)
    }

    /// Nodes by id and address, in the order asked, with one parallel read of those that are not in the cache.
    pub fn fetch(
        &self,
        segments: &Segments,
        wanted: &[(NodeId, Address)],
        mode: ReadMode,
    ) -> Result<Vec<Node>> {
        let mut nodes: Vec<Option<Node>> = wanted
            .iter()
            .map(|(_, address)| if mode == ReadMode::Verify { None } else { self.cached(*address) })
            .collect();
        let mut missing: Vec<usize> = (0..wanted.len()).filter(|index| nodes[*index].is_none()).collect();
        self.counters.mine().hits.fetch_add((wanted.len() - missing.len()) as u64, Relaxed);
        let mut coming = Vec::new();
        if mode == ReadMode::Prefetched {
            let claims = self.prefetch.claim(missing.iter().map(|index| wanted[*index].1.position));
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
            self.counters.mine().ahead.fetch_add((needed - missing.len()) as u64, Relaxed);
        }
        self.read(segments, missing, wanted, mode, &mut nodes)?;
        let mut failed = Vec::new();
        for index in coming {
            match self.prefetch.wait(wanted[index].1.position) {
                Some(node) => nodes[index] = Some(node),
                None => failed.push(index),
            }
        }
        self.read(segments, failed, wanted, mode, &mut nodes)?;
        Ok(nodes.into_iter().flatten().collect())
    }

    /// Reads the missing ones of the wanted nodes.
    fn read(
        &self,
        segments: &Segments,
        missing: Vec<usize>,
        wanted: &[(NodeId, Address)],
        mode: ReadMode,
        nodes: &mut [Option<Node>],
    ) -> Result<()> {
        if missing.is_empty() {
            return Ok(());
        }
        let plan = self.plan(segments, missing, wanted, mode)?;
        self.reader.submit_and_wait(&plan, wanted, mode.keep(), self.take_in(wanted, mode, nodes))
    }

    /// Plans the requests for the missing nodes.
    fn plan(
        &self,
        segments: &Segments,
        missing: Vec<usize>,
        wanted: &[(NodeId, Address)],
        mode: ReadMode,
    ) -> Result<Plan> {
        self.counters.mine().misses.fetch_add(missing.len() as u64, Relaxed);
        if matches!(mode, ReadMode::Single | ReadMode::Runs) {
            self.counters.mine().waited_for.fetch_add(missing.len() as u64, Relaxed);
        }
        self.reader.plan(segments, wanted, missing, !matches!(mode, ReadMode::Single | ReadMode::Inner))
    }

    /// What is done with each node that was read, as `mode` says.
    fn take_in<'a>(
        &'a self,
        wanted: &'a [(NodeId, Address)],
        mode: ReadMode,
        nodes: &'a mut [Option<Node>],
    ) -> impl FnMut(usize, Node) {
        move |index, node| {
            let position = wanted[index].1.position;
            match mode {
                ReadMode::Single | ReadMode::Inner => self.cache.offer(position, &node, mode.keep()),
                // The search decides whether it is cached.
                ReadMode::Runs => drop(self.cache.missed(position)),
                ReadMode::Prefetched | ReadMode::Ahead | ReadMode::Verify => {}
            }
            nodes[index] = Some(node);
        }
    }

    /// As [`Pager::fetch`], but does not read yet, and takes nothing from the prefetch buffer.
    pub fn ask(
        &self,
        segments: &Segments,
        wanted: Vec<(NodeId, Address)>,
        mode: ReadMode,
    ) -> Result<AskedNodes> {
        let nodes: Vec<_> = wanted.iter().map(|(_, address)| self.cached(*address)).collect();
        let missing: Vec<usize> = (0..wanted.len()).filter(|index| nodes[*index].is_none()).collect();
        self.counters.mine().hits.fetch_add((wanted.len() - missing.len()) as u64, Relaxed);
        let plan = self.plan(segments, missing, &wanted, mode)?;
        Ok(AskedNodes { wanted, nodes, plan, mode, begun: None })
    }

    /// Has the device begin to read the missing nodes, into spare buffers if there are any, unless too much
    /// was begun already. Returns whether the reads are in flight, or there is nothing to read: then the
    /// caller has reason to begin more.
    pub fn begin(
        &self,
        asked: &mut AskedNodes,
        spare: &mut Vec<AlignedBuffer>,
        limit: InFlightLimit,
    ) -> bool {
        if asked.begun.is_none() {
            asked.begun = self.reader.begin(&asked.plan, spare, limit);
        }
        asked.begun.as_ref().map_or(asked.plan.is_empty(), |begun| !begun.has_ended())
    }

    /// Completes a [`Pager::ask`]: returns the nodes in the order asked. Reads what was not begun; the
    /// buffers of begun reads become spare.
    pub fn bring(&self, asked: AskedNodes, spare: &mut Vec<AlignedBuffer>) -> Result<Vec<Node>> {
        let AskedNodes { wanted, mut nodes, plan, mode, begun } = asked;
        let take_in = self.take_in(&wanted, mode, &mut nodes);
        match begun {
            Some(begun) if mode == ReadMode::Ahead => {
                self.reader.finish_in_place(begun, &plan, &wanted, take_in)?;
            }
            Some(begun) => self.reader.finish(begun, &plan, &wanted, spare, take_in)?,
            None => self.reader.submit_and_wait(&plan, &wanted, mode.keep(), take_in)?,
        }
        Ok(nodes.into_iter().flatten().collect())
    }
}

/// What an iterator holds between two steps, counted as long as this lives.
pub(crate) struct IteratorMemory {
    pager: Arc<Pager>,
    bytes: usize,
}

impl IteratorMemory {
    pub fn new(pager: Arc<Pager>) -> Self {
        Self { pager, bytes: 0 }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// From now on so many bytes. Returns whether that is another number.
    #[inline]
    pub fn set(&mut self, bytes: usize) -> bool {
        let before = std::mem::replace(&mut self.bytes, bytes);
        if bytes != before {
            self.pager.iterator_bytes.fetch_add(bytes.wrapping_sub(before), Relaxed);
        }
        bytes != before
    }
}

impl Drop for IteratorMemory {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Nodes that were asked for: cached ones are here, the others still to be read or in flight. See
/// [`Pager::ask`].
pub(crate) struct AskedNodes {
    wanted: Vec<(NodeId, Address)>,
    nodes: Vec<Option<Node>>,
    plan: Plan,
    mode: ReadMode,
    begun: Option<ReadsInFlight>,
}

impl AskedNodes {
    /// The nodes, in the order in which they were asked for.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> {
        self.wanted.iter().map(|(id, _)| *id)
    }

    /// Bytes of memory in flight.
    pub fn bytes_in_flight(&self) -> usize {
        self.begun.as_ref().map_or(0, ReadsInFlight::bytes)
    }
}
