//! The write cache of a drive: memory of the controller that loses its content without power.
//!
//! A write that fits is answered once the controller has it there; units program it afterwards, and its bytes are free again
//! when the last of its pages is programmed. Pages that are still there are read from there. A write that is larger than the
//! cache goes past it.
//!
//! Invariants:
//! 1. never more bytes than the cache has; writes come in in order, and one that has no room keeps those behind it waiting,
//!    but no reads;
//! 2. what comes in goes to its units at once: overwrites of a page in the cache are not joined, as it is not known of the
//!    drives that are simulated whether theirs do that.

use super::{Clock, Event, NONE, Slab};
use crate::{Operation, OperationKind, RequestKind};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// A write in the cache, or one that is to come there.
#[derive(Clone, Copy, Debug)]
struct Held {
    bytes: u64,
    /// Operations that have not ended.
    unfinished: u32,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct WriteCache {
    bytes: u64,
    used: u64,
    held: Slab<Held>,
    /// Requests whose turn it is, with their tasks.
    waiting: VecDeque<(u32, Vec<u32>)>,
    /// Pages in the cache, each with how many times.
    pages: HashMap<u32, u32>,
}

impl WriteCache {
    pub fn new(bytes: u64) -> Self {
        Self { bytes, used: 0, held: Slab::new(), waiting: VecDeque::new(), pages: HashMap::new() }
    }

    pub fn clear(&mut self) {
        *self = Self::new(self.bytes);
    }

    /// A place for a request, if it is one that goes through the cache, or `NONE`.
    pub fn admit(&mut self, kind: RequestKind, bytes: u32) -> u32 {
        let bytes = u64::from(bytes);
        if kind == RequestKind::Write && bytes > 0 && bytes <= self.bytes {
            self.held.add(Held { bytes, unfinished: 0 })
        } else {
            NONE
        }
    }

    pub fn add_operation(&mut self, held: u32) {
        self.held.items[held as usize].unfinished += 1;
    }

    /// Whether this reads a page that is in the cache.
    pub fn has(&self, operation: &Operation) -> bool {
        !self.pages.is_empty()
            && operation.kind == OperationKind::Read
            && self.pages.contains_key(&operation.page)
    }
}

impl Clock {
    /// The controller is through with a write that goes to the cache.
    pub(super) fn dispatch_to_cache(&mut self, request: u32, tasks: usize) {
        let tasks = self.admitted_tasks.drain(..tasks.min(self.admitted_tasks.len())).collect();
        self.cache.waiting.push_back((request, tasks));
        self.fill_cache();
    }

    /// What waits comes in as far as there is room.
    fn fill_cache(&mut self) {
        while let Some((request, _)) = self.cache.waiting.front() {
            let held = self.active.items[*request as usize].held;
            let Held { bytes, unfinished } = self.cache.held.items[held as usize];
            if unfinished > 0 && self.cache.used + bytes > self.cache.bytes {
                return;
            }
            let Some((request, tasks)) = self.cache.waiting.pop_front() else { return };
            self.plan(self.ticks.host, Event::Answer(request));
            if unfinished == 0 {
                self.cache.held.free.push(held);
            } else {
                self.cache.used += bytes;
            }
            for task in &tasks {
                let mut at = self.tasks.items[*task as usize].next;
                while at != NONE {
                    let item = &self.pending.items[at as usize];
                    if item.held != NONE && item.operation.kind == OperationKind::Program {
                        *self.cache.pages.entry(item.operation.page).or_insert(0) += 1;
                    }
                    at = item.next_in_task;
                }
            }
            for task in tasks {
                self.begin_stage(task);
            }
        }
    }

    /// An operation of a write in the cache has ended.
    pub(super) fn leave_cache(&mut self, held: u32, operation: &Operation) {
        if operation.kind == OperationKind::Program
            && let Some(times) = self.cache.pages.get_mut(&operation.page)
        {
            *times -= 1;
            if *times == 0 {
                self.cache.pages.remove(&operation.page);
            }
        }
        let write = &mut self.cache.held.items[held as usize];
        write.unfinished -= 1;
        if write.unfinished == 0 {
            self.cache.used -= write.bytes;
            self.cache.held.free.push(held);
            self.fill_cache();
        }
    }

