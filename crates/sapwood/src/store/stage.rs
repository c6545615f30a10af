//! The stage: nodes that one thread reads ahead of the flush, so that the device works while the flush merges, writes and
//! syncs. Whoever asks for a node that is on its way waits for it; one that nobody has begun to read he reads himself,
//! and the stage will not bring it a second time.
//!
//! ```text
//! reader ahead ──begin──▶ coming ──arrived──▶ here ──claim──▶ flush
//!                            └─failed──▶ (gone: the flush reads it itself, and gets the error)
//! ```
//!
//! Invariants:
//! 1. Nodes are known by position, which is never published twice: what is staged is never stale, at worst it is not wanted.
//! 2. What is here or coming is within the limit, as far as whoever reads ahead asks for room first.
//! 3. Whatever is coming arrives or fails: a batch that is dropped has failed.

use crate::node::{Node, NodeId};
use crate::operation::KeyspaceId;
use crate::store::mapping_table::{Address, Position};
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, HashSet, VecDeque};

/// Where the flush is, or will need something.
pub(crate) type Mark = (KeyspaceId, Bytes);

/// See the module.
#[derive(Default)]
pub(crate) struct Stage {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    /// Bytes of nodes that may be here; none while it is closed.
    limit: u64,
    bytes: u64,
    nodes: HashMap<Position, Staged>,
    /// What the flush reads or has read itself.
    claimed: HashSet<Position>,
    /// What was begun, in order, and up to where it is needed.
    batches: VecDeque<(Mark, Vec<Position>)>,
    /// The flush has passed everything below.
    floor: Mark,
}

struct Staged {
    len: u32,
    /// `None` while it is coming.
    node: Option<Node>,
}

/// Nodes that are coming. Dropped: those that have not arrived have failed.
pub(crate) struct Coming<'a> {
    stage: &'a Stage,
    mark: Mark,
    /// What is to be read.
    pub nodes: Vec<(NodeId, Address)>,
}

/// What the stage says about a node.
pub(crate) enum Claim {
    Here(Node),
    Coming,
    /// The flush reads it.
    Absent,
}

impl Inner {
    fn remove(&mut self, position: Position) -> Option<Node> {
        let staged = self.nodes.remove(&position)?;
        self.bytes -= u64::from(staged.len);
        staged.node
    }
}

impl Stage {
    /// Opens it for so many bytes of nodes; closes it when the answer is dropped.
    pub fn open(&self, limit: u64) -> Open<'_> {
        self.inner.lock().limit = limit;
        Open { stage: self }
    }

    /// Waits until there is room for so many bytes. False when it is closed.
    pub fn has_room(&self, bytes: u64) -> bool {
        let mut inner = self.inner.lock();
        while inner.limit > 0 && inner.bytes > 0 && inner.bytes + bytes > inner.limit {
            self.changed.wait(&mut inner);
        }
        inner.limit > 0
    }

    /// Takes on nodes that are needed up to `mark`, and says which of them to read: not those that the flush has claimed or
    /// passed.
    pub fn begin(&self, mark: Mark, mut nodes: Vec<(NodeId, Address)>) -> Coming<'_> {
        let mut inner = self.inner.lock();
        if inner.limit == 0 || mark < inner.floor {
            nodes.clear();
        }
        nodes.retain(|(_, Address { position, .. })| {
            !inner.claimed.contains(position) && !inner.nodes.contains_key(position)
        });
        for (_, Address { position, len, .. }) in &nodes {
            inner.bytes += u64::from(*len);
            inner.nodes.insert(*position, Staged { len: *len, node: None });
        }
        if !nodes.is_empty() {
            let positions = nodes.iter().map(|(_, address)| address.position).collect();
            inner.batches.push_back((mark.clone(), positions));
        }
        Coming { stage: self, mark, nodes }
    }

    /// Asks for a node. Whoever is told that it is absent has to read it; that it is coming, to [`Stage::wait`] for it.
    pub fn claim(&self, positions: impl Iterator<Item = Position>) -> Vec<Claim> {
        let mut inner = self.inner.lock();
        if inner.limit == 0 {
            return positions.map(|_| Claim::Absent).collect();
        }
        let claims = positions
            .map(|position| match inner.nodes.get(&position) {
                Some(Staged { node: Some(_), .. }) => {
                    inner.remove(position).map_or(Claim::Absent, Claim::Here)
                }
                Some(Staged { node: None, .. }) => Claim::Coming,
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

    /// Waits for a node that is coming. `None` if it failed.
    pub fn wait(&self, position: Position) -> Option<Node> {
        let mut inner = self.inner.lock();
        while inner.nodes.get(&position)?.node.is_none() {
            self.changed.wait(&mut inner);
        }
        let node = inner.remove(position);
        drop(inner);
        self.changed.notify_all();
        node
    }

    /// The flush has passed everything below: what is still here for that is given up.
    pub fn pass(&self, floor: Mark) {
        let mut inner = self.inner.lock();
        inner.claimed.clear();
        while inner.batches.front().is_some_and(|(mark, _)| *mark < floor) {
            let Some((_, positions)) = inner.batches.pop_front() else { break };
            for position in positions {
                // What is still coming is given up when it has come.
                if inner.nodes.get(&position).is_some_and(|staged| staged.node.is_some()) {
                    inner.remove(position);
                }
            }
        }
        inner.floor = floor;
        drop(inner);
        self.changed.notify_all();
    }
}

/// An open stage.
pub(crate) struct Open<'a> {
    stage: &'a Stage,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let mut inner = self.stage.inner.lock();
        // What is coming stays known until it has come; the rest goes.
        inner.nodes.retain(|_, staged| staged.node.is_none());
        inner.bytes = inner.nodes.values().map(|staged| u64::from(staged.len)).sum();
        inner.claimed = HashSet::new();
        inner.batches.clear();
        inner.limit = 0;
        inner.floor = Mark::default();
        drop(inner);
        self.stage.changed.notify_all();
    }
}

