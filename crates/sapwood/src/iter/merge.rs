//! The merge of the operation queues and the tree in one direction, and how it goes around what is removed.
//!
//! ```text
//! queues     † † † † † † † † † † † † † † … † †  │              listed one by one at first, then passed over
//! tree       r       r         r                r              each is asked for in the queues meanwhile
//!            [───── noted as an empty range ────)              the next scan begins here
//! ```
//! Where a queue has removed a whole range, nothing beneath that queue is looked at. So the walk is divided into sections:
//!
//! ```text
//! active     r    r       r        r         r        r
//! frozen        [──────── range removed ────────)        r     what it has in there is newer than that, or hidden
//! tree       r  ┆                               ┆ r    r       not asked in between
//!            section 1 ┆ section 2              ┆ section 3
//! ```
//!
//! Invariants:
//! 1. Newest first: on equal keys the first queue wins, and operands are laid over what is older.
//! 2. While a queue has passed over tombstones, each older record is looked up in it before it is returned.

use super::queued::Queued;
use crate::bounds::{end_at, first_at, successor};
use crate::cache::pager::IteratorMemory;
use crate::current_state::{CurrentState, State};
use crate::error::Result;
use crate::merging::{Merging, is_operands};
use crate::operation::{KeyspaceId, SeqNo};
use crate::opq::Change;
use crate::tree::range::{Direction, Leaves, Step};
use bytes::Bytes;
use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;

/// Removed or expired records in a row (count), at the beginning of a scan, that are worth a note.
pub(super) const NOTED_AT_FIRST: usize = 8;
/// The same further on: a scan may meet many short runs.
pub(super) const NOTED: usize = 64;
/// Removed records in a row after which queues pass over tombstones: as many cost about as much as finding out what can
/// be passed over.
const PATIENCE: usize = 8;
/// The most removed records in a row before that is tried again, so that a scan still profits where a long run comes
/// late.
const PATIENCE_MAX: usize = 512;

/// What is merged.
pub(super) struct MergeSpec {
    pub state: Arc<State>,
    pub seq: SeqNo,
    pub keyspace: KeyspaceId,
    pub bounds: (Bound<Bytes>, Bound<Bytes>),
    pub direction: Direction,
}

/// See the module documentation.
pub(super) struct Merge {
    spec: MergeSpec,
    /// How operands are merged, if there may be any.
    merging: Option<Merging>,
    /// Newest first.
    queues: Vec<Queued>,
    /// The next key in the queues. Valid once `is_peeked`.
    queued: Option<Bytes>,
    is_peeked: bool,
    /// At least this many of the tree's next records come before that key, and need no comparison with it.
    free: usize,
    leaves: Leaves,
    memory: IteratorMemory,
    /// The tree's next record, if it has been taken out already.
    leaf_next: Option<(Bytes, Bytes)>,
    is_leaf_taken: bool,
    last: LastKey,
    /// Whether a queue has passed over tombstones.
    is_passing: bool,
    urgency: usize,
    /// Where the next section begins; `None` in the last one.
    next_section: Option<Bound<Bytes>>,
}

/// A part of the walk in which the same queues hide what is beneath them.
struct Section {
    bounds: (Bound<Bytes>, Bound<Bytes>),
    /// How many queues are looked at, newest first, ...
    queues: usize,
    /// ... and whether the tree is.
    has_tree: bool,
    next: Option<Bound<Bytes>>,
}

/// The last key returned.
enum LastKey {
    Nothing,
    /// The key that the tree returned last.
    OfTree,
    Key(Bytes),
}

/// Removed records in a row.
struct RemovedRun {
    len: usize,
    /// The length at which it is looked up whether they lie in a known empty range.
    look_at: usize,
    /// The length at which queues pass over tombstones.
    pass_at: usize,
}

