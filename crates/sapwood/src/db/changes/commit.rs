//! A commit of the change feed: its operations, with keys and values as users gave them.

use crate::db::large_values::stored::HeadRef;
use crate::error::{Error, Result};
use crate::expiry::{Expiry, split};
use crate::merging::Stored;
use crate::operation::{KeyspaceId, Operation, OperationRef, Operations};
use crate::wal::{Record, file_name};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// What is known of a keyspace.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// `None`: it was dropped, and that was told, or users do not know it.
    pub name: Option<Arc<str>>,
    pub expires: bool,
    pub merges: bool,
    pub large: bool,
}

/// All that is known of keyspaces.
pub(super) type KnownKeyspaces = BTreeMap<KeyspaceId, Known>;

/// Changes that were committed together: a single change, a batch or a transaction. See [`Changes`](crate::Changes).
///
/// Memory: its keys and values, once, for as long as it is there.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::builder().keep_changes(1 << 20).open(dir.path().join("ships.db"))?;
/// # let ships = db.keyspace("ships")?;
/// use sapwood::{Change, CommittedOperation};
///
/// let (_, position) = db.snapshot_for_changes()?;
/// db.batch().insert(&ships, "fram", "1892").remove(&ships, "beagle").commit()?;
/// let Some(Change::Commit(commit)) = db.changes(&position)?.next().transpose()? else { panic!("a commit") };
/// assert_eq!((commit.first_sequence(), commit.last_sequence()), (1, 2));
/// for operation in commit.operations() {
///     match operation {
///         CommittedOperation::Insert { keyspace, key, value, .. } => {
///             assert_eq!((keyspace.name, key, value), ("ships", &b"fram"[..], &b"1892"[..]));
///         }
///         CommittedOperation::Remove { key, .. } => assert_eq!(key, b"beagle"),
///         other => panic!("{other:?}"),
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Commit {
    record: Record,
    keyspaces: Arc<KnownKeyspaces>,
}

/// A keyspace of the change feed.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::builder().keep_changes(1 << 20).open(dir.path().join("ships.db"))?;
/// use sapwood::{Change, FeedKeyspace};
///
/// let position = db.oldest_change()?;
/// db.keyspace("ships")?.insert("fram", "1892")?;
/// for change in db.changes(&position)? {
///     let Change::Commit(commit) = change? else { continue };
///     let keyspaces: Vec<FeedKeyspace<'_>> = commit.operations().map(|operation| operation.keyspace()).collect();
///     assert_eq!(keyspaces[0].name, "ships");
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedKeyspace<'a> {
    /// Its number, which no other keyspace of this database ever has.
    pub id: u32,
    /// Its name: the one that it has now, or had when it was dropped. If it is renamed between, an event tells that later.
    pub name: &'a str,
}

/// One change of a [`Commit`].
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::builder().keep_changes(1 << 20).open(dir.path().join("ships.db"))?;
/// # let ships = db.keyspace("ships")?;
/// use sapwood::{Change, CommittedOperation};
///
/// let (_, position) = db.snapshot_for_changes()?;
/// ships.remove_range("a".."c")?;
/// let Some(Change::Commit(commit)) = db.changes(&position)?.next().transpose()? else { panic!("a commit") };
/// let operations: Vec<_> = commit.operations().collect();
/// assert!(matches!(operations[..], [CommittedOperation::RemoveRange { from: b"a", to: Some(b"c"), .. }]));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CommittedOperation<'a> {
    /// A record has this value from then on.
    Insert {
        /// Where.
        keyspace: FeedKeyspace<'a>,
        /// Its key.
        key: &'a [u8],
        /// Its value.
        value: &'a [u8],
        /// When it expires, which is told by no other change: [`Expiry::At`] a time, or [`Expiry::Never`].
        expiry: Expiry,
    },
    /// A record has a value from then on that is [stored apart](crate::LargeValues), and is not told: to be read from the database.
    InsertLarge {
        /// Where.
        keyspace: FeedKeyspace<'a>,
        /// Its key.
        key: &'a [u8],
        /// Bytes of the value.
        len: u64,
    },
    /// There is no record of this key from then on.
    Remove {
        /// Where.
        keyspace: FeedKeyspace<'a>,
        /// The key.
        key: &'a [u8],
    },
    /// There are no records with these keys from then on.
    RemoveRange {
        /// Where.
        keyspace: FeedKeyspace<'a>,
        /// The first key; empty: from the first record on.
        from: &'a [u8],
        /// The key behind the last one; `None`: to the last record.
        to: Option<&'a [u8]>,
    },
    /// An operand goes into a record, by the keyspace's [merge operator](crate::merge).
    Merge {
        /// Where.
        keyspace: FeedKeyspace<'a>,
        /// The record's key.
        key: &'a [u8],
        /// The operand.
        operand: &'a [u8],
    },
}

