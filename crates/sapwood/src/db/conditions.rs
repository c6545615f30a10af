//! Reads and writes of one key that nothing comes between: conditions, changes that depend on the old value, and taking records
//! away. Each is a transaction, or a part of one.
//!
//! Invariants:
//! 1. What is returned as there before was there when the write took effect, whatever else is written, and however.
//! 2. Under contention each call ends: it is repeated as [`Database::transact`](crate::Database::transact) does.

use crate::db::keyspace::Keyspace;
use crate::db::transaction::{Transaction, retry};
use crate::error::Result;
use crate::value::{Key, Value};

fn is_equal(found: Option<&Value>, expected: Option<&[u8]>) -> bool {
    found.map(|value| &value[..]) == expected
}

impl Transaction {
    /// Replaces the value of `key`, or its absence, if it is what is expected. As [`Keyspace::compare_and_swap`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// let mut tx = db.transaction()?;
    /// assert!(tx.compare_and_swap(&ships, "fram", None::<&str>, Some("1892"))?.is_ok());
    /// assert!(tx.compare_and_swap(&ships, "fram", Some("1893"), Some("1894"))?.is_err());
    /// tx.commit()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::get`] and [`Transaction::insert`].
    pub fn compare_and_swap(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        expected: Option<impl AsRef<[u8]>>,
        new: Option<impl AsRef<[u8]>>,
    ) -> Result<std::result::Result<(), Option<Value>>> {
        let (key, expected) = (key.as_ref(), expected.as_ref().map(AsRef::as_ref));
        let found = self.get(keyspace, key)?;
        if !is_equal(found.as_ref(), expected) {
            return Ok(Err(found));
        }
        self.put(keyspace, key, found.is_some(), new)?;
        Ok(Ok(()))
    }

    /// Writes `new`; nothing where there was nothing.
    fn put(
        &mut self,
        keyspace: &Keyspace,
        key: &[u8],
        was_there: bool,
        new: Option<impl AsRef<[u8]>>,
    ) -> Result<()> {
        match new {
            Some(value) => self.insert(keyspace, key, value),
            None if was_there => self.remove(keyspace, key),
            None => Ok(()),
        }
    }

