//! Three nodes in this process, on simulated volumes that lose power, with messages that are lost: histories of clients are linearizable. The
//! short form of what `sapwood-node`'s tests do with processes and networks.

use crate::ground;
use crate::history::{Call, Operation, violation, with_last_reads};
use openraft::error::{InstallSnapshotError, RPCError, RaftError, RemoteError, Unreachable};
use openraft::network::{RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use openraft::{AnyError, BasicNode, Config, Entry, EntryPayload, Raft, ServerState, SnapshotPolicy};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::psync::Simulated;
use sapwood_openraft::{
    BatchWriter, Batched, Error, KvBatchConfig, KvCommand, KvMachine, ReadIndex, StateReader, Store,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

pub const NODES: [u64; 3] = [1, 2, 3];
const KEYS: u64 = 4;
/// Of most clusters, in milliseconds: short, so that elections are soon over.
pub const HEARTBEAT: u64 = 40;
/// An operation that takes longer may have happened or not.
const LONG: Duration = Duration::from_millis(500);
/// How long anything may take, at most.
const PATIENCE: Duration = Duration::from_secs(60);
/// Operations of clients beside a leader that was replaced and does not know: each key is written by then, and read where it is old.
const OPERATIONS: usize = 60;

/// Puts, and gets, of a history that tells something.
const LEAST: usize = 200;

/// Whom a node asks before it answers a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    Majority,
    /// Whether it leads, as far as it knows.
    Itself,
    Nobody,
}

/// A node that runs.
#[derive(Clone)]
pub struct Node {
    pub raft: Raft<KvBatchConfig>,
    pub writer: BatchWriter<KvBatchConfig, KvMachine>,
    reads: ReadIndex<KvBatchConfig>,
    pub state: StateReader<KvBatchConfig>,
    volume: Simulated,
    store: Store,
}

/// Waits until something is so.
pub async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        sleep(Duration::from_millis(5)).await;
    }
}

impl Node {
    /// The last entry that is committed. Metrics may be those from before an answer.
    pub async fn committed(&self) -> Option<u64> {
        let committed = self.raft.with_raft_state(|state| state.committed).await.expect("it runs");
        committed.map(|committed| committed.index)
    }
}

pub struct Cluster {
    nodes: Mutex<BTreeMap<u64, Node>>,
    /// From whom to whom messages are lost.
    lost: Mutex<BTreeSet<(u64, u64)>>,
    directory: TempDir,
    begin: Instant,
    history: Mutex<Vec<Operation>>,
    next: AtomicU64,
    asks: Asks,
    /// Whether what is committed is synced.
    syncs_committed: bool,
    is_encrypted: bool,
    /// Milliseconds.
    heartbeat: u64,
    /// Bytes of entries that a link takes in a second; 0: at once.
    speed: AtomicU64,
}

/// What a node says to another.
struct Link {
    cluster: Arc<Cluster>,
    from: u64,
    to: u64,
}

type Answer<T, E = openraft::error::Infallible> = Result<T, RPCError<u64, BasicNode, RaftError<u64, E>>>;

impl Link {
    /// The other node, if a message comes through.
    fn raft(&self) -> Result<Raft<KvBatchConfig>, Unreachable> {
        let node = self.cluster.nodes.lock().expect("sound").get(&self.to).map(|node| node.raft.clone());
        node.filter(|_| !self.is_lost(self.from, self.to)).ok_or_else(Self::unreachable)
    }

    fn unreachable() -> Unreachable {
        Unreachable::new(&AnyError::error("a message was lost, for a test"))
    }

    fn is_lost(&self, from: u64, to: u64) -> bool {
        self.cluster.lost.lock().expect("sound").contains(&(from, to))
    }

    /// An answer, if it comes through.
    #[allow(clippy::result_large_err, reason = "the error is openraft's")]
    fn answer<T, E: std::error::Error>(&self, answer: Result<T, RaftError<u64, E>>) -> Answer<T, E> {
        if self.is_lost(self.to, self.from) {
            return Err(Self::unreachable().into());
        }
        answer.map_err(|error| RPCError::RemoteError(RemoteError::new(self.to, error)))
    }
}

