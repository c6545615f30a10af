//! The Address Mapping Table: where each node's newest copy is. (AS B-tree, JISE 2014, section 3.3.)
//!
//! It takes 8 bytes a node: ids are dense, since those of freed nodes are given out again. A checkpoint of it is
//! ```text
//! offset size
//!      0    8  magic "SapwdAMT"
//!      8    4  CRC-32C of all that follows, up to the last entry
//!     12    4  page length in bytes
//!     16    8  the last batch that it knows of
//!     24    8  where the batch after it begins, unless that is in a later file
//!     32    8  root
//!     40    8  level of the root
//!     48    8  n: entries
//!     56  16 n id, address; ids ascend
//! ```
//! little-endian, in a file that is padded with zeros to whole pages.
//!
//! Invariants:
//! 1. No two nodes have the same address.
//! 2. An id that is free has no address.

use crate::page::NodeId;
use crate::page::header::bytes_at;
use crate::store::Root;
use crate::store::sub_files::Address;
use crate::{Error, Result};
use std::collections::BTreeMap;

/// Entries that are allocated together.
const CHUNK: u64 = 512;
const NONE: u64 = u64::MAX;
/// Ids are below: one of 2^48 nodes would not find room on any device.
pub(crate) const IDS: u64 = 1 << 48;
const MAGIC: &[u8; 8] = b"SapwdAMT";
const HEAD: usize = 56;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct MappingTable {
    chunks: BTreeMap<u64, Box<[u64]>>,
    len: u64,
    /// Of all entries, in no order.
    digest: u64,
    /// Ids from here on were never given out.
    next: u64,
    free: Vec<u64>,
}

impl MappingTable {
    pub fn new() -> Self {
        Self { chunks: BTreeMap::new(), len: 0, digest: 0, next: 1, free: Vec::new() }
    }

    pub fn get(&self, id: NodeId) -> Option<Address> {
        let word = self.chunks.get(&(id.0 / CHUNK))?[(id.0 % CHUNK) as usize];
        (word != NONE).then(|| Address::unpacked(word))
    }

    fn replace(&mut self, id: NodeId, word: u64) -> Option<Address> {
        let chunk = self.chunks.entry(id.0 / CHUNK);
        let chunk = chunk.or_insert_with(|| vec![NONE; CHUNK as usize].into_boxed_slice());
        let old = std::mem::replace(&mut chunk[(id.0 % CHUNK) as usize], word);
        self.digest ^= entry_digest(id, word) ^ entry_digest(id, old);
        self.len = self.len + u64::from(word != NONE) - u64::from(old != NONE);
        (old != NONE).then(|| Address::unpacked(old))
    }

    /// Sets where a node is. Where it was.
    pub fn set(&mut self, id: NodeId, place: Address) -> Option<Address> {
        self.replace(id, place.packed())
    }

    /// Forgets where a node is. Where it was.
    pub fn remove(&mut self, id: NodeId) -> Option<Address> {
        self.get(id)?;
        self.replace(id, NONE)
    }

    /// Tells tables apart: two with the same entries have the same.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// The digest that the table will have when `nodes` are where they will be written, and `freed` are gone.
    pub fn digest_after(
        &self,
        nodes: impl Iterator<Item = (NodeId, Address)>,
        freed: impl Iterator<Item = NodeId>,
    ) -> u64 {
        let old = |id| entry_digest(id, self.get(id).map_or(NONE, Address::packed));
        let moved = nodes.map(|(id, place)| old(id) ^ entry_digest(id, place.packed()));
        moved.chain(freed.map(old)).fold(self.digest, |digest, change| digest ^ change)
    }

    /// An id that no node has.
    pub fn allocate(&mut self) -> NodeId {
        NodeId(self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        }))
    }

    /// The id may be given out again.
    pub fn free(&mut self, id: NodeId) {
        self.free.push(id.0);
    }

    /// After a recovery: ids without an address are free. At most as many as there are nodes are kept, so that an absurd
    /// id does no harm.
    pub fn find_free(&mut self) {
        let mut next = 1;
        let mut free = Vec::new();
        for (id, _) in self.iter() {
            let room = (self.len as usize + CHUNK as usize).saturating_sub(free.len());
            free.extend((next..id.0).take(room));
            next = id.0 + 1;
        }
        free.reverse();
        (self.free, self.next) = (free, next);
    }

    /// Nodes in order of id.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, Address)> {
        self.chunks.iter().flat_map(|(number, chunk)| {
            let ids = (number * CHUNK..).map(NodeId);
            chunk
                .iter()
                .zip(ids)
                .filter(|(word, _)| **word != NONE)
                .map(|(word, id)| (id, Address::unpacked(*word)))
        })
    }

    /// Nodes that are in a file, in order of place.
    pub fn in_file(&self, file: u32) -> Vec<(NodeId, Address)> {
        let mut found: Vec<_> = self.iter().filter(|(_, place)| place.file == file).collect();
        found.sort_unstable_by_key(|(_, place)| *place);
        found
    }

    pub fn retain(&mut self, keep: impl Fn(NodeId) -> bool) {
        let lost: Vec<_> = self.iter().map(|(id, _)| id).filter(|id| !keep(*id)).collect();
        for id in lost {
            self.remove(id);
        }
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    /// Bytes of memory.
    pub fn memory(&self) -> u64 {
        self.chunks.len() as u64 * CHUNK * 8 + self.free.len() as u64 * 8
    }
}

/// What an entry adds to the digest: nothing, if it has no address.
fn entry_digest(id: NodeId, word: u64) -> u64 {
    if word == NONE { 0 } else { mixed(id.0, word) }
}

