//! The buffer of a tree that never has dirty pages: frames in order of their last use, or level by level, for inner nodes in
//! place and for append-only leaves; whatever is written goes to the device at once, as one psync set.
//!
//! Invariants:
//! 1. At most `frames` pages are held; a leaf takes as many as it has segments.
//! 2. What is held is what the device holds.

use crate::Result;
use crate::buffer::frames::{Eviction, Frames};
use crate::page::NodeId;
use crate::page::leaf_segments::Segment;
use crate::page::node::Node;
use crate::store::in_place::InPlaceStore;
use crate::store::leaf_extents::{LeafExtents, SegmentedLeaf};
use parking_lot::Mutex;
use std::sync::Arc;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Name {
    Inner(NodeId),
    Leaf(NodeId),
}

#[derive(Clone)]
enum Frame {
    Inner(Arc<Node>),
    Leaf(Arc<SegmentedLeaf>),
}

impl Frame {
    fn level(&self) -> u8 {
        match self {
            Frame::Inner(node) => node.level(),
            Frame::Leaf(_) => 0,
        }
    }
}

struct State {
    frames: Frames<Name, Frame>,
    hits: u64,
}

/// See the module.
pub(crate) struct WriteThrough {
    pub inner: InPlaceStore,
    pub leaves: LeafExtents,
    state: Mutex<State>,
}

impl WriteThrough {
    /// Holds at most `frames` pages.
    pub fn new(inner: InPlaceStore, leaves: LeafExtents, frames: usize, eviction: Eviction) -> Self {
        let state = State { frames: Frames::new(eviction, frames), hits: 0 };
        Self { inner, leaves, state: Mutex::new(state) }
    }

    /// Begins anew, with other frames.
    pub fn hold(&mut self, frames: usize, eviction: Eviction) {
        self.state.get_mut().frames = Frames::new(eviction, frames);
    }

    fn weight(&self, name: Name) -> usize {
        match name {
            Name::Inner(_) => 1,
            Name::Leaf(_) => self.leaves.segments(),
        }
    }

    /// Holds what was read or written; of a batch only what may come in.
    fn put(&self, state: &mut State, name: Name, frame: Frame, batch: bool) {
        let (level, pages) = (frame.level(), self.weight(name));
        state.frames.pop(&name);
        if batch && !state.frames.admits(level, pages) {
            return;
        }
        state.frames.put(name, level, pages, frame);
        while let Some((evicted, _)) = state.frames.excess() {
            state.frames.pop(&evicted);
        }
    }

    /// What is held of these, and reads the rest with one psync.
    fn read<T>(
        &self,
        ids: &[NodeId],
        name: impl Fn(NodeId) -> Name,
        of: impl Fn(&Frame) -> Option<Arc<T>>,
        frame: impl Fn(Arc<T>) -> Frame,
        read: impl Fn(&[NodeId]) -> Result<Vec<T>>,
    ) -> Result<Vec<Arc<T>>> {
        let mut state = self.state.lock();
        let mut found: Vec<Option<Arc<T>>> =
            ids.iter().map(|id| state.frames.get(&name(*id)).and_then(&of)).collect();
        let missing: Vec<NodeId> =
            ids.iter().zip(&found).filter(|(_, found)| found.is_none()).map(|(id, _)| *id).collect();
        state.hits += (ids.len() - missing.len()) as u64;
        if missing.is_empty() {
            return Ok(found.into_iter().flatten().collect());
        }
        // Readers do not wait for each other's reads.
        drop(state);
        let mut read = read(&missing)?.into_iter();
        let mut state = self.state.lock();
        for (id, found) in ids.iter().zip(&mut found) {
            if found.is_none()
                && let Some(item) = read.next()
            {
                let item = Arc::new(item);
                self.put(&mut state, name(*id), frame(Arc::clone(&item)), ids.len() > 1);
                *found = Some(item);
            }
        }
        Ok(found.into_iter().flatten().collect())
    }

    /// Inner nodes, in the order asked.
    pub fn read_inner(&self, ids: &[NodeId]) -> Result<Vec<Arc<Node>>> {
        let of = |frame: &Frame| match frame {
            Frame::Inner(node) => Some(Arc::clone(node)),
            Frame::Leaf(_) => None,
        };
        self.read(ids, Name::Inner, of, Frame::Inner, |missing| self.inner.read_pages(missing))
    }

    /// Whole leaves, in the order asked.
    pub fn read_leaves(&self, ids: &[NodeId]) -> Result<Vec<Arc<SegmentedLeaf>>> {
        let of = |frame: &Frame| match frame {
            Frame::Leaf(leaf) => Some(Arc::clone(leaf)),
            Frame::Inner(_) => None,
        };
        self.read(ids, Name::Leaf, of, Frame::Leaf, |missing| self.leaves.read_leaves(missing))
    }

    /// Writes inner nodes with one psync.
    pub fn write_inner(&self, nodes: Vec<(NodeId, Node)>) -> Result<()> {
        self.inner.write_pages(nodes.iter().map(|(id, node)| (*id, node)))?;
        let mut state = self.state.lock();
        for (id, node) in nodes {
            self.put(&mut state, Name::Inner(id), Frame::Inner(Arc::new(node)), true);
        }
        Ok(())
    }

    /// Writes segments with one psync.
    pub fn write_segments(&self, segments: &[Segment]) -> Result<()> {
        self.leaves.write_segments(segments)?;
        let mut state = self.state.lock();
        for segment in segments {
            state.frames.pop(&Name::Leaf(segment.leaf));
        }
        Ok(())
    }

    pub fn hits(&self) -> u64 {
        self.state.lock().hits
    }

    /// Pages held now.
    pub fn pages(&self) -> usize {
        self.state.lock().frames.pages()
    }
}
