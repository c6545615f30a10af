//! What a get of one key looks at, step by step: queues, cached record, inner nodes, log pieces, leaf; and what it reads for that.
//!
//! Invariants:
//! 1. The steps are those of a get of the same state, in its order, and end where a get ends.
//! 2. A node counts as cached if it was in the cache before this step.

use crate::current_state::State;
use crate::db::batch::check_key;
use crate::db::engine::Engine;
use crate::db::keyspace::Keyspace;
use crate::error::Result;
use crate::merging::is_operands;
use crate::operation::SeqNo;
use crate::opq::Change;
use crate::storage::node::{Node, NodeId, PIECE};
use crate::tree::view::TreeView;
use serde::Serialize;
use std::fmt;

/// What a get of one key looks at, and finds. Made by [`Keyspace::explain`]; displays as a list for people, and serializes.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # let ships = db.keyspace("ships")?;
/// ships.insert("fram", "1892")?;
/// let explanation: sapwood::Explanation = ships.explain("fram")?;
/// assert_eq!((explanation.steps.len(), explanation.requests), (1, 0)); // the active queue has it
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Explanation {
    /// What was looked at, in this order.
    pub steps: Vec<ExplainStep>,
    /// Bytes of the value; `None` if the key has none.
    pub value_bytes: Option<u64>,
    /// Requests to the device.
    pub requests: u64,
    /// Bytes of these requests.
    pub bytes: u64,
}

/// One step of an [`Explanation`].
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # let ships = db.keyspace("ships")?;
/// ships.insert("fram", "1892")?;
/// db.flush()?;
/// use sapwood::{ExplainStep, Finding};
/// let steps = ships.explain("fram")?.steps;
/// assert!(matches!(steps[0], ExplainStep::Queue { is_frozen: false, finding: Finding::Nothing, .. }));
/// assert!(matches!(steps.last(), Some(ExplainStep::Leaf { finding: Finding::Value { bytes: 4 }, .. })));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "step", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ExplainStep {
    /// An operation queue in memory.
    Queue {
        /// The frozen queue, which is being flushed, or the active one.
        is_frozen: bool,
        /// Changes in it, of all keyspaces.
        changes: u64,
        /// What it knows of the key.
        finding: Finding,
    },
    /// The cache of single records.
    CachedRecord {
        /// What it knows of the key.
        finding: Finding,
    },
    /// An inner node of the tree. One of level 1 is a block.
    Inner {
        /// Levels above the leaves.
        level: u8,
        /// The node.
        node: ExplainedNode,
    },
    /// The log area of the block: changes that are not in its leaves yet.
    LogArea {
        /// Its runs: what one flush appended is one.
        runs: u64,
        /// Its log pieces.
        pieces: u64,
        /// Its changes.
        changes: u64,
        /// Pieces that should have the key, by the maplets.
        candidates: u64,
    },
    /// A log piece.
    Piece {
        /// The piece.
        node: ExplainedNode,
        /// What it says of the key. Nothing: the maplet was wrong.
        finding: Finding,
    },
    /// The block says that no leaf has the key.
    NoLeaf,
    /// A leaf.
    Leaf {
        /// The leaf.
        node: ExplainedNode,
        /// What it has.
        finding: Finding,
    },
}

/// A node that was looked at.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # let ships = db.keyspace("ships")?;
/// # ships.insert("fram", "1892")?;
/// # db.flush()?;
/// if let Some(sapwood::ExplainStep::Leaf { node, .. }) = ships.explain("fram")?.steps.last() {
///     println!("{} bytes at {} of the data file, in segment {}", node.bytes, node.offset, node.segment);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ExplainedNode {
    /// Its id.
    pub id: u64,
    /// The segment that it lies in.
    pub segment: u64,
    /// Where it begins in the file `data`, in bytes.
    pub offset: u64,
    /// Its bytes there.
    pub bytes: u64,
    /// Records, changes or children.
    pub entries: u64,
    /// Bytes that were read from the device for it; 0 if it was in the cache.
    pub read_bytes: u64,
}

