//! The journal that makes changes of [`Files`](super::files::Files) durable: two areas of logical pages, used in turn.
//!
//! An area begins with everything (a checkpoint) and goes on with one transaction after the other. When one does
//! not fit any more, everything goes to the other area, under the next epoch. Recovery takes the area of the highest epoch
//! whose checkpoint is whole, and ends at the first page that does not belong there.
//!
//! A page:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | `SWJ1` |
//! | 4 | 8 | epoch |
//! | 12 | 4 | which page of the area |
//! | 16 | 4 | bytes of payload; highest bit: the transaction ends here |
//! | 20 | 4 | CRC-32C of all other bytes up to the end of the payload |
//! | 24 | | payload: changes in postcard's form, one behind the other, across pages of a transaction |
//!
//! Invariants:
//! 1. the area in use is never overwritten, only gone on with; a checkpoint goes to the other;
//! 2. after recovery a checkpoint is written before anything else, so that pages of a transaction that was cut off are never
//!    gone on with;
//! 3. a transaction counts when all of its pages are there.

use super::files::Change;
use crate::LogicalPage;
use std::ops::Range;

const MAGIC: [u8; 4] = *b"SWJ1";
const HEADER: usize = 24;
const LAST: u32 = 1 << 31;

/// Where the journal is, and how far.
#[derive(Clone, Debug)]
pub(super) struct Journal {
    area_pages: u32,
    page_bytes: usize,
    epoch: u64,
    /// The next page of the area in use.
    next: u32,
}

/// Pages of a transaction, with their places.
pub(super) type Pages = Vec<(LogicalPage, Vec<u8>)>;

impl Journal {
    /// With areas large enough for any number of files' pages (not for any number of long names).
    pub(super) fn new(logical_pages: u32, page_bytes: u32) -> Self {
        // At most 16 bytes a page of a file, where no two lie side by side.
        let per_page = (page_bytes - HEADER as u32) / 16;
        let area_pages = logical_pages.div_ceil(per_page) + 4;
        Self { area_pages, page_bytes: page_bytes as usize, epoch: 0, next: 0 }
    }

    /// Logical pages that are left for data.
    pub(super) fn data(&self, logical_pages: u32) -> Range<u32> {
        (2 * self.area_pages).min(logical_pages)..logical_pages
    }

    fn place(&self, epoch: u64, index: u32) -> LogicalPage {
        LogicalPage((epoch % 2) as u32 * self.area_pages + index)
    }

    /// The pages of a transaction behind those before. `None` if the area is full: take a checkpoint.
    pub(super) fn transaction(&mut self, changes: &[Change]) -> Option<Pages> {
        let pages = self.pages(changes, self.epoch, self.next)?;
        self.next += pages.len() as u32;
        Some(pages)
    }

    /// The pages of a checkpoint in the other area, which is in use from now on. `None` if an area is too small.
    pub(super) fn checkpoint(&mut self, everything: &[Change]) -> Option<Pages> {
        let pages = self.pages(everything, self.epoch + 1, 0)?;
        self.epoch += 1;
        self.next = pages.len() as u32;
        Some(pages)
    }

    fn pages(&self, changes: &[Change], epoch: u64, first: u32) -> Option<Pages> {
        let mut payload = Vec::new();
        for change in changes {
            // Encoding these types to memory cannot fail.
            payload.extend(postcard::to_allocvec(change).ok()?);
        }
        let room = self.page_bytes - HEADER;
        let count = payload.len().div_ceil(room).max(1);
        if first as usize + count > self.area_pages as usize {
            return None;
        }
        let mut pages = Vec::with_capacity(count);
        for number in 0..count {
            let part = &payload[number * room..payload.len().min((number + 1) * room)];
            let index = first + number as u32;
            let last = if number + 1 == count { LAST } else { 0 };
            let mut page = vec![0; self.page_bytes];
            page[..4].copy_from_slice(&MAGIC);
            page[4..12].copy_from_slice(&epoch.to_le_bytes());
            page[12..16].copy_from_slice(&index.to_le_bytes());
            page[16..20].copy_from_slice(&(part.len() as u32 | last).to_le_bytes());
            page[HEADER..HEADER + part.len()].copy_from_slice(part);
            let crc = checksum(&page, part.len());
            page[20..24].copy_from_slice(&crc.to_le_bytes());
            pages.push((self.place(epoch, index), page));
        }
        Some(pages)
    }

