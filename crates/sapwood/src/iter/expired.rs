//! How a range passes over records that have expired, in a row: as over removed ones, they are walked along once, and noted as an
//! [empty range](crate::opq::empty_ranges), which later ranges go around.
//!
//! ```text
//! † † † † † † † † † † † † † † r        asked for one by one, once
//! [─ noted ─)[─ noted ─)[─ …)          a portion at a time: so few that what was inserted among them since is found quickly
//! ```
//! Invariants:
//! 1. What is noted lies between two records that have expired, both included. Nothing else is there: the range would have returned it.
//! 2. What has expired stays so, for readers of any moment: the clock goes forward only. A new value of its key ends the note, as any insertion.

use super::Range;
use super::merge::{NOTED, NOTED_AT_FIRST};
use crate::bounds::successor;
use crate::tree::range::Direction;
use bytes::Bytes;
use std::ops::Bound;

/// Of a long row so many are noted together (count). Commits wait while the queue is asked whether something came among them.
const PORTION: usize = 256;

/// Expired records in a row.
pub(super) struct ExpiredRun {
    /// Where the ones begin that are not noted yet: upwards the first of them, downwards right behind it. `None`: there are none.
    edge: Option<Bytes>,
    last: Bytes,
    /// All of them, and those that are not noted yet (count).
    len: usize,
    unnoted: usize,
    /// The length at which it is looked up whether they lie in a known empty range.
    look_at: usize,
    noted_from: usize,
}

impl Range {
    /// Before the next record is looked for at this end.
    pub(super) fn expired_run(&self, direction: Direction) -> ExpiredRun {
        let end = if direction == Direction::Up { &self.front } else { &self.back };
        let noted_from = if end.is_none() { NOTED_AT_FIRST } else { NOTED };
        ExpiredRun { edge: None, last: Bytes::new(), len: 0, unnoted: 0, look_at: 1, noted_from }
    }

    /// A record of this key has expired. Goes around what is known to be empty behind it.
    pub(super) fn pass_expired(&mut self, direction: Direction, run: &mut ExpiredRun, key: Bytes) {
        run.edge.get_or_insert_with(|| match direction {
            Direction::Up => key.clone(),
            Direction::Down => successor(&key),
        });
        run.last = key;
        (run.len, run.unnoted) = (run.len + 1, run.unnoted + 1);
        if run.len >= run.look_at {
            run.look_at = run.len + run.len.min(NOTED);
            let ranges = &self.current.empty_ranges;
            let onward = match direction {
                Direction::Up => ranges.above(self.keyspace, &run.last, self.seq),
                Direction::Down => ranges.below(self.keyspace, Some(&run.last), self.seq).map(Some),
            };
            if let Some(onward) = onward {
                // What lies before it becomes one with it.
                self.note_expired(direction, run);
                (run.len, run.edge) = (run.len + NOTED, onward.clone());
                let bound = match direction {
                    Direction::Up => onward.map(Bound::Included),
                    Direction::Down => onward.map(Bound::Excluded),
                };
                let (end, other) = match direction {
                    Direction::Up => (&mut self.front, &self.back),
                    Direction::Down => (&mut self.back, &self.front),
                };
                match (end, other, bound) {
                    // Between the records that both ends have returned.
                    (Some(end), Some(_), Some(bound)) => end.go_on_at(&self.current, bound),
                    (.., bound) => self.go_on_at(direction, bound),
                }
                return;
            }
        }
        if run.unnoted >= PORTION {
            self.note_expired(direction, run);
        }
    }

    /// A record comes that has not expired, or none.
    pub(super) fn end_expired(&self, direction: Direction, run: &mut ExpiredRun) {
        if run.unnoted > 0 && run.len >= run.noted_from {
            self.note_expired(direction, run);
        }
    }

    fn note_expired(&self, direction: Direction, run: &mut ExpiredRun) {
        let behind = successor(&run.last);
        let Some(edge) = run.edge.replace(match direction {
            Direction::Up => behind.clone(),
            Direction::Down => run.last.clone(),
        }) else {
            return;
        };
        let keys = match direction {
            Direction::Up => (&edge[..], Some(&behind[..])),
            Direction::Down => (&run.last[..], Some(&edge[..])),
        };
        self.current.note_empty(self.keyspace, keys, &self.state, self.seq);
        run.unnoted = 0;
    }
}

#[cfg(test)]
mod tests {
    use crate::{Database, KeyspaceOptions};
    use psync::Simulated;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::time::{Duration, UNIX_EPOCH};

    const COUNT: u32 = 3000;
    const LIFE: u64 = 10;

    fn key(number: u32) -> [u8; 4] {
        number.to_be_bytes()
    }

