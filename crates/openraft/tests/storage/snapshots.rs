//! Snapshots: built while commands are applied, sent, damaged, installed, interrupted.

use crate::ground::{self, Log, Machine, command, id, membership};
use openraft::storage::RaftStateMachine;
use openraft::{RaftSnapshotBuilder, Snapshot};
use sapwood::psync::{Fault, Filter, Repeat, Simulated};
use sapwood_openraft::{KvCommand, KvConfig, KvMachine, KvWrite, SnapshotFile, Store};
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn in_directory(dir: &TempDir) -> (sapwood::Database, Log, Machine) {
    let db = sapwood::Database::builder().memory(8 << 20).open(dir.path().join("node.db")).expect("opens");
    let store = Store::open(&db, dir.path().join("snapshots")).expect("a store");
    let (log, machine) = store.group(7, KvMachine::new()).expect("a group");
    (db, log, machine)
}

/// Writes `count` records of a kilobyte, a hundred a command, from `index` on.
async fn fill(machine: &mut Machine, index: u64, count: u64, tag: &str) {
    for part in 0..count / 100 {
        let put = |number| {
            let key = format!("key {:08}", part * 100 + number);
            KvWrite::put(key, [tag.as_bytes(), b" ", &noise(index + part * 100 + number)].concat())
        };
        let writes = (0..100).map(put).collect();
        let fill = KvCommand { conditions: Vec::new(), writes };
        machine.apply([command(1, index + part, fill)]).await.expect("applies");
    }
}

/// A kilobyte that cannot be compressed.
fn noise(seed: u64) -> Vec<u8> {
    let mut state = (seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..125).flat_map(next).collect()
}

/// Sends a snapshot as openraft does: bytes of one file to another.
async fn send(
    snapshot: &mut Snapshot<KvConfig>,
    to: &mut Machine,
    bytes: impl Fn(Vec<u8>) -> Vec<u8>,
) -> Box<SnapshotFile> {
    let mut received = to.begin_receiving_snapshot().await.expect("a file");
    let mut sent = Vec::new();
    snapshot.snapshot.read_to_end(&mut sent).await.expect("reads");
    received.write_all(&bytes(sent)).await.expect("writes");
    received.shutdown().await.expect("flushes");
    received
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).expect("lists");
    entries.map(|entry| entry.expect("an entry").path()).collect()
}

/// Five times the memory of the database; portions of the ingestion, flushes and readers between.
#[test]
fn a_large_state_is_built_beside_commands_and_installed() {
    let (from, to) = (ground::directory(), ground::directory());
    let (_db, _log, mut leader) = in_directory(&from);
    let (db, _log, mut follower) = in_directory(&to);
    ground::run(async {
        fill(&mut leader, 1, 40_000, "old").await;
        leader.apply([membership(1, 900, &[1, 2, 3])]).await.expect("applies");
        fill(&mut follower, 1, 500, "gone").await;
        let (reader, before) = (follower.reader(), follower.reader().view().expect("a view"));

        let mut builder = leader.get_snapshot_builder().await;
        // These come after the moment of the snapshot.
        fill(&mut leader, 1000, 1000, "new").await;
        let mut snapshot = builder.build_snapshot().await.expect("builds");
        assert_eq!(snapshot.meta.last_log_id, Some(id(1, 900)));
        let received = send(&mut snapshot, &mut follower, |bytes| bytes).await;
        follower.install_snapshot(&snapshot.meta, received).await.expect("installs");

        let found = reader.scan([], None::<&[u8]>, usize::MAX).expect("reads");
        assert_eq!(found.len(), 40_000);
        assert!(found.iter().all(|(_, found)| found.value.starts_with(b"old")));
        assert_eq!(
            before.snapshot().iter(&before.keyspaces()[0]).count(),
            500,
            "what began before sees what was"
        );
        let (applied, members) = follower.applied_state().await.expect("reads");
        assert_eq!((applied, members), (Some(id(1, 900)), snapshot.meta.last_membership.clone()));
        let current = follower.get_current_snapshot().await.expect("reads").expect("there is one");
        assert_eq!(current.meta, snapshot.meta);
        // It is applied to what was installed.
        follower.apply([command(2, 901, KvCommand::put("key", "then"))]).await.expect("applies");
        assert_eq!(reader.get("key").expect("reads").map(|found| found.version), Some(901));
    });
    assert_eq!(db.keyspaces().len(), 3, "{:?}", db.keyspaces());
    assert_eq!(files(&to.path().join("snapshots")).len(), 1);
    db.check().expect("no damage");
}

