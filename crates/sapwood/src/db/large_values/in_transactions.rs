//! Large values in transactions and snapshots.

use super::LargeValues;
use super::reader::LargeValueReader;
use super::staged::{StagedValue, Staging};
use super::stored::{Head, LargeId};
use crate::db::keyspace::Keyspace;
use crate::db::snapshot::Snapshot;
use crate::db::transaction::Transaction;
use crate::db::transaction::writes::Savepoint;
use crate::error::{Error, Result};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Staged values that a transaction inserts.
#[derive(Default)]
pub(in crate::db) struct Staged {
    values: Vec<Arc<Staging>>,
    /// How many there were at each savepoint.
    marks: Vec<(Savepoint, usize)>,
}

impl Staged {
    pub fn mark(&mut self, savepoint: Savepoint) {
        self.marks.push((savepoint, self.values.len()));
    }

    /// Forgets what was inserted since a savepoint, and later ones: another value of the key may have the same bytes.
    pub fn roll_back_to(&mut self, savepoint: Savepoint) {
        if let Some(at) = self.marks.iter().position(|(mark, _)| *mark == savepoint) {
            self.values.truncate(self.marks[at].1);
            self.marks.truncate(at + 1);
        }
    }

    /// Forgets a savepoint and later ones.
    pub fn release(&mut self, savepoint: Savepoint) {
        if let Some(at) = self.marks.iter().position(|(mark, _)| *mark == savepoint) {
            self.marks.truncate(at);
        }
    }

    /// Those of them that a commit of what is `written` uses up: it names them, or removes their chunks, since they were replaced or removed
    /// after they were inserted. Not those that were rolled back.
    pub fn used_up(mut self, written: impl Fn(&Keyspace, &[u8]) -> Option<Option<Bytes>>) -> Self {
        let is_named = |staging: &Staging| {
            let head = written(&staging.heads, &staging.key).flatten();
            head.is_some_and(|head| head == staging.head.encode())
        };
        let is_used_up = |staging: &Arc<Staging>| is_named(staging) || staging.is_removed(&written);
        self.values.retain(is_used_up);
        self
    }

    /// The commit is there.
    pub fn note_used_up(&self) {
        self.values.iter().for_each(|staging| staging.is_used_up.store(true, Relaxed));
    }
}

impl Snapshot {
    /// A reader of the value of `key`, as [`LargeValues::get_reader`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// let photos = db.large_values("photos")?;
    /// photos.insert("fram", vec![7; 1_000_000])?;
    /// let before = db.snapshot();
    /// photos.remove("fram")?;
    /// assert!(before.large_value_reader(&photos, "fram")?.is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn large_value_reader(
        &self,
        values: &LargeValues,
        key: impl AsRef<[u8]>,
    ) -> Result<Option<LargeValueReader>> {
        let Some(stored) = self.get(&values.heads, key)? else { return Ok(None) };
        let head = Head::decode(&stored.0)?;
        Ok(Some(LargeValueReader::new(self.clone(), values, head)))
    }
}

impl Transaction {
    /// Gives a staged value to its key. The key counts as read. Should the transaction be repeated, the value need not be staged
    /// again.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// let (photos, ships) = (db.large_values("photos")?, db.keyspace("ships")?);
    /// let staged = photos.stage("fram", &vec![7; 1_000_000][..])?;
    /// let mut tx = db.transaction()?;
    /// tx.insert(&ships, "fram", "has a photo")?;
    /// tx.insert_staged(&staged)?;
    /// tx.commit()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::StagedTwice`] if it was committed before, or was inserted by this transaction and replaced or removed after that;
    /// [`Error::Foreign`]; and as [`insert`](Self::insert) and [`get`](Self::get). What was written is then as before.
    pub fn insert_staged(&mut self, staged: &StagedValue) -> Result<()> {
        let staging = &staged.staging;
        if !Arc::ptr_eq(staging.handle(), self.handle()) {
            return Err(Error::Foreign { what: "staged value" });
        }
        if staging.is_used_up.load(Relaxed) || staging.is_removed(|keyspace, key| self.written(keyspace, key))
        {
            return Err(Error::StagedTwice);
        }
        // A commit is visible before its thread has noted it. One that is not yet conflicts with this transaction, which reads the key.
        if let Some(id) = staging.head.id()
            && self.written(&staging.chunks, &id.begun()).is_none()
            && !staging.chunks.contains(id.begun()).map_err(|error| staging.heads.named(error))?
        {
            return Err(Error::StagedTwice);
        }
        self.write_all_or_none(|tx| {
            tx.remove_chunks_of(&staging.heads, &staging.chunks, &staging.key, staging.head.id())?;
            tx.insert(&staging.heads, &staging.key, staging.head.encode())?;
            match staging.head.id() {
                Some(id) => tx.remove(&staging.chunks, id.begun()),
                None => Ok(()),
            }
        })?;
        self.staged.values.push(Arc::clone(staging));
        Ok(())
    }

    /// Removes the value of `key`. The key counts as read. Returns whether there was one.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// let (photos, ships) = (db.large_values("photos")?, db.keyspace("ships")?);
    /// photos.insert("fram", vec![7; 1_000_000])?;
    /// db.transact(|tx| {
    ///     tx.remove(&ships, "fram")?;
    ///     tx.remove_large_value(&photos, "fram")
    /// })?;
    /// assert!(photos.len_of("fram")?.is_none());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`insert`](Self::insert) and [`get`](Self::get). What was written is then as before.
    pub fn remove_large_value(&mut self, values: &LargeValues, key: impl AsRef<[u8]>) -> Result<bool> {
        self.write_all_or_none(|tx| {
            let there = tx.remove_chunks_of(&values.heads, &values.chunks, key.as_ref(), None)?;
            if there {
                tx.remove(&values.heads, key)?;
            }
            Ok(there)
        })
    }

