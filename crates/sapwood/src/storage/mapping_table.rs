//! The mapping table: node id → address. A rewritten node gets a new address and keeps its id, so that its parent
//! needs no rewriting. (AS B-tree, JISE 2014, section 3.2; the versions and the checksum are ours.)
//!
//! Invariants:
//! 1. A table is a value: changing a clone leaves the original as it was (chunks are copied on write), so that
//!    a snapshot keeps reading through the table of its time.
//! 2. No address is published twice. (An aborted version builder's are used again; it takes what it wrote out of the cache
//!    first.) What a cache holds under a position stays true for ever.
//! 3. `address(id)` is `None` exactly for ids that are free or were never given out.

use crate::storage::node::NodeId;
use std::sync::Arc;

/// A place in the endless sequence of bytes that the store has written: segment number × segment span + offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Position(pub u64);

/// A node's place, length and checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub position: Position,
    lens: NodeLengths,
    /// CRC-32C of the stored node. It is kept here, and not only in the node, so that an older node that a lost
    /// write left in place is told from the newer one that should be there.
    pub crc: u32,
}

impl Address {
    pub fn new(position: Position, lens: NodeLengths, crc: u32) -> Self {
        Self { position, lens, crc }
    }

    /// Bytes on the device.
    #[inline]
    pub fn len(&self) -> u32 {
        self.lens.0 & STORED
    }

    /// Bytes in memory: as on the device, or if the node is compressed, at most a fifth more than it has.
    #[inline]
    pub fn memory_len(&self) -> usize {
        self.lens.in_memory()
    }

    pub fn lens(&self) -> NodeLengths {
        self.lens
    }
}

/// The lengths of a node, on the device and in memory. The lower 26 bits are the bytes on the device; the upper 6 bits are 0 if the
/// node is not compressed, else it has 2^(n/4) times as many bytes in memory, rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeLengths(u32);

/// Bits of the length on the device (count): the longest node needs them.
const STORED_BITS: u32 = 26;
/// The bits of the length on the device, in bytes: the lowest.
const STORED: u32 = (1 << STORED_BITS) - 1;
/// 2^(n/4) for n below 4, in 65536ths, rounded up.
const QUARTERS: [u64; 4] = [65_536, 77_936, 92_682, 110_218];

impl NodeLengths {
    /// Of a node with so many bytes on the device and in memory.
    pub fn of(stored: usize, memory: usize) -> Self {
        debug_assert!(stored > 0 && stored <= STORED as usize && memory >= stored, "lengths of a node");
        let stored = (stored as u32).min(STORED);
        let scaled = |scale: u32| Self(stored | scale << STORED_BITS);
        let scale = (0..64).find(|scale| scaled(*scale).in_memory() >= memory);
        scaled(scale.unwrap_or(63))
    }

    /// As the manifest has it.
    pub fn to_u32(self) -> u32 {
        self.0
    }

    /// What [`to_u32`](NodeLengths::to_u32) gave; `None` if it is of no node.
    pub fn from_u32(lens: u32) -> Option<Self> {
        (lens & STORED != 0).then_some(Self(lens))
    }

    #[inline]
    fn in_memory(self) -> usize {
        let (stored, scale) = (u64::from(self.0 & STORED), self.0 >> STORED_BITS);
        if scale == 0 {
            return stored as usize;
        }
        (((stored * QUARTERS[scale as usize % 4]) << (scale / 4)) >> 16) as usize + 1
    }
}

/// The address of a free id.
const FREE: Address = Address { position: Position(0), lens: NodeLengths(0), crc: 0 };

/// Addresses of a chunk, which is what one change to a shared table copies. A chunk and its two reference
/// counts have 4 KiB exactly: with one address more an allocator would take 5 KiB.
const CHUNK: usize = (4096 - 2 * size_of::<usize>()) / size_of::<Address>();
type Chunk = [Address; CHUNK];

/// Node id → address. [`DataFile`](super::data_file::DataFile) keeps the list of free ids.
#[derive(Clone, Debug, Default)]
pub(crate) struct MappingTable {
    chunks: Vec<Arc<Chunk>>,
    /// Ids that have an address.
    count: u64,
}

impl MappingTable {
    pub fn address(&self, id: NodeId) -> Option<Address> {
        let address = self.chunks.get(id.0 as usize / CHUNK)?[id.0 as usize % CHUNK];
        (address.len() != 0).then_some(address)
    }

