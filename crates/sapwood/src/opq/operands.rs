//! Operands in the queue: what was merged into records whose values need not be known.
//!
//! Entries stay as they are, so each operand of a key makes a new one. It has combined with itself what lies beneath it in the
//! queue, as far as that is no longer than itself; what remains is followed from entry to entry.
//!
//! ```text
//! appended      a    b    c    d    e    f    g
//! entries       a    ab   c    abcd e    ef   g        each with the numbers of its operations
//!                              ◀────────── ◀─ ┘        a reader of all of them follows three
//! ```
//! So n operands of one length cost each reader log n steps, and log n times their bytes in memory. Counters do not grow: each
//! entry has all before it.
//!
//! Invariants:
//! 1. An entry has operands only if no entry of its key beneath it, in this queue, is a removal, or lies in a removed range.
//! 2. Operands are combined only if they come to the trees together: never across the end of a [begun flush](Opq::new). What a flush that was
//!    interrupted by a crash has brought to the trees ends at one, and the queue of the next process has that once more.

use super::map::Entry;
use super::{Change, Opq};
use crate::merging::{COMBINED_MAX, Merging, Part, Stored, is_operands, operands};
use crate::operation::{KeyspaceId, OperationRef, SeqNo};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;

/// How the values of a keyspace are merged, if they are.
pub(crate) type MergingOf<'a> = &'a dyn Fn(KeyspaceId) -> Option<Merging>;

/// What lies beneath is always combined if it has no more bytes than this: as an entry has itself.
const SMALL: usize = 64;

/// Keys whose newest entry does not have all that lies beneath it.
#[derive(Debug, Default)]
pub(super) struct Chained {
    pub keys: BTreeSet<(KeyspaceId, Bytes)>,
}

/// Of each chained key of a frozen queue, what its entries make together.
pub(super) type Folded = BTreeMap<(KeyspaceId, Bytes), Bytes>;

/// What lies beneath an entry in its queue.
enum Beneath<'a> {
    /// Nothing is there.
    Nothing,
    Stored(&'a [u8]),
    /// Only what lies beneath the queue is known to.
    Unknown,
}

