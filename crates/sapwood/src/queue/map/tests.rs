//! The map against sorted vectors: single entries and batches, with readers beside the writer.

use super::entry::compare;
use super::memory::{HUGE, LONG};
use super::node::{self, Node, SLOTS, Side, Slot, Word};
use super::*;
use crate::operation::KeyspaceId;
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Barrier};
use std::time::Duration;

/// Fewer under Miri, which is slow.
const COUNT: u64 = if cfg!(miri) { 100 } else { 20_000 };

thread_local! {
    /// What is to be done at a reader's pauses.
    static PAUSED: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
    /// Leaves that readers have looked for to walk along them.
    static PAGES: Cell<usize> = const { Cell::new(0) };
}

/// A reader looks for one.
pub(super) fn page() {
    PAGES.set(PAGES.get() + 1);
}

/// How many leaves some work walks along.
pub(crate) fn pages_of(work: impl FnOnce()) -> usize {
    let before = PAGES.get();
    work();
    PAGES.get() - before
}

/// A reader has read something, and not made sure of it.
pub(super) fn pause() {
    // A reader within a pause has none.
    if let Some(mut work) = PAUSED.take() {
        work();
        PAUSED.set(Some(work));
    }
}

fn shuffled(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31)
}

fn insert(map: &Map, key: Key<'_>, value: Option<&[u8]>) {
    map.insert_all([(key, value)]);
}

/// Keyspace, key, sequence number, value.
type Plain = (u32, Vec<u8>, u64, Option<Vec<u8>>);

/// Inserts entries in their order, so many at a time.
fn insert_batches(map: &Map, entries: &[Plain], batch: usize) {
    for batch in entries.chunks(batch) {
        map.insert_all(
            batch.iter().map(|(keyspace, key, seq, value)| {
                ((KeyspaceId(*keyspace), &key[..], *seq), value.as_deref())
            }),
        );
    }
}

fn sort_as_the_map(entries: &mut [Plain]) {
    entries.sort_by(|a, b| (a.0, &a.1, std::cmp::Reverse(a.2)).cmp(&(b.0, &b.1, std::cmp::Reverse(b.2))));
}

fn entries(map: &Map) -> Vec<Plain> {
    let mut all = Vec::new();
    for entry in map.all() {
        let (keyspace, key, seq) = entry.key();
        all.push((keyspace.0, key.to_vec(), seq, entry.value().map(<[u8]>::to_vec)));
    }
    all
}

#[test]
fn entries_come_in_order_whatever_the_order_of_insertion() {
    for (sorted, batch) in [(true, 1), (false, 1), (true, 37), (false, 37), (false, 1000)] {
        let map = Map::default();
        let mut expected = Vec::new();
        for n in 0..COUNT {
            let number = if sorted { n } else { shuffled(n) >> 48 };
            let (keyspace, key) = ((number >> 60) as u32 + 1, number.to_be_bytes());
            let value = (n % 5 > 0).then(|| vec![n as u8; (n % 90) as usize]);
            expected.push((keyspace, key.to_vec(), n, value));
        }
        insert_batches(&map, &expected, batch);
        sort_as_the_map(&mut expected);
        check_nodes(&map);
        assert_eq!(entries(&map), expected);
        assert_eq!(map.back_from(None).next().map(|entry| entry.key().2), expected.last().map(|last| last.2));
        for probe in expected.iter().step_by(7) {
            let key = (KeyspaceId(probe.0), &probe.1[..], probe.2);
            assert!(map.at_or_after(key).is_some_and(|entry| compare(entry.key(), key).is_eq()));
            let before =
                expected.iter().rfind(|other| compare((KeyspaceId(other.0), &other.1, other.2), key).is_lt());
            assert_eq!(
                map.back_from(Some(key)).next().map(|entry| entry.key().2),
                before.map(|before| before.2)
            );
            if cfg!(not(miri)) && expected.len() > 10_000 {
                break;
            }
        }
    }
}

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

