//! The difference between a version and the next, and its bytes, which are the payload of a manifest record.
//!
//! ```text
//! edit    = section*
//! section = 1 wal_low                       2 wal_high            3 flushed_seq          4 open_segment
//!         | 5 keyspace root+1 height len bytes nlen name          a tree's new root (root+1 = 0: none)
//!         | 12 keyspace root+1 height len bytes nlen name         the same, where len is an estimate (format 8)
//!         | 13 keyspace                                           a keyspace dropped (format 8)
//!         | 14 keyspace nlen name mlen metadata                   a keyspace's new name and metadata (format 8)
//!         | 15 keyspace                                           the greatest id that a keyspace ever had (format 8)
//!         | 16 keyspace life                                      records of a keyspace may expire: by default so many ms after
//!                                                               they are inserted, 0: not by default (format 9)
//!         | 17 time                                               what the database's clock says (format 9)
//!         | 19 keyspace nlen operator                            values of a keyspace merge by this operator (format 10)
//!         | 20 seq                                                some of a queue up to this operation is in the trees, not all (format 10)
//!         | 21 keyspace durability                               of single changes by default: 0 none, 1 buffered, 2 immediate (format 10)
//!         | 6 number granule                                      a segment begun at a granule (format 6: in a slot)
//!         | 7 number used                                         bytes used in a segment now
//!         | 18 number n (time bytes)*n                            of what was written to leaves of a segment so many bytes expire, by
//!                                                               each of these times, at most 8, which ascend (format 9)
//!         | 22 keyspace codec level                              leaves and log pieces of a keyspace are compressed: 1 LZ4, 2 Zstandard, 3 the same with a dictionary (format 11)
//!         | 23 keyspace len dictionary                           a dictionary that nodes of a keyspace need, of at most 32 KiB (format 11)
//!         | 24 keyspace chunks                                    values of a keyspace are large: their chunks are records of another keyspace (format 12)
//!         | 25 bytes from event                                  at most so many bytes of the log are kept for the change feed, from behind an operation on,
//!                                                               with events of such numbers; 0: none are (format 12)
//!         | 26 kind keyspace seq flags nlen name                 an event for the change feed, behind an operation: a keyspace 1 created, 2 renamed, 3 dropped,
//!                                                               4 ingested into; flags: 1 records may expire, 2 values merge,
//!                                                               4 they are large (format 12)
//!         | 28 kind keyspace seq time flags nlen name            the same with its time, 0: unknown (format 14)
//!         | 27 key                                              all nodes are encrypted with this data key or later ones (format 13)
//!         | 8 n (id position lens crc)*n                          new addresses of nodes; lens: bits 0 to 25 bytes on the device, bits 26 to 31
//!                                                               0, or n if it is compressed and has 2^(n/4) times as many, rounded up (format 11)
//!         | 9 n (id)*n                                            ids set free
//!         | 10 n (id)*n                                           blocks whose log areas are emptied
//!         | 11 n (block pieces count removals fresh)*n            runs at the end of blocks' log areas, of so many pieces and changes:
//!              id*(sum of pieces)                                   their pieces, run by run, in key order,
//!              (flen fence)*(sum of pieces - n)                     the fence of each piece but a run's first, ascending in a run,
//!              hash*(sum of counts)                                 and of each key its hash, run by run, in any order
//! ```
//! Times are milliseconds since 1970. All numbers are varints, except crc, which is 4 bytes, and hash, which is 3 ([`crate::log_area::maplet`]). What a fence is:
//! [`crate::log_area`].

use crate::KEY_LEN_MAX;
use crate::bytecode::{Reader, put_varint};
use crate::compression::Compression;
use crate::durability::Durability;
use crate::expiring_bytes::{ExpiringBytes, STEPS};
use crate::expiry::DefaultTtl;
use crate::log_area::Fences;
use crate::log_area::maplet::KeyHash;
use crate::merging::{Merging, OPERATOR_NAME_MAX};
use crate::operation::{KeyspaceId, NUMBER_MAX, SeqNo};
use crate::storage::dictionary::{DICTIONARY_MAX, Dictionary};
use crate::storage::mapping_table::{Address, NodeLengths, Position};
use crate::storage::node::{LEVEL_MAX, NodeId};
use crate::version::change_log::{Keeping, KeyspaceEvent};
use crate::version::trees::{METADATA_MAX, NAME_LEN_MAX, Tree, TreeName};
use std::sync::Arc;

