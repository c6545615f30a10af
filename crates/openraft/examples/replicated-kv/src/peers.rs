//! What other nodes say to this one: openraft's messages.
//!
//! Invariant: a message that is for another node, or of another cluster, changes nothing here. This node votes for itself alone, also at an address that was another's.

use crate::identity::is_new;
use crate::node::Node;
use crate::server::Failure;
use axum::extract::{Query, Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use openraft::raft::{AppendEntriesRequest, InstallSnapshotRequest, VoteRequest};
use sapwood_openraft::KvBatchConfig;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Instant;

#[derive(Debug, Deserialize)]
pub struct Receiver {
    /// Nothing: of a program from before messages said so, which runs as long as a cluster is upgraded.
    to: Option<u64>,
    /// Nothing: of such a program as well, or of a cluster that began with one. Not taken by a node of a cluster that has a number: all its members have it
    /// before they first send anything.
    cluster: Option<String>,
}

/// Lets messages for this node pass.
pub async fn receive(
    State(node): State<Arc<Node>>,
    Query(Receiver { to, cluster }): Query<Receiver>,
    message: Request,
    next: Next,
) -> Response {
    let id = node.arguments.id;
    if let Some(to) = to.filter(|to| *to != id) {
        return misdirected(format!("a message for node {to}: this is node {id}"));
    }
    let is_of = match &cluster {
        Some(cluster) => is_of(&node, cluster).await,
        None => Ok(node.network.identity.cluster().is_none()),
    };
    match is_of {
        Ok(true) => next.run(message).await,
        Ok(false) => {
            let of =
                cluster.map_or("a cluster without a number".into(), |cluster| format!("cluster {cluster}"));
            misdirected(format!("a message of {of}: node {id} is of another one"))
        }
        Err(failure) => failure.into_response(),
    }
}

fn misdirected(reason: String) -> Response {
    Failure::new(StatusCode::MISDIRECTED_REQUEST, reason).into_response()
}

/// Whether this node is of a cluster. If it has nothing it is from now on.
async fn is_of(node: &Arc<Node>, cluster: &str) -> Result<bool, Failure> {
    let cluster = u64::from_str_radix(cluster, 16)
        .map_err(|error| Failure::bad(format!("cluster={cluster}: {error}")))?;
    let identity = Arc::clone(&node.network.identity);
    if let Some(is_of) = identity.is_of(cluster) {
        return Ok(is_of);
    }
    if !is_new(&node.raft.metrics().borrow()) {
        // It is of a cluster from before they had numbers.
        return Ok(false);
    }
    let joined = tokio::task::spawn_blocking(move || identity.join(cluster)).await;
    joined.map_err(Failure::broken)?.map_err(Failure::broken)
}

type Answer = Result<Vec<u8>, Failure>;

/// Takes the body, which is not needed any more while what is in it waits.
fn decode<T: DeserializeOwned>(body: Bytes) -> Result<T, Failure> {
    postcard::from_bytes(&body).map_err(|error| Failure::bad(format!("a message of openraft: {error}")))
}

fn encode<T: Serialize>(answer: &T) -> Answer {
    postcard::to_allocvec(answer).map_err(|error| Failure::broken(error.to_string()))
}

pub async fn append(State(node): State<Arc<Node>>, body: Bytes) -> Answer {
    let request: AppendEntriesRequest<KvBatchConfig> = decode(body)?;
    let (came, committed) = (Instant::now(), request.leader_commit);
    let answer = node.raft.append_entries(request).await;
    if matches!(answer, Ok(openraft::raft::AppendEntriesResponse::Success)) {
        *node.heard.lock() = Some((came, committed));
    }
    encode(&answer)
}

pub async fn snapshot(State(node): State<Arc<Node>>, body: Bytes) -> Answer {
    let request: InstallSnapshotRequest<KvBatchConfig> = decode(body)?;
    encode(&node.raft.install_snapshot(request).await)
}

pub async fn vote(State(node): State<Arc<Node>>, body: Bytes) -> Answer {
    let request: VoteRequest<u64> = decode(body)?;
    encode(&node.raft.vote(request).await)
}