#[test]
fn a_damaged_snapshot_is_refused_and_changes_nothing() {
    let (from, to) = (ground::directory(), ground::directory());
    let (_db, _log, mut leader) = in_directory(&from);
    ground::run(async {
        fill(&mut leader, 1, 2000, "new").await;
        let mut snapshot = leader.get_snapshot_builder().await.build_snapshot().await.expect("builds");
        let (db, _log, mut follower) = in_directory(&to);
        fill(&mut follower, 1, 100, "own").await;
        let whole = std::cell::Cell::new(0);
        for at in [3, 20, 300_000, 1_000_000, usize::MAX] {
            let damaged = send(&mut snapshot, &mut follower, |mut bytes| {
                whole.set(bytes.len());
                match bytes.get_mut(at) {
                    Some(byte) => *byte ^= 4,
                    None => bytes.truncate(bytes.len() / 2),
                }
                bytes
            });
            let damaged = damaged.await;
            snapshot = leader.get_current_snapshot().await.expect("reads").expect("there is one");
            let error = follower.install_snapshot(&snapshot.meta, damaged).await.expect_err("it is damaged");
            assert!(error.to_string().contains("snapshot"), "{error}");
            let found = follower.reader().scan([], None::<&[u8]>, usize::MAX).expect("reads");
            assert!(found.len() == 100 && found.iter().all(|(_, found)| found.value.starts_with(b"own")));
        }
        assert!(whole.get() > 1_500_000, "{} bytes", whole.get());
        drop((db, _log, follower));
        // Of the half sets and received files nothing is left once it is opened again.
        let (db, _log, follower) = in_directory(&to);
        assert_eq!(db.keyspaces().len(), 3, "{:?}", db.keyspaces());
        assert!(files(&to.path().join("snapshots")).is_empty());
        assert_eq!(follower.reader().scan([], None::<&[u8]>, usize::MAX).expect("reads").len(), 100);
    });
}

/// What is sent again is the same file, until the leader makes another one.
#[test]
fn a_damaged_file_of_the_leader_is_replaced_by_the_next_snapshot() {
    let (from, to) = (ground::directory(), ground::directory());
    let (_db, _log, mut leader) = in_directory(&from);
    let (_db, _log, mut follower) = in_directory(&to);
    ground::run(async {
        fill(&mut leader, 1, 1000, "new").await;
        leader.get_snapshot_builder().await.build_snapshot().await.expect("builds");
        let [file] = &files(&from.path().join("snapshots"))[..] else { panic!("one snapshot is expected") };
        let mut bytes = std::fs::read(file).expect("reads");
        bytes[500_000] ^= 4;
        std::fs::write(file, bytes).expect("writes");
        for is_damaged in [true, true, false] {
            if !is_damaged {
                leader.get_snapshot_builder().await.build_snapshot().await.expect("builds");
            }
            let mut sent = leader.get_current_snapshot().await.expect("reads").expect("there is one");
            let received = send(&mut sent, &mut follower, |bytes| bytes).await;
            let installed = follower.install_snapshot(&sent.meta, received).await;
            assert_eq!(installed.is_err(), is_damaged, "{installed:?}");
        }
        assert_eq!(follower.reader().scan([], None::<&[u8]>, usize::MAX).expect("reads").len(), 1000);
    });
}