/// A new version of a key sorts right before the older one that a reader of an earlier time looks for.
#[test]
fn a_search_never_ends_before_what_it_looks_for() {
    let map = Map::default();
    insert(&map, (KeyspaceId(1), b"key", 0), Some(b"first"));
    let done = AtomicBool::new(false);
    let ready = Barrier::new(3);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                ready.wait();
                while !done.load(Acquire) {
                    let found = map.at_or_after((KeyspaceId(1), b"key", 0));
                    assert_eq!(found.and_then(Entry::value), Some(&b"first"[..]));
                }
            });
        }
        ready.wait();
        // Under Miri the readers' walks take most of the time.
        for seq in 1..if cfg!(miri) { 100 } else { COUNT * 20 } {
            insert(&map, (KeyspaceId(1), b"key", seq), Some(b"later"));
        }
        done.store(true, Release);
    });
}

#[test]
fn readers_see_whole_entries_in_order_while_a_writer_inserts() {
    let map = Map::default();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut seen = 0;
                while !done.load(Acquire) || seen < COUNT {
                    let mut count = 0;
                    let mut last: Option<Vec<u8>> = None;
                    for entry in map.all() {
                        let (_, key, seq) = entry.key();
                        assert!(last.as_deref().is_none_or(|last| last < key));
                        assert_eq!(entry.value(), Some(&seq.to_le_bytes()[..]));
                        last = Some(key.to_vec());
                        count += 1;
                    }
                    assert!(count >= seen, "entries do not go away");
                    seen = count;
                }
            });
        }
        for n in 0..COUNT {
            insert(&map, (KeyspaceId(1), &shuffled(n).to_be_bytes(), n), Some(&n.to_le_bytes()));
        }
        done.store(true, Release);
    });
}

/// Such as that of a commit in which an operation turns out to be damaged.
#[test]
fn what_an_iterator_says_behind_its_end_is_not_asked_for() {
    let map = Map::default();
    let mut calls = 0;
    map.insert_all(
        std::iter::from_fn(|| {
            calls += 1;
            (calls != 3).then_some(((KeyspaceId(1), &b"key"[..], calls), None))
        })
        .take(10),
    );
    assert_eq!(entries(&map).len(), 2);
}

