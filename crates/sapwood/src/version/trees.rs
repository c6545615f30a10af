//! The trees of a version, by keyspace, and what is known of each.
//!
//! Invariants:
//! 1. A table is a value: changing a clone leaves the original as it was. What is copied is one chunk and a list
//!    of the others, so that a change costs nearly the same with a hundred thousand keyspaces as with ten.
//! 2. `bytes` is the sum of what the trees take.

use crate::compression::Compression;
use crate::durability::Durability;
use crate::expiry::DefaultTtl;
use crate::merging::Merging;
use crate::operation::KeyspaceId;
use crate::storage::compressed::Compressor;
use crate::storage::node::NodeId;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

/// Longest name of a keyspace in bytes: that of a file's name, so that a name can be one.
pub(crate) const NAME_LEN_MAX: usize = 255;

/// Most bytes that users may keep with a keyspace: what is in memory for each, and in each checkpoint, stays small.
pub(crate) const METADATA_MAX: usize = 4096;

/// That of all trees that are not compressed.
static UNCOMPRESSED: LazyLock<Arc<Compressor>> =
    LazyLock::new(|| Arc::new(Compressor::new(Compression::None)));

/// One keyspace's tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tree {
    pub name: Arc<str>,
    /// `None` while nothing was ever flushed to the tree, or after all of it was removed.
    pub root: Option<NodeId>,
    /// Level of the root; 0 when it is a leaf.
    pub height: u8,
    /// Records in the leaves, without operation queues and log areas.
    pub len: u64,
    /// Bytes of the leaves.
    pub bytes: u64,
    /// Whether `len` is an estimate, since leaves were dropped unread.
    pub is_estimated: bool,
    /// What users keep with the keyspace.
    pub metadata: Option<Arc<[u8]>>,
    /// Set if records may expire: values lie behind stamps then ([`crate::expiry`]).
    pub ttl: Option<DefaultTtl>,
    /// Set if operands are merged into values ([`crate::merging`]).
    pub merging: Option<Merging>,
    /// That of single changes by handles that are told no other; `None`: the database's.
    pub durability: Option<Durability>,
    /// Set if its values are large: the keyspace that has their chunks.
    pub chunks: Option<KeyspaceId>,
    /// How its leaves and log pieces are compressed.
    pub compressor: Arc<Compressor>,
}

impl Tree {
    /// A tree without records.
    pub fn empty(name: Arc<str>) -> Self {
        Self {
            name,
            root: None,
            height: 0,
            len: 0,
            bytes: 0,
            is_estimated: false,
            metadata: None,
            ttl: None,
            merging: None,
            durability: None,
            chunks: None,
            compressor: Arc::clone(&UNCOMPRESSED),
        }
    }

    /// Bytes of memory taken: its place in [`Trees`] and in the list of names, and what it points to.
    pub fn memory(&self) -> usize {
        let pointed_to =
            [self.name.len(), self.metadata.as_ref().map_or(0, |bytes| bytes.len()), size_of::<Compressor>()];
        size_of::<(KeyspaceId, Self)>()
            + NAMED
            + pointed_to.iter().map(|bytes| bytes + ALLOCATION).sum::<usize>()
    }

    /// Average bytes of a record in a leaf; 0 while there are no records.
    pub fn record_bytes(&self) -> u64 {
        self.bytes.checked_div(self.len).unwrap_or(0)
    }
}

/// Memory that a keyspace takes in the list of names, in bytes: a slot of 24 in a hash table that is half to all full.
const NAMED: usize = 36;
/// Memory of an allocation beside what it is for, in bytes: two counters, and what the allocator adds and rounds up.
const ALLOCATION: usize = 28;

/// A keyspace's name, and what users keep with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TreeName {
    pub id: KeyspaceId,
    pub name: Arc<str>,
    pub metadata: Option<Arc<[u8]>>,
}

impl TreeName {
    /// Most bytes that it takes in a manifest.
    pub fn listed_len(&self) -> u64 {
        (self.name.len() + self.metadata.as_ref().map_or(0, |metadata| metadata.len()) + 16) as u64
    }
}

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