    /// Each `first()` asked the clock for each record that had expired before it, in the queue or in the tree.
    #[test]
    fn expired_records_are_walked_along_once() {
        for (is_flushed, is_up) in [(false, true), (false, false), (true, true), (true, false)] {
            // Each record that may have expired asks what time it is.
            let (now, asked) = (Arc::new(AtomicU64::new(1000)), Arc::new(AtomicU64::new(0)));
            let clock = (Arc::clone(&now), Arc::clone(&asked));
            // So much that the queue takes all of it.
            let options = Database::builder().memory(32 << 20).leaf_len(1024).background_threads(0);
            let options = options.clock(move || {
                clock.1.fetch_add(1, Relaxed);
                UNIX_EPOCH + Duration::from_secs(clock.0.load(Relaxed))
            });
            let db = options.open_on(Arc::new(Simulated::new(1))).unwrap();
            let life = KeyspaceOptions::new().time_to_live(Duration::from_secs(LIFE));
            let (keyspace, other) = (db.keyspace_with("main", life).unwrap(), db.keyspace("other").unwrap());
            let mut batch = db.batch();
            (0..COUNT).for_each(|number| _ = batch.insert(&keyspace, key(number), "value"));
            batch.commit().unwrap();
            // Values that were replaced are no further keys.
            for _ in 0..4 {
                let mut batch = db.batch();
                (0..COUNT).for_each(|number| _ = batch.insert(&keyspace, key(number), "value"));
                batch.commit().unwrap();
            }
            if is_flushed {
                db.flush().unwrap();
            }
            let walked = |work: &dyn Fn()| {
                let before = asked.load(Relaxed);
                work();
                asked.load(Relaxed) - before
            };
            let end = |expected: Option<u32>| {
                let found = if is_up { keyspace.first() } else { keyspace.last() };
                assert_eq!(found.unwrap().map(|(key, _)| key.to_vec()), expected.map(|it| key(it).to_vec()));
            };
            let story = format!("flushed: {is_flushed}, upwards: {is_up}");
            now.fetch_add(LIFE, Relaxed);
            let first = walked(&|| end(None));
            assert!(first >= u64::from(COUNT), "{story}: {first}");
            let again: [(&str, &dyn Fn()); 6] = [
                ("an end", &|| end(None)),
                ("beside a writer", &|| {
                    other.insert("key", "value").unwrap();
                    end(None);
                }),
                ("all", &|| assert_eq!(keyspace.count(..).unwrap(), 0)),
                ("a part", &|| assert!(keyspace.range(key(COUNT / 2)..).next_back().is_none())),
                ("the end of a transaction", &|| {
                    let popped = if is_up { keyspace.pop_first() } else { keyspace.pop_last() };
                    assert!(popped.unwrap().is_none());
                }),
                ("from both ends", &|| {
                    let mut range = keyspace.iter();
                    assert!(range.next().is_none() && range.next_back().is_none());
                }),
            ];
            for (what, work) in again {
                let again = walked(work);
                assert!(again < 20, "{story}, {what}: {again}");
            }
            // Between one at each end that both have returned.
            let ends = [key(0), key(COUNT)].map(|key| {
                keyspace.insert(key, "an end").unwrap();
                key.to_vec()
            });
            assert_eq!(keyspace.count(..).unwrap(), 2);
            let again = walked(&|| {
                let mut range = keyspace.iter();
                let mut next = |is_up| if is_up { range.next() } else { range.next_back() };
                let found = [next(true), next(false)].map(|item| item.unwrap().unwrap().0.to_vec());
                assert_eq!(found, ends);
                assert!(next(is_up).is_none() && next(!is_up).is_none());
            });
            assert!(again < 20, "{story}, between both ends: {again}");
            ends.iter().for_each(|key| keyspace.remove(key).unwrap());
            // One that comes among them is found, and divides them; it expires, and they are one again.
            keyspace.insert(key(COUNT / 2), "another").unwrap();
            end(Some(COUNT / 2));
            let again = walked(&|| end(Some(COUNT / 2)));
            assert!(again < 20, "{story}, one is there: {again}");
            now.fetch_add(LIFE, Relaxed);
            end(None);
            let again = walked(&|| end(None));
            assert!(again < 20, "{story}, it has expired: {again}");
        }
    }

    /// An older snapshot finds nothing where newer readers find something.
    #[test]
    fn what_comes_during_a_walk_is_not_noted_as_expired() {
        let now = Arc::new(AtomicU64::new(1000));
        let clock = Arc::clone(&now);
        let options = Database::builder().memory(4 << 20).background_threads(0);
        let options = options.clock(move || UNIX_EPOCH + Duration::from_secs(clock.load(Relaxed)));
        let db = options.open_on(Arc::new(Simulated::new(1))).unwrap();
        let life = KeyspaceOptions::new().time_to_live(Duration::from_secs(LIFE));
        let keyspace = db.keyspace_with("main", life).unwrap();
        let fill = || (0..COUNT).for_each(|number| keyspace.insert(key(number), "value").unwrap());
        fill();
        now.fetch_add(LIFE, Relaxed);
        for is_up in [true, false] {
            let old = db.snapshot();
            let found = [7, COUNT / 2, COUNT - 7];
            found.iter().for_each(|number| keyspace.insert(key(*number), "another").unwrap());
            // What the old one finds is noted but where the new ones are.
            let walk = old.iter(&keyspace);
            assert_eq!(if is_up { walk.count() } else { walk.rev().count() }, 0);
            assert_eq!(keyspace.count(..).unwrap(), 3);
            let there: Vec<_> = keyspace.iter().map(|item| item.unwrap().0.to_vec()).collect();
            assert_eq!(there, found.map(|number| key(number).to_vec()));
            now.fetch_add(LIFE, Relaxed);
            assert_eq!(keyspace.count(..).unwrap(), 0);
            fill();
            assert_eq!(keyspace.count(..).unwrap(), u64::from(COUNT));
            assert_eq!(old.iter(&keyspace).count(), 0);
            now.fetch_add(LIFE, Relaxed);
        }
    }
}
