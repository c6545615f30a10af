//! A buffer pool for many threads: nobody waits for another's page, only for the page that it wants itself.
//!
//! Invariants:
//! 1. A page is read or written by one thread at a time; whoever wants it meanwhile waits for that one.
//! 2. At most `frames` nodes are held, apart from those that are on their way.
//! 3. What [`LatchedPool::read`] returns is what was last written.

use crate::page::NodeId;
use crate::sound::Sound;
use crate::store::in_place::{InPlaceStore, PageCodec};
use crate::{Counters, Result};
use lru::LruCache;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::HashSet;
use std::sync::Arc;

struct Frame<N> {
    node: Arc<N>,
    dirty: bool,
}

struct State<N> {
    frames: LruCache<NodeId, Frame<N>>,
    /// Pages that some thread reads or writes.
    on_the_way: HashSet<NodeId>,
    hits: u64,
}

/// See the module.
pub(crate) struct LatchedPool<N> {
    store: InPlaceStore<N>,
    frames: usize,
    state: Mutex<State<N>>,
    arrived: Condvar,
    sound: Sound,
}

impl<N: PageCodec> LatchedPool<N> {
    /// A pool of `frames` frames, at least one.
    pub fn new(store: InPlaceStore<N>, frames: usize) -> Self {
        let state = State { frames: LruCache::unbounded(), on_the_way: HashSet::new(), hits: 0 };
        let (arrived, sound) = (Condvar::new(), Sound::default());
        Self { store, frames: frames.max(1), state: Mutex::new(state), arrived, sound }
    }

    /// Which its tree shares: a read may fail at a write of what it evicts.
    pub fn sound(&self) -> Sound {
        self.sound.clone()
    }

    pub fn store(&self) -> &InPlaceStore<N> {
        &self.store
    }

    pub fn store_mut(&mut self) -> &mut InPlaceStore<N> {
        &mut self.store
    }

    /// Waits until nobody reads or writes the page.
    fn wait<'a>(&'a self, mut state: MutexGuard<'a, State<N>>, id: NodeId) -> MutexGuard<'a, State<N>> {
        while state.on_the_way.contains(&id) {
            self.arrived.wait(&mut state);
        }
        state
    }

    /// Moves a page without keeping the pool: what `work` does to it, nobody else does meanwhile.
    fn on_the_way<'a, T>(
        &'a self,
        mut state: MutexGuard<'a, State<N>>,
        id: NodeId,
        work: impl FnOnce() -> Result<T>,
    ) -> (MutexGuard<'a, State<N>>, Result<T>) {
        state.on_the_way.insert(id);
        let result = MutexGuard::unlocked(&mut state, work);
        state.on_the_way.remove(&id);
        self.arrived.notify_all();
        (state, result)
    }

    /// Evicts what is too much.
    fn shrink<'a>(&'a self, mut state: MutexGuard<'a, State<N>>) -> Result<MutexGuard<'a, State<N>>> {
        while state.frames.len() > self.frames {
            let Some((id, frame)) = state.frames.pop_lru() else { break };
            if frame.dirty {
                let result;
                (state, result) = self.on_the_way(state, id, || self.store.write_pages([(id, &*frame.node)]));
                if let Err(error) = self.sound.after(result) {
                    state.frames.put(id, frame);
                    return Err(error);
                }
            }
        }
        Ok(state)
    }

    /// A node, from its frame or from the device.
    pub fn read(&self, id: NodeId) -> Result<Arc<N>> {
        let mut state = self.wait(self.state.lock(), id);
        if let Some(frame) = state.frames.get(&id) {
            let node = Arc::clone(&frame.node);
            state.hits += 1;
            return Ok(node);
        }
        let (mut state, node) = self.on_the_way(state, id, || self.store.read_pages(&[id]));
        let node = Arc::new(node?.remove(0));
        state.frames.put(id, Frame { node: Arc::clone(&node), dirty: false });
        drop(self.shrink(state)?);
        Ok(node)
    }

    /// Replaces a node. The caller keeps other writers of it away.
    pub fn write(&self, id: NodeId, node: N) -> Result<()> {
        let mut state = self.wait(self.state.lock(), id);
        state.frames.put(id, Frame { node: Arc::new(node), dirty: true });
        drop(self.shrink(state)?);
        Ok(())
    }

    /// Writes all that is dirty. Nobody else is there.
    pub fn write_all(&mut self) -> Result<()> {
        let state = self.state.get_mut();
        let mut dirty: Vec<_> =
            state.frames.iter().filter(|(_, frame)| frame.dirty).map(|(id, _)| *id).collect();
        dirty.sort_unstable();
        for id in dirty {
            if let Some(frame) = state.frames.peek_mut(&id) {
                self.store.write_pages([(id, &*frame.node)])?;
                frame.dirty = false;
            }
        }
        Ok(())
    }

    /// Pages, hits and space.
    pub fn counters(&self) -> Counters {
        let state = self.state.lock();
        let memory = (state.frames.len() * self.store.page_len()) as u64;
        Counters { hits: state.hits, memory, ..self.store.counters() }
    }
}
