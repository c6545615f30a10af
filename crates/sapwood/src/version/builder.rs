//! A version builder brings the store from one version to the next: it writes new nodes, and its edit says what
//! they replace. It succeeds as a whole, when the edit is committed, or leaves no trace.
//!
//! ```text
//! begin ──write, relocate, free──▶ … ──seal, finish──▶ (sync data, commit edit) ──committed──▶ done
//!   └───────────────────────────── dropped anywhere before: aborted ─────────────────────────────▶
//! ```
//!
//! Invariants:
//! 1. Nothing that the base version can reach is changed or overwritten.
//! 2. After an abort, writer and cache are as they were at the beginning.

use crate::cache::pager::{FILE, Pager};
use crate::error::{Error, Result};
use crate::expiring_bytes::ExpiringBytes;
use crate::expiry::expires_at;
use crate::log_area::maplet::KeyHash;
use crate::log_area::{Fences, LogArea};
use crate::operation::{KeyspaceId, OperationRef};
use crate::storage::compressed::{Compressor, StoredNode};
use crate::storage::dictionary::Dictionary;
use crate::storage::encrypted;
use crate::storage::entries::Entries;
use crate::storage::mapping_table::{Address, NodeLengths, Position};
use crate::storage::node;
use crate::storage::node::{Name, Node, NodeId, PIECE, Refusal};
use crate::storage::segment::Segment;
use crate::storage::writer::{Writer, WriterPosition};
use crate::version::edit::{Edit, NewRun};
use crate::version::manifest::EDIT_MAX;
use crate::version::{Tree, Version};
use std::collections::HashMap;
use std::ops::{DerefMut, Range};
use std::sync::Arc;

/// Bytes that a version builder writes between two reports of its progress: so many that reports cost nothing, and few
/// beside a queue.
const STEP: u64 = 256 << 10;

/// What identifies a node's bytes wherever they are stored: their length and checksum.
type Bytes = (u32, u32);

/// Length and checksum of a node in a version. A rewritten node has another epoch, and so another checksum.
fn bytes_of(version: &Version, id: NodeId) -> Option<Bytes> {
    version.table.address(id).map(|address| (address.len(), address.crc))
}

/// See the module.
pub(crate) struct VersionBuilder<'a> {
    base: Arc<Version>,
    pager: Arc<Pager>,
    writer: Box<dyn DerefMut<Target = Writer> + Send + 'a>,
    mark: Option<WriterPosition>,
    /// Ids that the version builder has taken, and ids that its edit frees.
    taken: Vec<NodeId>,
    freed: Vec<NodeId>,
    edit: Edit,
    live: u64,
    bytes: u64,
    bytes_reported: u64,
    admitted: Vec<Position>,
    replaced: Vec<Position>,
    encoded: Vec<u8>,
    compressed: Vec<u8>,
    /// Called now and then with the number of bytes written since the last call.
    report: &'a (dyn Fn(u64) + Sync),
    /// Blocks that got log pieces, with their length and checksum at that time.
    appended: HashMap<NodeId, Option<Bytes>>,
    /// The keyspace of each run in the edit.
    keyspaces: Vec<KeyspaceId>,
    /// What expires of the records in leaves, of segments for which that changes.
    expiring: HashMap<u64, ExpiringBytes>,
}

/// A piece of a run to be appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece<'a> {
    /// Above all keys of the piece before, and not above any of its own; ignored for the first piece.
    pub fence: &'a [u8],
    /// Range of its changes among those of the run.
    pub changes: Range<usize>,
}

/// What a version builder has written.
pub(crate) struct Sealed {
    pub edit: Edit,
    /// Segments that the version builder begins.
    pub begun: Vec<Arc<Segment>>,
}

/// The error for a node that is not what it was when it was read.
fn refused(id: NodeId, position: u64, refusal: Refusal) -> Error {
    Refusal { at: 0, ..refusal }.of_node(FILE, position, id)
}

impl<'a> VersionBuilder<'a> {
    /// Begins a version builder with a borrowed writer, or one of its own.
    pub fn begin(
        base: Arc<Version>,
        pager: &Arc<Pager>,
        writer: impl DerefMut<Target = Writer> + Send + 'a,
    ) -> Self {
        let mut writer: Box<dyn DerefMut<Target = Writer> + Send + 'a> = Box::new(writer);
        let mark = Some(writer.mark());
        let live = base.live_bytes();
        Self {
            base,
            pager: Arc::clone(pager),
            writer,
            mark,
            taken: Vec::new(),
            freed: Vec::new(),
            edit: Edit::default(),
            live,
            bytes: 0,
            bytes_reported: 0,
            admitted: Vec::new(),
            replaced: Vec::new(),
            encoded: Vec::new(),
            compressed: Vec::new(),
            report: &|_| {},
            appended: HashMap::new(),
            keyspaces: Vec::new(),
            expiring: HashMap::new(),
        }
    }