/// Tags of the format: the first byte of a section, in the order of the drawing.
const WAL_LOW: u8 = 1;
const WAL_HIGH: u8 = 2;
const FLUSHED_SEQ: u8 = 3;
const OPEN_SEGMENT: u8 = 4;
const TREE: u8 = 5;
const TREE_ESTIMATED: u8 = 12;
const DROPPED: u8 = 13;
const NAME: u8 = 14;
const LAST_KEYSPACE: u8 = 15;
const TTL: u8 = 16;
const CLOCK: u8 = 17;
const MERGE: u8 = 19;
const BEGUN_FLUSH: u8 = 20;
const DURABILITY: u8 = 21;
const SEGMENT: u8 = 6;
const USED: u8 = 7;
const EXPIRING: u8 = 18;
const COMPRESSION: u8 = 22;
const DICTIONARY: u8 = 23;
const LARGE: u8 = 24;
const KEEPING: u8 = 25;
const EVENT_WITHOUT_TIME: u8 = 26;
const EVENT: u8 = 28;
const OLDEST_KEY: u8 = 27;
const SET: u8 = 8;
const FREED: u8 = 9;
const EMPTIED: u8 = 10;
const RUNS: u8 = 11;

/// See the module. Absent fields do not change anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Edit {
    pub wal_low: Option<u64>,
    pub wal_high: Option<u64>,
    pub flushed_seq: Option<SeqNo>,
    pub open_segment: Option<u64>,
    pub trees: Vec<(KeyspaceId, Tree)>,
    /// Keyspaces dropped, ...
    pub dropped: Vec<KeyspaceId>,
    /// ... and named anew.
    pub names: Vec<TreeName>,
    pub last_keyspace: Option<u32>,
    /// Keyspaces whose records may expire.
    pub ttls: Vec<(KeyspaceId, DefaultTtl)>,
    /// Keyspaces with a merge operator.
    pub merges: Vec<(KeyspaceId, Merging)>,
    /// Keyspaces with a durability of their own.
    pub durabilities: Vec<(KeyspaceId, Durability)>,
    /// How the nodes of keyspaces are compressed from now on.
    pub compressions: Vec<(KeyspaceId, Compression)>,
    /// Keyspaces of large values, and those that have the chunks of these.
    pub larges: Vec<(KeyspaceId, KeyspaceId)>,
    /// New dictionaries of keyspaces.
    pub dictionaries: Vec<(KeyspaceId, Arc<Dictionary>)>,
    /// Where queues end of which a part is in the trees.
    pub begun_flushes: Vec<SeqNo>,
    /// How the log is kept for the change feed, ...
    pub keeping: Option<Keeping>,
    /// ... and what this edit does to keyspaces, for the same.
    pub events: Vec<KeyspaceEvent>,
    /// What the database's clock says, in milliseconds since 1970.
    pub clock: Option<u64>,
    /// The oldest data key that nodes may be encrypted with.
    pub oldest_key: Option<u64>,
    /// Segments begun: number and first granule.
    pub segments: Vec<(u64, u32)>,
    /// Used bytes of segments, by segment number.
    pub used: Vec<(u64, u64)>,
    /// What expires of the records written to leaves of segments, by segment number.
    pub expiring: Vec<(u64, ExpiringBytes)>,
    pub set: Vec<(NodeId, Address)>,
    pub freed: Vec<NodeId>,
    /// Blocks whose log areas are emptied, before the new runs are added.
    pub emptied: Vec<NodeId>,
    /// New runs of log areas, with their blocks.
    pub runs: Vec<(NodeId, NewRun)>,
    /// Pieces of the new runs, run after run.
    pub pieces: Vec<NodeId>,
    /// Fences of the new runs, without that of each run's first piece, as [`Fences`].
    pub fences: Vec<u8>,
    /// Hashes of the keys in the new runs, run after run.
    pub hashes: Vec<KeyHash>,
}

/// The size of a new run: how much of the other lists belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NewRun {
    pub pieces: u32,
    /// Changes in the run ...
    pub count: u32,
    /// ... how many of them are removals,
    pub removals: u32,
    /// ... and the percentage of records that the trees probably did not have.
    pub fresh: u32,
}

