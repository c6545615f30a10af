//! Reading and writing records.
//!
//! | request | what it does |
//! |---|---|
//! | `GET /records/{key}` | the newest value: the leader asks a majority first (read index). Other nodes answer 307 |
//! | `GET /records/{key}?read=own` | the value in this node's state, and how old that is |
//! | `GET /records?from=&to=&limit=` | lines of key, version and value, escaped; `read=own` as above. If there are more, the header `sapwood-next`, of 30 KiB at most, is the `from` to go on with |
//! | `PUT /records/{key}` | writes the body, to a key of 10 KiB at most; `?if-version=7` only if it has that version (0: is not there) |
//! | `DELETE /records/{key}` | likewise |
//! | `POST /commands` | a `KvCommand` as JSON, with `content-type: application/json`. Its keys are as long at most |
//!
//! Answers of writes:
//!
//! | status | what happened |
//! |---|---|
//! | 200 of `PUT`, `DELETE` | it took effect, and is durable on a majority; its version is in `sapwood-version` |
//! | 200 of `POST /commands` | what the `KvAnswer` says, as JSON: `Done`, with the version, is as above; **`Outdated` and `Refused`: nothing**, a condition does not hold |
//! | 400, 401, 412, 413 | nothing: it cannot be, may not be, the condition of a `PUT` or `DELETE` does not hold, it is too large |
//! | 404, 405, 414, 415, 422 | nothing: there is no such address (a key is not empty), it is asked in another way, it is too long; the body is not said to be JSON, it is no command |
//! | 307, 421 | nothing: another node is the leader; or no leader is known, try again |
//! | 408, 429 | nothing: its body came too slowly; there are too many at once, also of connections or long answers: try again |
//! | 500 | nothing: this node has stopped |
//! | 503, 504 | **unknown**: it may have happened, or may still. Repeat it only with a condition on the version that was read, other than 0, of a record that it writes |

