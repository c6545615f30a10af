//! Single gets of many tasks, gathered into groups that descend the trees together (MPSearch).
//!
//! Invariants:
//! 1. A read waits only while other reads are in flight: the thread that ends the last group takes all that wait.
//! 2. An error is told to those whose read fails: after an error of a group each of its reads is repeated alone.
//! 3. A read of a task that is gone is left out, unless its group has begun.

use crate::answer::{Answer, Giver};
use crate::current_state::{CurrentState, State};
use crate::db::snapshot::multi_get;
use crate::error::Result;
use crate::lock_order::{RankedMutex, rank};
use crate::operation::{KeyspaceId, SeqNo};
use crate::pool::{Begun, Pool};
use crate::value::Value;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;

/// A group is begun beside others when so large a part of what is in flight waits (divisor): smaller groups would
/// take turns with the processor, and larger ones leave the device idle.
const PART: usize = 2;

/// See the module.
pub(crate) struct Gatherer {
    state: Arc<CurrentState>,
    pool: Arc<Pool>,
    groups_max: usize,
    queue: RankedMutex<rank::Gather, Queue>,
}

#[derive(Default)]
struct Queue {
    reads: VecDeque<WaitingRead>,
    /// Groups that are in flight or about to begin, and reads that are in flight.
    groups: usize,
    in_flight: usize,
}

/// A get that a task waits for.
struct WaitingRead {
    keyspace: KeyspaceId,
    key: Bytes,
    /// The moment that it reads; `None`: that at which its group begins.
    view: Option<(Arc<State>, SeqNo)>,
    giver: Giver<Option<Value>>,
}

impl WaitingRead {
    /// Reads that have this in common can be in one search.
    fn common(&self) -> (KeyspaceId, Option<(*const State, SeqNo)>) {
        (self.keyspace, self.view.as_ref().map(|(state, seq)| (Arc::as_ptr(state), *seq)))
    }
}

/// Whether a group is to begin.
fn is_due(waiting: usize, in_flight: usize) -> bool {
    waiting > 0 && waiting >= in_flight / PART
}

impl Queue {
    fn is_due(&self) -> bool {
        is_due(self.reads.len(), self.in_flight)
    }
}

impl Gatherer {
    pub fn new(state: Arc<CurrentState>, pool: Arc<Pool>, groups_max: usize) -> Arc<Self> {
        Arc::new(Self { state, pool, groups_max, queue: RankedMutex::default() })
    }

    /// Reads a key with others.
    pub fn get(
        self: &Arc<Self>,
        keyspace: KeyspaceId,
        key: Bytes,
        view: Option<(Arc<State>, SeqNo)>,
    ) -> Answer<Option<Value>> {
        let (answer, giver) = Answer::new();
        let mut queue = self.queue.lock();
        queue.reads.push_back(WaitingRead { keyspace, key, view, giver });
        if !queue.is_due() || queue.groups >= self.groups_max {
            return answer;
        }
        queue.groups += 1;
        drop(queue);
        let gatherer = Arc::clone(self);
        if self.pool.submit_detached(move || gatherer.run_groups()) == Begun::Never {
            self.run_groups();
        }
        answer
    }

    /// Reads one group after another while one is due. What else waits for these threads has its turn between two of them: there may be groups
    /// for as long as the database is open.
    fn run_groups(self: &Arc<Self>) {
        let mut ended = 0;
        let mut is_first = true;
        loop {
            let mut queue = self.queue.lock();
            queue.in_flight -= ended;
            if !queue.is_due() {
                queue.groups -= 1;
                return;
            }
            if !std::mem::take(&mut is_first) {
                let gatherer = Arc::clone(self);
                if self.pool.submit_behind(move || gatherer.run_groups()) {
                    return;
                }
            }
            // A descent reads no more at once; the rest is begun beside it.
            let count = queue.reads.len().min(self.state.pager.pio_max());
            let group: Vec<_> = queue.reads.drain(..count).collect();
            ended = count;
            queue.in_flight += count;
            drop(queue);
            // Its tasks get an error, and its message has been printed.
            let read = std::panic::AssertUnwindSafe(|| self.read(group));
            let _ = std::panic::catch_unwind(read);
        }
    }

    fn read(&self, mut group: Vec<WaitingRead>) {
        group.retain(|read| read.giver.is_wanted());
        group.sort_unstable_by(|a, b| (a.common(), &a.key).cmp(&(b.common(), &b.key)));
        while let Some(last) = group.last() {
            let common = last.common();
            let reads = group.split_off(group.partition_point(|read| read.common() < common));
            self.read_together(reads);
        }
    }

    /// Reads that have all in common but their keys.
    fn read_together(&self, reads: Vec<WaitingRead>) {
        let Some(first) = reads.first() else { return };
        let (keyspace, view) = (first.keyspace, first.view.clone());
        let (state, seq) = view.unwrap_or_else(|| self.state.view());
        let get = |keys: &[&Bytes]| -> Result<Vec<Option<Value>>> {
            state.version.check_there(keyspace)?;
            multi_get(&self.state.pager, (&state, seq), keyspace, keys)
        };
        let keys: Vec<_> = reads.iter().map(|read| &read.key).collect();
        match get(&keys) {
            Ok(values) => reads.into_iter().zip(values).for_each(|(read, value)| read.giver.give(Ok(value))),
            Err(_) => {
                for WaitingRead { key, giver, .. } in reads {
                    giver.give(get(&[&key]).map(|mut values| values.pop().flatten()));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that had groups to read took nothing else until there was none.
    #[test]
    fn what_else_waits_for_its_thread_comes_between_two_groups() {
        let db = crate::Database::builder().memory(4 << 20).background_threads(0);
        let db = db.open_on(Arc::new(psync::Simulated::new(1))).unwrap();
        let keyspace = db.keyspace("main").unwrap();
        let pool = Arc::new(Pool::new(1));
        let gatherer = Gatherer::new(Arc::clone(&db.handle.engine.state), Arc::clone(&pool), 1);
        let (go, goes) = std::sync::mpsc::channel::<()>();
        pool.submit_detached(move || _ = goes.recv());
        let get = |number: u32| gatherer.get(keyspace.id(), Bytes::from(number.to_be_bytes().to_vec()), None);
        let answers: Vec<_> = (0..1000).map(get).collect();
        let (tell, told) = std::sync::mpsc::channel();
        let asked = Arc::clone(&gatherer);
        pool.submit_detached(move || _ = tell.send(asked.queue.lock().reads.len()));
        drop(go);
        let left = told.recv_timeout(std::time::Duration::from_secs(30)).unwrap();
        assert!((1..1000).contains(&left), "{left} gets of 1000 are left");
        for answer in answers {
            let context = std::task::Context::from_waker(std::task::Waker::noop());
            while answer.poll(&context).is_pending() {
                std::thread::yield_now();
            }
        }
        let queue = gatherer.queue.lock();
        assert_eq!((queue.groups, queue.in_flight), (0, 0));
        drop(queue);
        pool.close();
    }

    #[test]
    fn one_read_goes_at_once_and_others_when_they_are_a_group() {
        assert!(!is_due(0, 0) && is_due(1, 0) && is_due(1, 1));
        assert!(!is_due(10, 64) && is_due(32, 64) && is_due(1, 3));
    }
}
