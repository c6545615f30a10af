//! Commands that share entries, and reads that share rounds of confirmation, on clusters within this process.

use crate::ground;
use openraft::error::{InstallSnapshotError, RPCError, RaftError, RemoteError, Unreachable};
use openraft::network::{RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use openraft::storage::RaftStateMachine;
use openraft::{AnyError, BasicNode, Config, Entry, EntryPayload, Raft, RaftMetrics};
use sapwood::psync::Simulated;
use sapwood_openraft::{
    BatchWriter, Batched, KvAnswer, KvBatchConfig, KvCommand, KvMachine, KvValue, ReadIndex, StateReader,
    Store,
};
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// How long anything may take that is to come, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

/// Carries messages within this process.
#[derive(Clone)]
struct Wires {
    nodes: Arc<Mutex<BTreeMap<u64, Raft<KvBatchConfig>>>>,
    /// Messages without entries that were sent, also those that have not arrived.
    empty: Arc<AtomicU64>,
    /// Each message takes a permit and gives it back: none of them arrive while there is none.
    gate: Arc<Semaphore>,
}

struct Wire {
    wires: Wires,
    target: u64,
}

type Answer<T, E = openraft::error::Infallible> = Result<T, RPCError<u64, BasicNode, RaftError<u64, E>>>;

impl RaftNetworkFactory<KvBatchConfig> for Wires {
    type Network = Wire;

    async fn new_client(&mut self, target: u64, _: &BasicNode) -> Wire {
        Wire { wires: self.clone(), target }
    }
}

impl Wire {
    fn node(&self) -> Option<Raft<KvBatchConfig>> {
        self.wires.nodes.lock().expect("not poisoned").get(&self.target).cloned()
    }
}

fn unreachable() -> Unreachable {
    Unreachable::new(&AnyError::error("there is no such node, or it takes no snapshots"))
}

impl RaftNetwork<KvBatchConfig> for Wire {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<KvBatchConfig>,
        _: RPCOption,
    ) -> Answer<AppendEntriesResponse<u64>> {
        self.wires.empty.fetch_add(u64::from(request.entries.is_empty()), SeqCst);
        let _permit = self.wires.gate.acquire().await.expect("it is never closed");
        let answer = self.node().ok_or_else(unreachable)?.append_entries(request).await;
        answer.map_err(|error| RPCError::RemoteError(RemoteError::new(self.target, error)))
    }

    async fn install_snapshot(
        &mut self,
        _: InstallSnapshotRequest<KvBatchConfig>,
        _: RPCOption,
    ) -> Answer<InstallSnapshotResponse<u64>, InstallSnapshotError> {
        Err(unreachable().into())
    }

    async fn vote(&mut self, request: VoteRequest<u64>, _: RPCOption) -> Answer<VoteResponse<u64>> {
        let answer = self.node().ok_or_else(unreachable)?.vote(request).await;
        answer.map_err(|error| RPCError::RemoteError(RemoteError::new(self.target, error)))
    }
}

/// So many nodes, of which the first leads, without heartbeats of their own.
struct Cluster {
    wires: Wires,
    leader: Raft<KvBatchConfig>,
    state: StateReader<KvBatchConfig>,
    _directories: Vec<tempfile::TempDir>,
}

impl Cluster {
    async fn new(count: u64) -> Self {
        let wires =
            Wires { nodes: Arc::default(), empty: Arc::default(), gate: Arc::new(Semaphore::new(1000)) };
        let config = Config {
            // Longer than PATIENCE: nothing that a heartbeat ends is taken for what ends by itself.
            heartbeat_interval: 500_000,
            election_timeout_min: 1_000_000,
            election_timeout_max: 2_000_000,
            ..Config::default()
        };
        let config = Arc::new(config.validate().expect("a configuration"));
        let (mut directories, mut first) = (Vec::new(), None);
        for id in 1..=count {
            let directory = ground::directory();
            let db = ground::open_on(&Simulated::new(id), 4).expect("opens");
            let store = Store::open(&db, directory.path()).expect("a store");
            let (log, machine) =
                store.group::<KvBatchConfig, _>(1, Batched(KvMachine::new())).expect("a group");
            let state = machine.reader();
            let raft = Raft::new(id, Arc::clone(&config), wires.clone(), log, machine).await.expect("starts");
            wires.nodes.lock().expect("not poisoned").insert(id, raft.clone());
            directories.push(directory);
            first.get_or_insert((raft, state));
        }
        let (leader, state) = first.expect("there is a node");
        let nodes: BTreeMap<u64, BasicNode> = (1..=count).map(|id| (id, BasicNode::default())).collect();
        leader.initialize(nodes).await.expect("begins");
        leader.wait(Some(PATIENCE)).current_leader(1, "the first leads").await.expect("in time");
        leader.client_write(vec![]).await.expect("its term has begun");
        Self { wires, leader, state, _directories: directories }
    }
}