    /// A reader of the value of `key`, as [`LargeValues::get_reader`], also of one that the transaction has inserted. The key counts as read.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// let photos = db.large_values("photos")?;
    /// let staged = photos.stage("fram", &vec![7; 1_000_000][..])?;
    /// let mut tx = db.transaction()?;
    /// tx.insert_staged(&staged)?;
    /// assert_eq!(tx.large_value_reader(&photos, "fram")?.map(|reader| reader.len()), Some(1_000_000));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn large_value_reader(
        &self,
        values: &LargeValues,
        key: impl AsRef<[u8]>,
    ) -> Result<Option<LargeValueReader>> {
        let Some(stored) = self.get(&values.heads, &key)? else { return Ok(None) };
        let head = Head::decode(&stored.0)?;
        // What the transaction inserts was perhaps written after its moment; until it is named it does not change.
        let is_own = self.written(&values.heads, key.as_ref()).is_some();
        let snapshot =
            if is_own { Snapshot::new(Arc::clone(self.handle())) } else { self.snapshot().clone() };
        Ok(Some(LargeValueReader::new(snapshot, values, head)))
    }

    /// Writes what belongs together: of several writes the second may be the one for which there is no room any more.
    fn write_all_or_none<T>(&mut self, write: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let savepoint = self.savepoint();
        let written = write(self);
        if written.is_err() {
            self.roll_back_to(savepoint)?;
        }
        self.release(savepoint)?;
        written
    }

    /// Removes the chunks of the value of `key`, unless they have this id. Returns whether there is a value.
    fn remove_chunks_of(
        &mut self,
        heads: &Keyspace,
        chunks: &Keyspace,
        key: &[u8],
        keep: Option<LargeId>,
    ) -> Result<bool> {
        let Some(stored) = self.get(heads, key)? else { return Ok(false) };
        if let Some(id) = Head::decode(&stored.0)?.id().filter(|id| Some(*id) != keep) {
            self.remove_range(chunks, id.chunk(0)..=id.chunk(u32::MAX))?;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Database, Error, Result};
    use psync::Simulated;
    use std::io::Read;
    use std::sync::Arc;

    /// Drops the keyspace when it has given out so many bytes, and goes on.
    struct Dropping<'d>(&'d Database, usize);

    impl Read for Dropping<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let len = buffer.len().min(10_000);
            if self.1 > 0 && self.1 <= len {
                assert!(self.0.drop_keyspace("photos").unwrap());
            }
            self.1 = self.1.saturating_sub(len);
            buffer[..len].fill(7);
            Ok(len)
        }
    }

    /// One that was rolled back counted as committed, if another of the same key had the same bytes.
    #[test]
    fn a_staged_value_that_was_rolled_back_can_be_inserted_later() {
        let options = Database::builder().memory(4 << 20).background_threads(0);
        let db = options.open_on(Arc::new(Simulated::new(1))).unwrap();
        let photos = db.large_values("photos").unwrap();
        let [first, second, third] = [(); 3].map(|()| photos.stage("fram", &b"short"[..]).unwrap());
        let mut tx = db.transaction().unwrap();
        let outer = tx.savepoint();
        tx.insert_staged(&third).unwrap();
        let mark = tx.savepoint();
        tx.insert_staged(&first).unwrap();
        tx.roll_back_to(mark).unwrap();
        tx.release(mark).unwrap();
        tx.roll_back_to(outer).unwrap();
        tx.insert_staged(&second).unwrap();
        tx.release(outer).unwrap();
        tx.commit().unwrap();
        for unused in [&first, &third] {
            db.transact(|tx| tx.insert_staged(unused)).unwrap();
        }
        for used_up in [&first, &second, &third] {
            assert!(matches!(db.transact(|tx| tx.insert_staged(used_up)), Err(Error::StagedTwice)));
        }
    }

    /// The error named the keyspace of the chunks, with a control character.
    #[test]
    fn a_dropped_keyspace_of_large_values_has_the_name_that_users_know() {
        let options = Database::builder().memory(4 << 20).background_threads(0);
        let db = options.open_on(Arc::new(Simulated::new(1))).unwrap();
        let check = |done: Result<()>| {
            let error = done.expect_err("it was dropped");
            assert!(matches!(&error, Error::KeyspaceDropped { name } if name == "photos"), "{error:?}");
        };
        let photos = db.large_values("photos").unwrap();
        for len in [5, 200_000] {
            let photos = db.large_values("photos").unwrap();
            let staged = photos.stage("fram", &vec![7; len][..]).unwrap();
            assert!(db.drop_keyspace("photos").unwrap());
            check(db.transact(|tx| tx.insert_staged(&staged)));
        }
        check(photos.insert("fram", [7; 200_000]));
        // The value is the transaction's own, so that the first read finds out.
        let photos = db.large_values("photos").unwrap();
        let staged = photos.stage("fram", &vec![7; 200_000][..]).unwrap();
        let mut tx = db.transaction().unwrap();
        tx.insert_staged(&staged).unwrap();
        assert!(db.drop_keyspace("photos").unwrap());
        let mut reader = tx.large_value_reader(&photos, "fram").unwrap().unwrap();
        let error = reader.read_to_end(&mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains("photos") && !error.contains(char::is_control), "{error:?}");
        drop((tx, staged));
        // While the first portion is read, and while the second one is.
        for len in [100_000, 1_500_000] {
            let photos = db.large_values("photos").unwrap();
            check(photos.stage("fram", Dropping(&db, len).take(4_000_000)).map(drop));
        }
    }
}