/// Invariant 1, the order of inner nodes and all ranks, and what the writer knows.
fn check_nodes(map: &Map) {
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

/// A node as somebody may have read it.
type Read = (Place, usize, Word, Place, Vec<Slot>);

fn nodes(map: &Map, place: Place, height: usize, found: &mut Vec<Read>) {
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

fn check_node(
    map: &Map,
    place: Place,
    height: usize,
    [low, high]: [Option<Key<'_>>; 2],
    found: &mut impl FnMut(Place, usize),
) {
    let node = Node::at(&map.table, place);
    let count = node.word().count();
    let own_low = node.low().is_somewhere().then(|| map.entry(node.low()).key());
    assert_eq!(own_low, low);
    assert!(count > 0 && (height == 0 || count > 1));
    let slots: Vec<_> = (0..count).map(|index| node.slot(index)).collect();
    if height == 0 {
        found(place, count);
        let mut lowest = None::<Key<'_>>;
        for slot in slots {
            let key = map.entry(slot.place()).key();
            assert!(node.side(&map.table, key) == Side::At(slot.rank()));
            assert!(low.is_none_or(|low| compare(low, key).is_le()));
            assert!(high.is_none_or(|high| compare(key, high).is_lt()));
            lowest = lowest.filter(|lowest| compare(*lowest, key).is_lt()).or(Some(key));
        }
        assert!(low.is_none() || low == lowest, "a leaf begins with an entry");
        return;
    }
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

/// Keys that are alike in many ways: empty parts, prefixes of one another, differences before, in and behind the eight bytes
/// that a batch is sorted by.
fn key() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        Just(&b""[..]),
        Just(&b"a"[..]),
        Just(&b"\0"[..]),
        Just(&b"user0000"[..]),
        Just(&b"\xff"[..])
    ];
    prop::collection::vec(part, 0..5).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 512 }))]

    #[test]
    fn batches_with_duplicates_in_several_keyspaces_are_as_a_sorted_list(
        operations in prop::collection::vec((0u32..3, key(), prop::option::of(prop::collection::vec(any::<u8>(), 0..20))), 1..if cfg!(miri) { 40 } else { 400 }),
        spread in 1u32..4,
        batches in prop::collection::vec(1usize..120, 1..8),
        left in 0usize..3,
    ) {
        let spare = open(1 << 20);
        leave(&spare, left);
        let map = Map::new(&spare);
        let mut log: Vec<Plain> = operations
            .into_iter()
            .enumerate()
            .map(|(seq, (keyspace, key, value))| (keyspace % spread, key, seq as u64, value))
            .collect();
        let mut rest = &log[..];
        for batch in batches.iter().cycle() {
            let (now, later) = rest.split_at((*batch).min(rest.len()));
            insert_batches(&map, now, now.len().max(1));
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        sort_as_the_map(&mut log);
        check_nodes(&map);
        for (at, (keyspace, key, seq, _)) in log.iter().enumerate() {
            let place = (KeyspaceId(*keyspace), &key[..], *seq);
            prop_assert_eq!(map.at_or_after(place).map(|entry| entry.key()), Some(place));
            prop_assert_eq!(map.get(place).map(|entry| entry.key()), Some(place));
            let above = (KeyspaceId(*keyspace), &key[..], *seq + 1);
            let newest = map.at_or_after(above).filter(|entry| (entry.key().0, entry.key().1) == (above.0, above.1));
            prop_assert_eq!(map.get(above).map(|entry| entry.key()), newest.map(|entry| entry.key()));
            let longer = [key, &b"\0"[..]].concat();
            let other = (KeyspaceId(*keyspace), &longer[..], u64::MAX);
            let found = map.at_or_after(other).filter(|entry| (entry.key().0, entry.key().1) == (other.0, other.1));
            prop_assert_eq!(map.get(other).map(|entry| entry.key()), found.map(|entry| entry.key()));
            prop_assert_eq!(map.back_from(Some(place)).next().map(|entry| entry.key().2), at.checked_sub(1).map(|at| log[at].2));
        }
        for at in (0..=log.len()).step_by(7) {
            let Some((keyspace, key, seq, _)) = log.get(at) else { continue };
            let from = (KeyspaceId(*keyspace), &key[..], *seq);
            let expected: Vec<_> = log[at..].iter().map(|entry| entry.2).collect();
            let before: Vec<_> = log[..at].iter().rev().map(|entry| entry.2).collect();
            prop_assert_eq!(map.back_from(Some(from)).map(|entry| entry.key().2).collect::<Vec<_>>(), before);
            prop_assert_eq!(map.ahead(Some(from)).map(|entry| entry.key().2).collect::<Vec<_>>(), &expected[..]);
            prop_assert_eq!(map.from(from).map(|entry| entry.key().2).collect::<Vec<_>>(), expected);
        }
        prop_assert_eq!(entries(&map), log);
    }
}