    /// From now on calls `report` with the number of bytes of nodes written since the last call, about every
    /// [`STEP`] bytes and at the end.
    pub fn reporting(mut self, report: &'a (dyn Fn(u64) + Sync)) -> Self {
        self.report = report;
        self
    }

    /// Moves to another base version. Allowed if the version builder has only written new nodes: log pieces of blocks
    /// that are [as they were](VersionBuilder::still_fits).
    pub fn go_on_at(&mut self, version: Arc<Version>) {
        debug_assert!(self.edit.emptied.is_empty() && self.edit.freed.is_empty(), "nothing was replaced");
        // An id that another thread has freed meanwhile was another node's in the version before.
        self.replaced.clear();
        self.base = version;
    }

    /// Whether all blocks that got log pieces are in this version what they were then.
    pub fn still_fits(&self, version: &Version) -> bool {
        self.appended.iter().all(|(block, bytes)| bytes_of(version, *block) == *bytes)
    }

    /// Whether the block got log pieces in this attempt.
    pub fn has_appended_to(&self, block: NodeId) -> bool {
        self.appended.contains_key(&block)
    }

    /// The version that the version builder starts from.
    pub fn base(&self) -> &Arc<Version> {
        &self.base
    }

    pub fn pager(&self) -> &Arc<Pager> {
        &self.pager
    }

    /// Bytes of nodes written so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Nodes written so far.
    pub fn nodes(&self) -> usize {
        self.edit.set.len()
    }

    /// Whether the edit has become so long that no more should be written.
    pub fn is_long(&self) -> bool {
        self.edit.lists_len() > (EDIT_MAX / 4) as u64
    }

    /// An id for a new node.
    pub fn allocate(&mut self) -> NodeId {
        let id = self.writer.file().take_id();
        self.taken.push(id);
        id
    }

    /// Writes a node with the first `count` entries under this id. Returns its bytes on the device.
    pub fn write(
        &mut self,
        id: NodeId,
        level: u8,
        keyspace: KeyspaceId,
        entries: &Entries,
        count: usize,
    ) -> Result<u64> {
        let name = Name { id, level, epoch: self.base.epoch + 1, keyspace };
        let mut encoded = std::mem::take(&mut self.encoded);
        let mut compressed = std::mem::take(&mut self.compressed);
        let crc = node::encode(&mut encoded, name, entries, count);
        let compressor = self.base.trees.get(&keyspace).map(|tree| Arc::clone(&tree.compressor));
        let dictionary = compressor.as_ref().and_then(|compressor| self.dictionary(keyspace, compressor));
        let compress = |compressor: Arc<Compressor>| {
            let entries = entries.records(count);
            let with = (dictionary.as_deref(), Some(&self.pager.samples));
            compressor.compress(name, &encoded, entries, with, &mut compressed)
        };
        let (is_compressed, mut crc) = match compressor.and_then(compress) {
            Some(crc) => (true, crc),
            None => (false, crc),
        };
        let memory_len = encoded.len();
        let was_cached = self.replace(id).is_some();
        // Copied before it is encrypted in its place.
        let node = (name.is_inner() || was_cached)
            .then(|| Node::decode(self.pager.reader.frames().copy(&encoded)).ok())
            .flatten();
        let stored = if is_compressed { &mut compressed } else { &mut encoded };
        let encryption = self.pager.reader.encryption();
        if encryption.is_on() {
            crc = encrypted::encrypt(encryption, stored);
        }
        let stored_len = stored.len();
        let position = self.append(id, stored, crc, NodeLengths::of(stored_len, memory_len.max(stored_len)));
        if let (Ok(position), true) = (&position, level == 0 && self.may_expire(keyspace)) {
            self.note_expiry(*position, entries.records(count));
        }
        if let (Ok(position), Some(node)) = (&position, node) {
            self.pager.admit(*position, node.stored_as(crc, stored_len));
            self.admitted.push(*position);
        }
        self.encoded = encoded;
        self.compressed = compressed;
        position.map(|_| stored_len as u64)
    }

    /// The dictionary of a keyspace, which comes into the manifest with the edit if it is new, or if it may not be there any more: that of a
    /// tree without nodes goes as soon as its keyspace is dropped, also while nodes are written for it.
    fn dictionary(&mut self, keyspace: KeyspaceId, compressor: &Compressor) -> Option<Arc<Dictionary>> {
        let found = self.base.segments.dictionaries.get(keyspace).cloned();
        let is_safe = self.base.trees.get(&keyspace).is_some_and(|tree| tree.root.is_some());
        if found.is_some() && is_safe {
            return found;
        }
        let trained = found.or_else(|| compressor.trained())?;
        if !self.edit.dictionaries.iter().any(|(id, _)| *id == keyspace) {
            self.edit.dictionaries.push((keyspace, Arc::clone(&trained)));
        }
        Some(trained)
    }