/// Most bytes in an edit of a node; what a log piece takes in addition, without its fence.
pub(crate) const NODE_IN_EDIT: u64 = 24;
const PIECE_IN_EDIT: u64 = 6;
/// Most bytes of the id of a node in an edit: so that an edit is as long as it may be, and no longer.
const ID_IN_EDIT: u64 = 6;
/// Most bytes of a tree in an edit, with the longest name, so that portions are bounded.
const TREE_IN_EDIT: u64 = 48 + NAME_LEN_MAX as u64;
/// Most bytes of a run in an edit, without pieces and hashes, so that portions are bounded.
pub(crate) const RUN_IN_EDIT: u64 = 25;

impl Edit {
    /// Most bytes that the lists take in the payload which grow with the work: of nodes, log pieces, trees and dictionaries.
    pub fn lists_len(&self) -> u64 {
        self.set.len() as u64 * NODE_IN_EDIT
            + (self.freed.len() + self.emptied.len()) as u64 * ID_IN_EDIT
            + self.trees.len() as u64 * TREE_IN_EDIT
            + self.runs.len() as u64 * RUN_IN_EDIT
            + self.pieces.len() as u64 * PIECE_IN_EDIT
            + self.fences.len() as u64
            + (self.hashes.len() * KeyHash::LEN) as u64
            + (self.dictionaries.len() * DICTIONARY_MAX) as u64
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        let single = [
            (WAL_LOW, self.wal_low),
            (WAL_HIGH, self.wal_high),
            (FLUSHED_SEQ, self.flushed_seq),
            (OPEN_SEGMENT, self.open_segment),
        ];
        encode_numbers(out, single);
        self.encode_keyspaces(out);
        encode_numbers(out, self.begun_flushes.iter().map(|end| (BEGUN_FLUSH, Some(*end))));
        if let Some(keeping) = &self.keeping {
            out.push(KEEPING);
            keeping.encode(out);
        }
        for event in &self.events {
            out.push(EVENT);
            event.encode(out);
        }
        encode_numbers(out, [(CLOCK, self.clock), (OLDEST_KEY, self.oldest_key)]);
        self.encode_segments(out);
        self.encode_nodes(out);
        self.encode_runs(out);
    }

    fn encode_keyspaces(&self, out: &mut Vec<u8>) {
        for (id, tree) in &self.trees {
            begin(out, if tree.is_estimated { TREE_ESTIMATED } else { TREE }, *id);
            put_varint(out, tree.root.map_or(0, |root| root.0 + 1));
            put_varint(out, u64::from(tree.height));
            put_varint(out, tree.len);
            put_varint(out, tree.bytes);
            put_bytes(out, tree.name.as_bytes());
        }
        for TreeName { id, name, metadata } in &self.names {
            begin(out, NAME, *id);
            put_bytes(out, name.as_bytes());
            put_bytes(out, metadata.as_deref().unwrap_or_default());
        }
        self.dropped.iter().for_each(|id| begin(out, DROPPED, *id));
        if let Some(last) = self.last_keyspace {
            begin(out, LAST_KEYSPACE, KeyspaceId(last));
        }
        for (id, DefaultTtl(ttl)) in &self.ttls {
            begin(out, TTL, *id);
            put_varint(out, *ttl);
        }
        for (id, merging) in &self.merges {
            begin(out, MERGE, *id);
            put_bytes(out, merging.name().as_bytes());
        }
        for (id, durability) in &self.durabilities {
            begin(out, DURABILITY, *id);
            out.push(match durability {
                Durability::None => 0,
                Durability::Buffered => 1,
                Durability::Immediate => 2,
            });
        }
        for (id, compression) in &self.compressions {
            begin(out, COMPRESSION, *id);
            out.extend_from_slice(&compression.to_bytes());
        }
        for (id, chunks) in &self.larges {
            begin(out, LARGE, *id);
            put_varint(out, u64::from(chunks.0));
        }
        for (id, dictionary) in &self.dictionaries {
            begin(out, DICTIONARY, *id);
            put_bytes(out, dictionary.bytes());
        }
    }