use crate::age::is_of_leader;
use crate::node::{Node, end};
use crate::server::Failure;
use axum::Json;
use axum::extract::{Path, Query, RawQuery, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use bytes::Bytes;
use openraft::error::{CheckIsLeaderError, ClientWriteError, RaftError};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use sapwood_openraft::{KvAnswer, KvCommand, KvCondition, KvValue, KvWrite};
use serde::Deserialize;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a command, at most. It is the same on all nodes, whatever their memory: what one lets in, all
/// have to append and apply.
pub const COMMAND_MAX: usize = KvCommand::BYTES_MAX;
/// Bytes of the commands that share an entry, at most, or it has one command: as many as one message of entries has.
pub const SHARED_MAX: usize = 256 << 10;
/// Bytes of a key that is written, at most. Escaped, it is three times as long in the address of a scan that goes on behind it, which may end
/// at another one, and an address has 65,534 bytes at most (crate `http`).
const KEY_MAX: usize = 10 << 10;
/// Bytes of keys and values in the answer to a scan; it ends with the record that makes them so many, and is up to four times as long, since it is
/// escaped.
const SCAN_BYTES: usize = 1 << 20;
/// Scans that are made at once, at most; others wait. The answer to each has some MiB before its length is known, and two are as fast as the processor.
pub const SCANS_MAX: usize = 8;
const VERSION: HeaderName = HeaderName::from_static("sapwood-version");
/// How long a request may wait for a majority.
pub const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reading {
    /// `own`: of this node's state.
    read: Option<String>,
    /// These two may be no text: see [`parameter`].
    #[expect(dead_code, reason = "it says that they are parameters")]
    from: Option<String>,
    #[expect(dead_code, reason = "it says that they are parameters")]
    to: Option<String>,
    limit: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Writing {
    #[serde(rename = "if-version")]
    if_version: Option<u64>,
}

/// Returns once a majority has confirmed that this node leads, and it has applied what was committed before.
pub async fn confirm(node: &Node) -> Result<(), Failure> {
    let confirmed = tokio::time::timeout(PATIENCE, node.reads.confirm()).await;
    match confirmed.map_err(|_| Failure::unknown("no majority has answered"))? {
        Ok(()) => Ok(()),
        Err(RaftError::APIError(CheckIsLeaderError::ForwardToLeader(to))) => {
            Err(Failure::elsewhere(node, to.leader_node.map(|leader| leader.addr)))
        }
        Err(RaftError::APIError(CheckIsLeaderError::QuorumNotEnough(error))) => Err(Failure::unknown(error)),
        Err(RaftError::Fatal(error)) => Err(Failure::broken(error)),
    }
}

/// Returns once this node's state is new enough for the reader.
async fn wait_to_read(node: &Node, reading: &Reading) -> Result<(), Failure> {
    match reading.read.as_deref() {
        None if node.arguments.wrong_reads => Ok(()),
        None => confirm(node).await,
        Some("own") => Ok(()),
        Some(other) => Err(Failure::bad(format!("read={other}: it may be own"))),
    }
}

/// What is to be said of the age of this node's state. To be asked right before it is read, and behind all that may wait.
fn age(node: &Node, reading: &Reading) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let (applied, leader, confirmed) = {
        let metrics = node.raft.metrics();
        let is_running = end(&metrics).is_none();
        let metrics = metrics.borrow();
        // Of a node that has stopped it stays what it was. That a majority follows a new leader says nothing of a state which that leader has not brought up to date yet.
        let is_confirmed = metrics.millis_since_quorum_ack.is_some()
            && is_running
            && is_of_leader(metrics.last_applied, &metrics.vote);
        let confirmed = node.confirmed.age().filter(|_| is_confirmed);
        (metrics.last_applied, metrics.current_leader, confirmed)
    };
    let number = |number: u64| HeaderValue::from(number);
    headers.insert("sapwood-applied", number(applied.map_or(0, |applied| applied.index)));
    if reading.read.is_some() {
        // On the leader: since a majority has last confirmed it, or before that. Elsewhere: since the leader that this node follows said what is committed,
        // and all of that is applied; what a new leader says before it knows that does not count. A leader that was deposed and does not know yet says what it knows: this is no bound then.
        let age = if leader == Some(node.arguments.id) {
            confirmed
        } else {
            let heard = node.heard.newest(applied);
            heard.map(|when| u64::try_from(when.elapsed().as_millis()).unwrap_or(u64::MAX))
        };
        let age = age.map_or(HeaderValue::from_static("unknown"), number);
        headers.insert("sapwood-age-ms", age);
    }
    headers
}

/// Runs what may wait for the device.
async fn blocking<T: Send + 'static>(
    f: impl FnOnce() -> sapwood_openraft::Result<T> + Send + 'static,
) -> Result<T, Failure> {
    let result = tokio::task::spawn_blocking(f).await.map_err(Failure::broken)?;
    result.map_err(Failure::broken)
}

pub async fn get(
    State(node): State<Arc<Node>>,
    Path(key): Path<String>,
    Query(reading): Query<Reading>,
) -> Result<(HeaderMap, Bytes), Failure> {
    wait_to_read(&node, &reading).await?;
    let (mut headers, state) = (age(&node, &reading), node.state.clone());
    let Some(KvValue { version, value }) = blocking(move || state.get(key)).await? else {
        return Err(Failure {
            headers: Box::new(headers),
            ..Failure::new(StatusCode::NOT_FOUND, "there is no such record")
        });
    };
    headers.insert(VERSION, version.into());
    Ok((headers, value))
}

