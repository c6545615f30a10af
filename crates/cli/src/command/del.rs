//! `sapwood del`: removes keys or a range of them, all at once.

use crate::arguments::Del;
use crate::command::Opening;
use crate::failure::{Failure, Result};
use sapwood::{Database, Error, Keyspace, LargeValues};
use std::ops::Bound;

pub(crate) fn run(options: &Del, opening: Opening) -> Result<()> {
    let keys = options.keys.iter().map(|key| super::bytes(key)).collect::<Result<Vec<_>>>()?;
    let db = opening.to_write(&options.db, false)?;
    if let Some(values) = super::large_values(&db, &options.keyspace)? {
        return del_large(db, options, &values, &keys);
    }
    let keyspace = super::existing(&db, &options.keyspace)?;
    let mut batch = db.batch();
    if let Some(prefix) = &options.prefix {
        batch.remove_prefix(&keyspace, super::bytes(prefix)?);
    } else if options.keys.is_empty() {
        let from = options.from.as_deref().map(super::bytes).transpose()?;
        let to = options.to.as_deref().map(super::bytes).transpose()?;
        let low = from.map_or(Bound::Unbounded, Bound::Included);
        batch.remove_range(&keyspace, (low, to.map_or(Bound::Unbounded, Bound::Excluded)));
    }
    let there = keys.iter().map(|key| is_there(&keyspace, key)).collect::<Result<Vec<_>>>()?;
    for key in &keys {
        batch.remove(&keyspace, key);
    }
    batch.commit()?;
    drop(keyspace);
    db.close()?;
    tell_missing(options, &there)
}

/// Whether there is a record, also one that cannot be merged: to remove it is one of the two ways out.
fn is_there(keyspace: &Keyspace, key: &[u8]) -> Result<bool> {
    match keyspace.contains(key) {
        Err(Error::MergeFailed { .. }) => Ok(true),
        there => Ok(there?),
    }
}

/// Fails if some of the keys were not there.
fn tell_missing(options: &Del, there: &[bool]) -> Result<()> {
    let missing = options.keys.iter().zip(there).filter(|(_, there)| !**there);
    let missing: Vec<_> = missing.map(|(key, _)| key.as_str()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure::NotFound(format!("not found, and so not removed: {}", missing.join(" "))))
}

/// Removes large values by their keys.
fn del_large(db: Database, options: &Del, values: &LargeValues, keys: &[Vec<u8>]) -> Result<()> {
    if keys.is_empty() {
        let all = "large values are removed by their keys, or all with `sapwood drop DB KEYSPACE`";
        return Err(Failure::Usage(all.to_owned()));
    }
    let removed = db.transact(|tx| {
        keys.iter().map(|key| tx.remove_large_value(values, key)).collect::<sapwood::Result<Vec<_>>>()
    })?;
    db.close()?;
    tell_missing(options, &removed)
}
