//! Machines whose values are merged: what a command does is seen nowhere to depend on which others share its transaction, and a state with whatever
//! merging makes comes to another node.

use crate::ground::{self, id};
use openraft::storage::RaftStateMachine;
use openraft::{Entry, EntryPayload, RaftSnapshotBuilder, RaftTypeConfig};
use sapwood::merge::{AddU64, Append};
use sapwood::{Database, KeyspaceOptions};
use sapwood_openraft::{Apply, Batched, Machine, SnapshotFile, StateMachine, StateReader, Store};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

openraft::declare_raft_types!(
    Config:
        D = Change,
        R = bool,
        SnapshotData = SnapshotFile,
);

openraft::declare_raft_types!(
    BatchConfig:
        D = Vec<Change>,
        R = Vec<bool>,
        SnapshotData = SnapshotFile,
);

#[derive(Clone, Debug, Serialize, Deserialize)]
enum Change {
    Append(String, Vec<u8>),
    InsertCount(String, Vec<u8>),
    Add(String, u64),
    /// Answers whether it could be inserted.
    Try(String, Vec<u8>),
    /// Is in error if nothing is written before it in its transaction.
    Fail,
}

struct Merges;

impl Machine for Merges {
    type Command = Change;
    type Answer = bool;

    fn keyspaces(&self) -> Vec<(String, KeyspaceOptions)> {
        vec![
            ("texts".into(), KeyspaceOptions::new().merge(Append)),
            ("counts".into(), KeyspaceOptions::new().merge(AddU64)),
        ]
    }

    fn apply(&self, at: &mut Apply<'_>, change: Change) -> sapwood::Result<bool> {
        let (texts, counts) = (&at.keyspaces[0], &at.keyspaces[1]);
        match change {
            Change::Append(key, bytes) => at.transaction.merge(texts, key, bytes)?,
            Change::InsertCount(key, bytes) => at.transaction.insert(counts, key, bytes)?,
            Change::Add(key, more) => at.transaction.merge(counts, key, more.to_be_bytes())?,
            Change::Try(key, bytes) => return Ok(at.transaction.insert(texts, key, bytes).is_ok()),
            // As of any error that what comes before it makes.
            Change::Fail if at.transaction.writes_len() > 0 => return Err(sapwood::Error::KeyEmpty),
            Change::Fail => return Ok(false),
        }
        Ok(true)
    }

    fn without_command(&self) -> bool {
        false
    }
}

fn with_memory<C, M>(dir: &TempDir, memory: u64, machine: M) -> StateMachine<C, M>
where
    C: RaftTypeConfig<D = M::Command, R = M::Answer, Entry = Entry<C>, SnapshotData = SnapshotFile>,
    C::D: Serialize + serde::de::DeserializeOwned,
    M: Machine,
{
    let db = Database::builder().memory(memory).open(dir.path().join("node.db")).expect("opens");
    let store = Store::open(&db, dir.path().join("snapshots")).expect("a store");
    store.group(7, machine).expect("a group").1
}

fn entries<C>(changes: impl IntoIterator<Item = C::D>) -> Vec<Entry<C>>
where
    C: RaftTypeConfig<NodeId = u64, Entry = Entry<C>>,
{
    let entry = |(index, change)| Entry { log_id: id(1, index), payload: EntryPayload::Normal(change) };
    (1..).zip(changes).map(entry).collect()
}

/// A key, and the value or what it fails with.
type Record = (Vec<u8>, Result<Vec<u8>, String>);

/// All records.
fn records<C: RaftTypeConfig>(state: &StateReader<C>) -> Vec<Record> {
    let view = state.view().expect("a view");
    let mut found = Vec::new();
    for keyspace in view.keyspaces() {
        found.extend(view.snapshot().iter(keyspace).map(|item| match item {
            Ok((key, value)) => (key.to_vec(), Ok(value.to_vec())),
            Err(sapwood::Error::MergeFailed { key, reason, .. }) => (key.to_vec(), Err(reason)),
            Err(error) => panic!("{error}"),
        }));
    }
    found
}

fn changes() -> Vec<Change> {
    let append = |key: &str, len| Change::Append(key.into(), vec![b'a'; len]);
    vec![
        append("a", 500_000),
        append("a", 500_000),
        append("b", 900_000),
        append("a", 500_000),
        Change::Add("seven".into(), 3),
        Change::InsertCount("bad".into(), b"bad".to_vec()),
        Change::Add("bad".into(), 1),
        Change::Add("bad".into(), 2),
        Change::Fail,
        Change::Add("seven".into(), 4),
        append("b", 10),
    ]
}

/// One node had two commands in a transaction and stopped, as it did whenever it was started; others had them one by one.
#[test]
fn commands_end_alike_alone_and_together() {
    let (one_by_one, together) = (ground::directory(), ground::directory());
    let mut alone = with_memory::<Config, _>(&one_by_one, 16 << 20, Merges);
    let mut grouped = with_memory::<Config, _>(&together, 256 << 20, Merges);
    ground::run(async {
        let mut answers = Vec::new();
        for entry in entries(changes()) {
            answers.extend(alone.apply([entry]).await.expect("applies"));
        }
        assert_eq!(grouped.apply(entries(changes())).await.expect("applies"), answers);
        assert_eq!(answers.iter().filter(|answer| **answer).count(), changes().len() - 1);
    });
    let found = records(&alone.reader());
    assert!(records(&grouped.reader()) == found);
    assert_eq!(found[0].1.as_ref().map(Vec::len), Ok(1_500_000));
    assert!(found.iter().any(|(key, value)| key == b"bad" && value.is_err()));
}

