//! The longest commands and entries, on the smallest databases: what is let in can be appended and applied.

use crate::ground::{self, Log, Machine, command};
use bytes::Bytes;
use openraft::RaftLogReader;
use openraft::storage::{RaftLogStorage, RaftLogStorageExt, RaftStateMachine};
use sapwood::Database;
use sapwood_openraft::{KvCommand, KvCondition, KvMachine, KvWrite, Store};
use tempfile::TempDir;

fn with_memory(bytes: u64, dir: &TempDir) -> (Log, Machine) {
    let db = Database::builder().memory(bytes).open(dir.path().join("node.db")).expect("opens");
    let store = Store::open(&db, dir.path().join("snapshots")).expect("a store");
    store.group(7, KvMachine::new()).expect("a group")
}

/// The command with the most parts that is let in.
fn longest(with: impl Fn(usize) -> KvCommand) -> KvCommand {
    let is_let_in = |count| with(count).refusal(KvCommand::BYTES_MAX).is_none();
    let (mut low, mut high) = (0, 1);
    while is_let_in(high) {
        (low, high) = (high, 2 * high);
    }
    while high - low > 1 {
        let middle = usize::midpoint(low, high);
        if is_let_in(middle) { low = middle } else { high = middle }
    }
    assert!(low > 100, "{low} parts");
    with(low)
}

fn writes(write: impl Fn(usize) -> KvWrite) -> impl Fn(usize) -> KvCommand {
    move |count| KvCommand { conditions: Vec::new(), writes: (0..count).map(&write).collect() }
}

fn conditions(condition: impl Fn(usize) -> KvCondition) -> impl Fn(usize) -> KvCommand {
    move |count| KvCommand { conditions: (0..count).map(&condition).collect(), writes: Vec::new() }
}

/// As short as so many different keys can be.
fn short(number: usize) -> Bytes {
    let bytes = (number as u32).to_be_bytes();
    let from = bytes.iter().position(|byte| *byte != 0).unwrap_or(3);
    Bytes::copy_from_slice(&bytes[from..])
}

/// In the order of the numbers.
fn ordered(number: usize) -> Bytes {
    Bytes::copy_from_slice(&(number as u32).to_be_bytes())
}

/// A range from one key to the next, which is not removed any more.
fn range(number: usize) -> KvWrite {
    KvWrite::delete_range(ordered(number), Some(ordered(number + 1)))
}

#[test]
fn whatever_is_let_in_fits_into_the_smallest_database() {
    let long_keys = |len: usize| {
        let keys =
            (0..len / 60_000).map(|number| KvWrite::delete([&short(number)[..], &[b'k'; 50_000]].concat()));
        let last = KvWrite::delete(vec![b'l'; len % 60_000 + 1]);
        KvCommand { conditions: Vec::new(), writes: keys.chain([last]).collect() }
    };
    let put_or_range = |number: usize| match number % 2 {
        0 => KvWrite::put(ordered(number), ""),
        _ => range(number - 1),
    };
    let version = |number| KvCondition::Version { key: short(number), version: 0 };
    let value = |number| KvCondition::Value { key: short(number), value: None };
    let commands = [
        ("a long value", longest(|len| KvCommand::put("key", vec![b'v'; len]))),
        ("empty values", longest(writes(|number| KvWrite::put(short(number), "")))),
        ("keys of six bytes", longest(writes(|number| KvWrite::put(format!("{number:06}"), "")))),
        ("values of a kilobyte", longest(writes(|number| KvWrite::put(short(number), vec![0; 1000])))),
        ("removals", longest(writes(|number| KvWrite::delete(short(number))))),
        ("long keys", longest(long_keys)),
        // None of them touch, so they do not become one.
        ("ranges", longest(writes(|number| range(2 * number)))),
        ("records and ranges over them", longest(writes(put_or_range))),
        ("versions", longest(conditions(version))),
        ("values", longest(conditions(value))),
    ];
    let dir = ground::directory();
    let (mut log, mut machine) = with_memory(4 << 20, &dir);
    for (index, (what, longest)) in (1..).zip(commands) {
        let parts = (longest.conditions.len(), longest.writes.len());
        let check = |done: ground::Result<_>| {
            done.map(drop).unwrap_or_else(|error| panic!("{what}, {parts:?}: {error}"))
        };
        let entry = command(1, index, longest);
        ground::run(async {
            check(log.blocking_append([entry.clone()]).await.map(|()| Vec::new()));
            check(machine.apply([entry.clone()]).await);
            // Behind one of the same transaction that leaves it no room.
            let other = command(1, index, KvCommand::put("other", vec![0; 500_000]));
            check(machine.apply([other, entry]).await);
        });
    }
}

