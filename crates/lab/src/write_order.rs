//! The write ordering that POSIX asks of a file, as file systems of 2011 kept it for direct I/O: a reader-writer lock
//! that is granted in the order of arrival. (Roh et al., PVLDB 5(4), section 2.2, name it as the cause of their
//! figure 4 (a).)
//!
//! Invariants:
//! 1. A write waits for all that came before it; a read waits for all writes that came before it.
//! 2. Nothing overtakes: which requests may overlap depends on their order alone, not on who wakes first.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::thread::{self, Thread};

/// One file's order of requests. See the module.
#[derive(Debug, Default)]
pub(crate) struct WriteOrder {
    line: Mutex<Line>,
}

#[derive(Debug, Default)]
struct Line {
    /// Requests that are under way or wait, in the order of arrival.
    waiting: VecDeque<Place>,
    next: u64,
}

#[derive(Debug)]
struct Place {
    ticket: u64,
    write: bool,
    granted: bool,
    thread: Thread,
}

impl Line {
    /// Grants what may go now: the reads at the front, or one write if it is first.
    fn grant(&mut self) {
        for index in 0..self.waiting.len() {
            let place = &mut self.waiting[index];
            if place.write && index > 0 {
                break;
            }
            if !place.granted {
                place.granted = true;
                place.thread.unpark();
            }
            if self.waiting[index].write {
                break;
            }
        }
    }

    fn is_granted(&self, ticket: u64) -> bool {
        self.waiting.iter().any(|place| place.ticket == ticket && place.granted)
    }
}

impl WriteOrder {
    /// Does `work`, a write or a read, when its turn has come.
    pub fn pass<R>(&self, write: bool, work: impl FnOnce() -> R) -> R {
        let ticket = {
            let mut line = self.line.lock();
            let ticket = line.next;
            line.next += 1;
            line.waiting.push_back(Place { ticket, write, granted: false, thread: thread::current() });
            line.grant();
            ticket
        };
        while !self.line.lock().is_granted(ticket) {
            thread::park();
        }
        let _leave = Leave { order: self, ticket };
        work()
    }
}

/// Leaves the line, also when the work panics.
struct Leave<'a> {
    order: &'a WriteOrder,
    ticket: u64,
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        let mut line = self.order.line.lock();
        line.waiting.retain(|place| place.ticket != self.ticket);
        line.grant();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicI64, Ordering::SeqCst};

    #[test]
    fn writes_are_alone_and_reads_are_together() {
        let order = WriteOrder::default();
        // Readers inside; -1000 for a writer.
        let (inside, together) = (AtomicI64::new(0), AtomicI64::new(0));
        thread::scope(|scope| {
            for seed in 0..8 {
                let (order, inside, together) = (&order, &inside, &together);
                scope.spawn(move || {
                    for turn in 0..200 {
                        let write = (turn * 7 + seed) % 3 == 0;
                        order.pass(write, || {
                            let step = if write { -1000 } else { 1 };
                            let found = inside.fetch_add(step, SeqCst);
                            assert!(if write { found == 0 } else { found >= 0 }, "found {found}");
                            together.fetch_max(found + step, SeqCst);
                            thread::yield_now();
                            if turn % 20 == 1 {
                                thread::sleep(std::time::Duration::from_micros(200));
                            }
                            inside.fetch_sub(step, SeqCst);
                        });
                    }
                });
            }
        });
        assert!(together.into_inner() > 1, "reads never overlapped");
        assert!(order.line.lock().waiting.is_empty());
    }

    #[test]
    fn nothing_overtakes() {
        let order = WriteOrder::default();
        let done = Mutex::new(Vec::new());
        thread::scope(|scope| {
            let (order, done) = (&order, &done);
            let arrive = |name: &'static str, write| {
                let before = order.line.lock().next;
                scope.spawn(move || order.pass(write, || done.lock().push(name)));
                while order.line.lock().next == before {
                    thread::yield_now();
                }
            };
            order.pass(true, || {
                arrive("first", true);
                arrive("second", false);
                arrive("third", true);
                arrive("fourth", false);
                thread::sleep(std::time::Duration::from_millis(20));
                assert!(done.lock().is_empty());
            });
        });
        assert_eq!(done.into_inner(), ["first", "second", "third", "fourth"]);
    }
}
