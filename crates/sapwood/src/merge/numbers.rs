//! Sums.
//!
//! A sum that stays at the ends of its range depends on the order: with i64, MAX + 1 - 1 is MAX - 1. So operands of [`AddI64`] are
//! combined as functions: each is `x -> max(low, min(high, x + sum))`, and so is one after the other.

use super::MergeOperator;

/// Adds numbers: u64, big-endian. The sum stays at `u64::MAX`.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("pages.db"))?;
/// use sapwood::{KeyspaceOptions, merge};
///
/// let hits = db.keyspace_with("hits", KeyspaceOptions::new().merge(merge::AddU64))?;
/// hits.insert("index.html", (u64::MAX - 1).to_be_bytes())?;
/// hits.merge("index.html", 7u64.to_be_bytes())?;
/// assert_eq!(hits.get("index.html")?.as_deref(), Some(&u64::MAX.to_be_bytes()[..]));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct AddU64;

/// Adds numbers: u64, big-endian. The sum wraps around.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("sums.db"))?;
/// use sapwood::{KeyspaceOptions, merge};
///
/// let sums = db.keyspace_with("sums", KeyspaceOptions::new().merge(merge::AddU64Wrapping))?;
/// sums.merge("check", u64::MAX.to_be_bytes())?;
/// sums.merge("check", 3u64.to_be_bytes())?;
/// assert_eq!(sums.get("check")?.as_deref(), Some(&2u64.to_be_bytes()[..]));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct AddU64Wrapping;

/// Adds numbers: i64, big-endian. The sum stays at the ends of the range, after each operand.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("accounts.db"))?;
/// use sapwood::{KeyspaceOptions, merge};
///
/// let accounts = db.keyspace_with("accounts", KeyspaceOptions::new().merge(merge::AddI64))?;
/// accounts.merge("amundsen", 10i64.to_be_bytes())?;
/// accounts.merge("amundsen", (-30i64).to_be_bytes())?;
/// assert_eq!(accounts.get("amundsen")?.as_deref(), Some(&(-20i64).to_be_bytes()[..]));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct AddI64;

/// Adds numbers: i64, big-endian. The sum wraps around.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("sums.db"))?;
/// use sapwood::{KeyspaceOptions, merge};
///
/// let sums = db.keyspace_with("sums", KeyspaceOptions::new().merge(merge::AddI64Wrapping))?;
/// sums.merge("check", i64::MAX.to_be_bytes())?;
/// sums.merge("check", 1i64.to_be_bytes())?;
/// assert_eq!(sums.get("check")?.as_deref(), Some(&i64::MIN.to_be_bytes()[..]));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct AddI64Wrapping;

fn check_number(operand: &[u8]) -> Result<(), String> {
    number(operand).map(drop)
}

fn number(bytes: &[u8]) -> Result<[u8; 8], String> {
    bytes.try_into().map_err(|_| format!("a number has 8 bytes, not {}", bytes.len()))
}

/// What the number of a combined operand is; it was checked when it came.
fn of_operand(bytes: &[u8]) -> [u8; 8] {
    number(bytes).unwrap_or_default()
}

fn sum(
    value: Option<&[u8]>,
    operand: &[u8],
    add: impl FnOnce([u8; 8], [u8; 8]) -> [u8; 8],
) -> Result<Vec<u8>, String> {
    let value = value.map_or(Ok([0; 8]), number)?;
    Ok(add(value, number(operand)?).to_vec())
}

fn add_unsigned(a: [u8; 8], b: [u8; 8]) -> [u8; 8] {
    u64::from_be_bytes(a).saturating_add(u64::from_be_bytes(b)).to_be_bytes()
}

fn add_wrapping(a: [u8; 8], b: [u8; 8]) -> [u8; 8] {
    u64::from_be_bytes(a).wrapping_add(u64::from_be_bytes(b)).to_be_bytes()
}

/// Operators whose operands are combined as they are applied.
macro_rules! sums {
    ($($operator:ident, $name:literal, $add:ident;)*) => {$(
        impl MergeOperator for $operator {
            fn name(&self) -> &str {
                $name
            }

            fn check(&self, operand: &[u8]) -> Result<(), String> {
                check_number(operand)
            }

            fn apply(&self, value: Option<&[u8]>, operand: &[u8]) -> Result<Vec<u8>, String> {
                sum(value, operand, $add)
            }

            fn combine(&self, older: &[u8], newer: &[u8]) -> Vec<u8> {
                $add(of_operand(older), of_operand(newer)).to_vec()
            }
        }
    )*};
}

sums! {
    AddU64, "add u64", add_unsigned;
    AddU64Wrapping, "add u64 wrapping", add_wrapping;
    AddI64Wrapping, "add i64 wrapping", add_wrapping;
}

/// Some operands of [`AddI64`], one after the other. As bytes: a single one has 8, several have 32.
#[derive(Clone, Copy)]
struct Clamped {
    sum: i128,
    low: i64,
    high: i64,
}

impl Clamped {
    fn of(bytes: &[u8]) -> Option<Self> {
        if let Ok(number) = number(bytes) {
            return Some(Self { sum: i64::from_be_bytes(number).into(), low: i64::MIN, high: i64::MAX });
        }
        let (sum, ends) = bytes.split_first_chunk()?;
        let (low, high) = ends.split_first_chunk()?;
        let (low, high) = (i64::from_be_bytes(*low), i64::from_be_bytes(high.try_into().ok()?));
        // Whoever wrote these bytes had both ends in order.
        (low <= high).then_some(Self { sum: i128::from_be_bytes(*sum), low, high })
    }

    fn add_to(self, value: i64) -> i64 {
        let sum = i128::from(value).saturating_add(self.sum);
        sum.clamp(self.low.into(), self.high.into()) as i64
    }

    fn then(self, next: Self) -> Self {
        let sum = self.sum.saturating_add(next.sum);
        Self { sum, low: next.add_to(self.low), high: next.add_to(self.high) }
    }

    fn bytes(self) -> Vec<u8> {
        [&self.sum.to_be_bytes()[..], &self.low.to_be_bytes(), &self.high.to_be_bytes()].concat()
    }
}

impl MergeOperator for AddI64 {
    fn name(&self) -> &str {
        "add i64"
    }

    fn check(&self, operand: &[u8]) -> Result<(), String> {
        Clamped::of(operand).map_or_else(|| check_number(operand), |_| Ok(()))
    }

    fn apply(&self, value: Option<&[u8]>, operand: &[u8]) -> Result<Vec<u8>, String> {
        let value = i64::from_be_bytes(value.map_or(Ok([0; 8]), number)?);
        let operand = Clamped::of(operand).ok_or("a sum has 32 bytes")?;
        Ok(operand.add_to(value).to_be_bytes().to_vec())
    }

    fn combine(&self, older: &[u8], newer: &[u8]) -> Vec<u8> {
        match (Clamped::of(older), Clamped::of(newer)) {
            (Some(older), Some(newer)) => older.then(newer).bytes(),
            // Not of this operator: it will fail when it is applied.
            (None, _) => older.to_vec(),
            (_, None) => newer.to_vec(),
        }
    }
}
