//! Long scans, of which the next group of leaves is in flight while one is eaten: they give out what a model says, in both directions and
//! whatever becomes of them; what fails on the way is told where the walk comes to it; and short scans read nothing ahead.

use crate::scenario::{self, Contents};
use psync::{Device, Fault, OperationKind, Repeat, Simulated};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Builder, Database, Keyspace};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, mpsc};

const RECORDS: u32 = 20_000;

fn options() -> Builder {
    scenario::plain_options().leaf_len(2048)
}

fn key(number: u32) -> Vec<u8> {
    format!("key{number:07}").into_bytes()
}

fn records() -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    (0..RECORDS).map(|number| (key(number), vec![number as u8; 20 + number as usize % 90]))
}

/// Bytes of a leaf that the n-th record takes, about.
fn bytes_of(number: u32) -> usize {
    10 + 20 + number as usize % 90 + 5
}

/// A volume with all records in leaves that are in nobody's cache.
fn ingested() -> Simulated {
    let volume = Simulated::new(1);
    let db = options().open_on(Arc::new(volume.clone())).expect("opens");
    db.keyspace("main").expect("a keyspace").ingest(records()).expect("ingests");
    drop(db);
    volume.crash()
}

fn opened(volume: &Simulated) -> (Database, Keyspace) {
    let db = options().open_on(Arc::new(volume.clone())).expect("opens");
    let keyspace = db.keyspace("main").expect("a keyspace");
    (db, keyspace)
}

fn owned(item: sapwood::Result<(sapwood::Key, sapwood::Value)>) -> (Vec<u8>, Vec<u8>) {
    item.map(|(key, value)| (key.to_vec(), value.to_vec())).expect("reads")
}

/// Scans between random bounds, of which some end early, in either direction and in both by turns.
fn scan_at_random(keyspace: &Keyspace, model: &Contents, rng: &mut StdRng, story: &str) {
    for turn in 0..24 {
        let mut bound = |any: bool| match rng.random_range(0..4) {
            0 if any => Bound::Unbounded,
            0..3 => Bound::Included(key(rng.random_range(0..RECORDS))),
            _ => Bound::Excluded(key(rng.random_range(0..RECORDS))),
        };
        let (mut low, mut high) = (bound(true), bound(true));
        if let (Bound::Included(from) | Bound::Excluded(from), Bound::Included(to) | Bound::Excluded(to)) =
            (&low, &high)
            && from >= to
        {
            std::mem::swap(&mut low, &mut high);
        }
        if matches!((&low, &high), (Bound::Excluded(from), Bound::Excluded(to)) if from == to) {
            continue;
        }
        let len = if rng.random_bool(0.5) { usize::MAX } else { rng.random_range(0..12_000) };
        let (found, expected) = (keyspace.range((low.clone(), high.clone())), model.range((low, high)));
        let expected = expected.map(|(key, value)| (key.clone(), value.clone()));
        let story = format!("{story}, turn {turn}");
        match turn % 3 {
            0 => assert!(found.take(len).map(owned).eq(expected.take(len)), "{story}"),
            1 => assert!(found.rev().take(len).map(owned).eq(expected.rev().take(len)), "{story}"),
            _ => {
                // Both ends, in stretches, until they meet.
                let (mut found, mut expected) = (found, expected);
                let mut is_up = false;
                loop {
                    is_up = !is_up;
                    for _ in 0..rng.random_range(1..3000) {
                        let (found, expected) = match is_up {
                            true => (found.next(), expected.next()),
                            false => (found.next_back(), expected.next_back()),
                        };
                        assert_eq!(found.map(owned), expected, "{story}");
                    }
                    if expected.next().is_none() {
                        assert!(found.next().is_none() && found.next_back().is_none(), "{story}");
                        break;
                    }
                    found.next().expect("as many as expected").expect("reads");
                }
            }
        }
    }
}

