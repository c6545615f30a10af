//! Memory of freed queues, kept for the next one. A queue of 20 MiB may live for only a tenth of a second.
//! Mapping it, zeroing it page by page and unmapping it each time took a third of a committing thread's time.
//!
//! ```text
//! queue ──dropped by its last holder──▶ spare ──take──▶ the next queue
//!                                               │ the next has not taken it for a while, or maps something else: to the system
//! ```
//! It is *open* from the freezing of a queue, when there is a next queue, until nothing has arrived for some
//! time.
//!
//! Invariants:
//! 1. A chunk belongs exclusively to the thread that gives it, and then to the thread that takes it: no other
//!    knows a place in it.
//! 2. It holds at most what one queue takes, and nothing when it is closed.
//! 3. While it holds memory, a queue that takes memory does not increase the total: for each byte that the
//!    queue maps, a byte is released from here to the system.
//! 4. Its lock is the last in the lock order, since a queue may be dropped anywhere. Nothing is unmapped under
//!    it.

use super::memory::{CHUNK, HUGE, LONG};
use crate::lock_order::{RankedMutex, rank};
use memmap2::MmapMut;
use std::time::{Duration, Instant};

/// See the module documentation.
#[derive(Default)]
pub(crate) struct FreeList {
    kept: RankedMutex<rank::FreeList, Chunks>,
}

#[derive(Default)]
struct Chunks {
    /// The maximum in bytes; 0 if it is closed.
    most: usize,
    /// When it was opened, or last received something.
    since: Option<Instant>,
    huge: Vec<MmapMut>,
    small: Vec<MmapMut>,
}

impl Chunks {
    fn bytes(&self) -> usize {
        self.huge.len() * HUGE + self.small.len() * CHUNK
    }

    /// Removes chunks until at most `most` bytes are left, the small ones first. Returns the removed ones.
    fn beyond(&mut self, most: usize) -> Vec<MmapMut> {
        let mut beyond = Vec::new();
        while self.bytes() > most {
            beyond.extend(self.small.pop().or_else(|| self.huge.pop()));
        }
        beyond
    }
}

/// Bytes in whole chunks of a queue that is full at `queue` bytes.
fn whole(queue: usize) -> usize {
    queue.next_multiple_of(if queue < LONG { CHUNK } else { HUGE })
}

impl FreeList {
    /// Opens it: keeps the memory of freed queues, as much as one queue takes that is full at `queue` bytes.
    pub fn open(&self, queue: usize) {
        let mut kept = self.kept.lock();
        (kept.most, kept.since) = (whole(queue), Some(Instant::now()));
    }

    /// If it is open, changes the limit: a queue is now full at `queue` bytes.
    pub fn limit(&self, queue: usize) {
        let mut kept = self.kept.lock();
        if kept.most == 0 {
            return;
        }
        kept.most = whole(queue);
        let most = kept.most;
        let beyond = kept.beyond(most);
        drop(kept);
        drop(beyond);
    }

    /// Closes it if nothing has arrived for `time`. Returns the number of bytes given back to the system.
    pub fn close_after(&self, time: Duration) -> usize {
        let mut kept = self.kept.lock();
        if kept.since.is_none_or(|since| since.elapsed() < time) {
            return 0;
        }
        let given = std::mem::take(&mut *kept);
        drop(kept);
        given.bytes()
    }

    pub fn is_open(&self) -> bool {
        self.kept.lock().most > 0
    }

    pub fn bytes(&self) -> usize {
        self.kept.lock().bytes()
    }

    /// Takes a chunk for a queue: a huge one if there is any, for queues of any length; a small one only for a
    /// short queue. Its content is arbitrary.
    pub(super) fn take(&self, is_long: bool) -> Option<MmapMut> {
        let mut kept = self.kept.lock();
        let kept = &mut *kept;
        kept.huge.pop().or_else(|| if is_long { None } else { kept.small.pop() })
    }

    /// Releases as many bytes as a queue is about to map.
    pub(super) fn make_way(&self, bytes: usize) {
        let mut kept = self.kept.lock();
        let most = kept.bytes().saturating_sub(bytes);
        let beyond = kept.beyond(most);
        drop(kept);
        drop(beyond);
    }

