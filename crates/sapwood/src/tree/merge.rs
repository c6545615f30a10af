//! Merges the pieces of a log area: each key with its newest change, in key order. No change is copied. What
//! is sorted is a list of positions, by the eight bytes of each key behind the common prefix; whole keys are
//! compared only if those bytes are equal.
//!
//! Operands are laid over what older pieces have of their key ([`crate::merging`]), and the result is a copy.
//!
//! Invariant: each key comes out once, with its change in the newest piece that has it, or with what operands make of it.

use crate::merging::{Merging, is_operands};
use crate::storage::node::Node;
use crate::tree::change::LeafChange;
use bytes::Bytes;
use std::collections::HashMap;
use std::rc::Rc;

/// Position of a change. Ordered by rank; of equal ranks the newest piece comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Slot {
    /// Eight bytes of the key behind the common prefix, padded with zeros.
    rank: u64,
    /// Index of the piece, counted from the newest.
    age: u32,
    /// Index of the entry in its piece.
    index: u32,
}

/// The changes of some pieces, in key order.
#[derive(Debug, Default)]
pub(crate) struct Merged {
    pieces: Rc<[Node]>,
    order: std::vec::IntoIter<Slot>,
    /// What operands make, by the slot that comes out.
    laid: HashMap<(u32, u32), Bytes>,
}

/// One change of a [`Merged`].
#[derive(Clone, Debug)]
pub(crate) struct Logged {
    pieces: Rc<[Node]>,
    piece: usize,
    index: usize,
    laid: Option<Bytes>,
}

impl LeafChange for Logged {
    fn key(&self) -> &[u8] {
        self.pieces[self.piece].key(self.index)
    }

    fn value(&self) -> Option<&[u8]> {
        match &self.laid {
            Some(laid) => Some(laid),
            None => self.pieces[self.piece].logged_value(self.index),
        }
    }
}

impl Merged {
    /// Merges pieces, given oldest first. `merging`: how operands are, if there may be any.
    pub fn of(mut pieces: Vec<Node>, merging: Option<&Merging>) -> Self {
        pieces.reverse();
        let pieces: Rc<[Node]> = pieces.into();
        let skip = common_prefix(&pieces);
        let mut order = Vec::with_capacity(pieces.iter().map(Node::count).sum());
        for (piece, age) in pieces.iter().zip(0..) {
            let slot = |index| Slot { rank: rank(piece.key(index), skip), age, index: index as u32 };
            order.extend((0..piece.count()).map(slot));
        }
        order.sort_unstable();
        let key = |slot: &Slot| pieces[slot.age as usize].key(slot.index as usize);
        for alike in order.chunk_by_mut(|a, b| a.rank == b.rank).filter(|alike| alike.len() > 1) {
            alike.sort_unstable_by(|a, b| key(a).cmp(key(b)).then(a.age.cmp(&b.age)));
        }
        let laid = merging.map(|merging| laid(&pieces, &order, merging)).unwrap_or_default();
        order.dedup_by(|later, earlier| later.rank == earlier.rank && key(later) == key(earlier));
        Self { order: order.into_iter(), pieces, laid }
    }
}

impl Iterator for Merged {
    type Item = Logged;

    fn next(&mut self) -> Option<Logged> {
        let Slot { age, index, .. } = self.order.next()?;
        let laid = if self.laid.is_empty() { None } else { self.laid.remove(&(age, index)) };
        Some(Logged { pieces: Rc::clone(&self.pieces), piece: age as usize, index: index as usize, laid })
    }
}

/// What operands make of what older pieces have of the same key. `order` has equal keys next to each other, newest first.
fn laid(pieces: &[Node], order: &[Slot], merging: &Merging) -> HashMap<(u32, u32), Bytes> {
    let key = |slot: &Slot| pieces[slot.age as usize].key(slot.index as usize);
    let value = |slot: &Slot| pieces[slot.age as usize].logged_value(slot.index as usize);
    let mut all = HashMap::new();
    for alike in order.chunk_by(|a, b| a.rank == b.rank && key(a) == key(b)).filter(|alike| alike.len() > 1) {
        if value(&alike[0]).is_some_and(is_operands)
            && let Some(made) = merging.lay_all(alike.iter().map(value))
        {
            all.insert((alike[0].age, alike[0].index), made.into());
        }
    }
    all
}

/// Length of the prefix that all keys have in common; that of the least and the greatest key.
fn common_prefix(pieces: &[Node]) -> usize {
    let least = pieces.iter().map(|piece| piece.key(0)).min().unwrap_or_default();
    let greatest = pieces.iter().map(|piece| piece.key(piece.count() - 1)).max().unwrap_or_default();
    least.iter().zip(greatest).take_while(|(a, b)| a == b).count()
}

/// Eight bytes of a key behind the first `skip`. Among keys with the same first `skip` bytes, the ranks order
/// as the keys do.
fn rank(key: &[u8], skip: usize) -> u64 {
    let rest = key.get(skip..).unwrap_or_default();
    match rest.first_chunk() {
        Some(first) => u64::from_be_bytes(*first),
        None => rest.iter().rev().fold(0, |rank, byte| rank >> 8 | u64::from(*byte) << 56),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::KeyspaceId;
    use crate::storage::entries::Entries;
    use crate::storage::node::{Name, NodeId, PIECE, change_payload, encode};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn piece(changes: &BTreeMap<Vec<u8>, Option<u8>>) -> Node {
        let mut entries = Entries::default();
        for (key, value) in changes {
            entries.push(key, &change_payload(value.as_ref().map(std::slice::from_ref)));
        }
        let mut bytes = Vec::new();
        let name = Name { id: NodeId(7), level: PIECE, epoch: 1, keyspace: KeyspaceId(1) };
        encode(&mut bytes, name, &entries, entries.len());
        Node::decode(bytes.into()).unwrap()
    }

    proptest! {
        #[test]
        fn the_newest_change_of_each_key_comes_out_in_order(
            pieces in prop::collection::vec(prop::collection::btree_map(
                prop::collection::vec(0u8..3, 1..12), prop::option::of(any::<u8>()), 1..40), 0..6),
            prefix in prop::collection::vec(any::<u8>(), 0..4),
        ) {
            let with_prefix = |(key, value): (Vec<u8>, _)| ([&prefix[..], &key].concat(), value);
            let pieces: Vec<BTreeMap<_, _>> =
                pieces.into_iter().map(|piece| piece.into_iter().map(with_prefix).collect()).collect();
            let mut model = BTreeMap::new();
            for piece in &pieces {
                model.extend(piece.clone());
            }
            let merged = Merged::of(pieces.iter().map(piece).collect(), None);
            let found: Vec<_> =
                merged.map(|change| (change.key().to_vec(), change.value().map(|value| value[0]))).collect();
            prop_assert_eq!(found, model.into_iter().collect::<Vec<_>>());
        }
    }
}
