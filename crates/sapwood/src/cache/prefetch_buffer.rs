//! The prefetch buffer: holds nodes that a thread reads ahead of the flush, so that the device works while the flush
//! merges, writes and syncs. The flush waits for a node that is coming. A node whose read has not begun
//! it reads itself, and the prefetch buffer will not read it again.
//!
//! ```text
//! reader ahead ──begin──▶ coming ──arrived──▶ here ──claim──▶ flush
//!                            └─failed──▶ (gone: the flush reads it itself, and gets the error)
//! ```
//!
//! Invariants:
//! 1. Nodes are known by position, which is never published twice: what is staged is never stale, at worst it
//!    is not wanted.
//! 2. Nodes here and coming are within the limit, if the thread that reads ahead asks for room first. The
//!    limit counts bytes of nodes. Nodes that stay in their read buffer (see
//!    [`NodeReader::finish_in_place`](crate::storage::reader::NodeReader::finish_in_place)) keep the whole buffer
//!    until the last of them is dropped, and up to half of it may lie between nodes. So the memory is mostly
//!    half as much again, and could be twice as much, and the log pieces of one batch besides.
//! 3. A node that is coming arrives or fails: dropping a batch fails it.
//! 4. The nodes of a block are given up as soon as the flush asks for something beyond the block, whether
//!    they were wanted or not.

use crate::lock_order::{RankedMutex, rank};
use crate::operation::KeyspaceId;
use crate::storage::mapping_table::{Address, Position};
use crate::storage::node::{Node, NodeId};
use crate::watchdog;
use bytes::Bytes;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Condvar;

/// A position in key order: where the flush is, or where a block ends.
pub(crate) type KeyPosition = (KeyspaceId, Bytes);

/// Nodes of a block that the flush will need until it reaches `end`.
pub(crate) struct WantedNodes {
    /// The smallest key beyond the block.
    pub end: KeyPosition,
    pub nodes: Vec<(NodeId, Address)>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct PrefetchBuffer {
    inner: RankedMutex<rank::Prefetch, Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    /// Bytes of nodes that the prefetch buffer may hold; 0 while it is closed.
    limit: u64,
    bytes: u64,
    nodes: HashMap<Position, Prefetched>,
    /// Nodes that the flush reads or has read itself.
    claimed: HashSet<Position>,
    /// Nodes that were begun, by the position up to which they are needed.
    begun: BTreeMap<KeyPosition, Vec<Position>>,
    /// The flush has passed everything below this position.
    floor: KeyPosition,
}

struct Prefetched {
    len: u32,
    /// The position up to which the node is needed.
    end: KeyPosition,
    /// `None` while it is coming.
    node: Option<Node>,
}

/// Nodes that are coming. Dropping it fails those that have not arrived.
pub(crate) struct Coming<'a> {
    prefetch: &'a PrefetchBuffer,
    /// The nodes to read.
    pub nodes: Vec<(NodeId, Address)>,
}

/// The state of a node in the prefetch buffer.
pub(crate) enum Claim {
    Here(Node),
    Coming,
    /// Not staged: the flush has to read it.
    Absent,
}

/// When the prefetch buffer admits more nodes; never once it is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Now,
    Later,
    Never,
}

impl Inner {
    fn admits(&self, bytes: u64) -> Admission {
        match self.limit {
            0 => Admission::Never,
            limit if self.bytes > 0 && self.bytes + bytes > limit => Admission::Later,
            _ => Admission::Now,
        }
    }

    fn remove(&mut self, position: Position) -> Option<Node> {
        let staged = self.nodes.remove(&position)?;
        self.bytes -= u64::from(staged.len);
        staged.node
    }

    /// Gives up nodes of blocks below `floor`, where the flush is.
    fn give_up(&mut self, floor: KeyPosition) {
        while let Some(first) = self.begun.first_entry().filter(|first| *first.key() <= floor) {
            for position in first.remove() {
                // A node that is still coming is given up when it arrives.
                if self.nodes.get(&position).is_some_and(|staged| staged.node.is_some()) {
                    self.remove(position);
                }
            }
        }
        self.floor = floor;
    }
}

