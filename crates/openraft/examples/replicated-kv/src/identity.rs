//! Which cluster this node is of.
//!
//! Entries are told apart by term, node and index, and openraft takes those up to what is committed to be the same everywhere. In two clusters the same ids
//! are of different entries: a node of one that became a member of the other would confirm what it does not have. So a cluster has a
//! random number from its beginning on, messages carry it, and a node keeps it.
//!
//! Invariants:
//! 1. A node without a log takes a number only when the leader asks it to join, durably, before it is a member. It never takes another. A member that
//!    comes back with an empty directory has none: with that of the first message it would vote as if it had promised and confirmed nothing.
//! 2. A cluster that is begun has a number before it has a membership, and one that begins with the state of an old one has a new number exactly if it has
//!    the new membership: they are one commit.
//! 3. Messages with a number are taken only by nodes that have it, and other messages only by nodes that have none: members have theirs before they send
//!    anything, since no program that knows of none is added.
//!
//! Clusters from before have none, and take messages without one. There a member that comes back empty still votes.

use openraft::{BasicNode, RaftMetrics, Vote};
use parking_lot::Mutex;
use sapwood::{Batch, Database, Durability, Keyspace};
use serde::{Deserialize, Serialize};

/// Where it is kept in the database, beside what `sapwood-openraft` has there.
const KEYSPACE: &str = "node";
const KEY: &str = "cluster";

/// What is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    cluster: u64,
    /// Whether the cluster was begun on this node.
    is_begun_here: bool,
}

#[derive(Debug)]
pub struct Identity {
    keyspace: Keyspace,
    kept: Mutex<Option<Kept>>,
}

impl Identity {
    pub fn open(db: &Database) -> anyhow::Result<Self> {
        let keyspace = db.keyspace(KEYSPACE)?.with_durability(Durability::Immediate);
        let kept = keyspace.get(KEY)?.map(|kept| postcard::from_bytes(&kept)).transpose()?;
        Ok(Self { keyspace, kept: Mutex::new(kept) })
    }

    /// The number of the cluster, if it has one.
    pub fn cluster(&self) -> Option<u64> {
        self.kept.lock().map(|kept| kept.cluster)
    }

    fn keep(&self, kept: &mut Option<Kept>, new: Kept) -> anyhow::Result<()> {
        self.keyspace.insert(KEY, postcard::to_allocvec(&new)?)?;
        *kept = Some(new);
        Ok(())
    }

    /// Of a cluster that is begun on this node, which has no log. Returns whether it may be: it is of no other one.
    pub fn begin(&self) -> anyhow::Result<bool> {
        let mut kept = self.kept.lock();
        if let Some(kept) = *kept {
            // It ended before it had begun it.
            return Ok(kept.is_begun_here);
        }
        self.keep(&mut kept, Kept { cluster: random(), is_begun_here: true })?;
        Ok(true)
    }

    /// Of a new cluster that begins with the state of an old one: a change for the commit that begins it. Whoever opens this again has it.
    pub fn anew(self) -> anyhow::Result<impl FnOnce(&mut Batch)> {
        let new = postcard::to_allocvec(&Kept { cluster: random(), is_begun_here: true })?;
        Ok(move |batch: &mut Batch| _ = batch.insert(&self.keyspace, KEY, new))
    }

    /// A cluster will have this node, which has no log. Returns whether it may: it is of no other one.
    pub fn join(&self, cluster: u64) -> anyhow::Result<bool> {
        let mut kept = self.kept.lock();
        if kept.is_none() {
            self.keep(&mut kept, Kept { cluster, is_begun_here: false })?;
        }
        Ok(kept.is_some_and(|kept| kept.cluster == cluster))
    }
}

/// Whether a node has promised and appended nothing yet.
pub fn is_new(metrics: &RaftMetrics<u64, BasicNode>) -> bool {
    metrics.last_log_index.is_none() && metrics.vote == Vote::default()
}

/// As messages and `/status` have it.
pub fn text(cluster: u64) -> String {
    format!("{cluster:016x}")
}

fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // Keys of a hasher are random.
    std::hash::RandomState::new().build_hasher().finish()
}
