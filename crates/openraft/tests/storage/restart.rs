//! A cluster of one node, of what a node has.

use crate::ground::{self, command, id, membership};
use openraft::storage::{RaftLogStorage, RaftLogStorageExt, RaftStateMachine, StorageHelper};
use openraft::{BasicNode, RaftLogReader, Vote};
use sapwood::Batch;
use sapwood::psync::{Fault, Filter, Repeat, Simulated};
use sapwood_openraft::{Error, KvCommand, KvConfig, KvMachine, Store};
use std::collections::BTreeSet;

/// What a node starts with: the entries that it has, the last of which makes it alone.
fn restarted(entries: u64, applied: u64, purged: Option<u64>, vote: Vote<u64>) {
    let (volume, directory) = (Simulated::new(1), ground::directory());
    let store =
        || Store::open(&ground::open_on(&volume, 2).expect("opens"), directory.path()).expect("a store");
    let entry = |index: u64| match index {
        0 => membership(1, 0, &[1, 2, 3]),
        _ => command(1, index, KvCommand::put("key", index.to_string())),
    };
    {
        let (mut log, mut machine) = store().group::<KvConfig, _>(7, KvMachine::new()).expect("a group");
        ground::run(async {
            log.blocking_append((0..entries).map(entry)).await.expect("appends");
            machine.apply((0..applied).map(entry)).await.expect("applies");
            if let Some(purged) = purged {
                log.purge(id(1, purged)).await.expect("purges");
            }
            log.save_vote(&vote).await.expect("saves");
        });
    }
    let same = store();
    same.restart_group::<KvConfig>(7, 9, BasicNode::new("here")).expect("restarts");
    let (mut log, mut machine) = same.group::<KvConfig, _>(7, KvMachine::new()).expect("a group");
    ground::run(async {
        let state = StorageHelper::new(&mut log, &mut machine).get_initial_state().await.expect("a state");
        let members = state.membership_state.effective();
        assert_eq!(members.membership().voter_ids().collect::<Vec<_>>(), [9]);
        let last = log.get_log_state().await.expect("reads").last_log_id.expect("the membership is an entry");
        assert_eq!(last.index, entries.max(applied), "it is behind all others");
        assert!(
            last.leader_id.term > 1 && last.leader_id.term > vote.leader_id().term,
            "its term is new: {last}"
        );
        let found = log.try_get_log_entries(..).await.expect("no hole");
        assert_eq!(found.last().map(|entry| entry.log_id), Some(last));
        let first = if applied > entries { applied } else { purged.map_or(0, |purged| purged + 1) };
        assert_eq!(found.first().map(|entry| entry.log_id.index), Some(first), "the rest is kept");
        // No other candidate of an earlier term is voted for.
        let vote_now = log.read_vote().await.expect("reads").expect("there is one");
        assert!(vote_now > vote && vote_now.leader_id().term >= last.leader_id.term);
        assert_eq!(machine.applied_state().await.expect("reads").0, Some(id(1, applied - 1)));
    });
}

#[test]
fn a_group_is_restarted_with_all_that_it_has() {
    restarted(10, 5, None, Vote::new(1, 1));
    restarted(10, 10, Some(9), Vote::new(4, 2));
    restarted(10, 10, Some(4), Vote::new_committed(3, 1));
    // The state is ahead: of two databases one was synced later.
    restarted(6, 10, None, Vote::new(1, 1));
}

/// Whatever fails, and whenever.
#[test]
fn a_restart_and_what_comes_with_it_are_there_together() {
    let entries = || [membership(1, 0, &[1, 2, 3]), command(1, 1, KvCommand::put("key", "1"))];
    let mut outcomes = BTreeSet::new();
    for (fault, is_lost) in [(Fault::PowerOff, true), (Fault::NoSpace, false), (Fault::Error, true)] {
        for change in 1.. {
            let (volume, directory) = (Simulated::new(change), ground::directory());
            {
                let (mut log, mut machine) = ground::open(&volume, &directory).expect("opens");
                ground::run(async {
                    log.blocking_append(entries()).await.expect("appends");
                    // The state has it, and the log is purged before the restart.
                    machine.apply(entries()).await.expect("applies");
                    machine.apply([ground::blank(1, 2)]).await.expect("applies");
                });
            }
            volume.fail_nth(Filter::changes(), change, fault, Repeat::Once);
            let restarted = ground::open_on(&volume, 0).map_err(Error::from).and_then(|db| {
                let (store, notes) = (Store::open(&db, directory.path())?, db.keyspace("notes")?);
                store.restart_group_with::<KvConfig>(7, 9, BasicNode::new("here"), |batch| {
                    batch.insert(&notes, "cluster", "new");
                })
            });
            let has_failed = volume.fired() > 0;
            volume.clear_faults();
            let volume = if is_lost { volume.power_loss(change) } else { volume };
            let db = ground::open_on(&volume, 0).expect("opens");
            let is_noted = db.keyspace("notes").expect("opens").contains("cluster").expect("reads");
            let store = Store::open(&db, directory.path()).expect("a store");
            let (mut log, mut machine) = store.group::<KvConfig, _>(7, KvMachine::new()).expect("a group");
            let state = ground::run(StorageHelper::new(&mut log, &mut machine).get_initial_state());
            let state = state.expect("a state").membership_state;
            let is_alone = state.effective().membership().voter_ids().eq([9]);
            let story = format!("{fault:?} at change {change}: {restarted:?}");
            assert_eq!(is_noted, is_alone, "{story}");
            assert!(is_alone || restarted.is_err(), "{story}");
            if !has_failed {
                assert!(restarted.is_ok(), "{story}");
                break;
            }
            outcomes.insert((restarted.is_ok(), is_alone));
        }
    }
    assert!(outcomes.contains(&(false, false)) && outcomes.contains(&(false, true)), "{outcomes:?}");
}