/// All nodes did: an entry has its commands in one transaction.
#[test]
fn commands_of_an_entry_end_as_those_of_several() {
    let (one_by_one, together) = (ground::directory(), ground::directory());
    let bad = || {
        let long = |byte| Change::Append("long".into(), vec![byte; 400_000]);
        let bad =
            [("bad", &b"bad"[..]), ("good", &[0; 8])].map(|(key, bytes)| (key.to_owned(), bytes.to_vec()));
        let inserts = bad.map(|(key, bytes)| Change::InsertCount(key, bytes));
        let adds = ["bad", "good", "bad"].map(|key| Change::Add(key.into(), 1));
        inserts.into_iter().chain(adds).chain([long(b'a'), long(b'b')])
    };
    let mut alone = with_memory::<Config, _>(&one_by_one, 16 << 20, Merges);
    let mut batched = with_memory::<BatchConfig, _>(&together, 16 << 20, Batched(Merges));
    ground::run(async {
        for entry in entries(bad()) {
            alone.apply([entry]).await.expect("applies");
        }
        batched.apply(entries([bad().collect()])).await.expect("applies");
    });
    let found = records(&alone.reader());
    assert!(records(&batched.reader()) == found);
    assert_eq!(found.iter().filter(|(_, value)| value.is_err()).count(), 1);
}

/// With more memory it takes effect, so the states differed, and nobody knew.
#[test]
fn a_refusal_for_want_of_memory_is_no_answer() {
    let changes = || [Change::Append("a".into(), b"a".to_vec()), Change::Try("b".into(), vec![0; 1_000_000])];
    let (small_dir, large) = (ground::directory(), ground::directory());
    let mut small = with_memory::<Config, _>(&small_dir, 16 << 20, Merges);
    let mut large = with_memory::<Config, _>(&large, 256 << 20, Merges);
    ground::run(async {
        assert_eq!(large.apply(entries(changes())).await.expect("applies"), [true, true]);
        let error = small.apply(entries(changes())).await.expect_err("it stops the node").to_string();
        for said in [
            "command 2 of Raft group 7 was answered",
            "1000000 bytes",
            "with more memory, as much as the largest",
        ] {
            assert!(error.contains(said), "{error}");
        }
        assert_eq!(small.applied_state().await.expect("reads").0, Some(id(1, 1)));
    });
    assert_eq!(records(&small.reader()).len(), 1);
    drop(small);
    let mut more = with_memory::<Config, _>(&small_dir, 256 << 20, Merges);
    let answers = ground::run(more.apply(entries(changes()).into_iter().skip(1)));
    assert_eq!(answers.expect("applies"), [true]);
    assert!(records(&more.reader()) == records(&large.reader()));
}

/// It is too long for every node, so all of them may answer so; each stopped, and at each start again.
#[test]
fn a_refusal_by_every_node_may_be_answered() {
    let change = || [Change::Try("b".into(), vec![0; 16 << 20]), Change::Append("a".into(), b"a".to_vec())];
    for memory in [16 << 20, 512 << 20] {
        let dir = ground::directory();
        let mut machine = with_memory::<Config, _>(&dir, memory, Merges);
        let answers = ground::run(machine.apply(entries(change()))).expect("applies");
        assert_eq!(answers, [false, true], "{memory}");
        assert_eq!(records(&machine.reader()).len(), 1);
    }
}

/// Beside another there was no room for it, and alone there is, on every node.
#[test]
fn a_refusal_beside_others_is_none() {
    let dir = ground::directory();
    let mut machine = with_memory::<Config, _>(&dir, 4 << 20, Merges);
    let changes = ["a", "b", "c"].map(|key| Change::Try(key.into(), vec![0; 600_000]));
    let answers = ground::run(machine.apply(entries(changes))).expect("applies");
    assert_eq!(answers, [true; 3]);
    assert_eq!(records(&machine.reader()).len(), 3);
}

/// It could be neither built nor installed, so no node could be added or replaced any more.
#[test]
fn whatever_merging_makes_comes_to_another_node() {
    let (from, to) = (ground::directory(), ground::directory());
    let mut leader = with_memory::<Config, _>(&from, 16 << 20, Merges);
    let mut follower = with_memory::<Config, _>(&to, 4 << 20, Merges);
    ground::run(async {
        for entry in entries(changes()) {
            leader.apply([entry]).await.expect("applies");
        }
        let mut snapshot = leader.get_snapshot_builder().await.build_snapshot().await.expect("builds");
        let mut received = follower.begin_receiving_snapshot().await.expect("a file");
        let mut sent = Vec::new();
        snapshot.snapshot.read_to_end(&mut sent).await.expect("reads");
        received.write_all(&sent).await.expect("writes");
        received.shutdown().await.expect("flushes");
        follower.install_snapshot(&snapshot.meta, received).await.expect("installs");
        let found = records(&leader.reader());
        assert!(records(&follower.reader()) == found);
        assert!(found.iter().any(|(_, value)| value.as_ref().is_ok_and(|value| value.len() > 1 << 20)));
        assert!(found.iter().any(|(_, value)| value.is_err()));
        // They go on alike, and what fails can be mended.
        let next = changes().len() as u64 + 1;
        let more = [
            Change::Add("bad".into(), 5),
            Change::Append("a".into(), b"b".to_vec()),
            Change::InsertCount("bad".into(), vec![0; 8]),
            Change::Add("bad".into(), 5),
        ];
        for (index, change) in (next..).zip(more) {
            let entry = Entry { log_id: id(1, index), payload: EntryPayload::Normal(change) };
            for machine in [&mut leader, &mut follower] {
                machine.apply([entry.clone()]).await.expect("applies");
            }
            assert!(records(&follower.reader()) == records(&leader.reader()), "{index}");
        }
        assert!(records(&follower.reader()).iter().all(|(_, value)| value.is_ok()));
    });
}
