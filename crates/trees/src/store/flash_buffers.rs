//! Buffers of updates on the device, one for a node: appended to page by page, scanned by lookups, and taken as a whole.
//!
//! ```text
//! buffer pages: units, in the order of their arrival; the sequence is the number of the extent
//! table pages, which the anchor names: for each extent two units of its node, in the order of the buffer
//!   Put:   key = first page, value = pages used × 2^32 + pages
//!   Begin: key = number of the extent
//! anchor: first page and pages of the table, next number
//! ```
//!
//! Invariants:
//! 1. Of two updates of one key in a buffer the later one counts: what is staged in memory, then the last page, and so on.
//! 2. A buffer that is in the map holds something.
//! 3. Less than a page of each buffer is staged, and not much more than `staged_max` units in all.
//!
//! What an extent held is free at once when it is taken: power loss between two flushes is not survived.

use crate::page::unit_page::{self, Unit, What};
use crate::page::{Change, Key, KeyRange, NodeId};
use crate::store::anchor::Owner;
use crate::store::extents::{ExtentFile, NUMBER_MAX, id_of};
use crate::{Counters, Error, Result};
use psync::Volume;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

/// Neighbouring pages of one buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Extent {
    pages: Range<u64>,
    used: u64,
    number: u64,
}

#[derive(Clone, Debug, Default)]
struct Buffer {
    extents: Vec<Extent>,
    staged: Vec<(Key, Change)>,
    /// Pages that lookups have scanned since it was empty.
    paid: u64,
}

impl Buffer {
    fn pages(&self) -> u64 {
        self.extents.iter().map(|extent| extent.used).sum()
    }
}

/// See the module.
pub(crate) struct FlashBuffers {
    file: ExtentFile,
    per_page: usize,
    /// Pages that are allocated at a time for a buffer.
    extent_pages: u64,
    staged_max: usize,
    buffers: HashMap<NodeId, Buffer>,
    /// Buffers by how much of them is staged.
    stages: BTreeSet<(usize, NodeId)>,
    staged: usize,
    next_number: u64,
    table: Range<u64>,
    /// Times that nodes with buffers were divided or joined.
    pub rewritten: u64,
}

impl FlashBuffers {
    pub fn create(
        volume: Arc<dyn Volume>,
        name: &str,
        page_len: usize,
        extent_pages: u64,
        staged_max: usize,
    ) -> Result<Self> {
        let file = ExtentFile::create(volume, name, Owner::LaTree, page_len)?;
        Ok(Self::over(file, extent_pages, staged_max))
    }

    fn over(file: ExtentFile, extent_pages: u64, staged_max: usize) -> Self {
        Self {
            per_page: unit_page::units_max(file.page_len()),
            file,
            extent_pages,
            staged_max,
            buffers: HashMap::new(),
            stages: BTreeSet::new(),
            staged: 0,
            next_number: 0,
            table: 0..0,
            rewritten: 0,
        }
    }

