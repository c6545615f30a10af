//! Memory: what a map takes, what it says of it, and what it leaves for the next.

use super::nodes::check_nodes;
use super::{Plain, entries, insert, insert_batches, leave, open, shuffled, sort_as_the_map};
use crate::operation::KeyspaceId;
use crate::opq::map::memory::{HUGE, LONG};
use crate::opq::map::node;
use crate::opq::map::node::{Node, SLOTS, Slot};
use crate::opq::map::{CHUNK, Entry, Map, Memory, MemoryRef, Table};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

#[test]
fn memory_is_counted_and_large_entries_stand_alone() {
    let map = Map::default();
    insert(&map, (KeyspaceId(1), b"large", 1), Some(&vec![7; CHUNK]));
    let large = map.memory();
    assert_eq!(large, 2 * CHUNK + 4096, "a chunk with nodes, and it, with all of its last page");
    for n in 0..1000u64 {
        insert(&map, (KeyspaceId(1), &n.to_be_bytes(), 2 + n), Some(&[1; 100]));
    }
    assert_eq!(map.memory(), large, "a thousand short ones find room beside the nodes");
    assert_eq!(
        map.at_or_after((KeyspaceId(1), b"large", 1)).and_then(Entry::value).map(<[u8]>::len),
        Some(CHUNK)
    );
}

#[test]
fn a_long_list_takes_memory_in_large_steps_and_says_how_much_of_it_waits() {
    if cfg!(miri) {
        return;
    }
    let map = Map::default();
    let (mut seq, mut steps) = (0u64, Vec::new());
    while map.memory() < 14 << 20 {
        let before = map.memory();
        map.insert_all((0..500).map(|n| ((KeyspaceId(1), &b"key"[..], seq + n), Some(&[7; 1000][..]))));
        seq += 500;
        let used = seq as usize * 1000;
        assert!(map.fill() <= map.memory());
        assert!((used..used + used / 16 + 2 * CHUNK).contains(&map.fill()), "{used} of {}", map.fill());
        if map.memory() > before {
            steps.push(map.memory() - before);
        }
    }
    assert!(steps[0] <= 3 * CHUNK && steps.last() == Some(&(2 << 20)), "{steps:?}");
    assert!(map.memory() <= map.fill() * 5 / 4);
}

/// What nodes took a chunk for counted as used, all of the chunk, until the next round.
#[test]
fn what_waits_is_counted_when_the_nodes_have_theirs() {
    let map = Map::default();
    insert(&map, (KeyspaceId(1), b"long", 1), Some(&vec![7; 8 << 20]));
    assert_eq!(map.memory(), (8 << 20) + 4096 + (2 << 20), "the entry, with its last page, and a chunk");
    assert_eq!(map.fill(), (8 << 20) + 4096 + CHUNK, "of which nodes need a part");
}

#[test]
fn nodes_are_blank_whatever_was_in_their_memory() {
    let spare = open(1 << 20);
    leave(&spare, 1);
    let (mut memory, table, total) = (Memory::new(Arc::clone(&spare)), Table::default(), AtomicUsize::new(0));
    let places: Vec<_> = Node::blank(&mut memory, &table, &total).collect();
    assert_eq!((spare.bytes(), places.len()), (0, node::TOGETHER));
    for place in places {
        let node = Node::at(&table, place);
        assert_eq!((node.word().count(), node.low(), node.sorted()), (0, MemoryRef::NOWHERE, 0));
        assert!((0..SLOTS).all(|index| node.slot(index) == Slot::EMPTY));
        node.add(Slot::new(1, place));
        assert_eq!(node.word().count(), 1);
    }
}

/// Two at a time, as queues are, and readers of one beside the other's writer.
#[test]
fn what_a_map_leaves_the_next_takes_and_says_what_was_written_to_it() {
    const MAPS: u64 = 6;
    let count = if cfg!(miri) { 60 } else { 8_000 };
    let spare = open(8 << 20);
    let fill = |number: u64| {
        let map = Map::new(&spare);
        let mut expected = Vec::new();
        for n in 0..count {
            let key = (shuffled(n) ^ number).to_be_bytes();
            let value = (n % 7 > 0).then(|| vec![(n ^ number) as u8; (shuffled(n + number) % 90) as usize]);
            expected.push((number as u32, key[..8 - (n + number) as usize % 3].to_vec(), n, value));
        }
        let (before, batch) = (spare.bytes(), [1, 37, 1000][number as usize % 3]);
        for batch in expected.chunks(batch) {
            insert_batches(&map, batch, batch.len());
            let all = map.memory().max(before);
            assert_eq!(map.memory() + spare.bytes(), all, "nothing is mapped as long as there is something");
        }
        sort_as_the_map(&mut expected);
        (map, expected)
    };
    let mut last: Option<(Map, Vec<Plain>)> = None;
    for number in 1..=MAPS {
        let this = std::thread::scope(|scope| {
            let reader =
                last.as_ref().map(|(map, expected)| scope.spawn(|| assert!(entries(map) == *expected)));
            let this = fill(number);
            reader.into_iter().for_each(|reader| reader.join().unwrap());
            this
        });
        check_nodes(&this.0);
        assert!(entries(&this.0) == this.1);
        if let Some((map, _)) = last.replace(this) {
            let memory = map.memory() + spare.bytes();
            drop(map);
            assert_eq!(spare.bytes(), memory);
        }
    }
    assert_eq!(spare.close_after(Duration::ZERO), spare.bytes() + last.map_or(0, |(map, _)| map.memory()));
}

#[test]
fn a_long_entry_has_what_was_left_go_to_the_system() {
    let spare = open(1 << 20);
    leave(&spare, 3);
    let map = Map::new(&spare);
    insert(&map, (KeyspaceId(1), b"long", 1), Some(&[1; CHUNK]));
    assert_eq!(map.memory(), CHUNK + 4096 + CHUNK, "it, with its last page, and a chunk for nodes");
    assert_eq!(spare.bytes(), 0, "two for the one, and one for the other");
    drop(map);
    assert_eq!(spare.bytes(), CHUNK, "the entry has a length of its own");
}

#[test]
fn a_short_map_takes_a_huge_chunk_and_is_not_fuller_for_it() {
    let spare = open(LONG + 1);
    spare.keep(vec![memmap2::MmapMut::map_anon(HUGE).unwrap()]);
    let map = Map::new(&spare);
    insert(&map, (KeyspaceId(1), b"key", 1), Some(b"value"));
    assert_eq!((map.memory(), map.fill(), spare.bytes()), (HUGE, CHUNK, 0));
}

#[test]
fn after_some_long_maps_all_chunks_are_huge() {
    const LEN: usize = 12 << 20;
    if cfg!(miri) {
        return;
    }
    let spare = open(LEN);
    let mut last = None;
    let (mut seq, mut steps) = (0u64, Vec::new());
    for _ in 0..5 {
        let map = Map::new(&spare);
        steps.clear();
        while map.fill() < LEN {
            let before = map.memory();
            map.insert_all((0..100).map(|n| ((KeyspaceId(1), &b"key"[..], seq + n), Some(&[7; 1000][..]))));
            seq += 100;
            if map.memory() > before {
                steps.push(map.memory() - before);
            }
        }
        let taken = |map: &Map| map.memory();
        assert!(map.memory() + spare.bytes() + last.as_ref().map_or(0, taken) <= 2 * LEN + HUGE);
        last = Some(map);
    }
    assert_eq!(steps, [HUGE; LEN / HUGE]);
}
