//! A place among the records of a keyspace that can be moved in both directions.
//!
//! Invariant: all that a cursor shows is as of one moment, that of its snapshot; in a transaction with what this had written
//! when the cursor was made, and what it shows is in the transaction's read set before the caller has it.

use crate::db::key_bounds::KeyBounds;
use crate::db::keyspace::Keyspace;
use crate::db::snapshot::Snapshot;
use crate::db::transaction::Transaction;
use crate::db::transaction::range::{TransactionRange, TransactionView};
use crate::error::{Error, Result};
use crate::iter::Range;
use crate::tree::range::Direction;
use crate::value::{Kept, Key, Value};
use bytes::Bytes;
use std::ops::Bound;

/// A place among the records of a keyspace: before the first, at one, or behind the last. Made by [`Keyspace::cursor`],
/// [`Snapshot::cursor`] and [`Transaction::cursor`]; begins before the first.
///
/// It sees the keyspace as of the moment at which it was made, a transaction's with what that had written, and keeps alive what a
/// [`Snapshot`] does. Steps in one direction read
/// ahead, as [`Keyspace::range`] does; a step in the other direction, and a seek, begin with a search. For a walk in one
/// direction a range is shorter to write and as fast.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # let ships = db.keyspace("ships")?;
/// for name in ["beagle", "fram", "titanic"] {
///     ships.insert(name, "afloat")?;
/// }
/// let mut cursor = ships.cursor();
/// assert!(cursor.seek("c")?.is_some_and(|(name, _)| name == b"fram")); // the first that is not before "c"
/// assert!(cursor.prev()?.is_some_and(|(name, _)| name == b"beagle"));
/// assert!(cursor.prev()?.is_none()); // before the first
/// assert!(cursor.next()?.is_some_and(|(name, _)| name == b"beagle"));
/// # Ok(()) }
/// ```
pub struct Cursor {
    view: View,
    keyspace: Keyspace,
    position: Place,
    /// The record at which it is, if it is at one. A cursor may stand for long.
    key: Kept,
    value: Kept,
    /// What comes behind the place in this direction.
    walk: Option<(Direction, Walk)>,
}

/// What a cursor sees.
enum View {
    Snapshot(Snapshot),
    Transaction(TransactionView),
}

#[expect(clippy::large_enum_variant, reason = "a cursor has one, and each seek makes another")]
enum Walk {
    Snapshot(Range),
    Transaction(TransactionRange),
}

impl View {
    fn walk(&self, keyspace: &Keyspace, (low, high): (Bound<Bytes>, Bound<Bytes>)) -> Walk {
        match self {
            Self::Snapshot(snapshot) => Walk::Snapshot(snapshot.between(keyspace, low, high)),
            Self::Transaction(view) => Walk::Transaction(view.between(keyspace, (low, high))),
        }
    }
}

impl Walk {
    fn advance(&mut self, direction: Direction) -> Option<Result<(Key, Value)>> {
        match (self, direction) {
            (Self::Snapshot(range), Direction::Up) => range.next(),
            (Self::Snapshot(range), Direction::Down) => range.next_back(),
            (Self::Transaction(range), Direction::Up) => range.next(),
            (Self::Transaction(range), Direction::Down) => range.next_back(),
        }
    }
}

#[derive(Clone, Copy)]
enum Place {
    BeforeFirst,
    AtRecord,
    BehindLast,
}

impl Cursor {
    fn new(view: View, keyspace: &Keyspace) -> Self {
        let (key, value) = (Kept::default(), Kept::default());
        Self { view, keyspace: keyspace.clone(), position: Place::BeforeFirst, key, value, walk: None }
    }

    /// Goes to the first record whose key is not less than `key`, or behind the last.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// let mut cursor = ships.cursor();
    /// assert!(cursor.seek("beagle")?.is_some_and(|(name, _)| name == b"fram"));
    /// assert!(cursor.seek("titanic")?.is_none());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`]. The cursor stays where it is; behind [`Error::MergeFailed`] the next step in the same direction goes on, as a range does.
    pub fn seek(&mut self, key: impl AsRef<[u8]>) -> Result<Option<(&[u8], &[u8])>> {
        self.walk(Direction::Up, (Bound::Included(key.as_ref()), Bound::Unbounded))
    }

