//! Durable batches that wait to be committed by a leader, and how leadership is passed on.
//!
//! Invariants:
//! 1. There is one leader at a time, as long as a thread waits.
//! 2. A thread that waits is answered, whatever happens to the leader.
//! 3. No sync waits for a [turn](super::turn), which its leader may have to wait for: when a turn begins, those that wait go on [alone](Answer::Alone),
//!    and a thread that syncs leads no commits.

use crate::commit::turn::TurnHolder;
use crate::conflict::validation::Validation;
use crate::durability::Durability;
use crate::error::{Error, Result};
use crate::lock_order::{RankedMutex, rank};
use crate::operation;
use crate::operation::SeqNo;
use crate::watchdog;
use std::sync::{Arc, Condvar, OnceLock};

/// The maximum bytes of batches in one group, or the share of a batch if that is less, unless a single batch is larger: all waiters of a group
/// wait for the write of it, and all of it is in the log's buffer.
const GROUP_MAX: usize = 4 << 20;

/// A submitted batch.
#[derive(Clone)]
pub(crate) struct PendingBatch {
    pub body: Vec<u8>,
    pub count: u32,
    pub durability: Durability,
    /// Of a sync: it is done when operations up to this one are durable.
    pub sync_until: Option<SeqNo>,
    /// Bytes that its puts count for in the reserve.
    pub admitted: u64,
    /// What to validate before the commit, if the batch is a transaction.
    pub validation: Option<Arc<Validation>>,
    /// Why the leader has left it out of its group.
    rejected: OnceLock<Box<Error>>,
}

impl PendingBatch {
    pub fn new(body: Vec<u8>, count: u32, durability: Durability) -> Self {
        Self {
            body,
            count,
            durability,
            sync_until: None,
            admitted: 0,
            validation: None,
            rejected: OnceLock::new(),
        }
    }

    /// A sync that is done when operations up to this one are durable.
    pub fn sync_until(seq: SeqNo) -> Self {
        Self { sync_until: Some(seq), ..Self::new(Vec::new(), 0, Durability::Immediate) }
    }

    /// The same batch, for another group.
    pub fn retried(mut self) -> Self {
        self.rejected = OnceLock::new();
        self
    }

    /// Leaves it out of its group, for this reason.
    pub fn reject(&self, why: Error) {
        _ = self.rejected.set(Box::new(why));
    }

    pub fn is_rejected(&self) -> bool {
        self.rejected.get().is_some()
    }

    /// The answer to this batch where its group has this one.
    pub fn answer(&self, of_group: Result<()>) -> Result<()> {
        self.rejected.get().map_or(of_group, |why| Err(Error::clone(why)))
    }

    pub fn is_durable(&self) -> bool {
        self.durability == Durability::Immediate
    }

    /// Whether it has anything but removals.
    pub fn adds(&self) -> bool {
        operation::adds(&self.body)
    }

    /// No batch: all before it is to be durable.
    pub fn is_sync(&self) -> bool {
        self.body.is_empty() && self.is_durable()
    }
}

/// A waiting batch.
pub(crate) struct Waiter {
    pub pending: PendingBatch,
    answer: RankedMutex<rank::Answer, Option<Answer>>,
    answered: Condvar,
}

pub(crate) enum Answer {
    Done(Result<()>),
    /// The previous leader has finished; this thread is the leader now.
    Leadership,
    /// The leader may have to wait for long: this thread syncs by itself.
    Alone,
}

impl Waiter {
    fn give(&self, answer: Answer) {
        *self.answer.lock() = Some(answer);
        self.answered.notify_one();
    }

    pub fn wait(&self) -> Answer {
        let mut answer = self.answer.lock();
        loop {
            if let Some(answer) = answer.take() {
                return answer;
            }
            answer = watchdog::wait(&self.answered, answer, "the leader of the group commit");
        }
    }
}

/// What comes of a batch that is to be committed durably.
pub(crate) enum Queued {
    /// The caller leads, and commits it.
    Leads(PendingBatch),
    /// The caller commits it without the others.
    Alone(PendingBatch),
    /// Another thread leads.
    Waits(Arc<Waiter>),
}

/// The queue of batches that wait for the leader.
#[derive(Default)]
pub(crate) struct CommitQueue {
    pub inner: RankedMutex<rank::CommitQueue, Waiters>,
}

#[derive(Default)]
pub(crate) struct Waiters {
    pub waiters: Vec<Arc<Waiter>>,
    pub has_leader: bool,
    /// The one that was told to lead, until it has taken its group.
    told_to_lead: Option<Arc<Waiter>>,
    /// The syncs that are being committed in a group with others.
    syncs: Vec<Arc<Waiter>>,
}

impl Waiters {
    fn is_told_to_lead(&self, waiter: &Arc<Waiter>) -> bool {
        self.told_to_lead.as_ref().is_some_and(|told| Arc::ptr_eq(told, waiter))
    }

    /// Notes the group that the leader takes.
    fn lead(&mut self, group: Vec<Arc<Waiter>>) -> Vec<Arc<Waiter>> {
        self.told_to_lead = None;
        if !group.iter().all(|waiter| waiter.pending.is_sync()) {
            self.syncs = group.iter().filter(|waiter| waiter.pending.is_sync()).cloned().collect();
        }
        group
    }
}

