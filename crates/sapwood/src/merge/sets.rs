//! The least and the greatest, and what grows: lists of bytes and of elements.

use super::MergeOperator;
use std::cmp::Ordering;

/// Keeps the lowest of the values, as bytes are ordered: numbers must be unsigned and big-endian.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("weather.db"))?;
/// use sapwood::{KeyspaceOptions, merge};
///
/// let first = db.keyspace_with("first seen", KeyspaceOptions::new().merge(merge::Min))?;
/// first.merge("fram", "1893-06-24")?;
/// first.merge("fram", "1892-10-26")?;
/// assert_eq!(first.get("fram")?.as_deref(), Some(&b"1892-10-26"[..]));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Min;

/// Keeps the highest of the values, as bytes are ordered: numbers must be unsigned and big-endian.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("weather.db"))?;
/// use sapwood::{KeyspaceOptions, merge};
///
/// let last = db.keyspace_with("last seen", KeyspaceOptions::new().merge(merge::Max))?;
/// last.merge("fram", "1912-08-15")?;
/// last.merge("fram", "1893-06-24")?;
/// assert_eq!(last.get("fram")?.as_deref(), Some(&b"1912-08-15"[..]));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Max;

/// Appends bytes to the value.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("logs.db"))?;
/// use sapwood::{KeyspaceOptions, merge};
///
/// let log = db.keyspace_with("log", KeyspaceOptions::new().merge(merge::Append))?;
/// log.merge("fram", "anchor up\n")?;
/// log.merge("fram", "course north\n")?;
/// assert_eq!(log.get("fram")?.as_deref(), Some(&b"anchor up\ncourse north\n"[..]));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Append;

/// Adds elements to a sorted list in which each is once: all have the same length, and they ascend as bytes are ordered. An
/// operand is such a list, too.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("texts.db"))?;
/// use sapwood::{KeyspaceOptions, merge};
///
/// let texts_with = db.keyspace_with("texts with", KeyspaceOptions::new().merge(merge::Union::of_len(4)))?;
/// for text in [9u32, 2, 7, 2] {
///     texts_with.merge("whale", text.to_be_bytes())?;
/// }
/// let all = texts_with.get("whale")?.expect("there are some");
/// assert_eq!(all.as_ref(), [0, 0, 0, 2, 0, 0, 0, 7, 0, 0, 0, 9]);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Union {
    len: usize,
    name: String,
}

impl Union {
    const NAME: &str = "union of ";

    /// The union of lists whose elements have so many bytes each, at least 1.
    ///
    /// ```
    /// use sapwood::merge::{MergeOperator, Union};
    ///
    /// assert!(Union::of_len(2).check(b"aabb").is_ok());
    /// assert!(Union::of_len(2).check(b"bbaa").is_err()); // they must ascend
    /// ```
    pub fn of_len(len: usize) -> Self {
        let len = len.max(1);
        Self { len, name: format!("{}{len}", Self::NAME) }
    }

    /// The one of this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        let len = name.strip_prefix(Self::NAME)?.parse().ok().filter(|len| *len > 0)?;
        Some(Self::of_len(len)).filter(|union| union.name == name)
    }

    fn check_list(&self, list: &[u8]) -> Result<(), String> {
        if !list.len().is_multiple_of(self.len) {
            return Err(format!("a list of elements of {} bytes cannot have {} bytes", self.len, list.len()));
        }
        let elements = list.chunks_exact(self.len);
        match elements.clone().zip(elements.skip(1)).position(|(one, next)| one >= next) {
            None => Ok(()),
            Some(at) => Err(format!("its elements must ascend: number {at} is not below the one behind it")),
        }
    }
}

impl MergeOperator for Min {
    fn name(&self) -> &str {
        "min"
    }

    fn apply(&self, value: Option<&[u8]>, operand: &[u8]) -> Result<Vec<u8>, String> {
        Ok(value.unwrap_or(operand).min(operand).to_vec())
    }

    fn combine(&self, older: &[u8], newer: &[u8]) -> Vec<u8> {
        older.min(newer).to_vec()
    }
}

impl MergeOperator for Max {
    fn name(&self) -> &str {
        "max"
    }

    fn apply(&self, value: Option<&[u8]>, operand: &[u8]) -> Result<Vec<u8>, String> {
        Ok(value.unwrap_or(operand).max(operand).to_vec())
    }

    fn combine(&self, older: &[u8], newer: &[u8]) -> Vec<u8> {
        older.max(newer).to_vec()
    }
}

impl MergeOperator for Append {
    fn name(&self) -> &str {
        "append"
    }

    fn apply(&self, value: Option<&[u8]>, operand: &[u8]) -> Result<Vec<u8>, String> {
        Ok([value.unwrap_or_default(), operand].concat())
    }

    fn combine(&self, older: &[u8], newer: &[u8]) -> Vec<u8> {
        [older, newer].concat()
    }
}

impl MergeOperator for Union {
    fn name(&self) -> &str {
        &self.name
    }

    fn check(&self, operand: &[u8]) -> Result<(), String> {
        self.check_list(operand)
    }

    fn apply(&self, value: Option<&[u8]>, operand: &[u8]) -> Result<Vec<u8>, String> {
        let value = value.unwrap_or_default();
        self.check_list(value)?;
        Ok(self.combine(value, operand))
    }

    fn combine(&self, older: &[u8], newer: &[u8]) -> Vec<u8> {
        let mut all = Vec::with_capacity(older.len() + newer.len());
        let (mut older, mut newer) =
            (older.chunks_exact(self.len).peekable(), newer.chunks_exact(self.len).peekable());
        while let (Some(a), Some(b)) = (older.peek(), newer.peek()) {
            let order = a.cmp(b);
            all.extend_from_slice(if order == Ordering::Greater { b } else { a });
            if order != Ordering::Greater {
                older.next();
            }
            if order != Ordering::Less {
                newer.next();
            }
        }
        older.chain(newer).for_each(|element| all.extend_from_slice(element));
        all
    }
}