/// On real directories and simulated volumes, over leaves alone and with log pieces over them.
#[test]
fn scans_of_any_length_give_out_what_a_model_says() {
    for (seed, pio_max) in [1, 2, 3, 16, 64, 1024].into_iter().enumerate() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("db");
        let mut rng = StdRng::seed_from_u64(seed as u64);
        let mut model: Contents = records().collect();
        let open = || options().pio_max(pio_max).background_threads(4).open(&path).expect("opens");
        {
            let db = open();
            db.keyspace("main").expect("a keyspace").ingest(records()).expect("ingests");
        }
        for round in 0..2 {
            let db = open();
            let keyspace = db.keyspace("main").expect("a keyspace");
            let story = format!("pio_max {pio_max}, round {round}");
            scan_at_random(&keyspace, &model, &mut rng, &story);
            // Sparse, so that they gather in log areas; some flushed, some not.
            for flushed in [true, true, false] {
                let mut batch = db.batch();
                for _ in 0..400 {
                    let key = key(rng.random_range(0..RECORDS));
                    if rng.random_bool(0.3) {
                        batch.remove(&keyspace, &key);
                        model.remove(&key);
                    } else {
                        batch.insert(&keyspace, &key, b"changed");
                        model.insert(key, b"changed".to_vec());
                    }
                }
                batch.commit().expect("commits");
                if flushed {
                    db.flush().expect("flushes");
                }
            }
            assert!(db.stats().space.log_pieces > 0, "{story}: nothing in log areas");
            scan_at_random(&keyspace, &model, &mut rng, &story);
            db.check().unwrap_or_else(|damage| panic!("{story}: {damage}"));
        }
    }
}

/// When a group of a long walk is delivered the next one was asked for already: what fails from then on fails behind both.
#[test]
fn the_next_group_is_requested_before_one_is_consumed() {
    let volume = ingested();
    let whole: Vec<_> = records().collect();
    let (mut groups, mut before) = (0, 0);
    for direction in [false, true] {
        let expected: Vec<_> = if direction { whole.clone() } else { whole.iter().rev().cloned().collect() };
        for limit in 0..16 {
            let (_db, keyspace) = opened(&volume);
            let mut walk = keyspace.iter();
            let mut next = || if direction { walk.next() } else { walk.next_back() };
            // Up to the place where the device is asked for the n-th time.
            let (mut given, mut asked, mut reads) = (0, 0, volume.counters().reads);
            while asked <= limit {
                assert_eq!(owned(next().expect("more")), expected[given]);
                given += 1;
                asked += u32::from(volume.counters().reads != reads);
                reads = volume.counters().reads;
            }
            volume.fail_nth(OperationKind::Read, 1, Fault::Error, Repeat::Sticky);
            let mut bytes = 0;
            let error = loop {
                match next() {
                    Some(Ok((key, value))) => assert_eq!((key.to_vec(), value.to_vec()), expected[given]),
                    Some(Err(error)) => break error,
                    None => panic!("the walk ended after {given} records as if that were all"),
                }
                bytes += bytes_of(if direction { given as u32 } else { RECORDS - 1 - given as u32 });
                given += 1;
            };
            assert!(error.to_string().contains("read of data at byte"), "{error}");
            assert!(next().is_none(), "after an error it is over");
            volume.clear_faults();
            assert!(bytes < 64 * 2048, "{bytes} bytes came of leaves in memory or in flight");
            if limit >= 4 {
                groups += 1;
                before += usize::from(bytes > 40 * 2048);
            }
        }
    }
    assert!(before * 4 >= groups * 3, "{before} of {groups} times two groups were there");
}