    /// The length of a leaf of this keyspace in memory, where one that is not compressed has `len` bytes.
    pub fn leaf_len(&self, keyspace: KeyspaceId, len: usize) -> usize {
        self.base.trees.get(&keyspace).map_or(len, |tree| tree.compressor.leaf_len(len))
    }

    /// Appends changes, which ascend by key, to a block's log area, as one run of these pieces.
    pub fn append_run(
        &mut self,
        block: NodeId,
        keyspace: KeyspaceId,
        changes: &[OperationRef<'_>],
        pieces: &[Piece<'_>],
    ) -> Result<()> {
        let mut entries = Entries::default();
        for (index, piece) in pieces.iter().enumerate() {
            let changes = &changes[piece.changes.clone()];
            entries.clear();
            for change in changes {
                entries.push(change.key, &node::change_payload(change.value));
            }
            let id = self.allocate();
            self.write(id, PIECE, keyspace, &entries, changes.len())?;
            self.edit.pieces.push(id);
            if index > 0 {
                Fences::put(&mut self.edit.fences, piece.fence);
            }
            self.edit.hashes.extend(changes.iter().map(|change| KeyHash::of(change.key)));
        }
        let removals = changes.iter().filter(|change| change.value.is_none()).count() as u32;
        let run = NewRun { pieces: pieces.len() as u32, count: changes.len() as u32, removals, fresh: 0 };
        self.edit.runs.push((block, run));
        self.keyspaces.push(keyspace);
        let before = self.appended.insert(block, bytes_of(&self.base, block));
        debug_assert!(before.is_none(), "a block is appended to once in an builder");
        Ok(())
    }

    /// Replaces all runs of a block's log area by one of these pieces; `changes` is the newest change of
    /// each key.
    pub fn merge_runs(
        &mut self,
        (block, area): (NodeId, &LogArea),
        keyspace: KeyspaceId,
        changes: &[OperationRef<'_>],
        pieces: &[Piece<'_>],
    ) -> Result<()> {
        self.empty_log(block);
        self.append_run(block, keyspace, changes, pieces)?;
        if let Some((_, run)) = self.edit.runs.last_mut() {
            run.fresh = area.fresh_percent();
        }
        Ok(())
    }

    /// Sets the percentage of new records, which the tree probably did not have, in all new runs, by
    /// keyspace.
    pub fn set_fresh(&mut self, percent: impl Fn(KeyspaceId) -> u64) {
        for ((_, run), keyspace) in self.edit.runs.iter_mut().zip(&self.keyspaces) {
            run.fresh = percent(*keyspace).min(100) as u32;
        }
    }

    /// Whether the block has a log area in the base version, or gets one in this attempt.
    pub fn has_log(&self, block: NodeId) -> bool {
        self.appended.contains_key(&block) || self.base.logs.get(block).is_some()
    }

    /// Frees all log pieces of a block, whose changes are in the leaves now.
    pub fn empty_log(&mut self, block: NodeId) {
        let base = Arc::clone(&self.base);
        let Some(area) = base.logs.get(block) else { return };
        self.edit.emptied.push(block);
        area.pieces().for_each(|piece| self.free(piece));
    }

    /// Copies a node to a new place, as it is stored, in as many bytes as the tree has counted: unchanged, or encrypted with the newest
    /// data key.
    pub fn relocate(&mut self, id: NodeId, node: &StoredNode) -> Result<()> {
        let of_stored = || NodeLengths::of(node.bytes().len(), node.bytes().len());
        let lens = self.base.table.address(id).map_or_else(of_stored, |address| address.lens());
        let renewed = match self.pager.reader.encryption() {
            encryption if encryption.is_on() => {
                encrypted::renew(encryption, node.bytes()).map_err(|refusal| refused(id, 0, refusal))?
            }
            _ => None,
        };
        let position = match &renewed {
            Some((bytes, crc)) => self.append(id, bytes, *crc, lens)?,
            None => self.append(id, node.bytes(), node.crc(), lens)?,
        };
        if node.name().level == 0 && self.may_expire(node.name().keyspace) {
            let reader = &self.pager.reader;
            let dictionaries = &self.base.segments.dictionaries;
            let node = node.open(reader.encryption(), reader.frames(), dictionaries);
            let node = node.map_err(|refusal| refused(id, position.0, refusal))?;
            self.note_expiry(position, (0..node.count()).map(|index| node.record(index)));
        }
        // Keep the cached node, which has memory of its own; the given one may lie in a read-ahead buffer.
        if let Some(cached) = self.replace(id) {
            let cached = match renewed {
                Some((bytes, crc)) => cached.stored_as(crc, bytes.len()),
                None => cached,
            };
            self.pager.admit(position, cached);
            self.admitted.push(position);
        }
        Ok(())
    }

    fn may_expire(&self, keyspace: KeyspaceId) -> bool {
        self.base.clock > 0 && self.base.trees.get(&keyspace).is_some_and(|tree| tree.ttl.is_some())
    }

    /// What expires of the records in leaves of a segment, as far as it is known now.
    fn expiring_in(&mut self, segment: u64) -> &mut ExpiringBytes {
        let of_base = || self.base.segments.get(segment).map(|entry| entry.expiring.clone());
        self.expiring.entry(segment).or_insert_with(|| of_base().unwrap_or_default())
    }

    /// Notes when the records of a leaf expire, or have expired: the collector moves leaves as they are.
    fn note_expiry<'r>(&mut self, position: Position, records: impl Iterator<Item = (&'r [u8], &'r [u8])>) {
        let expiring = records.filter_map(|(key, stored)| {
            let bytes = node::entry_len(key.len(), stored.len()) as u64;
            expires_at(stored).map(|at| (at, bytes))
        });
        let mut expiring = expiring.peekable();
        if expiring.peek().is_some() {
            let of_segment = self.expiring_in(position.0 / self.base.span);
            *of_segment = of_segment.with(expiring);
        }
    }

    /// All records in leaves of this segment that had expired by `now` are removed with the edit.
    pub fn clear_expired(&mut self, segment: u64, now: u64) {
        let of_segment = self.expiring_in(segment);
        *of_segment = of_segment.without_expired(now);
    }

    fn report_bytes(&mut self) {
        (self.report)(self.bytes - std::mem::replace(&mut self.bytes_reported, self.bytes));
    }

    /// Appends a stored node of these lengths.
    fn append(&mut self, id: NodeId, stored: &[u8], crc: u32, lens: NodeLengths) -> Result<Position> {
        let position = self.writer.append(stored, self.live + self.bytes)?;
        self.edit.set.push((id, Address::new(position, lens, crc)));
        self.bytes += stored.len() as u64;
        if self.bytes >= self.bytes_reported + STEP {
            self.report_bytes();
        }
        Ok(position)
    }

    /// Notes that the node's old address is about to die. Returns the node if it is in the cache.
    fn replace(&mut self, id: NodeId) -> Option<Node> {
        let old = self.base.table.address(id)?;
        self.replaced.push(old.position);
        self.pager.cached(old)
    }

    /// Frees a node.
    pub fn free(&mut self, id: NodeId) {
        self.replace(id);
        self.edit.freed.push(id);
    }

    /// Sets a tree's new root.
    pub fn set_tree(&mut self, id: KeyspaceId, tree: Tree) {
        self.edit.trees.push((id, tree));
    }

    /// For anything else that the edit is to say.
    pub fn edit_mut(&mut self) -> &mut Edit {
        &mut self.edit
    }

    /// Ends the writing. Returns the edit and the segments begun; the nodes are on their way to the device.
    pub fn seal(&mut self) -> Result<Sealed> {
        let written = self.writer.seal()?;
        self.report_bytes();
        let mut edit = std::mem::take(&mut self.edit);
        self.freed.clone_from(&edit.freed);
        // An id that is freed twice would be handed out twice.
        self.freed.sort_unstable();
        self.freed.dedup();
        debug_assert_eq!(self.freed.len(), edit.freed.len(), "a node is set free once");
        edit.segments = written.begun.iter().map(|segment| (segment.number, segment.start)).collect();
        edit.used = written.used;
        edit.expiring = self.expiring.drain().collect();
        edit.expiring.sort_unstable_by_key(|(segment, _)| *segment);
        edit.open_segment = self.writer.open_segment();
        Ok(Sealed { edit, begun: written.begun })
    }

    /// Waits until all nodes are on the device (not yet durable).
    pub fn finish(&mut self) -> Result<()> {
        self.writer.finish()
    }

    /// To be called when the edit is durable and published.
    pub fn committed(mut self) {
        self.mark = None;
        self.writer.file().give_back_ids(self.freed.drain(..));
        for position in &self.replaced {
            self.pager.forget(*position);
        }
    }
}

impl Drop for VersionBuilder<'_> {
    fn drop(&mut self) {
        if let Some(mark) = self.mark.take() {
            for position in &self.admitted {
                self.pager.forget(*position);
            }
            self.writer.abort(mark);
            self.writer.file().give_back_ids(self.taken.drain(..));
        }
    }
}
