//! Archives the log: what was committed between two backups, so that any moment between them can be restored.
//!
//! ```text
//! backup 1 ──── archive of 2 ────▶ backup 2 ──── archive of 3 ────▶ backup 3
//!             commits, events                                         │
//!                                                  its manifest names all archives that an older backup can be continued by
//! ```
//! The commits are those of the log, which the database keeps for the change feed ([`crate::wal::KeptGenerations`]); what the log does not
//! have of keyspaces are events of the manifest ([`crate::version::change_log`]), each with the edit that makes it happen again.
//!
//! Invariants:
//! 1. An archive goes on exactly where the backup before it ends: the record of the log with which that ended is there, and is the same. So
//!    a database that was set back, or is another copy, is not taken for the one that was backed up.
//! 2. An archive ends before what it cannot bring back: ingested records, and large values, which are in no log.
//! 3. Without an archive the backup is as good as any: what is missing is told, and the next archive begins with it.
//! 4. Memory: one record of the log.

use super::blob::{Header, Kind, Seal};
use super::input::read_manifest;
use super::is_unreadable;
use super::listing::Listing;
use super::manifest::{Archive, ArchiveGap, ArchivePart, BackupManifest, LastCommit};
use super::name::BlobName;
use super::output::put;
use super::target::Target;
use crate::compression::Compression;
use crate::database_id::DatabaseId;
use crate::encryption::Encryption;
use crate::error::{Error, Result};
use crate::operation::{KeyspaceId, Operation, Operations, SeqNo};
use crate::version::change_log::{EventKind, KeyspaceEvent};
use crate::version::edit::Edit;
use crate::version::trees::TreeName;
use crate::version::{Tree, Version};
use crate::wal::{HAS_TIME, LogCursor, LogFiles, Record};
use psync::Volume;
use std::collections::BTreeSet;

/// What an archive is made of.
pub(super) struct Archiver<'a> {
    pub target: &'a dyn Target,
    pub listing: &'a Listing,
    pub volume: &'a dyn Volume,
    pub database: DatabaseId,
    /// Of the log, and of the blob.
    pub encryption: &'a Encryption,
    pub version: &'a Version,
    /// Whether another process writes.
    pub follows: bool,
    /// Of the new backup: number, last operation, and a time at which nothing was committed that it has not.
    pub number: u64,
    pub seq: SeqNo,
    pub began: u64,
    /// Whether a record of a keyspace of large values says that its value lies elsewhere.
    pub is_apart: fn(&[u8]) -> bool,
}