impl<'a> CommittedOperation<'a> {
    /// The keyspace.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::builder().keep_changes(1 << 20).open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// # use sapwood::Change;
    /// let (_, position) = db.snapshot_for_changes()?;
    /// ships.insert("fram", "1892")?;
    /// let Some(Change::Commit(commit)) = db.changes(&position)?.next().transpose()? else { panic!("a commit") };
    /// assert!(commit.operations().all(|operation| operation.keyspace().name == "ships"));
    /// # Ok(()) }
    /// ```
    pub fn keyspace(&self) -> FeedKeyspace<'a> {
        match self {
            Self::Insert { keyspace, .. }
            | Self::InsertLarge { keyspace, .. }
            | Self::Remove { keyspace, .. }
            | Self::RemoveRange { keyspace, .. }
            | Self::Merge { keyspace, .. } => *keyspace,
        }
    }
}

impl Commit {
    /// The commit that a record of the log is. `keyspaces` has all that it changes, and few others.
    pub(super) fn of(record: Record, keyspaces: Arc<KnownKeyspaces>) -> Result<Self> {
        let wrong = |what: &str| {
            Error::corrupt(file_name(record.generation), 0, "a record of the log", "whole operations", what)
        };
        let mut count = 0;
        for operation in Operations::new(&record.body) {
            let operation = operation.map_err(wrong)?;
            let is_dropped = known(&keyspaces, operation.keyspace()).is_none();
            if !is_dropped && seen(&keyspaces, operation).is_none() {
                return Err(wrong("a value that is not as its keyspace stores it"));
            }
            count += 1;
        }
        if count != record.count {
            return Err(wrong("another number of operations than it says"));
        }
        Ok(Self { record, keyspaces })
    }

    /// The sequence number of its first operation.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::builder().keep_changes(1 << 20).open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// # use sapwood::Change;
    /// let (_, position) = db.snapshot_for_changes()?;
    /// ships.insert("fram", "1892")?;
    /// let Some(Change::Commit(commit)) = db.changes(&position)?.next().transpose()? else { panic!("a commit") };
    /// assert_eq!(commit.first_sequence(), position.sequence() + 1);
    /// # Ok(()) }
    /// ```
    pub fn first_sequence(&self) -> u64 {
        self.record.first_seq
    }

    /// The sequence number of its last operation.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::builder().keep_changes(1 << 20).open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// # use sapwood::Change;
    /// let (_, position) = db.snapshot_for_changes()?;
    /// db.batch().insert(&ships, "fram", "1892").insert(&ships, "beagle", "1820").commit()?;
    /// let Some(Change::Commit(commit)) = db.changes(&position)?.next().transpose()? else { panic!("a commit") };
    /// assert_eq!(commit.last_sequence(), commit.first_sequence() + 1);
    /// # Ok(()) }
    /// ```
    pub fn last_sequence(&self) -> u64 {
        self.record.first_seq + u64::from(self.record.count) - 1
    }

    /// Its operations, in their order. Those of a keyspace that was dropped, as was told before, are left out.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::builder().keep_changes(1 << 20).open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// # use sapwood::Change;
    /// let (_, position) = db.snapshot_for_changes()?;
    /// db.batch().insert(&ships, "fram", "1892").remove(&ships, "fram").commit()?;
    /// let Some(Change::Commit(commit)) = db.changes(&position)?.next().transpose()? else { panic!("a commit") };
    /// assert_eq!(commit.operations().count(), 2);
    /// # Ok(()) }
    /// ```
    pub fn operations(&self) -> impl Iterator<Item = CommittedOperation<'_>> {
        Operations::new(&self.record.body)
            .map_while(|operation| operation.ok())
            .filter_map(|operation| seen(&self.keyspaces, operation))
    }
}

