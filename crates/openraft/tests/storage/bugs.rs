//! Bugs that others have published of their Raft storages, as tests of this one.

use crate::ground::{self, Log, blank, command, id, membership};
use openraft::storage::{RaftLogStorage, RaftLogStorageExt, RaftStateMachine};
use openraft::{RaftLogReader, Vote};
use sapwood::psync::{Fault, Filter, OperationKind, Repeat, Simulated};
use sapwood_openraft::{KvCommand, KvConfig, KvMachine, Store};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// What a group has after its power failed in each of some ways.
fn after_power_loss(volume: &Simulated, look: impl AsyncFn(&mut Log, u64)) {
    for seed in 0..20 {
        let directory = ground::directory();
        let (mut log, _machine) = ground::open(&volume.power_loss(seed), &directory).expect("opens");
        ground::run(look(&mut log, seed));
    }
}

/// Entries that were acknowledged from memory are counted as replicated, and are gone after a power failure: a committed entry is lost.
#[test]
fn an_append_is_not_acknowledged_before_it_is_durable() {
    for threads in [0, 2] {
        let (volume, directory) = (Simulated::new(1), ground::directory());
        let db = ground::open_on(&volume, threads).expect("opens");
        let store = Store::open(&db, directory.path()).expect("a store");
        let (mut log, _machine) = store.group::<KvConfig, _>(7, KvMachine::new()).expect("a group");
        for index in 0..50 {
            ground::run(log.blocking_append([blank(1, index)])).expect("appends");
            if index % 7 == 0 {
                after_power_loss(&volume, async |log, seed| {
                    let found = log.try_get_log_entries(..).await.expect("reads").len() as u64;
                    assert_eq!(found, index + 1, "acknowledged, seed {seed}");
                });
            }
        }
        // A sync that fails is told to the callback.
        volume.fail_nth(Filter::kinds([OperationKind::Sync]), 1, Fault::Error, Repeat::Sticky);
        let failed = ground::run(log.blocking_append([blank(1, 50)]));
        failed.expect_err("it is not durable");
    }
}

/// A vote from memory is given twice in a term, to different candidates, and there are two leaders.
#[test]
fn a_vote_is_durable_when_it_is_saved() {
    let (volume, directory) = (Simulated::new(2), ground::directory());
    let (mut log, _machine) = ground::open(&volume, &directory).expect("opens");
    for term in 1..20 {
        ground::run(log.save_vote(&Vote::new(term, 3))).expect("saves");
        after_power_loss(&volume, async |log, seed| {
            assert_eq!(log.read_vote().await.expect("reads"), Some(Vote::new(term, 3)), "seed {seed}");
        });
    }
}

/// Truncated entries that come back after a power failure conflict with what the leader has put in their place.
#[test]
fn a_truncation_is_durable_when_it_returns() {
    let (volume, directory) = (Simulated::new(3), ground::directory());
    let (mut log, _machine) = ground::open(&volume, &directory).expect("opens");
    ground::run(log.blocking_append((0..40).map(|index| blank(1, index)))).expect("appends");
    for index in (1..40).rev().step_by(2) {
        ground::run(log.truncate(id(1, index))).expect("truncates");
        after_power_loss(&volume, async |log, seed| {
            let last = log.get_log_state().await.expect("reads").last_log_id;
            assert_eq!(last, Some(id(1, index - 1)), "seed {seed}");
        });
    }
    // Another leader's entries take their place.
    ground::run(log.blocking_append([blank(2, 1)])).expect("appends");
    after_power_loss(&volume, async |log, _| {
        let found = log.try_get_log_entries(..).await.expect("reads");
        assert_eq!(found.iter().map(|entry| entry.log_id).collect::<Vec<_>>(), [id(1, 0), id(2, 1)]);
    });
}