/// What a place knows of a key.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # let ships = db.keyspace("ships")?;
/// ships.remove("fram")?;
/// let explanation = ships.explain("fram")?;
/// assert!(matches!(explanation.steps[..], [sapwood::ExplainStep::Queue { finding: sapwood::Finding::Removed, .. }]));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "finding", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Finding {
    /// Nothing: older places are asked.
    Nothing,
    /// That it was removed.
    Removed,
    /// A value of so many bytes, as it is stored: with the time at which it expires, if it does.
    Value {
        /// Its bytes.
        bytes: u64,
    },
    /// Operands of a merge, for the value of older places.
    Operands {
        /// Their bytes.
        bytes: u64,
    },
}

impl Finding {
    fn of(change: Option<Change>, has_merging: bool) -> Self {
        match change {
            None => Self::Nothing,
            Some(None) => Self::Removed,
            Some(Some(stored)) if has_merging && is_operands(&stored) => {
                Self::Operands { bytes: stored.len() as u64 }
            }
            Some(Some(stored)) => Self::Value { bytes: stored.len() as u64 },
        }
    }

    /// Whether older places are not asked.
    fn is_last(self) -> bool {
        matches!(self, Self::Removed | Self::Value { .. })
    }
}

impl Explanation {
    /// Looks at one key.
    pub(crate) fn of(engine: &Engine, keyspace: &Keyspace, key: &[u8]) -> Result<Self> {
        check_key(key)?;
        let (state, seq) = engine.state.view();
        let view = TreeView { pager: &engine.pager, version: &state.version, keyspace: keyspace.id() };
        let mut walk = Walk { engine, view, key, steps: Vec::new(), requests: 0, bytes: 0 };
        walk.go(&state, seq)?;
        let Walk { steps, requests, bytes, .. } = walk;
        let stored = state.get(&engine.pager, keyspace.id(), key, seq)?;
        let value = keyspace.values().read_found(key, stored)?;
        Ok(Self { steps, value_bytes: value.map(|value| value.len() as u64), requests, bytes })
    }
}

struct Walk<'a> {
    engine: &'a Engine,
    view: TreeView<'a>,
    key: &'a [u8],
    steps: Vec<ExplainStep>,
    requests: u64,
    bytes: u64,
}