fn known(keyspaces: &KnownKeyspaces, id: KeyspaceId) -> Option<(FeedKeyspace<'_>, &Known)> {
    let known = keyspaces.get(&id)?;
    Some((FeedKeyspace { id: id.0, name: known.name.as_deref()? }, known))
}

/// An operation as users see it; `None` if the keyspace was dropped, or if the value is not as the keyspace stores it.
fn seen<'a>(keyspaces: &'a KnownKeyspaces, operation: Operation<'a>) -> Option<CommittedOperation<'a>> {
    let (keyspace, known) = known(keyspaces, operation.keyspace())?;
    Some(match operation {
        Operation::RemoveRange(range) => {
            CommittedOperation::RemoveRange { keyspace, from: range.from, to: range.to }
        }
        Operation::Merge(OperationRef { key, value, .. }) => {
            CommittedOperation::Merge { keyspace, key, operand: value.unwrap_or_default() }
        }
        Operation::Change(OperationRef { key, value: None, .. }) => {
            CommittedOperation::Remove { keyspace, key }
        }
        Operation::Change(OperationRef { key, value: Some(stored), .. }) => {
            let (value, expiry) = if known.large {
                match HeadRef::decode(stored)? {
                    HeadRef::Short(value) => (value, Expiry::Never),
                    HeadRef::Long { len, .. } => {
                        return Some(CommittedOperation::InsertLarge { keyspace, key, len });
                    }
                }
            } else if known.merges {
                let Stored::Value { value, .. } = Stored::decode(stored)? else { return None };
                (value, Expiry::Never)
            } else if known.expires {
                let (stamp, value) = split(stored)?;
                (value, Expiry::of(stamp))
            } else {
                (stored, Expiry::Never)
            };
            CommittedOperation::Insert { keyspace, key, value, expiry }
        }
    })
}

impl fmt::Debug for Commit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Commit({} to {})", self.first_sequence(), self.last_sequence())
    }
}

#[cfg(test)]
mod tests {
    use crate::{Change, CommittedOperation, Database};
    use psync::Simulated;
    use std::sync::Arc;

    /// Each commit had a table of all keyspaces that were told before it.
    #[test]
    fn a_commit_holds_the_keyspaces_that_it_changes() {
        const COUNT: usize = 200;
        let builder = Database::builder().memory(4 << 20).background_threads(0).keep_changes(1 << 20);
        let db = builder.open_on(Arc::new(Simulated::new(1))).unwrap();
        let names: Vec<_> = (0..COUNT).map(|number| format!("keyspace {number}")).collect();
        for name in &names {
            db.keyspace(name).unwrap().insert("key", name).unwrap();
        }
        let mut changes = db.changes(&db.oldest_change().unwrap()).unwrap();
        let mut commits = Vec::new();
        for change in changes.by_ref() {
            if let Change::Commit(commit) = change.unwrap() {
                commits.push(commit);
            }
        }
        assert_eq!(commits.len(), COUNT);
        for (commit, name) in commits.iter().zip(&names) {
            assert_eq!(commit.keyspaces.len(), 1);
            let told: Vec<_> = commit.operations().collect();
            let [CommittedOperation::Insert { keyspace, value, .. }] = told[..] else { panic!("{told:?}") };
            assert_eq!((keyspace.name, value), (&name[..], name.as_bytes()));
        }
        // Of those that are gone nothing stays.
        for name in &names[1..] {
            assert!(db.drop_keyspace(name).unwrap());
        }
        assert_eq!(changes.by_ref().filter(|change| change.is_ok()).count(), COUNT - 1);
        assert_eq!(changes.known.len(), 1);
        db.rename_keyspace(&names[0], "another").unwrap();
        db.keyspace("another").unwrap().insert("key", "value").unwrap();
        assert!(matches!(changes.next(), Some(Ok(Change::KeyspaceRenamed { .. }))));
        let Some(Ok(Change::Commit(commit))) = changes.next() else { panic!("a commit") };
        assert!(commit.operations().all(|operation| operation.keyspace().name == "another"));
        assert!(commits[0].operations().all(|operation| operation.keyspace().name == names[0]));
    }
}
