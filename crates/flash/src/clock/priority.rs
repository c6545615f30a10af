//! Reads of the host that pass what waits for the same unit or channel ([`ReadPriority`]).
//!
//! ```text
//!          a read comes                      no more reads wait
//! program ──────────────▶ suspended, read ────────────────────▶ program, as long as was left of it
//! ```
//! Invariants:
//! 1. Reads of the host stay in their order, and so does all the rest.
//! 2. No read passes a program of its own page: it would find what was there before.
//! 3. A suspended operation ends later than it would have, so that the event of its first end comes while it is pending; that
//!    event is known by its time, and does nothing.

use super::{Clock, Event, NONE, Nanos};
use crate::{OperationKind, ReadPriority, RequestKind};

/// Of an operation whose unit does nothing for it yet, or not now.
pub(super) const NEVER: Nanos = Nanos::MAX;

impl Clock {
    /// A unit begins with, or goes on with, what takes so long without its channel.
    pub(super) fn begin_cell(&mut self, number: u32, takes: Nanos) {
        self.pending.items[number as usize].due = self.now + takes;
        self.plan(takes, Event::Cell(number));
    }

    /// Whether the event of an operation's end is one from before it was suspended.
    pub(super) fn is_stale(&self, number: u32) -> bool {
        self.pending.items[number as usize].due != self.now
    }

    fn is_read_of_host(&self, number: u32) -> bool {
        let pending = &self.pending.items[number as usize];
        let request = self.tasks.items[pending.task as usize].request;
        pending.operation.kind == OperationKind::Read
            && !pending.operation.background
            && self.active.items[request as usize].kind == RequestKind::Read
    }

    /// Whether a read goes before another operation of its unit.
    fn passes(&self, read: u32, other: u32) -> bool {
        let (read, passed) = (self.operation(read), self.operation(other));
        let is_its_page = passed.kind == OperationKind::Program
            && passed.page == read.page
            && read.page != crate::Operation::NONE;
        !(is_its_page || self.is_read_of_host(other))
    }

    /// An operation comes to a unit that is busy.
    pub(super) fn wait_for_unit(&mut self, number: u32) {
        let unit = self.operation(number).unit as usize;
        if self.read_priority == ReadPriority::None || !self.is_read_of_host(number) {
            return self.units[unit].queue.push_back(number);
        }
        let before = self.units[unit].queue.iter().rposition(|other| !self.passes(number, *other));
        let at = before.map_or(0, |before| before + 1);
        self.units[unit].queue.insert(at, number);
        self.suspend(unit);
    }

    /// An operation comes to a channel that is busy.
    pub(super) fn wait_for_channel(&mut self, number: u32) {
        let channel = self.geometry.channel_of(self.operation(number).unit) as usize;
        let queue = &self.channels[channel].queue;
        let at = if self.read_priority == ReadPriority::None || !self.is_read_of_host(number) {
            queue.len()
        } else {
            queue.iter().rposition(|other| self.is_read_of_host(*other)).map_or(0, |before| before + 1)
        };
        self.channels[channel].queue.insert(at, number);
    }

    /// Interrupts what a unit is about, if the next that waits for it may.
    pub(super) fn suspend(&mut self, unit: usize) {
        let (running, next) = (self.units[unit].running, self.units[unit].queue.front().copied());
        let Some(next) = next.filter(|_| self.read_priority == ReadPriority::Suspending && running != NONE)
        else {
            return;
        };
        let due = self.pending.items[running as usize].due;
        let can_stop = self.operation(running).kind != OperationKind::Read && due != NEVER && due > self.now;
        if can_stop && self.is_read_of_host(next) && self.passes(next, running) {
            self.pending.items[running as usize].due = NEVER;
            self.units[unit].suspended = Some((running, due - self.now));
            self.units[unit].queue.pop_front();
            self.start(next);
        }
    }

