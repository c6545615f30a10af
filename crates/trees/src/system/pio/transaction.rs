//! Transactions in a PIO B-tree (VLDB 2011, section 3.4).
//!
//! ```text
//! begin ─▶ open ──insert, update, delete──▶ redo records, and entries of the OPQ that only it sees
//!            ├─commit─▶ a commit record, durable as the mode says; its entries count
//!            └─abort──▶ an abort record; its entries leave the OPQ
//! ```
//! The paper leaves isolation to the database around the index. Here nobody sees what is not committed but its own
//! transaction, and of two that write the same key the second is refused, as is an operation by itself: so the order of
//! sequence numbers of a key is that of the commits.
//!
//! Invariants:
//! 1. No-steal: no batch update takes a key that an open transaction has written. So there is nothing to undo, at run time
//!    or at recovery.
//! 2. What is not committed has room for it in the queue: a transaction that fills it is refused the next operation.
//! 3. A key in `writers` belongs to exactly one open transaction, and its entries are in the queue.

use super::PioTree;
use crate::page::leaf_segments::Op;
use crate::{Error, Key, Result, Value};
use std::collections::{HashMap, HashSet};

/// A transaction of a [`PioTree`].
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Transaction {
    id: u64,
}

/// Those that are open.
#[derive(Debug, Default)]
pub(super) struct OpenTransactions {
    /// Of the newest transaction. Since a recovery no record of an older one counts.
    newest: u64,
    ids: HashSet<u64>,
    writers: HashMap<Key, u64>,
}

impl OpenTransactions {
    fn begin(&mut self) -> Transaction {
        self.newest += 1;
        self.ids.insert(self.newest);
        Transaction { id: self.newest }
    }

    fn expect(&self, transaction: &Transaction) -> Result<()> {
        if self.ids.contains(&transaction.id) {
            return Ok(());
        }
        Err(Error::Invalid(format!("transaction {} is not one of this tree", transaction.id)))
    }

    /// Whether a transaction, or an operation by itself, may write a key.
    pub fn may_write(&self, transaction: u64, key: Key) -> Result<()> {
        match self.writers.get(&key) {
            Some(writer) if *writer != transaction => Err(Error::Invalid(format!(
                "key {key} was written by transaction {writer}, which is open: try again when it has ended"
            ))),
            _ => Ok(()),
        }
    }

    pub fn wrote(&mut self, transaction: u64, key: Key) {
        if self.ids.contains(&transaction) {
            self.writers.insert(key, transaction);
        }
    }

    fn end(&mut self, transaction: &Transaction) {
        self.ids.remove(&transaction.id);
        self.writers.retain(|_, writer| *writer != transaction.id);
    }
}

impl PioTree {
    /// Begins a transaction. One that is dropped stays open: end it with [`Self::commit`] or [`Self::abort`].
    ///
    /// ```
    /// use std::sync::Arc;
    /// use trees::{Index, PioOptions, PioTree};
    /// let volume = Arc::new(psync::Simulated::new(1));
    /// let mut tree = PioTree::create(volume, &PioOptions::default())?;
    /// let transaction = tree.begin();
    /// tree.insert_in(&transaction, 1, 10)?;
    /// tree.insert_in(&transaction, 2, 20)?;
    /// assert_eq!((tree.search_in(&transaction, 1)?, tree.search(1)?), (Some(10), None));
    /// tree.commit(transaction)?;
    /// assert_eq!(tree.search(1)?, Some(10));
    /// # Ok::<(), trees::Error>(())
    /// ```
    pub fn begin(&mut self) -> Transaction {
        self.begin_shared()
    }

    /// As [`Self::begin`], beside others.
    pub(super) fn begin_shared(&self) -> Transaction {
        self.log.lock().open.begin()
    }

