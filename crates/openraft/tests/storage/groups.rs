//! Many groups in one database.

use crate::ground::{self, Log, blank, command, id};
use openraft::storage::{RaftLogStorage, RaftLogStorageExt, RaftStateMachine};
use openraft::{RaftLogReader, Vote};
use sapwood::Database;
use sapwood::psync::{FileId, PassThrough, Simulated, Volume};
use sapwood_openraft::{Error, KvCommand, KvConfig, KvMachine, Store};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

#[test]
fn groups_do_not_see_one_another() {
    let (volume, directory) = (Simulated::new(1), ground::directory());
    let db = ground::open_on(&volume, 2).expect("opens");
    let store = Store::open(&db, directory.path()).expect("a store");
    let numbers = [0, 1, 2, 255, 256, u64::MAX];
    let open = |number: &u64| store.group::<KvConfig, _>(*number, KvMachine::new()).expect("a group");
    let mut groups: Vec<_> = numbers.iter().map(open).collect();
    ground::run(async {
        for (number, (log, machine)) in (1..).zip(&mut groups) {
            log.blocking_append((0..20).map(|index| blank(number, index))).await.expect("appends");
            log.save_vote(&Vote::new(number, 1)).await.expect("saves");
            let put = command(number, 5, KvCommand::put("key", number.to_string()));
            machine.apply([put]).await.expect("applies");
        }
        // The one in the middle is changed in all ways.
        let (log, _) = &mut groups[2];
        log.truncate(id(3, 15)).await.expect("truncates");
        log.purge(id(3, 5)).await.expect("purges");
        for (number, (log, machine)) in (1..).zip(&mut groups) {
            let found = log.try_get_log_entries(..).await.expect("reads");
            assert!(found.iter().all(|entry| entry.log_id.leader_id.term == number));
            assert_eq!(found.len(), if number == 3 { 9 } else { 20 }, "group {number}");
            assert_eq!(log.read_vote().await.expect("reads"), Some(Vote::new(number, 1)));
            let found = machine.reader().get("key").expect("reads").expect("it is there");
            assert_eq!(found.value, number.to_string());
        }
    });
    // One is removed, and the others stay.
    assert!(matches!(store.remove_group(1), Err(Error::GroupInUse { group: 1 })));
    drop(groups);
    store.remove_group(1).expect("removes");
    for number in numbers {
        let (mut log, mut machine) = open(&number);
        let is_there = number != 1;
        let last = ground::run(log.get_log_state()).expect("reads").last_log_id;
        assert_eq!(last.is_some(), is_there, "group {number}");
        assert_eq!(ground::run(log.read_vote()).expect("reads").is_some(), is_there);
        assert_eq!(ground::run(machine.applied_state()).expect("reads").0.is_some(), is_there);
        assert_eq!(machine.reader().get("key").expect("reads").is_some(), is_there);
    }
}

/// Another store would open groups that are open, and remove what builders of this one are writing.
#[test]
fn a_directory_of_snapshots_is_open_once() {
    let (volume, directory) = (Simulated::new(1), ground::directory());
    let db = ground::open_on(&volume, 2).expect("opens");
    let path = directory.path().join("snapshots");
    let store = Store::open(&db, &path).expect("a store");
    let group = store.group::<KvConfig, _>(7, KvMachine::new()).expect("a group");
    let unfinished = path.join("0000000000000007-1-1.partial");
    std::fs::write(&unfinished, "half").expect("writes");
    let same = directory.path().join("link");
    std::os::unix::fs::symlink(&path, &same).expect("links");
    for path in [&path, &same] {
        let refused = Store::open(&db, path).expect_err("it is open");
        assert!(matches!(refused, Error::DirectoryInUse { .. }), "{refused}");
    }
    assert!(unfinished.exists(), "it is being written");
    // A group keeps it open, and clones are one store.
    drop(store.clone());
    drop(store);
    assert!(Store::open(&db, &path).is_err());
    drop(group);
    let again = Store::open(&db, &path).expect("it is not open any more");
    again.group::<KvConfig, _>(7, KvMachine::new()).expect("a group");
    assert!(!unfinished.exists());
}