impl Archiver<'_> {
    /// Writes the archive between the newest backup that has one, and this one.
    ///
    /// # Errors
    /// Those of `advance`, which is told of bytes that were written; [`Error::NoChanges`]; those of the target and of the device.
    pub fn run(&self, advance: &mut dyn FnMut(u64) -> Result<()>) -> Result<Archive> {
        let change_log = self.version.change_log.as_ref().filter(|log| log.keeping.bytes > 0);
        let change_log = change_log.ok_or_else(|| Error::NoChanges { path: self.volume.describe() })?;
        let mut archive = Archive { next_event: change_log.next_event(), ..Archive::default() };
        let (before, is_damaged) = self.newest()?;
        let Some(before) = before else {
            archive.gap = is_damaged.then_some(ArchiveGap::NotKept);
            archive.last = self.last_commit()?;
            return Ok(archive);
        };
        let backups = self.listing.backups();
        let old = before.archive.as_ref().map(|archive| archive.parts.as_slice()).unwrap_or_default();
        // No restore begins before the first one that continues a backup which is there.
        archive.parts = old.iter().skip_while(|part| !backups.contains(&part.after)).copied().collect();
        match self.put(&before, advance) {
            Ok((part, last)) => {
                archive.parts.push(part);
                archive.last = last;
            }
            Err(error) if error.is_damage() || matches!(error, Error::ChangesGone { .. }) => {
                tracing::warn!(%error, "the log since the last backup was not archived");
                archive.gap = Some(ArchiveGap::NotKept);
                archive.last = self.last_commit()?;
            }
            Err(error) => return Err(error),
        }
        Ok(archive)
    }

    /// The manifest of the newest backup of this database after which the log is to be archived, and whether newer ones are damaged.
    fn newest(&self) -> Result<(Option<BackupManifest>, bool)> {
        let mut is_damaged = false;
        for number in self.listing.backups().into_iter().rev() {
            match read_manifest(self.target, number) {
                Ok((manifest, _)) if manifest.database == self.database && manifest.archive.is_some() => {
                    return Ok((Some(manifest), is_damaged));
                }
                Ok(_) => {}
                Err(error) if is_unreadable(&error) => {
                    tracing::warn!(%error, "the log is archived from an older backup on than this one, which cannot be read");
                    is_damaged = true;
                }
                Err(error) => return Err(error),
            }
        }
        Ok((None, is_damaged))
    }

    /// The last commit that the backup has, if the log has it still.
    fn last_commit(&self) -> Result<Option<LastCommit>> {
        let mut last = None;
        let passed = self.seq.saturating_sub(1);
        let read = self.read(passed, &mut |record| {
            last = Some(LastCommit::of(record));
            Ok(())
        });
        match read {
            // It is only what the next archive is compared with.
            Err(error) if error.is_damage() || matches!(error, Error::ChangesGone { .. }) => Ok(None),
            read => read.map(|()| last),
        }
    }

    /// Passes the records with operations behind `passed` to `each`.
    fn read(&self, passed: SeqNo, each: &mut dyn FnMut(&Record) -> Result<()>) -> Result<()> {
        if passed >= self.seq {
            return Ok(());
        }
        let gone = || Error::ChangesGone { since: passed, from: self.seq };
        let files = LogFiles::new(self.volume, self.database);
        let cursor = LogCursor::behind(files, passed)?;
        let is_whole = cursor.ok_or_else(gone)?.read_until(files, self.encryption, self.seq, each)?;
        if is_whole { Ok(()) } else { Err(gone()) }
    }

    fn put(
        &self,
        before: &BackupManifest,
        advance: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<(ArchivePart, Option<LastCommit>)> {
        let gone = || Error::ChangesGone { since: before.seq, from: self.seq };
        let Some(Archive { next_event, last, .. }) = before.archive else { return Err(gone()) };
        let change_log = self.version.change_log.as_ref().ok_or_else(gone)?;
        if before.seq > self.seq || change_log.keeping.from > before.seq {
            return Err(gone());
        }
        let known = usize::try_from(next_event.wrapping_sub(change_log.keeping.first_event)).ok();
        let events = known.and_then(|known| change_log.events.get(known..)).ok_or_else(gone)?;
        let large = self.version.trees.iter().filter(|(_, tree)| tree.chunks.is_some()).map(|(id, _)| id);
        let mut part = ArchivePart {
            after: before.number,
            from: before.seq,
            from_time: before.time,
            to: before.seq,
            until: before.known_until(),
            gap: None,
            backup: self.number,
            seal: Seal::default(),
        };
        let mut writing = Writing {
            version: self.version,
            events,
            large: large
                .chain(events.iter().filter(|event| event.large).map(|event| event.keyspace))
                .collect(),
            is_apart: self.is_apart,
            part: &mut part,
            last,
        };
        let header = Header {
            is_encrypted: self.encryption.is_on(),
            has_archive: true,
            kind: Kind::Archive,
            database: self.database,
            backup: self.number,
            a: before.seq,
            b: self.seq,
        };
        let name = BlobName::Archive(self.number);
        let seal = put(self.target, name, (&header, self.encryption), &mut |blob| {
            let (mut next, mut refused) = (before.seq + 1, None);
            // The record with which the backup ended has to be there, and the same.
            let passed = last.map_or(before.seq, |last| last.first_seq - 1);
            let read = self.read(passed, &mut |record| {
                if record.first_seq < next {
                    let is_it = last == Some(LastCommit::of(record));
                    return if is_it { Ok(()) } else { Err(gone()) };
                }
                let mut frames = Frames::default();
                writing.commit(record, &mut frames);
                next = record.first_seq + u64::from(record.count);
                if let Err(error) = blob.put(&frames.0) {
                    // The rest of the log is not read for a target that takes no more.
                    refused = Some(error);
                    return Err(Error::Stopped);
                }
                advance(frames.0.len() as u64)
            });
            refused.map_or(Ok(()), Err)?;
            read?;
            let mut frames = Frames::default();
            writing.events_before(SeqNo::MAX, &mut frames);
            Ok(blob.put(&frames.0)?)
        })?;
        let last = writing.last;
        if part.gap.is_none() {
            part.to = self.seq;
            // What was not durable when a follower came is missing: all that it knows is that it has what comes before what it has.
            part.until = if self.follows { part.until } else { self.began };
        }
        Ok((ArchivePart { seal, ..part }, last))
    }
}

impl LastCommit {
    fn of(record: &Record) -> Self {
        Self { first_seq: record.first_seq, crc: crc32c::crc32c(&record.body) }
    }
}

/// Frames, one behind the other.
#[derive(Default)]
struct Frames(Vec<u8>);

impl Frames {
    fn put(&mut self, parts: &[&[u8]]) {
        let len: usize = parts.iter().map(|bytes| bytes.len()).sum();
        self.0.reserve(4 + len);
        self.0.extend_from_slice(&(len as u32).to_le_bytes());
        parts.iter().for_each(|bytes| self.0.extend_from_slice(bytes));
    }
}

/// What goes to an archive, one after the other.
struct Writing<'a> {
    version: &'a Version,
    /// Those that are to come.
    events: &'a [KeyspaceEvent],
    large: BTreeSet<KeyspaceId>,
    is_apart: fn(&[u8]) -> bool,
    part: &'a mut ArchivePart,
    last: Option<LastCommit>,
}