impl MergeSpec {
    /// The bounds without the known empty range that they begin with; `None` if that is all.
    fn narrowed(&self, current: &CurrentState) -> Option<(Bound<Bytes>, Bound<Bytes>)> {
        let (low, high) = &self.bounds;
        if current.empty_ranges.is_empty() {
            return Some((low.clone(), high.clone()));
        }
        match self.direction {
            Direction::Up => {
                let low = self.behind(current, &first_at(low)).unwrap_or_else(|| Some(low.clone()))?;
                Some((low, high.clone()))
            }
            Direction::Down => {
                let high =
                    self.beneath(current, end_at(high).as_deref()).unwrap_or_else(|| Some(high.clone()))?;
                Some((low.clone(), high))
            }
        }
    }

    /// Where to go on upwards if the key lies in a known empty range: at this bound, or (`None`) nowhere.
    fn behind(&self, current: &CurrentState, key: &[u8]) -> Option<Option<Bound<Bytes>>> {
        let end = current.empty_ranges.above(self.keyspace, key, self.seq)?;
        Some(end.filter(|end| is_above(&self.bounds.1, end)).map(Bound::Included))
    }

    /// Where to go on downwards if what lies right below the key does so in a known empty range.
    fn beneath(&self, current: &CurrentState, key: Option<&[u8]>) -> Option<Option<Bound<Bytes>>> {
        let low = current.empty_ranges.below(self.keyspace, key, self.seq)?;
        Some(is_below(&self.bounds.0, &low).then_some(Bound::Excluded(low)))
    }

    /// The section that a walk within these bounds begins with.
    fn section(&self, (low, high): (Bound<Bytes>, Bound<Bytes>)) -> Section {
        let all = self.state.queues().count();
        let whole = |bounds| Section { bounds, queues: all, has_tree: true, next: None };
        if self.state.queues().all(|queue| queue.range_removals().is_empty()) {
            return whole((low, high));
        }
        let (first, behind) = (first_at(&low), end_at(&high));
        // Where the section ends: upwards, the first key that is not in it; downwards, its first key.
        let (mut hidden_by, mut upper, mut lower) = (None, None::<Bytes>, Bytes::new());
        for (index, queue) in self.state.queues().enumerate() {
            let removals = queue.range_removals();
            let is_removed = match self.direction {
                Direction::Up => {
                    let stretch = removals.above(self.keyspace, &first, self.seq);
                    upper = upper.into_iter().chain(stretch.end).min();
                    stretch.is_removed
                }
                Direction::Down => {
                    let stretch = removals.below(self.keyspace, behind.as_deref(), self.seq);
                    lower = lower.max(stretch.end);
                    stretch.is_removed
                }
            };
            if is_removed {
                hidden_by = Some(index);
                break;
            }
        }
        let (bounds, next) = match (self.direction, upper) {
            (Direction::Up, Some(end)) if is_above(&high, &end) => {
                ((low, Bound::Excluded(end.clone())), Some(Bound::Included(end)))
            }
            (Direction::Down, _) if is_below(&low, &lower) => {
                ((Bound::Included(lower.clone()), high), Some(Bound::Excluded(lower)))
            }
            _ => ((low, high), None),
        };
        let queues = hidden_by.map_or(all, |index| index + 1);
        Section { bounds, queues, has_tree: hidden_by.is_none(), next }
    }

    fn queues(&self, bounds: &(Bound<Bytes>, Bound<Bytes>), count: usize) -> Vec<Queued> {
        let queues = self.state.queues().take(count);
        let queued = queues.map(|queue| {
            let of = (self.keyspace, self.state.version.merging(self.keyspace));
            Queued::new(Arc::clone(queue), of, self.seq, bounds.clone(), self.direction)
        });
        queued.collect()
    }

    fn leaves(&self, current: &CurrentState, section: &Section) -> Leaves {
        let (pager, version) = (Arc::clone(&current.pager), Arc::clone(&self.state.version));
        let leaves = Leaves::new(pager, version, self.keyspace, section.bounds.clone(), self.direction);
        if section.has_tree { leaves } else { leaves.without_any() }
    }
}