impl PrefetchBuffer {
    /// Opens the prefetch buffer for `limit` bytes of nodes. Dropping the result closes it.
    pub fn open(&self, limit: u64) -> OpenBuffer<'_> {
        self.inner.lock().limit = limit;
        OpenBuffer { prefetch: self }
    }

    /// When there is room for so many bytes.
    pub fn admits(&self, bytes: u64) -> Admission {
        self.inner.lock().admits(bytes)
    }

    /// Waits until there is room for so many bytes, or the prefetch buffer is closed. Must not be called with reads
    /// still to complete: the flush may be waiting for those.
    pub fn wait_for_room(&self, bytes: u64) {
        let mut inner = self.inner.lock();
        while inner.admits(bytes) == Admission::Later {
            inner = watchdog::wait(&self.changed, inner, "room for nodes that are read ahead of a flush");
        }
    }

    /// Registers nodes of blocks, which are in key order. Returns those to read: not the ones that the flush
    /// has claimed or passed.
    pub fn begin(&self, wanted: Vec<WantedNodes>) -> Coming<'_> {
        let mut inner = self.inner.lock();
        let mut coming = Coming { prefetch: self, nodes: Vec::new() };
        for WantedNodes { end, mut nodes } in wanted {
            if inner.limit == 0 || end <= inner.floor {
                continue;
            }
            nodes.retain(|(_, Address { position, .. })| {
                !inner.claimed.contains(position) && !inner.nodes.contains_key(position)
            });
            for (_, address) in &nodes {
                let len = address.memory_len() as u32;
                inner.bytes += u64::from(len);
                inner.nodes.insert(address.position, Prefetched { len, end: end.clone(), node: None });
            }
            let positions = nodes.iter().map(|(_, address)| address.position);
            inner.begun.entry(end).or_default().extend(positions);
            coming.nodes.extend(nodes);
        }
        coming
    }

    /// Returns the state of each node; a node that is here is taken out. The caller has to read an absent
    /// node itself, and to [`PrefetchBuffer::wait`] for one that is coming.
    pub fn claim(&self, positions: impl Iterator<Item = Position>) -> Vec<Claim> {
        let mut inner = self.inner.lock();
        if inner.limit == 0 {
            return positions.map(|_| Claim::Absent).collect();
        }
        let claims = positions
            .map(|position| match inner.nodes.get(&position) {
                Some(Prefetched { node: Some(_), .. }) => {
                    inner.remove(position).map_or(Claim::Absent, Claim::Here)
                }
                Some(Prefetched { node: None, .. }) => Claim::Coming,
                None => {
                    inner.claimed.insert(position);
                    Claim::Absent
                }
            })
            .collect();
        drop(inner);
        self.changed.notify_all();
        claims
    }

    /// Waits for a node that is coming. `None`: reading it failed.
    pub fn wait(&self, position: Position) -> Option<Node> {
        let mut inner = self.inner.lock();
        while inner.nodes.get(&position)?.node.is_none() {
            inner = watchdog::wait(&self.changed, inner, "a node that is read ahead of a flush");
        }
        let node = inner.remove(position);
        drop(inner);
        self.changed.notify_all();
        node
    }

    /// Called in the middle of a portion, when the flush is about to ask for leaves at `at` and above: gives
    /// up the nodes of blocks below. Its claims for later blocks stay registered.
    pub fn reach(&self, at: KeyPosition) {
        let mut inner = self.inner.lock();
        if inner.limit == 0 {
            return;
        }
        inner.give_up(at);
        drop(inner);
        self.changed.notify_all();
    }

    /// Called after a portion: gives up the nodes of all blocks below `floor`, and forgets all claims.
    pub fn pass(&self, floor: KeyPosition) {
        let mut inner = self.inner.lock();
        inner.claimed.clear();
        inner.give_up(floor);
        drop(inner);
        self.changed.notify_all();
    }

    /// Bytes of nodes that are here or coming.
    #[cfg(test)]
    pub fn bytes(&self) -> u64 {
        self.inner.lock().bytes
    }
}

/// An open prefetch buffer.
pub(crate) struct OpenBuffer<'a> {
    prefetch: &'a PrefetchBuffer,
}

impl Drop for OpenBuffer<'_> {
    fn drop(&mut self) {
        let mut inner = self.prefetch.inner.lock();
        // Coming nodes stay registered until they arrive; the others go.
        inner.nodes.retain(|_, staged| staged.node.is_none());
        inner.bytes = inner.nodes.values().map(|staged| u64::from(staged.len)).sum();
        inner.claimed = HashSet::new();
        inner.begun.clear();
        inner.limit = 0;
        inner.floor = KeyPosition::default();
        drop(inner);
        self.prefetch.changed.notify_all();
    }
}