impl RaftNetwork<KvBatchConfig> for Link {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<KvBatchConfig>,
        _: RPCOption,
    ) -> Answer<AppendEntriesResponse<u64>> {
        let bytes = |entry: &Entry<KvBatchConfig>| match &entry.payload {
            EntryPayload::Normal(commands) => commands.iter().map(KvCommand::log_bytes).sum(),
            EntryPayload::Blank | EntryPayload::Membership(_) => 0,
        };
        let bytes: usize = request.entries.iter().map(bytes).sum();
        if let Some(millis) = (1000 * bytes as u64).checked_div(self.cluster.speed.load(SeqCst)) {
            sleep(Duration::from_millis(millis)).await;
        }
        let answer = self.raft()?.append_entries(request).await;
        self.answer(answer)
    }

    async fn install_snapshot(
        &mut self,
        request: InstallSnapshotRequest<KvBatchConfig>,
        _: RPCOption,
    ) -> Answer<InstallSnapshotResponse<u64>, InstallSnapshotError> {
        let answer = self.raft()?.install_snapshot(request).await;
        self.answer(answer)
    }

    async fn vote(&mut self, request: VoteRequest<u64>, _: RPCOption) -> Answer<VoteResponse<u64>> {
        let answer = self.raft()?.vote(request).await;
        self.answer(answer)
    }
}

impl RaftNetworkFactory<KvBatchConfig> for Link {
    type Network = Link;

    async fn new_client(&mut self, target: u64, _: &BasicNode) -> Link {
        Link { cluster: Arc::clone(&self.cluster), from: self.from, to: target }
    }
}

impl Cluster {
    pub async fn new(asks: Asks, syncs_committed: bool) -> Arc<Self> {
        Self::begin(asks, syncs_committed, false, HEARTBEAT).await
    }

    /// With keys, nodes have encrypted databases. Elections begin after five heartbeats without any.
    pub async fn begin(asks: Asks, syncs_committed: bool, is_encrypted: bool, heartbeat: u64) -> Arc<Self> {
        let cluster = Arc::new(Self {
            nodes: Mutex::default(),
            lost: Mutex::default(),
            directory: ground::directory(),
            begin: Instant::now(),
            history: Mutex::default(),
            next: AtomicU64::new(1),
            asks,
            syncs_committed,
            is_encrypted,
            heartbeat,
            speed: AtomicU64::new(0),
        });
        for id in NODES {
            cluster.start(id, Simulated::new(id)).await;
        }
        let members: BTreeMap<_, _> = NODES.iter().map(|id| (*id, BasicNode::default())).collect();
        cluster.node(1).expect("it runs").raft.initialize(members).await.expect("a cluster");
        cluster
    }

    async fn start(self: &Arc<Self>, id: u64, volume: Simulated) {
        let mut builder = ground::options().background_threads(1);
        if self.is_encrypted {
            builder = builder.encryption_key(sapwood::EncryptionKey::from_bytes([id as u8; 32]));
        }
        let on: Arc<dyn sapwood::psync::Volume> = Arc::new(volume.clone());
        let db = builder.open_on(on).expect("opens");
        let store = Store::open(&db, self.directory.path().join(id.to_string())).expect("a store");
        let group = store.group::<KvBatchConfig, _>(1, Batched(KvMachine::new()));
        let (log, machine) = group.expect("a group");
        let state = machine.reader();
        let config = Config {
            heartbeat_interval: self.heartbeat,
            election_timeout_min: 5 * self.heartbeat,
            election_timeout_max: 10 * self.heartbeat,
            // So that nodes which were away are sent snapshots, too.
            snapshot_policy: SnapshotPolicy::LogsSinceLast(100),
            max_in_snapshot_log_to_keep: 20,
            // The answer comes when it is installed: if that takes longer on a busy machine, it is sent again, and installed again.
            install_snapshot_timeout: 60_000,
            ..Config::default()
        };
        let config = Arc::new(config.validate().expect("a configuration"));
        let link = Link { cluster: Arc::clone(self), from: id, to: id };
        let log = if self.syncs_committed { log } else { log.committed_without_sync() };
        let raft = Raft::new(id, config, link, log, machine).await.expect("it starts");
        let (writer, reads) =
            (BatchWriter::new(&raft, KvCommand::BYTES_MAX, KvCommand::log_bytes), ReadIndex::new(&raft));
        let node = Node { raft, writer, reads, state, volume, store };
        self.nodes.lock().expect("sound").insert(id, node);
    }