/// Whether an upper bound lets keys at or above this one through.
fn is_above(high: &Bound<Bytes>, key: &Bytes) -> bool {
    match high {
        Bound::Unbounded => true,
        Bound::Included(high) => key <= high,
        Bound::Excluded(high) => key < high,
    }
}

/// Whether a lower bound lets keys below this one through.
fn is_below(low: &Bound<Bytes>, key: &Bytes) -> bool {
    match low {
        Bound::Unbounded => !key.is_empty(),
        Bound::Included(low) | Bound::Excluded(low) => key > low,
    }
}

impl Merge {
    /// `None` if there is nothing to merge.
    pub fn new(current: &CurrentState, spec: MergeSpec) -> Option<Self> {
        let section = spec.section(spec.narrowed(current)?);
        Some(Self {
            queues: spec.queues(&section.bounds, section.queues),
            queued: None,
            is_peeked: false,
            free: 0,
            leaves: spec.leaves(current, &section),
            next_section: section.next,
            memory: IteratorMemory::new(Arc::clone(&current.pager)),
            leaf_next: None,
            is_leaf_taken: false,
            last: LastKey::Nothing,
            is_passing: false,
            urgency: PATIENCE,
            merging: spec.state.version.merging(spec.keyspace),
            spec,
        })
    }

    /// Its walk through the tree.
    pub fn leaves(&mut self) -> &mut Leaves {
        &mut self.leaves
    }

    /// Bytes that it held when it was last noted.
    pub fn memory(&self) -> usize {
        self.memory.bytes()
    }

    /// Counts what it holds. Returns whether that has changed.
    #[inline]
    pub fn note_memory(&mut self) -> bool {
        let queued: usize = self.queues.iter().map(Queued::memory).sum();
        self.memory.set(size_of::<Self>() + queued + self.leaves.memory())
    }

    pub fn last_key(&self) -> Option<&[u8]> {
        match &self.last {
            LastKey::Nothing => None,
            LastKey::OfTree => self.leaves.last_key(),
            LastKey::Key(key) => Some(key),
        }
    }

    /// The record that [`Merge::step_free`] stepped to.
    #[inline]
    pub fn record(&self) -> Option<(&[u8], &[u8])> {
        self.leaves.record()
    }

    /// Steps to the next record if it is the tree's and needs no comparison. Returns whether it did.
    #[inline]
    pub fn step_free(&mut self) -> bool {
        let is_free = self.is_tree_next() && self.leaves.step_free();
        if is_free {
            self.last = LastKey::OfTree;
        }
        is_free
    }

    /// Returns the next record if it is the tree's and needs no comparison.
    #[inline]
    pub fn next_free(&mut self) -> Option<(Bytes, Bytes)> {
        if !self.step_free() {
            return None;
        }
        self.leaves.shared_record()
    }

    /// Whether the tree's next record, if it has one loaded, is the next of the merge.
    #[inline]
    fn is_tree_next(&mut self) -> bool {
        if !self.is_peeked || self.is_leaf_taken {
            return false;
        }
        if self.queued.is_some() {
            if self.free == 0 {
                return false;
            }
            self.free -= 1;
        }
        true
    }