    /// Keeps chunks of these two sizes as far as there is room. All others go back to the system.
    pub(super) fn keep(&self, chunks: Vec<MmapMut>) {
        let mut others = Vec::new();
        let mut kept = self.kept.lock();
        // The chunks that a queue took last are huge, if any are.
        for chunk in chunks.into_iter().rev() {
            if kept.bytes() + chunk.len() > kept.most {
                others.push(chunk);
                continue;
            }
            #[cfg(test)]
            let chunk = soiled(chunk);
            match chunk.len() {
                HUGE => kept.huge.push(chunk),
                CHUNK => kept.small.push(chunk),
                _ => {
                    others.push(chunk);
                    continue;
                }
            }
            kept.since = Some(Instant::now());
        }
        drop(kept);
        drop(others);
    }
}

/// Fills a chunk with bytes that no queue leaves behind, so that tests detect code that relies on zeros.
#[cfg(test)]
fn soiled(mut chunk: MmapMut) -> MmapMut {
    chunk.fill(0xa5);
    chunk
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn chunks(lens: &[usize]) -> Vec<MmapMut> {
        lens.iter().map(|len| MmapMut::map_anon(*len).unwrap()).collect()
    }

    #[test]
    fn whole_chunks_are_kept_as_far_as_a_queue_takes_them_and_none_when_it_is_closed() {
        let spare = FreeList::default();
        spare.keep(chunks(&[CHUNK]));
        assert_eq!((spare.bytes(), spare.is_open()), (0, false));
        spare.limit(CHUNK);
        assert!(!spare.is_open(), "only freezing a queue opens it");
        spare.open(3 * CHUNK - 1);
        spare.keep(chunks(&[CHUNK, CHUNK + 4096, CHUNK, 100]));
        assert_eq!(spare.bytes(), 2 * CHUNK);
        spare.keep(chunks(&[CHUNK, CHUNK, HUGE]));
        assert_eq!(spare.bytes(), 3 * CHUNK);
        spare.limit(CHUNK + 1);
        assert_eq!(spare.bytes(), 2 * CHUNK);
        assert!(spare.take(true).is_none(), "there is no huge one");
        assert_eq!([0; 3].map(|_| spare.take(false).is_some()), [true, true, false]);
        spare.keep(chunks(&[CHUNK]));
        assert_eq!((spare.close_after(HOUR), spare.bytes()), (0, CHUNK));
        assert_eq!((spare.close_after(Duration::ZERO), spare.bytes(), spare.is_open()), (CHUNK, 0, false));
        spare.keep(chunks(&[CHUNK]));
        assert_eq!((spare.bytes(), spare.close_after(Duration::ZERO)), (0, 0));
    }

    #[test]
    fn huge_ones_are_taken_first_and_small_ones_make_way_first() {
        let spare = FreeList::default();
        spare.open(LONG + 1);
        let all = [[CHUNK; 8].as_slice(), &[HUGE]].concat();
        spare.keep(chunks(&all));
        for is_long in [false, true] {
            let huge = spare.take(is_long).unwrap();
            assert_eq!((huge.len(), spare.bytes()), (HUGE, 8 * CHUNK));
            spare.keep(vec![huge]);
        }
        spare.make_way(1);
        assert_eq!(spare.bytes(), HUGE + 7 * CHUNK);
        spare.make_way(7 * CHUNK);
        assert_eq!(spare.bytes(), HUGE);
        spare.make_way(1);
        assert_eq!(spare.bytes(), 0);
        spare.keep(chunks(&[HUGE; 6]));
        assert_eq!(spare.bytes(), 5 * HUGE, "a queue of more than 8 MiB may have 10");
    }

    /// Its time begins anew with each chunk that comes.
    #[test]
    fn what_has_just_come_is_kept_however_long_it_is_open() {
        let spare = FreeList::default();
        let long_ago = Instant::now().checked_sub(HOUR);
        spare.open(CHUNK);
        assert!(long_ago.is_some());
        spare.kept.lock().since = long_ago;
        spare.keep(chunks(&[CHUNK]));
        assert_eq!((spare.close_after(HOUR), spare.bytes()), (0, CHUNK));
        spare.kept.lock().since = long_ago;
        assert_eq!(spare.close_after(HOUR), CHUNK);
    }
}
