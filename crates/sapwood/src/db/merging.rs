//! Keyspaces with a merge operator: what is merged into their records.

use crate::db::batch::Batch;
use crate::db::keyspace::Keyspace;
use crate::db::transaction::Transaction;
use crate::error::{Error, Result};
use crate::flow::shares::Shares;
use crate::merging::{
    COMBINED_MAX, MergeLimits, Merging, OVERHEAD, PENDING, Part, Stored, is_operands, operands, whole,
};
use crate::operation::{
    KeyspaceId, Operation, OperationRef, Operations, SeqNo, put_insert, put_merge, put_remove,
};
use crate::value::Value;
use std::sync::Arc;

pub(super) fn merge_limits(shares: &Shares) -> MergeLimits {
    MergeLimits {
        operand: shares.value.saturating_sub(OVERHEAD),
        value: shares.stored_value.saturating_sub(OVERHEAD),
    }
}

/// First byte of what a transaction keeps for a key where no one stored value says it: operations, as a batch has them. It is never stored.
const SEVERAL: u8 = 0xff;

/// What a transaction has written for a key of a keyspace whose values are merged.
struct Written<'a> {
    /// What it has inserted, or removed; `None`: neither.
    base: Option<Option<&'a [u8]>>,
    /// What it has merged into that, oldest first.
    operands: Vec<&'a [u8]>,
}

/// Whether what a transaction has written is operands, or several operations.
pub(super) fn has_operands(written: &[u8]) -> bool {
    is_operands(written) || is_several(written)
}

/// Whether what it comes to depends on what lies beneath it. Asked of what [`has_operands`] alone.
pub(super) fn needs_beneath(written: &[u8]) -> bool {
    is_operands(written) || matches!(several(written).next(), Some(Ok(Operation::Merge(_))))
}

/// Whether what a transaction has written is several operations. Asked only where values are merged: others begin with any byte.
pub(super) fn is_several(written: &[u8]) -> bool {
    written.first() == Some(&SEVERAL)
}

/// Several operations of a key, as the log has them.
pub(super) fn several(written: &[u8]) -> Operations<'_> {
    Operations::new(written.get(1..).unwrap_or_default())
}

impl<'a> Written<'a> {
    fn of(written: Option<&'a [u8]>) -> Self {
        let mut found = Self { base: None, operands: Vec::new() };
        let Some(written) = written.filter(|written| has_operands(written)) else {
            found.base = Some(written);
            return found;
        };
        if let Some(Stored::Operands(parts)) = Stored::decode(written) {
            found.operands.extend(parts.iter().map(|part| part.operand));
        }
        for operation in several(written).take_while(|_| is_several(written)).flatten() {
            match operation {
                Operation::Merge(OperationRef { value: Some(operand), .. }) => found.operands.push(operand),
                Operation::Change(OperationRef { value, .. }) => found.base = Some(value),
                Operation::Merge(_) | Operation::RemoveRange(_) => {}
            }
        }
        found
    }

    /// The operands as they are stored. None of them has a number yet: they have those above all others.
    fn stored_operands(&self) -> Vec<u8> {
        let first = PENDING - self.operands.len() as SeqNo;
        operands((first + 1..).zip(&self.operands).map(|(at, operand)| Part { first: at, last: at, operand }))
    }

    /// What is kept. Operations that make a value which could be inserted become that, and others stay apart: they come to what they
    /// come to in transactions of their own, be it a record that cannot be merged. Once they are apart (`is_apart`) they stay so.
    fn keep(&self, merging: &Merging, (keyspace, key): (KeyspaceId, &[u8]), is_apart: bool) -> Vec<u8> {
        match (self.base, self.operands.len()) {
            (None, 1) => return self.stored_operands(),
            (Some(base), 1) if !is_apart => {
                let laid = merging.lay(&self.stored_operands(), base);
                if let Ok(value) = merging.read(key, &laid)
                    && value.len() <= merging.operand_max()
                {
                    return whole(value);
                }
            }
            _ => {}
        }
        let mut kept = vec![SEVERAL];
        match self.base {
            Some(Some(value)) => put_insert(&mut kept, keyspace, key, value),
            Some(None) => put_remove(&mut kept, keyspace, key),
            None => {}
        }
        self.operands.iter().for_each(|operand| put_merge(&mut kept, keyspace, key, operand));
        kept
    }
}

/// What a transaction keeps for an operand that is merged into what it has written already.
fn merge_written(
    merging: &Merging,
    keyspace: KeyspaceId,
    (key, operand): (&[u8], &[u8]),
    written: Option<&[u8]>,
) -> Vec<u8> {
    let mut own = Written::of(written);
    // What is combined is copied again for each operand that comes.
    let newest = own.operands.last().filter(|newest| newest.len() + operand.len() <= COMBINED_MAX);
    let both = newest.and_then(|newest| merging.combine(newest, operand, merging.operand_max()));
    let apart = written.filter(|written| is_several(written));
    match (both, apart) {
        (None, Some(apart)) => {
            let mut kept = apart.to_vec();
            put_merge(&mut kept, keyspace, key, operand);
            kept
        }
        (both, apart) => {
            if both.is_some() {
                own.operands.pop();
            }
            own.operands.push(both.as_deref().unwrap_or(operand));
            own.keep(merging, (keyspace, key), apart.is_some())
        }
    }
}