    pub fn next(&mut self, current: &CurrentState) -> Result<Option<(Bytes, Bytes)>> {
        let mut run = RemovedRun { len: 0, look_at: 1, pass_at: self.urgency };
        let record = loop {
            if !self.is_peeked {
                self.queued = self.first_queued();
                self.is_peeked = true;
            }
            // If one tree record came before the queued key, more may follow.
            if let (Some(queued), LastKey::OfTree, false) = (&self.queued, &self.last, self.is_leaf_taken)
                && run.len == 0
            {
                self.free = self.leaves.free_steps_before(queued);
                if let Some(record) = self.next_free() {
                    return Ok(Some(record));
                }
            }
            if !self.is_leaf_taken {
                self.hold_last();
                self.leaf_next = match self.leaves.step()? {
                    Step::Record(key, value) => Some((key, value)),
                    Step::End => None,
                    Step::Passed(count, key) => {
                        // The walk must not go on behind what the queues have up to there.
                        if self.is_queued_up_to(&key) {
                            run.len += count;
                            match self.pop_queued(None) {
                                Some((key, Some(value))) => {
                                    break Some((key.clone(), value, LastKey::Key(key)));
                                }
                                Some((key, None)) if self.passed(current, &mut run, 1, &key) => break None,
                                _ => {}
                            }
                        } else if self.passed(current, &mut run, count, &key) {
                            break None;
                        }
                        continue;
                    }
                };
                self.is_leaf_taken = true;
            }
            let order = match (&self.queued, &self.leaf_next) {
                (Some(queued), Some((key, _))) if self.spec.direction == Direction::Up => queued.cmp(key),
                (Some(queued), Some((key, _))) => key.cmp(queued),
                (Some(_), None) => Ordering::Less,
                (None, _) => Ordering::Greater,
            };
            if order == Ordering::Greater {
                self.is_leaf_taken = false;
                let Some((key, value)) = self.leaf_next.take() else {
                    let Some(next) = self.next_section.take() else { break None };
                    self.go_on_at(current, next);
                    run.len += NOTED;
                    continue;
                };
                if self.is_passing && self.queues.iter().any(|queue| queue.hides(&key)) {
                    if self.passed(current, &mut run, 1, &key) {
                        break None;
                    }
                    continue;
                }
                break Some((key, value, LastKey::OfTree));
            }
            let mut beneath = None;
            if order == Ordering::Equal {
                beneath = self.leaf_next.take().map(|(_, value)| value);
                self.is_leaf_taken = false;
            }
            match self.pop_queued(beneath) {
                Some((key, Some(value))) => break Some((key.clone(), value, LastKey::Key(key))),
                Some((key, None)) if self.passed(current, &mut run, 1, &key) => break None,
                _ => {}
            }
        };
        self.note(current, &run, record.as_ref().map(|(key, _, _)| key));
        let Some((key, value, last)) = record else {
            return Ok(None);
        };
        self.last = last;
        if self.is_passing {
            self.look_again(&key, run.len);
        }
        Ok(Some((key, value)))
    }

    /// Takes note of removed records; the last one had this key. Where there are many, goes around them. Returns whether
    /// nothing comes behind them.
    fn passed(&mut self, current: &CurrentState, run: &mut RemovedRun, count: usize, key: &Bytes) -> bool {
        run.len += count;
        if run.len >= run.look_at {
            run.look_at = run.len + run.len.min(NOTED);
            let direction = self.spec.direction;
            let onward = match direction {
                Direction::Up => self.spec.behind(current, key),
                Direction::Down => self.spec.beneath(current, Some(key)),
            };
            if let Some(onward) = onward {
                run.len += NOTED;
                let Some(bound) = onward else { return true };
                self.go_on_at(current, bound);
                return false;
            }
        }
        if run.len >= run.pass_at {
            run.pass_at = run.len + run.len.max(self.urgency);
            let mut has_passed = false;
            self.queues.iter_mut().for_each(|queue| has_passed |= queue.pass_tombstones());
            if has_passed {
                self.is_passing = true;
                (self.is_peeked, self.free) = (false, 0);
                run.len += NOTED;
            }
        }
        false
    }

    /// Whether the queues' next key comes before this one, or is the same.
    fn is_queued_up_to(&self, key: &Bytes) -> bool {
        self.queued.as_ref().is_some_and(|queued| match self.spec.direction {
            Direction::Up => queued <= key,
            Direction::Down => queued >= key,
        })
    }

    /// Keeps the last key while the tree's walk goes on.
    fn hold_last(&mut self) {
        if let LastKey::OfTree = self.last
            && let Some(last) = self.leaves.last_key_bytes()
        {
            self.last = LastKey::Key(last);
        }
    }