    /// A unit has nothing to do any more: what it does next.
    pub(super) fn next_of_unit(&mut self, unit: usize) {
        let next = self.units[unit].queue.front().copied();
        if let Some((suspended, left)) = self.units[unit].suspended
            && !next.is_some_and(|next| self.is_read_of_host(next) && self.passes(next, suspended))
        {
            self.units[unit].suspended = None;
            self.units[unit].running = suspended;
            return self.begin_cell(suspended, left);
        }
        match self.units[unit].queue.pop_front() {
            Some(next) => self.start(next),
            None => (self.units[unit].busy, self.units[unit].running) = (false, NONE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Unit;
    use super::super::tests::{clock, one};
    use super::*;
    use crate::{Batch, Operation, Timing};

    /// In the order of their ends: each request's kind, and when it was answered. The clock of the other tests: a read takes 65
    /// us alone, a program 215, an erase 1005.
    fn ends(priority: ReadPriority, batch: &Batch) -> Vec<(RequestKind, u64)> {
        let mut clock = clock(|timing: &mut Timing| timing.read_priority = priority);
        let mut ends = Vec::new();
        clock.run(batch, |kind, latency| ends.push((kind, latency.as_nanos() as u64 / 1000)));
        assert_eq!(clock.unfinished(), 0);
        ends
    }

    fn of_page(batch: &mut Batch, kind: OperationKind, page: u32) {
        let request = if kind == OperationKind::Read { RequestKind::Read } else { RequestKind::Write };
        batch.begin_request(request, 0);
        batch.add_of_page(kind, (0, page), 640, Operation::NONE);
    }

    #[test]
    fn a_read_passes_programs_that_wait_or_interrupts_the_one_that_runs() {
        let mut batch = Batch::default();
        for kind in [OperationKind::Program, OperationKind::Program, OperationKind::Read, OperationKind::Read]
        {
            one(&mut batch, kind, 0);
        }
        let (read, write) = (RequestKind::Read, RequestKind::Write);
        let all = |priority| ends(priority, &batch);
        assert_eq!(all(ReadPriority::None), [(write, 215), (write, 425), (read, 485), (read, 545)]);
        // 210 for the first program, 60 for each read, and 210 for the other program.
        assert_eq!(all(ReadPriority::Queued), [(write, 215), (read, 275), (read, 335), (write, 545)]);
        // The page has come after 10; then both reads; then the 200 that were left.
        assert_eq!(all(ReadPriority::Suspending), [(read, 75), (read, 135), (write, 335), (write, 545)]);
    }

    #[test]
    fn an_erase_goes_on_from_where_it_was_interrupted() {
        let mut clock = clock(|timing: &mut Timing| timing.read_priority = ReadPriority::Suspending);
        let mut erase = Batch::default();
        erase.begin_request(RequestKind::Command, 0);
        erase.add(OperationKind::Erase, 0, 0, Operation::NONE);
        let erased = clock.submit(erase);
        // Reads of another unit let time pass, 65 us each; the third and the sixth go to the unit that erases.
        for unit in [1, 1, 0, 1, 1, 0] {
            let read = clock.submit(super::super::tests::reads(&[unit]));
            assert_eq!(clock.next_answered(|_, _| {}), Some(read));
        }
        assert_eq!(clock.now().as_micros(), 6 * 65);
        assert_eq!(clock.next_answered(|_, _| {}), Some(erased));
        assert_eq!(clock.now().as_micros(), 1005 + 2 * 60, "later by two reads than by itself");
    }

    #[test]
    fn a_read_waits_for_the_program_of_its_own_page_and_passes_that_of_others() {
        let mut batch = Batch::default();
        of_page(&mut batch, OperationKind::Program, 1);
        of_page(&mut batch, OperationKind::Program, 2);
        of_page(&mut batch, OperationKind::Read, 2);
        of_page(&mut batch, OperationKind::Program, 3);
        let (read, write) = (RequestKind::Read, RequestKind::Write);
        for priority in [ReadPriority::Queued, ReadPriority::Suspending] {
            let expected = [(write, 215), (write, 425), (read, 485), (write, 695)];
            assert_eq!(ends(priority, &batch), expected, "{priority:?}");
        }
    }

    #[test]
    fn what_was_read_crosses_the_channel_before_programs_that_wait_for_it() {
        let mut batch = Batch::default();
        // Three dies of one channel, whose transfers take 60 us. The read has sensed its page at 50, and finds the channel busy with
        // the first program's page until 60, and another program's that waits for it.
        for (kind, unit) in
            [(OperationKind::Program, 2), (OperationKind::Program, 4), (OperationKind::Read, 0)]
        {
            let request = if kind == OperationKind::Read { RequestKind::Read } else { RequestKind::Write };
            batch.begin_request(request, 0);
            batch.add(kind, unit, 3840, Operation::NONE);
        }
        let read_at = |priority| {
            let mut clock = clock(|timing: &mut Timing| timing.read_priority = priority);
            clock.geometry.dies_per_channel = 3;
            clock.units = vec![Unit::default(); clock.geometry.units() as usize];
            let mut at = 0;
            clock.run(&batch, |kind, latency| {
                if kind == RequestKind::Read {
                    at = latency.as_micros();
                }
            });
            at
        };
        assert_eq!(read_at(ReadPriority::None), 60 + 60 + 60 + 5);
        assert_eq!(read_at(ReadPriority::Queued), 60 + 60 + 5);
        assert_eq!(read_at(ReadPriority::Suspending), 60 + 60 + 5);
    }

    #[test]
    fn reads_that_nobody_waits_for_pass_nothing() {
        let mut batch = Batch::default();
        one(&mut batch, OperationKind::Program, 0);
        one(&mut batch, OperationKind::Program, 0);
        // The collector's, as a part of a write.
        batch.begin_request(RequestKind::Write, 0);
        batch.add(OperationKind::Read, 0, 640, Operation::NONE);
        let none = ends(ReadPriority::None, &batch);
        for priority in [ReadPriority::Queued, ReadPriority::Suspending] {
            assert_eq!(ends(priority, &batch), none);
        }
    }
}