/// As another it would vote a second time.
#[test]
fn a_group_stays_that_of_its_node() {
    let (volume, directory) = (Simulated::new(1), ground::directory());
    let open = |volume: &Simulated| ground::open(volume, &directory).expect("opens");
    let (log, machine) = open(&volume);
    let mut log = log.of_node(1).expect("it is of nobody yet");
    ground::run(log.blocking_append([membership(1, 0, &[1, 2, 3])])).expect("appends");
    drop((log, machine));
    let volume = volume.power_loss(3);
    for _ in 0..2 {
        let refused = open(&volume).0.of_node(2).expect_err("it is of node 1");
        let Error::OtherNode { group: 7, recorded, given } = &refused else { panic!("{refused}") };
        assert_eq!((recorded.as_str(), given.as_str()), ("1", "2"));
    }
    open(&volume).0.of_node(1).expect("it is");
    // A new cluster has a new node.
    let db = ground::open_on(&volume, 2).expect("opens");
    let store = Store::open(&db, directory.path()).expect("a store");
    store.restart_group::<KvConfig>(7, 2, BasicNode::new("here")).expect("restarts");
    drop((store, db));
    assert!(matches!(open(&volume).0.of_node(1), Err(Error::OtherNode { .. })));
    open(&volume).0.of_node(2).expect("it is");
}

/// A log from before ids were recorded is that of one of its members.
#[test]
fn a_group_that_has_no_id_yet_gets_none_that_no_member_has() {
    let directory = ground::directory();
    // In the log, in the state alone, in both.
    for (in_log, in_state) in [(true, false), (false, true), (true, true)] {
        let volume = Simulated::new(1);
        let (mut log, mut machine) = ground::open(&volume, &directory).expect("opens");
        ground::run(async {
            let (first, second) = (membership(1, 0, &[1, 2]), membership(1, 1, &[1, 2, 3]));
            if in_state {
                machine.apply([first.clone()]).await.expect("applies");
            }
            if in_log {
                log.blocking_append([first, second]).await.expect("appends");
            }
        });
        drop((log, machine));
        let open = || ground::open(&volume, &directory).expect("opens").0;
        let is_refused = |id| {
            let refused = open().of_node(id).err();
            assert!(refused.iter().all(|error| matches!(error, Error::NoMember { .. })), "{refused:?}");
            refused.is_some()
        };
        assert!(is_refused(4), "{in_log} {in_state}");
        assert_eq!(is_refused(3), !in_log);
        assert!(in_log || !is_refused(2));
    }
    // A vote alone says nothing.
    let volume = Simulated::new(1);
    let (mut log, machine) = ground::open(&volume, &directory).expect("opens");
    ground::run(log.save_vote(&Vote::new(1, 1))).expect("saves");
    drop((log, machine));
    ground::open(&volume, &directory).expect("opens").0.of_node(4).expect("it may be");
}

/// Nor does anything come of what would come with it.
#[test]
fn an_empty_group_is_not_restarted() {
    let (volume, directory) = (Simulated::new(1), ground::directory());
    let db = ground::open_on(&volume, 2).expect("opens");
    let store = Store::open(&db, directory.path()).expect("a store");
    let notes = db.keyspace("notes").expect("opens");
    let note = |batch: &mut Batch| _ = batch.insert(&notes, "cluster", "new");
    let restarted = store.restart_group_with::<KvConfig>(7, 9, BasicNode::new("here"), note);
    assert!(matches!(restarted, Err(Error::NeverStarted { group: 7 })));
    assert!(notes.is_empty().expect("reads"));
}

/// They are one commit of one database.
#[test]
fn a_group_is_not_restarted_with_changes_to_another_database() {
    let (volume, directory) = (Simulated::new(1), ground::directory());
    let (mut log, machine) = ground::open(&volume, &directory).expect("opens");
    ground::run(log.blocking_append([membership(1, 0, &[1, 2, 3])])).expect("appends");
    drop((log, machine));
    let other = ground::open_on(&Simulated::new(2), 2).expect("opens").keyspace("notes").expect("opens");
    let store = Store::open(&ground::open_on(&volume, 2).expect("opens"), directory.path()).expect("a store");
    let note = |batch: &mut Batch| _ = batch.insert(&other, "cluster", "new");
    let restarted = store.restart_group_with::<KvConfig>(7, 9, BasicNode::new("here"), note);
    assert!(matches!(restarted, Err(Error::Database(sapwood::Error::Foreign { .. }))), "{restarted:?}");
    let (mut log, _machine) = store.group::<KvConfig, _>(7, KvMachine::new()).expect("a group");
    assert_eq!(ground::run(log.try_get_log_entries(..)).expect("reads").len(), 1);
    assert!(other.is_empty().expect("reads"));
}
