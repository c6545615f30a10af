//! Readers pass over tombstones, and over nothing else.

use super::nodes::check_nodes;
use super::{COUNT, insert, shuffled};
use crate::operation::{KeyspaceId, SeqNo};
use crate::opq::map::entry::compare;
use crate::opq::map::{Key, Map, Passed};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};

const KEYSPACE: KeyspaceId = KeyspaceId(1);

/// The keys that a reader at `seq` finds a value for, in order.
fn values(map: &Map, seq: SeqNo) -> Vec<Vec<u8>> {
    let (mut found, mut last) = (Vec::new(), None);
    for entry in map.all().filter(|entry| entry.key().2 <= seq) {
        let key = entry.key().1.to_vec();
        if last.as_ref() != Some(&key) && entry.value().is_some() {
            found.push(key.clone());
        }
        last = Some(key);
    }
    found
}

fn check(map: &Map, from: &[u8], seq: SeqNo) {
    let values = values(map, seq);
    let next = values.iter().find(|value| &value[..] >= from);
    match map.past_tombstones((KEYSPACE, from, SeqNo::MAX), seq) {
        Passed::Nothing => {}
        Passed::To(entry) => assert!(next.is_none_or(|next| &next[..] >= entry.key().1)),
        Passed::All => assert_eq!(next, None),
    }
    let before = values.iter().rev().find(|value| &value[..] < from);
    match map.past_tombstones_back(Some((KEYSPACE, from, SeqNo::MAX)), seq) {
        Passed::Nothing => {}
        Passed::To(entry) => assert!(before.is_none_or(|before| &before[..] <= entry.key().1)),
        Passed::All => assert_eq!(before, None),
    }
    if values.is_empty() {
        return;
    }
    assert!(!matches!(map.past_tombstones((KEYSPACE, &[], SeqNo::MAX), seq), Passed::All));
    assert!(!matches!(map.past_tombstones_back(None, seq), Passed::All));
}

/// Runs of removals here and there, new values among them, old readers.
#[test]
fn no_value_is_passed_over() {
    let rounds = if cfg!(miri) { 2 } else { 12 };
    for round in 0..rounds {
        let (map, mut seq) = (Map::default(), 7);
        for step in 0..if cfg!(miri) { 8 } else { 30 } {
            let random = shuffled(shuffled(round * 1000 + step));
            let (first, len, what) = (random % 1000, random >> 20 & 511, random >> 40 & 3);
            for n in first..first + if cfg!(miri) { len / 8 } else { len } {
                let n = if what == 3 { shuffled(n) % 1500 } else { n };
                let value = (what == 0 || (what == 3 && n % 5 == 0)).then_some(&b"value"[..]);
                insert(&map, (KEYSPACE, &n.to_be_bytes(), seq), value);
                seq += 1;
            }
            check_nodes(&map);
            for n in 0..20 {
                let random = shuffled(shuffled(round * 1000 + step + n * 77));
                check(&map, &(random % 1600).to_be_bytes(), (random >> 20) % seq);
                check(&map, &(random % 1600).to_be_bytes(), SeqNo::MAX);
            }
        }
    }
}

/// It took a look at each of them.
#[test]
fn any_number_of_tombstones_takes_a_few_steps() {
    let count = COUNT * if cfg!(miri) { 1 } else { 5 };
    for is_live in [false, true] {
        // Inserted and removed in order, in reverse, at random; or only removed, which is to hide what is in the trees.
        for order in 0..3 {
            let map = Map::default();
            let key = |n: u64| match order {
                0 => n,
                1 => count - 1 - n,
                _ => shuffled(n),
            };
            let mut seq = 1;
            for value in [Some(&b"value"[..]), None].into_iter().skip(usize::from(!is_live)) {
                for n in 0..count {
                    insert(&map, (KEYSPACE, &key(n).to_be_bytes(), seq), value);
                    seq += 1;
                }
            }
            check_nodes(&map);
            assert!(matches!(map.past_tombstones((KEYSPACE, &[], SeqNo::MAX), seq), Passed::All));
            assert!(matches!(map.past_tombstones_back(None, seq), Passed::All));
            if is_live {
                let before = map.past_tombstones((KEYSPACE, &[], SeqNo::MAX), count);
                assert!(matches!(before, Passed::Nothing), "readers of earlier find what was there");
            }
            // A single value in the middle.
            let middle = if order == 2 { u64::MAX / 2 } else { count / 2 }.to_be_bytes();
            insert(&map, (KEYSPACE, &middle, seq), Some(b"value"));
            check_nodes(&map);
            check(&map, &[], seq);
            let Passed::To(entry) = map.past_tombstones((KEYSPACE, &[], SeqNo::MAX), seq) else { panic!() };
            let passed = map.all().filter(|passed| compare(passed.key(), entry.key()).is_lt()).count();
            let before = map.all().filter(|passed| passed.key().1 < &middle[..]).count();
            assert!(before - passed <= 29, "{passed} of {before} were passed over");
        }
    }
}

/// A queue beside its reader: what is there is never passed over, while nodes are written anew.
#[test]
fn what_is_there_is_not_passed_over_while_nodes_are_written_anew() {
    let map = Arc::new(Map::default());
    let visible = AtomicU64::new(0);
    let key = |n: u64| n.to_be_bytes();
    let total = COUNT * 5;
    insert(&map, (KEYSPACE, &key(0), 0), Some(b"value"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut seq = 0;
            for n in 0..total {
                insert(&map, (KEYSPACE, &key(n + 1), seq + 1), Some(b"value"));
                insert(&map, (KEYSPACE, &key(n), seq + 2), None);
                seq += 2;
                visible.store(seq, Release);
            }
        });
        loop {
            let seq = visible.load(Acquire);
            // At `seq` there is one value: after so many removals, at an even number.
            let there = key(seq / 2);
            let reader: Key<'_> = (KEYSPACE, &[], SeqNo::MAX);
            match map.past_tombstones(reader, seq) {
                Passed::Nothing => {}
                Passed::To(entry) => assert!(entry.key().1 <= &there[..]),
                Passed::All => panic!("{seq} was passed over"),
            }
            match map.past_tombstones_back(None, seq) {
                Passed::Nothing => {}
                Passed::To(entry) => assert!(entry.key().1 >= &there[..]),
                Passed::All => panic!("{seq} was passed over downwards"),
            }
            if seq == total * 2 {
                break;
            }
        }
    });
    check_nodes(&map);
}
