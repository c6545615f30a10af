//! What this node says to others: openraft's messages as HTTP requests, encoded by postcard.
//!
//! An answer is a `Result` of openraft, also with status 200; any other status is an error of the network. A message says for whom it is: addresses
//! are mistyped, and go to other nodes, and who votes must be who is asked. It says of which cluster it is as well: see [`identity`](crate::identity).

use crate::faults::Faults;
use crate::identity::{self, Identity};
use openraft::error::{InstallSnapshotError, NetworkError, RPCError, RaftError, RemoteError, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use openraft::{AnyError, BasicNode, Vote};
use reqwest::StatusCode;
use sapwood_openraft::KvBatchConfig;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// Reaches the other nodes.
#[derive(Clone)]
pub struct Network {
    pub client: reqwest::Client,
    /// `http` or `https`.
    pub scheme: &'static str,
    pub token: Option<Arc<str>>,
    pub faults: Arc<Faults>,
    pub identity: Arc<Identity>,
}

/// How long to wait for a node to say which one it is.
const INTRODUCTION: Duration = Duration::from_secs(1);

/// What a node says of itself.
#[derive(Deserialize)]
pub struct Introduction {
    pub id: u64,
    last_log_index: Option<u64>,
    vote: Vote<u64>,
    /// Not said by programs from before clusters had numbers.
    #[serde(default)]
    cluster: Option<String>,
}

impl Introduction {
    /// Whether it has nothing, or is of that cluster.
    pub fn may_join(&self, cluster: Option<u64>) -> bool {
        match &self.cluster {
            None => self.last_log_index.is_none() && self.vote == Vote::default(),
            Some(own) => cluster.is_some_and(|cluster| identity::text(cluster) == *own),
        }
    }
}

impl Network {
    /// The node at an address, if one answers.
    pub async fn node_at(&self, address: &str) -> Option<Introduction> {
        let mut get = self.client.get(format!("{}://{address}/status", self.scheme)).timeout(INTRODUCTION);
        if let Some(token) = &self.token {
            get = get.bearer_auth(token);
        }
        get.send().await.ok()?.json().await.ok()
    }
}

/// Reaches one of them.
pub struct Peer {
    network: Network,
    id: u64,
    address: String,
}

impl RaftNetworkFactory<KvBatchConfig> for Network {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, node: &BasicNode) -> Peer {
        Peer { network: self.clone(), id: target, address: node.addr.clone() }
    }
}

type Answer<T, E = openraft::error::Infallible> = Result<T, RPCError<u64, BasicNode, RaftError<u64, E>>>;

impl Peer {
    async fn call<Q, A, E>(&self, path: &str, request: &Q, time: Duration) -> Answer<A, E>
    where
        Q: Serialize,
        A: DeserializeOwned,
        E: std::error::Error + DeserializeOwned,
    {
        let Network { client, scheme, token, faults, identity } = &self.network;
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
        let body = postcard::to_allocvec(request).map_err(|error| network(&error))?;
        let mut url = format!("{scheme}://{}{path}?to={}", self.address, self.id);
        if let Some(cluster) = identity.cluster() {
            url += &format!("&cluster={}", identity::text(cluster));
        }
        let mut post = client.post(url).timeout(time).body(body);
        if let Some(token) = token {
            post = post.bearer_auth(token);
        }
        let answer = async { post.send().await?.error_for_status()?.bytes().await };
        let answer = answer.await.map_err(|error| {
            // Another node is there. It will not be this one soon either.
            let is_other = error.status() == Some(StatusCode::MISDIRECTED_REQUEST);
            if error.is_connect() || is_other {
                RPCError::Unreachable(Unreachable::new(&error))
            } else {
                network(&error)
            }
        })?;
        if faults.loses_answer_of(self.id) {
            return Err(lost("the answer"));
        }
        let answer: Result<A, RaftError<u64, E>> =
            postcard::from_bytes(&answer).map_err(|error| network(&error))?;
        answer.map_err(|error| RPCError::RemoteError(RemoteError::new(self.id, error)))
    }
}

impl RaftNetwork<KvBatchConfig> for Peer {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<KvBatchConfig>,
        option: RPCOption,
    ) -> Answer<AppendEntriesResponse<u64>> {
        self.call("/raft/append", &request, option.hard_ttl()).await
    }

    async fn install_snapshot(
        &mut self,
        request: InstallSnapshotRequest<KvBatchConfig>,
        option: RPCOption,
    ) -> Answer<InstallSnapshotResponse<u64>, InstallSnapshotError> {
        self.call("/raft/snapshot", &request, option.hard_ttl()).await
    }

    async fn vote(&mut self, request: VoteRequest<u64>, option: RPCOption) -> Answer<VoteResponse<u64>> {
        self.call("/raft/vote", &request, option.hard_ttl()).await
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(Duration::from_millis(200)))
    }
}
