//! Lists backups, and removes old ones with the blobs that no other needs.
//!
//! Invariants:
//! 1. A blob is removed only when none of the manifests of all backups that are left names it. Blobs of a backup that is there are: what was
//!    written for it, its manifest names. For others the manifests are read. A manifest is removed before any blob that it names.
//! 2. What an attempt has left that came to no end stays until a later backup of the same database is done: it may be terabytes, and others
//!    that share the target have no say in that. What no later attempt takes over goes with the next one.
//! 3. A removal has read all that it needs to know before anything goes, and whatever is left of a backup can be removed by its number: so one
//!    that was cut off can be repeated, wherever that was. No backup gets the number of one that was removed: who repeats it would remove that.

use super::blob::Seal;
use super::called;
use super::input::{database_of, read_manifest};
use super::listing::Listing;
use super::manifest::{Archive, ArchiveGap, BackupManifest, named};
use super::name::{BlobName, mark};
use super::point::time_of;
use super::target::Target;
use crate::error::{Error, Result};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

/// A backup.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// db.keyspace("ships")?.insert("fram", "1892")?;
/// let taken = db.backup().run(&sapwood::backup::Directory::open(dir.path().join("backups"))?)?;
/// println!("backup {} of {:?}: {} bytes, {} copied", taken.number, taken.time, taken.bytes, taken.copied);
/// assert_eq!(taken.sequence, 1); // up to the first change
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BackupInfo {
    /// Its number in the target, from 1.
    pub number: u64,
    /// The moment, by the clock of the database.
    pub time: SystemTime,
    /// The random id of the database, as 32 hexadecimal digits.
    pub database: String,
    /// The number of changes that the database had had.
    pub sequence: u64,
    /// Bytes of all blobs that it consists of.
    pub bytes: u64,
    /// Bytes of segments that were copied for it; the others were there.
    pub copied: u64,
    /// Blobs that it consists of (count).
    pub blobs: u64,
    /// Which moments before it can be restored, if [the log is archived](crate::backup::Backup::archive_log).
    pub archive: Option<Archived>,
}

/// Which moments before a backup can be restored: all since `since`, for as long as the backup with which they begin is there. [`list`] tells it of
/// the backups that are there now. See
/// [`Restore::to`](crate::backup::Restore::to).
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::builder().keep_changes(1 << 20).open(dir.path().join("ships.db"))?;
/// let target = sapwood::backup::Directory::open(dir.path().join("backups"))?;
/// let first = db.backup().archive_log().run(&target)?;
/// db.keyspace("ships")?.insert("fram", "1892")?;
/// let second = db.backup().archive_log().run(&target)?;
/// assert_eq!(second.archive.map(|archive| archive.since), Some(first.time));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Archived {
    /// The time of the backup with which they begin.
    pub since: SystemTime,
    /// That backup's last operation.
    pub since_sequence: u64,
    /// Bytes of all archives.
    pub bytes: u64,
    /// Why no moment between the backup before and this one can be restored, or not all.
    pub gap: Option<ArchiveGap>,
}

impl Archived {
    fn of(manifest: &BackupManifest, archive: &Archive, others: &BTreeSet<u64>) -> Self {
        let (mut since, mut since_sequence, mut at) = (manifest.time, manifest.seq, manifest.number);
        let parts: BTreeMap<_, _> = archive.parts.iter().map(|part| (part.backup, part)).collect();
        let before = |number| parts.get(&number).copied();
        while let Some(part) = before(at).filter(|part| part.gap.is_none()) {
            at = part.after;
            // Archives stay when backups between them are removed.
            if others.contains(&at) {
                (since, since_sequence) = (part.from_time, part.from);
            }
        }
        let gap = archive.gap.or(before(manifest.number).and_then(|part| part.gap));
        let bytes = archive.parts.iter().map(|part| part.seal.len).sum();
        Self { since: time_of(since), since_sequence, bytes, gap }
    }
}

