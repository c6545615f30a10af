//! Merge operators: how a value and what is merged into it become a new value, without a read.
//!
//! A keyspace gets its operator when it is created ([`KeyspaceOptions::merge`](crate::KeyspaceOptions::merge)). From then on
//! [`Keyspace::merge`](crate::Keyspace::merge) writes an *operand*: it waits in the operation queue and in log areas like any
//! other change, and meets the record's value where a reader needs it or where the record is rewritten anyway. So a counter is
//! counted up at the price of a blind insertion.
//!
//! ```
//! # fn main() -> sapwood::Result<()> {
//! # let dir = tempfile::tempdir().expect("a temporary directory");
//! # let db = sapwood::Database::open(dir.path().join("pages.db"))?;
//! use sapwood::{KeyspaceOptions, merge};
//!
//! let hits = db.keyspace_with("hits", KeyspaceOptions::new().merge(merge::AddU64))?;
//! hits.merge("index.html", 1u64.to_be_bytes())?;
//! hits.merge("index.html", 2u64.to_be_bytes())?;
//! assert_eq!(hits.get("index.html")?.as_deref(), Some(&3u64.to_be_bytes()[..]));
//! # Ok(()) }
//! ```
//! | operator | value and operand | without a value |
//! |---|---|---|
//! | [`AddU64`], [`AddI64`] | a number of 8 bytes, big-endian; the sum stays at the ends of the range | 0 |
//! | [`AddU64Wrapping`], [`AddI64Wrapping`] | the same; the sum wraps around | 0 |
//! | [`Min`], [`Max`] | any bytes, of which the lower or higher stays, in the order of keys | the operand |
//! | [`Append`] | any bytes, one behind the other | the operand |
//! | [`Union`] | a list of elements of one length, which ascend | the operand |

mod numbers;
mod sets;

pub use numbers::{AddI64, AddI64Wrapping, AddU64, AddU64Wrapping};
pub use sets::{Append, Max, Min, Union};

use std::sync::Arc;

/// How values of a keyspace are merged. The built-in ones are in [this module](self); a program's own must be told to
/// [`Builder::merge_operator`](crate::Builder::merge_operator) whenever the database is opened, under the name that it had when
/// the keyspace was created.
///
/// All methods must always give the same answer to the same bytes, for as long as the keyspace is there. They may be called by
/// any thread, at any time, and again for operands that were merged already, and must not use the database. An operator that
/// panics counts as one that fails.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// use sapwood::{Builder, KeyspaceOptions, merge::MergeOperator};
///
/// /// Keeps the longest.
/// struct Longest;
///
/// impl MergeOperator for Longest {
///     fn name(&self) -> &str {
///         "longest"
///     }
///
///     fn apply(&self, value: Option<&[u8]>, operand: &[u8]) -> Result<Vec<u8>, String> {
///         Ok(self.combine(value.unwrap_or_default(), operand))
///     }
///
///     fn combine(&self, older: &[u8], newer: &[u8]) -> Vec<u8> {
///         if newer.len() > older.len() { newer.to_vec() } else { older.to_vec() }
///     }
/// }
///
/// let db = sapwood::Database::builder().merge_operator(Longest).open(dir.path().join("words.db"))?;
/// let words = db.keyspace_with("words", KeyspaceOptions::new().merge(Longest))?;
/// for word in ["ship", "schooner", "boat"] {
///     words.merge("seen", word)?;
/// }
/// assert_eq!(words.get("seen")?.as_deref(), Some(&b"schooner"[..]));
/// # Ok(()) }
/// ```
pub trait MergeOperator: Send + Sync + 'static {
    /// The name that is stored with the keyspace: 1 to 255 bytes.
    fn name(&self) -> &str;

    /// Whether these bytes can be an operand; if not, why. Asked when an operand is merged, which is refused then with
    /// [`Error::BadOperand`](crate::Error::BadOperand). What [`combine`](MergeOperator::combine) makes of operands can be one: a transaction
    /// commits operands of one key as one if that is short enough, and otherwise as several, maybe behind an insertion. Readers of the
    /// [changes](crate::Database::changes) see what it commits, each operation as a change of its own, and a replica merges it.
    ///
    /// # Errors
    /// What is wrong with it.
    fn check(&self, operand: &[u8]) -> Result<(), String> {
        let _ = operand;
        Ok(())
    }

    /// The value after an operand was merged into `value`; `None` if there is no record.
    ///
    /// # Errors
    /// Why that cannot be, for instance as the value was inserted and is none that this operator knows. The record then
    /// answers with [`Error::MergeFailed`](crate::Error::MergeFailed) until it is inserted anew or removed; all others are as
    /// before.
    fn apply(&self, value: Option<&[u8]>, operand: &[u8]) -> Result<Vec<u8>, String>;

    /// An operand that does what `older` and then `newer` do, whatever the value is.
    fn combine(&self, older: &[u8], newer: &[u8]) -> Vec<u8>;
}

