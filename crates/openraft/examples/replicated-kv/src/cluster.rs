//! The cluster: beginning it, nodes that come and go, status, metrics, backups.

use crate::faults::Lost;
use crate::identity::{self, is_new};
use crate::network::Introduction;
use crate::node::{Node, end, is_somewhere, with_end};
use crate::records::{self, PATIENCE};
use crate::server::Failure;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use openraft::error::{ChangeMembershipError, ClientWriteError, RaftError};
use openraft::{BasicNode, ChangeMembers, LogId, Membership, RaftMetrics, ServerState};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Entries that a node may lack when it is to vote: as many as a busy leader appends (some hundred a second) while a message of them crosses a slow network and is
/// synced, so that each node comes so near at some time.
const LAG_MAX: u64 = 100;
/// How long to wait between two looks at a node that is sent everything: little beside an election.
const LOOK: Duration = Duration::from_millis(100);

type Refusal = RaftError<u64, ClientWriteError<u64, BasicNode>>;

/// Why a change has failed of which a part may be appended.
fn refused(error: Refusal) -> Failure {
    match error {
        // Also to what another leader has taken out of this node's log, and some node may still have.
        RaftError::APIError(ClientWriteError::ForwardToLeader(error)) => Failure::unknown(error),
        RaftError::APIError(ClientWriteError::ChangeMembershipError(error)) => impossible(error),
        RaftError::Fatal(error) => Failure::unknown(error),
    }
}

fn impossible(error: ChangeMembershipError<u64>) -> Failure {
    match error {
        // Another, or what an earlier request has done of this one, is not confirmed yet.
        ChangeMembershipError::InProgress(error) => Failure::unknown(error),
        // It was a voter, or none, when this was asked for, and is not any more.
        ChangeMembershipError::LearnerNotFound(error) => Failure::unknown(error),
        error => Failure::new(StatusCode::CONFLICT, error),
    }
}

/// Begins a cluster that has this node alone. To be done once, on one node, before others are added.
pub async fn init(State(node): State<Arc<Node>>) -> Result<(), Failure> {
    let conflict = |reason: &str| Failure::new(StatusCode::CONFLICT, reason);
    if !is_new(&node.raft.metrics().borrow()) {
        return Err(conflict("this node is of a cluster already"));
    }
    // Others will be told that it is there.
    let there = node.network.node_at(&node.address).await;
    if there.is_none_or(|there| there.id != node.arguments.id) {
        let reason = format!(
            "this node does not answer at {}: say where others reach it, with --address",
            node.address
        );
        return Err(conflict(&reason));
    }
    let identity = Arc::clone(&node.network.identity);
    let may_begin = tokio::task::spawn_blocking(move || identity.begin()).await;
    if !may_begin.map_err(Failure::broken)?.map_err(Failure::broken)? {
        return Err(conflict("this node was asked to join another cluster, and is of that one"));
    }
    let nodes = BTreeMap::from([(node.arguments.id, BasicNode::new(node.address.clone()))]);
    let begun = node.raft.initialize(nodes).await;
    begun.map_err(|error| Failure::new(StatusCode::CONFLICT, error))
}

/// What the leader, which this node is, says of itself and of the members. One that has removed itself must not change them any more.
async fn confirmed_leader(node: &Node) -> Result<RaftMetrics<u64, BasicNode>, Failure> {
    records::confirm(node).await?;
    if !is_member(node) {
        return Err(Failure::elsewhere(node, None));
    }
    Ok(node.raft.metrics().borrow().clone())
}

/// Changes the members once no other change is under way, as long as a write waits for a majority.
async fn change(node: &Node, change: ChangeMembers<u64, BasicNode>) -> Result<(), Failure> {
    let begin = Instant::now();
    loop {
        // Another change may have removed it meanwhile.
        if !is_member(node) {
            return Err(Failure::late("this node does not lead any more"));
        }
        let changed = node.raft.change_membership(change.clone(), false);
        match tokio::time::timeout(PATIENCE, changed).await {
            Err(_) => return Err(Failure::late("no majority has confirmed it in time")),
            Ok(Err(RaftError::APIError(ClientWriteError::ChangeMembershipError(
                ChangeMembershipError::InProgress(_),
            )))) if begin.elapsed() < PATIENCE => tokio::time::sleep(LOOK).await,
            Ok(changed) => return changed.map(drop).map_err(refused),
        }
    }
}