impl BackupInfo {
    /// What a manifest says; `seal` is its own. `others`: backups of the target, without which no moment begins.
    pub(super) fn of(manifest: &BackupManifest, seal: Seal, others: &BTreeSet<u64>) -> Self {
        let (mut bytes, mut blobs) = (seal.len, 1);
        named(manifest).for_each(|(_, seal)| {
            bytes += seal.len;
            blobs += 1;
        });
        Self {
            number: manifest.number,
            time: time_of(manifest.time),
            database: manifest.database.to_string(),
            sequence: manifest.seq,
            bytes,
            copied: manifest.copied,
            blobs,
            archive: manifest.archive.as_ref().map(|archive| Archived::of(manifest, archive, others)),
        }
    }
}

/// What was removed from a target.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # let target = sapwood::backup::Directory::open(dir.path().join("backups"))?;
/// db.backup().run(&target)?;
/// let removed = sapwood::backup::remove(&target, 1)?;
/// assert!(removed.blobs >= 3 && removed.bytes > 0);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Removed {
    /// Blobs (count).
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Removed {
    fn add(&mut self, bytes: u64) {
        self.blobs += 1;
        self.bytes += bytes;
    }
}

/// Lists the backups of a target, the oldest first.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// use sapwood::backup::{self, Directory};
///
/// let target = Directory::open(dir.path().join("backups"))?;
/// db.backup().run(&target)?;
/// for backup in backup::list(&target)? {
///     println!("{}: {:?}, {} bytes", backup.number, backup.time, backup.bytes);
/// }
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`Error::BackupTarget`]; [`Error::BackupDamaged`] if a manifest is; [`Error::NewerFormat`] if one is of a newer Sapwood.
pub fn list(target: &dyn Target) -> Result<Vec<BackupInfo>> {
    list_each(target)?.into_iter().map(|(_, info)| info).collect()
}

/// Lists the backups of a target, the oldest first: their numbers, and what each one's manifest says, or why it does not. With one that is
/// damaged the others can still be restored.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// use sapwood::backup::{self, Directory};
///
/// let target = Directory::open(dir.path().join("backups"))?;
/// db.backup().run(&target)?;
/// for (number, info) in backup::list_each(&target)? {
///     match info {
///         Ok(info) => println!("{number}: {:?}, {} bytes", info.time, info.bytes),
///         Err(error) => println!("{number}: {error}"),
///     }
/// }
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`Error::BackupTarget`]. Those of a backup: [`Error::BackupTarget`], [`Error::BackupDamaged`], [`Error::NewerFormat`].
pub fn list_each(target: &dyn Target) -> Result<Vec<(u64, Result<BackupInfo>)>> {
    let numbers = Listing::read(target)?.backups();
    // No moment begins with one that cannot be read.
    let mut readable = BTreeSet::new();
    let infos = numbers.into_iter().map(|number| {
        let read = read_manifest(target, number);
        let info = read.map(|(manifest, seal)| BackupInfo::of(&manifest, seal, &readable));
        readable.extend(info.is_ok().then_some(number));
        (number, info)
    });
    Ok(infos.collect())
}