impl Coming<'_> {
    /// They were read, and are given in the order of `nodes`.
    pub fn arrived(mut self, read: Vec<Node>) {
        let mut inner = self.stage.inner.lock();
        let is_wanted = inner.limit > 0 && self.mark >= inner.floor;
        for ((_, address), node) in self.nodes.drain(..).zip(read) {
            if !is_wanted {
                inner.remove(address.position);
            } else if let Some(staged) = inner.nodes.get_mut(&address.position) {
                staged.node = Some(node);
            }
        }
    }
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        let mut inner = self.stage.inner.lock();
        for (_, address) in &self.nodes {
            inner.remove(address.position);
        }
        drop(inner);
        self.stage.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entries::Entries;
    use crate::node::{Name, encode};

    fn node(id: u64) -> (NodeId, Address, Node) {
        let mut entries = Entries::default();
        entries.push(b"key", &[&id.to_le_bytes()]);
        let mut bytes = Vec::new();
        let name = Name { id: NodeId(id), level: 0, epoch: 1, keyspace: KeyspaceId(1) };
        let crc = encode(&mut bytes, name, &entries, 1);
        let node = Node::decode(bytes.into()).unwrap();
        let address = Address { position: Position(id * 1000), len: node.bytes().len() as u32, crc };
        (NodeId(id), address, node)
    }

    fn mark(key: &str) -> Mark {
        (KeyspaceId(1), Bytes::copy_from_slice(key.as_bytes()))
    }

    fn bytes(stage: &Stage) -> u64 {
        stage.inner.lock().bytes
    }

    #[test]
    fn what_is_coming_is_waited_for_and_what_is_claimed_is_not_brought() {
        let stage = Stage::default();
        let _open = stage.open(1 << 20);
        let nodes: Vec<_> = (1..=4).map(node).collect();
        let position = |index: usize| nodes[index].1.position;
        assert!(matches!(stage.claim([position(0)].into_iter())[..], [Claim::Absent]));
        let coming = stage.begin(mark("m"), nodes.iter().map(|(id, address, _)| (*id, *address)).collect());
        assert_eq!(coming.nodes.len(), 3, "the flush reads the first itself");
        assert!(matches!(stage.claim([position(1)].into_iter())[..], [Claim::Coming]));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| stage.wait(position(1)));
            coming.arrived(nodes[1..].iter().map(|(.., node)| node.clone()).collect());
            assert_eq!(waits.join().unwrap().unwrap().name().id, NodeId(2));
        });
        assert!(
            matches!(&stage.claim([position(2)].into_iter())[..], [Claim::Here(found)] if found.name().id == NodeId(3))
        );
        assert!(bytes(&stage) > 0, "one is left");
        stage.pass(mark("n"));
        assert_eq!(bytes(&stage), 0, "and given up when the flush has passed");
        drop(stage.begin(mark("z"), vec![(nodes[3].0, nodes[3].1)]));
        assert!(stage.wait(position(3)).is_none(), "a read that failed");
        assert_eq!(bytes(&stage), 0);
    }

    #[test]
    fn what_comes_too_late_is_in_nobodys_way() {
        let stage = Stage::default();
        drop(stage.open(1 << 20));
        let [(high, at_high, _), (low, at_low, node)] = [node(1), node(2)];
        drop(stage.begin(mark("z"), vec![(high, at_high)]));
        let _open = stage.open(1 << 20);
        stage.begin(mark("b"), vec![(low, at_low)]).arrived(vec![node]);
        assert!(bytes(&stage) > 0);
        stage.pass(mark("m"));
        assert_eq!(bytes(&stage), 0, "a wrong guess is given up when the flush has passed it");
        assert!(stage.has_room(1 << 30), "an empty stage takes anything");
    }
}
