//! What other nodes say to this one: openraft's messages.
//!
//! Invariant: a message that is for another node, or of another cluster, changes nothing here. This node votes for itself alone, also at an address that was another's,
//! and not as the member that it was before its directory was lost.

use crate::age::is_of_leader;
use crate::identity::{self, is_new};
use crate::node::{Node, end};
use crate::server::Failure;
use axum::extract::{Query, Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use openraft::error::{Fatal, RaftError};
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
    let (is_last, vote) = (request.done, request.vote);
    let answer = node.raft.install_snapshot(request).await;
    match &answer {
        // Otherwise the leader is none any more, and nothing was taken.
        Ok(answer) if is_last && answer.vote == vote => node.receiving.note_whole(),
        // Of a piece that cannot be written nobody else is told. A node that has stopped answers everything with why it has.
        Err(RaftError::Fatal(Fatal::StorageError(error))) if end(&node.raft.metrics()).is_none() => {
            node.receiving.note_failure(error)
        }
        _ => {}
    }
    encode(&answer)
}

pub async fn vote(State(node): State<Arc<Node>>, body: Bytes) -> Answer {
    let request: VoteRequest<u64> = decode(body)?;
    encode(&node.raft.vote(request).await)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Arguments;
    use crate::cluster;
    use clap::Parser;
    use openraft::{CommittedLeaderId, LogId, SnapshotMeta, Vote};

    /// Only the sender was told: an alarm for a full disk did not ring, while the whole was sent again and again.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_snapshot_that_cannot_be_written_is_told_here() {
        _ = rustls::crypto::ring::default_provider().install_default();
        let dir = tempfile::tempdir().expect("a directory");
        let key = dir.path().join("key");
        std::fs::write(&key, "07".repeat(32)).expect("writes");
        let arguments = [
            ("--id", "3".to_owned()),
            ("--listen", "127.0.0.1:1".to_owned()),
            ("--dir", dir.path().join("node").display().to_string()),
            ("--key-file", key.display().to_string()),
        ];
        let arguments = arguments.into_iter().flat_map(|(name, value)| [name.to_owned(), value]);
        let arguments =
            Arguments::try_parse_from(std::iter::once("sapwood-node".to_owned()).chain(arguments));
        let node = Node::start(arguments.expect("they are right")).await.expect("starts");
        let piece = |term, offset, done| InstallSnapshotRequest::<KvBatchConfig> {
            vote: Vote::new_committed(term, 1),
            meta: SnapshotMeta {
                last_log_id: Some(LogId::new(CommittedLeaderId::new(1, 1), 9)),
                last_membership: openraft::StoredMembership::default(),
                snapshot_id: format!("9-{term}"),
            },
            offset,
            data: vec![7; 1000],
            done,
        };
        let send_as = async |term, offset, done| {
            let body = postcard::to_allocvec(&piece(term, offset, done)).expect("is encoded");
            let answer = snapshot(State(Arc::clone(&node)), body.into()).await.expect("an answer");
            // A `Result` begins with its kind.
            answer.first() == Some(&0)
        };
        let send = async |offset| send_as(1, offset, false).await;
        let said = async || {
            let status = cluster::status(State(Arc::clone(&node))).await.expect("it answers").0;
            let metrics = cluster::metrics(State(Arc::clone(&node))).await.expect("it answers");
            let metric = |name: &str| {
                let line = metrics.lines().find(|line| line.starts_with(&format!("sapwood_raft_{name} ")));
                line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
            };
            let why = status["snapshot_not_received"].as_str().map(str::to_owned);
            (why, metric("can_receive"), metric("receive_failures"), metric("is_running"))
        };
        assert!(send(0).await);
        assert_eq!(said().await, (None, Some(1), Some(0), Some(1)));
        // An encrypted file has no holes. The error of a write is told by the next call.
        let mut is_refused = false;
        for offset in [400_000, 401_000] {
            is_refused |= !send(offset).await;
        }
        assert!(is_refused);
        let (why, can_receive, failures, is_running) = said().await;
        assert!(why.as_ref().is_some_and(|why| why.contains("hole")), "{why:?}");
        assert_eq!((can_receive, failures, is_running), (Some(0), Some(1), Some(1)));
        // From its beginning it is taken.
        assert!(send(0).await && send(1000).await);
        // The last piece of one who leads no more is answered with the newer vote, and not taken.
        let vote = VoteRequest { vote: Vote::new(5, 2), last_log_id: None };
        assert!(node.raft.vote(vote).await.expect("an answer").vote_granted);
        assert!(send_as(1, 2000, true).await);
        assert_eq!(said().await.1, Some(0));
        node.receiving.note_whole();
        assert_eq!(said().await, (None, Some(1), Some(1), Some(1)));
        // A node that has stopped is another matter, however often the leader goes on asking.
        std::fs::remove_dir_all(dir.path().join("node/snapshots")).expect("is removed");
        assert!(!send_as(6, 0, false).await);
        while end(&node.raft.metrics()).is_none() {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        let (.., failures, is_running) = said().await;
        assert_eq!(is_running, Some(0));
        assert!(!send_as(6, 0, false).await && !send_as(6, 0, false).await);
        assert_eq!(said().await.2, failures);
        _ = node.raft.shutdown().await;
    }
}