/// Two stores would have two ends of one log, and each drop the sets of keyspaces that the other is filling.
#[test]
fn a_database_is_of_one_store() {
    let directory = ground::directory();
    let path = |name: &str| directory.path().join(name);
    let [first, second, third] =
        [1, 2, 3].map(|seed| ground::open_on(&Simulated::new(seed), 2).expect("opens"));
    let is_refused =
        |opened: Result<Store, Error>| assert!(matches!(opened, Err(Error::DatabaseInUse)), "{opened:?}");
    {
        let store = Store::open(&first, path("a")).expect("a store");
        let group = store.group::<KvConfig, _>(1, KvMachine::new()).expect("a group");
        drop(store);
        is_refused(Store::open(&first, path("b")));
        is_refused(Store::open_two(&first, &second, path("b")));
        is_refused(Store::open_two(&second, &first, path("b")));
        // Others are none of its business.
        let other = Store::open_two(&second, &third, path("b")).expect("another store");
        is_refused(Store::open(&second, path("c")));
        is_refused(Store::open(&third, path("c")));
        drop((group, other));
    }
    let store = Store::open(&first, path("b")).expect("it is free");
    store.group::<KvConfig, _>(1, KvMachine::new()).expect("a group");
}

/// Another process would take its files for whole or for left behind.
#[test]
fn a_directory_of_snapshots_is_of_one_process() {
    let (volume, directory) = (Simulated::new(1), ground::directory());
    let db = ground::open_on(&volume, 2).expect("opens");
    let store = Store::open(&db, directory.path()).expect("a store");
    // As another process would.
    let file = std::fs::File::open(directory.path()).expect("opens");
    assert!(matches!(file.try_lock(), Err(std::fs::TryLockError::WouldBlock)));
    drop(store);
    file.lock().expect("it is free");
    assert!(matches!(Store::open(&db, directory.path()), Err(Error::DirectoryInUse { .. })));
}

/// As long as no machine takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A volume whose syncs may be held.
struct Held {
    inner: Simulated,
    is_held: Arc<AtomicBool>,
}

impl PassThrough for Held {
    fn inner(&self) -> &dyn Volume {
        &self.inner
    }

    fn sync(&self, file: FileId) -> sapwood::psync::Result<()> {
        while self.is_held.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.inner().sync(file)
    }
}

/// The groups' appends wait for the same syncs, as the count of them shows: what comes while one is done shares the next.
#[test]
fn a_sync_is_shared_by_groups() {
    const GROUPS: u64 = 64;
    const APPENDS: u64 = 20;
    let (directory, is_held) = (ground::directory(), Arc::new(AtomicBool::new(false)));
    let volume = Held { inner: Simulated::new(1), is_held: Arc::clone(&is_held) };
    let db = Database::builder().memory(64 << 20).open_on(Arc::new(volume)).expect("opens");
    let store = Store::open(&db, directory.path()).expect("a store");
    let groups = (0..GROUPS).map(|number| store.group::<KvConfig, _>(number, KvMachine::new()));
    let mut logs: Vec<_> = groups.map(|group| group.expect("a group").0).collect();
    let entries = db.keyspace("raft.log").expect("it is there");
    let before = db.stats().writes.log_syncs;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    for index in 0..APPENDS {
        let begin = Instant::now();
        // All of them are there before the first sync is done.
        is_held.store(true, SeqCst);
        let append = |mut log: Log| async move {
            log.blocking_append([blank(1, index)]).await.expect("appends");
            log
        };
        let appending: Vec<_> = logs.drain(..).map(|log| runtime.spawn(append(log))).collect();
        while entries.iter().count() < (GROUPS * (index + 1)) as usize {
            assert!(!appending.iter().any(|task| task.is_finished()), "durable, and no sync is done");
            assert!(begin.elapsed() < PATIENCE, "some wait for syncs of others");
            std::thread::yield_now();
        }
        is_held.store(false, SeqCst);
        for task in appending {
            logs.push(runtime.block_on(task).expect("it does not panic"));
        }
    }
    let syncs = db.stats().writes.log_syncs - before;
    assert!(
        (APPENDS..=2 * APPENDS).contains(&syncs),
        "{syncs} syncs for {} durable appends",
        GROUPS * APPENDS
    );
}