impl Walk<'_> {
    fn go(&mut self, state: &State, seq: SeqNo) -> Result<()> {
        let (view, key) = (self.view, self.key);
        let merging = view.merging();
        let mut has_operands = false;
        for (index, queue) in state.queues().enumerate() {
            let finding = Finding::of(queue.get(view.keyspace, key, seq, merging), merging.is_some());
            self.steps.push(ExplainStep::Queue { is_frozen: index > 0, changes: queue.count(), finding });
            if finding.is_last() {
                return Ok(());
            }
            has_operands |= finding != Finding::Nothing;
        }
        if !has_operands {
            let record = view.pager.cache.record(state.number, view.keyspace, key);
            let finding = Finding::of(record.map(Some), merging.is_some());
            self.steps.push(ExplainStep::CachedRecord { finding });
            if finding.is_last() {
                return Ok(());
            }
        }
        self.tree()
    }

    fn tree(&mut self) -> Result<()> {
        let (view, key) = (self.view, self.key);
        let Some((mut id, height)) = view.root() else { return Ok(()) };
        for level in (1..=height).rev() {
            let (inner, node) = self.node(id, level)?;
            self.steps.push(ExplainStep::Inner { level, node });
            if level == 1 && self.log_area(id)? {
                return Ok(());
            }
            let child = inner.child_for(key);
            if inner.lacks(child, key) {
                self.steps.push(ExplainStep::NoLeaf);
                return Ok(());
            }
            id = inner.child(child);
        }
        let (leaf, node) = self.node(id, 0)?;
        let found = leaf.search(key).ok().map(|index| Some(leaf.lasting(leaf.record(index).1)));
        self.steps.push(ExplainStep::Leaf { node, finding: Finding::of(found, false) });
        Ok(())
    }

    /// Looks at the log area of a block, if it has one. Returns whether it tells all.
    fn log_area(&mut self, block: NodeId) -> Result<bool> {
        let (view, key) = (self.view, self.key);
        let Some(area) = view.log(block) else { return Ok(false) };
        let candidates: Vec<_> = area.candidates(key).collect();
        self.steps.push(ExplainStep::LogArea {
            runs: area.run_count() as u64,
            pieces: area.piece_count() as u64,
            changes: area.hashes().map(|of_run| of_run.len() as u64).sum(),
            candidates: candidates.len() as u64,
        });
        for id in candidates {
            let (piece, node) = self.node(id, PIECE)?;
            let found = piece.search(key).ok();
            let change = found.map(|at| piece.logged_value(at).map(|value| piece.lasting(value)));
            let finding = Finding::of(change, view.merging().is_some());
            self.steps.push(ExplainStep::Piece { node, finding });
            if finding.is_last() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn node(&mut self, id: NodeId, level: u8) -> Result<(Node, ExplainedNode)> {
        let version = self.view.version;
        let address = version.table.address(id);
        let is_cached = address.is_some_and(|address| self.view.pager.cached(address).is_some());
        let node = self.view.glance(id, level)?;
        let (bytes, position) =
            address.map_or((0, 0), |address| (u64::from(address.len()), address.position.0));
        let place = |address: crate::storage::mapping_table::Address| {
            version.segments.file_offset(address.position, address.len() as usize, version.span)
        };
        let offset = address.and_then(place).unwrap_or_default();
        let alignment = self.engine.volume.limits().alignment.max(1) as u64;
        let read = (offset + bytes).next_multiple_of(alignment) - offset / alignment * alignment;
        let read_bytes = if is_cached { 0 } else { read };
        self.requests += u64::from(!is_cached);
        self.bytes += read_bytes;
        let (segment, entries) = (position / version.span, node.count() as u64);
        Ok((node, ExplainedNode { id: id.0, segment, offset, bytes, entries, read_bytes }))
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("nothing"),
            Self::Removed => f.write_str("the key was removed"),
            Self::Value { bytes } => write!(f, "a value of {bytes} bytes"),
            Self::Operands { bytes } => write!(f, "operands of {bytes} bytes, for an older value"),
        }
    }
}

impl fmt::Display for ExplainedNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at byte {} of `data`, in segment {}; ", self.bytes, self.offset, self.segment)?;
        match self.read_bytes {
            0 => f.write_str("cached"),
            bytes => write!(f, "read from the device, {bytes} bytes"),
        }
    }
}

impl fmt::Display for ExplainStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queue { is_frozen, changes, finding } => {
                let name = if *is_frozen { "frozen queue" } else { "active queue" };
                write!(f, "{name} of {changes} changes, in memory: {finding}")
            }
            Self::CachedRecord { finding } => write!(f, "cached records: {finding}"),
            Self::Inner { level: 1, node } => {
                write!(f, "block {}, an inner node above {} leaves: {node}", node.id, node.entries)
            }
            Self::Inner { level, node } => {
                write!(f, "inner node {} of level {level}, with {} children: {node}", node.id, node.entries)
            }
            Self::LogArea { runs, pieces, changes, candidates } => write!(
                f,
                "log area of the block, {changes} changes in {pieces} log pieces of {runs} runs: {candidates} of the pieces should have the key"
            ),
            Self::Piece { node, finding } => {
                let wrong = if *finding == Finding::Nothing { "; the maplet was wrong" } else { "" };
                let (id, changes) = (node.id, node.entries);
                write!(f, "log piece {id}, with {changes} changes: {node}: {finding}{wrong}")
            }
            Self::NoLeaf => f.write_str("the block's separators: no leaf has the key"),
            Self::Leaf { node, finding } => {
                write!(f, "leaf {}, with {} records: {node}: {finding}", node.id, node.entries)
            }
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.steps.iter().enumerate() {
            writeln!(f, "{:>2}  {step}", index + 1)?;
        }
        match self.value_bytes {
            Some(bytes) => write!(f, "found: a value of {bytes} bytes")?,
            None => f.write_str("not found")?,
        }
        write!(f, "; read from the device: {} requests, {} bytes", self.requests, self.bytes)
    }
}

#[cfg(test)]
mod tests;