/// Removes a backup, and all blobs that no other backup needs. Its number is not given again: of the newest one an empty blob `given-N` stays. If
/// it fails or is interrupted, repeat it: the backup may be none any more, and what
/// is left of it is removed by its number, or goes when the next backup of the same database is done. [`Error::NoBackup`] says that nothing is
/// left that no other backup needs.
///
/// That also holds for what is left of a backup that was interrupted: it stays for the next backup of the same database, which goes on with it. If
/// no other is to come, remove it, by the number in the names of its blobs.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// use sapwood::backup::{self, Directory};
///
/// let target = Directory::open(dir.path().join("backups"))?;
/// (0..5).try_for_each(|_| db.backup().run(&target).map(drop))?;
/// let old: Vec<_> = backup::list(&target)?.iter().rev().skip(3).map(|backup| backup.number).collect();
/// old.into_iter().try_for_each(|number| backup::remove(&target, number).map(drop))?; // the last three are left
/// assert_eq!(backup::list(&target)?.len(), 3);
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`Error::NoBackup`], [`Error::BackupTarget`]; [`Error::BackupDamaged`] if the manifest of another backup is, and [`Error::NewerFormat`] if
/// that is of a newer Sapwood, so that it is not known what that needs: then nothing was removed. If the manifest of this one is damaged too, that manifest and the version are removed alone: its
/// other blobs go with the first backup or removal that can read all manifests.
pub fn remove(target: &dyn Target, number: u64) -> Result<Removed> {
    let _lock = called(target, "lock", "the target", target.lock())?;
    let listing = Listing::read(target)?;
    let none = || no_backup(target, Some(number), &listing);
    let is_of_it = |name: &BlobName| name.backup() == number;
    if !listing.blobs.keys().any(is_of_it) {
        return Err(none());
    }
    let mut backups = listing.backups();
    // Without a manifest it is an attempt, or what a removal has left.
    let is_backup = backups.remove(&number);
    // Whatever attempts have left above it: that may go with it.
    let is_newest = backups.last().is_none_or(|last| *last < number);
    let mut own = [BlobName::Manifest(number), BlobName::Version(number)];
    let mut unnamed = Unnamed { blobs: listing.blobs.keys().copied().collect(), ..Unnamed::default() };
    let read = backups.into_iter().try_for_each(|other| -> Result<()> {
        unnamed.take_out(&read_manifest(target, other)?.0);
        Ok(())
    });
    match read {
        // Of two that are damaged each would keep the other for ever.
        Err(error) if is_backup && error.is_damage() && is_damaged(target, number)? => {
            tracing::warn!(%error, "the blobs of a damaged backup stay until all manifests can be read");
            unnamed.blobs = own.into();
            // As long as it has its manifest it is a backup, so that this can be repeated.
            own.reverse();
        }
        read => {
            read?;
            for attempt in listing.attempts().into_iter().filter(|attempt| *attempt != number) {
                unnamed.keep_attempt(target, attempt)?;
            }
        }
    }
    if !unnamed.blobs.iter().any(is_of_it) {
        return Err(none());
    }
    if number > listing.marked && is_newest {
        mark_given(target, number, listing.marked)?;
    }
    let mut removed = Removed::default();
    // One by one: without its manifest it is no backup, and without its version no attempt that could be gone on with.
    for own in own {
        unnamed.blobs.remove(&own);
        let Some(bytes) = listing.blobs.get(&own) else { continue };
        let name = own.to_string();
        called(target, "remove", &name, target.delete(std::slice::from_ref(&name)))?;
        removed.add(*bytes);
    }
    unnamed.remove(target, &listing, &mut removed)?;
    Ok(removed)
}

/// Leaves a mark that this number, above those of all backups, was given, in place of the one before (0: there is none).
fn mark_given(target: &dyn Target, number: u64, before: u64) -> Result<()> {
    let name = mark(number);
    match target.put(&name, &mut |_| Ok(())).and_then(|()| target.sync()) {
        // It is removed for want of space.
        Err(error) if error.kind() == std::io::ErrorKind::StorageFull => {
            tracing::warn!(%error, number, "the next backup may get the number of the one that is removed");
            return Ok(());
        }
        put => called(target, "write", &name, put)?,
    }
    if before == 0 {
        return Ok(());
    }
    let before = mark(before);
    called(target, "remove", &before, target.delete(std::slice::from_ref(&before)))
}

/// Whether the manifest of a backup is damaged.
fn is_damaged(target: &dyn Target, number: u64) -> Result<bool> {
    match read_manifest(target, number) {
        Err(error) if error.is_damage() => Ok(true),
        read => read.map(|_| false),
    }
}

pub(super) fn no_backup(target: &dyn Target, number: Option<u64>, listing: &Listing) -> Error {
    let existing: Vec<_> = listing.backups().iter().map(u64::to_string).collect();
    Error::NoBackup {
        target: target.describe(),
        wanted: number.map_or("backup".to_owned(), |number| format!("backup {number}")),
        existing: if existing.is_empty() { "none".to_owned() } else { existing.join(", ") },
    }
}

