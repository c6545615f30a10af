//! The file of append-only leaves: leaf `n` takes L pages from page `n × L` on.
//!
//! Invariants:
//! 1. A set of reads or writes is one psync call.
//! 2. What is read is sound, of its leaf and in its place: see [`crate::page::leaf_segments`].

use crate::page::NodeId;
use crate::page::leaf_segments::{Entry, Head, Segment, per_segment};
use crate::{Counters, Error, Result};
use psync::{Access, AlignedBuffer, BufferPool, FileId, Read, Volume, Write};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A whole leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentedLeaf {
    pub version: u32,
    /// In the order of their arrival.
    pub entries: Vec<Entry>,
    /// Its last segment, from 0 on.
    pub last: usize,
    /// Sequence numbers of its segments.
    pub sequences: Vec<u64>,
}

impl SegmentedLeaf {
    /// One of its segments, as it stands on the device.
    pub fn segment(&self, leaf: NodeId, number: usize, per_segment: usize) -> Segment {
        let from = (number * per_segment).min(self.entries.len());
        let to = self.entries.len().min(from + per_segment);
        let sequence = self.sequences.get(number).copied().unwrap_or_default();
        Segment { leaf, number, version: self.version, sequence, entries: self.entries[from..to].to_vec() }
    }

    /// Its last segment.
    pub fn last_segment(&self, leaf: NodeId, per_segment: usize) -> Segment {
        self.segment(leaf, self.last, per_segment)
    }
}

/// See the module.
pub(crate) struct LeafExtents {
    volume: Arc<dyn Volume>,
    file: FileId,
    name: String,
    page_len: usize,
    segments: usize,
    buffers: BufferPool,
    /// Bytes of the file.
    len: AtomicU64,
    next: u64,
    free: Vec<u64>,
    read: AtomicU64,
    written: AtomicU64,
}

impl LeafExtents {
    /// Opens the file `name`, or makes it.
    pub fn open(
        volume: Arc<dyn Volume>,
        name: &str,
        page_len: usize,
        segments: usize,
        create: bool,
    ) -> Result<Self> {
        let access = Access { write: true, create, create_new: create, direct: true };
        let file = volume.open(name, access)?;
        let len = AtomicU64::new(volume.len(file)?);
        Ok(Self {
            len,
            volume,
            file,
            name: name.to_owned(),
            page_len,
            segments,
            buffers: BufferPool::new(8 << 20),
            next: 0,
            free: Vec::new(),
            read: AtomicU64::new(0),
            written: AtomicU64::new(0),
        })
    }

    /// L.
    pub fn segments(&self) -> usize {
        self.segments
    }

    pub fn page_len(&self) -> usize {
        self.page_len
    }

    /// Entries of a segment.
    pub fn per_segment(&self) -> usize {
        per_segment(self.page_len)
    }

    /// Leaves that were used at some time.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// After opening: how many leaves were used at some time.
    pub fn set_next(&mut self, next: u64) {
        self.next = next;
    }

    /// After opening: which leaves are in use.
    pub fn keep_only(&mut self, next: u64, used: &HashSet<NodeId>) {
        self.next = next;
        self.free = (0..next).rev().filter(|leaf| !used.contains(&NodeId(*leaf))).collect();
    }