/// Whether this node is one of the members. A leader that has removed itself leads on for a moment.
fn is_member(node: &Node) -> bool {
    let members = Arc::clone(&node.raft.metrics().borrow().membership_config);
    members.membership().get_node(&node.arguments.id).is_some()
}

/// The turn of a request that adds a node: one at a time, since each asks and appends the same for as long as a snapshot takes, also when its client has gone.
struct Turn(Arc<Node>, u64);

impl Turn {
    /// Waits for others that add the same node, as long as a write waits for a majority.
    async fn wait(node: &Arc<Node>, id: u64) -> Result<Self, Failure> {
        let turn = async {
            while !node.adding.lock().insert(id) {
                tokio::time::sleep(LOOK).await;
            }
            Self(Arc::clone(node), id)
        };
        let turn = tokio::time::timeout(PATIENCE, turn).await;
        turn.map_err(|_| Failure::late(format!("an earlier request adds node {id}, and goes on")))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.adding.lock().remove(&self.1);
    }
}

/// Why what is found in place of a member cannot be that.
fn is_not_the_member(found: &Introduction, id: u64, address: &str) -> Failure {
    let reason = if found.id == id {
        // It would have forgotten what it has promised and confirmed.
        format!(
            "node {id} is a member, and the one at {address} has not what that had: remove the node, and let it join with an empty directory and a new number"
        )
    } else {
        format!("node {} is at {address}", found.id)
    };
    Failure::new(StatusCode::CONFLICT, reason)
}

/// Adds a node, whose address is the body: first as one that is sent everything, then as one that votes.
pub async fn add(State(node): State<Arc<Node>>, Path(id): Path<u64>, address: String) -> Result<(), Failure> {
    let conflict = |reason| Failure::new(StatusCode::CONFLICT, reason);
    let address = address.trim().to_owned();
    if address.is_empty() {
        return Err(Failure::bad("the body is the address of the node, host and port"));
    }
    if !is_somewhere(&address) {
        return Err(Failure::bad(format!("{address} is no place where others reach a node")));
    }
    let turn = Turn::wait(&node, id).await?;
    let asked = confirmed_leader(&node).await?;
    let members = asked.membership_config.membership();
    let member = members.get_node(&id);
    let votes = members.voter_ids().any(|voter| voter == id);
    // openraft leaves it where it is, and says that it is done.
    if let Some(member) = member.filter(|member| member.addr != address) {
        return Err(conflict(format!(
            "node {id} is at {}: to correct an address, remove the node and add it again",
            member.addr
        )));
    }
    let found = node.network.node_at(&address).await;
    if let Some(other) = found.as_ref().filter(|other| other.id != id) {
        return Err(is_not_the_member(other, id, &address));
    }
    if !votes && !found.as_ref().is_some_and(Introduction::runs) {
        return Err(conflict(format!("no node answers at {address}, or it has stopped: start it first")));
    }
    let cluster = node.network.identity.cluster();
    match (member, found) {
        (None, Some(new)) => {
            if let Some(reason) = new.refusal(cluster) {
                return Err(conflict(format!("node {id} {reason}")));
            }
            // If this is as far as it comes, it may be added all the same later.
            if let Some(cluster) = cluster {
                let joined = node.network.join(&address, id, cluster).await;
                joined.map_err(|reason| conflict(format!("node {id} {reason}")))?;
            }
        }
        (Some(_), Some(found)) if found.is_lost(cluster) => {
            return Err(is_not_the_member(&found, id, &address));
        }
        _ => {}
    }
    to_the_end(async move {
        let _turn = turn;
        // As they are now: this node may have been removed since, and so may the voter.
        if !is_member(&node) {
            return Err(Failure::elsewhere(&node, None));
        }
        let asked = node.raft.metrics().borrow().clone();
        let there = asked.membership_config.membership();
        let is_voter = |members: &Membership<u64, BasicNode>| members.voter_ids().any(|voter| voter == id);
        if is_voter(there) && there.get_joint_config().len() == 1 {
            return are_committed(&node, &asked).await;
        }
        // Each entry of members has all snapshots begun anew that are being sent: for who is a member already there is none.
        let (added, votes) = if there.get_node(&id).is_some() {
            (*asked.membership_config.log_id(), is_voter(there))
        } else {
            let added = node.raft.add_learner(id, BasicNode::new(address.clone()), false);
            let added = in_time(added).await?;
            (Some(added.log_id), added.membership.as_ref().is_some_and(is_voter))
        };
        if !votes {
            catch_up(&node, id, &address, added).await?;
        }
        change(&node, ChangeMembers::AddVoterIds(BTreeSet::from([id]))).await
    })
    .await
}

