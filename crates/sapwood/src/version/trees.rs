//! The trees of a version, by keyspace.
//!
//! Invariants:
//! 1. A table is a value: changing a clone leaves the original as it was. What is copied is one chunk and a list
//!    of the others, so that a change costs nearly the same with a hundred thousand keyspaces as with ten.
//! 2. `bytes` is the sum of what the trees take.

use crate::operation::KeyspaceId;
use crate::version::Tree;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Ids of a chunk (count). With a hundred thousand keyspaces, a change copies about as many trees as references to
/// chunks.
const CHUNK: u32 = 256;
type Chunk = Vec<(KeyspaceId, Tree)>;
/// Memory of a chunk beside its trees, in bytes: its place in the map, and two headers of allocations.
const CHUNK_OVERHEAD: usize = 100;

/// Keyspace → tree, in the order of ids.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Trees {
    /// By id / [`CHUNK`]; none is empty.
    chunks: BTreeMap<u32, Arc<Chunk>>,
    len: usize,
    /// Memory of the trees, in bytes.
    bytes: usize,
}

impl Trees {
    pub fn get(&self, id: &KeyspaceId) -> Option<&Tree> {
        let chunk = self.chunks.get(&(id.0 / CHUNK))?;
        chunk.binary_search_by_key(id, |(id, _)| *id).ok().map(|at| &chunk[at].1)
    }

    /// Inserts a tree, or replaces the one of this id.
    pub fn insert(&mut self, id: KeyspaceId, tree: Tree) {
        let chunk = Arc::make_mut(self.chunks.entry(id.0 / CHUNK).or_default());
        self.bytes += tree.memory();
        match chunk.binary_search_by_key(&id, |(id, _)| *id) {
            Ok(at) => self.bytes -= std::mem::replace(&mut chunk[at].1, tree).memory(),
            Err(at) => {
                chunk.insert(at, (id, tree));
                self.len += 1;
            }
        }
    }

    /// Removes a tree, and returns it.
    pub fn remove(&mut self, id: &KeyspaceId) -> Option<Tree> {
        let chunk = self.chunks.get_mut(&(id.0 / CHUNK))?;
        let at = chunk.binary_search_by_key(id, |(id, _)| *id).ok()?;
        let (_, tree) = Arc::make_mut(chunk).remove(at);
        if chunk.is_empty() {
            self.chunks.remove(&(id.0 / CHUNK));
        }
        self.len -= 1;
        self.bytes -= tree.memory();
        Some(tree)
    }

    /// Bytes of memory taken.
    pub fn memory(&self) -> usize {
        self.bytes + self.chunks.len() * CHUNK_OVERHEAD
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn contains(&self, id: &KeyspaceId) -> bool {
        self.get(id).is_some()
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = (KeyspaceId, &Tree)> {
        self.from(KeyspaceId(0))
    }

    /// Those of `first` and larger ids, in order.
    pub fn from(&self, first: KeyspaceId) -> impl Iterator<Item = (KeyspaceId, &Tree)> {
        let chunks = self.chunks.range(first.0 / CHUNK..);
        let all = chunks.flat_map(|(_, chunk)| chunk.iter().map(|(id, tree)| (*id, tree)));
        all.skip_while(move |(id, _)| *id < first)
    }

    /// All of them as they are now, in order. Keeps only those in memory that were not returned yet.
    pub fn each_once(&self) -> impl Iterator<Item = (KeyspaceId, Tree)> + Send + use<> {
        let chunks = self.chunks.clone().into_values();
        chunks.flat_map(|chunk| (0..chunk.len()).map(move |index| chunk[index].clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tree(len: u64) -> Tree {
        Tree { len, ..Tree::empty("name".into()) }
    }

    proptest! {
        #[test]
        fn it_is_an_ordered_map_whose_clones_keep_what_they_saw(
            changed in prop::collection::vec((0u32..2000, prop::option::weighted(0.8, 0u64..100)), 0..300),
            kept_at in 0usize..300,
            first in 0u32..2200,
        ) {
            let (mut trees, mut model) = (Trees::default(), BTreeMap::new());
            let mut kept = None;
            for (at, (id, len)) in changed.iter().enumerate() {
                if at == kept_at {
                    kept = Some((trees.clone(), model.clone()));
                }
                let id = KeyspaceId(*id);
                match len {
                    Some(len) => {
                        trees.insert(id, tree(*len));
                        model.insert(id, tree(*len));
                    }
                    // One that is there, if any.
                    None => {
                        let id = model.keys().find(|there| **there >= id).copied().unwrap_or(id);
                        prop_assert_eq!(trees.remove(&id), model.remove(&id));
                    }
                }
            }
            for (trees, model) in kept.into_iter().chain([(trees, model)]) {
                prop_assert_eq!(trees.len(), model.len());
                prop_assert_eq!(trees.bytes, model.values().map(Tree::memory).sum::<usize>());
                prop_assert!(trees.iter().eq(model.iter().map(|(id, tree)| (*id, tree))));
                prop_assert!(trees.each_once().eq(model.clone()));
                let from = model.range(KeyspaceId(first)..).map(|(id, tree)| (*id, tree));
                prop_assert!(trees.from(KeyspaceId(first)).eq(from));
                for id in (0..2000).map(KeyspaceId) {
                    prop_assert_eq!(trees.get(&id), model.get(&id));
                    prop_assert_eq!(trees.contains(&id), model.contains_key(&id));
                }
            }
        }
    }

    #[test]
    fn a_change_among_many_copies_one_chunk() {
        let mut trees = Trees::default();
        (0..100_000).for_each(|id| trees.insert(KeyspaceId(id), tree(1)));
        let before = trees.clone();
        trees.insert(KeyspaceId(77_777), tree(2));
        let pairs = before.chunks.values().zip(trees.chunks.values());
        assert_eq!(pairs.filter(|(before, after)| !Arc::ptr_eq(before, after)).count(), 1);
    }
}