    /// Sets the address of an id and returns the one it had.
    pub fn set(&mut self, id: NodeId, address: Address) -> Option<Address> {
        debug_assert!(address.len() != 0, "a node has bytes");
        let index = id.0 as usize;
        while self.chunks.len() <= index / CHUNK {
            self.chunks.push(Arc::new([FREE; CHUNK]));
        }
        let entry = &mut Arc::make_mut(&mut self.chunks[index / CHUNK])[index % CHUNK];
        let old = std::mem::replace(entry, address);
        if old.len() == 0 {
            self.count += 1;
            return None;
        }
        Some(old)
    }

    /// Removes the address of an id and returns it.
    pub fn remove(&mut self, id: NodeId) -> Option<Address> {
        let index = id.0 as usize;
        let chunk = self.chunks.get_mut(index / CHUNK)?;
        if chunk[index % CHUNK].len() == 0 {
            return None;
        }
        let old = std::mem::replace(&mut Arc::make_mut(chunk)[index % CHUNK], FREE);
        self.count -= 1;
        Some(old)
    }

    /// How many ids have an address.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// No id had an address that is this large or larger. It does not go down within a manifest, which the bound of the data file's length
    /// relies on.
    pub fn ids_end(&self) -> u64 {
        (self.chunks.len() * CHUNK) as u64
    }

    /// All ids that have an address, in order.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, Address)> + '_ {
        self.chunks.iter().enumerate().flat_map(|(chunk_index, chunk)| {
            chunk
                .iter()
                .enumerate()
                .filter(|(_, address)| address.len() != 0)
                .map(move |(index, address)| (NodeId((chunk_index * CHUNK + index) as u64), *address))
        })
    }

    /// The same for this table as it is now. Keeps only those chunks in memory that were not returned yet.
    pub fn told_once(&self) -> impl Iterator<Item = (NodeId, Address)> + Send + use<> {
        self.chunks.clone().into_iter().enumerate().flat_map(|(chunk_index, chunk)| {
            let ids =
                (0..CHUNK).map(move |index| (NodeId((chunk_index * CHUNK + index) as u64), chunk[index]));
            ids.filter(|(_, address)| address.len() != 0)
        })
    }

    /// Bytes of memory of the table and of the list of free ids.
    pub fn memory(&self) -> usize {
        let free = (self.chunks.len() * CHUNK).saturating_sub(self.count as usize);
        self.chunks.len() * (size_of::<Chunk>() + 24) + free * size_of::<NodeId>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(position: u64) -> Address {
        Address::new(Position(position), NodeLengths::of(100, 100), 7)
    }

    #[test]
    fn a_clone_keeps_what_it_saw() {
        let mut table = MappingTable::default();
        let ids: Vec<_> = (0..1000).map(NodeId).collect();
        for id in &ids {
            assert_eq!(table.set(*id, address(id.0)), None);
        }
        let snapshot = table.clone();
        assert_eq!(table.set(ids[300], address(5)), Some(address(300)));
        assert_eq!(table.remove(ids[999]), Some(address(999)));
        assert_eq!(snapshot.address(ids[300]), Some(address(300)));
        assert_eq!(snapshot.address(ids[999]), Some(address(999)));
        assert_eq!(table.address(ids[999]), None);
        assert_eq!((table.count(), snapshot.count()), (999, 1000));
        assert_eq!(table.iter().map(|(id, _)| id).collect::<Vec<_>>(), ids[..999]);
    }

    #[test]
    fn lengths_in_memory_are_known_to_a_fifth() {
        for stored in [1, 40, 100, 4000, 1 << 20, (32 << 20) - 1] {
            assert_eq!(Address::new(Position(0), NodeLengths::of(stored, stored), 0).memory_len(), stored);
            for memory in [stored + 1, stored * 9 / 8, stored * 3, stored * 100, stored * 30_000] {
                let address = Address::new(Position(0), NodeLengths::of(stored, memory), 0);
                assert_eq!(address.len() as usize, stored);
                let most = memory + memory / 5 + 1;
                assert!((memory..=most).contains(&address.memory_len()), "{stored}, {memory}: {address:?}");
                assert_eq!(NodeLengths::from_u32(address.lens().to_u32()), Some(address.lens()));
            }
        }
        assert_eq!(NodeLengths::from_u32(1 << STORED_BITS), None);
    }
}