impl Writing<'_> {
    fn commit(&mut self, record: &Record, frames: &mut Frames) {
        self.events_before(record.first_seq, frames);
        self.last = Some(LastCommit::of(record));
        if self.part.gap.is_some() {
            return;
        }
        let is_apart = |operation: Operation<'_>| {
            let stored = operation.as_change().and_then(|change| change.value);
            self.large.contains(&operation.keyspace()) && stored.is_some_and(self.is_apart)
        };
        if Operations::new(&record.body).filter_map(|operation| operation.ok()).any(is_apart) {
            self.part.gap = Some(ArchiveGap::LargeValue);
            return;
        }
        let time = record.time.map(u64::to_le_bytes);
        let count = record.count | time.map_or(0, |_| HAS_TIME);
        let time: &[u8] = time.as_ref().map_or(&[], |time| time);
        frames.put(&[&record.first_seq.to_le_bytes(), &count.to_le_bytes(), time, &record.body]);
        self.part.to = record.first_seq + u64::from(record.count) - 1;
        self.part.until = self.part.until.max(record.time.unwrap_or(0));
    }

    /// The events that come before an operation.
    fn events_before(&mut self, seq: SeqNo, frames: &mut Frames) {
        while let Some((event, later)) = self.events.split_first()
            && event.seq < seq
        {
            self.events = later;
            if self.part.gap.is_some() {
                continue;
            }
            match edit_of(event, self.version) {
                Ok(edit) => {
                    let mut bytes = Vec::new();
                    edit.encode(&mut bytes);
                    // Commits may have passed it on its way to the manifest, and the backup before may have those.
                    let (seq, time) = (event.seq.max(self.part.to), event.time);
                    // All that was committed before an event is durable before it.
                    if event.seq <= self.part.to {
                        self.part.until = self.part.until.max(time);
                    }
                    let (seq, time) = (seq.to_le_bytes(), time.to_le_bytes());
                    frames.put(&[&seq, &0u32.to_le_bytes(), &time, &bytes]);
                }
                Err(gap) => self.part.gap = Some(gap),
            }
        }
    }
}

/// The edit that makes an event happen again.
fn edit_of(event: &KeyspaceEvent, version: &Version) -> std::result::Result<Edit, ArchiveGap> {
    let (id, name) = (event.keyspace, &event.name);
    let now = version.trees.get(&id);
    let metadata = now.and_then(|tree| tree.metadata.clone());
    let names = vec![TreeName { id, name: name.clone(), metadata }];
    match event.kind {
        EventKind::Ingested => Err(ArchiveGap::Ingested),
        EventKind::Created if event.large => Err(ArchiveGap::LargeValue),
        EventKind::Created if event.merges && now.is_none() => Err(ArchiveGap::DroppedKeyspace),
        EventKind::Created => {
            let compression = now.map_or(Compression::None, |tree| tree.compressor.compression);
            let is_compressed = compression != Compression::None;
            let ttl = now.map_or_else(|| event.expires.then(Default::default), |tree| tree.ttl);
            Ok(Edit {
                trees: vec![(id, Tree::empty(name.clone()))],
                names,
                ttls: ttl.into_iter().map(|ttl| (id, ttl)).collect(),
                merges: now.and_then(|tree| tree.merging.clone()).into_iter().map(|it| (id, it)).collect(),
                durabilities: now.and_then(|tree| tree.durability).into_iter().map(|it| (id, it)).collect(),
                compressions: is_compressed.then_some((id, compression)).into_iter().collect(),
                ..Edit::default()
            })
        }
        EventKind::Renamed => Ok(Edit { names, ..Edit::default() }),
        EventKind::Dropped => Ok(Edit { dropped: vec![id], ..Edit::default() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The backup before had two commits more than the event knew of: a restore took its archive for damaged.
    #[test]
    fn an_event_that_commits_have_passed_comes_behind_them() {
        let seal = Seal::default();
        let mut part =
            ArchivePart { after: 1, from: 105, from_time: 7, to: 105, until: 7, gap: None, backup: 2, seal };
        let (kind, keyspace, seq) = (EventKind::Dropped, KeyspaceId(3), 100);
        let (expires, merges, large) = (false, false, false);
        let name = "ships".into();
        let event = KeyspaceEvent { kind, keyspace, seq, time: 9, expires, merges, large, name };
        let mut writing = Writing {
            version: &Version::empty(1 << 20),
            events: &[event],
            large: BTreeSet::new(),
            is_apart: |_| false,
            part: &mut part,
            last: None,
        };
        let mut frames = Frames::default();
        writing.events_before(106, &mut frames);
        assert_eq!(frames.0[4..12], 105u64.to_le_bytes());
        assert_eq!(frames.0[12..24], [0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
    }
}
