//! A snapshot that is being installed while openraft purges the log behind it: openraft 0.9 does not wait for the one with the other.

use crate::cluster::{Asks, Cluster, HEARTBEAT, NODES, Node};
use crate::ground::{self, Log, Machine, blank, command, id, membership};
use openraft::storage::{RaftLogStorage, RaftLogStorageExt, RaftStateMachine, StorageHelper};
use openraft::{BasicNode, RaftLogReader, RaftSnapshotBuilder, Snapshot};
use sapwood::psync::Simulated;
use sapwood_openraft::{Error, KvCommand, KvConfig, KvMachine, LogStore, StateMachine, Store};
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::time::sleep;

type Metrics = openraft::RaftMetrics<u64, BasicNode>;

const LONG: Option<Duration> = Some(Duration::from_secs(30));

/// The volumes of a node: one for all, or one for logs and one for states.
#[derive(Clone)]
struct Volumes {
    logs: Simulated,
    states: Option<Simulated>,
}

impl Volumes {
    fn new(seed: u64, two: bool) -> Self {
        Self { logs: Simulated::new(seed), states: two.then(|| Simulated::new(seed + 1)) }
    }

    fn power_loss(&self, seed: u64) -> Self {
        let states = self.states.as_ref().map(|states| states.power_loss(seed));
        Self { logs: self.logs.power_loss(seed), states }
    }

    fn open(&self, directory: &Path) -> sapwood_openraft::Result<(Log, Machine)> {
        let logs = ground::open_on(&self.logs, 2)?;
        let store = match &self.states {
            None => Store::open(&logs, directory)?,
            Some(states) => Store::open_two(&logs, &ground::open_on(states, 2)?, directory)?,
        };
        store.group(7, KvMachine::new())
    }
}

fn put(term: u64, index: u64) -> openraft::Entry<KvConfig> {
    command(term, index, KvCommand::put(format!("key {index}"), "own"))
}

/// What another node sends: its state up to an entry.
async fn snapshot(directory: &TempDir, term: u64, index: u64) -> Snapshot<KvConfig> {
    let (_log, mut other) = ground::open(&Simulated::new(9), directory).expect("opens");
    let put = command(term, index - 1, KvCommand::put("key", "sent"));
    other.apply([put, membership(term, index, &[1, 2, 3])]).await.expect("applies");
    other.get_snapshot_builder().await.build_snapshot().await.expect("builds")
}

/// A node with entries 0 to 9, of which it has applied the first five.
async fn with_ten_entries(volumes: &Volumes, directory: &TempDir) -> (Log, Machine) {
    let (mut log, mut machine) = volumes.open(directory.path()).expect("opens");
    log.blocking_append((0..10).map(|index| put(1, index))).await.expect("appends");
    machine.apply((0..5).map(|index| put(1, index))).await.expect("applies");
    (log, machine)
}

/// The node is as if it had not been sent a snapshot.
async fn is_as_before(log: &mut Log, machine: &mut Machine, story: &str) {
    let applied = machine.applied_state().await.expect("reads").0;
    let state = log.get_log_state().await.expect("reads");
    assert!(state.last_purged_log_id <= applied, "{story}: {state:?}, applied {applied:?}");
    assert_eq!((state.last_purged_log_id, state.last_log_id), (None, Some(id(1, 9))), "{story}");
    let found = log.try_get_log_entries(..).await.expect("reads");
    assert_eq!(found.len(), 10, "{story}");
    StorageHelper::new(log, machine).get_initial_state().await.expect("openraft starts with it");
}