pub async fn scan(
    State(node): State<Arc<Node>>,
    Query(reading): Query<Reading>,
    RawQuery(query): RawQuery,
) -> Result<(HeaderMap, String), Failure> {
    if reading.limit == Some(0) {
        return Err(Failure::bad("limit=0: it is 1 or more, or a scan would never go on"));
    }
    wait_to_read(&node, &reading).await?;
    let (state, limit) = (node.state.clone(), reading.limit.unwrap_or(1000).min(10_000));
    let bound = |name| parameter(query.as_deref().unwrap_or_default(), name);
    let (from, to) = (bound("from").unwrap_or_default(), bound("to"));
    let turn = tokio::time::timeout(PATIENCE, Arc::clone(&node.scans).acquire_owned()).await;
    let turn =
        turn.map_err(|_| Failure::new(StatusCode::TOO_MANY_REQUESTS, "too many scans at once: try again"))?;
    let mut headers = age(&node, &reading);
    let scanned = blocking(move || {
        // Also when nobody waits for it any more.
        let _turn = turn;
        let (records, is_more) = state.scan_part(from, to, limit, SCAN_BYTES)?;
        let mut lines = String::new();
        for (key, KvValue { version, value }) in &records {
            // A string takes all.
            _ = writeln!(lines, "{}\t{version}\t{}", key.escape_ascii(), value.escape_ascii());
        }
        let last = records
            .last()
            .filter(|_| is_more)
            .map(|(key, _)| format!("{}%00", percent_encode(key, NON_ALPHANUMERIC)));
        Ok((lines, last))
    });
    let (lines, next) = scanned.await?;
    if let Some(next) = next {
        headers.insert("sapwood-next", HeaderValue::try_from(next).map_err(Failure::broken)?);
    }
    Ok((headers, lines))
}

/// The bytes of a parameter of an address, which need not be text.
fn parameter(query: &str, name: &str) -> Option<Vec<u8>> {
    let decoded = |text: &str| percent_decode_str(&text.replace('+', " ")).collect::<Vec<u8>>();
    query.split('&').find_map(|pair| {
        let (found, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decoded(found) == name.as_bytes()).then(|| decoded(value))
    })
}

fn command(key: String, writing: &Writing, write: impl FnOnce(Bytes) -> KvWrite) -> KvCommand {
    let key = Bytes::from(key);
    let condition = |version| KvCondition::Version { key: key.clone(), version };
    KvCommand {
        conditions: writing.if_version.map(condition).into_iter().collect(),
        writes: vec![write(key)],
    }
}

pub async fn put(
    State(node): State<Arc<Node>>,
    Path(key): Path<String>,
    Query(writing): Query<Writing>,
    value: Bytes,
) -> Result<HeaderMap, Failure> {
    let put = command(key, &writing, |key| KvWrite::Put { key, value });
    version(write(&node, put).await?)
}

pub async fn delete(
    State(node): State<Arc<Node>>,
    Path(key): Path<String>,
    Query(writing): Query<Writing>,
) -> Result<HeaderMap, Failure> {
    let delete = command(key, &writing, |key| KvWrite::Delete { key });
    version(write(&node, delete).await?)
}

pub async fn run(
    State(node): State<Arc<Node>>,
    Json(command): Json<KvCommand>,
) -> Result<Json<KvAnswer>, Failure> {
    write(&node, command).await.map(Json)
}

fn version(answer: KvAnswer) -> Result<HeaderMap, Failure> {
    let headers = |version: u64| HeaderMap::from_iter([(VERSION, version.into())]);
    let found = match answer {
        KvAnswer::Done { version } => return Ok(headers(version)),
        KvAnswer::Outdated { version, .. } => version,
        KvAnswer::Refused { found, .. } => found.map_or(0, |found| found.version),
        KvAnswer::Nothing => return Err(Failure::broken("no answer to a command")),
    };
    let failure = Failure::new(StatusCode::PRECONDITION_FAILED, format!("it has version {found}"));
    Err(Failure { headers: Box::new(headers(found)), ..failure })
}