/// Without the last purged id an emptied log begins at 0 again, and with an old one it has a hole behind it.
#[test]
fn a_purge_and_its_id_are_durable_when_it_returns() {
    let (volume, directory) = (Simulated::new(4), ground::directory());
    let (mut log, mut machine) = ground::open(&volume, &directory).expect("opens");
    ground::run(log.blocking_append((0..40).map(|index| blank(1, index)))).expect("appends");
    ground::run(machine.apply((0..40).map(|index| blank(1, index)))).expect("applies");
    for index in (0..40).step_by(3) {
        ground::run(log.purge(id(1, index))).expect("purges");
        after_power_loss(&volume, async |log, seed| {
            let state = log.get_log_state().await.expect("reads");
            assert_eq!(state.last_purged_log_id, Some(id(1, index)), "seed {seed}");
            assert_eq!(state.last_log_id, Some(id(1, 39)), "seed {seed}");
            let found = log.try_get_log_entries(..).await.expect("reads");
            assert_eq!(found.first().map(|entry| entry.log_id.index), (index < 39).then_some(index + 1));
        });
    }
    // Nothing is left but the id: of all that is left the last one.
    ground::run(machine.apply([blank(2, 60)])).expect("applies");
    ground::run(log.purge(id(2, 60))).expect("purges");
    after_power_loss(&volume, async |log, seed| {
        let state = log.get_log_state().await.expect("reads");
        assert_eq!(
            (state.last_purged_log_id, state.last_log_id),
            (Some(id(2, 60)), Some(id(2, 60))),
            "seed {seed}"
        );
        log.blocking_append([blank(2, 62)]).await.expect_err("it would leave a hole");
        log.blocking_append([blank(2, 61)]).await.expect("it is the next one");
    });
    let (killed, directory) = (volume.crash(), ground::directory());
    let (mut log, _machine) = ground::open(&killed, &directory).expect("opens");
    let state = ground::run(log.get_log_state()).expect("reads");
    assert_eq!(state.last_log_id, Some(id(2, 60)), "after a restart without power loss");
}

/// Entries of an earlier leader that lie behind a snapshot are followed by those of the new one, as if they were of its log.
#[test]
fn entries_that_conflict_with_an_installed_snapshot_go_with_the_purge() {
    let (volume, directory) = (Simulated::new(5), ground::directory());
    let (mut log, mut machine) = ground::open(&volume, &directory).expect("opens");
    ground::run(log.blocking_append((0..10).map(|index| blank(1, index)))).expect("appends");
    ground::run(machine.apply([blank(3, 5)])).expect("applies");
    ground::run(log.purge(id(3, 5))).expect("purges");
    after_power_loss(&volume, async |log, _| {
        assert_eq!(log.get_log_state().await.expect("reads").last_log_id, Some(id(3, 5)));
        assert!(log.try_get_log_entries(..).await.expect("reads").is_empty());
        log.blocking_append([blank(3, 6)]).await.expect("the log goes on there");
    });
}

/// The log is purged while it is read to be applied or sent: what is read must have no hole, and must not begin behind one.
#[test]
fn a_purge_beside_readers_leaves_them_no_hole() {
    let (volume, directory) = (Simulated::new(6), ground::directory());
    let (mut log, mut machine) = ground::open(&volume, &directory).expect("opens");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    runtime.block_on(async {
        let mut reader = log.get_log_reader().await;
        let (done, reads) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (is_done, count) = (Arc::clone(&done), Arc::clone(&reads));
        let reading = tokio::spawn(async move {
            let mut from = 0;
            while !is_done.load(SeqCst) {
                let found = reader.try_get_log_entries(from..).await.expect("no hole");
                let indexes: Vec<_> = found.iter().map(|entry| entry.log_id.index).collect();
                assert!(indexes.windows(2).all(|two| two[0] + 1 == two[1]), "{indexes:?}");
                from = indexes.first().copied().unwrap_or(from);
                count.fetch_add(1, SeqCst);
            }
        });
        let begin = Instant::now();
        for index in 0.. {
            // On a busy machine the reader may come late.
            if index >= 1000 && reads.load(SeqCst) > 10 {
                break;
            }
            assert!(!reading.is_finished() && begin.elapsed() < Duration::from_secs(60), "it does not read");
            let pad = KvCommand::put("key", vec![0; 2000]);
            log.blocking_append([command(1, index, pad)]).await.expect("appends");
            if index % 20 == 19 {
                machine.apply([blank(1, index)]).await.expect("applies");
                log.purge(id(1, index - 5)).await.expect("purges");
            }
        }
        done.store(true, SeqCst);
        reading.await.expect("it does not panic");
    });
}