#[test]
fn a_purge_is_on_the_disk_only_once_the_state_has_come_to_it() {
    for (seed, two) in (0..20).flat_map(|seed| [(seed, false), (seed, true)]) {
        let story = format!("seed {seed}, two databases {two}");
        let (directory, elsewhere) = (ground::directory(), ground::directory());
        let volumes = Volumes::new(seed, two);
        // Beyond all entries, behind one of them, and where an entry of an earlier term has a higher index.
        for (term, upto, left) in [(1, 20, 0), (1, 7, 2), (2, 8, 0)] {
            ground::run(async {
                let (mut log, mut machine) = with_ten_entries(&volumes.power_loss(seed), &directory).await;
                let volumes = volumes.power_loss(seed);
                drop((log, machine));
                (log, machine) = with_ten_entries(&volumes, &directory).await;
                log.purge(id(term, upto)).await.expect("purges");
                let state = log.get_log_state().await.expect("reads");
                let last = if left > 0 { id(1, 9) } else { id(term, upto) };
                let expected = (Some(id(term, upto)), Some(last));
                assert_eq!((state.last_purged_log_id, state.last_log_id), expected, "{story}");
                assert_eq!(log.try_get_log_entries(..).await.expect("reads").len(), left, "{story}");

                let aside = ground::directory();
                let (mut lost, mut state) = volumes.power_loss(seed).open(aside.path()).expect("opens");
                is_as_before(&mut lost, &mut state, &story).await;
                drop((lost, state));

                let sent = snapshot(&elsewhere, term, upto).await;
                machine.install_snapshot(&sent.meta, sent.snapshot).await.expect("installs");
                for volumes in [volumes.clone(), volumes.power_loss(seed)] {
                    drop((log, machine));
                    (log, machine) = volumes.open(directory.path()).expect("opens");
                    let state = log.get_log_state().await.expect("reads");
                    assert_eq!((state.last_purged_log_id, state.last_log_id), expected, "{story}");
                    assert_eq!(log.try_get_log_entries(..).await.expect("reads").len(), left, "{story}");
                    assert_eq!(machine.applied_state().await.expect("reads").0, Some(id(term, upto)));
                }
            });
        }
    }
}

/// A leader commits what an earlier one had appended, and a snapshot ends there: a log that ends with entries of one in between, and is shorter, conflicts with it.
#[test]
fn a_shorter_log_of_a_later_leader_than_the_snapshot_goes_with_the_purge() {
    // With the purge, without (the node ends before), and both up to the index of the last entry.
    let ways = [(20, true), (20, false), (9, true), (9, false)];
    for (two, (upto, is_purged)) in [false, true].into_iter().flat_map(|two| ways.map(|way| (two, way))) {
        let story = format!("two databases {two}, up to {upto}, purged {is_purged}");
        let (directory, elsewhere) = (ground::directory(), ground::directory());
        let volumes = Volumes::new(1, two);
        ground::run(async {
            let (mut log, mut machine) = volumes.open(directory.path()).expect("opens");
            let entry = |index| put(if index < 5 { 1 } else { 3 }, index);
            log.blocking_append((0..10).map(entry)).await.expect("appends");
            machine.apply((0..5).map(entry)).await.expect("applies");
            let sent = snapshot(&elsewhere, 2, upto).await;
            if is_purged {
                log.purge(id(2, upto)).await.expect("purges");
                let ends = log.get_log_state().await.expect("reads");
                let last = Some(id(2, upto));
                assert_eq!((ends.last_purged_log_id, ends.last_log_id), (last, last), "{story}");
                assert!(log.try_get_log_entries(..).await.expect("reads").is_empty(), "{story}");
            }
            machine.install_snapshot(&sent.meta, sent.snapshot).await.expect("installs");
            for is_lost in [false, true] {
                if is_lost || !is_purged {
                    let volumes = if is_lost { volumes.power_loss(1) } else { volumes.clone() };
                    drop((log, machine));
                    (log, machine) = volumes.open(directory.path()).expect("opens");
                    let state = StorageHelper::new(&mut log, &mut machine).get_initial_state().await;
                    let members = state.expect("openraft starts with it").membership_state;
                    assert_eq!(*members.effective().log_id(), Some(id(2, upto)), "{story}");
                }
                let ends = log.get_log_state().await.expect("reads");
                assert_eq!(ends.last_log_id, Some(id(2, upto)), "{story}");
                log.blocking_append([put(4, upto + 1)]).await.expect("the log goes on there");
                let found = log.try_get_log_entries(..).await.expect("reads");
                let found: Vec<_> = found.iter().map(|entry| entry.log_id).collect();
                assert_eq!(found, [id(4, upto + 1)], "{story}");
                log.truncate(id(4, upto + 1)).await.expect("truncates");
            }
        });
    }
}

