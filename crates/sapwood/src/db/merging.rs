//! Keyspaces with a merge operator: what is merged into their records.

use crate::db::batch::Batch;
use crate::db::keyspace::Keyspace;
use crate::db::transaction::Transaction;
use crate::error::{Error, Result};
use crate::flow::shares::Shares;
use crate::merging::{MergeLimits, Merging, OVERHEAD, PENDING, Part, Stored, is_operands, operands, whole};
use crate::operation::put_merge;
use std::sync::Arc;

pub(super) fn merge_limits(shares: &Shares) -> MergeLimits {
    MergeLimits {
        operand: shares.value.saturating_sub(OVERHEAD),
        value: shares.stored_value.saturating_sub(OVERHEAD),
    }
}

/// What is to be stored for an operand that is merged into what is written already, as nothing has a number yet.
pub(super) fn merge_unnumbered(
    merging: &Merging,
    key: &[u8],
    operand: &[u8],
    older: Option<&[u8]>,
) -> Result<Vec<u8>> {
    let of = |operand: &[u8]| operands([Part { first: PENDING, last: PENDING, operand }]);
    if let Some(Stored::Operands(parts)) = older.and_then(Stored::decode) {
        let both = merging.combine(parts[0].operand, operand, merging.operand_max());
        let operator = || merging.name().to_owned();
        let reason = "together with what the transaction has merged already, it is too long or makes the operator panic";
        return both
            .map(|both| of(&both))
            .ok_or_else(|| Error::BadOperand { operator: operator(), reason: reason.into() });
    }
    let laid = merging.lay(&of(operand), older);
    let value = merging.read(key, &laid)?;
    // It is committed as a value, as if it had been inserted.
    if value.len() > merging.operand_max() {
        return Err(merging.too_long(value));
    }
    Ok(whole(value))
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
    /// [`Error::NoMergeOperator`]; [`Error::BadOperand`]; [`Error::MergeFailed`] if what the transaction has written for the key
    /// is no value that the operator knows; and as [`insert`](Self::insert).
    pub fn merge(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        operand: impl AsRef<[u8]>,
    ) -> Result<()> {
        let (key, operand) = (key.as_ref(), operand.as_ref());
        let merging = keyspace.merging()?;
        merging.check(operand)?;
        let stored = match self.written(keyspace, key) {
            None => operands([Part { first: PENDING, last: PENDING, operand }]),
            Some(older) => merge_unnumbered(merging, key, operand, older.as_deref())?,
        };
        self.write_merged(keyspace, key, &stored)
    }

    /// What the transaction and its snapshot have for a key, where the transaction has operands.
    pub(super) fn laid_over(
        keyspace: &Keyspace,
        written: &[u8],
        snapshot: impl FnOnce() -> Result<Option<crate::Value>>,
    ) -> Result<Option<Vec<u8>>> {
        match keyspace.values().merging().filter(|_| is_operands(written)) {
            Some(merging) => Ok(Some(merging.lay(written, snapshot()?.as_deref()))),
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests;
