//! The data of the new database: nodes one behind the other in segments of their own, and the version that has them.
//!
//! Invariants:
//! 1. Nodes keep their ids, so what refers to them stays right; new nodes have ids above all others.
//! 2. Memory: a buffer of [`BUFFER`] bytes, an edit of [`EDIT`] addresses, and the version.

use crate::database_id::DatabaseId;
use crate::db::repair::old_nodes::Found;
use crate::encryption::Encryption;
use crate::error::{DATA, Error, Result};
use crate::expiry::expires_at;
use crate::log_area::maplet::KeyHash;
use crate::operation::KeyspaceId;
use crate::storage::data_file::{PAGE, least_len};
use crate::storage::dictionary::Dictionary;
use crate::storage::encrypted;
use crate::storage::entries::Entries;
use crate::storage::mapping_table::{Address, NodeLengths, Position};
use crate::storage::node::{self, Name, NodeId, entry_len};
use crate::storage::segment::Segment;
use crate::storage::slots::{GRANULE, Slots, granules};
use crate::version::edit::{Edit, NewRun};
use crate::version::{Tree, Version};
use psync::{FileId, Volume, Write};
use std::sync::Arc;

/// Bytes that are written together (1 MiB): enough for a device's full speed, and little memory.
const BUFFER: usize = 1 << 20;
/// Addresses (count) that become a part of the version together.
const EDIT: usize = 2 << 10;

/// A run of a block's log area, as the new database has it.
pub(super) struct Run {
    pub pieces: Vec<NodeId>,
    pub fences: Vec<u8>,
    pub hashes: Vec<KeyHash>,
    pub removals: u32,
    pub fresh: u32,
}

/// The new database, before it has anything.
pub(super) struct New {
    pub volume: Arc<dyn Volume>,
    pub data: FileId,
    pub database: DatabaseId,
    pub encryption: Encryption,
}

/// See the module.
pub(super) struct Output {
    pub volume: Arc<dyn Volume>,
    pub data: FileId,
    pub encryption: Encryption,
    pub version: Version,
    /// Of the nodes that are made.
    pub epoch: u64,
    slots: Arc<Slots>,
    buffer: Vec<u8>,
    /// The open segment: its number, first granule, and bytes used.
    segment: u64,
    start: u32,
    used: u64,
    /// Bytes that are in the file.
    written: u64,
    edit: Edit,
    next_id: u64,
    scratch: (Vec<u8>, Vec<u8>),
    pub bytes: u64,
}

impl Drop for Output {
    fn drop(&mut self) {
        // What counts was synced.
        let _ = self.volume.close(self.data);
    }
}

impl Output {
    /// Of a version like `old`, but without nodes. Ids from `next_id` on are new.
    pub fn new(
        New { volume, data, encryption, .. }: &New,
        old: &Version,
        (epoch, next_id): (u64, u64),
    ) -> Self {
        let empty = Version::empty(old.span);
        let mut version = Version {
            table: empty.table,
            logs: empty.logs,
            segments: empty.segments,
            trees: empty.trees,
            dropped: empty.dropped,
            open_segment: 0,
            ..old.clone()
        };
        version.segments.dictionaries = old.segments.dictionaries.clone();
        Self {
            volume: Arc::clone(volume),
            data: *data,
            encryption: encryption.clone(),
            version,
            epoch,
            slots: Arc::default(),
            buffer: Vec::with_capacity(BUFFER),
            segment: 0,
            start: 0,
            used: 0,
            written: 0,
            edit: Edit::default(),
            next_id,
            scratch: Default::default(),
            bytes: 0,
        }
    }

    pub fn new_id(&mut self) -> NodeId {
        self.next_id += 1;
        NodeId(self.next_id - 1)
    }

    /// Where the open segment begins in the file.
    fn begin(&self) -> u64 {
        u64::from(self.start) * GRANULE
    }

