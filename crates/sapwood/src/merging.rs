//! How values are stored in keyspaces with a merge operator, and how operands meet them.
//!
//! ```text
//! stored value = 0 value                       as it was inserted
//!              | 1 last value                  what all operands up to the operation `last` have made of it
//!              | 2 part+                       operands, oldest first, whose value lies beneath: in an older queue, an older run, the leaf
//!              | 3 last reason                 operands up to the operation `last` could not be merged, for this reason
//! part         = last span len operand         an operand, or several combined: of the operations last - span to last
//! ```
//! The first byte is the kind. Numbers are varints.
//!
//! A flush publishes portions of a queue while readers still have all of it, and after a crash the log is replayed over what was
//! published. Changes of whole values may meet the same change again; operands may not. So they carry the numbers of their
//! operations, and a value those that it has taken in: what a value has already is passed over.
//!
//! Invariants:
//! 1. What comes beneath operands has all of a part's operations or none of them: a queue combines operands only if they come to
//!    the trees together ([`crate::opq::operands`]).
//! 2. A value is made of a base and every operand behind it, in order, each once.

use crate::bytecode::{Reader, put_varint};
use crate::error::{DATA, Error, Result};
use crate::merge::{MergeOperator, built_in};
use crate::operation::SeqNo;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Tags of the format: the first byte of a stored value.
const WHOLE: u8 = 0;
const MERGED: u8 = 1;
const OPERANDS: u8 = 2;
const FAILED: u8 = 3;

/// Longest name of a merge operator in bytes: that of a keyspace's name.
pub(crate) const OPERATOR_NAME_MAX: usize = 255;

/// The most bytes of a combined operand: the longest that is copied again and again.
pub(crate) const COMBINED_MAX: usize = 64 << 10;

/// Bytes that a stored value takes beside the value, at most: the kind and a number, rounded up.
pub(crate) const OVERHEAD: usize = 16;

/// The number of an operand that is not committed yet: above all others.
pub(crate) const PENDING: SeqNo = crate::operation::NUMBER_MAX;

/// An operator that is stored with a keyspace.
#[derive(Clone)]
enum Operator {
    Known(Arc<dyn MergeOperator>),
    /// As read from a manifest, before it is looked up.
    Named(Arc<str>),
}

/// How the values of a keyspace are merged.
#[derive(Clone)]
pub(crate) struct Merging {
    operator: Operator,
    limits: MergeLimits,
}

/// Most bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MergeLimits {
    /// Of an operand that is committed, and of what a transaction combines: they follow from the memory budget of this opening.
    pub operand: usize,
    /// Of what operands make of a value, and of operands that wait for one. They are the same at each opening: what was committed at
    /// one is made a value at another.
    pub value: usize,
}

impl PartialEq for Merging {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Merging {}

impl Debug for Merging {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Merging({:?})", self.name())
    }
}

/// The operators that a program has told, beside the built-in ones.
#[derive(Clone, Default)]
pub(crate) struct MergeOperators(Vec<Arc<dyn MergeOperator>>);

impl MergeOperators {
    pub fn add(&mut self, operator: Arc<dyn MergeOperator>) {
        self.0.push(operator);
    }

    /// The operator of this name that was told last, or a built-in one.
    pub fn find(&self, name: &str) -> Option<Arc<dyn MergeOperator>> {
        let told = self.0.iter().rfind(|operator| operator.name() == name);
        told.cloned().or_else(|| built_in(name))
    }
}

impl Debug for MergeOperators {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|operator| operator.name())).finish()
    }
}

/// Operands of operations that come together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part<'a> {
    pub first: SeqNo,
    pub last: SeqNo,
    pub operand: &'a [u8],
}

impl<'a> Part<'a> {
    fn put(&self, out: &mut Vec<u8>) {
        put_varint(out, self.last);
        put_varint(out, self.last - self.first);
        put_varint(out, self.operand.len() as u64);
        out.extend_from_slice(self.operand);
    }

