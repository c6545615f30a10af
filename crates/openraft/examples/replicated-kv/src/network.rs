//! What this node says to others: openraft's messages as HTTP requests, encoded by postcard.
//!
//! An answer is a `Result` of openraft, also with status 200; any other status is an error of the network. A message says for whom it is: addresses
//! are mistyped, and go to other nodes, and who votes must be who is asked. It says of which cluster it is as well: see [`identity`].

use crate::faults::Faults;
use crate::identity::{self, Identity};
use crate::receiving::Attempts;
use openraft::error::{InstallSnapshotError, NetworkError, RPCError, RaftError, RemoteError, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use openraft::{AnyError, BasicNode, Vote};
use parking_lot::Mutex;
use reqwest::RequestBuilder;
use sapwood_openraft::KvBatchConfig;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Reaches the other nodes.
#[derive(Clone)]
pub struct Network {
    pub client: reqwest::Client,
    /// `http` or `https`.
    pub scheme: &'static str,
    pub token: Option<Arc<str>>,
    pub faults: Arc<Faults>,
    pub identity: Arc<Identity>,
    pub rounds: Rounds,
}

/// Messages of rounds of reads that may be under way to a node, at most. Each has a connection of its own, and one that is not answered keeps it
/// for a heartbeat, while the rounds that others answer follow one another: to a node that is slower than they are, there would be as many
/// as they answer meanwhile. Some, so that a new round reaches a node that answers before its answer to an old one is there.
const ROUNDS_MAX: usize = 16;

/// Places for messages of rounds of reads, by the node that they go to.
pub type Rounds = Arc<Mutex<BTreeMap<u64, Arc<Places>>>>;

/// Places for messages of rounds of reads to a node.
pub struct Places {
    free: Arc<Semaphore>,
    /// The message that waits for a place, which ends when this goes. A newer one takes its place: all reads share
    /// one `ReadIndex`, whose rounds follow one another, so that of the older has ended, and openraft does not look at its message any more.
    waiting: Mutex<Option<oneshot::Sender<()>>>,
}

impl Default for Places {
    fn default() -> Self {
        Self { free: Arc::new(Semaphore::new(ROUNDS_MAX)), waiting: Mutex::default() }
    }
}

impl Places {
    /// A place, or none if a newer message waits for one.
    async fn place(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(place) = Arc::clone(&self.free).try_acquire_owned() {
            return Some(place);
        }
        let (waiting, newer) = oneshot::channel();
        *self.waiting.lock() = Some(waiting);
        tokio::select! {
            biased;
            place = Arc::clone(&self.free).acquire_owned() => place.ok(),
            _ = newer => None,
        }
    }
}

/// How long to wait for a node to say which one it is.
const INTRODUCTION: Duration = Duration::from_secs(1);
/// How long to wait for one to keep the number of its cluster, which is a sync.
const JOINING: Duration = Duration::from_secs(5);

/// What a node says of itself.
#[derive(Deserialize)]
pub struct Introduction {
    pub id: u64,
    last_log_index: Option<u64>,
    vote: Vote<u64>,
    /// Of its Raft, which takes no message any more when it has ended.
    running_state: Result<(), IgnoredAny>,
    /// Not said by programs from before clusters had numbers; by others `None` if it is of none that has one.
    #[serde(default, deserialize_with = "said")]
    cluster: Option<Option<String>>,
}

/// What is there, be it null.
fn said<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(from).map(Some)
}

impl Introduction {
    /// Why it may not join a cluster: only if it has nothing, or is of that one, and will have its number.
    pub fn refusal(&self, cluster: Option<u64>) -> Option<&'static str> {
        let may_join = match &self.cluster {
            None if cluster.is_some() => {
                return Some(
                    "runs a program from before clusters had numbers, as this one has: upgrade it first",
                );
            }
            None | Some(None) => self.is_new(),
            Some(Some(own)) => cluster.is_some_and(|cluster| identity::text(cluster) == *own),
        };
        (!may_join).then_some("has a log of another cluster, or a vote: let it join with an empty directory")
    }

    fn is_new(&self) -> bool {
        self.last_log_index.is_none() && self.vote == Vote::default()
    }

    /// Whether its Raft runs.
    pub fn runs(&self) -> bool {
        self.running_state.is_ok()
    }

    /// Whether it is not what a member was: it has the number of the cluster before it is one.
    pub fn is_lost(&self, cluster: Option<u64>) -> bool {
        match cluster {
            Some(cluster) => self.cluster != Some(Some(identity::text(cluster))),
            None => self.is_new(),
        }
    }
}