    /// Sets `key` to `value` if it has none. Returns what was there; then nothing has changed.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// let mut tx = db.transaction()?;
    /// assert!(tx.insert_if_absent(&ships, "fram", "1892")?.is_none());
    /// assert!(tx.insert_if_absent(&ships, "fram", "1893")?.is_some_and(|year| year == "1892"));
    /// tx.commit()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::get`] and [`Transaction::insert`].
    pub fn insert_if_absent(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<Option<Value>> {
        let found = self.get(keyspace, &key)?;
        if found.is_none() {
            self.insert(keyspace, key, value)?;
        }
        Ok(found)
    }

    /// Sets `key` to what `change` makes of its value, or removes it if that is `None`. Returns the old value.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// let mut tx = db.transaction()?;
    /// tx.update(&ships, "visits", |old| Some([old.map_or(0, |old| old[0]) + 1]))?;
    /// tx.commit()?;
    /// assert_eq!(ships.get("visits")?.as_deref(), Some(&[1][..]));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::get`] and [`Transaction::insert`].
    pub fn update<V: AsRef<[u8]>>(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        change: impl FnOnce(Option<&[u8]>) -> Option<V>,
    ) -> Result<Option<Value>> {
        let found = self.get(keyspace, &key)?;
        let new = change(found.as_deref());
        self.put(keyspace, key.as_ref(), found.is_some(), new)?;
        Ok(found)
    }

    /// Sets `key` to `value`, and returns the old value.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// let mut tx = db.transaction()?;
    /// assert!(tx.replace(&ships, "fram", "1892")?.is_none());
    /// assert!(tx.replace(&ships, "fram", "1893")?.is_some_and(|year| year == "1892"));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::get`] and [`Transaction::insert`].
    pub fn replace(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<Option<Value>> {
        let found = self.get(keyspace, &key)?;
        self.insert(keyspace, key, value)?;
        Ok(found)
    }

    /// Removes `key`, and returns the value that it had.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// let mut tx = db.transaction()?;
    /// assert!(tx.take(&ships, "fram")?.is_some_and(|year| year == "1892"));
    /// assert!(tx.take(&ships, "fram")?.is_none());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::get`] and [`Transaction::insert`].
    pub fn take(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        let found = self.get(keyspace, &key)?;
        if found.is_some() {
            self.remove(keyspace, key)?;
        }
        Ok(found)
    }

    /// Removes the record with the smallest key, and returns it. It steps over all that the transaction has removed below that: for
    /// many, iterate once and remove what comes.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("jobs.db"))?;
    /// let (jobs, done) = (db.keyspace("jobs")?, db.keyspace("done")?);
    /// jobs.insert("1", "send the letter")?;
    /// db.transact(|tx| match tx.pop_first(&jobs)? {
    ///     Some((number, job)) => tx.insert(&done, number, job),
    ///     None => Ok(()),
    /// })?;
    /// assert!(jobs.first()?.is_none() && done.contains("1")?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::get`] and [`Transaction::insert`].
    pub fn pop_first(&mut self, keyspace: &Keyspace) -> Result<Option<(Key, Value)>> {
        let found = self.first(keyspace)?;
        self.remove_found(keyspace, found)
    }

    /// Removes the record with the largest key, and returns it. For many see [`Transaction::pop_first`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("undo.db"))?;
    /// # let undo = db.keyspace("undo")?;
    /// undo.insert("1", "type a word")?;
    /// undo.insert("2", "delete a line")?;
    /// let mut tx = db.transaction()?;
    /// assert!(tx.pop_last(&undo)?.is_some_and(|(_, step)| step == "delete a line"));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::get`] and [`Transaction::insert`].
    pub fn pop_last(&mut self, keyspace: &Keyspace) -> Result<Option<(Key, Value)>> {
        let found = self.last(keyspace)?;
        self.remove_found(keyspace, found)
    }

    fn remove_found(
        &mut self,
        keyspace: &Keyspace,
        found: Option<(Key, Value)>,
    ) -> Result<Option<(Key, Value)>> {
        if let Some((key, _)) = &found {
            self.remove(keyspace, key)?;
        }
        Ok(found)
    }
}

/// Changes of one key that depend on what is there, as durable as [`Keyspace::insert`].
impl Keyspace {
    fn transact<R>(&self, run: impl FnMut(&mut Transaction) -> Result<R>) -> Result<R> {
        retry::transact(self.handle(), self.durability(), run)
    }

    /// Replaces the value of `key` by `new` if it is `expected`; `None` is no value. Otherwise nothing has
    /// changed, and the inner result is what is there.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("leases.db"))?;
    /// # let leases = db.keyspace("leases")?;
    /// assert_eq!(leases.compare_and_swap("leader", None::<&str>, Some("node 1"))?, Ok(()));
    /// match leases.compare_and_swap("leader", None::<&str>, Some("node 2"))? {
    ///     Ok(()) => unreachable!(),
    ///     Err(found) => assert!(found.is_some_and(|leader| leader == "node 1")),
    /// }
    /// assert_eq!(leases.compare_and_swap("leader", Some("node 1"), None::<&str>)?, Ok(())); // removed
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`] and [`Batch::commit`](crate::Batch::commit).
    pub fn compare_and_swap(
        &self,
        key: impl AsRef<[u8]>,
        expected: Option<impl AsRef<[u8]>>,
        new: Option<impl AsRef<[u8]>>,
    ) -> Result<std::result::Result<(), Option<Value>>> {
        self.transact(|tx| tx.compare_and_swap(self, &key, expected.as_ref(), new.as_ref()))
    }

    /// Sets `key` to `value` if it has none. Returns what was there; then nothing has changed.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("names.db"))?;
    /// # let names = db.keyspace("names")?;
    /// assert!(names.insert_if_absent("fram", "user 1")?.is_none());
    /// assert!(names.insert_if_absent("fram", "user 2")?.is_some_and(|owner| owner == "user 1"));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`] and [`Batch::commit`](crate::Batch::commit).
    pub fn insert_if_absent(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.transact(|tx| tx.insert_if_absent(self, &key, &value))
    }

    /// Sets `key` to what `change` makes of its value, or removes it if that is `None`. Returns the old value.
    ///
    /// Nothing comes between reading and writing. If another thread writes the key meanwhile, `change` is called again with
    /// the newer value. It must not wait for another thread's commit ([`Database::transact`](crate::Database::transact)).
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("hits.db"))?;
    /// # let hits = db.keyspace("hits")?;
    /// let count = |old: Option<&[u8]>| old.map_or(0, |old| u64::from_be_bytes(old.try_into().expect("eight bytes")));
    /// for _ in 0..3 {
    ///     hits.update("/", |old: Option<&[u8]>| Some((count(old) + 1).to_be_bytes()))?;
    /// }
    /// assert_eq!(count(hits.get("/")?.as_deref()), 3);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`] and [`Batch::commit`](crate::Batch::commit).
    pub fn update<V: AsRef<[u8]>>(
        &self,
        key: impl AsRef<[u8]>,
        mut change: impl FnMut(Option<&[u8]>) -> Option<V>,
    ) -> Result<Option<Value>> {
        self.transact(|tx| tx.update(self, &key, &mut change))
    }

