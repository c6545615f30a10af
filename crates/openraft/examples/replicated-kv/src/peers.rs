//! What other nodes say to this one: openraft's messages.
//!
//! Invariant: a message that is for another node, or of another cluster, changes nothing here. This node votes for itself alone, also at an address that was another's,
//! and not as the member that it was before its directory was lost.

use crate::age::is_of_leader;
use crate::identity::{self, is_new};
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
    if cluster != node.network.identity.cluster().map(identity::text) {
        let of = cluster.map_or("a cluster without a number".into(), |cluster| format!("cluster {cluster}"));
        return misdirected(format!("a message of {of}: node {id} is not of it"));
    }
    next.run(message).await
}

fn misdirected(reason: String) -> Response {
    Failure::new(StatusCode::MISDIRECTED_REQUEST, reason).into_response()
}

#[derive(Debug, Deserialize)]
pub struct Joining {
    to: u64,
    cluster: String,
}

/// A leader will make this node a member: from now on it is of that cluster. The leader may say so again.
pub async fn join(
    State(node): State<Arc<Node>>,
    Query(Joining { to, cluster }): Query<Joining>,
) -> Result<(), Failure> {
    let id = node.arguments.id;
    if to != id {
        return Err(Failure::new(
            StatusCode::MISDIRECTED_REQUEST,
            format!("this node is {id}, and not {to}"),
        ));
    }
    let number = u64::from_str_radix(&cluster, 16)
        .map_err(|error| Failure::bad(format!("cluster={cluster}: {error}")))?;
    let identity = Arc::clone(&node.network.identity);
    // It may be of a cluster from before they had numbers.
    let may_join = identity.cluster().is_some() || is_new(&node.raft.metrics().borrow());
    let joined = tokio::task::spawn_blocking(move || Ok(may_join && identity.join(number)?)).await;
    if joined.map_err(Failure::broken)?.map_err(|error: anyhow::Error| Failure::broken(error))? {
        return Ok(());
    }
    Err(Failure::new(StatusCode::CONFLICT, format!("node {id} is of another cluster than {cluster}")))
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
    let knows_committed = is_of_leader(committed, &request.vote);
    let answer = node.raft.append_entries(request).await;
    if knows_committed && matches!(answer, Ok(openraft::raft::AppendEntriesResponse::Success)) {
        node.heard.note(came, committed);
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
