//! Frames with a log sector in memory each: nodes as they are, and the changes of each that are not on flash yet. When a frame
//! is evicted, its log sector is written, and not the node. (Lee and Moon, SIGMOD 2007; rules 1 and 2 of the d-IPL paper.)
//!
//! Invariants:
//! 1. A frame's node is what flash holds, with its log sector applied.
//! 2. A log sector never holds more than one unit: who adds to it writes it when it is full.

use crate::page::NodeId;
use crate::page::log_unit::RECORD_MAX;
use crate::page::node::Node;
use crate::page::node_change::Change;
use lru::LruCache;
use std::sync::Arc;

struct Frame {
    node: Arc<Node>,
    sector: Vec<Change>,
    /// Bytes that the sector takes as records.
    bytes: usize,
}

/// See the module.
pub(crate) struct LogFrames {
    frames: LruCache<NodeId, Frame>,
    capacity: usize,
    sector_len: usize,
}

impl LogFrames {
    /// `capacity` frames (at least 1) with sectors of `sector_len` bytes of records.
    pub fn new(capacity: usize, sector_len: usize) -> Self {
        Self { frames: LruCache::unbounded(), capacity: capacity.max(1), sector_len }
    }

    /// The node, if it is here; its frame is then the one used last.
    pub fn get(&mut self, id: NodeId) -> Option<Arc<Node>> {
        self.frames.get(&id).map(|frame| Arc::clone(&frame.node))
    }

    /// The node, if it is here.
    pub fn peek(&self, id: NodeId) -> Option<Arc<Node>> {
        self.frames.peek(&id).map(|frame| Arc::clone(&frame.node))
    }

    /// The node is as it is on flash.
    pub fn put(&mut self, id: NodeId, node: Arc<Node>) {
        self.frames.put(id, Frame { node, sector: Vec::new(), bytes: 0 });
    }

    /// The node has changed, and so its sector. Whether the sector has no room for one more change.
    pub fn put_changed(&mut self, id: NodeId, node: Arc<Node>, change: Change) -> bool {
        let mut frame = self.frames.pop(&id).unwrap_or_else(|| Frame {
            node: Arc::clone(&node),
            sector: Vec::new(),
            bytes: 0,
        });
        frame.node = node;
        frame.bytes += change.record(0).len();
        frame.sector.push(change);
        let full = frame.bytes + RECORD_MAX > self.sector_len;
        self.frames.put(id, frame);
        full
    }

    pub fn remove(&mut self, id: NodeId) {
        self.frames.pop(&id);
    }

    /// What is not on flash yet.
    pub fn sector(&self, id: NodeId) -> &[Change] {
        self.frames.peek(&id).map_or(&[], |frame| &frame.sector)
    }

    /// It is now.
    pub fn written(&mut self, id: NodeId) {
        if let Some(frame) = self.frames.peek_mut(&id) {
            frame.sector.clear();
            frame.bytes = 0;
        }
    }

    /// The frame to be evicted next, if there are too many.
    pub fn too_many(&self) -> Option<NodeId> {
        if self.frames.len() <= self.capacity {
            return None;
        }
        self.frames.peek_lru().map(|(id, _)| *id)
    }

    /// Nodes whose sectors hold something.
    pub fn dirty(&self) -> Vec<NodeId> {
        let dirty = self.frames.iter().filter(|(_, frame)| !frame.sector.is_empty());
        let mut dirty: Vec<_> = dirty.map(|(id, _)| *id).collect();
        dirty.sort_unstable();
        dirty
    }

    /// Bytes of memory: nodes of `node_len` and sectors.
    pub fn memory(&self, node_len: usize) -> u64 {
        (self.frames.len() * (node_len + self.sector_len)) as u64
    }
}