/// The operators of this module.
pub(crate) fn built_in(name: &str) -> Option<Arc<dyn MergeOperator>> {
    let fixed: [Arc<dyn MergeOperator>; 7] = [
        Arc::new(AddU64),
        Arc::new(AddU64Wrapping),
        Arc::new(AddI64),
        Arc::new(AddI64Wrapping),
        Arc::new(Min),
        Arc::new(Max),
        Arc::new(Append),
    ];
    let found = fixed.into_iter().find(|operator| operator.name() == name);
    found.or_else(|| Union::named(name).map(|union| Arc::new(union) as Arc<dyn MergeOperator>))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check_laws(
        operator: &dyn MergeOperator,
        value: Option<&[u8]>,
        operands: &[Vec<u8>],
        split: usize,
    ) -> Result<(), TestCaseError> {
        prop_assert_eq!(
            built_in(operator.name()).map(|found| found.name().to_owned()),
            Some(operator.name().to_owned())
        );
        for operand in operands {
            prop_assert_eq!(operator.check(operand), Ok(()));
        }
        let one_by_one = operands.iter().try_fold(value.map(<[u8]>::to_vec), |value, operand| {
            operator.apply(value.as_deref(), operand).map(Some)
        });
        // Any two neighbours first, and then from either end.
        let combine =
            |all: &[Vec<u8>]| all.iter().cloned().reduce(|older, newer| operator.combine(&older, &newer));
        let split = split % operands.len();
        let (front, back) = operands.split_at(split);
        let parts: Vec<_> = [combine(front), combine(back)].into_iter().flatten().collect();
        let whole =
            parts.iter().cloned().reduce(|older, newer| operator.combine(&older, &newer)).expect("some");
        let by_parts = parts.iter().try_fold(value.map(<[u8]>::to_vec), |value, operand| {
            operator.apply(value.as_deref(), operand).map(Some)
        });
        prop_assert_eq!(operator.check(&whole), Ok(()));
        prop_assert_eq!(&by_parts, &one_by_one);
        prop_assert_eq!(operator.apply(value, &whole).map(Some), one_by_one);
        Ok(())
    }

    fn number() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            any::<u64>(),
            0u64..9,
            (0u64..9).prop_map(|below| u64::MAX - below),
            (0u64..9).prop_map(|below| i64::MAX as u64 - below),
            (0u64..9).prop_map(|above| i64::MIN as u64 + above),
        ]
        .prop_map(|number| number.to_be_bytes().to_vec())
    }

    fn list() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::btree_set(0u16..40, 0..9)
            .prop_map(|elements| elements.into_iter().flat_map(u16::to_be_bytes).collect())
    }

    proptest! {
        #[test]
        fn numbers_keep_the_laws(
            value in prop::option::of(number()),
            operands in prop::collection::vec(number(), 1..9),
            split in any::<usize>(),
        ) {
            for operator in [&AddU64 as &dyn MergeOperator, &AddU64Wrapping, &AddI64, &AddI64Wrapping, &Min, &Max, &Append] {
                check_laws(operator, value.as_deref(), &operands, split)?;
            }
        }

        #[test]
        fn lists_keep_the_laws(
            value in prop::option::of(list()),
            operands in prop::collection::vec(list(), 1..9),
            split in any::<usize>(),
        ) {
            check_laws(&Union::of_len(2), value.as_deref(), &operands, split)?;
            let all: std::collections::BTreeSet<_> =
                value.iter().chain(&operands).flat_map(|list| list.chunks(2).map(<[u8]>::to_vec)).collect();
            let merged = operands.iter().fold(value, |value, operand| {
                Some(Union::of_len(2).apply(value.as_deref(), operand).expect("lists"))
            });
            prop_assert_eq!(merged.unwrap_or_default(), all.into_iter().flatten().collect::<Vec<_>>());
        }

        #[test]
        fn sums_are_those_of_numbers(value in any::<i64>(), operands in prop::collection::vec(any::<i64>(), 1..9)) {
            let bytes: Vec<_> = operands.iter().map(|operand| operand.to_be_bytes().to_vec()).collect();
            let sum = |operator: &dyn MergeOperator, value: [u8; 8]| {
                let whole = bytes.iter().cloned().reduce(|older, newer| operator.combine(&older, &newer)).expect("some");
                let sum = operator.apply(Some(&value), &whole).expect("a number");
                u64::from_be_bytes(sum.try_into().expect("8 bytes"))
            };
            let signed = operands.iter().fold(value, |sum, operand| sum.saturating_add(*operand));
            prop_assert_eq!(sum(&AddI64, value.to_be_bytes()), signed as u64);
            let unsigned = operands.iter().fold(value as u64, |sum, operand| sum.saturating_add(*operand as u64));
            prop_assert_eq!(sum(&AddU64, value.to_be_bytes()), unsigned);
            let wrapped = operands.iter().fold(value, |sum, operand| sum.wrapping_add(*operand));
            prop_assert_eq!(sum(&AddI64Wrapping, value.to_be_bytes()), wrapped as u64);
            prop_assert_eq!(sum(&AddU64Wrapping, value.to_be_bytes()), wrapped as u64);
        }
    }

    #[test]
    fn what_is_no_operand_is_refused() {
        for operator in [&AddU64 as &dyn MergeOperator, &AddU64Wrapping, &AddI64, &AddI64Wrapping] {
            assert!(operator.check(b"1234567").is_err() && operator.check(&[0; 31]).is_err());
            // What was combined has 32, and its ends in order.
            let is_sum = operator.check(&[0; 32]).is_ok();
            assert_eq!(is_sum, operator.name() == AddI64.name());
            let out_of_order = [[0; 16], [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]].concat();
            assert!(operator.check(&out_of_order).is_err());
            assert!(operator.apply(Some(b"seven"), &7u64.to_be_bytes()).is_err());
        }
        let union = Union::of_len(2);
        for bad in [&b"a"[..], b"bbaa", b"aaaa", b"aabbb"] {
            assert!(union.check(bad).is_err(), "{bad:?}");
            assert!(union.apply(Some(bad), b"aabb").is_err(), "{bad:?}");
        }
        for name in ["union of 0", "union of x", "union of 70000000000000000000", "sum"] {
            assert!(built_in(name).is_none(), "{name}");
        }
    }
}