/// The state is there, and the node ends before its log is purged: what is in that is of an earlier term, also memberships.
#[test]
fn members_are_not_those_of_entries_that_conflict_with_the_state() {
    for two in [false, true] {
        let (directory, elsewhere) = (ground::directory(), ground::directory());
        let volumes = Volumes::new(1, two);
        ground::run(async {
            let (mut log, mut machine) = with_ten_entries(&volumes, &directory).await;
            log.blocking_append([membership(1, 10, &[4, 5])]).await.expect("appends");
            let sent = snapshot(&elsewhere, 2, 8).await;
            machine.install_snapshot(&sent.meta, sent.snapshot).await.expect("installs");
            for volumes in [volumes.clone(), volumes.power_loss(1)] {
                drop((log, machine));
                (log, machine) = volumes.open(directory.path()).expect("opens");
                let state = StorageHelper::new(&mut log, &mut machine).get_initial_state().await;
                let state = state.expect("openraft starts with it");
                let members = state.membership_state.effective();
                assert_eq!(members.membership().voter_ids().collect::<Vec<_>>(), [1, 2, 3]);
                assert_eq!(*members.log_id(), Some(id(2, 8)));
                let ends = log.get_log_state().await.expect("reads");
                assert_eq!((ends.last_purged_log_id, ends.last_log_id), (Some(id(2, 8)), Some(id(2, 8))));
                assert!(log.try_get_log_entries(..).await.expect("reads").is_empty());
            }
        });
    }
}

/// An entry that is acknowledged before that would be lost with the snapshot: it lies behind a hole then.
#[test]
fn entries_behind_a_snapshot_wait_until_it_is_installed() {
    for two in [false, true] {
        let (directory, elsewhere) = (ground::directory(), ground::directory());
        let volumes = Volumes::new(1, two);
        ground::run(async {
            let (mut log, mut machine) = with_ten_entries(&volumes, &directory).await;
            log.purge(id(2, 20)).await.expect("purges");
            let appending = tokio::spawn(async move {
                log.blocking_append([blank(2, 21)]).await.expect("appends");
                log
            });
            sleep(Duration::from_secs(60)).await;
            assert!(!appending.is_finished(), "it is not installed yet");
            let aside = ground::directory();
            let (mut lost, mut state) = volumes.power_loss(1).open(aside.path()).expect("opens");
            is_as_before(&mut lost, &mut state, "it waits").await;
            drop((lost, state));

            let sent = snapshot(&elsewhere, 2, 20).await;
            machine.install_snapshot(&sent.meta, sent.snapshot).await.expect("installs");
            let mut log = appending.await.expect("no panic");
            for seed in 0..20 {
                let lost = volumes.power_loss(seed);
                let aside = ground::directory();
                let (mut lost, mut state) = lost.open(aside.path()).expect("opens");
                let found = lost.try_get_log_entries(..).await.expect("reads");
                assert_eq!(found.iter().map(|entry| entry.log_id).collect::<Vec<_>>(), [id(2, 21)]);
                assert_eq!(state.applied_state().await.expect("reads").0, Some(id(2, 20)));
            }
            // The log goes on, and what a snapshot has that is in it waits for nothing.
            log.blocking_append([blank(2, 22)]).await.expect("appends");
            log.purge(id(2, 22)).await.expect("purges");
        });
    }
}

/// Entries that are there reach behind the snapshot: those that follow them have no hole before them.
#[test]
fn entries_behind_others_do_not_wait() {
    let (volumes, directory) = (Volumes::new(1, false), ground::directory());
    ground::run(async {
        let (mut log, _machine) = with_ten_entries(&volumes, &directory).await;
        log.purge(id(1, 7)).await.expect("purges");
        log.blocking_append([put(1, 10)]).await.expect("appends");
        log.truncate(id(1, 9)).await.expect("truncates");
        let found = log.try_get_log_entries(..).await.expect("reads");
        assert_eq!(found.iter().map(|entry| entry.log_id.index).collect::<Vec<_>>(), [8]);
        let aside = ground::directory();
        let (mut lost, _state) = volumes.power_loss(1).open(aside.path()).expect("opens");
        assert_eq!(lost.try_get_log_entries(..).await.expect("reads").len(), 9);
    });
}

/// openraft drops the machine whose installation failed, and has to see it.
#[test]
fn entries_do_not_wait_for_a_machine_that_is_gone() {
    let (volumes, directory) = (Volumes::new(1, false), ground::directory());
    ground::run(async {
        let (mut log, machine) = with_ten_entries(&volumes, &directory).await;
        log.purge(id(2, 20)).await.expect("purges");
        let appending = tokio::spawn(async move { log.blocking_append([blank(2, 21)]).await });
        sleep(Duration::from_secs(1)).await;
        assert!(!appending.is_finished());
        drop(machine);
        let refused = appending.await.expect("no panic").expect_err("it would lie behind a hole");
        assert!(refused.to_string().contains("has not come to 20"), "{refused}");
    });
}