    /// Lets time pass until the cache is empty: a sync. `answered` is told of requests of other callers on the way.
    pub fn empty_cache(&mut self, mut answered: impl FnMut(RequestKind, Duration)) {
        while self.cache.used > 0 || !self.cache.waiting.is_empty() {
            self.step_submitted(&mut answered);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{clock, micros, one, reads};
    use super::*;
    use crate::{Batch, Timing};

    /// A write of one page of 512 bytes to a unit.
    fn write(batch: &mut Batch, unit: u32, page: u32) {
        batch.begin_request(RequestKind::Write, 512);
        batch.add_of_page(OperationKind::Program, (unit, page), 640, Operation::NONE);
    }

    fn writes(pages: &[(u32, u32)]) -> Batch {
        let mut batch = Batch::default();
        pages.iter().for_each(|(unit, page)| write(&mut batch, *unit, *page));
        batch
    }

    /// The clock of the other tests with a cache of two pages: a program takes 210 us with its transfer, the host 5.
    fn cached() -> Clock {
        clock(|timing: &mut Timing| timing.write_cache_bytes = 1024)
    }

    #[test]
    fn a_write_that_fits_is_answered_before_it_is_programmed() {
        let mut clock = cached();
        assert_eq!(micros(&mut clock, &writes(&[(0, 1), (1, 2)])), 5.0);
        assert_eq!(clock.unfinished(), 2);
        clock.empty_cache(|_, _| {});
        assert_eq!((clock.now().as_micros(), clock.unfinished()), (210, 0));
    }

    #[test]
    fn a_full_cache_makes_writes_wait_for_programs_and_reads_pass_them() {
        let mut clock = cached();
        // Two fit, the third comes in when the first is programmed, and so on: one unit, one program after the other.
        assert_eq!(micros(&mut clock, &writes(&[(0, 1), (0, 2), (0, 3)])), 215.0);
        let mut clock = cached();
        let mut batch = writes(&[(0, 1), (0, 2), (0, 3)]);
        one(&mut batch, OperationKind::Read, 1);
        let mut ended = Vec::new();
        clock.run(&batch, |kind, latency| ended.push((kind, latency.as_micros())));
        let expected = [RequestKind::Write, RequestKind::Write, RequestKind::Read, RequestKind::Write];
        assert_eq!(ended.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), expected);
        assert_eq!(ended[2].1, 65, "the read waits for no write");
    }

    #[test]
    fn pages_in_the_cache_are_read_from_there_until_they_are_programmed() {
        let mut clock = cached();
        micros(&mut clock, &writes(&[(0, 7)]));
        let read = |page| {
            let mut batch = Batch::default();
            batch.begin_request(RequestKind::Read, 0);
            batch.add_of_page(OperationKind::Read, (0, page), 640, Operation::NONE);
            batch
        };
        assert_eq!(micros(&mut clock, &read(7)), 5.0);
        assert_eq!(micros(&mut clock, &read(8)).round(), 200.0 + 60.0 + 5.0, "it waits for the program");
        assert_eq!(micros(&mut clock, &read(7)).round(), 65.0, "not there any more");
    }

    #[test]
    fn what_is_larger_than_the_cache_goes_past_it_and_nothing_is_left_over() {
        let mut clock = cached();
        let mut batch = Batch::default();
        batch.begin_request(RequestKind::Write, 2048);
        batch.add_of_page(OperationKind::Program, (0, 1), 640, Operation::NONE);
        assert_eq!(micros(&mut clock, &batch), 215.0);
        // No flash at all: answered at once, and its bytes are not kept.
        let mut nothing = Batch::default();
        (0..5).for_each(|_| nothing.begin_request(RequestKind::Write, 1024));
        assert_eq!(micros(&mut clock, &nothing), 5.0);
        assert_eq!((clock.cache.used, clock.cache.held.len(), clock.cache.pages.len()), (0, 0, 0));
        // Reads are not touched by any of it.
        assert_eq!(micros(&mut clock, &reads(&[0, 1])), 65.0);
    }
}