/// Nodes are written anew at each pause of a reader, one after the other.
#[test]
fn a_reader_believes_nothing_that_was_written_anew_meanwhile() {
    let (count, more) = if cfg!(miri) { (40, 30) } else { (2_000, 3_000) };
    let key = |n: u64| format!("{:020}", shuffled(n));
    for at in 0..8 {
        for what in 0..5 {
            for wanted in [0, 1, count / 2, count - 1].into_iter().take(if cfg!(miri) { 1 } else { 4 }) {
                let map = Arc::new(Map::default());
                for n in 0..count {
                    insert(&map, (KeyspaceId(1), key(n).as_bytes(), n), None);
                }
                let (paused, mut pauses) = (Arc::clone(&map), 0);
                PAUSED.set(Some(Box::new(move || {
                    if pauses == at {
                        for n in count..count + more {
                            insert(&paused, (KeyspaceId(1), key(n).as_bytes(), n), None);
                        }
                    }
                    pauses += 1;
                })));
                let text = key(wanted);
                let place = (KeyspaceId(1), text.as_bytes(), wanted);
                match what {
                    0 => assert!(map.get(place).map(|entry| entry.key()) == Some(place)),
                    1 => assert!(map.at_or_after(place).map(|entry| entry.key()) == Some(place)),
                    2 => assert!(map.from(place).next().map(|entry| entry.key()) == Some(place)),
                    3 => {
                        let all: Vec<_> = map.from(place).map(|entry| entry.key()).collect();
                        assert!(all.is_sorted_by(|a, b| compare(*a, *b).is_lt()));
                        let old = all.iter().filter(|key| key.2 < count).count();
                        let expected = (0..count).filter(|n| key(*n) >= text).count();
                        assert_eq!(old, expected);
                    }
                    _ => {
                        let highest = (0..count).map(key).filter(|other| *other < text).max();
                        let found = map.back_from(Some(place)).next().map(|entry| entry.key());
                        let found = found.map(|(_, key, _)| key.to_vec());
                        assert!(found >= highest.map(String::into_bytes), "what was before it is");
                        assert!(found.is_none_or(|found| &found[..] < text.as_bytes()));
                    }
                }
                PAUSED.set(None);
                check_nodes(&map);
            }
        }
    }
}

/// Leaves and inner nodes become two, and old ones are written anew, under the eyes of readers who look for what is there for certain.
#[test]
fn what_is_there_is_found_while_nodes_are_written_anew() {
    let total = if cfg!(miri) { 80 } else { COUNT * 5 };
    let map = Map::default();
    let visible = AtomicUsize::new(0);
    let key = |n: u64| format!("{:020}", shuffled(n));
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let (map, visible) = (&map, &visible);
            scope.spawn(move || {
                let mut probe = reader;
                loop {
                    let now = visible.load(Acquire) as u64;
                    probe = shuffled(probe + 1);
                    if now > 0 {
                        let wanted = probe % now;
                        let key = key(wanted);
                        let place = (KeyspaceId(1), key.as_bytes(), wanted);
                        let found = map.get(place).map(|entry| entry.key());
                        assert!(found == Some(place), "{wanted} of {now}");
                        assert!(map.at_or_after(place).map(|entry| entry.key()) == Some(place));
                        let mut walk = map.from(place).map(|entry| entry.key());
                        assert!(walk.next() == Some(place));
                        assert!(
                            walk.take(if cfg!(miri) { 5 } else { 50 })
                                .is_sorted_by(|a, b| compare(*a, *b).is_lt())
                        );
                        let before = map.back_from(Some(place)).next().map(|entry| entry.key());
                        assert!(before.is_none_or(|before| compare(before, place).is_lt()));
                        let absent = [key.as_bytes(), b"0"].concat();
                        assert!(map.get((KeyspaceId(1), &absent, u64::MAX)).is_none());
                    }
                    if now == total {
                        break;
                    }
                }
            });
        }
        for n in 0..total {
            insert(&map, (KeyspaceId(1), key(n).as_bytes(), n), Some(b"value"));
            visible.store((n + 1) as usize, Release);
        }
    });
    check_nodes(&map);
}