#[test]
fn a_short_scan_reads_nothing_ahead_and_none_reads_beyond_the_bounds() {
    let volume = ingested();
    let mut rng = StdRng::seed_from_u64(3);
    for count in [1, 10, 100, 300, 1000, 3000, 10_000] {
        for direction in [false, true] {
            let (db, keyspace) = opened(&volume);
            let from = rng.random_range(0..RECORDS - count);
            let (low, high) = (key(from), key(from + count));
            let nodes = |leaves: &dyn Fn() -> usize| {
                let before = db.stats().reads.cache_misses;
                assert_eq!(leaves(), count as usize);
                (db.stats().reads.cache_misses - before) as usize
            };
            let needed = (from..from + count).map(bytes_of).sum::<usize>().div_ceil(2000) + 2;
            // Blocks that are new to the cache.
            let inner = 3 + needed / 20;
            let read = nodes(&|| match direction {
                true => keyspace.range(&low[..]..&high[..]).map(owned).count(),
                false => keyspace.range(&low[..]..&high[..]).rev().map(owned).count(),
            });
            assert!(read <= needed + inner, "{count} records in {needed} leaves: {read} nodes were read");
            drop((db, keyspace));
            // Without a bound: what was in flight is for nothing. A short one reads no more than the first group.
            let (db, keyspace) = opened(&volume);
            let nodes = |scan: &dyn Fn() -> usize| {
                let before = db.stats().reads.cache_misses;
                scan();
                (db.stats().reads.cache_misses - before) as usize
            };
            let read = nodes(&|| match direction {
                true => keyspace.range(&low[..]..).take(count as usize).map(owned).count(),
                false => keyspace.range(..&high[..]).rev().take(count as usize).map(owned).count(),
            });
            let most = if count <= 100 { 2 * 12 } else { 3 * needed + 24 };
            assert!(read <= most + inner, "{count} records in {needed} leaves: {read} nodes were read");
        }
    }
}

/// A leaf is as long as its longest value makes it, and what the first one is like says nothing about the others.
#[test]
fn groups_of_long_leaves_are_of_few() {
    let volume = Simulated::new(1);
    // The read buffers of the least memory.
    const BUFFERS: u64 = 128 << 10;
    const LEN: usize = 50_000;
    let value = |number: u32| vec![number as u8; if number < 3 { 10 } else { LEN }];
    {
        let db = options().open_on(Arc::new(volume.clone())).expect("opens");
        let main = db.keyspace("main").expect("a keyspace");
        main.ingest((0..100).map(|number| (key(number), value(number)))).expect("ingests");
    }
    let volume = volume.crash();
    // The second time it is known how long they are.
    let (db, keyspace) = opened(&volume);
    for round in 0..20 {
        let (before, mut given) = (db.stats().reads.bytes, 0);
        let mut walk = keyspace.iter();
        for number in 0..100 {
            assert_eq!(owned(walk.next().expect("more")), (key(number), value(number)));
            given += value(number).len() as u64;
            let ahead = (db.stats().reads.bytes - before).saturating_sub(given);
            assert!(ahead <= 2 * BUFFERS + 64_000, "round {round}: {ahead} bytes at record {number}");
        }
    }
}

/// Scans that nobody gave a bound: how long such scans are is learnt from those that have ended.
#[test]
fn scans_that_are_alike_soon_read_what_they_need_at_once() {
    let volume = ingested();
    for direction in [false, true] {
        for count in [30, 100, 300, 500] {
            let (db, keyspace) = opened(&volume);
            let mut rng = StdRng::seed_from_u64(count.into());
            let mut scan = || {
                let from = rng.random_range(count..RECORDS - count);
                let before = db.stats().reads;
                let found = match direction {
                    true => keyspace.range(&key(from)[..]..).take(count as usize).map(owned).count(),
                    false => keyspace.range(..&key(from)[..]).rev().take(count as usize).map(owned).count(),
                };
                assert_eq!(found, count as usize);
                let after = db.stats().reads;
                let nodes = after.cache_misses - before.cache_misses;
                (nodes, after.psync_groups - before.psync_groups)
            };
            for _ in 0..10 {
                scan();
            }
            let (mut nodes, mut groups) = (0, 0);
            const SCANS: u64 = 20;
            for _ in 0..SCANS {
                let (more_nodes, more_groups) = scan();
                nodes += more_nodes;
                groups += more_groups;
            }
            let needed = u64::from(count) * 93 / 2000 + 2;
            let story =
                format!("{SCANS} scans of {count} in {needed} leaves: {nodes} nodes in {groups} groups");
            assert!(nodes <= SCANS * (needed + 1 + needed / 4), "{story}");
            assert!(groups <= SCANS * 3 / 2, "{story}");
        }
    }
}