/// The leadership, and the group that the leader commits. On drop, leadership is handed on and the whole group
/// is answered, whatever happens to the leader. Otherwise all other threads would sleep forever behind a leader
/// that panicked.
pub(crate) struct Leadership<'e> {
    queue: &'e CommitQueue,
    pub group: Vec<Arc<Waiter>>,
    pub result: Result<()>,
}

impl<'e> Leadership<'e> {
    pub fn new(queue: &'e CommitQueue, group: Vec<Arc<Waiter>>) -> Self {
        let cause = "the leader of a group of commits panicked".into();
        Self { queue, group, result: Err(Error::Poisoned { cause }) }
    }
}

impl Drop for Leadership<'_> {
    fn drop(&mut self) {
        self.queue.hand_on();
        for waiter in &self.group {
            waiter.give(Answer::Done(waiter.pending.answer(self.result.clone())));
        }
    }
}

impl CommitQueue {
    /// Queues a batch behind the thread that leads. Otherwise the caller gets it back: as the leader, or as one that goes alone.
    pub fn wait_or_lead(&self, pending: PendingBatch, turn: &TurnHolder) -> Queued {
        let mut waiting = self.inner.lock();
        if !waiting.has_leader {
            waiting.has_leader = true;
            return Queued::Leads(pending);
        }
        // Under the lock: a turn that begins behind this finds it in the queue.
        if pending.is_sync() && turn.is_others() {
            return Queued::Alone(pending);
        }
        let waiter = Arc::new(Waiter { pending, answer: RankedMutex::new(None), answered: Condvar::new() });
        waiting.waiters.push(Arc::clone(&waiter));
        Queued::Waits(waiter)
    }

    /// The batches to be committed next. `share`: the most bytes of a batch beside what is in the queue.
    pub fn take_group(&self, is_short: bool, share: usize) -> Vec<Arc<Waiter>> {
        let mut waiting = self.inner.lock();
        let mut bytes = 0;
        let adds = waiting.waiters.first().is_some_and(|first| is_short && first.pending.adds());
        let end = waiting
            .waiters
            .iter()
            .position(|waiter| {
                bytes += waiter.pending.body.len();
                bytes > GROUP_MAX.min(share) || (is_short && waiter.pending.adds() != adds)
            })
            .unwrap_or(waiting.waiters.len())
            .max(1)
            .min(waiting.waiters.len());
        let group = waiting.waiters.drain(..end).collect();
        waiting.lead(group)
    }

    /// The syncs that wait, to be committed next.
    pub fn take_syncs(&self) -> Vec<Arc<Waiter>> {
        let mut waiting = self.inner.lock();
        let all = std::mem::take(&mut waiting.waiters).into_iter();
        let (syncs, others) = all.partition(|waiter| waiter.pending.is_sync());
        waiting.waiters = others;
        waiting.lead(syncs)
    }

    /// Has the syncs go on alone that wait, or are in a group with others; but for one that is to lead.
    pub fn send_syncs_alone(&self) {
        let mut waiting = self.inner.lock();
        let all = std::mem::take(&mut waiting.waiters).into_iter();
        let (mut alone, others): (Vec<_>, _) =
            all.partition(|waiter| waiter.pending.is_sync() && !waiting.is_told_to_lead(waiter));
        waiting.waiters = others;
        alone.append(&mut waiting.syncs);
        alone.iter().for_each(|waiter| waiter.give(Answer::Alone));
    }

    /// How many syncs are in a group with others.
    #[cfg(test)]
    pub fn syncs_in_group(&self) -> usize {
        self.inner.lock().syncs.len()
    }

    /// Passes leadership on. The next leader starts while this one still answers its group.
    fn hand_on(&self) {
        let mut waiting = self.inner.lock();
        waiting.syncs.clear();
        let mut commits = waiting.waiters.iter().filter(|waiter| !waiter.pending.is_sync());
        // A thread that syncs leads syncs only.
        let next = commits.next().or_else(|| waiting.waiters.first()).cloned();
        match &next {
            Some(next) => next.give(Answer::Leadership),
            None => waiting.has_leader = false,
        }
        waiting.told_to_lead = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A database of 4 MiB had as much in one group.
    #[test]
    fn a_group_is_no_longer_than_the_share_of_a_batch() {
        for (len, share, expected) in
            [(980 << 10, 1 << 20, 1), (300 << 10, 1 << 20, 3), (980 << 10, 8 << 20, 4), (2 << 20, 1 << 20, 1)]
        {
            let queue = CommitQueue::default();
            let pending = || PendingBatch::new(vec![0; len], 1, Durability::Immediate);
            let turn = TurnHolder::default();
            assert!(matches!(queue.wait_or_lead(pending(), &turn), Queued::Leads(_)));
            (0..8).for_each(|_| assert!(matches!(queue.wait_or_lead(pending(), &turn), Queued::Waits(_))));
            assert_eq!(queue.take_group(false, share).len(), expected, "{len} bytes each");
        }
    }
}