impl Network {
    /// The node at an address, if one answers.
    pub async fn node_at(&self, address: &str) -> Option<Introduction> {
        let get = self.client.get(format!("{}://{address}/status", self.scheme)).timeout(INTRODUCTION);
        self.with_token(get).send().await.ok()?.json().await.ok()
    }

    /// Asks a node to be of a cluster from now on. Otherwise returns why it is not.
    pub async fn join(&self, address: &str, id: u64, cluster: u64) -> Result<(), String> {
        let (scheme, cluster) = (self.scheme, identity::text(cluster));
        let url = format!("{scheme}://{address}/cluster/join?to={id}&cluster={cluster}");
        let asked = self.with_token(self.client.post(url).timeout(JOINING)).send().await;
        let answer = asked.map_err(|error| format!("has not said that it joins: {error}"))?;
        let status = answer.status();
        if status.is_success() {
            return Ok(());
        }
        Err(format!("does not join: {status} {}", answer.text().await.unwrap_or_default()))
    }

    fn with_token(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }
}

/// Reaches one of them.
pub struct Peer {
    network: Network,
    id: u64,
    address: String,
    /// Whether it was used before. For each round of reads openraft makes another, and asks once by it.
    is_used: bool,
    /// Snapshots that it could not receive.
    attempts: Attempts,
}

impl RaftNetworkFactory<KvBatchConfig> for Network {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, node: &BasicNode) -> Peer {
        Peer {
            network: self.clone(),
            id: target,
            address: node.addr.clone(),
            is_used: false,
            attempts: Attempts::default(),
        }
    }
}

type Answer<T, E = openraft::error::Infallible> = Result<T, RPCError<u64, BasicNode, RaftError<u64, E>>>;

impl Peer {
    /// Those for messages of rounds of reads to this node.
    fn places(&self) -> Arc<Places> {
        Arc::clone(self.network.rounds.lock().entry(self.id).or_default())
    }

    async fn call<Q, A, E>(&self, path: &str, request: &Q, time: Duration) -> Answer<A, E>
    where
        Q: Serialize,
        A: DeserializeOwned,
        E: std::error::Error + DeserializeOwned,
    {
        let Network { client, scheme, faults, identity, .. } = &self.network;
        let lost = |what| {
            RPCError::Unreachable(Unreachable::new(&AnyError::error(format!(
                "{what}: it is to be lost, for a test"
            ))))
        };
        tokio::time::sleep(Duration::from_millis(faults.delay())).await;
        if faults.loses_request_to(self.id) {
            return Err(lost("the request"));
        }
        let network = |error: &(dyn std::error::Error + 'static)| {
            RPCError::Network(NetworkError::new(&AnyError::error(error)))
        };
        // Asked again after a pause: see `backoff`.
        let unreachable = |error: &(dyn std::error::Error + 'static)| {
            RPCError::Unreachable(Unreachable::new(&AnyError::error(error)))
        };
        let body = postcard::to_allocvec(request).map_err(|error| unreachable(&error))?;
        let mut url = format!("{scheme}://{}{path}?to={}", self.address, self.id);
        if let Some(cluster) = identity.cluster() {
            url += &format!("&cluster={}", identity::text(cluster));
        }
        let post = self.network.with_token(client.post(url).timeout(time).body(body));
        let answer = async { post.send().await?.error_for_status()?.bytes().await };
        let answer = answer.await.map_err(|error| {
            // What took its time may be asked again at once. Whoever is refused at once would ask as fast as it can.
            let is_late = error.is_timeout() && !error.is_connect();
            if is_late { network(&error) } else { unreachable(&error) }
        })?;
        if faults.loses_answer_of(self.id) {
            return Err(lost("the answer"));
        }
        let answer: Result<A, RaftError<u64, E>> =
            postcard::from_bytes(&answer).map_err(|error| unreachable(&error))?;
        answer.map_err(|error| RPCError::RemoteError(RemoteError::new(self.id, error)))
    }
}

