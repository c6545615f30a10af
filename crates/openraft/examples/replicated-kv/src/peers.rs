//! What other nodes say to this one: openraft's messages.

use crate::node::Node;
use crate::server::Failure;
use axum::extract::State;
use bytes::Bytes;
use openraft::raft::{AppendEntriesRequest, InstallSnapshotRequest, VoteRequest};
use sapwood_openraft::KvBatchConfig;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Instant;

type Answer = Result<Vec<u8>, Failure>;

fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, Failure> {
    postcard::from_bytes(body).map_err(|error| Failure::bad(format!("a message of openraft: {error}")))
}

fn encode<T: Serialize>(answer: &T) -> Answer {
    postcard::to_allocvec(answer).map_err(|error| Failure::broken(error.to_string()))
}

pub async fn append(State(node): State<Arc<Node>>, body: Bytes) -> Answer {
    let request: AppendEntriesRequest<KvBatchConfig> = decode(&body)?;
    let (came, committed) = (Instant::now(), request.leader_commit);
    let answer = node.raft.append_entries(request).await;
    if matches!(answer, Ok(openraft::raft::AppendEntriesResponse::Success)) {
        *node.heard.lock() = Some((came, committed));
    }
    encode(&answer)
}

pub async fn snapshot(State(node): State<Arc<Node>>, body: Bytes) -> Answer {
    let request: InstallSnapshotRequest<KvBatchConfig> = decode(&body)?;
    encode(&node.raft.install_snapshot(request).await)
}

pub async fn vote(State(node): State<Arc<Node>>, body: Bytes) -> Answer {
    let request: VoteRequest<u64> = decode(&body)?;
    encode(&node.raft.vote(request).await)
}