    /// Sets the value of a key, in a transaction.
    ///
    /// # Errors
    /// [`Error::Invalid`] if another open transaction has written the key, if the queue is full of what is not committed, or
    /// if the transaction has ended; the device's.
    pub fn insert_in(&mut self, transaction: &Transaction, key: Key, value: Value) -> Result<()> {
        self.change_in(transaction, key, value, Op::Insert)
    }

    /// Sets the value of a key that is there, in a transaction.
    ///
    /// # Errors
    /// Those of [`Self::insert_in`].
    pub fn update_in(&mut self, transaction: &Transaction, key: Key, value: Value) -> Result<()> {
        self.change_in(transaction, key, value, Op::Update)
    }

    /// Removes a key, in a transaction.
    ///
    /// # Errors
    /// Those of [`Self::insert_in`].
    pub fn delete_in(&mut self, transaction: &Transaction, key: Key) -> Result<()> {
        self.change_in(transaction, key, 0, Op::Delete)
    }

    /// The value of a key, as a transaction sees it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the transaction has ended; the device's.
    pub fn search_in(&self, transaction: &Transaction, key: Key) -> Result<Option<Value>> {
        self.usable()?;
        self.log.lock().open.expect(transaction)?;
        self.search_one(key, transaction.id)
    }

    /// Makes all operations of a transaction count, at once; durable as [`LogMode`](crate::LogMode) says of an operation.
    ///
    /// # Errors
    /// The device's: then recover the tree to see whether it is committed.
    pub fn commit(&mut self, transaction: Transaction) -> Result<()> {
        self.commit_shared(&transaction)?;
        self.relieve()
    }

    /// As [`Self::commit`], beside others; whoever calls it sees to a full queue.
    pub(super) fn commit_shared(&self, transaction: &Transaction) -> Result<()> {
        self.usable()?;
        let mut log = self.log.lock();
        log.open.expect(transaction)?;
        self.noted(log.records.commit(transaction.id))?;
        log.open.end(transaction);
        // Still under the log's lock: the order of the commit records is that in which readers see them.
        self.queue.write().commit(transaction.id);
        Ok(())
    }

    /// Takes back all operations of a transaction.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is not one of this tree.
    pub fn abort(&mut self, transaction: Transaction) -> Result<()> {
        self.abort_shared(&transaction)
    }

    /// As [`Self::abort`], beside others.
    pub(super) fn abort_shared(&self, transaction: &Transaction) -> Result<()> {
        self.usable()?;
        let mut log = self.log.lock();
        log.open.expect(transaction)?;
        log.records.abort(transaction.id);
        log.open.end(transaction);
        // Still under the log's lock: nobody queues one of its keys before its own entries are gone.
        self.queue.write().abort(transaction.id);
        Ok(())
    }

    /// A batch update, if it is due and there is anything to take.
    pub(super) fn relieve(&mut self) -> Result<()> {
        if self.queue.get_mut().is_full() {
            let result = self.bupdate();
            self.noted(result)?;
        }
        Ok(())
    }

    pub(super) fn change_in(
        &mut self,
        transaction: &Transaction,
        key: Key,
        value: Value,
        op: Op,
    ) -> Result<()> {
        self.usable()?;
        self.log.get_mut().open.expect(transaction)?;
        self.relieve()?;
        match self.change_if_room(transaction, key, value, op)? {
            Some(_) => self.relieve(),
            None => Err(Error::Invalid(format!(
                "the queue of {} pages is full of operations that are not committed: commit or abort, or give it more \
                 pages",
                self.options.queue_pages
            ))),
        }
    }

    /// Logs and queues an operation of a transaction, unless the queue is full; whether it is full then.
    pub(super) fn change_if_room(
        &self,
        transaction: &Transaction,
        key: Key,
        value: Value,
        op: Op,
    ) -> Result<Option<bool>> {
        self.usable()?;
        self.log.lock().open.expect(transaction)?;
        if self.queue.read().is_full() {
            return Ok(None);
        }
        self.queue_up(transaction.id, key, value, op).map(Some)
    }
}