/// What is no key of the database is refused before it is in the log, where it would stop every node.
#[test]
fn bounds_that_are_no_keys_are_refused() {
    let long = vec![b'a'; sapwood::KEY_LEN_MAX + 1];
    let refusal = |command: KvCommand| command.refusal(KvCommand::BYTES_MAX);
    assert!(refusal(KvCommand::delete_range(long.clone(), None::<&str>)).is_some());
    assert!(refusal(KvCommand::delete_range("a", Some(long.clone()))).is_some());
    assert!(refusal(KvCommand::delete_range("", Some(long[1..].to_vec()))).is_none());
}

/// An append has the entries of a message, or of a proposal, and each of them has what it may have.
#[test]
fn entries_of_all_lengths_are_appended_together() {
    for memory in [4 << 20, 8 << 20] {
        let dir = ground::directory();
        let (mut log, _machine) = with_memory(memory, &dir);
        let lens = [500_000, 900_000, 10, 523_000, 900_000, 900_000, 1000, 400_000];
        let entry = |(index, len)| command(1, index, KvCommand::put("key", vec![0; len]));
        ground::run(log.blocking_append((1..).zip(lens).map(entry))).expect("appends");
        let state = ground::run(log.get_log_state()).expect("reads");
        assert_eq!(state.last_log_id, Some(ground::id(1, 8)));
    }
}

/// It stops the node: an entry that is acknowledged and not there would be counted as one that a majority has.
#[test]
fn an_entry_that_is_too_long_is_not_acknowledged() {
    let dir = ground::directory();
    let (mut log, _machine) = with_memory(4 << 20, &dir);
    let entry = |index, len| command(1, index, KvCommand::put("key", vec![0; len]));
    for entries in [vec![entry(1, 1_000_000)], vec![entry(1, 10), entry(2, 1_000_000)]] {
        let refused = ground::run(log.blocking_append(entries)).expect_err("it does not fit");
        assert!(refused.to_string().contains("values have at most"), "{refused}");
    }
}

/// openraft sends what it has read in one message, which has one heartbeat of time.
#[test]
fn entries_that_are_sent_together_are_few() {
    let dir = ground::directory();
    let (mut log, _machine) = with_memory(8 << 20, &dir);
    let lens = [900_000, 900_000, 500_000, 10, 200_000, 50_000, 20_000, 900_000, 1, 1];
    let end = 1 + lens.len() as u64;
    let entry = |(index, len)| command(1, index, KvCommand::put("key", vec![0; len]));
    ground::run(async {
        log.blocking_append((1..).zip(lens).map(entry)).await.expect("appends");
        let mut reader = log.get_log_reader().await;
        let (mut next, mut parts) = (1, Vec::new());
        while next < end {
            let found = reader.limited_get_log_entries(next, end).await.expect("reads");
            let bytes: usize = found.iter().map(|entry| lens[entry.log_id.index as usize - 1]).sum();
            assert!(found.len() == 1 || bytes <= 256 << 10, "{} entries, {bytes} bytes", found.len());
            assert_eq!(found.first().map(|entry| entry.log_id.index), Some(next));
            next += found.len() as u64;
            parts.push(found.len());
        }
        // Short ones go together.
        assert_eq!(parts, [1, 1, 1, 3, 1, 1, 2]);
    });
}