    /// Goes on at this bound; what lies before it is known to be empty.
    pub(super) fn go_on_at(&mut self, current: &CurrentState, bound: Bound<Bytes>) {
        self.hold_last();
        let bounds = match self.spec.direction {
            Direction::Up => (bound, self.spec.bounds.1.clone()),
            Direction::Down => (self.spec.bounds.0.clone(), bound),
        };
        let section = self.spec.section(bounds);
        self.queues = self.spec.queues(&section.bounds, section.queues);
        self.leaves = self.spec.leaves(current, &section);
        self.next_section = section.next;
        (self.queued, self.is_peeked, self.free) = (None, false, 0);
        (self.leaf_next, self.is_leaf_taken, self.is_passing) = (None, false, false);
    }

    /// Notes a long run, which ended at this record or at the end.
    fn note(&self, current: &CurrentState, run: &RemovedRun, next: Option<&Bytes>) {
        if run.len < NOTED_AT_FIRST {
            return;
        }
        let last = self.last_key();
        if last.is_some() && run.len < NOTED {
            return;
        }
        let MergeSpec { state, seq, keyspace, bounds: (low, high), direction } = &self.spec;
        let (from, to);
        match direction {
            Direction::Up => {
                from = last.map_or_else(|| first_at(low), successor);
                to = next.cloned().or_else(|| end_at(high));
            }
            Direction::Down => {
                from = next.map_or_else(|| first_at(low), |next| successor(next));
                to = last.map(Bytes::copy_from_slice).or_else(|| end_at(high));
            }
        }
        current.note_empty(*keyspace, (&from, to.as_deref()), state, *seq);
    }

    /// A record was found among tombstones that were passed over, after so many removed ones. Behind it queues list them
    /// again: the tree may have a thousand records for each of them.
    fn look_again(&mut self, key: &Bytes, run: usize) {
        self.queues.iter_mut().for_each(|queue| queue.look_again(key));
        (self.is_passing, self.is_peeked, self.free) = (false, false, 0);
        let was_worth_it = run >= NOTED + 4 * self.urgency;
        self.urgency = if was_worth_it { PATIENCE } else { (2 * self.urgency).min(PATIENCE_MAX) };
    }

    /// The first key in the queues.
    fn first_queued(&mut self) -> Option<Bytes> {
        let direction = self.spec.direction;
        let keys = self.queues.iter_mut().filter_map(|queue| queue.peek().map(|(key, _)| key));
        let first = if direction == Direction::Up { keys.min() } else { keys.max() };
        first.cloned()
    }

    /// Takes the first key out of all queues, with its newest change. `beneath`: what the tree has of it.
    fn pop_queued(&mut self, beneath: Option<Bytes>) -> Option<(Bytes, Change)> {
        let first = self.queued.take()?;
        self.is_peeked = false;
        if self.merging.is_some() {
            return self.pop_merged(first, beneath);
        }
        let mut change: Option<Change> = None;
        for queue in &mut self.queues {
            if queue.peek().is_some_and(|(key, _)| *key == first) {
                if let Some((_, newest)) = queue.pop() {
                    change = change.or(Some(newest));
                }
            } else if self.is_passing && change.is_none() && queue.hides(&first) {
                change = Some(None);
            }
        }
        change.map(|change| (first, change))
    }

    /// The same where operands are merged: they are laid over what is older.
    fn pop_merged(&mut self, first: Bytes, beneath: Option<Bytes>) -> Option<(Bytes, Change)> {
        let (mut stack, mut is_based) = (Vec::new(), false);
        for queue in &mut self.queues {
            let change = if queue.peek().is_some_and(|(key, _)| *key == first) {
                queue.pop().map(|(_, change)| change)
            } else {
                (self.is_passing && !is_based && queue.hides(&first)).then_some(None)
            };
            if let Some(change) = change.filter(|_| !is_based) {
                is_based = !change.as_deref().is_some_and(is_operands);
                stack.push(change);
            }
        }
        if stack.is_empty() {
            return None;
        }
        let merging = self.merging.as_ref()?;
        let tree = (!is_based).then_some(beneath.as_deref());
        let all = merging.lay_all(stack.iter().map(|change| change.as_deref()).chain(tree));
        Some((first, all.map(Bytes::from)))
    }
}
