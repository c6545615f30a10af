//! The sequential writer: appends nodes to the open segment, in large writes, many nodes at once. (AS B-tree,
//! JISE 2014, section 3: the "sequential write" that gives the tree its name.)
//!
//! Invariants:
//! 1. A node lies within one segment, behind the node written before it.
//! 2. Every write begins where the last one ended, at a multiple of the alignment; nothing is written twice. (An
//!    attempt that was aborted is rewound; no reader can have seen what it wrote.)
//! 3. Nodes are on the device after [`Writer::finish`], and durable after a sync of the file.
//! 4. Each writer has segments of its own. The database's own writer continues in its last segment; a writer
//!    [beside](Writer::beside) it leaves its last segment as it is when it ends.

use crate::error::{Error, Result};
use crate::storage::data_file::DataFile;
use crate::storage::mapping_table::Position;
use crate::storage::segment::Segment;
use crate::storage::write_behind::WriteBehind;
use psync::AlignedBuffer;
use std::sync::Arc;

/// Attempts end at a multiple of this many bytes, so that a database can move to a device with a larger
/// alignment.
const PADDING: usize = 4096;
/// What a flash device reads at once. A node within one page is read faster than one across two (86,000
/// against 70,000 a second at depth 64 where we measured; see docs/benchmarks.md), so a node that would lie
/// across more pages than necessary begins on a page. That wastes at most a 32nd of what is written. A node
/// that does not need its part of this leaves it to others: behind a short leaf all following leaves would
/// lie across two pages, until their parts together suffice to begin one on a page.
pub(crate) const PAGE: u64 = 4096;
const WASTE: u64 = 32;
/// Largest buffer in bytes of a writer beside the database's own: so small that the memory reserved for a flush has
/// room for both.
const BUFFER_BESIDE: usize = 256 << 10;
/// Segments of a small database are closed early, so that their space can be collected in small portions; but
/// a segment has at least this many bytes.
const CAPACITY_MIN: u64 = 256 << 10;

/// Capacity of a new segment, in bytes, for a database with so many live bytes.
pub(crate) fn segment_capacity(live: u64, span: u64) -> u64 {
    (live / 1024).clamp(CAPACITY_MIN.min(span), span)
}

/// Position of the writer that an aborted version builder returns to.
#[derive(Clone, Debug)]
pub(crate) struct WriterPosition {
    open: Option<OpenSegment>,
}

#[derive(Clone, Debug)]
struct OpenSegment {
    segment: Arc<Segment>,
    /// Offset of the next node.
    used: u64,
    /// Capacity of the segment, in bytes.
    capacity: Option<u64>,
}

/// What was written since the last mark.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// Segments begun.
    pub begun: Vec<Arc<Segment>>,
    /// Number and used bytes of every segment that was written to.
    pub used: Vec<(u64, u64)>,
}

/// See the module. One thread at a time.
pub(crate) struct Writer {
    output: WriteBehind,
    file: Arc<DataFile>,
    /// Whether it continues in its last segment at the next attempt.
    goes_on: bool,
    span: u64,
    alignment: usize,
    /// Of `buffer_len` bytes; empty between attempts if the writer was told to [`rest`](Writer::rest).
    buffer: AlignedBuffer,
    buffer_len: usize,
    filled: usize,
    open: Option<OpenSegment>,
    /// Bytes that may be wasted to begin a node on a page; at most a page.
    waste: u64,
    written: Written,
}

impl Writer {
    /// A writer that continues in `open` (a segment and its used bytes), if there is one. It gathers `buffer`
    /// bytes before it writes them, in multiples of `alignment`.
    pub fn new(
        output: WriteBehind,
        alignment: usize,
        file: Arc<DataFile>,
        span: u64,
        buffer: usize,
        open: Option<(Arc<Segment>, u64)>,
    ) -> Self {
        let alignment = alignment.max(PADDING);
        let buffer_len = buffer.next_multiple_of(alignment);
        // A segment whose end is not aligned for this device stays as it is.
        let open = open.filter(|(_, used)| used % alignment as u64 == 0).map(|(segment, used)| OpenSegment {
            segment,
            used,
            // Its capacity is decided when the first node comes.
            capacity: None,
        });
        Self {
            output,
            file,
            goes_on: true,
            span,
            alignment,
            buffer: AlignedBuffer::new(0),
            buffer_len,
            filled: 0,
            open,
            waste: 0,
            written: Written::default(),
        }
    }

    /// Another writer, for a version builder that is made while this one is used for others.
    pub fn beside(&self) -> Self {
        let output = self.output.beside();
        let file = Arc::clone(&self.file);
        let buffer = self.buffer_len.min(BUFFER_BESIDE);
        Self { goes_on: false, ..Self::new(output, self.alignment, file, self.span, buffer, None) }
    }

    /// What the writer shares with those beside it.
    pub fn file(&self) -> &Arc<DataFile> {
        &self.file
    }

    /// Begins a version builder.
    pub fn mark(&mut self) -> WriterPosition {
        debug_assert_eq!(self.filled, 0, "the attempt before was finished or aborted");
        if self.buffer.is_empty() {
            self.buffer = AlignedBuffer::new(self.buffer_len);
        }
        self.written = Written::default();
        WriterPosition { open: self.open.clone() }
    }