    pub fn node(&self, id: u64) -> Option<Node> {
        self.nodes.lock().expect("sound").get(&id).cloned()
    }

    /// A node ends as by a power cut, and comes back with what was durable.
    pub async fn lose_power(self: &Arc<Self>, ids: &[u64], seed: u64) {
        let mut volumes = Vec::new();
        for id in ids {
            let node = self.nodes.lock().expect("sound").remove(id).expect("it runs");
            // Whatever it has acknowledged was before this; it has not closed its database.
            node.raft.shutdown().await.expect("it stops");
            let Node { raft, writer, reads, state, volume, store } = node;
            drop((raft, writer, reads, state));
            // What it still does with snapshots would be seen by its next life, which has the same directory.
            let group = || store.group::<KvBatchConfig, _>(1, Batched(KvMachine::new()));
            until("nothing uses its group", || !matches!(group(), Err(Error::GroupInUse { .. }))).await;
            volumes.push((*id, volume.power_loss(seed + id)));
        }
        sleep(Duration::from_millis(100)).await;
        for (id, volume) in volumes {
            self.start(id, volume).await;
        }
    }

    /// The node that a majority follows.
    pub async fn leader(&self) -> u64 {
        let begin = Instant::now();
        loop {
            assert!(begin.elapsed() < PATIENCE, "no majority follows any node");
            let nodes: Vec<_> =
                self.nodes.lock().expect("sound").iter().map(|(id, node)| (*id, node.clone())).collect();
            for (id, node) in nodes {
                if matches!(timeout(LONG, node.reads.confirm()).await, Ok(Ok(()))) {
                    return id;
                }
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Writes by the node that leads, which it returns. On a busy machine another may lead before the answer is there: then it is written again.
    pub async fn write(&self, command: KvCommand) -> Node {
        let begin = Instant::now();
        loop {
            let leader = self.node(self.leader().await).expect("it runs");
            if let Ok(Ok(_)) = timeout(LONG, leader.writer.write(command.clone())).await {
                return leader;
            }
            assert!(begin.elapsed() < PATIENCE, "nothing is written");
        }
    }

    /// Cuts the leader off from the others, both ways: it leads on, as far as it knows. Returns which one.
    async fn cut_leader_off(&self) -> u64 {
        let begin = Instant::now();
        loop {
            let leader = self.leader().await;
            let others = NODES.into_iter().filter(|id| *id != leader);
            self.lose(&others.flat_map(|other| [(leader, other), (other, leader)]).collect::<Vec<_>>());
            let cut_off = self.node(leader).expect("it runs");
            // On a busy machine it may have heard of another one meanwhile.
            let leads = cut_off.raft.with_raft_state(|state| state.server_state == ServerState::Leader).await;
            if leads.expect("it runs") {
                return leader;
            }
            self.lose(&[]);
            assert!(begin.elapsed() < PATIENCE, "each time another leads");
        }
    }

    /// Waits until another node leads in place of one that is cut off, and clients have asked both.
    async fn goes_on_without(&self, old: u64) {
        assert_ne!(self.leader().await, old);
        let operations = || self.history.lock().expect("sound").len();
        let before = operations();
        until("clients ask on", || operations() >= before + OPERATIONS).await;
    }

    pub fn lose(&self, links: &[(u64, u64)]) {
        *self.lost.lock().expect("sound") = links.iter().copied().collect();
    }

    /// Changes a byte of each of a node's snapshot files.
    pub fn damage_snapshot(&self, id: u64) {
        let directory = self.directory.path().join(id.to_string());
        let files = std::fs::read_dir(directory).expect("lists").map(|entry| entry.expect("an entry").path());
        for file in files.filter(|path| path.extension().is_some_and(|end| end == "snapshot")) {
            let mut bytes = std::fs::read(&file).expect("reads");
            let middle = bytes.len() / 2;
            bytes[middle] ^= 4;
            std::fs::write(file, bytes).expect("writes");
        }
    }

    /// Nodes and links have the cluster, and it them.
    pub fn clear(&self) {
        self.nodes.lock().expect("sound").clear();
    }

    fn now(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }

    /// A client that asks any node. Those that do not lead are asked for reads, which they refuse.
    async fn work(self: Arc<Self>, client: usize, is_done: Arc<AtomicBool>) {
        let mut rng = StdRng::seed_from_u64(client as u64);
        while !is_done.load(SeqCst) {
            sleep(Duration::from_millis(rng.random_range(0..6))).await;
            let Some(node) = self.node(NODES[rng.random_range(0..NODES.len())]) else { continue };
            let key = format!("key {}", rng.random_range(0..KEYS));
            let called = self.now();
            let (call, is_known) = if rng.random_bool(0.5) {
                // A leader that loses its followers answers as one that never was one, though others may commit what it had.
                if !node.raft.metrics().borrow().state.is_leader() {
                    continue;
                }
                let value = self.next.fetch_add(1, SeqCst);
                let write = node.writer.write(KvCommand::put(key.clone(), value.to_string()));
                match timeout(LONG, write).await {
                    Ok(Ok(_)) => (Call::Put { value }, true),
                    _ => (Call::Put { value }, false),
                }
            } else {
                let may_read = match self.asks {
                    Asks::Majority => matches!(timeout(LONG, node.reads.confirm()).await, Ok(Ok(()))),
                    Asks::Itself => node.raft.metrics().borrow().state.is_leader(),
                    Asks::Nobody => true,
                };
                if !may_read {
                    continue;
                }
                let found = node.state.get(&key).expect("reads");
                let found = found.map_or(0, |found| number(&found.value));
                (Call::Get { found }, true)
            };
            let returned = is_known.then(|| self.now());
            self.history.lock().expect("sound").push(Operation { client, key, call, called, returned });
        }
    }
}

fn number(value: &[u8]) -> u64 {
    std::str::from_utf8(value).ok().and_then(|value| value.parse().ok()).expect("a number")
}

/// What happens to a cluster while clients work, with time between that it works in.
async fn troubles(cluster: &Arc<Cluster>) {
    let pause = || sleep(Duration::from_millis(600));
    pause().await;
    let others = |id: u64| NODES.into_iter().filter(move |other| *other != id);
    for (number, trouble) in
        (0u64..).zip(["isolated", "power", "mute", "all power", "deaf", "bridge", "follower"])
    {
        let leader = match trouble {
            "isolated" => cluster.cut_leader_off().await,
            _ => cluster.leader().await,
        };
        let first = others(leader).next().expect("three nodes");
        let (said, heard): (Vec<_>, Vec<_>) =
            others(leader).map(|other| ((leader, other), (other, leader))).unzip();
        match trouble {
            "isolated" => {}
            "mute" => cluster.lose(&said),
            "deaf" => cluster.lose(&heard),
            "bridge" => cluster.lose(&[(leader, first), (first, leader)]),
            "power" => cluster.lose_power(&[leader], number).await,
            "follower" => cluster.lose_power(&[first], number).await,
            _ => cluster.lose_power(&NODES, number).await,
        }
        match trouble {
            "isolated" | "mute" => cluster.goes_on_without(leader).await,
            _ => pause().await,
        }
        cluster.lose(&[]);
        pause().await;
    }
}

/// The history of clients, and all nodes' records at its end.
fn run(asks: Asks, syncs_committed: bool) -> (Vec<Operation>, Vec<Vec<(bytes::Bytes, bytes::Bytes)>>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let cluster = Cluster::new(asks, syncs_committed).await;
        cluster.leader().await;
        let is_done = Arc::new(AtomicBool::new(false));
        let clients: Vec<_> = (0..6)
            .map(|client| tokio::spawn(Arc::clone(&cluster).work(client, Arc::clone(&is_done))))
            .collect();
        troubles(&cluster).await;
        // However busy the machine is.
        let is_long = || {
            let history = cluster.history.lock().expect("sound");
            let puts = history.iter().filter(|operation| matches!(operation.call, Call::Put { .. })).count();
            puts > LEAST && history.len() - puts > LEAST
        };
        until("there is a history", is_long).await;
        is_done.store(true, SeqCst);
        for client in clients {
            client.await.expect("a client does not panic");
        }
        let begin = Instant::now();
        let records = loop {
            // Behind whatever was proposed and not waited for, which some node might have applied and another not yet. It writes nothing.
            let last = cluster.write(KvCommand::delete("no key")).await.committed().await;
            let mut records: Vec<Vec<_>> = Vec::new();
            for id in NODES {
                let node = cluster.node(id).expect("it runs");
                let wait = node.raft.wait(Some(PATIENCE));
                wait.applied_index_at_least(last, "all of it").await.expect("it catches up");
                let found = node.state.scan([], None::<&[u8]>, usize::MAX).expect("reads");
                records.push(found.into_iter().map(|(key, found)| (key, found.value)).collect());
            }
            // What a client has given up may be proposed even later.
            if records.iter().all(|found| *found == records[0]) || begin.elapsed() > PATIENCE {
                break records;
            }
        };
        // Not before: those that lack something need a majority.
        for id in NODES {
            cluster.node(id).expect("it runs").raft.shutdown().await.expect("it stops");
        }
        cluster.clear();
        let history = std::mem::take(&mut *cluster.history.lock().expect("sound"));
        (history, records)
    })
}

#[test]
fn histories_are_linearizable_and_nodes_end_alike() {
    let (history, records) = run(Asks::Majority, false);
    let (puts, gets) =
        history.iter().partition::<Vec<_>, _>(|operation| matches!(operation.call, Call::Put { .. }));
    assert!(puts.len() > LEAST && gets.len() > LEAST, "{} puts, {} gets", puts.len(), gets.len());
    assert!(records.iter().all(|found| *found == records[0]), "{records:?}");
    assert_eq!(records[0].len() as u64, KEYS);
    let found: BTreeMap<_, _> = records[0].iter().map(|(key, value)| (&key[..], number(value))).collect();
    let in_the_end = |key: &str| found.get(key.as_bytes()).copied().unwrap_or(0);
    assert_eq!(violation(&with_last_reads(&history, in_the_end)), None);
}

/// openraft lets a leader go on that has restarted before others elected one, though it may have forgotten what is committed: its
/// reads were stale (databendlabs/openraft#1511).
#[test]
fn a_leader_that_comes_back_knows_what_it_acknowledged() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        for round in 0..20u64 {
            let cluster = Cluster::new(Asks::Majority, round % 2 == 0).await;
            let value = round.to_string();
            cluster.write(KvCommand::put("key", value.clone())).await;
            cluster.lose_power(&NODES, round).await;
            let leader = cluster.node(cluster.leader().await).expect("it runs");
            let found = leader.state.get("key").expect("reads").map(|found| found.value);
            assert_eq!(found.as_deref(), Some(value.as_bytes()), "round {round}");
            for id in NODES {
                cluster.node(id).expect("it runs").raft.shutdown().await.expect("it stops");
            }
            cluster.clear();
        }
    });
}

