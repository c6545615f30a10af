//! Brings nodes of a flash block up to date: what stands in the data area, and the log units behind it, applied in order. A
//! ghost has nothing in the data area: it begins as the upper half of the node that it was split from.
//!
//! Invariant: a log that speaks of nodes that are not there, or makes one twice, is refused.

use crate::page::log_unit::Record;
use crate::page::node::{Inner, Leaf, Node};
use crate::page::node_change::Change;
use crate::page::{Key, NodeId};
use crate::store::log_area::Needed;
use crate::update::split_merge::{Pair, join, split_at};
use crate::{Error, Result};
use std::collections::BTreeMap;

/// Nodes of one block, by slot.
pub(crate) type Nodes = BTreeMap<u8, Node>;

/// Applies one record of a unit, if it changes a node that is needed as it was then.
fn apply(nodes: &mut Nodes, unit: usize, record: &Record, needed: &Needed) -> Result<()> {
    let (slot, other) = record.slots();
    let is_needed = |slot: u8| needed.get(&slot).is_some_and(|until| unit <= *until);
    let makes = matches!(record, Record::Split { .. }) && other.is_some_and(is_needed);
    if !(is_needed(slot) || makes) {
        return Ok(());
    }
    let missing = |slot: u8| Error::broken(format!("a log speaks of slot {slot}, which holds no node"));
    match *record {
        Record::Put { key, word, .. } => {
            Change::Put(key, word).apply(nodes.get_mut(&slot).ok_or_else(|| missing(slot))?)
        }
        Record::Remove { key, .. } => {
            Change::Remove(key).apply(nodes.get_mut(&slot).ok_or_else(|| missing(slot))?)
        }
        Record::Cut { key, .. } => Change::Cut(key).apply(nodes.get_mut(&slot).ok_or_else(|| missing(slot))?),
        Record::Split { key, new, .. } => {
            let whole = nodes.remove(&slot).ok_or_else(|| missing(slot))?;
            let Pair { left, right, .. } = divide(whole, key)?;
            nodes.insert(slot, left);
            if is_needed(new) { make(nodes, new, right) } else { Ok(()) }
        }
        Record::Merge { fence, taken, .. } => {
            let left = nodes.remove(&slot).ok_or_else(|| missing(slot))?;
            let right = nodes.remove(&taken).ok_or_else(|| missing(taken))?;
            if left.level() != right.level() {
                return Err(Error::broken("a merge of nodes of two levels"));
            }
            make(nodes, slot, join(left, fence, right))
        }
        Record::Create { level, first, .. } => make(nodes, slot, empty(level, first)),
        Record::Drop { .. } => {
            nodes.remove(&slot);
            Ok(())
        }
    }
}

fn make(nodes: &mut Nodes, slot: u8, node: Node) -> Result<()> {
    match nodes.insert(slot, node) {
        None => Ok(()),
        Some(_) => Err(Error::broken(format!("a log makes a node in slot {slot}, which holds one"))),
    }
}

/// A node with nothing in it, but for the first child that every inner node has.
pub(crate) fn empty(level: u8, first: NodeId) -> Node {
    match level {
        0 => Node::Leaf(Leaf::default()),
        _ => Node::Inner(Inner { level, fences: Vec::new(), children: vec![first] }),
    }
}

/// Divides a node at a key that stands in it.
fn divide(node: Node, key: Key) -> Result<Pair> {
    let left = match &node {
        Node::Leaf(leaf) => leaf.entries.partition_point(|entry| entry.0 < key),
        Node::Inner(inner) => inner.fences.partition_point(|fence| *fence <= key),
    };
    if left == 0 || left >= node.count() {
        return Err(Error::broken(format!("a split at {key} leaves nothing on one side")));
    }
    let pair = split_at(node, left);
    if pair.fence == key {
        Ok(pair)
    } else {
        Err(Error::broken(format!("a split at {key}, which is not there")))
    }
}

/// The nodes that `needed` has, from those in the data area and the records of the units that speak of them.
pub(crate) fn replay<'a>(
    mut nodes: Nodes,
    records: impl IntoIterator<Item = (usize, &'a Record)>,
    needed: &Needed,
) -> Result<Nodes> {
    for (unit, record) in records {
        apply(&mut nodes, unit, record, needed)?;
    }
    Ok(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(keys: &[u64]) -> Node {
        Node::Leaf(Leaf { entries: keys.iter().map(|key| (*key, 1)).collect(), next: None })
    }

    fn all() -> Needed {
        (0..10).map(|slot| (slot, 100)).collect()
    }

    fn replay(nodes: Nodes, log: &[Record], needed: &Needed) -> Result<Nodes> {
        super::replay(nodes, log.iter().map(|record| (0, record)), needed)
    }

    #[test]
    fn a_ghost_of_a_ghost_is_what_was_split_off() {
        let log = [
            Record::Put { slot: 0, key: 6, word: 1 },
            Record::Split { slot: 0, key: 4, id: NodeId(7), new: 1 },
            Record::Remove { slot: 0, key: 2 },
            Record::Put { slot: 1, key: 9, word: 1 },
            Record::Split { slot: 1, key: 6, id: NodeId(8), new: 2 },
        ];
        let base = || Nodes::from([(0, leaf(&[1, 2, 3, 4, 5]))]);
        let found = replay(base(), &log, &all()).unwrap();
        assert_eq!(found, Nodes::from([(0, leaf(&[1, 3])), (1, leaf(&[4, 5])), (2, leaf(&[6, 9]))]));
        let merged = [Record::Merge { slot: 1, fence: 6, taken: 2 }, Record::Drop { slot: 0 }];
        let found = replay(found, &merged, &all()).unwrap();
        assert_eq!(found, Nodes::from([(1, leaf(&[4, 5, 6, 9]))]));
        for wrong in [
            Record::Put { slot: 3, key: 1, word: 1 },
            Record::Split { slot: 0, key: 77, id: NodeId(9), new: 4 },
            Record::Merge { slot: 0, fence: 4, taken: 5 },
            Record::Create { slot: 0, low: 0, id: NodeId(9), level: 0, first: NodeId(0) },
        ] {
            assert!(replay(base(), &[wrong], &all()).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn inner_nodes_give_a_fence_away_when_they_are_split() {
        let whole =
            Node::Inner(Inner { level: 1, fences: vec![10, 20, 30], children: (1..5).map(NodeId).collect() });
        let log = [
            Record::Put { slot: 0, key: 25, word: 9 },
            Record::Split { slot: 0, key: 20, id: NodeId(7), new: 1 },
            Record::Remove { slot: 1, key: 30 },
        ];
        let found = replay(Nodes::from([(0, whole)]), &log, &all()).unwrap();
        let inner = |fences: &[u64], children: &[u64]| {
            let children = children.iter().copied().map(NodeId).collect();
            Node::Inner(Inner { level: 1, fences: fences.to_vec(), children })
        };
        assert_eq!(found, Nodes::from([(0, inner(&[10], &[1, 2])), (1, inner(&[25], &[3, 9]))]));
    }
}