fn writer(raft: &Raft<KvBatchConfig>, bytes_max: usize) -> BatchWriter<KvBatchConfig, KvMachine> {
    BatchWriter::new(raft, bytes_max, KvCommand::log_bytes)
}

/// The index of another entry. Metrics may be those from before an answer.
async fn next_index(raft: &Raft<KvBatchConfig>) -> u64 {
    raft.client_write(vec![]).await.expect("is written").log_id.index
}

/// The last entry that is committed. Metrics may be those from before an answer.
async fn committed(raft: &Raft<KvBatchConfig>) -> u64 {
    let committed = raft.with_raft_state(|state| state.committed).await;
    committed.expect("it runs").expect("it has entries").index
}

/// Waits until its log reaches up to there, be it committed or not.
async fn has_appended(raft: &Raft<KvBatchConfig>, index: u64) {
    let is_there = |metrics: &RaftMetrics<u64, BasicNode>| metrics.last_log_index >= Some(index);
    raft.wait(Some(PATIENCE)).metrics(is_there, "it is appended").await.expect("in time");
}

/// Polls each once: it has asked then.
async fn ask<F: Future>(all: &mut [Pin<Box<F>>]) {
    poll_fn(|context| {
        for one in &mut *all {
            assert!(one.as_mut().poll(context).is_pending(), "nothing is answered at once");
        }
        Poll::Ready(())
    })
    .await;
}

/// Waits until the second node was told of the last commit: no message of that is sent any more.
async fn other_knows(cluster: &Cluster) {
    let last = committed(&cluster.leader).await;
    let other = cluster.wires.nodes.lock().expect("not poisoned").get(&2).cloned().expect("there are two");
    let applied = other.wait(Some(PATIENCE)).applied_index_at_least(Some(last), "all of it").await;
    applied.expect("in time");
}