/// The checker would find it.
#[test]
fn reads_without_the_read_index_are_caught() {
    assert!(violation(&run(Asks::Nobody, false).0).is_some());
}

/// Also where nodes that do not lead answer no reads: some are asked that lead no more, and do not know.
#[test]
fn reads_of_a_leader_that_asks_nobody_are_caught() {
    assert!(violation(&run(Asks::Itself, false).0).is_some());
}

/// openraft answers neither proposal of a leader that was cut off when what they had is behind the snapshot that the leader is sent
/// (databendlabs/openraft#1761). Others have to be proposed all the same.
#[test]
fn a_leader_that_was_replaced_proposes_again_though_it_was_not_answered() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let cluster = Cluster::new(Asks::Majority, false).await;
        let old = cluster.cut_leader_off().await;
        let cut_off = cluster.node(old).expect("it runs");
        let last = || cut_off.raft.metrics().borrow().last_log_index;
        let mut abandoned = Vec::new();
        for key in ["first", "second"] {
            let (before, writer) = (last(), cut_off.writer.clone());
            abandoned.push(tokio::spawn(async move { writer.write(KvCommand::put(key, "1")).await }));
            until("it is appended", || last() != before).await;
        }
        let new = cluster.leader().await;
        assert_ne!(new, old);
        let mut leader = cluster.node(new).expect("it runs");
        for number in 0..400 {
            leader = cluster.write(KvCommand::put("key", number.to_string())).await;
        }
        let purged = leader.raft.wait(Some(PATIENCE));
        let behind = last().expect("it has entries");
        let is_purged = move |metrics: &openraft::RaftMetrics<u64, BasicNode>| {
            metrics.purged.is_some_and(|purged| purged.index > behind)
        };
        purged.metrics(is_purged, "the log is purged beyond that of the other").await.expect("in time");
        cluster.lose(&[]);
        let caught_up = cut_off.raft.wait(Some(PATIENCE));
        caught_up.applied_index_at_least(Some(behind + 1), "it is sent the snapshot").await.expect("in time");
        // Their callers do not wait for ever.
        abandoned.iter().for_each(|task| task.abort());
        let written = timeout(PATIENCE, cut_off.writer.write(KvCommand::put("third", "1"))).await;
        // Maybe it leads again.
        _ = written.expect("it is answered, be it refused");
        for id in NODES {
            cluster.node(id).expect("it runs").raft.shutdown().await.expect("it stops");
        }
        cluster.clear();
    });
}

