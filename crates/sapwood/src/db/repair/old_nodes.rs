//! Reads nodes of the damaged database, whichever can be read.
//!
//! Invariants:
//! 1. A node counts if it is the one that the mapping table means: by checksum, id, keyspace and level.
//! 2. A read that fails is a damaged node: what cannot be read is lost like what is wrong.
//! 3. Memory: [`GROUP`] bytes of nodes at a time, or one node.

use crate::encryption::Encryption;
use crate::error::{DATA, Error};
use crate::operation::KeyspaceId;
use crate::storage::compressed::StoredNode;
use crate::storage::frames::Frames;
use crate::storage::mapping_table::Address;
use crate::storage::node::{Node, NodeId};
use crate::version::Version;
use psync::{FileId, Read, Volume};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of nodes that are read together: enough for a device's full speed.
pub(super) const GROUP: usize = 1 << 20;

/// A sound node, as it is stored and as it is read.
pub(super) struct Found {
    pub stored: StoredNode,
    pub node: Node,
    pub address: Address,
}

/// See the module.
pub(super) struct OldNodes<'a> {
    pub volume: &'a dyn Volume,
    /// The data file, if there is one.
    pub file: Option<FileId>,
    pub len: u64,
    pub version: &'a Version,
    pub encryption: &'a Encryption,
    pub frames: Arc<Frames>,
}

impl OldNodes<'_> {
    /// How many of these nodes, from this index on, are read together.
    pub fn group(&self, ids: &[NodeId], from: usize) -> Range<usize> {
        let mut bytes = 0;
        let len = |id: &NodeId| self.version.table.address(*id).map_or(0, |address| address.memory_len());
        let many = ids[from..].iter().take_while(|id| {
            bytes += len(id);
            bytes <= GROUP
        });
        from..from + many.count().max(1).min(ids.len() - from)
    }

    /// Reads nodes that should be of this keyspace, if one is told, with one psync.
    pub fn read(&self, ids: &[NodeId], keyspace: Option<KeyspaceId>) -> Vec<Result<Found, Error>> {
        let places: Vec<_> = ids.iter().map(|id| self.place(*id)).collect();
        let mut buffers: Vec<_> = places
            .iter()
            .map(|place| place.as_ref().map_or(Vec::new(), |(address, _)| vec![0; address.len() as usize]))
            .collect();
        let mut failed: Vec<Option<Error>> = vec![None; ids.len()];
        if let Some(file) = self.file {
            let offset = |index: usize| places[index].as_ref().map_or(0, |(_, offset)| *offset);
            let mut set: Vec<_> = buffers
                .iter_mut()
                .enumerate()
                .filter(|(_, buffer)| !buffer.is_empty())
                .map(|(index, buffer)| Read { file, offset: offset(index), buffer })
                .collect();
            if !set.is_empty() && self.volume.read(&mut set).is_err() {
                drop(set);
                for (index, buffer) in buffers.iter_mut().enumerate().filter(|(_, buffer)| !buffer.is_empty())
                {
                    let read = self.volume.read(&mut [Read { file, offset: offset(index), buffer }]);
                    failed[index] = read.err().map(Error::from);
                }
            }
        }
        let all = ids.iter().zip(places).zip(buffers.into_iter().zip(failed));
        all.map(|((id, place), (bytes, failed))| {
            let (address, offset) = place?;
            if let Some(error) = failed {
                return Err(error);
            }
            self.decode(*id, address, offset, bytes, keyspace)
        })
        .collect()
    }

    /// The address of a node and its offset in the file.
    fn place(&self, id: NodeId) -> Result<(Address, u64), Error> {
        let Some(address) = self.version.table.address(id) else {
            return Err(Error::corrupt(
                DATA,
                0,
                format!("the mapping table has no {id}"),
                "an address",
                "none",
            ));
        };
        let len = address.len() as usize;
        let offset = self.version.segments.file_offset(address.position, len, self.version.span);
        let is_there = |offset: &u64| self.file.is_some() && offset + len as u64 <= self.len;
        match offset {
            Some(offset) if is_there(&offset) => Ok((address, offset)),
            _ => {
                let found = format!("{} bytes", self.len);
                let offset = offset.unwrap_or(0);
                Err(Error::corrupt(DATA, offset, format!("{id} lies behind the end of the file"), len, found))
            }
        }
    }

    fn decode(
        &self,
        id: NodeId,
        address: Address,
        offset: u64,
        bytes: Vec<u8>,
        keyspace: Option<KeyspaceId>,
    ) -> Result<Found, Error> {
        let wrong = |what: &str, expected: String, found: String| {
            Error::corrupt(DATA, offset, format!("{what} ({id})"), expected, found)
        };
        let refused = |refusal: crate::storage::node::Refusal| refusal.of_node(DATA, offset, id);
        let stored = StoredNode::decode(bytes.into()).map_err(refused)?;
        if stored.crc() != address.crc {
            let (expected, found) = (format!("{:08x}", address.crc), format!("{:08x}", stored.crc()));
            return Err(wrong("checksum of a node", expected, found));
        }
        let name = stored.name();
        if name.id != id || keyspace.is_some_and(|keyspace| keyspace != name.keyspace) {
            let found = format!("{} of keyspace {}", name.id, name.keyspace.0);
            return Err(wrong("what a node says that it is", format!("{id} of {keyspace:?}"), found));
        }
        let node = stored
            .open(self.encryption, &self.frames, &self.version.segments.dictionaries)
            .map_err(refused)?;
        Ok(Found { stored, node, address })
    }
}