    fn decode(reader: &mut Reader<'a>) -> Option<Self> {
        let (last, span) = (reader.varint()?, reader.varint()?);
        let len = reader.length()?;
        Some(Self { first: last.checked_sub(span)?, last, operand: reader.bytes(len)? })
    }
}

/// What a stored value is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stored<'a> {
    /// A value, with all operands up to `last`.
    Value {
        last: SeqNo,
        value: &'a [u8],
    },
    Operands(Vec<Part<'a>>),
    Failed {
        last: SeqNo,
        reason: &'a str,
    },
}

impl<'a> Stored<'a> {
    /// `None`: damage.
    pub fn decode(stored: &'a [u8]) -> Option<Self> {
        let (kind, rest) = stored.split_first()?;
        let mut reader = Reader::new(rest);
        match *kind {
            WHOLE => Some(Self::Value { last: 0, value: rest }),
            MERGED => {
                let last = reader.varint()?;
                Some(Self::Value { last, value: reader.bytes(reader.remaining())? })
            }
            OPERANDS => {
                let mut parts: Vec<Part<'_>> = Vec::new();
                while reader.remaining() > 0 {
                    let part = Part::decode(&mut reader)?;
                    if parts.last().is_some_and(|before| before.last >= part.first) {
                        return None;
                    }
                    parts.push(part);
                }
                (!parts.is_empty()).then_some(Self::Operands(parts))
            }
            FAILED => {
                let last = reader.varint()?;
                let reason = std::str::from_utf8(reader.bytes(reader.remaining())?).ok()?;
                Some(Self::Failed { last, reason })
            }
            _ => None,
        }
    }
}

/// Whether a stored value is operands, whose value lies beneath.
pub(crate) fn is_operands(stored: &[u8]) -> bool {
    stored.first() == Some(&OPERANDS)
}

/// What is stored for a value that is inserted.
pub(crate) fn whole(value: &[u8]) -> Vec<u8> {
    [&[WHOLE], value].concat()
}

/// What is stored for operands.
pub(crate) fn operands<'a>(parts: impl IntoIterator<Item = Part<'a>>) -> Vec<u8> {
    let mut out = vec![OPERANDS];
    parts.into_iter().for_each(|part| part.put(&mut out));
    out
}

fn merged(last: SeqNo, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len() + 11);
    out.push(MERGED);
    put_varint(&mut out, last);
    out.extend_from_slice(value);
    out
}

/// What is stored for operands that cannot be merged.
pub(crate) fn failed(last: SeqNo, reason: &str) -> Vec<u8> {
    let mut out = vec![FAILED];
    put_varint(&mut out, last);
    let end = (0..=reason.len().min(256)).rev().find(|end| reason.is_char_boundary(*end));
    out.extend_from_slice(&reason.as_bytes()[..end.unwrap_or(0)]);
    out
}

/// The reason of a merge without the operator. It is never stored, since such a database is only read.
pub(crate) const UNKNOWN: &str = "this program has not told the operator (`Builder::merge_operator`), and the database was opened to be read only";

const DAMAGE: &str = "what is stored for it is neither a value nor operands";

impl Merging {
    pub fn new(operator: Arc<dyn MergeOperator>, limits: MergeLimits) -> Self {
        Self { operator: Operator::Known(operator), limits }
    }

    /// One that is not looked up yet. Nothing is too long for it: it makes no values.
    pub fn named(name: Arc<str>) -> Self {
        let limits = MergeLimits { operand: usize::MAX, value: usize::MAX };
        Self { operator: Operator::Named(name), limits }
    }

    pub fn name(&self) -> &str {
        match &self.operator {
            Operator::Known(operator) => operator.name(),
            Operator::Named(name) => name,
        }
    }

    /// The same with these limits.
    pub fn within(&self, limits: MergeLimits) -> Self {
        Self { operator: self.operator.clone(), limits }
    }

    /// Most bytes of an operand.
    pub fn operand_max(&self) -> usize {
        self.limits.operand
    }