/// Waits until more messages without entries were sent.
async fn round_begins(cluster: &Cluster, begun: u64) {
    let begin = Instant::now();
    while cluster.wires.empty.load(SeqCst) == begun {
        assert!(begin.elapsed() < PATIENCE, "no round begins");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Entries behind the one with that index.
async fn entries_since(raft: &Raft<KvBatchConfig>, index: u64) -> u64 {
    next_index(raft).await - index - 1
}

/// Puts of as many tasks at once. Returns the versions.
async fn put_all(writer: &BatchWriter<KvBatchConfig, KvMachine>, count: usize, len: usize) -> BTreeSet<u64> {
    let put = |number: usize| {
        let writer = writer.clone();
        tokio::spawn(
            async move { writer.write(KvCommand::put(format!("key-{number}"), vec![b'v'; len])).await },
        )
    };
    let tasks: Vec<_> = (0..count).map(put).collect();
    let mut versions = BTreeSet::new();
    for task in tasks {
        match task.await.expect("no panic").expect("is written") {
            KvAnswer::Done { version } => _ = versions.insert(version),
            other => panic!("{other:?}"),
        }
    }
    versions
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_that_wait_share_entries_and_have_versions_of_their_own() {
    let cluster = Cluster::new(2).await;
    let before = next_index(&cluster.leader).await;
    let writer = writer(&cluster.leader, KvCommand::BYTES_MAX);
    let put = |number| Box::pin(writer.write(KvCommand::put(format!("key-{number}"), vec![b'v'; 10])));
    let mut writes: Vec<_> = (0..500).map(put).collect();
    let closed = cluster.wires.gate.acquire_many(1000).await.expect("it is never closed");
    for some in writes.chunks_mut(30) {
        ask(some).await;
        // Tokio lets a task take some hundred steps at a time; what it does beyond them has to wait.
        tokio::task::yield_now().await;
    }
    drop(closed);
    let mut versions = BTreeSet::new();
    for write in writes {
        let KvAnswer::Done { version } = write.await.expect("is written") else { panic!("it is a put") };
        versions.insert(version);
    }
    let entries = entries_since(&cluster.leader, before).await;
    assert!(entries <= 3, "two are under way, and all others wait: {entries} entries");
    assert_eq!(versions.len(), 500, "each has a version of its own");
    for number in 0..500 {
        let found = cluster.state.get(format!("key-{number}")).expect("reads").expect("it is there");
        assert!(versions.contains(&found.version));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_is_no_longer_than_it_may_be() {
    let cluster = Cluster::new(1).await;
    // Two of them would be too long, and each alone is as well: then it is alone.
    for bytes_max in [1500, 10] {
        let before = next_index(&cluster.leader).await;
        assert_eq!(put_all(&writer(&cluster.leader, bytes_max), 50, 1000).await.len(), 50);
        assert_eq!(entries_since(&cluster.leader, before).await, 50);
    }
}

#[test]
fn a_command_sees_those_before_it_in_its_entry() {
    let directory = ground::directory();
    let db = ground::open_on(&Simulated::new(1), 4).expect("opens");
    let store = Store::open(&db, directory.path()).expect("a store");
    let (_log, mut machine) = store.group::<KvBatchConfig, _>(1, Batched(KvMachine::new())).expect("a group");
    let commands = vec![
        KvCommand::put("fram", "1892"),
        KvCommand::compare_and_swap("fram", Some("1820"), Some("1")),
        KvCommand::compare_and_swap("fram", Some("1892"), Some("1893")),
    ];
    let entry = Entry { log_id: ground::id(1, 7), payload: EntryPayload::Normal(commands) };
    let answers = ground::run(machine.apply([entry])).expect("applies");
    let first = 7 << 16;
    let found = KvValue { version: first, value: "1892".into() };
    let expected = vec![
        KvAnswer::Done { version: first },
        KvAnswer::Refused { condition: 0, found: Some(found) },
        KvAnswer::Done { version: first + 2 },
    ];
    assert_eq!(answers, [expected]);
    let found = machine.reader().get("fram").expect("reads").expect("it is there");
    assert_eq!((found.version, &*found.value), (first + 2, &b"1893"[..]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_share_a_round_but_none_that_began_before_them() {
    let cluster = Cluster::new(2).await;
    let reads = ReadIndex::new(&cluster.leader);
    let confirm = |count: usize| (0..count).map(|_| Box::pin(reads.confirm())).collect::<Vec<_>>();
    let empty = || cluster.wires.empty.load(SeqCst);
    other_knows(&cluster).await;
    // A round is under way, and cannot end.
    let begun = empty();
    let closed = cluster.wires.gate.acquire_many(1000).await.expect("it is never closed");
    let mut first = confirm(1);
    ask(&mut first).await;
    round_begins(&cluster, begun).await;
    let mut later = confirm(30);
    ask(&mut later).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    // Without a majority no read is confirmed.
    ask(&mut first).await;
    ask(&mut later).await;
    drop(closed);
    for read in first.into_iter().chain(later) {
        read.await.expect("is confirmed");
    }
    assert_eq!(empty() - begun, 2, "one round for the first read, and one for those that came later");
    // A read sees what was acknowledged before it.
    let writer = writer(&cluster.leader, KvCommand::BYTES_MAX);
    for number in 0..20 {
        writer.write(KvCommand::put("fram", number.to_string())).await.expect("is written");
        reads.confirm().await.expect("is confirmed");
        let found = cluster.state.get("fram").expect("reads").expect("it is there");
        assert_eq!(found.value, number.to_string());
    }
}

/// A leader that reaches no majority does not gather what its clients have given up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_nobody_waits_for_is_not_proposed() {
    let cluster = Cluster::new(2).await;
    let writer = writer(&cluster.leader, KvCommand::BYTES_MAX);
    let before = next_index(&cluster.leader).await;
    let closed = cluster.wires.gate.acquire_many(1000).await.expect("it is never closed");
    let mut writes = Vec::new();
    // The first two are as many proposals as may be under way.
    for (key, place) in ["first", "second", "gone", "kept"].into_iter().zip(0..) {
        let mut write = [Box::pin(writer.write(KvCommand::put(key, "1")))];
        ask(&mut write).await;
        if place < 2 {
            has_appended(&cluster.leader, before + 1 + place).await;
        }
        writes.extend(write);
    }
    drop(writes.remove(2));
    drop(closed);
    for write in writes {
        write.await.expect("is written");
    }
    assert!(cluster.state.get("kept").expect("reads").is_some());
    assert!(cluster.state.get("gone").expect("reads").is_none(), "it had not been proposed");
    assert_eq!(entries_since(&cluster.leader, before).await, 3);
}

/// A node that has gone says so at once, to those that wait as to those that come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_waits_for_a_node_that_has_stopped() {
    let cluster = Cluster::new(2).await;
    let (writer, reads) = (writer(&cluster.leader, KvCommand::BYTES_MAX), ReadIndex::new(&cluster.leader));
    let write = || Box::pin(writer.write(KvCommand::put("fram", "1892")));
    other_knows(&cluster).await;
    // Two are proposed, and one waits for that; a round of reads is under way, and one waits for that.
    let closed = cluster.wires.gate.acquire_many(1000).await.expect("it is never closed");
    let before = committed(&cluster.leader).await;
    let (mut writes, mut confirms) = (Vec::new(), vec![Box::pin(reads.confirm())]);
    for place in 0..3 {
        let mut asked = [write()];
        ask(&mut asked).await;
        if place < 2 {
            has_appended(&cluster.leader, before + 1 + place).await;
        }
        writes.extend(asked);
    }
    let begun = cluster.wires.empty.load(SeqCst);
    ask(&mut confirms).await;
    round_begins(&cluster, begun).await;
    confirms.push(Box::pin(reads.confirm()));
    ask(&mut confirms).await;
    cluster.leader.shutdown().await.expect("stops");
    writes.push(write());
    confirms.push(Box::pin(reads.confirm()));
    for write in writes {
        assert!(tokio::time::timeout(PATIENCE, write).await.expect("in time").is_err());
    }
    for confirm in confirms {
        assert!(tokio::time::timeout(PATIENCE, confirm).await.expect("in time").is_err());
    }
    drop(closed);
}

/// A value that counts how many bytes of such values there are.
struct Counted(Arc<AtomicU64>, Vec<u8>);

impl Counted {
    fn value(count: &Arc<AtomicU64>, len: usize) -> bytes::Bytes {
        count.fetch_add(len as u64, SeqCst);
        bytes::Bytes::from_owner(Self(Arc::clone(count), vec![b'v'; len]))
    }
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.1
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1.len() as u64, SeqCst);
    }
}

/// A leader that is cut off has of the commands whose clients have gone only those that it has proposed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_without_a_majority_does_not_keep_what_its_clients_gave_up() {
    let cluster = Cluster::new(2).await;
    let writer = writer(&cluster.leader, 1 << 18);
    let closed = cluster.wires.gate.acquire_many(1000).await.expect("it is never closed");
    let (kept, len) = (Arc::new(AtomicU64::new(0)), 200_000);
    let tasks: Vec<_> = (0..200)
        .map(|number| {
            let (writer, value) = (writer.clone(), Counted::value(&kept, len));
            let write = async move { writer.write(KvCommand::put(format!("key-{number}"), value)).await };
            tokio::spawn(tokio::time::timeout(Duration::from_millis(500), write))
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic").expect_err("there is no majority");
    }
    let begin = Instant::now();
    while kept.load(SeqCst) > 3 * len as u64 {
        assert!(begin.elapsed() < PATIENCE, "{} bytes of {} are kept", kept.load(SeqCst), 200 * len);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // With a majority it goes on.
    drop(closed);
    writer.write(KvCommand::put("then", "1")).await.expect("is written");
    assert!(cluster.state.get("then").expect("reads").is_some());
}

/// The queue has room again when what was in it was proposed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_commands_than_may_wait_are_all_written() {
    let cluster = Cluster::new(1).await;
    let versions = put_all(&writer(&cluster.leader, 1 << 18), 400, 200_000).await;
    assert_eq!(versions.len(), 400);
    let versions = put_all(&writer(&cluster.leader, 1 << 18), 10_000, 10).await;
    assert_eq!(versions.len(), 10_000);
}