/// Members are those of the last entry that says so, which another leader may take back until it is committed: waits for that.
async fn are_committed(node: &Node, asked: &RaftMetrics<u64, BasicNode>) -> Result<(), Failure> {
    let index = asked.membership_config.log_id().map(|id| id.index);
    let applied = node.raft.wait(Some(PATIENCE)).applied_index_at_least(index, "members").await;
    let applied = applied.map_err(|_| Failure::late("no majority has confirmed it in time"))?;
    were_committed(asked, &applied)
}

/// Whether the members from when this was asked were committed, now that what is at their place of the log is applied: that may be an entry of another leader.
fn were_committed(
    asked: &RaftMetrics<u64, BasicNode>,
    applied: &RaftMetrics<u64, BasicNode>,
) -> Result<(), Failure> {
    // A leader takes nothing of its log back: if there are other members they came behind these.
    let leads_on = asked.state == ServerState::Leader && asked.vote == applied.vote;
    if leads_on || applied.membership_config.log_id() == asked.membership_config.log_id() {
        return Ok(());
    }
    Err(Failure::unknown("members have changed meanwhile"))
}

/// Goes on with a change also if whoever has asked for it is gone: half of it would stay.
async fn to_the_end(
    change: impl Future<Output = Result<(), Failure>> + Send + 'static,
) -> Result<(), Failure> {
    tokio::spawn(change).await.unwrap_or_else(|error| Err(Failure::broken(error)))
}

/// Waits for a majority as long as a write does. What it has not confirmed by then may be confirmed later, or be half of the change: it is to be repeated.
async fn in_time<T>(change: impl Future<Output = Result<T, Refusal>>) -> Result<T, Failure> {
    let changed = tokio::time::timeout(PATIENCE, change).await;
    let changed = changed.map_err(|_| Failure::late("no majority has confirmed it in time"))?;
    changed.map_err(refused)
}

