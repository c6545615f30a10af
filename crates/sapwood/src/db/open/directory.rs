//! What is in the directory of a database that is opened: one, the beginning of one, what is left of one, or something else.
//!
//! Invariant: a database is created only where nothing else is, nor what is left of one: no file is removed that an interrupted
//! creation cannot have left.

use crate::backup::RESTORING;
use crate::cache::pager;
use crate::database_id::DatabaseId;
use crate::db::options::Builder;
use crate::encryption::{self, Encryption};
use crate::error::{Error, Result};
use crate::followers::durable;
use crate::followers::registration::is_registration;
use crate::reserve;
use crate::version::Version;
use crate::version::current::{self, Current};
use crate::version::manifest::{self, Manifest};
use crate::wal::{self, Tail, WalWriter};
use psync::{Access, Entry, Volume};
use std::sync::Arc;

/// The maximum size of a file left by an interrupted creation, in bytes: a file that was ever used is longer, but for
/// the log's.
const LEFTOVER_MAX: u64 = 256;

pub(in crate::db) fn has_current(entries: &[Entry]) -> bool {
    entries.iter().any(|entry| entry.name == current::FILE)
}

/// The error that tells why there is nothing to open.
pub(in crate::db) fn missing(volume: &dyn Volume, path: &str) -> Result<Error> {
    let entries = volume.list()?;
    Ok(match foreign(&entries) {
        Some(reason) => Error::NotADatabase { path: path.into(), reason },
        None => lost_current(&entries).unwrap_or_else(|| Error::Missing { path: path.into() }),
    })
}

/// Returns damage if the directory without a `CURRENT` was once a database, rather than an interrupted
/// creation, which leaves only the first files, and these small.
fn lost_current(entries: &[Entry]) -> Option<Error> {
    let was_used = |Entry { name, len }: &&Entry| {
        let most = if name == pager::FILE { 0 } else { LEFTOVER_MAX };
        let most = wal::generation_of(name).map_or(most, |_| wal::HEADER_LEN as u64);
        let is_first = |number: Option<u64>| number.is_none_or(|number| number == 1);
        let is_first = is_first(wal::generation_of(name)) && is_first(manifest::number_of(name));
        name != "LOCK" && (*len > most || !is_first)
    };
    let found = entries.iter().filter(|entry| is_ours(&entry.name)).find(was_used)?;
    let what = format!("it is missing, but {:?} with {} bytes is here", found.name, found.len);
    Some(Error::corrupt(current::FILE, 0, what, "a file", "none"))
}

/// Whether a file of this name can be left by an interrupted creation.
fn is_ours(name: &str) -> bool {
    name == "LOCK"
        || name == pager::FILE
        || name == current::TEMPORARY
        || name == encryption::FILE
        || name == encryption::TEMPORARY
        || manifest::number_of(name).is_some()
        || wal::generation_of(name).is_some()
        || wal::is_copy(name)
}

/// Whether this is what file managers, file servers and version control leave in directories that are empty for
/// people.
fn is_litter(name: &str) -> bool {
    const NAMES: &[&str] = &[
        ".DS_Store",
        ".directory",
        ".gitattributes",
        ".gitignore",
        ".gitkeep",
        ".hidden",
        ".keep",
        ".localized",
        ".nobackup",
        ".placeholder",
        "CACHEDIR.TAG",
        "Thumbs.db",
        "desktop.ini",
        "lost+found",
    ];
    // macOS on other file systems; removed, but still open: on NFS, in FUSE, on CIFS.
    const BEGINNINGS: &[&str] = &["._", ".nfs", ".fuse_hidden", ".smb", ".__afs"];
    NAMES.contains(&name) || BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
}

/// The evidence that the directory holds something else, if it does.
pub(super) fn foreign(entries: &[Entry]) -> Option<String> {
    // Beside a database's other files it is the reserve, not a stranger's file of this name.
    let has_data = entries.iter().any(|entry| entry.name == pager::FILE);
    let is_beside = |name: &str| name == reserve::FILE || name == durable::FILE || is_registration(name);
    let is_known = |name: &str| is_ours(name) || is_litter(name) || (has_data && is_beside(name));
    let others: Vec<_> = entries.iter().filter(|entry| !is_known(&entry.name)).collect();
    let first = others.first()?;
    let of_others = || {
        let (current, count) = (current::FILE, others.len());
        format!("it has no file {current}, but {count} other file(s), such as {:?}", first.name)
    };
    Some(unfinished(entries).unwrap_or_else(of_others))
}

/// What is said of a directory without `CURRENT` that a restore or a repair has begun to fill.
pub(in crate::db) fn unfinished(entries: &[Entry]) -> Option<String> {
    let is_restoring = entries.iter().any(|entry| entry.name == RESTORING);
    is_restoring.then(|| "a restore or a repair into it has not ended: repeat it".to_owned())
}

/// Creates a new database. `CURRENT` comes last: a crash before that leaves only files that the next attempt
/// removes.
pub(super) fn create(
    volume: &Arc<dyn Volume>,
    entries: &[Entry],
    options: &Builder,
    path: &str,
) -> Result<()> {
    if let Some(reason) = foreign(entries) {
        return Err(Error::NotADatabase { path: path.into(), reason });
    }
    if let Some(damage) = lost_current(entries) {
        return Err(damage);
    }
    for entry in entries.iter().filter(|entry| entry.name != "LOCK" && is_ours(&entry.name)) {
        volume.remove(&entry.name)?;
    }
    let access = Access { write: true, create: true, ..Access::default() };
    let data = volume.open(pager::FILE, access)?;
    volume.sync(data)?;
    volume.close(data)?;
    let database = DatabaseId::random()?;
    let encryption = Encryption::create(&**volume, database, options.key())?;
    let wal = WalWriter::create(Arc::clone(volume), database, &Tail::none())?;
    let version = Version { wal_high: wal.generation(), ..Version::empty(options.span()) };
    let current =
        Current { format: current::FORMAT, database, manifest: 1, span: options.span(), manifest_len: 0 };
    Manifest::create(Arc::clone(volume), (current, &encryption), &version)?;
    Ok(())
}