/// Batches of overwritten keys among batches of new ones, and readers at every commit's sequence number: each of them sees its
/// batch wholly as soon as it is told of it, and no reader of an earlier time sees anything of it.
#[test]
fn a_batch_is_seen_wholly_at_its_time_and_not_before() {
    let (batches, len): (u64, u64) = if cfg!(miri) { (12, 10) } else { (400, 200) };
    let keys = len / 2 + 7;
    let map = Map::default();
    let visible = AtomicUsize::new(0);
    let key = |n: u64| (n % keys).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    // Number `n` writes key n % keys: the newest at time `s` is the highest such n up to s.
    std::thread::scope(|scope| {
        for reader in 0..2u64 {
            let (map, visible) = (&map, &visible);
            scope.spawn(move || {
                let mut probe = reader;
                loop {
                    let now = visible.load(Acquire) as u64;
                    if now == 0 {
                        std::thread::yield_now();
                        continue;
                    }
                    for time in [now, now / 2] {
                        probe = shuffled(probe + 1);
                        let wanted = probe % keys;
                        let newest = (time >= wanted).then(|| time - (time - wanted) % keys);
                        let key = key(wanted);
                        let found = map.at_or_after((KeyspaceId(1), &key, time));
                        let found = found.filter(|found| found.key().1 == key);
                        assert!(
                            map.get((KeyspaceId(1), &key, time)) == found,
                            "key {wanted} at {time} of {now}"
                        );
                        assert_eq!(
                            found.map(|found| found.key().2),
                            newest,
                            "key {wanted} at {time} of {now}"
                        );
                        if let Some(found) = found {
                            assert_eq!(found.value(), Some(&found.key().2.to_le_bytes()[..]));
                        }
                    }
                    if now == batches * len - 1 {
                        break;
                    }
                }
            });
        }
        for batch in 0..batches {
            let numbers = batch * len..(batch + 1) * len;
            let all: Vec<_> = numbers.map(|n| (n, key(n), n.to_le_bytes())).collect();
            map.insert_all(
                all.iter().map(|(n, key, value)| ((KeyspaceId(1), &key[..], *n), Some(&value[..]))),
            );
            visible.store(((batch + 1) * len - 1) as usize, Release);
        }
    });
    check_nodes(&map);
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

/// Prints what an insertion costs; run it optimised:
/// `cargo test --release -p sapwood --lib map -- --ignored --nocapture`.
#[test]
#[ignore = "measures"]
fn what_an_insertion_costs() {
    const ENTRIES: u64 = 200_000;
    let value = [7; 100];
    for random in [true, false] {
        for batch in [1, 10, 100, 1000] {
            let mut best = f64::MAX;
            for round in 0..7 {
                let map = Map::default();
                let name = |n: u64| if random { shuffled(shuffled(n ^ round << 32)) >> 20 } else { n };
                let keys: Vec<_> = (0..ENTRIES).map(|n| format!("user{:014}", name(n))).collect();
                let began = std::time::Instant::now();
                for (keys, seq) in keys.chunks(batch).zip((0..).step_by(batch)) {
                    let places = keys.iter().zip(seq..).map(|(key, n)| (KeyspaceId(1), key.as_bytes(), n));
                    map.insert_all(places.map(|place| (place, Some(&value[..]))));
                }
                best = best.min(began.elapsed().as_nanos() as f64 / ENTRIES as f64);
                check_nodes(&map);
            }
            let order = if random { "random" } else { "ascending" };
            println!("{order} keys, {batch} at a time: {best:.0} ns an entry");
        }
    }
}

/// What nodes took a chunk for counted as used, all of the chunk, until the next round.
#[test]
fn what_waits_is_counted_when_the_nodes_have_theirs() {
    let map = Map::default();
    insert(&map, (KeyspaceId(1), b"long", 1), Some(&vec![7; 8 << 20]));
    assert_eq!(map.memory(), (8 << 20) + 4096 + (2 << 20), "the entry, with its last page, and a chunk");
    assert_eq!(map.fill(), (8 << 20) + 4096 + CHUNK, "of which nodes need a part");
}

/// What keeps the memory of maps that take so many bytes.
fn open(bytes: usize) -> Arc<Spare> {
    let spare = Arc::new(Spare::default());
    spare.open(bytes);
    spare
}

/// Has maps leave so many chunks there.
fn leave(spare: &Arc<Spare>, chunks: usize) {
    let map = Map::new(spare);
    for n in 0..chunks as u64 * 4 {
        // Neither are its entries whole words: there is padding between them that was never written.
        insert(&map, (KeyspaceId(1), &[7; 2001], n), Some(&[n as u8; CHUNK / 4 - 9000]));
    }
    let memory = map.memory();
    assert_eq!(memory, chunks * CHUNK);
    drop(map);
    assert_eq!(spare.bytes(), memory);
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
        assert_eq!((node.word().count(), node.low(), node.sorted()), (0, Place::NOWHERE, 0));
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