    /// Calls the operator.
    fn call<T>(
        &self,
        method: impl FnOnce(&dyn MergeOperator) -> std::result::Result<T, String>,
    ) -> std::result::Result<T, String> {
        let Operator::Known(operator) = &self.operator else {
            return Err(UNKNOWN.into());
        };
        // It has seen nothing but bytes, and gets no more of these.
        catch_unwind(AssertUnwindSafe(|| method(&**operator)))
            .unwrap_or_else(|_| Err(format!("merge operator {:?} panicked", self.name())))
    }

    /// The error for bytes that are longer than an operand.
    pub fn too_long(&self, bytes: &[u8]) -> Error {
        Error::ValueTooLong { len: bytes.len(), max: self.limits.operand, most: self.limits.value }
    }

    /// Returns an error if these bytes cannot be an operand.
    pub fn check(&self, operand: &[u8]) -> Result<()> {
        if operand.len() > self.limits.operand {
            return Err(self.too_long(operand));
        }
        let checked = self.call(|operator| operator.check(operand));
        checked.map_err(|reason| Error::BadOperand { operator: self.name().into(), reason })
    }

    fn apply(&self, value: Option<&[u8]>, operand: &[u8]) -> std::result::Result<Vec<u8>, String> {
        let value = self.call(|operator| operator.apply(value, operand))?;
        if value.len() > self.limits.value {
            return Err(format!(
                "the value would have {} bytes, of {} at most",
                value.len(),
                self.limits.value
            ));
        }
        Ok(value)
    }

    /// The operand that does what both do, unless that fails or it is longer than `max`.
    pub fn combine(&self, older: &[u8], newer: &[u8], max: usize) -> Option<Vec<u8>> {
        let combined = self.call(|operator| Ok(operator.combine(older, newer))).ok()?;
        (combined.len() <= max).then_some(combined)
    }

    /// What `newer` makes of what lies beneath it; `None` if nothing does.
    pub fn lay(&self, newer: &[u8], older: Option<&[u8]>) -> Vec<u8> {
        let parts = match Stored::decode(newer) {
            Some(Stored::Operands(parts)) => parts,
            Some(_) => return newer.to_vec(),
            None => return failed(0, DAMAGE),
        };
        let newest = parts.last().map_or(0, |part| part.last);
        match older.map(Stored::decode) {
            None => self.lay_on(parts, 0, None),
            Some(Some(Stored::Value { last, value })) => self.lay_on(parts, last, Some(value)),
            Some(Some(Stored::Operands(older))) => {
                let last = older.last().map_or(0, |part| part.last);
                let newer = parts.into_iter().filter(|part| part.last > last);
                let all: Vec<_> = older.into_iter().chain(newer).collect();
                if all.iter().map(|part| part.operand.len()).sum::<usize>() > self.limits.value {
                    return failed(newest, "too many operands have come since it was read or cleansed last");
                }
                operands(all)
            }
            Some(Some(Stored::Failed { last, reason })) => failed(last.max(newest), reason),
            Some(None) => failed(newest, DAMAGE),
        }
    }

    fn lay_on(&self, parts: Vec<Part<'_>>, mut last: SeqNo, value: Option<&[u8]>) -> Vec<u8> {
        let mut value = value.map(<[u8]>::to_vec);
        for part in parts {
            if part.last <= last {
                continue;
            }
            let merged = match part.first <= last {
                false => self.apply(value.as_deref(), part.operand),
                true => Err("a value has some of the operands that came together, and not all".into()),
            };
            last = part.last;
            match merged {
                Ok(merged) => value = Some(merged),
                Err(reason) => return failed(last, &reason),
            }
        }
        // With no part that is newer the value stays as it is, and one there is.
        merged(last, &value.unwrap_or_default())
    }