    fn encode_segments(&self, out: &mut Vec<u8>) {
        for (number, slot) in &self.segments {
            out.push(SEGMENT);
            put_varint(out, *number);
            put_varint(out, u64::from(*slot));
        }
        for (number, used) in &self.used {
            out.push(USED);
            put_varint(out, *number);
            put_varint(out, *used);
        }
        for (number, expiring) in &self.expiring {
            out.push(EXPIRING);
            put_varint(out, *number);
            put_varint(out, expiring.steps().len() as u64);
            for (time, bytes) in expiring.steps() {
                put_varint(out, *time);
                put_varint(out, *bytes);
            }
        }
    }

    fn encode_nodes(&self, out: &mut Vec<u8>) {
        if !self.set.is_empty() {
            out.push(SET);
            put_varint(out, self.set.len() as u64);
            for (id, address) in &self.set {
                put_varint(out, id.0);
                put_varint(out, address.position.0);
                put_varint(out, u64::from(address.lens().to_u32()));
                out.extend_from_slice(&address.crc.to_le_bytes());
            }
        }
        for (tag, ids) in [(FREED, &self.freed), (EMPTIED, &self.emptied)] {
            if !ids.is_empty() {
                out.push(tag);
                put_varint(out, ids.len() as u64);
                ids.iter().for_each(|id| put_varint(out, id.0));
            }
        }
    }

    fn encode_runs(&self, out: &mut Vec<u8>) {
        if self.runs.is_empty() {
            return;
        }
        out.push(RUNS);
        put_varint(out, self.runs.len() as u64);
        for (block, NewRun { pieces, count, removals, fresh }) in &self.runs {
            put_varint(out, block.0);
            [pieces, count, removals, fresh]
                .into_iter()
                .for_each(|number| put_varint(out, u64::from(*number)));
        }
        self.pieces.iter().for_each(|id| put_varint(out, id.0));
        out.extend_from_slice(&self.fences);
        self.hashes.iter().for_each(|hash| out.extend_from_slice(&hash.to_bytes()));
    }

