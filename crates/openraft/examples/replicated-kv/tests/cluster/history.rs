//! Histories of concurrent clients, and whether they are linearizable.
//!
//! The search is that of Wing and Gong with Lowe's memory of what was tried (as in porcupine): the first operation in the order may be any
//! that was called before any other had returned; the state after it must permit what was answered. A set of operations
//! that was taken, with the state after it, is tried once. Keys are judged one by one: a history is linearizable if that of each key is.

use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// What was called, and answered. Values are numbers; 0 is no record.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind")]
pub enum Call {
    Put {
        value: u64,
    },
    /// With what was found.
    Get {
        found: u64,
    },
    /// With what was found in its place, if it was not `old`.
    Swap {
        old: u64,
        new: u64,
        refused: Option<u64>,
    },
}

/// One operation.
#[derive(Clone, Debug, Serialize)]
pub struct Operation {
    pub client: usize,
    pub key: String,
    pub call: Call,
    /// Nanoseconds.
    pub called: u64,
    /// `None`: it is unknown whether it happened, and when.
    pub returned: Option<u64>,
}

impl Operation {
    /// The state after it, if it can have been answered so.
    fn apply(&self, state: u64) -> Option<u64> {
        let is_known = self.returned.is_some();
        match self.call {
            Call::Put { value } => Some(value),
            Call::Get { found } => (found == state).then_some(state),
            Call::Swap { old, new, refused: None } if state == old => Some(new),
            // Of one that is unknown.
            Call::Swap { refused: None, .. } => (!is_known).then_some(state),
            Call::Swap { old, refused: Some(found), .. } => (found == state && found != old).then_some(state),
        }
    }
}

/// A history, and behind it a read of each of its keys that finds what the records say in the end. Without it a history says nothing of
/// what is lost after the last read of a key, on all nodes alike.
pub fn with_last_reads(history: &[Operation], found: impl Fn(&str) -> u64) -> Vec<Operation> {
    let times = |operation: &Operation| operation.called.max(operation.returned.unwrap_or_default());
    let end = history.iter().map(times).max().unwrap_or_default();
    let client = history.iter().map(|operation| operation.client).max().unwrap_or_default() + 1;
    let keys: BTreeSet<&str> = history.iter().map(|operation| operation.key.as_str()).collect();
    let reads = keys.into_iter().map(|key| Operation {
        client,
        key: key.to_owned(),
        call: Call::Get { found: found(key) },
        called: end + 1,
        returned: Some(end + 2),
    });
    history.iter().cloned().chain(reads).collect()
}

/// The first key whose operations have no order. Each put and swap of a key has another value.
pub fn violation(history: &[Operation]) -> Option<String> {
    let mut keys: BTreeMap<&str, Vec<Operation>> = BTreeMap::new();
    for operation in history {
        keys.entry(&operation.key).or_default().push(operation.clone());
    }
    keys.values_mut().for_each(judge_by_what_was_seen);
    let broken = keys.into_iter().find(|(_, operations)| !is_linearizable(operations.iter().collect()));
    broken.map(|(key, operations)| {
        let lines: Vec<_> = operations.iter().map(|operation| format!("{operation:?}")).collect();
        format!("the operations of {key} have no order:\n{}", lines.join("\n"))
    })
}

/// Leaves out puts of which it is unknown whether they happened, and whose value nothing has found: that they did not is as good as any place in
/// the order. Those whose value was found had happened when the first that found it returned. The search would try each set of them, and while no
/// node leads nearly all puts are so.
fn judge_by_what_was_seen(operations: &mut Vec<Operation>) {
    let mut seen: HashMap<u64, u64> = HashMap::new();
    for operation in &*operations {
        let (found, returned) = match operation.call {
            Call::Get { found } | Call::Swap { refused: Some(found), .. } => (found, operation.returned),
            // If it is unknown whether it did, nothing was found.
            Call::Swap { old, refused: None, .. } => (old, operation.returned),
            Call::Put { .. } => continue,
        };
        let first = seen.entry(found).or_insert(u64::MAX);
        *first = (*first).min(returned.unwrap_or(u64::MAX));
    }
    operations.retain_mut(|operation| {
        let Call::Put { value } = operation.call else { return true };
        if operation.returned.is_none() {
            operation.returned = seen.get(&value).copied().filter(|first| *first != u64::MAX);
        }
        operation.returned.is_some() || seen.contains_key(&value)
    });
}