/// All of them together hold a part of the memory budget; the others leave what they held, and go on where they were.
#[test]
fn walks_that_stand_still_go_on_where_they_were() {
    let volume = ingested();
    let (_db, keyspace) = opened(&volume);
    let mut walks: Vec<_> = (0..60)
        .map(|n| {
            let mut walk = keyspace.range(key(n * 100)..);
            (0..1500).for_each(|_| drop(walk.next().expect("more").expect("reads")));
            (walk, n * 100 + 1500)
        })
        .collect();
    for (walk, at) in &mut walks {
        for _ in 0..700 {
            assert_eq!(owned(walk.next().expect("more")).0, key(*at));
            *at += 1;
        }
    }
}

/// The thread that began a read may have something else to do, or sleep, while another waits for it.
#[test]
fn a_walk_goes_on_in_another_thread_whatever_the_first_one_does() {
    fn is_movable<T: Send>(walk: T) -> T {
        walk
    }
    let dir = tempfile::tempdir().expect("a directory");
    let db = options().background_threads(4).open(dir.path().join("db")).expect("opens");
    let keyspace = db.keyspace("main").expect("a keyspace");
    keyspace.ingest(records()).expect("ingests");
    let whole: Vec<_> = records().collect();
    for round in 0..12 {
        let (is_over, (send, receive)) = (AtomicBool::new(false), mpsc::channel());
        let (keyspace, is_over, whole) = (&keyspace, &is_over, &whole);
        let at = 2000 + 250 * round;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut walk = keyspace.iter();
                for expected in &whole[..at] {
                    assert_eq!(owned(walk.next().expect("more")), *expected, "round {round}");
                }
                send.send(is_movable(walk)).expect("somebody waits");
                // Without a system call.
                let mut turns = 0_u64;
                while !is_over.load(Relaxed) && turns < 20_000_000_000 {
                    turns += 1;
                }
            });
            let walk = receive.recv().expect("a walk");
            let rest: Vec<_> = walk.map(owned).collect();
            is_over.store(true, Relaxed);
            assert!(rest == whole[at..], "round {round}");
        });
    }
}

/// What is in flight belongs to the walk: it may end anywhere, on any thread, also after the database.
#[test]
fn abandoned_walks_do_no_harm() {
    let dir = tempfile::tempdir().expect("a directory");
    let open = || options().background_threads(4).open(dir.path().join("db")).expect("opens");
    open().keyspace("main").expect("a keyspace").ingest(records()).expect("ingests");
    let whole: Vec<_> = records().collect();
    let mut rng = StdRng::seed_from_u64(4);
    for round in 0..40 {
        let db = open();
        let keyspace = db.keyspace("main").expect("a keyspace");
        let mut walks: Vec<_> = (0..4)
            .map(|_| {
                let from = rng.random_range(0..RECORDS as usize);
                let mut walk = keyspace.range(key(from as u32)..);
                let len = rng.random_range(0..6000).min(RECORDS as usize - from);
                for expected in &whole[from..from + len] {
                    assert_eq!(owned(walk.next().expect("more")), *expected, "round {round}");
                }
                (walk, from + len)
            })
            .collect();
        let (walk, at) = walks.pop().expect("four");
        if round % 5 == 0 {
            std::mem::forget(walks.pop());
        }
        drop((db, keyspace, walks));
        // Another thread goes on with the last of them.
        let rest = std::thread::spawn(move || walk.map(owned).collect::<Vec<_>>()).join().expect("ends");
        assert!(rest == whole[at..], "round {round}");
        if round % 5 == 0 {
            // The walk that was forgotten has the database open for good.
            std::fs::rename(dir.path().join("db"), dir.path().join("forgotten")).expect("renames");
            open().keyspace("main").expect("a keyspace").ingest(records()).expect("ingests");
            std::fs::remove_dir_all(dir.path().join("forgotten")).expect("removes");
        }
    }
}
