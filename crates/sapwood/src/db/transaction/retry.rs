//! Transactions that are repeated until they are committed.
//!
//! Invariant: a transaction that conflicts often takes a turn ([`crate::commit::turn`]), in which no other thread commits. So it
//! ends, however long it is and whatever others do.

use crate::db::handle::Handle;
use crate::db::transaction::Transaction;
use crate::durability::Durability;
use crate::error::{ConflictReason, Error, Result};
use std::sync::Arc;

/// Conflicts before a transaction takes a turn. A turn keeps all others from committing, so it must be rare where
/// conflicts are; where they are not rare, each run more is lost.
pub(super) const CONFLICTS_MAX: usize = 4;

/// Ingestions that a turn survives. An ingestion does not wait for turns, but takes long; so many in one transaction are the
/// transaction's own.
const INGESTIONS_MAX: usize = 16;

/// See [`Database::transact`](crate::Database::transact).
pub(crate) fn transact<R>(
    handle: &Arc<Handle>,
    durability: Durability,
    mut run: impl FnMut(&mut Transaction) -> Result<R>,
) -> Result<R> {
    let mut attempt = || -> Result<(R, Result<()>)> {
        let mut transaction = Transaction::begin(handle)?;
        transaction.durability(durability);
        let result = run(&mut transaction)?;
        Ok((result, transaction.commit()))
    };
    for _ in 0..CONFLICTS_MAX {
        match attempt()? {
            (_, Err(error)) if error.is_conflict() => {}
            (result, committed) => return committed.map(|()| result),
        }
    }
    let _turn = handle.engine.commits.take_turn()?;
    for _ in 0..INGESTIONS_MAX {
        match attempt()? {
            (_, Err(Error::Conflict { reason: ConflictReason::Ingested | ConflictReason::Dropped, .. })) => {}
            (result, committed) => return committed.map(|()| result),
        }
    }
    let (result, committed) = attempt()?;
    committed.map(|()| result)
}