/// What a transaction has written for a key, as it is stored; `beneath` is what its snapshot has for it.
pub(super) fn lay_written(
    merging: &Merging,
    written: &[u8],
    beneath: impl FnOnce() -> Result<Option<Value>>,
) -> Result<Vec<u8>> {
    let own = Written::of(Some(written));
    match own.base {
        _ if own.operands.is_empty() => Ok(written.to_vec()),
        Some(base) => Ok(merging.lay(&own.stored_operands(), base)),
        None => Ok(merging.lay(&own.stored_operands(), beneath()?.as_deref())),
    }
}

impl Keyspace {
    /// How values are merged.
    pub(super) fn merging(&self) -> Result<&Merging> {
        self.values().merging().ok_or_else(|| Error::NoMergeOperator { keyspace: self.name().into() })
    }

    /// Merges an operand into the record of `key`, by the keyspace's [operator](crate::KeyspaceOptions::merge), durably unless
    /// [told otherwise](Self::with_durability). Nothing is read for it: it costs what [`insert`](Self::insert) costs. If there is
    /// no record, the operator makes one. No two threads that merge into the same record conflict.
    ///
    /// The operands of a key that wait for its value, in memory and in log areas, may have as many bytes as the longest value with any memory
    /// budget ([limits](crate#limits)); with more, the record answers with [`Error::MergeFailed`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("pages.db"))?;
    /// use sapwood::{KeyspaceOptions, merge};
    ///
    /// let hits = db.keyspace_with("hits", KeyspaceOptions::new().merge(merge::AddU64))?;
    /// hits.merge("index.html", 1u64.to_be_bytes())?;
    /// hits.merge("index.html", 1u64.to_be_bytes())?;
    /// assert_eq!(hits.get("index.html")?.as_deref(), Some(&2u64.to_be_bytes()[..]));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoMergeOperator`]; [`Error::BadOperand`]; and as [`Batch::commit`].
    pub fn merge(&self, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>) -> Result<()> {
        let mut batch = Batch::new(Arc::clone(self.handle()), self.durability());
        batch.merge(self, key, operand);
        batch.commit().map_err(|error| self.named(error))
    }
}

impl Batch {
    /// Merges an operand into the record of `key`, as [`Keyspace::merge`], after what the batch has for it already.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("pages.db"))?;
    /// use sapwood::{KeyspaceOptions, merge};
    ///
    /// let hits = db.keyspace_with("hits", KeyspaceOptions::new().merge(merge::AddU64))?;
    /// let one = 1u64.to_be_bytes();
    /// db.batch().merge(&hits, "index.html", one).merge(&hits, "about.html", one).merge(&hits, "index.html", one).commit()?;
    /// assert_eq!(hits.get("index.html")?.as_deref(), Some(&2u64.to_be_bytes()[..]));
    /// # Ok(()) }
    /// ```
    pub fn merge(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        operand: impl AsRef<[u8]>,
    ) -> &mut Self {
        let (key, operand) = (key.as_ref(), operand.as_ref());
        let checked = self.check(keyspace, key).and_then(|()| keyspace.merging()?.check(operand));
        match checked {
            Ok(()) => self.put(|body| put_merge(body, keyspace.id(), key, operand)),
            Err(error) => self.fail(error),
        }
        self
    }
}

impl Transaction {
    /// Merges an operand into the record of `key`, as [`Keyspace::merge`]. The record does not count as read: transactions that
    /// merge into the same one do not conflict.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("accounts.db"))?;
    /// use sapwood::{KeyspaceOptions, merge};
    ///
    /// let accounts = db.keyspace_with("accounts", KeyspaceOptions::new().merge(merge::AddI64))?;
    /// db.transact(|tx| {
    ///     tx.merge(&accounts, "amundsen", (-30i64).to_be_bytes())?;
    ///     tx.merge(&accounts, "nansen", 30i64.to_be_bytes())
    /// })?;
    /// assert_eq!(accounts.get("nansen")?.as_deref(), Some(&30i64.to_be_bytes()[..]));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoMergeOperator`]; [`Error::BadOperand`]; and as [`insert`](Self::insert). What the transaction has written for the key
    /// before makes none: the record is what it would be if that had been committed first.
    pub fn merge(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        operand: impl AsRef<[u8]>,
    ) -> Result<()> {
        let (key, operand) = (key.as_ref(), operand.as_ref());
        let merging = keyspace.merging()?;
        let checked = merging.check(operand);
        self.note_refused(checked)?;
        let stored = match self.written(keyspace, key) {
            None => operands([Part { first: PENDING, last: PENDING, operand }]),
            Some(written) => merge_written(merging, keyspace.id(), (key, operand), written.as_deref()),
        };
        self.write_merged(keyspace, key, &stored)
    }

    /// What the transaction and its snapshot have for a key, where the transaction has operands.
    pub(super) fn laid_over(
        keyspace: &Keyspace,
        written: &[u8],
        snapshot: impl FnOnce() -> Result<Option<Value>>,
    ) -> Result<Option<Vec<u8>>> {
        let merging = keyspace.values().merging().filter(|_| has_operands(written));
        merging.map(|merging| lay_written(merging, written, snapshot)).transpose()
    }
}

#[cfg(test)]
mod tests;
