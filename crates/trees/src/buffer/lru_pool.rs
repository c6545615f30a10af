//! The buffer pool: frames in order of their last use, or level by level; a dirty one is written when it is evicted (steal,
//! no force).
//!
//! Invariants:
//! 1. At most `frames` nodes are held, dirty ones included. With 0 frames every read and write goes to the device.
//! 2. What [`NodeStore::read`] returns is what was last written, wherever it is.

use crate::buffer::frames::{Eviction, Frames};
use crate::page::NodeId;
use crate::page::node::{Node, Shape};
use crate::sound::Sound;
use crate::store::in_place::InPlaceStore;
use crate::store::{NodeStore, Root};
use crate::{Counters, Result};
use parking_lot::Mutex;
use std::sync::Arc;

struct Frame {
    node: Arc<Node>,
    dirty: bool,
}

/// Nodes in place, behind a pool of frames.
pub(crate) struct LruPool {
    store: InPlaceStore,
    shape: Shape,
    root: Root,
    state: Mutex<State>,
    sound: Sound,
}

struct State {
    frames: Frames<NodeId, Frame>,
    hits: u64,
}

impl LruPool {
    /// An LRU pool of `frames` frames in front of `store`.
    pub fn new(store: InPlaceStore, shape: Shape, frames: usize) -> Self {
        Self::with_eviction(store, shape, frames, Eviction::Lru)
    }

    /// The same with another policy.
    pub fn with_eviction(store: InPlaceStore, shape: Shape, frames: usize, eviction: Eviction) -> Self {
        let root = store.durable_root();
        let state = State { frames: Frames::new(eviction, frames), hits: 0 };
        Self { store, shape, root, state: Mutex::new(state), sound: Sound::default() }
    }

    pub fn store_mut(&mut self) -> &mut InPlaceStore {
        &mut self.store
    }

    /// Which its tree shares: a read may fail at a write of what it evicts.
    pub fn sound(&self) -> Sound {
        self.sound.clone()
    }

    /// Puts a node into a frame, and evicts what that is too much.
    fn put(&self, state: &mut State, id: NodeId, frame: Frame) -> Result<()> {
        let level = frame.node.level();
        state.frames.put(id, level, 1, frame);
        while let Some((id, frame)) = state.frames.excess() {
            if frame.dirty {
                self.sound.after(self.store.write_pages([(id, &*frame.node)]))?;
            }
            state.frames.pop(&id);
        }
        Ok(())
    }
}

impl NodeStore for LruPool {
    fn shape(&self) -> Shape {
        self.shape
    }

    fn root(&self) -> Root {
        self.root
    }

    fn set_root(&mut self, root: Root) {
        self.root = root;
    }

    fn read(&self, id: NodeId) -> Result<Arc<Node>> {
        Ok(self.read_many(&[id])?.remove(0))
    }

    fn read_many(&self, ids: &[NodeId]) -> Result<Vec<Arc<Node>>> {
        let mut state = self.state.lock();
        let mut found: Vec<Option<Arc<Node>>> =
            ids.iter().map(|id| state.frames.get(id).map(|frame| Arc::clone(&frame.node))).collect();
        let missing: Vec<NodeId> =
            ids.iter().zip(&found).filter(|(_, found)| found.is_none()).map(|(id, _)| *id).collect();
        state.hits += (ids.len() - missing.len()) as u64;
        let mut read =
            if missing.is_empty() { Vec::new() } else { self.store.read_pages(&missing)? }.into_iter();
        for (id, found) in ids.iter().zip(&mut found) {
            if found.is_none()
                && let Some(node) = read.next()
            {
                let node = Arc::new(node);
                if ids.len() == 1 || state.frames.admits(node.level(), 1) {
                    self.put(&mut state, *id, Frame { node: Arc::clone(&node), dirty: false })?;
                }
                *found = Some(node);
            }
        }
        Ok(found.into_iter().flatten().collect())
    }

    fn write(&mut self, id: NodeId, node: Node) -> Result<()> {
        let mut state = self.state.lock();
        self.put(&mut state, id, Frame { node: Arc::new(node), dirty: true })
    }

    fn write_many(&mut self, nodes: Vec<(NodeId, Node)>) -> Result<()> {
        let mut state = self.state.lock();
        self.store.write_pages(nodes.iter().map(|(id, node)| (*id, node)))?;
        for (id, _) in nodes {
            state.frames.pop(&id);
        }
        Ok(())
    }

    fn allocate(&mut self) -> NodeId {
        self.store.allocate()
    }

    fn free(&mut self, id: NodeId) -> Result<()> {
        self.state.lock().frames.pop(&id);
        self.store.free(id);
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        let mut state = self.state.lock();
        let mut dirty: Vec<_> =
            state.frames.iter().filter(|(_, frame)| frame.dirty).map(|(id, _)| *id).collect();
        dirty.sort_unstable();
        for id in dirty {
            if let Some(frame) = state.frames.peek_mut(&id) {
                self.store.write_pages([(id, &*frame.node)])?;
                frame.dirty = false;
            }
        }
        self.store.sync(self.root)
    }

    fn counters(&self) -> Counters {
        let state = self.state.lock();
        Counters {
            hits: state.hits,
            memory: (state.frames.len() * self.store.page_len()) as u64,
            ..self.store.counters()
        }
    }
}