    /// Of a stack of changes, newest first, what they make together. What lies beneath a value or a removal counts for nothing. If
    /// there is neither, the operands stay operands: their value lies beneath the stack. `None`: the key is removed, or is not
    /// there.
    pub fn lay_all<'a>(&self, stack: impl IntoIterator<Item = Option<&'a [u8]>>) -> Option<Vec<u8>> {
        let mut operands = Vec::new();
        let mut base = None;
        for change in stack {
            match change {
                Some(stored) if is_operands(stored) => operands.push(stored),
                other => {
                    base = Some(other);
                    break;
                }
            }
        }
        let oldest = base.or_else(|| operands.pop().map(Some)).flatten().map(<[u8]>::to_vec);
        operands.into_iter().rev().fold(oldest, |older, newer| Some(self.lay(newer, older.as_deref())))
    }

    /// What a user sees of the stored value of a key, beneath which nothing lies.
    pub fn read<'v>(&self, key: &[u8], stored: &'v [u8]) -> Result<&'v [u8]> {
        let failed = |reason: &str| Error::MergeFailed {
            key: key.into(),
            operator: self.name().into(),
            reason: reason.into(),
        };
        match Stored::decode(stored) {
            Some(Stored::Value { value, .. }) => Ok(value),
            Some(Stored::Failed { reason, .. }) => Err(failed(reason)),
            Some(Stored::Operands(_)) | None => {
                let found = stored.first().map_or("no bytes".into(), |kind| format!("kind {kind}"));
                Err(Error::corrupt(
                    DATA,
                    0,
                    "the value of a record of a keyspace with a merge operator",
                    "a value",
                    found,
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::merge::{AddU64, Append};
    use proptest::prelude::*;

    fn at_most(len: usize) -> MergeLimits {
        MergeLimits { operand: len, value: len }
    }

    fn appending() -> Merging {
        Merging::new(Arc::new(Append), at_most(1 << 20))
    }

    fn part(first: SeqNo, last: SeqNo, operand: &[u8]) -> Part<'_> {
        Part { first, last, operand }
    }

    /// Operations 1 to n append their number's letter each.
    fn letters(from: usize, to: usize) -> Vec<u8> {
        (from..=to).map(|number| b'a' + number as u8).collect()
    }

    proptest! {
        /// Whatever has been taken in already, at whichever borders: each operand comes once.
        #[test]
        fn each_operand_comes_once(
            borders in prop::collection::btree_set(1usize..24, 1..9),
            taken in 0usize..9,
            replayed_from in 0usize..9,
            split in any::<u32>(),
            base in prop::option::of(Just(b"base".to_vec())),
        ) {
            let merging = appending();
            // What comes to the trees together.
            let borders: Vec<_> = std::iter::once(0).chain(borders).collect();
            let together: Vec<_> = borders.windows(2).map(|ends| (ends[0] + 1, ends[1])).collect();
            let (taken, from) = (taken.min(together.len()), replayed_from.min(together.len() - 1).min(taken));
            let parts_of = |range: std::ops::Range<usize>| -> Vec<u8> {
                let all: Vec<_> = together[range].iter().map(|(first, last)| (*first, *last, letters(*first, *last))).collect();
                operands(all.iter().map(|(first, last, operand)| part(*first as u64, *last as u64, operand)))
            };
            let base_stored = base.as_deref().map(whole);
            // The leaf has the first ones; above it is a stack of others, which may begin before.
            let leaf = match taken {
                0 => base_stored.clone(),
                _ => Some(merging.lay(&parts_of(0..taken), base_stored.as_deref())),
            };
            let mut stack = Vec::new();
            let mut at = from;
            while at < together.len() {
                let next = (at + 1 + (split >> at & 1) as usize).min(together.len());
                stack.push(parts_of(at..next));
                at = next;
            }
            let expected = [base.unwrap_or_default(), letters(1, *borders.last().unwrap())].concat();
            // One after the other from below, ...
            let newest_first = stack.iter().rev().map(|operands| Some(&operands[..])).chain([leaf.as_deref()]);
            let all = merging.lay_all(newest_first).expect("operands");
            prop_assert_eq!(merging.read(b"k", &all).unwrap(), &expected[..]);
            // ... or first by themselves.
            let joined = stack.into_iter().reduce(|older, newer| merging.lay(&newer, Some(&older))).expect("some");
            let all = merging.lay(&joined, leaf.as_deref());
            prop_assert_eq!(merging.read(b"k", &all).unwrap(), &expected[..]);
            prop_assert_eq!(Stored::decode(&all), Some(Stored::Value { last: *borders.last().unwrap() as u64, value: &expected }));
        }

        /// Those that come again take no room of others.
        #[test]
        fn operands_that_came_twice_count_once(len in 0usize..=100) {
            let merging = Merging::new(Arc::new(Append), at_most(100));
            let once = operands([part(1, 5, &vec![7; len])]);
            prop_assert_eq!(merging.lay(&once, Some(&once)), once);
        }

        #[test]
        fn any_bytes_decode_or_are_damage(
            newer in prop::collection::vec(0u8..6, 0..24),
            older in prop::option::of(prop::collection::vec(0u8..6, 0..24)),
        ) {
            let merging = appending();
            _ = merging.read(b"k", &newer);
            let laid = merging.lay(&newer, older.as_deref());
            prop_assert!(Stored::decode(&laid).is_some() || !is_operands(&newer));
        }
    }

    #[test]
    fn golden_bytes() {
        assert_eq!(whole(b"v"), b"\0v");
        assert_eq!(operands([part(3, 5, b"ab"), part(300, 300, b"c")]), b"\x02\x05\x02\x02ab\xac\x02\0\x01c");
        assert_eq!(merged(300, b"v"), b"\x01\xac\x02v");
        assert_eq!(failed(5, "why"), b"\x03\x05why");
        assert_eq!(failed(5, &"ä".repeat(200)).len(), 2 + 256);
    }

    #[test]
    fn what_fails_is_told_until_it_is_overwritten() {
        let adding = Merging::new(Arc::new(AddU64), at_most(1 << 20));
        let one = operands([part(7, 7, &1u64.to_be_bytes())]);
        let failed = adding.lay(&one, Some(&whole(b"no number")));
        assert!(matches!(adding.read(b"k", &failed), Err(Error::MergeFailed { .. })));
        let two = operands([part(8, 8, &1u64.to_be_bytes())]);
        assert!(matches!(
            adding.read(b"k", &adding.lay(&two, Some(&failed))),
            Err(Error::MergeFailed { .. })
        ));
        assert_eq!(adding.lay(&whole(b"new"), Some(&failed)), whole(b"new"));
        let fresh = adding.lay(&two, None);
        assert_eq!(adding.read(b"k", &fresh).unwrap(), 1u64.to_be_bytes());
    }

    #[test]
    fn some_of_what_came_together_is_told() {
        let merging = appending();
        let some = merging.lay(&operands([part(1, 5, b"abcde")]), Some(&merged(3, b"abc")));
        assert!(matches!(merging.read(b"k", &some), Err(Error::MergeFailed { .. })));
    }

    struct Panics;

    impl MergeOperator for Panics {
        fn name(&self) -> &str {
            "panics"
        }

        fn apply(&self, _: Option<&[u8]>, _: &[u8]) -> std::result::Result<Vec<u8>, String> {
            panic!("on purpose")
        }

        fn combine(&self, _: &[u8], _: &[u8]) -> Vec<u8> {
            panic!("on purpose")
        }
    }

    #[test]
    fn an_operator_that_panics_or_makes_values_too_long_fails() {
        let panics = Merging::new(Arc::new(Panics), at_most(100));
        assert!(matches!(
            panics.read(b"k", &panics.lay(&operands([part(1, 1, b"a")]), None)),
            Err(Error::MergeFailed { .. })
        ));
        assert_eq!(panics.combine(b"a", b"b", 100), None);
        let short = Merging::new(Arc::new(Append), at_most(5));
        let long = short.lay(&operands([part(1, 1, b"abc")]), Some(&whole(b"abc")));
        assert!(matches!(short.read(b"k", &long), Err(Error::MergeFailed { .. })));
        assert!(matches!(short.check(b"abcdef"), Err(Error::ValueTooLong { len: 6, max: 5, .. })));
        let unknown = Merging::named("gone".into());
        assert!(matches!(
            unknown.read(b"k", &unknown.lay(&operands([part(1, 1, b"a")]), None)),
            Err(Error::MergeFailed { .. })
        ));
    }
}