    /// Finds what is durable. `read` gives a logical page, or nothing where it cannot be read. The changes, of the newest
    /// checkpoint and everything after; `None` if there is no whole checkpoint.
    pub(super) fn recover<E>(
        &mut self,
        mut read: impl FnMut(LogicalPage) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<Option<Vec<Change>>, E> {
        let mut best: Option<(u64, u32, Vec<Change>)> = None;
        for area in 0..2 {
            let Some(first) = read(self.place(area, 0))? else { continue };
            let Some((epoch, ..)) = open_page(&first, None, 0) else { continue };
            if epoch % 2 != area || best.as_ref().is_some_and(|(known, ..)| *known > epoch) {
                continue;
            }
            let (mut changes, mut payload, mut end) = (Vec::new(), Vec::new(), 0);
            for index in 0..self.area_pages {
                let Some(page) = read(self.place(area, index))? else { break };
                let Some((_, part, last)) = open_page(&page, Some(epoch), index) else { break };
                payload.extend_from_slice(part);
                if last {
                    let Some(transaction) = decode(&payload) else { break };
                    changes.extend(transaction);
                    payload.clear();
                    end = index + 1;
                }
            }
            if end > 0 {
                best = Some((epoch, end, changes));
            }
        }
        let Some((epoch, end, changes)) = best else { return Ok(None) };
        (self.epoch, self.next) = (epoch, end);
        Ok(Some(changes))
    }
}

fn checksum(page: &[u8], len: usize) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&page[..20]), &page[HEADER..HEADER + len])
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Epoch, payload and whether the transaction ends here, if it is a page of the journal, of that epoch and place.
fn open_page(page: &[u8], epoch: Option<u64>, index: u32) -> Option<(u64, &[u8], bool)> {
    let found = number(page.get(4..12)?);
    let len = number(&page[16..20]) as u32;
    let part = page.get(HEADER..HEADER + (len & !LAST) as usize)?;
    let fits = page[..4] == MAGIC
        && epoch.is_none_or(|epoch| epoch == found)
        && number(&page[12..16]) == u64::from(index)
        && number(&page[20..24]) == u64::from(checksum(page, part.len()));
    fits.then_some((found, part, len & LAST != 0))
}

fn decode(mut payload: &[u8]) -> Option<Vec<Change>> {
    let mut changes = Vec::new();
    while !payload.is_empty() {
        let (change, rest) = postcard::take_from_bytes(payload).ok()?;
        changes.push(change);
        payload = rest;
    }
    Some(changes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn length(file: u32) -> Change {
        Change::Length { file, len: u64::MAX }
    }

    #[test]
    fn what_is_whole_counts_and_nothing_behind_a_gap() {
        let mut journal = Journal::new(3000, 512);
        let mut disk = BTreeMap::new();
        let checkpoint: Vec<_> = (0..100).map(length).collect();
        disk.extend(journal.checkpoint(&checkpoint).unwrap());
        disk.extend(journal.transaction(&[length(500)]).unwrap());
        let long: Vec<_> = (1000..1100).map(length).collect();
        let pages = journal.transaction(&long).unwrap();
        assert!(pages.len() > 2);
        // All ways to find a part of the last transaction.
        for found in 0..1 << pages.len() {
            let mut disk = disk.clone();
            let there = pages.iter().enumerate().filter(|(bit, _)| found >> bit & 1 == 1);
            disk.extend(there.map(|(_, page)| page.clone()));
            let mut recovered = Journal::new(3000, 512);
            let changes = recovered.recover(|page| Ok::<_, ()>(disk.get(&page).cloned())).unwrap().unwrap();
            let whole = found == (1 << pages.len()) - 1;
            assert_eq!(changes.len(), if whole { 201 } else { 101 }, "{found:b}");
            // The checkpoint after it goes to the other area, and wins once it is whole.
            let again = recovered.checkpoint(&[length(7)]).unwrap();
            let mut after = Journal::new(3000, 512);
            disk.extend(again);
            let changes = after.recover(|page| Ok::<_, ()>(disk.get(&page).cloned())).unwrap().unwrap();
            assert_eq!(changes, [length(7)]);
        }
    }

    #[test]
    fn a_full_area_asks_for_a_checkpoint() {
        let mut journal = Journal::new(100, 512);
        journal.checkpoint(&[]).unwrap();
        let fits = (0..).take_while(|_| journal.transaction(&[length(1)]).is_some()).count();
        assert_eq!(fits, journal.area_pages as usize - 1);
        assert!(journal.checkpoint(&[]).is_some() && journal.transaction(&[length(1)]).is_some());
        let many: Vec<_> = (0..10_000).map(length).collect();
        assert!(journal.checkpoint(&many).is_none());
    }

    #[test]
    fn damage_is_no_journal() {
        let mut journal = Journal::new(100, 512);
        let (_, page) = journal.checkpoint(&[length(3)]).unwrap().remove(0);
        assert!(open_page(&page, Some(1), 0).is_some());
        let (_, part, _) = open_page(&page, None, 0).unwrap();
        for bit in 0..(HEADER + part.len()) * 8 {
            let mut damaged = page.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(open_page(&damaged, Some(1), 0).is_none(), "bit {bit}");
        }
        assert!(open_page(&page[..10], None, 0).is_none());
    }
}