/// A message of entries that takes longer than a heartbeat is sent again, and takes as long.
#[test]
fn a_node_catches_up_by_a_link_that_takes_one_entry_in_a_heartbeat() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        // Long ones, of which a busy machine takes few milliseconds away.
        let cluster = Cluster::begin(Asks::Majority, false, false, 10 * HEARTBEAT).await;
        let old = cluster.leader().await;
        let behind = NODES.into_iter().find(|id| *id != old).expect("three nodes");
        let cut = NODES.into_iter().flat_map(|other| [(behind, other), (other, behind)]);
        cluster.lose(&cut.collect::<Vec<_>>());
        let mut leader = cluster.node(old).expect("it runs");
        for number in 0..9 {
            leader = cluster.write(KvCommand::put(format!("key {number}"), vec![0; 200_000])).await;
        }
        let last = leader.committed().await;
        // One of them takes 238 of 400 milliseconds.
        cluster.speed.store(820 << 10, SeqCst);
        cluster.lose(&[]);
        let caught_up = cluster.node(behind).expect("it runs").raft.wait(Some(PATIENCE));
        caught_up.applied_index_at_least(last, "all of it").await.expect("in time");
        for id in NODES {
            cluster.node(id).expect("it runs").raft.shutdown().await.expect("it stops");
        }
        cluster.clear();
    });
}