    fn append(&mut self, id: NodeId, stored: &[u8], crc: u32, lens: NodeLengths) -> Result<()> {
        let len = stored.len() as u64;
        if self.segment == 0 || self.used + len > self.version.span {
            if self.segment > 0 {
                self.write()?;
                self.note_used();
                self.start += granules(self.used);
            }
            (self.segment, self.used, self.written) = (self.segment + 1, 0, 0);
            self.edit.segments.push((self.segment, self.start));
        }
        let position = Position(self.segment * self.version.span + self.used);
        self.buffer.extend_from_slice(stored);
        self.used += len;
        self.bytes += len;
        self.edit.set.push((id, Address::new(position, lens, crc)));
        if self.buffer.len() >= BUFFER {
            self.write()?;
        }
        if self.edit.set.len() >= EDIT { self.apply() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<()> {
        if !self.buffer.is_empty() {
            let offset = self.begin() + self.written;
            self.volume.write(&[Write { file: self.data, offset, data: &self.buffer }])?;
            self.written += self.buffer.len() as u64;
            self.buffer.clear();
        }
        Ok(())
    }

    fn note_used(&mut self) {
        self.edit.used.retain(|(number, _)| *number != self.segment);
        self.edit.used.push((self.segment, self.used));
    }

    /// Makes what was appended a part of the version.
    fn apply(&mut self) -> Result<()> {
        if self.segment > 0 {
            self.note_used();
            self.edit.open_segment = Some(self.segment);
        }
        let edit = std::mem::take(&mut self.edit);
        let slots = &self.slots;
        let applied =
            self.version.apply(&edit, &mut |number, start| Ok(Segment::found(number, start, slots)));
        applied.map_err(|why| Error::corrupt(DATA, 0, "what a repair has written", "a version", why))
    }

    /// Copies a node.
    pub fn copy(&mut self, found: &Found, may_expire: bool) -> Result<()> {
        let name = found.stored.name();
        self.append(name.id, found.stored.bytes(), found.stored.crc(), found.address.lens())?;
        if may_expire && name.level == 0 {
            let node = &found.node;
            self.note_expiry((0..node.count()).map(|index| node.record(index)));
        }
        Ok(())
    }

    /// Makes a node of all entries. Returns its id and its length as it is stored. Nodes of keyspaces with compression are
    /// compressed, but for inner ones.
    pub fn make(
        &mut self,
        id: NodeId,
        level: u8,
        (keyspace, tree): (KeyspaceId, &Tree),
        entries: &Entries,
    ) -> Result<u64> {
        let name = Name { id, level, epoch: self.epoch, keyspace };
        let (mut encoded, mut packed) = std::mem::take(&mut self.scratch);
        let crc = node::encode(&mut encoded, name, entries, entries.len());
        let dictionary: Option<Arc<Dictionary>> = self.version.segments.dictionaries.get(keyspace).cloned();
        let records = entries.records(entries.len());
        let compressed =
            tree.compressor.compress(name, &encoded, records, (dictionary.as_deref(), None), &mut packed);
        let (mut stored, mut crc) = compressed.map_or((&encoded, crc), |crc| (&packed, crc));
        let mut encrypted = Vec::new();
        if self.encryption.is_on() {
            encrypted.clone_from(stored);
            crc = encrypted::encrypt(&self.encryption, &mut encrypted);
            stored = &encrypted;
        }
        let len = stored.len() as u64;
        let lens = NodeLengths::of(stored.len(), encoded.len().max(stored.len()));
        let appended = self.append(id, stored, crc, lens);
        self.scratch = (encoded, packed);
        appended?;
        if level == 0 && tree.ttl.is_some() {
            self.note_expiry(entries.records(entries.len()));
        }
        Ok(len)
    }

    /// Notes when records in the open segment expire.
    fn note_expiry<'r>(&mut self, records: impl Iterator<Item = (&'r [u8], &'r [u8])>) {
        let expiring = records.filter_map(|(key, stored)| {
            Some((expires_at(stored)?, entry_len(key.len(), stored.len()) as u64))
        });
        let mut expiring = expiring.peekable();
        if expiring.peek().is_none() {
            return;
        }
        let (segment, list) = (self.segment, &mut self.edit.expiring);
        let of_version = || self.version.segments.get(segment).map(|entry| entry.expiring.clone());
        match list.iter_mut().find(|(number, _)| *number == segment) {
            Some((_, known)) => *known = known.with(expiring),
            None => list.push((segment, of_version().unwrap_or_default().with(expiring))),
        }
    }

    /// Adds a run to the log area of a block; block and pieces were appended before.
    pub fn add_run(&mut self, block: NodeId, run: &Run) {
        let (pieces, count) = (run.pieces.len() as u32, run.hashes.len() as u32);
        self.edit.runs.push((block, NewRun { pieces, count, removals: run.removals, fresh: run.fresh }));
        self.edit.pieces.extend_from_slice(&run.pieces);
        self.edit.fences.extend_from_slice(&run.fences);
        self.edit.hashes.extend_from_slice(&run.hashes);
    }

    /// Writes and syncs all data.
    pub fn finish(&mut self) -> Result<()> {
        self.write()?;
        self.apply()?;
        let end = (self.begin() + self.used).next_multiple_of(PAGE);
        let len = least_len(self.version.table.ids_end()).max(if self.segment > 0 { end } else { 0 });
        if self.volume.len(self.data)? < len {
            self.volume.resize(self.data, len)?;
        }
        self.volume.sync(self.data).map_err(Error::undecided)?;
        self.version.epoch = self.epoch;
        Ok(())
    }
}