    /// Sets `key` to `value` and returns the old value. [`Keyspace::insert`] needs no read.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// assert!(ships.replace("fram", "1892")?.is_none());
    /// assert!(ships.replace("fram", "1893")?.is_some_and(|year| year == "1892"));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`] and [`Batch::commit`](crate::Batch::commit).
    pub fn replace(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.transact(|tx| tx.replace(self, &key, &value))
    }

    /// Removes `key` and returns the value that it had. [`Keyspace::remove`] needs no read.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// assert!(ships.take("fram")?.is_some_and(|year| year == "1892"));
    /// assert!(ships.take("fram")?.is_none());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`] and [`Batch::commit`](crate::Batch::commit).
    pub fn take(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.transact(|tx| tx.take(self, &key))
    }

    /// Removes the record with the smallest key and returns it. Each record is returned to one caller.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("jobs.db"))?;
    /// # let jobs = db.keyspace("jobs")?;
    /// jobs.insert("2", "call the office")?;
    /// jobs.insert("1", "send the letter")?;
    /// while let Some((number, job)) = jobs.pop_first()? {
    ///     println!("{number:?}: {job:?}");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`] and [`Batch::commit`](crate::Batch::commit).
    pub fn pop_first(&self) -> Result<Option<(Key, Value)>> {
        self.transact(|tx| tx.pop_first(self))
    }

    /// Removes the record with the largest key and returns it. Each record is returned to one caller.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("undo.db"))?;
    /// # let undo = db.keyspace("undo")?;
    /// undo.insert("1", "type a word")?;
    /// undo.insert("2", "delete a line")?;
    /// assert!(undo.pop_last()?.is_some_and(|(_, step)| step == "delete a line"));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`] and [`Batch::commit`](crate::Batch::commit).
    pub fn pop_last(&self) -> Result<Option<(Key, Value)>> {
        self.transact(|tx| tx.pop_last(self))
    }
}

#[cfg(test)]
mod tests {
    use crate::{Database, Error, Keyspace, Value};
    use psync::Simulated;
    use std::collections::BTreeSet;
    use std::sync::Arc;

    const NONE: Option<&str> = None;

    fn open(threads: usize) -> (Database, Keyspace) {
        let db = Database::builder().memory(4 << 20).background_threads(threads);
        let db = db.open_on(Arc::new(Simulated::new(1))).unwrap();
        let keyspace = db.keyspace("main").unwrap();
        (db, keyspace)
    }

    fn text(value: Option<Value>) -> Option<String> {
        value.map(|value| String::from_utf8(value.to_vec()).unwrap())
    }