    /// Opens the file with the buffers that its table names.
    pub fn open(
        volume: Arc<dyn Volume>,
        name: &str,
        page_len: usize,
        extent_pages: u64,
        staged_max: usize,
    ) -> Result<Self> {
        let file = ExtentFile::open(volume, name, Owner::LaTree, page_len)?;
        let mut this = Self::over(file, extent_pages, staged_max);
        let words = this.file.anchor().words.clone();
        let wrong = |what: &str, found: String| Error::corrupt(name, 0, what, "a table of buffers", found);
        let [first, pages, next_number] = words[..] else {
            return Err(wrong("words of the anchor", format!("{words:?}")));
        };
        if next_number > NUMBER_MAX {
            return Err(wrong("words of the anchor", format!("{words:?}")));
        }
        this.next_number = next_number;
        if pages == 0 {
            return Ok(this);
        }
        let end =
            first.checked_add(pages).ok_or_else(|| wrong("words of the anchor", format!("{words:?}")))?;
        this.table = first..end;
        this.file.occupy(first..end)?;
        let bytes = this.file.read(first..end)?;
        let mut units = Vec::new();
        for (page, bytes) in this.table.clone().zip(bytes.chunks(page_len)) {
            let (more, version) = unit_page::decode(bytes, name, this.file.offset(page), id_of(page))?;
            if version != this.file.anchor().version {
                return Err(wrong("version of the table", version.to_string()));
            }
            units.extend(more);
        }
        for pair in units.chunks(2) {
            let [
                Unit { node, key: first, what: What::Put(lens) },
                Unit { key: number, what: What::Begin(0), .. },
            ] = *pair
            else {
                return Err(wrong("table", format!("{pair:?}")));
            };
            let (used, len) = (lens >> 32, lens & 0xffff_ffff);
            let end = first.checked_add(len).filter(|_| used <= len && used > 0);
            let end = end.ok_or_else(|| wrong("extent", format!("{used} of {len} pages")))?;
            this.file.occupy(first..end)?;
            let extent = Extent { pages: first..end, used, number };
            this.buffers.entry(node).or_default().extents.push(extent);
        }
        Ok(this)
    }

    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.buffers.keys().copied()
    }

    /// Whether a node has anything buffered.
    pub fn has(&self, id: NodeId) -> bool {
        self.buffers.contains_key(&id)
    }

    /// Pages of a node's buffer, what is staged counted as a page.
    pub fn pages(&self, id: NodeId) -> u64 {
        let pages = |buffer: &Buffer| buffer.pages() + u64::from(!buffer.staged.is_empty());
        self.buffers.get(&id).map_or(0, pages)
    }

    /// Pages that lookups have scanned since the buffer was empty.
    pub fn paid(&self, id: NodeId) -> u64 {
        self.buffers.get(&id).map_or(0, |buffer| buffer.paid)
    }

    /// Most updates that a node's buffer can hold.
    pub fn units_at_most(&self, id: NodeId) -> u64 {
        self.pages(id) * self.per_page as u64
    }

    /// Appends updates to a node's buffer: whole pages go to the device, the rest is staged.
    pub fn put(&mut self, id: NodeId, changes: &[(Key, Change)]) -> Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        self.stage(id, |staged| staged.extend_from_slice(changes));
        let whole = self.buffers[&id].staged.len() / self.per_page * self.per_page;
        self.write(id, whole)?;
        while self.staged > self.staged_max
            && let Some((count, largest)) = self.stages.last().copied()
        {
            self.write(largest, count)?;
        }
        Ok(())
    }

    /// Changes what is staged of a buffer, and keeps account of it.
    fn stage(&mut self, id: NodeId, change: impl FnOnce(&mut Vec<(Key, Change)>)) {
        let buffer = self.buffers.entry(id).or_default();
        let before = buffer.staged.len();
        change(&mut buffer.staged);
        let after = buffer.staged.len();
        if before > 0 {
            self.stages.remove(&(before, id));
        }
        if after > 0 {
            self.stages.insert((after, id));
        }
        self.staged = self.staged - before + after;
    }

    /// Brings the first `count` staged updates of a buffer to the device.
    fn write(&mut self, id: NodeId, count: usize) -> Result<()> {
        let mut changes = Vec::new();
        self.stage(id, |staged| changes.extend(staged.drain(..count)));
        let mut pages = changes.chunks(self.per_page);
        while pages.len() > 0 {
            let Some(buffer) = self.buffers.get_mut(&id) else { break };
            let is_room = |extent: &&mut Extent| extent.used < extent.pages.end - extent.pages.start;
            if buffer.extents.last_mut().filter(is_room).is_none() {
                self.next_number += 1;
                let pages = self.file.allocate(self.extent_pages);
                buffer.extents.push(Extent { pages, used: 0, number: self.next_number });
            }
            let Some(extent) = buffer.extents.last_mut() else { break };
            let first = extent.pages.start + extent.used;
            let room = (extent.pages.end - first) as usize;
            let group: Vec<_> = pages.by_ref().take(room).collect();
            let mut bytes = self.file.buffer(group.len());
            for ((number, changes), page) in (first..).zip(&group).zip(bytes.chunks_mut(self.file.page_len()))
            {
                let units: Vec<Unit> =
                    changes.iter().map(|(key, change)| Unit::of(id, *key, *change)).collect();
                unit_page::encode(&units, id_of(number), extent.number, page);
            }
            self.file.write(first, &bytes)?;
            extent.used += group.len() as u64;
        }
        Ok(())
    }

    /// Reads a buffer's pages, and hands over their updates in the order of their arrival.
    fn scan(&self, buffer: &Buffer, take: &mut dyn FnMut(Key, Change)) -> Result<()> {
        for extent in &buffer.extents {
            let first = extent.pages.start;
            let bytes = self.file.read(first..first + extent.used)?;
            for (page, bytes) in (first..).zip(bytes.chunks(self.file.page_len())) {
                let (name, offset) = (self.file.name(), self.file.offset(page));
                let (units, number) = unit_page::decode(bytes, name, offset, id_of(page))?;
                if number != extent.number {
                    return Err(Error::corrupt(name, offset, "number of an extent", extent.number, number));
                }
                for unit in units {
                    let (key, change) = unit.change().ok_or_else(|| {
                        Error::corrupt(name, offset, "unit", "an update", format!("{unit:?}"))
                    })?;
                    take(key, change);
                }
            }
        }
        buffer.staged.iter().for_each(|(key, change)| take(*key, *change));
        Ok(())
    }

    /// What waits for a key in a node's buffer. Scans all of it, unless the newest is in memory.
    pub fn find(&mut self, id: NodeId, key: Key) -> Result<Option<Change>> {
        let Some(buffer) = self.buffers.get_mut(&id) else { return Ok(None) };
        if let Some((_, change)) = buffer.staged.iter().rfind(|staged| staged.0 == key) {
            return Ok(Some(*change));
        }
        buffer.paid += buffer.pages();
        self.newest(id, key)
    }

    /// The same, without an account of what it costs.
    pub fn newest(&self, id: NodeId, key: Key) -> Result<Option<Change>> {
        let mut found = None;
        if let Some(buffer) = self.buffers.get(&id) {
            self.scan(buffer, &mut |at, change| {
                if at == key {
                    found = Some(change);
                }
            })?;
        }
        Ok(found)
    }

    /// All that waits in a node's buffer for keys of a range.
    pub fn peek(&self, id: NodeId, range: Range<Key>) -> Result<BTreeMap<Key, Change>> {
        let mut found = BTreeMap::new();
        if let Some(buffer) = self.buffers.get(&id) {
            self.scan(buffer, &mut |key, change| {
                if range.contains(&key) {
                    found.insert(key, change);
                }
            })?;
        }
        Ok(found)
    }

    /// Whether all that waits in a node's buffer is for keys of its range.
    pub fn is_within(&self, id: NodeId, range: KeyRange) -> Result<bool> {
        let mut within = true;
        if let Some(buffer) = self.buffers.get(&id) {
            self.scan(buffer, &mut |key, _| within &= range.contains(key))?;
        }
        Ok(within)
    }

    /// Takes all that waits in a node's buffer, in order of key, and leaves it empty.
    pub fn take(&mut self, id: NodeId) -> Result<BTreeMap<Key, Change>> {
        let mut found = BTreeMap::new();
        if let Some(buffer) = self.buffers.get(&id) {
            self.scan(buffer, &mut |key, change| {
                found.insert(key, change);
            })?;
            self.stage(id, Vec::clear);
        }
        for extent in self.buffers.remove(&id).unwrap_or_default().extents {
            self.file.give(extent.pages);
        }
        Ok(found)
    }

    /// The keys from `fence` on have moved from one node to another.
    pub fn divide(&mut self, left: NodeId, fence: Key, right: NodeId) -> Result<()> {
        if self.has(left) {
            self.rewritten += 1;
            let mut below: BTreeMap<_, _> = self.take(left)?;
            let above: Vec<_> = below.split_off(&fence).into_iter().collect();
            let below: Vec<_> = below.into_iter().collect();
            self.put(left, &below)?;
            self.put(right, &above)?;
        }
        Ok(())
    }

    /// All keys of `right` have moved to `left`.
    pub fn join(&mut self, left: NodeId, right: NodeId) -> Result<()> {
        if self.has(right) {
            self.rewritten += 1;
            let moved: Vec<_> = self.take(right)?.into_iter().collect();
            self.put(left, &moved)?;
        }
        Ok(())
    }

    /// Brings all that is staged to the device, and the table.
    pub fn save(&mut self) -> Result<()> {
        while let Some((count, id)) = self.stages.last().copied() {
            self.write(id, count)?;
        }
        let mut nodes: Vec<_> = self.buffers.keys().copied().collect();
        nodes.sort_unstable();
        let mut units = Vec::new();
        for node in nodes {
            for extent in &self.buffers[&node].extents {
                let lens = extent.used << 32 | (extent.pages.end - extent.pages.start);
                units.push(Unit { node, key: extent.pages.start, what: What::Put(lens) });
                units.push(Unit { node, key: extent.number, what: What::Begin(0) });
            }
        }
        let pages = units.len().div_ceil(self.per_page);
        let old = std::mem::replace(&mut self.table, 0..0);
        self.file.retire(old);
        if pages > 0 {
            self.table = self.file.allocate(pages as u64);
            let version = self.file.anchor().version + 1;
            let mut bytes = self.file.buffer(pages);
            let page_len = self.file.page_len();
            for ((page, units), bytes) in
                self.table.clone().zip(units.chunks(self.per_page)).zip(bytes.chunks_mut(page_len))
            {
                unit_page::encode(units, id_of(page), version, bytes);
            }
            self.file.write(self.table.start, &bytes)?;
        }
        self.file.commit(vec![self.table.start, pages as u64, self.next_number])
    }

    /// Pages that nothing stands on: file and offset.
    pub fn unused(&self) -> Vec<(String, u64)> {
        self.file.unused()
    }

    /// Verifies the account of what is staged.
    pub fn check(&self) -> Result<()> {
        let staged: BTreeSet<_> = self
            .buffers
            .iter()
            .filter(|(_, buffer)| !buffer.staged.is_empty())
            .map(|(id, buffer)| (buffer.staged.len(), *id))
            .collect();
        let total: usize = staged.iter().map(|(count, _)| count).sum();
        let idle = self.buffers.values().any(|buffer| buffer.staged.is_empty() && buffer.pages() == 0);
        if staged != self.stages || total != self.staged || total > self.staged_max || idle {
            return Err(Error::broken("what is staged of the buffers does not add up"));
        }
        Ok(())
    }

    pub fn counters(&self) -> Counters {
        Counters {
            memory: (self.staged * size_of::<(Key, Change)>() + self.buffers.len() * 64) as u64,
            ..self.file.counters()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use psync::Simulated;

    fn puts(keys: Range<Key>, value: u64) -> Vec<(Key, Change)> {
        keys.map(|key| (key, Change::Put(value))).collect()
    }

    #[test]
    fn the_newest_counts_and_space_is_used_again() {
        let volume = Simulated::new(1);
        let node = NodeId(5);
        let mut buffers = FlashBuffers::create(Arc::new(volume.clone()), "b", 512, 2, 30).unwrap();
        for round in 0..4 {
            // 19 a page: five pages and five in memory, in three extents.
            buffers.put(node, &puts(0..100, round)).unwrap();
            buffers.put(node, &[(7, Change::Remove)]).unwrap();
            assert_eq!(buffers.pages(node), 6);
            assert_eq!(buffers.find(node, 7).unwrap(), Some(Change::Remove));
            assert_eq!((buffers.find(node, 8).unwrap(), buffers.paid(node)), (Some(Change::Put(round)), 5));
            buffers.divide(node, 50, NodeId(6)).unwrap();
            assert_eq!(buffers.find(node, 50).unwrap(), None);
            assert_eq!(buffers.find(NodeId(6), 50).unwrap(), Some(Change::Put(round)));
            buffers.join(node, NodeId(6)).unwrap();
            buffers.check().unwrap();
            buffers.save().unwrap();
            buffers = FlashBuffers::open(Arc::new(volume.clone()), "b", 512, 2, 30).unwrap();
            let mut expected: BTreeMap<_, _> = puts(0..100, round).into_iter().collect();
            expected.insert(7, Change::Remove);
            assert_eq!(buffers.take(node).unwrap(), expected);
            buffers.check().unwrap();
        }
        assert!(buffers.counters().space <= 512 * 24, "{:?}", buffers.counters());
    }

    #[test]
    fn the_largest_is_written_when_too_much_is_staged() {
        let mut buffers = FlashBuffers::create(Arc::new(Simulated::new(1)), "b", 512, 2, 30).unwrap();
        buffers.put(NodeId(1), &puts(0..12, 1)).unwrap();
        buffers.put(NodeId(2), &puts(0..14, 1)).unwrap();
        assert_eq!(buffers.counters().pages_written, 0);
        buffers.put(NodeId(3), &puts(0..5, 1)).unwrap();
        assert_eq!(buffers.counters().pages_written, 1);
        assert_eq!(buffers.buffers[&NodeId(2)].staged, []);
        buffers.check().unwrap();
    }
}