    /// Decodes what `encode` wrote. The error names the bad section.
    pub fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let mut edit = Self::default();
        let mut reader = Reader::new(bytes);
        while reader.remaining() > 0 {
            edit.decode_section(&mut reader)?;
        }
        Ok(edit)
    }

    fn decode_section(&mut self, reader: &mut Reader<'_>) -> Result<(), &'static str> {
        match reader.u8().ok_or("unknown section")? {
            WAL_LOW => self.wal_low = Some(decode_number(reader).ok_or("wal_low")?),
            WAL_HIGH => self.wal_high = Some(decode_number(reader).ok_or("wal_high")?),
            FLUSHED_SEQ => self.flushed_seq = Some(decode_number(reader).ok_or("flushed_seq")?),
            OPEN_SEGMENT => self.open_segment = Some(decode_number(reader).ok_or("open_segment")?),
            BEGUN_FLUSH => self.begun_flushes.push(decode_number(reader).ok_or("end of a queue")?),
            KEEPING => self.keeping = Some(Keeping::decode(reader).ok_or("how the log is kept")?),
            tag @ (EVENT_WITHOUT_TIME | EVENT) => {
                let event = KeyspaceEvent::decode(reader, tag == EVENT);
                self.events.push(event.ok_or("event of a keyspace")?);
            }
            CLOCK => self.clock = Some(decode_number(reader).ok_or("time")?),
            OLDEST_KEY => self.oldest_key = Some(decode_number(reader).ok_or("oldest data key")?),
            SEGMENT => {
                let segment = || Some((reader.varint()?, u32::try_from(reader.varint()?).ok()?));
                self.segments.push({ segment }().ok_or("segment begun")?);
            }
            USED => {
                let used = || Some((reader.varint()?, reader.varint()?));
                self.used.push({ used }().ok_or("segment used")?);
            }
            EXPIRING => self.expiring.push(decode_expiring(reader).ok_or("what expires in a segment")?),
            SET => decode_list(reader, &mut self.set, decode_address, ["number of addresses", "address"])?,
            FREED => decode_list(reader, &mut self.freed, decode_id, ["number of free ids", "free id"])?,
            EMPTIED => {
                let names = ["number of emptied log areas", "emptied log area"];
                decode_list(reader, &mut self.emptied, decode_id, names)?;
            }
            RUNS => self.decode_runs(reader)?,
            tag => self.decode_of_keyspace(tag, reader)?,
        }
        Ok(())
    }

    fn decode_of_keyspace(&mut self, tag: u8, reader: &mut Reader<'_>) -> Result<(), &'static str> {
        match tag {
            TREE | TREE_ESTIMATED => {
                self.trees.push(decode_tree(reader, tag == TREE_ESTIMATED).ok_or("tree")?);
            }
            NAME => self.names.push(decode_name(reader).ok_or("name of a keyspace")?),
            DROPPED => self.dropped.push(decode_keyspace(reader).ok_or("dropped keyspace")?),
            LAST_KEYSPACE => self.last_keyspace = Some(decode_keyspace(reader).ok_or("last keyspace")?.0),
            TTL => {
                let id = decode_keyspace(reader).ok_or("keyspace whose records expire")?;
                self.ttls.push((id, DefaultTtl(reader.varint().ok_or("time to live")?)));
            }
            MERGE => self.merges.push(decode_merging(reader).ok_or("keyspace with a merge operator")?),
            DURABILITY => {
                self.durabilities.push(decode_durability(reader).ok_or("durability of a keyspace")?)
            }
            COMPRESSION => {
                self.compressions.push(decode_compression(reader).ok_or("compression of a keyspace")?);
            }
            DICTIONARY => {
                self.dictionaries.push(decode_dictionary(reader).ok_or("dictionary of a keyspace")?)
            }
            LARGE => {
                let larges = || Some((decode_keyspace(reader)?, decode_keyspace(reader)?));
                self.larges.push({ larges }().ok_or("keyspace of large values")?);
            }
            _ => return Err("unknown section"),
        }
        Ok(())
    }

    fn decode_runs(&mut self, reader: &mut Reader<'_>) -> Result<(), &'static str> {
        let first = self.runs.len();
        decode_list(reader, &mut self.runs, decode_run, ["number of runs", "run"])?;
        let new = self.runs.get(first..).unwrap_or_default();
        let pieces: u64 = new.iter().map(|(_, run)| u64::from(run.pieces)).sum();
        let changes: u64 = new.iter().map(|(_, run)| u64::from(run.count)).sum();
        // Checked before memory is reserved for them.
        if pieces > reader.remaining() as u64 {
            return Err("number of log pieces");
        }
        for _ in 0..pieces {
            self.pieces.push(decode_id(reader).ok_or("log piece")?);
        }
        for (_, run) in new {
            let mut last: &[u8] = &[];
            for _ in 1..run.pieces {
                let fence = decode_fence(reader).filter(|fence| *fence > last);
                last = fence.ok_or("fence of a log piece")?;
                Fences::put(&mut self.fences, last);
            }
        }
        if changes > (reader.remaining() / KeyHash::LEN) as u64 {
            return Err("number of hashes");
        }
        for _ in 0..changes {
            self.hashes.push(KeyHash::from_bytes(reader.array().ok_or("hash of a key")?));
        }
        Ok(())
    }
}

/// Sections of a number each.
fn encode_numbers(out: &mut Vec<u8>, numbers: impl IntoIterator<Item = (u8, Option<u64>)>) {
    for (tag, number) in numbers {
        if let Some(number) = number {
            out.push(tag);
            put_varint(out, number);
        }
    }
}

/// Begins a section of a keyspace.
fn begin(out: &mut Vec<u8>, tag: u8, keyspace: KeyspaceId) {
    out.push(tag);
    put_varint(out, u64::from(keyspace.0));
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// A list with its length; what is bad is the length, or one of them.
fn decode_list<T>(
    reader: &mut Reader<'_>,
    list: &mut Vec<T>,
    decode: fn(&mut Reader<'_>) -> Option<T>,
    [number, item]: [&'static str; 2],
) -> Result<(), &'static str> {
    let count = reader.length().ok_or(number)?;
    for _ in 0..count {
        list.push(decode(reader).ok_or(item)?);
    }
    Ok(())
}

fn decode_number(reader: &mut Reader<'_>) -> Option<u64> {
    reader.varint().filter(|number| *number < NUMBER_MAX)
}

/// Ids index a table in memory, so an absurd one must not make it grow without bound. 2^40 nodes of 8 KiB are 8 PiB.
const ID_MAX: u64 = 1 << 40;

fn decode_id(reader: &mut Reader<'_>) -> Option<NodeId> {
    reader.varint().filter(|id| *id < ID_MAX).map(NodeId)
}

fn decode_merging(reader: &mut Reader<'_>) -> Option<(KeyspaceId, Merging)> {
    let (id, len) = (decode_keyspace(reader)?, reader.length()?);
    let name = std::str::from_utf8(reader.bytes(len)?).ok()?;
    (1..=OPERATOR_NAME_MAX).contains(&len).then(|| (id, Merging::named(name.into())))
}

fn decode_durability(reader: &mut Reader<'_>) -> Option<(KeyspaceId, Durability)> {
    let id = decode_keyspace(reader)?;
    let durability = match reader.u8()? {
        0 => Durability::None,
        1 => Durability::Buffered,
        2 => Durability::Immediate,
        _ => return None,
    };
    Some((id, durability))
}

fn decode_compression(reader: &mut Reader<'_>) -> Option<(KeyspaceId, Compression)> {
    Some((decode_keyspace(reader)?, Compression::from_bytes(reader.array()?)?))
}

fn decode_dictionary(reader: &mut Reader<'_>) -> Option<(KeyspaceId, Arc<Dictionary>)> {
    let id = decode_keyspace(reader)?;
    let len = reader.length().filter(|len| *len <= DICTIONARY_MAX)?;
    Some((id, Dictionary::new(reader.bytes(len)?.to_vec())?))
}

fn decode_address(reader: &mut Reader<'_>) -> Option<(NodeId, Address)> {
    let id = decode_id(reader)?;
    let position = Position(reader.varint()?);
    let lens = NodeLengths::from_u32(u32::try_from(reader.varint()?).ok()?)?;
    Some((id, Address::new(position, lens, reader.u32()?)))
}

fn decode_run(reader: &mut Reader<'_>) -> Option<(NodeId, NewRun)> {
    let block = decode_id(reader)?;
    let pieces = u32::try_from(reader.varint()?).ok().filter(|pieces| *pieces > 0)?;
    let count = u32::try_from(reader.varint()?).ok().filter(|count| *count >= pieces)?;
    let removals = u32::try_from(reader.varint()?).ok().filter(|removals| *removals <= count)?;
    let fresh = u32::try_from(reader.varint()?).ok().filter(|fresh| *fresh <= 100)?;
    Some((block, NewRun { pieces, count, removals, fresh }))
}

fn decode_fence<'a>(reader: &mut Reader<'a>) -> Option<&'a [u8]> {
    let len = reader.length().filter(|len| *len <= KEY_LEN_MAX)?;
    reader.bytes(len)
}

fn decode_expiring(reader: &mut Reader<'_>) -> Option<(u64, ExpiringBytes)> {
    let number = reader.varint()?;
    let count = reader.length().filter(|count| *count <= STEPS)?;
    let steps: Option<Vec<_>> =
        (0..count).map(|_| Some((decode_number(reader)?, reader.varint()?))).collect();
    Some((number, ExpiringBytes::of_steps(&steps?)?))
}

fn decode_keyspace(reader: &mut Reader<'_>) -> Option<KeyspaceId> {
    u32::try_from(reader.varint()?).ok().filter(|id| *id <= KeyspaceId::LAST.0).map(KeyspaceId)
}

fn decode_name(reader: &mut Reader<'_>) -> Option<TreeName> {
    let id = decode_keyspace(reader)?;
    let len = reader.length().filter(|len| *len <= NAME_LEN_MAX)?;
    let name = std::str::from_utf8(reader.bytes(len)?).ok()?.into();
    let len = reader.length().filter(|len| *len <= METADATA_MAX)?;
    let metadata = reader.bytes(len)?;
    Some(TreeName { id, name, metadata: (!metadata.is_empty()).then(|| metadata.into()) })
}

fn decode_tree(reader: &mut Reader<'_>, is_estimated: bool) -> Option<(KeyspaceId, Tree)> {
    let id = decode_keyspace(reader)?;
    let root = reader.varint()?.checked_sub(1).map(NodeId);
    let height = u8::try_from(reader.varint()?).ok().filter(|height| *height <= LEVEL_MAX)?;
    let len = reader.varint()?;
    let bytes = reader.varint()?;
    let name_len = reader.length().filter(|len| *len <= NAME_LEN_MAX)?;
    let name = std::str::from_utf8(reader.bytes(name_len)?).ok()?.into();
    Some((id, Tree { root, height, len, bytes, is_estimated, ..Tree::empty(name) }))
}

#[cfg(test)]
mod tests;