/// The power fails at each change of the volume while a snapshot is installed: the state is the one or the other.
#[test]
fn an_interrupted_installation_leaves_the_old_state_or_the_new_one() {
    let (source, from) = (Simulated::new(1), ground::directory());
    let (_log, mut leader) = ground::open(&source, &from).expect("opens");
    let sent = ground::run(async {
        fill(&mut leader, 1, 300, "new").await;
        leader.get_snapshot_builder().await.build_snapshot().await.expect("builds").meta
    });
    let (mut old, mut new, mut change) = (0, 0, 1);
    loop {
        let (volume, directory) = (Simulated::new(change), ground::directory());
        let (log, mut follower) = ground::open(&volume, &directory).expect("opens");
        let installed = ground::run(async {
            fill(&mut follower, 1, 100, "own").await;
            follower.get_snapshot_builder().await.build_snapshot().await.expect("builds");
            volume.fail_nth(Filter::changes(), change, Fault::PowerOff, Repeat::Once);
            let snapshot = leader.get_current_snapshot().await.expect("reads").expect("there is one");
            follower.install_snapshot(&sent, snapshot.snapshot).await
        });
        let is_off = volume.is_off();
        drop((log, follower));
        if !is_off {
            installed.expect("no power failed");
            break;
        }
        let volume = volume.power_loss(change);
        let db = ground::open_on(&volume, 2).expect("opens");
        let store = Store::open(&db, directory.path()).expect("a store");
        let (_log, mut follower) = store.group::<KvConfig, _>(7, KvMachine::new()).expect("a group");
        let applied = ground::run(follower.applied_state()).expect("reads").0;
        let found = follower.reader().scan([], None::<&[u8]>, usize::MAX).expect("reads");
        let all = |count, tag: &str| {
            found.len() == count && found.iter().all(|(_, found)| found.value.starts_with(tag.as_bytes()))
        };
        if applied == sent.last_log_id {
            assert!(all(300, "new"), "change {change}: {} records", found.len());
            // openraft purges the log up to there as soon as it starts, and may be asked for what it has purged.
            let current = ground::run(follower.get_current_snapshot()).expect("reads");
            let current = current.expect("there is one").meta.last_log_id;
            assert_eq!(current, applied, "change {change}");
            new += 1;
        } else {
            assert!(installed.is_err(), "change {change}: it was acknowledged");
            assert!(all(100, "own"), "change {change}: {} records", found.len());
            old += 1;
        }
        assert_eq!(db.keyspaces().len(), 3, "change {change}: {:?}", db.keyspaces());
        change += 1;
    }
    assert!(old > 5 && new > 0, "{old} old states, {new} new ones");
}

/// Files that a killed process has left, and those of states that the database has not come to.
#[test]
fn opening_keeps_the_newest_whole_snapshot_of_the_state() {
    let dir = ground::directory();
    let snapshots = dir.path().join("snapshots");
    let kept = {
        let (_db, _log, mut machine) = in_directory(&dir);
        ground::run(async {
            fill(&mut machine, 1, 100, "a").await;
            let first = machine.get_snapshot_builder().await.build_snapshot().await.expect("builds");
            let aside = dir.path().join("aside");
            std::fs::copy(&files(&snapshots)[0], &aside).expect("copies");
            fill(&mut machine, 10, 100, "b").await;
            let second = machine.get_snapshot_builder().await.build_snapshot().await.expect("builds");
            assert_eq!(files(&snapshots).len(), 1, "the first one is removed");
            assert!(second.meta.last_log_id > first.meta.last_log_id);
            let name = |index: u64, end: &str| snapshots.join(format!("{:016x}-{index}-00.{end}", 7));
            std::fs::copy(&aside, name(1, "snapshot")).expect("copies");
            std::fs::copy(&aside, name(2, "partial")).expect("copies");
            std::fs::write(name(3, "snapshot"), "no snapshot").expect("writes");
            // Of another group that has come further.
            let elsewhere = ground::directory();
            let (_db, _log, mut other) = in_directory(&elsewhere);
            fill(&mut other, 50, 100, "c").await;
            other.get_snapshot_builder().await.build_snapshot().await.expect("builds");
            std::fs::copy(&files(&elsewhere.path().join("snapshots"))[0], name(50, "snapshot"))
                .expect("copies");
            second.meta
        })
    };
    assert_eq!(files(&snapshots).len(), 5);
    let (_db, _log, mut machine) = in_directory(&dir);
    let current = ground::run(machine.get_current_snapshot()).expect("reads").expect("there is one");
    assert_eq!(current.meta, kept);
    assert_eq!(files(&snapshots).len(), 1);
}