    /// Goes to the last record whose key is not greater than `key`, or before the first.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("prices.db"))?;
    /// # let prices = db.keyspace("prices")?;
    /// prices.insert("2026-01-01", "12")?;
    /// prices.insert("2026-07-01", "14")?;
    /// let mut cursor = prices.cursor();
    /// assert!(cursor.seek_for_prev("2026-11-26")?.is_some_and(|(_, price)| price == b"14")); // the price of that day
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Cursor::seek`].
    pub fn seek_for_prev(&mut self, key: impl AsRef<[u8]>) -> Result<Option<(&[u8], &[u8])>> {
        self.walk(Direction::Down, (Bound::Unbounded, Bound::Included(key.as_ref())))
    }

    /// Goes to the first record, or behind the last if there is none.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// assert!(ships.cursor().seek_to_first()?.is_some_and(|(_, year)| year == b"1892"));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Cursor::seek`].
    pub fn seek_to_first(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        self.walk(Direction::Up, ..)
    }

    /// Goes to the last record, or before the first if there is none.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// assert!(ships.cursor().seek_to_last()?.is_some_and(|(_, year)| year == b"1892"));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Cursor::seek`].
    pub fn seek_to_last(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        self.walk(Direction::Down, ..)
    }

    /// Goes to the next record; from before the first to the first, from the last behind it, where it stays.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// let mut cursor = ships.cursor();
    /// while let Some((name, year)) = cursor.next()? {
    ///     println!("{name:?} {year:?}");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Cursor::seek`].
    #[expect(clippy::should_implement_trait, reason = "it lends the record, which an iterator cannot")]
    pub fn next(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        self.step(Direction::Up)
    }

    /// Goes to the previous record; from behind the last to the last, from the first before it, where it stays.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// let mut cursor = ships.cursor();
    /// assert!(cursor.seek("titanic")?.is_none()); // behind the last
    /// assert!(cursor.prev()?.is_some_and(|(name, _)| name == b"fram"));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Cursor::seek`].
    pub fn prev(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        self.step(Direction::Down)
    }

    /// The record at which the cursor is, if it is at one.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// let mut cursor = ships.cursor();
    /// assert!(cursor.record().is_none());
    /// cursor.next()?;
    /// assert_eq!(cursor.record(), Some((&b"fram"[..], &b"1892"[..])));
    /// # Ok(()) }
    /// ```
    pub fn record(&self) -> Option<(&[u8], &[u8])> {
        matches!(self.position, Place::AtRecord).then(|| (self.key.bytes(), self.value.bytes()))
    }

    fn step(&mut self, direction: Direction) -> Result<Option<(&[u8], &[u8])>> {
        if self.walk.as_ref().is_some_and(|(of, _)| *of == direction) {
            return self.advance();
        }
        let here = || Bound::Excluded(Bytes::copy_from_slice(self.key.bytes()));
        let bounds = match (self.position, direction) {
            (Place::BeforeFirst, Direction::Down) | (Place::BehindLast, Direction::Up) => {
                return Ok(None);
            }
            (Place::AtRecord, Direction::Up) => (here(), Bound::Unbounded),
            (Place::AtRecord, Direction::Down) => (Bound::Unbounded, here()),
            (Place::BeforeFirst | Place::BehindLast, _) => (Bound::Unbounded, Bound::Unbounded),
        };
        self.walk_between(direction, bounds)
    }

    /// Goes to the first record within bounds that comes in this direction.
    fn walk(&mut self, direction: Direction, bounds: impl KeyBounds) -> Result<Option<(&[u8], &[u8])>> {
        let own = |bound: Bound<&[u8]>| bound.map(Bytes::copy_from_slice);
        self.walk_between(direction, (own(bounds.start()), own(bounds.end())))
    }

    fn walk_between(
        &mut self,
        direction: Direction,
        bounds: (Bound<Bytes>, Bound<Bytes>),
    ) -> Result<Option<(&[u8], &[u8])>> {
        self.walk = Some((direction, self.view.walk(&self.keyspace, bounds)));
        self.advance()
    }

    fn advance(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        let Some((direction, walk)) = &mut self.walk else { return Ok(None) };
        let over = match direction {
            Direction::Up => Place::BehindLast,
            Direction::Down => Place::BeforeFirst,
        };
        self.position = match walk.advance(*direction) {
            Some(Ok((Value(key), Value(value)))) => {
                self.key.keep(&key);
                self.value.keep(&value);
                Place::AtRecord
            }
            Some(Err(error)) => {
                // One that cannot be merged keeps nobody from those behind it.
                if !matches!(error, Error::MergeFailed { .. }) {
                    self.walk = None;
                }
                return Err(error);
            }
            None => {
                (self.key, self.value) = Default::default();
                over
            }
        };
        Ok(self.record())
    }
}

impl std::fmt::Debug for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.position, self.record()) {
            (Place::BeforeFirst, _) => write!(f, "Cursor({:?}, before the first)", self.keyspace),
            (Place::BehindLast, _) => write!(f, "Cursor({:?}, behind the last)", self.keyspace),
            (Place::AtRecord, record) => write!(f, "Cursor({:?}, {record:?})", self.keyspace),
        }
    }
}

impl Transaction {
    /// A cursor, before the first record. See [`Cursor`]. It has what the transaction had written when it was made, as a
    /// [`range`](Self::range) has. What it goes to counts as read, also that there is nothing between there and the place or key
    /// from which it went.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("prices.db"))?;
    /// # let prices = db.keyspace("prices")?;
    /// prices.insert("2026-01-01", "12")?;
    /// db.transact(|tx| {
    ///     tx.insert(&prices, "2026-07-01", "14")?;
    ///     let mut cursor = tx.cursor(&prices);
    ///     assert!(cursor.seek_for_prev("2026-11-26")?.is_some_and(|(_, price)| price == b"14"));
    ///     assert!(cursor.prev()?.is_some_and(|(_, price)| price == b"12"));
    ///     Ok(())
    /// })?;
    /// # Ok(()) }
    /// ```
    pub fn cursor(&self, keyspace: &Keyspace) -> Cursor {
        Cursor::new(View::Transaction(self.view(keyspace)), keyspace)
    }
}

impl Snapshot {
    /// A cursor, before the first record. See [`Cursor`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// let before = db.snapshot();
    /// ships.insert("fram", "1892")?;
    /// assert!(before.cursor(&ships).next()?.is_none());
    /// # Ok(()) }
    /// ```
    pub fn cursor(&self, keyspace: &Keyspace) -> Cursor {
        Cursor::new(View::Snapshot(self.clone()), keyspace)
    }
}

impl Keyspace {
    /// A cursor over the records as they are now, before the first. See [`Cursor`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// let mut cursor = ships.cursor();
    /// assert!(cursor.seek_for_prev("gorch fock")?.is_some_and(|(name, _)| name == b"fram"));
    /// # Ok(()) }
    /// ```
    pub fn cursor(&self) -> Cursor {
        Snapshot::new(self.handle().clone()).cursor(self)
    }
}