/// What is purged can be applied no more. So the state must not lose what was purged, also if it is in a database of its own.
#[test]
fn a_purge_makes_the_state_durable_that_it_was_applied_to() {
    for seed in 0..20 {
        let (logs, states, directory) = (Simulated::new(seed), Simulated::new(seed), ground::directory());
        let open = |logs: &Simulated, states: &Simulated| {
            let (logs, states) = (ground::open_on(logs, 2)?, ground::open_on(states, 2)?);
            Store::open_two(&logs, &states, directory.path())?.group::<KvConfig, _>(7, KvMachine::new())
        };
        let (mut log, mut machine) = open(&logs, &states).expect("opens");
        ground::run(async {
            let entries = || (0..10).map(|index| command(1, index, KvCommand::put("key", vec![index as u8])));
            log.blocking_append(entries()).await.expect("appends");
            machine.apply(entries().chain([membership(1, 10, &[1, 2])])).await.expect("applies");
            log.purge(id(1, 9)).await.expect("purges");
        });
        drop((log, machine));
        let (logs, states) = (logs.power_loss(seed), states.power_loss(seed));
        let (mut log, mut machine) = open(&logs, &states).expect("opens");
        let (applied, purged) = ground::run(async {
            let applied = machine.applied_state().await.expect("reads").0;
            (applied, log.get_log_state().await.expect("reads").last_purged_log_id)
        });
        assert!(applied >= purged, "seed {seed}: purged to {purged:?}, applied to {applied:?}");
        assert!(machine.reader().get("key").expect("reads").is_some(), "seed {seed}");
    }
}

/// The same for snapshots: openraft purges the log as soon as it has one.
#[test]
fn a_snapshot_makes_the_state_durable_that_it_is_of() {
    for seed in 0..20 {
        let (volume, directory) = (Simulated::new(seed), ground::directory());
        let (log, mut machine) = ground::open(&volume, &directory).expect("opens");
        let built = ground::run(async {
            let entries = (0..10).map(|index| command(1, index, KvCommand::put("key", vec![index as u8])));
            machine.apply(entries).await.expect("applies");
            openraft::RaftSnapshotBuilder::build_snapshot(&mut machine.get_snapshot_builder().await).await
        });
        let built = built.expect("builds");
        drop((log, machine));
        let (_log, mut machine) = ground::open(&volume.power_loss(seed), &directory).expect("opens");
        let applied = ground::run(machine.applied_state()).expect("reads").0;
        assert_eq!(applied, built.meta.last_log_id, "seed {seed}");
    }
}

/// A follower that is far behind makes the leader read all that it lacks into memory.
#[test]
fn what_is_read_to_be_sent_is_limited_by_its_length() {
    let (volume, directory) = (Simulated::new(7), ground::directory());
    let (mut log, _machine) = ground::open(&volume, &directory).expect("opens");
    let large = |index| command(1, index, KvCommand::put("key", vec![0; 200_000]));
    ground::run(async {
        for index in 0..60 {
            log.blocking_append([large(index)]).await.expect("appends");
        }
        let (mut reader, mut from) = (log.get_log_reader().await, 0);
        while from < 60 {
            let found = reader.limited_get_log_entries(from, 60).await.expect("reads");
            assert_eq!(found.len(), 1, "entries of 200 kB");
            assert!(found.iter().map(|entry| entry.log_id.index).eq(from..from + found.len() as u64));
            from += found.len() as u64;
        }
        assert_eq!(
            reader.try_get_log_entries(0..60).await.expect("reads").len(),
            60,
            "openraft wants all of these"
        );
    });
}