/// Each node has a key of its own, or none; what is sent is not encrypted with either.
#[test]
fn snapshots_of_an_encrypted_database_are_encrypted() {
    const SECRET: &str = "what nobody else may read";
    let open = |dir: &TempDir, key: Option<u8>| {
        let mut builder = sapwood::Database::builder().memory(8 << 20);
        if let Some(byte) = key {
            builder = builder.encryption_key(sapwood::EncryptionKey::from_bytes([byte; 32]));
        }
        let db = builder.open(dir.path().join("node.db")).expect("opens");
        let store = Store::open(&db, dir.path().join("snapshots")).expect("a store");
        let (_log, machine): (Log, Machine) = store.group(7, KvMachine::new()).expect("a group");
        machine
    };
    let has_secret = |dir: &TempDir| {
        let [file] = &files(&dir.path().join("snapshots"))[..] else { panic!("one snapshot is expected") };
        let bytes = std::fs::read(file).expect("reads");
        bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes())
    };
    let from = ground::directory();
    let mut leader = open(&from, Some(1));
    ground::run(async {
        fill(&mut leader, 1, 1000, SECRET).await;
        let mut snapshot = leader.get_snapshot_builder().await.build_snapshot().await.expect("builds");
        assert!(!has_secret(&from));
        for key in [None, Some(2)] {
            let to = ground::directory();
            let mut follower = open(&to, key);
            snapshot.snapshot =
                leader.get_current_snapshot().await.expect("reads").expect("is there").snapshot;
            let received = send(&mut snapshot, &mut follower, |bytes| bytes).await;
            follower.install_snapshot(&snapshot.meta, received).await.expect("installs");
            // Without a key it is found, so it would be with one.
            assert_eq!(has_secret(&to), key.is_none());
            drop(follower);
            // Again, and what it has received can be sent on.
            let mut follower = open(&to, key);
            assert_eq!(follower.reader().scan([], None::<&[u8]>, usize::MAX).expect("reads").len(), 1000);
            let mut current = follower.get_current_snapshot().await.expect("reads").expect("is there");
            assert_eq!(current.meta, snapshot.meta);
            let last = ground::directory();
            let mut other = open(&last, Some(3));
            let received = send(&mut current, &mut other, |bytes| bytes).await;
            other.install_snapshot(&current.meta, received).await.expect("installs");
            assert_eq!(other.reader().scan([], None::<&[u8]>, usize::MAX).expect("reads").len(), 1000);
        }
    });
    drop(leader);
    // A file of another node, or one that is not encrypted, is none of this one's.
    let [own] = &files(&from.path().join("snapshots"))[..] else { panic!("one snapshot is expected") };
    let name = own.file_name().and_then(|name| name.to_str()).expect("text");
    let foreign = own.with_file_name(name.replace("-10-", "-11-"));
    assert_ne!(*own, foreign);
    std::fs::write(&foreign, b"SapRaft1, and more").expect("writes");
    let mut leader = open(&from, Some(1));
    assert_eq!(files(&from.path().join("snapshots")), std::slice::from_ref(own));
    assert!(ground::run(leader.get_current_snapshot()).expect("reads").is_some());
}

/// openraft builds snapshots beside all else, so one that was begun before may be ready while another is installed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_that_is_ready_during_an_installation_gives_way() {
    // An installation may end before this thread has looked at it. Of a larger state it takes longer.
    for hundreds in [100, 200, 400, 800] {
        if is_ready_during_an_installation(hundreds).await {
            return;
        }
    }
    panic!("each was too short");
}

/// Returns whether an installation of so many hundreds of records took long enough.
async fn is_ready_during_an_installation(hundreds: u64) -> bool {
    let (from, to) = (ground::directory(), ground::directory());
    let (_db, _log, mut leader) = in_directory(&from);
    fill(&mut leader, 1000, 100 * hundreds, "new").await;
    let mut newer = leader.get_snapshot_builder().await.build_snapshot().await.expect("builds");
    let (_db, _log, mut follower) = in_directory(&to);
    fill(&mut follower, 1, 100, "own").await;
    let mut builder = follower.get_snapshot_builder().await;

    let received = send(&mut newer, &mut follower, |bytes| bytes).await;
    let meta = newer.meta.clone();
    let installation = tokio::spawn(async move {
        follower.install_snapshot(&meta, received).await.expect("installs");
        follower
    });
    let is_named = |path: &PathBuf| path.extension().is_some_and(|end| end == "snapshot");
    let snapshots = to.path().join("snapshots");
    while !files(&snapshots).iter().any(is_named) && !installation.is_finished() {
        tokio::task::yield_now().await;
    }
    if installation.is_finished() {
        installation.await.expect("no panic");
        return false;
    }
    let mut built = builder.build_snapshot().await.expect("builds");
    let mut follower = installation.await.expect("no panic");

    assert_eq!(built.meta.last_log_id, Some(id(1, 1)));
    let mut content = Vec::new();
    built.snapshot.read_to_end(&mut content).await.expect("it is readable as long as it is open");
    assert!(content.len() > 100_000, "{} bytes", content.len());
    let current = follower.get_current_snapshot().await.expect("reads").expect("there is one");
    assert_eq!(current.meta, newer.meta);
    assert_eq!(files(&snapshots).len(), 1);
    true
}
