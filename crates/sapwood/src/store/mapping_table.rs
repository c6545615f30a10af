//! The mapping table: node id → address. A rewritten node gets a new address and keeps its id, so that its parent
//! needs no rewriting. (AS B-tree, JISE 2014, section 3.2; the versions and the checksum are ours.)
//!
//! Invariants:
//! 1. A table is a value: changing a clone leaves the original as it was (chunks are copied on write), so that
//!    a snapshot keeps reading through the table of its time.
//! 2. An address is never used twice: positions only grow. What a cache holds under a position stays true for ever.
//! 3. `address(id)` is `None` exactly for ids that are free or were never given out.

use crate::node::NodeId;
use std::sync::Arc;

/// A place in the endless sequence of bytes that the store has written: segment number × segment span + offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Position(pub u64);

/// Where a node is and what its bytes add up to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub position: Position,
    /// Bytes; 0 marks a free id.
    pub len: u32,
    /// CRC-32C of the node. It stands here, and not only in the node, so that an older node that a lost write left in
    /// place is told from the newer one that should be there.
    pub crc: u32,
}

const FREE: Address = Address { position: Position(0), len: 0, crc: 0 };

/// 4 KiB of addresses: what one change to a shared table copies.
const CHUNK: usize = 256;
type Chunk = [Address; CHUNK];

/// Node id → address, and which ids are free.
#[derive(Clone, Debug, Default)]
pub(crate) struct MappingTable {
    chunks: Vec<Arc<Chunk>>,
    /// Ids below this one have been given out at some time.
    next: u64,
    /// Ids below `next` that are free, as a stack.
    free: Vec<NodeId>,
    /// Ids that have an address.
    count: u64,
}

impl MappingTable {
    pub fn address(&self, id: NodeId) -> Option<Address> {
        let address = self.chunks.get(id.0 as usize / CHUNK)?[id.0 as usize % CHUNK];
        (address.len != 0).then_some(address)
    }

    /// Gives out an id that has no address yet.
    pub fn allocate(&mut self) -> NodeId {
        self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            NodeId(self.next - 1)
        })
    }

    /// Sets the address of an id and returns the one it had. Ids from a log may lie beyond those given out here.
    pub fn set(&mut self, id: NodeId, address: Address) -> Option<Address> {
        debug_assert!(address.len != 0, "a node has bytes");
        let index = id.0 as usize;
        while self.chunks.len() <= index / CHUNK {
            self.chunks.push(Arc::new([FREE; CHUNK]));
        }
        self.next = self.next.max(id.0 + 1);
        let entry = &mut Arc::make_mut(&mut self.chunks[index / CHUNK])[index % CHUNK];
        let old = std::mem::replace(entry, address);
        if old.len == 0 {
            self.count += 1;
            return None;
        }
        Some(old)
    }

    /// Takes ids off the free stack that have got addresses: those that an attempt allocated, in a clone of this table,
    /// were its topmost.
    pub fn settle(&mut self) {
        while self.free.last().is_some_and(|id| self.address(*id).is_some()) {
            self.free.pop();
        }
    }

    /// Takes the address from an id and makes the id free; returns the address it had.
    pub fn free(&mut self, id: NodeId) -> Option<Address> {
        let index = id.0 as usize;
        let chunk = self.chunks.get_mut(index / CHUNK)?;
        if chunk[index % CHUNK].len == 0 {
            return None;
        }
        let old = std::mem::replace(&mut Arc::make_mut(chunk)[index % CHUNK], FREE);
        self.free.push(id);
        self.count -= 1;
        Some(old)
    }

    /// Finds the free ids again, after the table was filled from a log.
    pub fn rebuild_free(&mut self) {
        let free = (0..self.next).rev().map(NodeId).filter(|id| self.address(*id).is_none()).collect();
        self.free = free;
    }

    /// How many ids have an address.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// All ids that have an address, in order.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, Address)> + '_ {
        self.chunks.iter().enumerate().flat_map(|(chunk_index, chunk)| {
            chunk
                .iter()
                .enumerate()
                .filter(|(_, address)| address.len != 0)
                .map(move |(index, address)| (NodeId((chunk_index * CHUNK + index) as u64), *address))
        })
    }

    /// The same, as this table has them now. Keeps no more of it than it has not told.
    pub fn told_once(&self) -> impl Iterator<Item = (NodeId, Address)> + Send + use<> {
        self.chunks.clone().into_iter().enumerate().flat_map(|(chunk_index, chunk)| {
            let ids =
                (0..CHUNK).map(move |index| (NodeId((chunk_index * CHUNK + index) as u64), chunk[index]));
            ids.filter(|(_, address)| address.len != 0)
        })
    }

    /// Memory that the table takes, in bytes.
    pub fn memory(&self) -> usize {
        self.chunks.len() * (size_of::<Chunk>() + 24) + self.free.capacity() * size_of::<NodeId>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(position: u64) -> Address {
        Address { position: Position(position), len: 100, crc: 7 }
    }

    #[test]
    fn a_clone_keeps_what_it_saw() {
        let mut table = MappingTable::default();
        let ids: Vec<_> = (0..1000).map(|_| table.allocate()).collect();
        for id in &ids {
            assert_eq!(table.set(*id, address(id.0)), None);
        }
        let snapshot = table.clone();
        assert_eq!(table.set(ids[300], address(5)), Some(address(300)));
        assert_eq!(table.free(ids[999]), Some(address(999)));
        assert_eq!(snapshot.address(ids[300]), Some(address(300)));
        assert_eq!(snapshot.address(ids[999]), Some(address(999)));
        assert_eq!(table.address(ids[999]), None);
        assert_eq!(table.allocate(), ids[999], "a free id is used again");
    }

    #[test]
    fn free_ids_are_found_again() {
        let mut table = MappingTable::default();
        table.set(NodeId(0), address(1));
        table.set(NodeId(3), address(2));
        table.rebuild_free();
        let mut given: Vec<_> = (0..3).map(|_| table.allocate().0).collect();
        given.sort_unstable();
        assert_eq!(given, [1, 2, 4]);
        assert_eq!(table.iter().map(|(id, _)| id.0).collect::<Vec<_>>(), [0, 3]);
    }
}