fn is_linearizable(mut operations: Vec<&Operation>) -> bool {
    operations.sort_by_key(|operation| operation.called);
    let end = |at: usize| operations[at].returned.unwrap_or(u64::MAX);
    let mut taken = vec![0u64; operations.len().div_ceil(64)];
    let has = |taken: &[u64], at: usize| taken[at / 64] >> (at % 64) & 1 == 1;
    let mut known = operations.iter().filter(|operation| operation.returned.is_some()).count();
    // What was taken, without the words before `first`, which have all their bits, and those behind the last bit: of a long history that is little.
    let mut tried: HashSet<(usize, Vec<u64>, u64)> = HashSet::new();
    let words = |taken: &[u64], first: usize| {
        let rest = taken.get(first / 64..).unwrap_or_default();
        let len = rest.iter().rposition(|word| *word > 0).map_or(0, |last| last + 1);
        (first / 64, rest[..len].to_vec())
    };
    // What was taken, with the state before it. All before `first` are taken.
    let mut stack: Vec<(usize, u64, usize)> = Vec::new();
    let (mut state, mut first, mut at) = (0, 0, 0);
    // The earliest return among those that are not taken: those that were called later cannot come before it.
    let bound = |taken: &[u64], first: usize| {
        let mut bound = u64::MAX;
        for (at, operation) in operations.iter().enumerate().skip(first) {
            if operation.called > bound {
                break;
            }
            if !has(taken, at) {
                bound = bound.min(end(at));
            }
        }
        bound
    };
    let mut limit = bound(&taken, first);
    loop {
        if known == 0 {
            return true;
        }
        if at < operations.len() && operations[at].called <= limit {
            if !has(&taken, at)
                && let Some(next) = operations[at].apply(state)
            {
                taken[at / 64] |= 1 << (at % 64);
                let mut first_then = first;
                while first_then < operations.len() && has(&taken, first_then) {
                    first_then += 1;
                }
                let (from, words) = words(&taken, first_then);
                if tried.insert((from, words, next)) {
                    stack.push((at, state, first));
                    known -= usize::from(operations[at].returned.is_some());
                    (state, first) = (next, first_then);
                    limit = bound(&taken, first);
                    at = first;
                    continue;
                }
                taken[at / 64] &= !(1 << (at % 64));
            }
            at += 1;
            continue;
        }
        let Some((last, before, first_before)) = stack.pop() else { return false };
        taken[last / 64] &= !(1 << (last % 64));
        known += usize::from(operations[last].returned.is_some());
        (state, first) = (before, first_before);
        limit = bound(&taken, first);
        at = last + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(call: Call, called: u64, returned: Option<u64>) -> Operation {
        Operation { client: 0, key: "key".into(), call, called, returned }
    }

    fn put(value: u64, called: u64, returned: u64) -> Operation {
        operation(Call::Put { value }, called, Some(returned))
    }

    fn get(found: u64, called: u64, returned: u64) -> Operation {
        operation(Call::Get { found }, called, Some(returned))
    }

    fn swap(old: u64, new: u64, refused: Option<u64>, called: u64, returned: u64) -> Operation {
        operation(Call::Swap { old, new, refused }, called, Some(returned))
    }

    #[test]
    fn what_has_an_order_is_told_from_what_has_none() {
        let lost = |value, called| operation(Call::Put { value }, called, None);
        let fine: &[&[Operation]] = &[
            &[get(0, 0, 1), put(1, 2, 3), get(1, 4, 5)],
            // Beside one another, either.
            &[put(1, 0, 9), get(0, 1, 2), get(1, 3, 4)],
            &[put(1, 0, 9), put(2, 0, 9), get(2, 10, 11)],
            &[put(1, 0, 9), put(2, 0, 9), get(1, 10, 11)],
            // Unknown ones happen at any time, or never.
            &[lost(1, 0), put(2, 1, 2), get(2, 3, 4), get(1, 5, 6)],
            &[lost(1, 0), put(2, 1, 2), get(2, 3, 4), get(2, 5, 6)],
            &[swap(0, 1, None, 0, 1), swap(0, 2, Some(1), 2, 3), get(1, 4, 5)],
            &[swap(0, 1, None, 0, 5), swap(1, 2, None, 0, 5), get(2, 6, 7)],
        ];
        for history in fine {
            assert_eq!(violation(history), None);
        }
        let broken: &[&[Operation]] = &[
            // Old: a read that does not ask.
            &[put(1, 0, 1), get(0, 2, 3)],
            // Back and forth.
            &[put(1, 0, 9), get(1, 1, 2), get(0, 3, 4)],
            &[put(1, 0, 9), put(2, 0, 9), get(1, 10, 11), get(2, 12, 13)],
            // An unknown one takes effect once.
            &[lost(1, 0), put(2, 1, 2), get(1, 3, 4), put(2, 5, 6), get(1, 7, 8)],
            // And not before it was called.
            &[get(1, 0, 1), lost(1, 2)],
            // Two swaps of the same.
            &[swap(0, 1, None, 0, 5), swap(0, 2, None, 0, 5)],
            &[put(1, 0, 1), swap(0, 2, Some(3), 2, 3)],
        ];
        for history in broken {
            assert!(violation(history).is_some(), "{history:?}");
        }
    }

    #[test]
    fn what_is_lost_after_the_last_read_is_missed() {
        let history = [put(1, 0, 1), get(1, 2, 3), put(2, 4, 5), operation(Call::Put { value: 3 }, 6, None)];
        let in_the_end = |found| violation(&with_last_reads(&history, |_| found));
        assert_eq!(violation(&history), None);
        // The last may have happened, or not.
        assert_eq!((in_the_end(2), in_the_end(3)), (None, None));
        assert!(in_the_end(0).is_some() && in_the_end(1).is_some());
    }

    #[test]
    fn a_long_history_is_judged_soon() {
        // 8 clients, each of whose operations overlaps with those of all others.
        let mut history = Vec::new();
        for round in 0..500u64 {
            for client in 0..8 {
                let at = round * 10;
                history.push(put(round * 8 + client + 1, at, at + 9));
            }
            // One of them was the last.
            history.push(get(round * 8 + 3, round * 10 + 9, round * 10 + 9));
        }
        assert_eq!(violation(&history), None);
        history.push(get(1, 6000, 6001));
        assert!(violation(&history).is_some());
    }

    /// They were open to the end of the history, as if nobody had seen them.
    #[test]
    fn puts_that_were_seen_have_happened() {
        let mut history = Vec::new();
        for value in 1..60 {
            history.push(operation(Call::Put { value }, 10 * value, None));
            history.push(get(value, 10 * value + 1, 10 * value + 2));
        }
        assert_eq!(violation(&history), None);
        history.push(get(30, 1000, 1001));
        assert!(violation(&history).is_some());
    }

    /// Each set of them was tried: with twenty it took minutes, and gigabytes.
    #[test]
    fn puts_that_nobody_has_seen_cost_nothing() {
        let mut history = vec![put(1, 0, 1)];
        history.extend((2..60).map(|value| operation(Call::Put { value }, value, None)));
        history.push(get(1, 100, 101));
        history.push(put(100, 102, 103));
        history.push(get(100, 104, 105));
        assert_eq!(violation(&history), None);
        // One of them is seen.
        history.push(get(30, 106, 107));
        assert_eq!(violation(&history), None);
        history.push(get(1, 108, 109));
        assert!(violation(&history).is_some());
    }
}
