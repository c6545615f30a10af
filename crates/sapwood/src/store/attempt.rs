//! One attempt to bring the store from a version to the next: new nodes go to the writer, and an edit says what they
//! replace. It succeeds as a whole, when the edit is committed, or leaves no trace.
//!
//! ```text
//! begin ──write, relocate, free──▶ … ──seal, finish──▶ (sync data, commit edit) ──committed──▶ done
//!   └───────────────────────────── dropped anywhere before: aborted ─────────────────────────────▶
//! ```
//!
//! Invariants:
//! 1. Nothing that the base version can reach is changed or overwritten.
//! 2. After an abort, writer and cache are as they were at the beginning.

use crate::entries::Entries;
use crate::error::Result;
use crate::node::{self, Name, Node, NodeId, PIECE};
use crate::operation::{KeyspaceId, OperationRef};
use crate::store::edit::{Edit, NewLayer};
use crate::store::log_area::{Fences, LogArea};
use crate::store::manifest::EDIT_MAX;
use crate::store::maplet::KeyHash;
use crate::store::mapping_table::{Address, Position};
use crate::store::pager::Pager;
use crate::store::segment::Segment;
use crate::store::version::{Tree, Version};
use crate::store::writer::{Mark, Writer};
use std::collections::HashMap;
use std::ops::{DerefMut, Range};
use std::sync::Arc;

/// How often an attempt tells how far it has come, in bytes.
const STEP: u64 = 256 << 10;

/// What a node's bytes are known by, wherever they lie: how many they are, and what they add up to.
type Bytes = (u32, u32);

/// Those of a node in a version. Who writes a node anew gives it another epoch, so that they add up to something else.
fn bytes_of(version: &Version, id: NodeId) -> Option<Bytes> {
    version.table.address(id).map(|Address { len, crc, .. }| (len, crc))
}

/// See the module.
pub(crate) struct Attempt<'a> {
    base: Arc<Version>,
    pager: &'a Pager,
    writer: Box<dyn DerefMut<Target = Writer> + Send + 'a>,
    mark: Option<Mark>,
    /// Ids that it has taken, and those that its edit frees.
    taken: Vec<NodeId>,
    freed: Vec<NodeId>,
    edit: Edit,
    live: u64,
    bytes: u64,
    bytes_told: u64,
    admitted: Vec<Position>,
    replaced: Vec<Position>,
    encoded: Vec<u8>,
    /// Is told now and then how many bytes more are written.
    told: &'a (dyn Fn(u64) + Sync),
    /// Blocks that have got log pieces, and what they were then.
    appended: HashMap<NodeId, Option<Bytes>>,
    /// Of each layer in the edit.
    keyspaces: Vec<KeyspaceId>,
}

/// A piece of a layer that is to be appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece<'a> {
    /// Above all keys of the piece before, and not above any of its own; not looked at in the first.
    pub fence: &'a [u8],
    /// Its changes among those of the layer.
    pub changes: Range<usize>,
}

/// What an attempt has brought to the device.
pub(crate) struct Sealed {
    pub edit: Edit,
    /// Segments that it begins.
    pub begun: Vec<Arc<Segment>>,
}

impl<'a> Attempt<'a> {
    /// With a writer that is lent, or one of its own.
    pub fn begin(
        base: Arc<Version>,
        pager: &'a Pager,
        writer: impl DerefMut<Target = Writer> + Send + 'a,
    ) -> Self {
        let mut writer: Box<dyn DerefMut<Target = Writer> + Send + 'a> = Box::new(writer);
        let mark = Some(writer.mark());
        let live = base.live_bytes();
        Self {
            base,
            pager,
            writer,
            mark,
            taken: Vec::new(),
            freed: Vec::new(),
            edit: Edit::default(),
            live,
            bytes: 0,
            bytes_told: 0,
            admitted: Vec::new(),
            replaced: Vec::new(),
            encoded: Vec::new(),
            told: &|_| {},
            appended: HashMap::new(),
            keyspaces: Vec::new(),
        }
    }

    /// From now on `told` is told how many bytes of nodes more are written, each time these are [`STEP`] or so, and in the end.
    pub fn telling(mut self, told: &'a (dyn Fn(u64) + Sync)) -> Self {
        self.told = told;
        self
    }

    /// Goes on at another version, if all that it has written is new: log pieces of blocks that are [as they were](Attempt::still_fits), and no more.
    pub fn go_on_at(&mut self, version: Arc<Version>) {
        debug_assert!(self.edit.emptied.is_empty() && self.edit.freed.is_empty(), "nothing was replaced");
        // An id that somebody else has set free meanwhile was another node's in the version before.
        self.replaced.clear();
        self.base = version;
    }

    /// Whether the blocks that have got log pieces are in this version what they were when they got them.
    pub fn still_fits(&self, version: &Version) -> bool {
        self.appended.iter().all(|(block, bytes)| bytes_of(version, *block) == *bytes)
    }

    /// Whether a block has got log pieces.
    pub fn has_appended_to(&self, block: NodeId) -> bool {
        self.appended.contains_key(&block)
    }

    /// The version that this attempt begins at.
    pub fn base(&self) -> &Arc<Version> {
        &self.base
    }

