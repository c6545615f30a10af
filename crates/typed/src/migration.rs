//! Bringing a keyspace from one schema to another, by a copy.
//!
//! ```text
//! ships: old ──copy──▶ ships (migrating): new ──sync──▶ it gets its schema ──one edit──▶ ships: new, and the old one is dropped
//! ```
//! Invariant: the copy comes in the old keyspace's place at once, and only when it is whole and durable. One that fails is dropped. Another copy is what a crash
//! has left, and is begun anew.

use crate::key::{self, TypedKey};
use crate::record;
use crate::schema::Stored;
use crate::value::TypedValue;
use sapwood::{Batch, Database, Durability, Error, Expiry, Keyspace, KeyspaceOptions, Result, Value};
use std::collections::HashSet;
use std::marker::PhantomData;

/// Bytes of records that are committed together: small beside the memory of any database (4 MiB at least), and large beside what a commit
/// costs.
const BATCH: usize = 256 << 10;

/// What a record of an older schema becomes.
type Changed = Option<(Vec<u8>, Vec<u8>)>;

/// A way from an older schema to records of `K` and `V`.
pub(crate) trait Migrate<K, V> {
    /// The schema from which it leads.
    fn older(&self) -> &Stored;

    /// Changes a record.
    fn change(&mut self, old: &Keyspace, record: (Value, Value)) -> Result<Changed>;
}

pub(crate) struct Migration<K1, V1, F> {
    older: Stored,
    change: F,
    of: PhantomData<fn(K1, V1)>,
}

impl<K1, V1, F> Migration<K1, V1, F> {
    pub fn new(older: Stored, change: F) -> Self {
        Self { older, change, of: PhantomData }
    }
}

impl<K1, V1, K, V, F> Migrate<K, V> for Migration<K1, V1, F>
where
    K1: TypedKey,
    V1: TypedValue,
    K: TypedKey,
    V: TypedValue,
    F: FnMut(K1, V1) -> Result<Option<(K, V)>>,
{
    fn older(&self) -> &Stored {
        &self.older
    }

    fn change(&mut self, old: &Keyspace, record: (Value, Value)) -> Result<Changed> {
        let (key, value) = record::record_of(old, record)?;
        let Some((key, value)) = (self.change)(key, value)? else { return Ok(None) };
        Ok(Some((key::encode_key::<K>(&key), record::bytes_of(old, &value)?)))
    }
}

/// Bytes of a keyspace's name at most.
const NAME_MAX: usize = 255;
/// Bytes of a name that its copy has if the whole is too long with what is added: as many as leave room for that.
const NAME_KEPT: usize = 200;

/// The name of the copy.
fn copy_name(name: &str) -> String {
    let copy = format!("{name} (migrating)");
    if copy.len() <= NAME_MAX {
        return copy;
    }
    // Names that begin alike have copies of their own (FNV-1a).
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
    let end = (0..=NAME_KEPT).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
    format!("{} ({hash:016x}, migrating)", &name[..end])
}

/// Whether there is a copy.
pub(crate) fn has_begun(db: &Database, name: &str) -> bool {
    db.contains_keyspace(&copy_name(name))
}

/// Drops the copy of a migration that failed, or panicked: it has space that others want. What cannot be done now is done when the keyspace is opened.
struct TakesBack<'d> {
    db: &'d Database,
    name: &'d str,
}

impl Drop for TakesBack<'_> {
    fn drop(&mut self) {
        let _ = take_back(self.db, self.name);
    }
}

/// Takes back what a crash has left of a migration.
pub(crate) fn take_back(db: &Database, name: &str) -> Result<()> {
    if !has_begun(db, name) {
        return Ok(());
    }
    db.drop_keyspace(&copy_name(name)).map(|_| ())
}

/// Migrates a keyspace. What has come in its place, and is returned, has these metadata, and these options beside its own. What keeps it from being begun is
/// told by `not_begun`.
pub(crate) fn run<K, V>(
    db: &Database,
    old: &Keyspace,
    migration: &mut dyn Migrate<K, V>,
    (metadata, options): (&[u8], KeyspaceOptions),
    not_begun: impl FnOnce(Error) -> Error,
) -> Result<Keyspace> {
    let (name, copy_name) = (old.name(), copy_name(old.name()));
    let stored = old.options()?;
    let expires = stored.is_expiring();
    let _unless_replaced = TakesBack { db, name };
    db.keyspace_with(&copy_name, stored).map_err(not_begun)?;
    // The copy has what the keyspace has, which the user knows.
    let copy = db.keyspace_with(&copy_name, options).map_err(|error| match error {
        Error::NoExpiry { .. } => Error::NoExpiry { keyspace: name.into() },
        Error::NoMergeOperator { .. } => Error::NoMergeOperator { keyspace: name.into() },
        Error::OtherMergeOperator { stored, asked, .. } => {
            Error::OtherMergeOperator { keyspace: name.into(), stored, asked }
        }
        other => other,
    })?;
    let same_key = || Error::Encode {
        keyspace: name.into(),
        expected: "records of the new schema".into(),
        reason: "two records would have the same key".into(),
    };
    let mut batch = db.batch();
    batch.durability(Durability::Buffered);
    let (mut count, mut in_batch) = (0, HashSet::new());
    for item in old.iter() {
        let (key, value) = item?;
        let expiry = if expires { old.expiry(&key)? } else { Some(Expiry::Never) };
        // It has expired.
        let Some(expiry) = expiry else { continue };
        let Some((key, value)) = migration.change(old, (key, value))? else { continue };
        if !batch.is_empty() && batch.byte_len() + key.len() + value.len() > BATCH {
            batch.commit()?;
            in_batch.clear();
        }
        // Those that expire cannot be counted in the end.
        if expires && (copy.contains(&key)? || !in_batch.insert(key.clone())) {
            return Err(same_key());
        }
        count += 1;
        if !expires && value.len() > BATCH {
            batch.commit()?;
            insert_long(&copy, &key, &value)?;
            continue;
        }
        insert(&mut batch, &copy, (&key, &value), expires.then_some(expiry));
    }
    batch.commit()?;
    db.sync()?;
    if !expires && copy.count(..)? != count {
        return Err(same_key());
    }
    copy.set_metadata(metadata)?;
    db.replace_keyspace(&copy_name, name)?;
    db.keyspace(name)
}

/// Inserts a value that may be longer than a commit takes, since it was merged, or committed with more memory. Such a one needs keys in the order of the old ones.
fn insert_long(copy: &Keyspace, key: &[u8], value: &[u8]) -> Result<()> {
    match copy.with_durability(Durability::Buffered).insert(key, value) {
        Err(too_long @ Error::ValueTooLong { .. }) => match copy.ingest([(key, value)]) {
            Err(Error::NotSorted { .. }) => Err(too_long),
            ingested => ingested.map(|_| ()),
        },
        inserted => inserted,
    }
}

fn insert(batch: &mut Batch, copy: &Keyspace, (key, value): (&[u8], &[u8]), expiry: Option<Expiry>) {
    match expiry {
        Some(expiry) => batch.insert_expiring(copy, key, value, expiry),
        None => batch.insert(copy, key, value),
    };
}