/// Removes what attempts have left that came to no end, and that no later one takes over. The caller has locked the target.
pub(super) fn remove_vain(target: &dyn Target, listing: &Listing) -> Result<()> {
    let (last, attempts) = (listing.backups().last().copied(), listing.attempts());
    let is_vain = |name: &&BlobName| {
        let may_be_taken = matches!(name, BlobName::Version(_) | BlobName::Segment { .. });
        last.is_none_or(|last| name.backup() > last) && !(may_be_taken && attempts.contains(&name.backup()))
    };
    delete(target, listing.blobs.keys().filter(is_vain))
}

/// Removes all blobs that no backup needs, but those with which a later attempt goes on. The caller has locked the target. `taken`: the newest
/// backup, of which all is known already. Manifests are read as long as they can say something new, the newest first: they name most.
pub(super) fn remove_unnamed(target: &dyn Target, taken: &BackupManifest) -> Result<()> {
    let listing = Listing::read(target)?;
    let mut backups = listing.backups();
    let of_others = listing.blobs.keys().copied().filter(|name| !backups.contains(&name.backup()));
    let mut unnamed = Unnamed { blobs: of_others.collect(), ..Unnamed::default() };
    unnamed.take_out(taken);
    backups.remove(&taken.number);
    let mut attempts = listing.attempts();
    for number in backups.into_iter().rev() {
        // Older backups say nothing of them.
        for attempt in attempts.split_off(&number) {
            unnamed.keep_attempt(target, attempt)?;
        }
        if unnamed.blobs.is_empty() {
            return Ok(());
        }
        unnamed.take_out(&read_manifest(target, number)?.0);
    }
    for attempt in attempts {
        unnamed.keep_attempt(target, attempt)?;
    }
    unnamed.remove(target, &listing, &mut Removed::default())
}

/// Blobs that no manifest names of those that were looked at.
#[derive(Default)]
struct Unnamed {
    blobs: BTreeSet<BlobName>,
    /// The newest backup of each database, by its id.
    newest: BTreeMap<[u8; 16], u64>,
}

impl Unnamed {
    /// Leaves to a backup what it needs.
    fn take_out(&mut self, manifest: &BackupManifest) {
        self.blobs.remove(&BlobName::Manifest(manifest.number));
        named(manifest).for_each(|(name, _)| _ = self.blobs.remove(&name));
        let newest = self.newest.entry(manifest.database.0).or_default();
        *newest = manifest.number.max(*newest);
    }

    /// Leaves to an attempt, and to the next one of its database, what is in it, if there is no newer backup of that.
    fn keep_attempt(&mut self, target: &dyn Target, attempt: u64) -> Result<()> {
        let stays = match database_of(target, attempt) {
            Ok(database) => database
                .is_some_and(|database| self.newest.get(&database.0).is_none_or(|newest| attempt > *newest)),
            Err(Error::NewerFormat { .. }) => true,
            Err(error) => return Err(error),
        };
        if stays {
            let is_kept = |name: &BlobName| matches!(name, BlobName::Version(_) | BlobName::Segment { .. });
            self.blobs.retain(|name| name.backup() != attempt || !is_kept(name));
        }
        Ok(())
    }

    /// Removes what is left.
    fn remove(self, target: &dyn Target, listing: &Listing, removed: &mut Removed) -> Result<()> {
        let there = || self.blobs.iter().filter_map(|name| Some((name, listing.blobs.get(name)?)));
        delete(target, there().map(|(name, _)| name))?;
        there().for_each(|(_, bytes)| removed.add(*bytes));
        Ok(())
    }
}

/// Removes blobs.
pub(super) fn delete<'n>(target: &dyn Target, names: impl Iterator<Item = &'n BlobName>) -> Result<()> {
    let names: Vec<_> = names.map(BlobName::to_string).collect();
    if names.is_empty() {
        return Ok(());
    }
    called(target, "remove", "blobs that no backup needs", target.delete(&names))
}