    pub fn allocate(&mut self) -> NodeId {
        NodeId(self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        }))
    }

    pub fn free(&mut self, leaf: NodeId) {
        self.free.push(leaf.0);
    }

    fn offset(&self, leaf: NodeId, segment: usize) -> Result<u64> {
        if leaf.0 >= self.next {
            return Err(Error::corrupt(
                &self.name,
                0,
                "number of a leaf",
                format!("less than {}", self.next),
                leaf.0,
            ));
        }
        Ok((leaf.0 * self.segments as u64 + segment as u64) * self.page_len as u64)
    }

    /// Reads pages, each `(leaf, first segment, segments)`, with one psync. Behind the end of the file are zeros.
    fn read_raw(&self, wanted: &[(NodeId, usize, usize)]) -> Result<Vec<(u64, AlignedBuffer)>> {
        let len = self.len.load(Relaxed);
        let mut pages = wanted
            .iter()
            .map(|(leaf, segment, count)| {
                Ok((self.offset(*leaf, *segment)?, self.buffers.take(count * self.page_len)))
            })
            .collect::<Result<Vec<_>>>()?;
        let mut set = Vec::with_capacity(pages.len());
        for (offset, buffer) in &mut pages {
            let there = len.saturating_sub(*offset).min(buffer.len() as u64) as usize;
            let there = there - there % self.page_len;
            let (present, absent) = buffer.split_at_mut(there);
            absent.fill(0);
            self.read.fetch_add((there / self.page_len) as u64, Relaxed);
            if !present.is_empty() {
                set.push(Read { file: self.file, offset: *offset, buffer: present });
            }
        }
        self.volume.read(&mut set)?;
        Ok(pages)
    }

    fn present(&self, segment: Option<Segment>, leaf: NodeId, offset: u64) -> Result<Segment> {
        segment.ok_or_else(|| Error::corrupt(&self.name, offset, "a segment of a leaf", leaf, "nothing"))
    }

    /// Reads the given segments of some leaves, and all of others, with one psync.
    pub fn read_tails(
        &self,
        tails: &[(NodeId, usize)],
        wholes: &[NodeId],
    ) -> Result<(Vec<Segment>, Vec<SegmentedLeaf>)> {
        let mut wanted: Vec<_> = tails.iter().map(|(leaf, segment)| (*leaf, *segment, 1)).collect();
        wanted.extend(wholes.iter().map(|leaf| (*leaf, 0, self.segments)));
        let pages = self.read_raw(&wanted)?;
        let (tail_pages, whole_pages) = pages.split_at(tails.len());
        let segments = tails
            .iter()
            .zip(tail_pages)
            .map(|((leaf, number), (offset, page))| {
                let segment = Segment::decode(page, &self.name, *offset, *leaf, *number)?;
                self.present(segment, *leaf, *offset)
            })
            .collect::<Result<_>>()?;
        let leaves = wholes
            .iter()
            .zip(whole_pages)
            .map(|(leaf, (offset, pages))| self.assemble(*leaf, *offset, pages))
            .collect::<Result<_>>()?;
        Ok((segments, leaves))
    }

    /// Reads what comes before the last segments given, with one psync, and puts the leaves together.
    pub fn read_rest(&self, tails: &[(NodeId, Segment)]) -> Result<Vec<SegmentedLeaf>> {
        let before = |tail: &Segment| tail.number;
        let wanted: Vec<_> = tails
            .iter()
            .filter(|(_, tail)| before(tail) > 0)
            .map(|(leaf, tail)| (*leaf, 0, before(tail)))
            .collect();
        let mut pages = if wanted.is_empty() { Vec::new() } else { self.read_raw(&wanted)? }.into_iter();
        let mut leaves = Vec::with_capacity(tails.len());
        for (leaf, tail) in tails {
            let mut whole = SegmentedLeaf {
                version: tail.version,
                entries: Vec::new(),
                last: tail.number,
                sequences: Vec::new(),
            };
            if tail.number > 0
                && let Some((offset, pages)) = pages.next()
            {
                for (number, page) in pages.chunks(self.page_len).enumerate() {
                    let offset = offset + (number * self.page_len) as u64;
                    let segment = Segment::decode(page, &self.name, offset, *leaf, number)?;
                    let segment = self.present(segment, *leaf, offset)?;
                    if segment.version != tail.version || segment.entries.len() != self.per_segment() {
                        let expected = format!("version {}, {} entries", tail.version, self.per_segment());
                        let found = format!("version {}, {} entries", segment.version, segment.entries.len());
                        let what = "a segment before the last";
                        return Err(Error::corrupt(&self.name, offset, what, expected, found));
                    }
                    whole.entries.extend(segment.entries);
                    whole.sequences.push(segment.sequence);
                }
            }
            whole.entries.extend(&tail.entries);
            whole.sequences.push(tail.sequence);
            leaves.push(whole);
        }
        Ok(leaves)
    }

    /// Reads whole leaves with one psync.
    pub fn read_leaves(&self, leaves: &[NodeId]) -> Result<Vec<SegmentedLeaf>> {
        let wanted: Vec<_> = leaves.iter().map(|leaf| (*leaf, 0, self.segments)).collect();
        let pages = self.read_raw(&wanted)?;
        leaves
            .iter()
            .zip(&pages)
            .map(|(leaf, (offset, pages))| self.assemble(*leaf, *offset, pages))
            .collect()
    }

    fn assemble(&self, leaf: NodeId, offset: u64, pages: &[u8]) -> Result<SegmentedLeaf> {
        let mut entries = Vec::with_capacity(self.segments * self.per_segment());
        let mut pages = pages.chunks(self.page_len).enumerate();
        let decode = |entries: &mut Vec<Entry>, number: usize, page: &[u8]| -> Result<(u64, Option<Head>)> {
            let offset = offset + (number * self.page_len) as u64;
            Ok((offset, Segment::decode_into(entries, page, &self.name, offset, leaf, number)?))
        };
        let first = pages.next().map(|(number, page)| decode(&mut entries, number, page)).transpose()?;
        let Some((_, Some(first))) = first else {
            return Err(Error::corrupt(&self.name, offset, "first segment of a leaf", leaf, "nothing"));
        };
        let mut last = 0;
        let mut sequences = vec![first.sequence];
        for (number, page) in pages {
            let before = entries.len();
            let (offset, head) = decode(&mut entries, number, page)?;
            match head {
                Some(next) if next.version == first.version && last + 1 == number => {
                    if before != number * self.per_segment() {
                        let expected = number * self.per_segment();
                        let what = "entries before a segment";
                        return Err(Error::corrupt(&self.name, offset, what, expected, before));
                    }
                    last = number;
                    sequences.push(next.sequence);
                }
                // Left behind by an older version of the leaf.
                _ => entries.truncate(before),
            }
        }
        Ok(SegmentedLeaf { version: first.version, entries, last, sequences })
    }

    /// Writes segments with one psync; neighbours go in one request.
    pub fn write_segments(&self, segments: &[Segment]) -> Result<()> {
        self.put_back(segments, &[])
    }

    /// The same, and makes other segments' pages such as were never written. The leaves of these may lie beyond those in use.
    pub fn put_back(&self, segments: &[Segment], unused: &[(NodeId, usize)]) -> Result<()> {
        let mut writes: Vec<(u64, AlignedBuffer)> = Vec::new();
        let mut at = 0;
        while let Some(first) = segments.get(at) {
            let run = segments[at..]
                .iter()
                .enumerate()
                .take_while(|(index, next)| next.leaf == first.leaf && next.number == first.number + index)
                .count();
            let mut buffer = self.buffers.take(run * self.page_len);
            for (segment, page) in segments[at..at + run].iter().zip(buffer.chunks_mut(self.page_len)) {
                segment.encode(page);
            }
            writes.push((self.offset(first.leaf, first.number)?, buffer));
            at += run;
        }
        let len = self.len.load(Relaxed);
        for (leaf, segment) in unused {
            let offset = (leaf.0 * self.segments as u64 + *segment as u64) * self.page_len as u64;
            if offset < len {
                let mut buffer = self.buffers.take(self.page_len);
                buffer.fill(0);
                writes.push((offset, buffer));
            }
        }
        self.write_raw(&writes)?;
        self.written.fetch_add(segments.len() as u64, Relaxed);
        Ok(())
    }

    fn write_raw(&self, writes: &[(u64, AlignedBuffer)]) -> Result<()> {
        let set: Vec<_> =
            writes.iter().map(|(offset, data)| Write { file: self.file, offset: *offset, data }).collect();
        self.volume.write(&set)?;
        let end = set.iter().map(|write| write.offset + write.data.len() as u64).max().unwrap_or(0);
        self.len.fetch_max(end, Relaxed);
        Ok(())
    }

    /// Pages of segments as they are, sound or not, with one psync.
    pub fn read_raw_segments(&self, segments: &[(NodeId, usize)]) -> Result<Vec<AlignedBuffer>> {
        let wanted: Vec<_> = segments.iter().map(|(leaf, segment)| (*leaf, *segment, 1)).collect();
        Ok(self.read_raw(&wanted)?.into_iter().map(|(_, page)| page).collect())
    }

    pub fn sync(&self) -> Result<()> {
        Ok(self.volume.sync(self.file)?)
    }

    /// Pages and space.
    pub fn counters(&self) -> Counters {
        Counters {
            pages_read: self.read.load(Relaxed),
            pages_written: self.written.load(Relaxed),
            space: self.next * (self.segments * self.page_len) as u64,
            ..Counters::default()
        }
    }
}

impl Drop for LeafExtents {
    fn drop(&mut self) {
        // Whoever needs it durable has synced it.
        let _ = self.volume.close(self.file);
    }
}