impl Opq {
    /// What lies in the queue beneath the operation `at`.
    fn beneath(&self, keyspace: KeyspaceId, key: &[u8], at: SeqNo) -> Beneath<'_> {
        let Some(below) = at.checked_sub(1) else { return Beneath::Unknown };
        let entry = self.entries.get((keyspace, key, below));
        let removed = self.range_removals.newest(keyspace, key, below);
        match entry {
            Some(entry) if removed.is_none_or(|removed| removed < entry.key().2) => {
                entry.value().map_or(Beneath::Nothing, Beneath::Stored)
            }
            _ if removed.is_some() => Beneath::Nothing,
            _ => Beneath::Unknown,
        }
    }

    fn crosses_border(&self, below: SeqNo, above: SeqNo) -> bool {
        self.begun_flushes.iter().any(|end| below <= *end && *end < above)
    }

    /// What is to be stored for an operand of the operation `seq`.
    pub(super) fn operand(&self, merge: OperationRef<'_>, seq: SeqNo, merging: &Merging) -> Vec<u8> {
        let OperationRef { keyspace, key, value } = merge;
        let (mut first, mut combined) = (seq, value.unwrap_or_default().to_vec());
        loop {
            let own = |first, operand| operands([Part { first, last: seq, operand }]);
            match self.beneath(keyspace, key, first) {
                Beneath::Unknown => return own(first, &combined),
                Beneath::Nothing => return merging.lay(&own(first, &combined), None),
                Beneath::Stored(stored) => {
                    let is_short = |len: usize| len <= combined.len().max(SMALL);
                    let below = match Stored::decode(stored) {
                        Some(Stored::Operands(parts)) if parts.len() == 1 => parts[0],
                        _ if is_short(stored.len()) => {
                            return merging.lay(&own(first, &combined), Some(stored));
                        }
                        _ => return self.chain(keyspace, key, own(first, &combined)),
                    };
                    let fits = is_short(below.operand.len()) && !self.crosses_border(below.last, first);
                    let both =
                        if fits { merging.combine(below.operand, &combined, COMBINED_MAX) } else { None };
                    let Some(both) = both else { return self.chain(keyspace, key, own(first, &combined)) };
                    (first, combined) = (below.first, both);
                }
            }
        }
    }

    fn chain(&self, keyspace: KeyspaceId, key: &[u8], stored: Vec<u8>) -> Vec<u8> {
        let mut chained = self.chained.lock();
        if chained.keys.insert((keyspace, Bytes::copy_from_slice(key))) {
            self.chained_bytes.fetch_add(key.len() + size_of::<(KeyspaceId, Bytes)>(), Relaxed);
        }
        stored
    }

    /// What an entry with operands and all that it builds on make together, as far as this queue has it.
    pub(super) fn follow(&self, entry: &Entry<'_>, merging: &Merging) -> Change {
        let (keyspace, key, _) = entry.key();
        let mut stack = vec![entry.value()];
        while let Some(Some(stored)) = stack.last()
            && let Some(Stored::Operands(parts)) = Stored::decode(stored)
        {
            match self.beneath(keyspace, key, parts[0].first) {
                Beneath::Stored(stored) => stack.push(Some(stored)),
                Beneath::Nothing => stack.push(None),
                Beneath::Unknown => break,
            }
        }
        merging.lay_all(stack).map(Bytes::from)
    }

    /// Puts together what each chained key has in this queue, which is frozen, for [`Opq::newest`].
    pub fn fold_operands(&self, merging: MergingOf<'_>) {
        if self.folded.get().is_some() {
            return;
        }
        let chained = self.chained.lock();
        let mut folded = Folded::new();
        for (keyspace, key) in &chained.keys {
            if let Some(merging) = merging(*keyspace)
                && let Some(newest) = self.entries.get((*keyspace, key, SeqNo::MAX))
                && self.value_at(&newest, SeqNo::MAX).is_some_and(is_operands)
                && let Some(all) = self.follow(&newest, &merging)
            {
                folded.insert((*keyspace, key.clone()), all);
            }
        }
        drop(chained);
        _ = self.folded.set(folded);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::merge::{AddU64, Append, MergeOperator};
    use crate::merging::MergeLimits;
    use crate::operation::{KeyRange, Operation};
    use proptest::prelude::*;
    use std::ops::Bound;
    use std::sync::Arc;

    const MAIN: KeyspaceId = KeyspaceId(1);

    fn merging(operator: impl MergeOperator) -> Merging {
        Merging::new(Arc::new(operator), MergeLimits { operand: 1 << 20, value: 1 << 20 })
    }

    #[derive(Clone, Debug)]
    enum Step {
        Merge(Vec<u8>),
        Put(Vec<u8>),
        Remove,
        RemoveRange,
    }

    fn step() -> impl Strategy<Value = Step> {
        let bytes = |most| prop::collection::vec(b'a'..=b'z', 0..most);
        prop_oneof![
            8 => bytes(4).prop_map(Step::Merge),
            1 => bytes(300).prop_map(Step::Merge),
            1 => bytes(300).prop_map(Step::Put),
            1 => bytes(3).prop_map(Step::Put),
            1 => Just(Step::Remove),
            1 => Just(Step::RemoveRange),
        ]
    }

    proptest! {
        /// Every reader sees what one operation after the other makes, over whatever lies beneath the queue.
        #[test]
        fn readers_see_each_operand_once(
            steps in prop::collection::vec((0u8..3, step()), 1..if cfg!(miri) { 12 } else { 120 }),
            batch in 1usize..20,
            begun_flushes in prop::collection::vec(1u64..120, 0..3),
            seq in 1u64..121,
            taken in 0usize..4,
        ) {
            // What is inserted together becomes visible together: no reader is at a number within it.
            let end_of = |seq: u64| seq.div_ceil(batch as u64) * batch as u64;
            let (begun_flushes, seq): (Vec<_>, _) = (begun_flushes.into_iter().map(end_of).collect(), end_of(seq));
            let merging = merging(Append);
            let merging_of = |_| Some(merging.clone());
            let queue = Opq::with_begun_flushes(&begun_flushes);
            let stored: Vec<_> = steps.iter().map(|(key, step)| {
                let value = match step {
                    Step::Put(value) => Some(crate::merging::whole(value)),
                    Step::Merge(operand) => Some(operand.clone()),
                    _ => None,
                };
                (std::slice::from_ref(key), step, value)
            }).collect();
            for (batch, first) in stored.chunks(batch).zip((1..).step_by(batch)) {
                queue.insert_all(batch.iter().map(|(key, step, value)| match step {
                    Step::RemoveRange => Operation::RemoveRange(KeyRange { keyspace: MAIN, from: key, to: Some(&[3]) }),
                    Step::Merge(_) => Operation::Merge(OperationRef { keyspace: MAIN, key, value: value.as_deref() }),
                    _ => Operation::Change(OperationRef { keyspace: MAIN, key, value: value.as_deref() }),
                }), first, &merging_of);
            }
            queue.fold_operands(&merging_of);
            let ends = [seq, u64::MAX];
            for (key, seq) in (0..3u8).flat_map(|key| ends.map(|end| (key, end))) {
                let model_up_to = |end: u64| {
                    let mut model = Some(b"base".to_vec());
                    for (at, (of, step)) in (1u64..).zip(&steps) {
                        match step {
                            _ if at > end => break,
                            Step::RemoveRange if *of <= key => model = None,
                            Step::Merge(operand) if *of == key => {
                                model = Some([model.unwrap_or_default(), operand.clone()].concat());
                            }
                            Step::Put(value) if *of == key => model = Some(value.clone()),
                            Step::Remove if *of == key => model = None,
                            _ => {}
                        }
                    }
                    model
                };
                let expected = model_up_to(seq);
                let base = crate::merging::whole(b"base");
                // What a flush that was interrupted there has brought to the leaf already.
                let flushed = begun_flushes.iter().copied().filter(|end| *end <= seq).nth(taken);
                let flushed = flushed.and_then(|end| {
                    let change = queue.get(MAIN, &[key], end, Some(&merging))?;
                    Some(merging.lay_all([change.as_deref(), Some(&base[..])]))
                });
                let leaf = flushed.unwrap_or(Some(base));
                let check = |found: Option<Change>| {
                    let all = match found {
                        None => leaf.clone(),
                        Some(change) => merging.lay_all([change.as_deref(), leaf.as_deref()]),
                    };
                    let value = all.map(|all| merging.read(&[key], &all).expect("it was merged").to_vec());
                    prop_assert_eq!(value, expected.clone());
                    Ok(())
                };
                check(queue.get(MAIN, &[key], seq, Some(&merging)))?;
                for is_down in [false, true] {
                    let mut out = Vec::new();
                    let bound = Bound::Included(&[key][..]);
                    match is_down {
                        false => queue.chunk(MAIN, bound, seq, 1, &mut out, Some(&merging)),
                        true => queue.chunk_back(MAIN, bound, seq, 1, &mut out, Some(&merging)),
                    };
                    if let Some((_, change)) = out.pop().filter(|(found, _)| **found == [key]) {
                        check(Some(change))?;
                    }
                }
                if seq == u64::MAX
                    && let Some(newest) = queue.newest(None).find(|newest| newest.key == [key])
                {
                    check(Some(newest.value.map(Bytes::copy_from_slice)))?;
                }
            }
        }
    }

    /// A counter, or a list that many append to.
    #[test]
    fn many_operands_of_a_key_cost_little_each() {
        const COUNT: u64 = if cfg!(miri) { 100 } else { 50_000 };
        let fill = |merging: &Merging, operand: &[u8]| {
            let queue = Opq::default();
            let merging_of = |_| Some(merging.clone());
            for seq in 1..=COUNT {
                let merge = OperationRef { keyspace: MAIN, key: b"key", value: Some(operand) };
                queue.insert_all([Operation::Merge(merge)], seq, &merging_of);
            }
            queue
        };
        let adding = merging(AddU64);
        let queue = fill(&adding, &1u64.to_be_bytes());
        let sum = queue.get(MAIN, b"key", u64::MAX, Some(&adding)).flatten().expect("a sum");
        assert_eq!(
            Stored::decode(&sum),
            Some(Stored::Operands(vec![Part { first: 1, last: COUNT, operand: &COUNT.to_be_bytes() }]))
        );
        assert!(queue.chained.lock().keys.is_empty());
        assert!(queue.bytes() < COUNT * 24, "{}", queue.bytes());
        let appending = merging(Append);
        let queue = fill(&appending, b"12345678");
        let list = queue.get(MAIN, b"key", u64::MAX, Some(&appending)).flatten().expect("a list");
        let Some(Stored::Operands(parts)) = Stored::decode(&list) else { panic!("operands") };
        assert_eq!(parts.iter().map(|part| part.operand.len() as u64).sum::<u64>(), 8 * COUNT);
        assert!(parts.len() < 40, "{}", parts.len());
        assert!(queue.bytes() < 16 * 8 * COUNT, "{} bytes for {}", queue.bytes(), 8 * COUNT);
    }
}