impl RaftNetwork<KvBatchConfig> for Peer {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<KvBatchConfig>,
        option: RPCOption,
    ) -> Answer<AppendEntriesResponse<u64>> {
        let is_of_a_round = !std::mem::replace(&mut self.is_used, true) && request.entries.is_empty();
        let refused = || {
            let reason =
                AnyError::error("earlier rounds of reads are not answered yet, and a later one began");
            Unreachable::new(&reason)
        };
        let _place = match is_of_a_round {
            true => Some(self.places().place().await.ok_or_else(refused)?),
            false => None,
        };
        self.call("/raft/append", &request, option.hard_ttl()).await
    }

    async fn install_snapshot(
        &mut self,
        request: InstallSnapshotRequest<KvBatchConfig>,
        option: RPCOption,
    ) -> Answer<InstallSnapshotResponse<u64>, InstallSnapshotError> {
        if request.offset == 0 {
            tokio::time::sleep(self.attempts.pause()).await;
            self.attempts.note_begin(Instant::now());
        }
        let answer = self.call("/raft/snapshot", &request, option.hard_ttl()).await;
        if let Err(RPCError::RemoteError(RemoteError { source: RaftError::Fatal(fatal), .. })) = &answer {
            let pause = self.attempts.note_failure(Instant::now());
            tracing::warn!(
                "node {} cannot receive a snapshot, and is sent it again in {pause:?}: {fatal}",
                self.id
            );
        }
        answer
    }

    async fn vote(&mut self, request: VoteRequest<u64>, option: RPCOption) -> Answer<VoteResponse<u64>> {
        self.call("/raft/vote", &request, option.hard_ttl()).await
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(Duration::from_millis(200)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sapwood::Database;
    use tempfile::TempDir;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::task::JoinHandle;

    #[test]
    fn nodes_join_that_have_nothing_and_will_have_the_number() {
        let vote = r#""vote":{"leader_id":{"term":0,"node_id":0},"committed":false}"#;
        let introduced = |log: &str, cluster: &str| -> Introduction {
            let text = format!(
                "{{\"id\":4,\"running_state\":{{\"Ok\":null}},\"last_log_index\":{log},{vote}{cluster}}}"
            );
            serde_json::from_str(&text).expect("it says so")
        };
        let refusal = |log: &str, cluster: &str, of| introduced(log, cluster).refusal(of);
        let (numbered, other) = (r#","cluster":"0000000000000007""#, r#","cluster":"0000000000000008""#);
        // A program from before.
        assert_eq!(refusal("null", "", None), None);
        assert!(refusal("3", "", None).is_some_and(|reason| reason.contains("empty")));
        for log in ["null", "3"] {
            assert!(refusal(log, "", Some(7)).is_some_and(|reason| reason.contains("upgrade")), "{log}");
        }
        for of in [None, Some(7)] {
            assert_eq!(refusal("null", r#","cluster":null"#, of), None);
            assert!(refusal("3", r#","cluster":null"#, of).is_some());
            assert!(refusal("null", other, of).is_some());
        }
        assert_eq!(refusal("3", numbered, Some(7)), None);
        assert!(refusal("3", numbered, None).is_some());
        // Of a member that was asked to join and was sent nothing yet, and of one that was, and lost it.
        let is_lost = |log: &str, cluster: &str, of| introduced(log, cluster).is_lost(of);
        assert!(!is_lost("null", numbered, Some(7)) && !is_lost("3", numbered, Some(7)));
        assert!(is_lost("null", r#","cluster":null"#, Some(7)) && is_lost("3", other, Some(7)));
        assert!(is_lost("null", "", None) && !is_lost("3", "", None));
    }

    /// A network with its database, and a listener in the place of a node.
    async fn network() -> ((Database, TempDir), Network, TcpListener, BasicNode) {
        _ = rustls::crypto::ring::default_provider().install_default();
        let dir = tempfile::tempdir().expect("a directory");
        let db = Database::open(dir.path().join("node.db")).expect("opens");
        let network = Network {
            client: reqwest::Client::builder().tls_certs_only([]).build().expect("a client"),
            scheme: "http",
            token: None,
            faults: Arc::default(),
            identity: Arc::new(Identity::open(&db).expect("opens")),
            rounds: Arc::default(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let node = BasicNode::new(listener.local_addr().expect("an address"));
        ((db, dir), network, listener, node)
    }

    /// A message of a round of reads, or of replication, which has used its peer before.
    fn ask(
        network: &Network,
        node: &BasicNode,
        is_used: bool,
        target: u64,
    ) -> JoinHandle<Answer<AppendEntriesResponse<u64>>> {
        let message = AppendEntriesRequest::<KvBatchConfig> {
            vote: Vote::new_committed(1, 1),
            prev_log_id: None,
            entries: Vec::new(),
            leader_commit: None,
        };
        // They end with the test, of which nothing depends on how long it takes.
        let option = RPCOption::new(Duration::from_secs(600));
        let (mut network, node) = (network.clone(), node.clone());
        tokio::spawn(async move {
            let mut peer = network.new_client(target, &node).await;
            peer.is_used = is_used;
            peer.append_entries(message, option).await
        })
    }

    /// Lets all others do what they can without an answer. There is one thread.
    async fn others() {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    /// Each took a connection for a heartbeat, a thousand a second: the leader had no file descriptor left, and stopped.
    #[tokio::test]
    async fn a_silent_node_takes_few_connections_of_rounds_of_reads() {
        let (_db, network, listener, node) = network().await;
        let ask = |is_used, target| ask(&network, &node, is_used, target);
        let (mut rounds, mut silent) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS_MAX {
            rounds.push(ask(false, 2));
            silent.push(listener.accept().await.expect("it connects"));
        }
        // One waits, until there is a newer one.
        let waits = ask(false, 2);
        others().await;
        assert!(!waits.is_finished());
        let newer = ask(false, 2);
        others().await;
        assert!(waits.is_finished(), "both wait, or there is no bound");
        let refused = waits.await.expect("no panic").expect_err("there is no place");
        assert!(matches!(refused, RPCError::Unreachable(_)), "{refused}");
        // Another node, and replication, which asks again by the same.
        for (is_used, target) in [(false, 3), (true, 2)] {
            rounds.push(ask(is_used, target));
            silent.push(listener.accept().await.expect("it connects"));
        }
        // One that is given up gives its place back.
        assert!(rounds.iter().all(|round| !round.is_finished()) && !newer.is_finished());
        rounds[0].abort();
        assert!((&mut rounds[0]).await.is_err_and(|error| error.is_cancelled()));
        silent.push(listener.accept().await.expect("it connects"));
        assert!(!newer.is_finished());
    }

    /// It was refused at once: an error in the log for each round, and for reads where another node had just gone.
    #[tokio::test]
    async fn a_round_of_reads_waits_for_a_node_that_is_slow() {
        let (_db, network, listener, node) = network().await;
        let (mut rounds, mut slow) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS_MAX {
            rounds.push(ask(&network, &node, false, 2));
            slow.push(listener.accept().await.expect("it connects").0);
        }
        rounds.push(ask(&network, &node, false, 2));
        others().await;
        assert!(rounds.iter().all(|round| !round.is_finished()));
        let success: Result<_, RaftError<u64>> = Ok(AppendEntriesResponse::<u64>::Success);
        let success = postcard::to_allocvec(&success).expect("is encoded");
        let head =
            format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", success.len());
        let success = [head.into_bytes(), success].concat();
        for place in 0..=ROUNDS_MAX {
            let mut stream = match slow.pop() {
                Some(stream) => stream,
                None => listener.accept().await.expect("it connects").0,
            };
            assert!(stream.read(&mut [0; 4096]).await.expect("reads") > 0, "{place}");
            stream.write_all(&success).await.expect("sends");
        }
        for round in rounds {
            round.await.expect("no panic").expect("is answered");
        }
    }

    /// openraft repeats at once what is not [`Unreachable`].
    #[tokio::test]
    async fn what_is_refused_at_once_is_asked_again_after_a_pause() {
        let (_db, network, listener, node) = network().await;
        let peer = Peer { network, id: 2, address: node.addr, is_used: false, attempts: Attempts::default() };
        let vote = VoteRequest::new(Vote::new(1, 1), None);
        let ask = async |answer: Option<&str>| {
            let answering = async {
                let (mut stream, _) = listener.accept().await.expect("it connects");
                let Some(answer) = answer else { return };
                _ = stream.read(&mut [0; 1000]).await;
                stream.write_all(answer.as_bytes()).await.expect("sends");
                if answer.is_empty() {
                    tokio::time::sleep(Duration::from_secs(2)).await;
                }
            };
            let time = Duration::from_secs(1);
            let asking =
                peer.call::<_, VoteResponse<u64>, openraft::error::Infallible>("/raft/vote", &vote, time);
            tokio::join!(asking, answering).0.expect_err("it is no answer")
        };
        let nonsense = "HTTP/1.1 200 OK\r\ncontent-length: 1\r\nconnection: close\r\n\r\n\u{7f}";
        let full = "HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        for answer in [None, Some(full), Some(nonsense)] {
            let error = ask(answer).await;
            assert!(matches!(error, RPCError::Unreachable(_)), "{answer:?}: {error}");
        }
        let error = ask(Some("")).await;
        assert!(matches!(error, RPCError::Network(_)), "{error}");
    }
}