    pub fn pager(&self) -> &'a Pager {
        self.pager
    }

    /// Bytes of nodes written so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Nodes written so far.
    pub fn nodes(&self) -> usize {
        self.edit.set.len()
    }

    /// Whether no more should be written, because the edit has become long.
    pub fn is_long(&self) -> bool {
        self.edit.nodes_len() > (EDIT_MAX / 4) as u64
    }

    /// An id for a node that is new.
    pub fn allocate(&mut self) -> NodeId {
        let id = self.writer.file().take_id();
        self.taken.push(id);
        id
    }

    /// Writes a node anew, of the first `count` entries.
    pub fn write(
        &mut self,
        id: NodeId,
        level: u8,
        keyspace: KeyspaceId,
        entries: &Entries,
        count: usize,
    ) -> Result<()> {
        let name = Name { id, level, epoch: self.base.epoch + 1, keyspace };
        let mut encoded = std::mem::take(&mut self.encoded);
        let crc = node::encode(&mut encoded, name, entries, count);
        let position = self.append(id, &encoded, crc);
        let was_cached = self.replace(id).is_some();
        if let (Ok(position), true) = (&position, name.is_inner() || was_cached)
            && let Ok(node) = Node::decode(self.pager.reader.frames().copy(&encoded))
        {
            self.pager.admit(*position, node);
            self.admitted.push(*position);
        }
        self.encoded = encoded;
        position.map(|_| ())
    }

    /// Appends changes, which ascend by key, to a block's log area: a layer of these pieces.
    pub fn append_layer(
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
        let layer = NewLayer { pieces: pieces.len() as u32, count: changes.len() as u32, removals, fresh: 0 };
        self.edit.layers.push((block, layer));
        self.keyspaces.push(keyspace);
        let before = self.appended.insert(block, bytes_of(&self.base, block));
        debug_assert!(before.is_none(), "a block is appended to once in an attempt");
        Ok(())
    }

    /// Gives up the layers of a block's log area, of which these changes are all that counts: they are one layer now, of these pieces.
    pub fn merge_layers(
        &mut self,
        (block, area): (NodeId, &LogArea),
        keyspace: KeyspaceId,
        changes: &[OperationRef<'_>],
        pieces: &[Piece<'_>],
    ) -> Result<()> {
        self.empty_log(block);
        self.append_layer(block, keyspace, changes, pieces)?;
        if let Some((_, layer)) = self.edit.layers.last_mut() {
            layer.fresh = area.fresh_percent();
        }
        Ok(())
    }

    /// So many in a hundred of the changes to a keyspace in new layers are records that its tree did not have, probably.
    pub fn set_fresh(&mut self, percent: impl Fn(KeyspaceId) -> u64) {
        for ((_, layer), keyspace) in self.edit.layers.iter_mut().zip(&self.keyspaces) {
            layer.fresh = percent(*keyspace).min(100) as u32;
        }
    }

    /// Whether the block has a log area in the version that the attempt is at, or gets one.
    pub fn has_log(&self, block: NodeId) -> bool {
        self.appended.contains_key(&block) || self.base.logs.get(block).is_some()
    }

    /// Gives up all log pieces of a block, whose changes the leaves have now.
    pub fn empty_log(&mut self, block: NodeId) {
        let base = Arc::clone(&self.base);
        let Some(area) = base.logs.get(block) else { return };
        self.edit.emptied.push(block);
        area.pieces().for_each(|piece| self.free(piece));
    }

    /// Writes a node as it is to a new place.
    pub fn relocate(&mut self, id: NodeId, node: &Node) -> Result<()> {
        let position = self.append(id, node.bytes(), node.crc())?;
        // The one that is there has memory of its own; the given one may lie in what was read ahead.
        if let Some(cached) = self.replace(id) {
            self.pager.admit(position, cached);
            self.admitted.push(position);
        }
        Ok(())
    }

    fn tell(&mut self) {
        (self.told)(self.bytes - std::mem::replace(&mut self.bytes_told, self.bytes));
    }

    fn append(&mut self, id: NodeId, bytes: &[u8], crc: u32) -> Result<Position> {
        let position = self.writer.append(bytes, self.live + self.bytes)?;
        let len = bytes.len() as u32;
        self.edit.set.push((id, Address { position, len, crc }));
        self.bytes += u64::from(len);
        if self.bytes >= self.bytes_told + STEP {
            self.tell();
        }
        Ok(position)
    }

    /// Notes that the node's old place is about to die. Gives the node, if it is in the cache.
    fn replace(&mut self, id: NodeId) -> Option<Node> {
        let old = self.base.table.address(id)?;
        self.replaced.push(old.position);
        self.pager.cached(old)
    }

    /// Gives a node up.
    pub fn free(&mut self, id: NodeId) {
        self.replace(id);
        self.edit.freed.push(id);
    }

    /// Notes a tree's new root.
    pub fn set_tree(&mut self, id: KeyspaceId, tree: Tree) {
        self.edit.trees.push((id, tree));
    }

    /// For what else the edit is to say.
    pub fn edit_mut(&mut self) -> &mut Edit {
        &mut self.edit
    }

    /// Nothing more is written. Gives the edit and what goes with it; the nodes are on their way to the device.
    pub fn seal(&mut self) -> Result<Sealed> {
        let written = self.writer.seal()?;
        self.tell();
        let mut edit = std::mem::take(&mut self.edit);
        self.freed.clone_from(&edit.freed);
        // One that was free twice would be taken twice.
        self.freed.sort_unstable();
        self.freed.dedup();
        debug_assert_eq!(self.freed.len(), edit.freed.len(), "a node is set free once");
        edit.segments = written.begun.iter().map(|segment| (segment.number, segment.slot)).collect();
        edit.used = written.used;
        edit.open_segment = self.writer.open_segment();
        Ok(Sealed { edit, begun: written.begun })
    }

    /// Waits until all nodes are on the device (not yet durable).
    pub fn finish(&mut self) -> Result<()> {
        self.writer.finish()
    }

    /// The edit is durable and published.
    pub fn committed(mut self) {
        self.mark = None;
        self.writer.file().give_back_ids(self.freed.drain(..));
        for position in &self.replaced {
            self.pager.forget(*position);
        }
    }
}

impl Drop for Attempt<'_> {
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