async fn write(node: &Node, command: KvCommand) -> Result<KvAnswer, Failure> {
    if let Some(reason) = command.refusal(COMMAND_MAX) {
        return Err(Failure::bad(reason));
    }
    let is_too_long = |write: &KvWrite| matches!(write, KvWrite::Put { key, .. } if key.len() > KEY_MAX);
    if command.writes.iter().any(is_too_long) {
        return Err(Failure::bad(format!("a key is longer than {KEY_MAX} bytes")));
    }
    // Before it is proposed: what was proposed and is answered so may happen all the same, by the log of another leader.
    let (leader, address) = {
        let metrics = node.raft.metrics();
        if let Some(end) = end(&metrics) {
            return Err(Failure::broken(format!("this node has stopped, and nothing has happened: {end}")));
        }
        let metrics = metrics.borrow();
        let leader = metrics.current_leader;
        let known =
            leader.and_then(|leader| metrics.membership_config.membership().get_node(&leader).cloned());
        (leader, known.map(|known| known.addr))
    };
    if leader != Some(node.arguments.id) {
        return Err(Failure::elsewhere(node, address));
    }
    let written = tokio::time::timeout(PATIENCE, node.writer.write(command)).await;
    match written.map_err(|_| Failure::late("no majority has confirmed it in time"))? {
        Ok(answer) => Ok(answer),
        Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_))) => {
            Err(Failure::unknown("this node is not the leader any more"))
        }
        Err(error) => Err(Failure::unknown(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Arguments;
    use clap::Parser;
    use openraft::{BasicNode, RaftMetrics, ServerState};
    use std::collections::BTreeMap;
    use std::pin::pin;

    /// It said of the state from before it waited for its turn, and read that from behind it.
    #[tokio::test]
    async fn a_scan_says_how_old_the_state_is_that_it_reads() {
        _ = rustls::crypto::ring::default_provider().install_default();
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().to_str().expect("text");
        let arguments = ["sapwood-node", "--id", "1", "--listen", "127.0.0.1:7000", "--dir", path];
        let node = Node::start(Arguments::parse_from(arguments)).await.expect("starts");
        let alone = BTreeMap::from([(1, BasicNode::new(node.address.clone()))]);
        node.raft.initialize(alone).await.expect("begins");
        node.raft.wait(None).state(ServerState::Leader, "it is alone").await.expect("leads");
        let applied = |metrics: &RaftMetrics<u64, BasicNode>| metrics.last_applied.map(|id| id.index);
        let (headers, newest) = loop {
            let turns = Arc::clone(&node.scans).acquire_many_owned(SCANS_MAX as u32).await.expect("is open");
            let reading = Reading { read: Some("own".into()), ..Reading::default() };
            let mut scanned = pin!(scan(State(Arc::clone(&node)), Query(reading), RawQuery(None)));
            tokio::select! {
                biased;
                _ = &mut scanned => panic!("it had no turn"),
                () = std::future::ready(()) => {}
            }
            let before = applied(&node.raft.metrics().borrow());
            let written = node.writer.write(KvCommand::put("fram", "1892")).await.expect("is written");
            let KvAnswer::Done { version } = written else { panic!("{written:?}") };
            let said = node.raft.wait(None).metrics(|said| applied(said) > before, "it is applied").await;
            let newest = applied(&said.expect("goes on")).expect("there is one");
            drop(turns);
            match scanned.await {
                Ok((headers, lines)) => {
                    assert_eq!(lines, format!("fram\t{version}\t1892\n"));
                    break (headers, newest);
                }
                // On a busy machine it may have waited for too long.
                Err(failure) => assert_eq!(failure.status, StatusCode::TOO_MANY_REQUESTS, "{failure:?}"),
            }
        };
        let said: u64 = headers["sapwood-applied"].to_str().expect("text").parse().expect("a number");
        assert!(said >= newest, "{said}, {newest}");
        assert!(headers.contains_key("sapwood-age-ms"));
        node.raft.shutdown().await.expect("ends");
    }
}