/// Directories and backups of programs that purged earlier than that.
#[test]
fn a_log_that_is_purged_beyond_the_state_is_refused_with_what_to_do() {
    let (logs, directory) = (Simulated::new(1), ground::directory());
    let open = |states: &Simulated| {
        let (logs, states) =
            (ground::open_on(&logs, 2).expect("opens"), ground::open_on(states, 2).expect("opens"));
        Store::open_two(&logs, &states, directory.path()).expect("a store")
    };
    type Opened = sapwood_openraft::Result<(LogStore<KvConfig>, StateMachine<KvConfig, KvMachine>)>;
    let group = |store: &Store| -> Opened { store.group(7, KvMachine::new()) };
    ground::run(async {
        let (mut log, mut machine) = group(&open(&Simulated::new(2))).expect("a group");
        log.blocking_append((0..10).map(|index| put(1, index))).await.expect("appends");
        machine.apply((0..10).map(|index| put(1, index))).await.expect("applies");
        log.purge(id(1, 9)).await.expect("purges");
    });
    // A state of nothing stands for that from before the snapshot.
    let store = open(&Simulated::new(3));
    let restarted = store.restart_group::<KvConfig>(7, 9, BasicNode::new("here"));
    for refused in [group(&store).map(drop), restarted] {
        let error = refused.expect_err("entries are missing");
        assert!(matches!(error, Error::StateBehindLog { group: 7, purged: 9, applied: None }), "{error}");
        assert!(error.to_string().contains("a new number"), "{error}");
    }
}

/// Waits until a node has a snapshot of about `end`, and has purged its log beyond `last`. openraft looks whether one is due only when it commits, and not while
/// it makes another: so it is told to, now and then.
async fn has_purged(node: &Node, last: u64, end: u64) {
    let is_made = |metrics: &Metrics| metrics.snapshot.is_some_and(|snapshot| snapshot.index + 95 > end);
    let is_purged =
        |metrics: &Metrics| is_made(metrics) && metrics.purged.is_some_and(|purged| purged.index > last);
    let begin = Instant::now();
    let some_time = Some(Duration::from_secs(3));
    while node.raft.wait(some_time).metrics(is_purged, "a snapshot and a purge").await.is_err() {
        assert!(Some(begin.elapsed()) < LONG, "{:?}", node.raft.metrics().borrow());
        // Not if only the purge is late: what is made then would take the place of a file that is damaged meanwhile.
        if !is_made(&node.raft.metrics().borrow()) {
            node.raft.trigger().snapshot().await.expect("it runs");
        }
    }
}

