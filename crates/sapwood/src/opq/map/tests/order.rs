//! The map's order against sorted lists: single entries and batches, and what searches and walks find of them.

use super::nodes::check_nodes;
use super::{COUNT, Plain, entries, insert_batches, leave, open, shuffled, sort_as_the_map};
use crate::operation::KeyspaceId;
use crate::opq::map::Map;
use crate::opq::map::entry::compare;
use proptest::prelude::*;

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