impl Coming<'_> {
    /// The nodes were read; `read` has them in the order of `nodes`.
    pub fn arrived(mut self, read: Vec<Node>) {
        let mut inner = self.prefetch.inner.lock();
        let Inner { limit, floor, nodes, bytes, .. } = &mut *inner;
        for ((_, address), node) in self.nodes.drain(..).zip(read) {
            let Entry::Occupied(mut staged) = nodes.entry(address.position) else { continue };
            if *limit > 0 && staged.get().end > *floor {
                staged.get_mut().node = Some(node);
            } else {
                *bytes -= u64::from(staged.remove().len);
            }
        }
    }
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        let mut inner = self.prefetch.inner.lock();
        for (_, address) in &self.nodes {
            inner.remove(address.position);
        }
        drop(inner);
        self.prefetch.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::entries::Entries;
    use crate::storage::mapping_table::NodeLengths;
    use crate::storage::node::{Name, encode};

    fn node(id: u64) -> (NodeId, Address, Node) {
        let mut entries = Entries::default();
        entries.push(b"key", &[&id.to_le_bytes()]);
        let mut bytes = Vec::new();
        let name = Name { id: NodeId(id), level: 0, epoch: 1, keyspace: KeyspaceId(1) };
        let crc = encode(&mut bytes, name, &entries, 1);
        let node = Node::decode(bytes.into()).unwrap();
        let address =
            Address::new(Position(id * 1000), NodeLengths::of(node.bytes().len(), node.bytes().len()), crc);
        (NodeId(id), address, node)
    }

    fn mark(key: &str) -> KeyPosition {
        (KeyspaceId(1), Bytes::copy_from_slice(key.as_bytes()))
    }

    fn wanted<'a>(end: &str, nodes: impl IntoIterator<Item = &'a (NodeId, Address, Node)>) -> WantedNodes {
        let nodes = nodes.into_iter().map(|(id, address, _)| (*id, *address)).collect();
        WantedNodes { end: mark(end), nodes }
    }

    #[test]
    fn what_is_coming_is_waited_for_and_what_is_claimed_is_not_brought() {
        let prefetch = PrefetchBuffer::default();
        let _open = prefetch.open(1 << 20);
        let nodes: Vec<_> = (1..=4).map(node).collect();
        let position = |index: usize| nodes[index].1.position;
        assert!(matches!(prefetch.claim([position(0)].into_iter())[..], [Claim::Absent]));
        let coming = prefetch.begin(vec![wanted("n", &nodes)]);
        assert_eq!(coming.nodes.len(), 3, "the flush reads the first itself");
        assert!(matches!(prefetch.claim([position(1)].into_iter())[..], [Claim::Coming]));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| prefetch.wait(position(1)));
            coming.arrived(nodes[1..].iter().map(|(.., node)| node.clone()).collect());
            assert_eq!(waits.join().unwrap().unwrap().name().id, NodeId(2));
        });
        assert!(
            matches!(&prefetch.claim([position(2)].into_iter())[..], [Claim::Here(found)] if found.name().id == NodeId(3))
        );
        assert!(prefetch.bytes() > 0, "one is left");
        prefetch.pass(mark("n"));
        assert_eq!(prefetch.bytes(), 0, "and given up when the flush has passed");
        drop(prefetch.begin(vec![wanted("z", [&nodes[3]])]));
        assert!(prefetch.wait(position(3)).is_none(), "a read that failed");
        assert_eq!(prefetch.bytes(), 0);
    }

    #[test]
    fn what_comes_too_late_stops_nothing() {
        let prefetch = PrefetchBuffer::default();
        drop(prefetch.open(1 << 20));
        let [high, low] = [node(1), node(2)];
        drop(prefetch.begin(vec![wanted("z", [&high])]));
        let _open = prefetch.open(1 << 20);
        prefetch.begin(vec![wanted("b", [&low])]).arrived(vec![low.2]);
        assert!(prefetch.bytes() > 0);
        prefetch.pass(mark("m"));
        assert_eq!(prefetch.bytes(), 0, "a wrong guess is given up when the flush has passed it");
        assert_eq!(prefetch.admits(1 << 30), Admission::Now, "an empty prefetch takes anything");
    }

    #[test]
    fn a_block_that_was_passed_is_given_up_within_a_portion() {
        let prefetch = PrefetchBuffer::default();
        let _open = prefetch.open(1 << 20);
        let nodes: Vec<_> = (1..=5).map(node).collect();
        let len = u64::from(nodes[0].1.len());
        let of_blocks = vec![wanted("g", &nodes[..2]), wanted("m", &nodes[2..3]), wanted("t", &nodes[3..4])];
        prefetch.begin(of_blocks).arrived(nodes[..4].iter().map(|(.., node)| node.clone()).collect());
        let late = prefetch.begin(vec![wanted("v", &nodes[4..])]);
        prefetch.reach(mark("f"));
        assert_eq!(prefetch.bytes(), 5 * len, "it is in the first block");
        prefetch.reach(mark("g"));
        assert_eq!(prefetch.bytes(), 3 * len);
        assert!(matches!(prefetch.claim([nodes[0].1.position].into_iter())[..], [Claim::Absent]));
        prefetch.reach(mark("w"));
        assert_eq!(prefetch.bytes(), len, "what is coming has to come first");
        late.arrived(vec![nodes[4].2.clone()]);
        assert_eq!(prefetch.bytes(), 0);
        assert!(prefetch.begin(vec![wanted("w", &nodes[..1])]).nodes.is_empty());
        let again = prefetch.begin(vec![wanted("z", &nodes[..2])]);
        assert_eq!(again.nodes.len(), 1, "what was claimed is known as long as the portion lasts");
    }
}