    /// Frees the memory of its buffers until the next attempt. Between attempts only.
    pub fn rest(&mut self) {
        self.buffer = AlignedBuffer::new(0);
        self.output.rest();
    }

    /// Forgets everything since the mark.
    pub fn abort(&mut self, mark: WriterPosition) {
        // No write may be in flight when its place is written again. An error is known already, or does not
        // matter.
        let _ = self.output.finish();
        self.filled = 0;
        self.open = mark.open;
        self.written = Written::default();
    }

    /// Appends a node. `live`: the database's live bytes, which decide the capacity of a new segment.
    pub fn append(&mut self, node: &[u8], live: u64) -> Result<Position> {
        let len = node.len() as u64;
        if len > self.span {
            // Before anything is written: behind this segment lies another one.
            let what = "a node does not fit into a segment";
            return Err(Error::corrupt("memory", 0, what, format!("{} bytes at most", self.span), len));
        }
        let capacity = segment_capacity(live, self.span);
        let is_full = |open: &mut OpenSegment| {
            let capacity = *open.capacity.get_or_insert(capacity);
            // It may have been ended by a version builder that was aborted.
            let room = open.segment.room();
            open.used + len > room || (open.used > 0 && open.used + len > capacity)
        };
        if self.open.as_mut().is_none_or(is_full) {
            self.begin_segment(capacity, len)?;
        }
        self.waste = (self.waste + len / WASTE).min(PAGE);
        let gap = self.page_gap(len);
        self.waste -= gap;
        self.pad(gap)?;
        let Some(open) = &mut self.open else { unreachable!("a segment was begun") };
        let position = Position(open.segment.number * self.span + open.used);
        open.used += len;
        let mut rest = node;
        while !rest.is_empty() {
            let room = self.buffer.len() - self.filled;
            let (now, later) = rest.split_at(room.min(rest.len()));
            self.buffer[self.filled..self.filled + now.len()].copy_from_slice(now);
            self.filled += now.len();
            rest = later;
            if self.filled == self.buffer.len() {
                self.write_out(rest.len() as u64)?;
            }
        }
        Ok(position)
    }

    /// Padding, in bytes, that makes a node of `len` bytes begin on a page, or 0 if it is not worth that.
    fn page_gap(&self, len: u64) -> u64 {
        let Some(open) = &self.open else { return 0 };
        let within = open.used % PAGE;
        let gap = (PAGE - within) % PAGE;
        let straddles = (within + len).div_ceil(PAGE) > len.div_ceil(PAGE);
        if straddles && gap <= self.waste && open.used + gap + len <= open.segment.room() { gap } else { 0 }
    }

    /// Pads with `gap` zero bytes.
    fn pad(&mut self, gap: u64) -> Result<()> {
        for _ in 0..gap {
            self.buffer[self.filled] = 0;
            self.filled += 1;
            if let Some(open) = &mut self.open {
                open.used += 1;
            }
            if self.filled == self.buffer.len() {
                self.write_out(0)?;
            }
        }
        Ok(())
    }

    fn begin_segment(&mut self, capacity: u64, least: u64) -> Result<()> {
        self.pad_and_write()?;
        self.end_segment();
        let segment = self.file.begin_segment(least, capacity);
        self.written.begun.push(Arc::clone(&segment));
        self.open = Some(OpenSegment { segment, used: 0, capacity: Some(capacity) });
        Ok(())
    }

    /// Leaves to others what is behind the end of the open segment.
    fn end_segment(&self) {
        if let Some(open) = &self.open {
            open.segment.end_at(open.used);
        }
    }

    /// Writes the buffer, which ends `ahead` bytes before the open segment's used end.
    fn write_out(&mut self, ahead: u64) -> Result<()> {
        let Some(open) = &self.open else { return Ok(()) };
        let end = open.used - ahead;
        let start = open.segment.offset() + end - self.filled as u64;
        self.output.write(&mut self.buffer, self.filled, start)?;
        self.file.wrote(self.filled as u64);
        self.filled = 0;
        Ok(())
    }

    fn pad_and_write(&mut self) -> Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        let padded = self.filled.next_multiple_of(self.alignment);
        self.buffer[self.filled..padded].fill(0);
        open.used += (padded - self.filled) as u64;
        self.filled = padded;
        if self.filled > 0 {
            self.write_out(0)?;
        }
        let Some(open) = &self.open else { return Ok(()) };
        let entry = (open.segment.number, open.used);
        match self.written.used.last_mut() {
            Some(last) if last.0 == entry.0 => *last = entry,
            _ => self.written.used.push(entry),
        }
        Ok(())
    }

    /// Ends the version builder's writing; its last bytes are on their way. Returns what it wrote.
    pub fn seal(&mut self) -> Result<Written> {
        self.pad_and_write()?;
        if !self.goes_on {
            self.end_segment();
        }
        Ok(std::mem::take(&mut self.written))
    }

    /// Waits until everything is on the device.
    pub fn finish(&mut self) -> Result<()> {
        self.output.finish()
    }

    /// Number of the segment that the database continues in; all that begin later have a higher number.
    /// `None` for a writer beside the database's own.
    pub fn open_segment(&self) -> Option<u64> {
        let number = self.open.as_ref().map_or_else(|| self.file.next_number(), |open| open.segment.number);
        self.goes_on.then_some(number)
    }
}
