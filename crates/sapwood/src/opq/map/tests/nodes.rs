//! The invariants of nodes, checked over a whole map.

use super::{COUNT, entries, insert, shuffled};
use crate::operation::KeyspaceId;
use crate::opq::map::entry::compare;
use crate::opq::map::node::{Node, Side, Slot, Word};
use crate::opq::map::{Key, Map, MemoryRef};

/// Invariant 1, the order of inner nodes and all ranks, and what the writer knows.
pub fn check_nodes(map: &Map) {
    let all = entries(map);
    let writer = map.writer.lock();
    assert_eq!(writer.count, all.len());
    let Some((root, height)) = map.root() else { return };
    let (mut count, mut last_leaf) = (0, root);
    check_node(map, root, height, [None, None], &mut |leaf, entries| {
        (count, last_leaf) = (count + entries, leaf);
    });
    assert_eq!(count, all.len());
    assert_eq!(writer.last_leaf, last_leaf);
    assert_eq!(map.entry(writer.last).key().2, all.last().map_or(0, |last| last.2));
}

/// A node as a reader may have read it.
type Read = (MemoryRef, usize, Word, MemoryRef, Vec<Slot>);

fn nodes(map: &Map, place: MemoryRef, height: usize, found: &mut Vec<Read>) {
    let node = Node::at(&map.table, place);
    let slots: Vec<_> = (0..node.word().count()).map(|index| node.slot(index)).collect();
    found.push((place, height, node.word(), node.low(), slots.clone()));
    if height > 0 {
        slots.iter().for_each(|slot| nodes(map, slot.place(), height - 1, found));
    }
}

/// Invariant 2 of nodes.
#[test]
fn what_has_its_version_is_as_it_was() {
    let map = Map::default();
    let (mut before, mut renewed) = (Vec::<Read>::new(), 0);
    for n in 0..COUNT {
        insert(&map, (KeyspaceId(1), &shuffled(n).to_be_bytes(), n), None);
        if n % if cfg!(miri) { 5 } else { 97 } > 0 {
            continue;
        }
        for (place, height, word, low, slots) in before.drain(..) {
            let node = Node::at(&map.table, place);
            let is_as_it_was = if height == 0 { node.word().is_as(word) } else { node.word() == word };
            renewed += usize::from(!is_as_it_was);
            if is_as_it_was {
                assert_eq!(node.low(), low);
                (0..slots.len()).for_each(|index| assert_eq!(node.slot(index), slots[index]));
            }
        }
        let (root, height) = map.root().unwrap();
        nodes(&map, root, height, &mut before);
    }
    assert!(renewed > 0);
}

fn sorted(map: &Map, slots: &[Slot]) -> Vec<Slot> {
    let mut slots = slots.to_vec();
    map.sort(&mut slots);
    slots
}

fn check_node(
    map: &Map,
    place: MemoryRef,
    height: usize,
    [low, high]: [Option<Key<'_>>; 2],
    found: &mut impl FnMut(MemoryRef, usize),
) {
    let node = Node::at(&map.table, place);
    let count = node.word().count();
    let own_low = node.low().is_somewhere().then(|| map.entry(node.low()).key());
    assert_eq!(own_low, low);
    assert!(count > 0 && (height == 0 || count > 1));
    let slots: Vec<_> = (0..count).map(|index| node.slot(index)).collect();
    let life = node.life();
    assert_eq!(life.dead == 0, life.live > 0);
    if height == 0 {
        let least = map.life_of_leaf(&sorted(map, &slots)).live;
        assert!(life.live >= least, "{} are live, not {}", least, life.live);
        found(place, count);
        let mut lowest = None::<Key<'_>>;
        for slot in slots {
            let key = map.entry(slot.place()).key();
            assert!(node.side(&map.table, key) == Side::At(slot.rank()));
            assert!(low.is_none_or(|low| compare(low, key).is_le()));
            assert!(high.is_none_or(|high| compare(key, high).is_lt()));
            lowest = lowest.filter(|lowest| compare(*lowest, key).is_lt()).or(Some(key));
        }
        let same = |a: Key<'_>, b: Option<Key<'_>>| b.is_some_and(|b| (a.0, a.1) == (b.0, b.1));
        assert!(low.is_none_or(|low| same(low, lowest)), "a leaf begins with an entry");
        return;
    }
    assert_eq!(map.life_of_inner(slots.iter().copied()).live, life.live);
    let lows: Vec<_> = slots
        .iter()
        .map(|slot| Node::at(&map.table, slot.place()).low())
        .map(|low| low.is_somewhere().then(|| map.entry(low).key()))
        .collect();
    for (index, slot) in slots.iter().enumerate() {
        if let Some(key) = lows[index] {
            assert!(node.side(&map.table, key) == Side::At(slot.rank()));
        }
        let end = lows.get(index + 1).copied().flatten().or(high);
        assert!(index + 1 >= count || slot.rank() <= slots[index + 1].rank());
        check_node(map, slot.place(), height - 1, [if index == 0 { low } else { lows[index] }, end], found);
    }
}