/// Returns once a node that was added has nearly all of the log: before, it would be of no use where another voter is lost, and the majority would wait for it.
/// Takes as long as it has to, as long as this node leads and the other one runs and has what it was given.
async fn catch_up(node: &Node, id: u64, address: &str, added: Option<LogId<u64>>) -> Result<(), Failure> {
    let late = |reason| Err(Failure::late(reason));
    // What is confirmed is so by heartbeats, where nothing is written.
    let patience = PATIENCE + Duration::from_millis(2 * node.arguments.heartbeat);
    let (metrics, cluster) = (node.raft.metrics(), node.network.identity.cluster());
    let mut answered = Instant::now();
    loop {
        {
            let metrics = metrics.borrow();
            let Some(replication) = &metrics.replication else {
                return late("this node does not lead any more");
            };
            let members = &metrics.membership_config;
            if *members.log_id() >= added && members.membership().get_node(&id).is_none() {
                return Err(Failure::new(StatusCode::CONFLICT, format!("node {id} was removed meanwhile")));
            }
            // openraft's own way waits for less: nothing is matched, and few entries lack.
            let matched = replication.get(&id).copied().flatten();
            if matched.is_some_and(|matched| matched.index + LAG_MAX >= metrics.last_log_index.unwrap_or(0)) {
                return Ok(());
            }
        }
        if node.confirmed.age().is_none_or(|millis| u128::from(millis) > patience.as_millis()) {
            return late("no majority has confirmed this leader any more");
        }
        match node.network.node_at(address).await {
            // In a cluster without a number it has nothing before the first message comes.
            Some(found) if found.id != id || cluster.is_some() && found.is_lost(cluster) => {
                return Err(is_not_the_member(&found, id, address));
            }
            Some(found) if found.runs() && !found.is_lost(cluster) => answered = Instant::now(),
            _ if answered.elapsed() > patience => {
                return late("the node does not answer any more, or has stopped");
            }
            _ => {}
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Removes a node. Its directory must not be used in this cluster again. The leader can remove itself; it leads until that is committed.
pub async fn remove(State(node): State<Arc<Node>>, Path(id): Path<u64>) -> Result<(), Failure> {
    let asked = confirmed_leader(&node).await?;
    let (members, ids) = (asked.membership_config.membership(), BTreeSet::from([id]));
    let removal = if members.voter_ids().any(|voter| voter == id) {
        ChangeMembers::RemoveVoters(ids)
    } else if members.get_node(&id).is_some() {
        ChangeMembers::RemoveNodes(ids)
    } else {
        return are_committed(&node, &asked).await;
    };
    to_the_end(async move { change(&node, removal).await }).await
}

/// What openraft says of this node, of which cluster it is, the last entry of its log, and why it could not receive the last snapshot, if so.
pub async fn status(State(node): State<Arc<Node>>) -> Result<Json<Value>, Failure> {
    let metrics = with_end(&node.raft.metrics());
    let mut status = serde_json::to_value(metrics).map_err(Failure::broken)?;
    status["cluster"] = node.network.identity.cluster().map(identity::text).into();
    let last = node.raft.data_metrics().borrow().last_log;
    status["last_log_id"] = serde_json::to_value(last).map_err(Failure::broken)?;
    status["snapshot_not_received"] = node.receiving.failures().last.into();
    Ok(Json(status))
}

/// Metrics of the database and of Raft, in the text format of Prometheus.
pub async fn metrics(State(node): State<Arc<Node>>) -> Result<String, Failure> {
    let db = node.db.clone();
    let text = tokio::task::spawn_blocking(move || db.stats().to_prometheus()).await;
    let mut text = text.map_err(Failure::broken)?;
    let metrics = node.raft.metrics();
    let is_running = end(&metrics).is_none();
    let metrics = metrics.borrow().clone();
    let is = |state| u64::from(metrics.state == state);
    let index = |id: Option<openraft::LogId<u64>>| id.map_or(0, |id| id.index);
    let mut gauge = |name: &str, help: &str, value: u64| {
        // A string takes all.
        _ = writeln!(
            text,
            "# HELP sapwood_raft_{name} {help}\n# TYPE sapwood_raft_{name} gauge\nsapwood_raft_{name} {value}"
        );
    };
    gauge("is_leader", "Whether the node is the leader.", is(ServerState::Leader));
    gauge("is_running", "Whether Raft runs: 0 after an error of the storage, or a panic.", is_running.into());
    let failures = node.receiving.failures();
    let can_receive = failures.last.is_none();
    gauge(
        "can_receive",
        "Whether the node could write the last snapshot that it was sent; if not, /status says why.",
        can_receive.into(),
    );
    gauge(
        "receive_failures",
        "Snapshots that the node could not write since it was started.",
        failures.count,
    );
    gauge("has_leader", "Whether the node knows a leader.", metrics.current_leader.is_some().into());
    gauge("term", "The term.", metrics.current_term);
    gauge("last_log_index", "The last entry of the log.", metrics.last_log_index.unwrap_or(0));
    gauge("applied_index", "The last entry that was applied.", index(metrics.last_applied));
    gauge("snapshot_index", "The last entry that the snapshot has.", index(metrics.snapshot));
    gauge("purged_index", "The last entry that was purged.", index(metrics.purged));
    gauge("voters", "Nodes that vote.", metrics.membership_config.membership().voter_ids().count() as u64);
    let lag = metrics
        .replication
        .iter()
        .flatten()
        .map(|(_, matched)| metrics.last_log_index.unwrap_or(0).saturating_sub(index(*matched)));
    gauge(
        "lag_max",
        "On the leader: entries that the slowest node has not confirmed.",
        lag.max().unwrap_or(0),
    );
    if let Some(age) = node.confirmed.age().filter(|_| metrics.state == ServerState::Leader) {
        gauge(
            "millis_since_quorum_ack",
            "On the leader: since a majority last confirmed it, or longer.",
            age,
        );
    }
    Ok(text)
}

/// Begins to make a snapshot, unless one is being made. The log that it makes superfluous is purged when it is there.
pub async fn snapshot(State(node): State<Arc<Node>>) -> Result<(), Failure> {
    node.raft.trigger().snapshot().await.map_err(Failure::broken)
}

/// Backs the database of this node up, as of one moment, on top of earlier backups.
pub async fn backup(State(node): State<Arc<Node>>) -> Result<String, Failure> {
    let Some(directory) = node.arguments.backups.clone() else {
        return Err(Failure::bad("this node was started without --backups"));
    };
    let db = node.db.clone();
    let made = tokio::task::spawn_blocking(move || {
        let target = sapwood::backup::Directory::open(directory)?;
        db.backup().run(&target)
    });
    let made = made.await.map_err(Failure::broken)?.map_err(Failure::broken)?;
    Ok(format!("{made:?}\n"))
}

/// For tests.
pub async fn faults(State(node): State<Arc<Node>>, Json(lost): Json<Lost>) -> Result<(), Failure> {
    if !node.arguments.faults {
        return Err(Failure::new(StatusCode::NOT_FOUND, "this node was started without --faults"));
    }
    node.faults.set(lost);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use openraft::error::{EmptyMembership, Fatal, ForwardToLeader, InProgress, LearnerNotFound};
    use openraft::{CommittedLeaderId, StoredMembership, Vote};

    /// Another node may still have it, and commit it.
    #[test]
    fn a_change_of_a_leader_that_was_replaced_may_still_happen() {
        let replaced = ForwardToLeader::new(2, BasicNode::new("b:1"));
        for error in [
            RaftError::APIError(ClientWriteError::ForwardToLeader(replaced)),
            RaftError::Fatal(Fatal::Stopped),
        ] {
            assert_eq!(refused(error).status, StatusCode::SERVICE_UNAVAILABLE);
        }
    }

    #[test]
    fn a_change_beside_another_is_to_be_repeated() {
        let beside = InProgress { committed: None, membership_log_id: None };
        assert_eq!(impossible(beside.into()).status, StatusCode::SERVICE_UNAVAILABLE);
        // It was none of the kind that it was when this was asked for.
        assert_eq!(impossible(LearnerNotFound { node_id: 4 }.into()).status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(impossible(EmptyMembership {}.into()).status, StatusCode::CONFLICT);
    }

    /// The index alone said that they are committed, be it another entry.
    #[test]
    fn members_that_another_leader_has_taken_back_are_not_committed() {
        let members = |term, index| {
            let id = LogId::new(CommittedLeaderId::new(term, 1), index);
            StoredMembership::new(Some(id), Membership::from(BTreeMap::from([(1, BasicNode::default())])))
        };
        let metrics = |state, term, members| RaftMetrics {
            state,
            vote: Vote::new_committed(term, 1),
            membership_config: Arc::new(members),
            ..RaftMetrics::<u64, BasicNode>::new_initial(1)
        };
        let status =
            |asked: &_, applied: &_| were_committed(asked, applied).err().map(|failure| failure.status);
        let (leads, follows) = (ServerState::Leader, ServerState::Follower);
        let asked = metrics(leads, 1, members(1, 20));
        assert_eq!(status(&asked, &metrics(follows, 2, members(1, 20))), None);
        for now in [members(1, 7), members(2, 20), members(2, 21)] {
            let applied = metrics(follows, 2, now);
            assert_eq!(status(&asked, &applied), Some(StatusCode::SERVICE_UNAVAILABLE));
        }
        // Another change came behind them, of the same leader. A follower may take back what it has of the leader that it follows.
        let applied = metrics(leads, 1, members(1, 21));
        assert_eq!(status(&asked, &applied), None);
        let asked = metrics(follows, 1, members(1, 20));
        assert_eq!(status(&asked, &applied), Some(StatusCode::SERVICE_UNAVAILABLE));
    }
}