/// The installation fails, since the leader's file is damaged; the node starts again with what it had, and follows once there is another file.
#[test]
fn a_node_starts_again_after_a_snapshot_that_was_damaged() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let cluster = Cluster::new(Asks::Majority, true).await;
        let leader = cluster.leader().await;
        let behind = NODES.into_iter().find(|id| *id != leader).expect("three nodes");
        // Either of these may lead later.
        let others =
            || NODES.into_iter().filter(|id| *id != behind).map(|id| cluster.node(id).expect("it runs"));
        let cut: Vec<_> = NODES.iter().flat_map(|other| [(behind, *other), (*other, behind)]).collect();
        cluster.lose(&cut);
        let (mut leading, follower) =
            (cluster.node(leader).expect("it runs"), cluster.node(behind).expect("it runs"));
        // What was underway when the links were cut may be applied after this, and up to its last entry.
        let had = follower.raft.metrics().borrow().last_applied;
        for number in 0..400 {
            let put = KvCommand::put(format!("key {}", number % 4), vec![number as u8; 300]);
            leading = cluster.write(put).await;
        }
        let last = follower.raft.metrics().borrow().last_log_index.expect("it has entries");
        let end = leading.committed().await.expect("it has entries");
        for node in others() {
            // Beyond the log of the other, and no other snapshot is due.
            has_purged(&node, last, end).await;
        }
        NODES.into_iter().filter(|id| *id != behind).for_each(|id| cluster.damage_snapshot(id));
        cluster.lose(&[]);
        let stopped = follower.raft.wait(LONG);
        stopped.metrics(|metrics| metrics.running_state.is_err(), "it stops").await.expect("in time");
        drop(follower);

        cluster.lose(&cut);
        cluster.lose_power(&[behind], 1).await;
        let follower = cluster.node(behind).expect("it runs");
        let as_it_was = follower.raft.wait(LONG);
        let is_as_it_was = |metrics: &Metrics| {
            let index = metrics.last_applied.map(|applied| applied.index);
            metrics.last_applied >= had && index <= Some(last)
        };
        as_it_was.metrics(is_as_it_was, "it is as it was").await.expect("in time");
        drop(follower);
        let index = cluster.write(KvCommand::put("key", "then")).await.committed().await;
        for node in others() {
            let applied = node.raft.wait(LONG);
            applied.applied_index_at_least(index, "it has it").await.expect("in time");
            let (is_new, begin) =
                (move |metrics: &Metrics| metrics.snapshot.map(|last| last.index) >= index, Instant::now());
            // Again, since nothing is begun while another one is being made.
            while !is_new(&node.raft.metrics().borrow()) {
                assert!(Some(begin.elapsed()) < LONG, "no other snapshot is made");
                node.raft.trigger().snapshot().await.expect("it runs");
                sleep(Duration::from_millis(50)).await;
            }
        }
        cluster.lose(&[]);
        let mut starts = 0;
        loop {
            let follower = cluster.node(behind).expect("it runs");
            let is_decided = move |metrics: &Metrics| {
                metrics.running_state.is_err() || metrics.last_applied.map(|last| last.index) >= index
            };
            follower.raft.wait(LONG).metrics(is_decided, "it follows or stops").await.expect("in time");
            if follower.raft.metrics().borrow().running_state.is_ok() {
                break;
            }
            // openraft goes on with the file that it has begun to send, until that fails.
            starts += 1;
            assert!(starts < 4, "what is sent is damaged for ever");
            drop(follower);
            cluster.lose_power(&[behind], 1 + starts).await;
        }
        let found = cluster.node(behind).expect("it runs").state.get("key").expect("reads");
        assert_eq!(found.map(|found| found.value), Some("then".into()));
        for id in NODES {
            cluster.node(id).expect("it runs").raft.shutdown().await.expect("it stops");
        }
        cluster.clear();
    });
}

/// The leader finds the damage itself, since it cannot decrypt what it is to send. It stops, and starts with another file.
#[test]
fn a_damaged_file_of_an_encrypted_leader_is_replaced() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let cluster = Cluster::begin(Asks::Majority, true, true, HEARTBEAT).await;
        let leader = cluster.leader().await;
        let behind = NODES.into_iter().find(|id| *id != leader).expect("three nodes");
        let cut: Vec<_> = NODES.iter().flat_map(|other| [(behind, *other), (*other, behind)]).collect();
        cluster.lose(&cut);
        let mut leading = cluster.node(leader).expect("it runs");
        for number in 0..400u64 {
            // Which is not compressed: several blocks of a file.
            let value: Vec<u8> = (0..5000u64)
                .map(|at| ((at ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8)
                .collect();
            let put = KvCommand::put(format!("key {}", number % 100), value);
            leading = cluster.write(put).await;
        }
        let end = leading.committed().await.expect("it has entries");
        let others = || NODES.into_iter().filter(|id| *id != behind);
        for id in others() {
            has_purged(&cluster.node(id).expect("it runs"), 100, end).await;
            cluster.damage_snapshot(id);
        }
        drop(leading);
        cluster.lose(&[]);
        // Either may lead, and each that sends its file stops once.
        let (mut starts, begin) = (0, Instant::now());
        loop {
            assert!(begin.elapsed() < 4 * LONG.expect("a time"), "one stays behind");
            let mut is_behind = true;
            for id in NODES {
                let node = cluster.node(id).expect("it runs");
                let (is_stopped, applied) = {
                    let metrics = node.raft.metrics();
                    let metrics = metrics.borrow();
                    (metrics.running_state.is_err(), metrics.last_applied)
                };
                drop(node);
                if is_stopped {
                    starts += 1;
                    assert!(starts < 6, "a file is damaged for ever");
                    cluster.lose_power(&[id], starts).await;
                } else if id == behind {
                    is_behind = applied.is_none_or(|applied| applied.index < end);
                }
            }
            if !is_behind {
                break;
            }
            sleep(Duration::from_millis(50)).await;
        }
        assert!(starts > 0, "nobody has found the damage");
        let found =
            cluster.node(behind).expect("it runs").state.scan([], None::<&[u8]>, usize::MAX).expect("reads");
        assert_eq!(found.len(), 100);
        for id in NODES {
            cluster.node(id).expect("it runs").raft.shutdown().await.expect("it stops");
        }
        cluster.clear();
    });
}