    #[test]
    fn each_returns_what_was_there_and_does_what_it_says() {
        let (_db, ks) = open(0);
        let found = |is: Option<&str>| assert_eq!(text(ks.get("k").unwrap()).as_deref(), is);
        assert_eq!(ks.compare_and_swap("k", NONE, NONE).unwrap(), Ok(()));
        assert_eq!(ks.compare_and_swap("k", Some("a"), Some("b")).unwrap(), Err(None));
        found(None);
        assert_eq!(ks.compare_and_swap("k", NONE, Some("a")).unwrap(), Ok(()));
        assert_eq!(text(ks.compare_and_swap("k", NONE, Some("b")).unwrap().unwrap_err()).unwrap(), "a");
        found(Some("a"));
        assert_eq!(ks.compare_and_swap("k", Some("a"), NONE).unwrap(), Ok(()));
        found(None);
        assert_eq!(text(ks.insert_if_absent("k", "c").unwrap()), None);
        assert_eq!(text(ks.insert_if_absent("k", "d").unwrap()).unwrap(), "c");
        found(Some("c"));
        assert_eq!(text(ks.replace("k", "e").unwrap()).unwrap(), "c");
        let longer = |old: Option<&[u8]>| Some([old.unwrap_or(b"none"), b"!"].concat());
        assert_eq!(text(ks.update("k", longer).unwrap()).unwrap(), "e");
        assert_eq!(text(ks.update("l", longer).unwrap()), None);
        found(Some("e!"));
        assert_eq!(text(ks.take("k").unwrap()).unwrap(), "e!");
        assert_eq!(text(ks.take("k").unwrap()), None);
        assert_eq!(text(ks.update("l", |_| NONE).unwrap()).unwrap(), "none!");
        assert_eq!(text(ks.update("l", |_| NONE).unwrap()), None);
        assert!(ks.pop_first().unwrap().is_none() && ks.pop_last().unwrap().is_none());
        for key in ["a", "b", "c"] {
            assert_eq!(text(ks.replace(key, key).unwrap()), None);
        }
        assert!(ks.pop_last().unwrap().unwrap().0 == "c" && ks.pop_first().unwrap().unwrap().0 == "a");
        assert_eq!(ks.iter().count(), 1);
        assert!(matches!(ks.insert_if_absent("", "d"), Err(Error::KeyEmpty)));
        assert!(matches!(ks.replace("k", vec![0; 16 << 20]), Err(Error::ValueTooLong { .. })));
    }

    /// Another writes while the change is made, without any transaction.
    #[test]
    fn a_change_sees_what_comes_meanwhile() {
        let (_db, ks) = open(0);
        let mut seen = Vec::new();
        let old = ks.update("k", |old| {
            seen.push(old.map(<[u8]>::to_vec));
            if seen.len() < 3 {
                ks.insert("k", [seen.len() as u8]).unwrap();
            }
            Some("new")
        });
        assert_eq!(old.unwrap().as_deref(), Some(&[2][..]));
        assert_eq!(seen, [None, Some(vec![1]), Some(vec![2])]);
    }

    #[test]
    fn many_threads_at_one_key_lose_nothing_and_all_end() {
        let (db, ks) = open(1);
        let number =
            |value: Option<&[u8]>| value.map_or(0, |value| u32::from_be_bytes(value.try_into().unwrap()));
        std::thread::scope(|scope| {
            for thread in 0..8u32 {
                let (db, ks) = (&db, &ks);
                scope.spawn(move || {
                    for round in 0..60u32 {
                        match thread % 2 {
                            0 => _ = ks.update("n", |old| Some((number(old) + 1).to_be_bytes())).unwrap(),
                            _ => loop {
                                let old = ks.get("n").unwrap();
                                let new = (number(old.as_deref()) + 1).to_be_bytes();
                                if ks.compare_and_swap("n", old, Some(new)).unwrap().is_ok() {
                                    break;
                                }
                            },
                        }
                        // One thread's is there.
                        ks.insert_if_absent(format!("owner {round}"), thread.to_be_bytes()).unwrap();
                        let mut batch = db.batch();
                        batch.insert(ks, format!("job {round:02} {thread}"), "");
                        batch.commit().unwrap();
                    }
                });
            }
        });
        assert_eq!(number(ks.get("n").unwrap().as_deref()), 480);
        assert_eq!(ks.prefix("owner ").count(), 60);
        ks.take("n").unwrap().unwrap();
        (0..60).for_each(|round| _ = ks.take(format!("owner {round}")).unwrap().unwrap());
        let popped: Vec<Vec<Value>> = std::thread::scope(|scope| {
            let pop = |is_last: bool| {
                let mut popped = Vec::new();
                while let Some((job, _)) = if is_last { ks.pop_last() } else { ks.pop_first() }.unwrap() {
                    popped.push(job);
                }
                popped
            };
            let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || pop(thread == 0))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for popped in &popped[1..] {
            assert!(popped.is_sorted(), "a thread got a later job first");
        }
        let all: BTreeSet<_> = popped.iter().flatten().collect();
        assert_eq!((all.len(), popped.iter().map(Vec::len).sum()), (480, 480));
    }
}