/// Two words as one in which every bit depends on all of theirs.
pub(crate) fn mixed(one: u64, two: u64) -> u64 {
    let mut word = one.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ two.rotate_left(32);
    for factor in [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
        word = (word ^ word >> 29).wrapping_mul(factor);
    }
    word ^ word >> 32
}

/// The table at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Checkpoint {
    pub table: MappingTable,
    pub batch: u64,
    /// The end of that batch.
    pub end: Address,
    pub root: Root,
}

impl Checkpoint {
    /// Its bytes, padded to whole pages.
    pub fn encode(&self, page_len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD + 16 * self.table.len() as usize);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&(page_len as u32).to_le_bytes());
        let Root { id, level } = self.root;
        for word in [self.batch, self.end.packed(), id.0, u64::from(level), self.table.len()] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        for (id, place) in self.table.iter() {
            bytes.extend_from_slice(&id.0.to_le_bytes());
            bytes.extend_from_slice(&place.packed().to_le_bytes());
        }
        let crc = crc32c::crc32c(&bytes[12..]);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        bytes.resize(bytes.len().next_multiple_of(page_len), 0);
        bytes
    }

    /// Reads what [`Self::encode`] wrote.
    pub fn decode(bytes: &[u8], file: &str, page_len: usize) -> Result<Self> {
        let wrong = |what, expected: String, found: String| Error::corrupt(file, 0, what, expected, found);
        if bytes.len() < HEAD || &bytes[..8] != MAGIC {
            let found = format!("{:02x?}", &bytes[..bytes.len().min(8)]);
            return Err(wrong("magic of a mapping table", "\"SapwdAMT\"".into(), found));
        }
        let word = |at| u64::from_le_bytes(bytes_at(bytes, at));
        let count = word(48);
        if count > ((bytes.len() - HEAD) / 16) as u64 {
            let most = format!("at most {}", (bytes.len() - HEAD) / 16);
            return Err(wrong("entries of a mapping table", most, count.to_string()));
        }
        let end = HEAD + 16 * count as usize;
        let (crc, found) = (u32::from_le_bytes(bytes_at(bytes, 8)), crc32c::crc32c(&bytes[12..end]));
        if crc != found {
            return Err(wrong("checksum of a mapping table", format!("{crc:08x}"), format!("{found:08x}")));
        }
        let made_with = u32::from_le_bytes(bytes_at(bytes, 12));
        if made_with as usize != page_len {
            return Err(wrong("page length", page_len.to_string(), made_with.to_string()));
        }
        let level = u8::try_from(word(40))
            .map_err(|_| wrong("level of the root", "less than 256".into(), word(40).to_string()))?;
        let mut table = MappingTable::new();
        for at in (HEAD..end).step_by(16) {
            if word(at) >= IDS {
                return Err(wrong("id of a node", format!("less than {IDS}"), word(at).to_string()));
            }
            table.set(NodeId(word(at)), Address::unpacked(word(at + 8)));
        }
        let root = Root { id: NodeId(word(32)), level };
        Ok(Self { table, batch: word(16), end: Address::unpacked(word(24)), root })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Checkpoint {
        let mut table = MappingTable::new();
        for id in 0..1000 {
            assert_eq!(table.allocate(), NodeId(id + 1));
            table.set(NodeId(id + 1), Address { file: 1 + id as u32 / 100, page: id as u32 % 100 });
        }
        for id in [7, 999, 500] {
            table.remove(NodeId(id));
        }
        Checkpoint {
            table,
            batch: 40,
            end: Address { file: 11, page: 3 },
            root: Root { id: NodeId(5), level: 2 },
        }
    }

    #[test]
    fn what_is_set_is_found_and_freed_ids_come_again() {
        let Checkpoint { mut table, .. } = sample();
        assert_eq!((table.len(), table.get(NodeId(500)), table.get(NodeId(10_000))), (997, None, None));
        assert_eq!(table.set(NodeId(1), Address { file: 9, page: 900 }), Some(Address { file: 1, page: 0 }));
        assert_eq!(table.in_file(9).last(), Some(&(NodeId(1), Address { file: 9, page: 900 })));
        assert_eq!(table.in_file(9).len(), 101);
        let moved =
            [(NodeId(2), Address { file: 9, page: 901 }), (NodeId(500), Address { file: 9, page: 902 })];
        let digest = table.digest_after(moved.into_iter(), [NodeId(3), NodeId(7)].into_iter());
        let mut after = table.clone();
        for (id, place) in moved {
            after.set(id, place);
        }
        after.remove(NodeId(3));
        after.remove(NodeId(7));
        assert_eq!(after.digest(), digest);
        assert_ne!(table.digest(), digest);
        table.find_free();
        let ids: Vec<_> = (0..4).map(|_| table.allocate().0).collect();
        assert_eq!(ids, [7, 500, 999, 1001]);
        table.set(NodeId(IDS - 1), Address { file: 1, page: 1 });
        table.find_free();
        assert!(table.free.len() < 2000, "an absurd id does no harm");
    }

    #[test]
    fn a_checkpoint_is_read_back_and_every_flipped_bit_is_noticed() {
        let checkpoint = sample();
        let mut bytes = checkpoint.encode(512);
        assert!(bytes.len().is_multiple_of(512));
        let read = Checkpoint::decode(&bytes, "f", 512).unwrap();
        assert!(read.table.iter().eq(checkpoint.table.iter()));
        assert_eq!((read.batch, read.end, read.root), (checkpoint.batch, checkpoint.end, checkpoint.root));
        assert!(Checkpoint::decode(&bytes, "f", 1024).is_err());
        for bit in (0..8 * 2000).step_by(7) {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Checkpoint::decode(&bytes, "f", 512).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        for len in [0, 8, 55, 56, 5000] {
            assert!(Checkpoint::decode(&bytes[..len], "f", 512).is_err(), "{len} bytes");
        }
    }
}
