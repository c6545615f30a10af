//! Readers beside a writer: what they see is whole and in order, and nothing that is there escapes them.

use super::nodes::check_nodes;
use super::{COUNT, PAUSED, insert, shuffled};
use crate::operation::KeyspaceId;
use crate::opq::map::entry::compare;
use crate::opq::map::{Entry, Map};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, Barrier};

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

/// Leaves and inner nodes become two, and old ones are written anew, under the eyes of readers that look for what is there for certain.
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
