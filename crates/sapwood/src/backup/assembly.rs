//! Makes a database of the blobs of a backup, or only checks that they would make one.
//!
//! ```text
//! begin: RESTORING ─▶ data, log written as the blobs come ─▶ synced ─▶ manifest, CURRENT ─▶ RESTORING removed
//! ```
//! The copy is another database: its id is new. Otherwise files of the original and of the copy would be taken for one another's,
//! although both have gone on by themselves under the same numbers. Segments keep their numbers, and get places one behind the other.
//!
//! Invariants:
//! 1. As long as there is `RESTORING` and no `CURRENT`, nothing in the directory counts: it opens as no database, and the next restore
//!    removes what is there.
//! 2. All blobs that the manifest names were taken once, as it names them, and no others.

mod archives;

use self::archives::{ArchiveProgress, happen_again};
use super::blob::{BlobReader, Header, Input, Kind, Seal};
use super::manifest::{BackupManifest, needed};
use super::name::BlobName;
use crate::database_id::DatabaseId;
use crate::encryption::{self, Encryption, EncryptionKey};
use crate::error::{Error, Result};
use crate::operation::{NUMBER_MAX, Operations, SeqNo};
use crate::storage::data_file::{PAGE, least_len};
use crate::storage::reader::FILE as DATA_FILE;
use crate::storage::segment::Segment;
use crate::storage::slots::{Slots, granules};
use crate::version::Version;
use crate::version::current::{self, Current};
use crate::version::edit::Edit;
use crate::version::manifest::{self, EDIT_MAX, Manifest};
use crate::wal::{self, BODY_LEN_MAX, Tail, WalWriter};
use psync::{Access, Disk, DiskOptions, FileId, Volume, Write};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Opens a directory in which a tool reads or writes a database, through the page cache.
pub(crate) fn open(path: &Path, create: bool) -> Result<Arc<dyn Volume>> {
    let options = DiskOptions { direct: false, create, ..DiskOptions::default() };
    let disk = Disk::open(path, options);
    Ok(Arc::new(disk.map_err(|error| Error::of_opening(error, &path.display().to_string()))?))
}

/// The file that says that a restore has begun and is not done.
pub(crate) const RESTORING: &str = "RESTORING";
/// Bytes of commits that are written to the log together: enough for a device's full speed, and little memory.
const LOG_STEP: usize = 1 << 20;
/// Bytes of a commit before its body, as the format has it.
const COMMIT_HEAD: usize = 8 + 4;

/// Where a database is made.
struct Output {
    volume: Arc<dyn Volume>,
    data: FileId,
    database: DatabaseId,
    encryption: Encryption,
    log: Option<WalWriter>,
}

impl Drop for Output {
    fn drop(&mut self) {
        // What counts was synced.
        let _ = self.volume.close(self.data);
    }
}

/// See the module.
pub(super) struct Assembly {
    output: Option<Output>,
    key: Option<EncryptionKey>,
    /// How the backup is encrypted, as its keys say.
    encryption: Encryption,
    /// Where the segments get their places.
    slots: Arc<Slots>,
    version: Option<Version>,
    /// Blobs taken.
    taken: BTreeMap<BlobName, Seal>,
    /// Of the backup: its database and number, as the first blob says.
    of: Option<(DatabaseId, u64)>,
    /// First and last sequence number of the log.
    log: Option<(u64, u64)>,
    /// What was taken of archives, ...
    archived: ArchiveProgress,
    /// ... and what happened to keyspaces there.
    happened: Vec<Edit>,
}

/// Returns an error unless a database may be restored here, and removes what an interrupted restore has left.
fn prepare(volume: &dyn Volume) -> Result<()> {
    let entries = volume.list()?;
    let ours = |name: &str| {
        name == DATA_FILE
            || name == current::TEMPORARY
            || name == RESTORING
            || name == encryption::FILE
            || name == encryption::TEMPORARY
            || manifest::number_of(name).is_some()
            || wal::generation_of(name).is_some()
    };
    let is_restoring = entries.iter().any(|entry| entry.name == RESTORING);
    let is_whole = entries.iter().any(|entry| entry.name == current::FILE);
    let stays = |name: &str| name == "LOCK" || name == "lost+found";
    for entry in entries.iter().filter(|entry| !stays(&entry.name)) {
        if is_whole || !is_restoring || !ours(&entry.name) {
            let found = format!("{:?}", entry.name);
            return Err(Error::NotEmpty { path: volume.describe(), found });
        }
    }
    if is_restoring {
        // `CURRENT` may have been taken away, and come back with a power failure: not behind what it needs.
        volume.sync_directory()?;
    }
    // The sign comes last.
    for entry in entries.iter().filter(|entry| ours(&entry.name) && entry.name != RESTORING) {
        volume.remove(&entry.name)?;
    }
    Ok(())
}

fn create(volume: &dyn Volume, name: &str) -> Result<FileId> {
    Ok(volume.open(name, Access { write: true, create: true, ..Access::default() })?)
}

/// Begins a database in a directory that must be empty. Returns its data file.
pub(crate) fn begin(volume: &dyn Volume) -> Result<FileId> {
    prepare(volume)?;
    let sign = create(volume, RESTORING)?;
    let synced = volume.sync(sign);
    volume.close(sign)?;
    synced?;
    volume.sync_directory()?;
    create(volume, DATA_FILE)
}

impl Assembly {
    /// Only checks.
    pub fn checking(key: Option<&EncryptionKey>) -> Self {
        Self {
            output: None,
            key: key.cloned(),
            encryption: Encryption::NONE,
            slots: Arc::default(),
            version: None,
            taken: BTreeMap::new(),
            of: None,
            log: None,
            archived: ArchiveProgress::default(),
            happened: Vec::new(),
        }
    }

    /// Begins to make a database on this volume, which must be empty.
    pub fn on(volume: &Arc<dyn Volume>, key: Option<&EncryptionKey>) -> Result<Self> {
        let data = begin(&**volume)?;
        let (volume, database, encryption) = (Arc::clone(volume), DatabaseId::random()?, Encryption::NONE);
        let output = Output { volume, data, database, encryption, log: None };
        Ok(Self { output: Some(output), ..Self::checking(key) })
    }

    /// Whether nothing is made of what is taken.
    pub fn only_checks(&self) -> bool {
        self.output.is_none()
    }

    /// Takes a blob. The version comes before segments.
    pub fn take<I: Input>(
        &mut self,
        reader: &mut BlobReader<'_, I>,
        advance: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        let Header { kind, database, backup, .. } = reader.header;
        if kind != Kind::Segment {
            let of = *self.of.get_or_insert((database, backup));
            if of != (database, backup) {
                let (expected, found) = (format!("{} {}", of.0, of.1), format!("{database} {backup}"));
                return Err(reader.damage("the backup that the blob belongs to", expected, found));
            }
        }
        reader.decrypt(&self.encryption)?;
        let (name, seal) = match kind {
            Kind::Keys => self.take_keys(reader)?,
            Kind::Version => self.take_version(reader)?,
            Kind::Log => self.take_log(reader)?,
            Kind::Segment => self.take_segment(reader, advance)?,
            Kind::Archive | Kind::Manifest => {
                return Err(reader.damage("the kind of the blob", "another one", format!("{kind:?}")));
            }
        };
        if self.taken.insert(name, seal).is_some() {
            return Err(reader.damage(&name.to_string(), "once", "twice"));
        }
        Ok(())
    }

    /// Takes the keys of a later backup of the same database in place of the backup's own: archives may need them.
    pub fn take_later_keys<I: Input>(&mut self, mut reader: BlobReader<'_, I>) -> Result<(BlobName, Seal)> {
        self.take_keys(&mut reader)
    }

    fn take_keys<I: Input>(&mut self, reader: &mut BlobReader<'_, I>) -> Result<(BlobName, Seal)> {
        let mut content = Vec::new();
        while let Some(chunk) = reader.next()? {
            content.extend_from_slice(chunk);
            if content.len() > encryption::CONTENT_MAX {
                let most = format!("at most {} bytes", encryption::CONTENT_MAX);
                return Err(reader.damage("the length of the keys", most, content.len()));
            }
        }
        let seal = reader.finish()?;
        self.encryption = Encryption::of_copy(&content, self.key.as_ref(), "the backup")?;
        if let (Some(output), Some(key)) = (&mut self.output, &self.key) {
            output.encryption = self.encryption.copy_to(&*output.volume, output.database, key)?;
        }
        Ok((BlobName::Keys(reader.header.backup), seal))
    }

    fn take_version<I: Input>(&mut self, reader: &mut BlobReader<'_, I>) -> Result<(BlobName, Seal)> {
        let Header { backup, a: span, b: epoch, .. } = reader.header;
        if !span.is_power_of_two() || span > 1 << 40 || epoch >= NUMBER_MAX {
            return Err(reader.damage(
                "span and epoch",
                "a power of two, and a number",
                format!("{span}, {epoch}"),
            ));
        }
        let mut version = Version::empty(span);
        let mut data_len = None;
        let slots = Arc::clone(&self.slots);
        let seal = reader.frames(EDIT_MAX, &mut |frame| {
            let Some(data_len) = data_len else {
                let bytes = frame.try_into().map_err(|_| "the data file's length has 8 bytes".to_owned())?;
                data_len = Some(u64::from_le_bytes(bytes));
                return Ok(());
            };
            let edit = Edit::decode(frame).map_err(|section| format!("an edit with a bad {section}"))?;
            apply(&mut version, &edit, data_len, &slots)
        })?;
        version.epoch = epoch;
        self.version = Some(version);
        Ok((BlobName::Version(backup), seal))
    }

    fn take_log<I: Input>(&mut self, reader: &mut BlobReader<'_, I>) -> Result<(BlobName, Seal)> {
        let Header { backup, a: first, b: last, .. } = reader.header;
        if first == 0 || first > last + 1 || last >= NUMBER_MAX {
            return Err(reader.damage(
                "the sequence numbers of the log",
                "a first and a last one",
                format!("{first}, {last}"),
            ));
        }
        let mut writer = match &mut self.output {
            None => None,
            Some(output) => {
                let begin = Tail { next_seq: first, ..Tail::none() };
                let writer = WalWriter::create(Arc::clone(&output.volume), output.database, &begin)?;
                Some(writer.encrypted(&output.encryption))
            }
        };
        let mut failed = None;
        let mut next = first;
        let most = COMMIT_HEAD + BODY_LEN_MAX;
        let sealed = reader.frames(most, &mut |frame| {
            let (seq, count, body) = commit(frame).ok_or("a commit that is cut off")?;
            if seq != next {
                return Err(format!("sequence number {seq} where {next} should be"));
            }
            check_body(body, count)?;
            next += u64::from(count);
            match &mut writer {
                Some(writer) => append(writer, (seq, count, body), &mut failed),
                None => Ok(()),
            }
        });
        if let Some(error) = failed {
            return Err(error);
        }
        let seal = sealed?;
        if next != last + 1 {
            return Err(reader.damage("the last sequence number of the log", last, next - 1));
        }
        if let (Some(output), Some(mut writer)) = (&mut self.output, writer) {
            end_of_log(&mut writer)?;
            output.log = Some(writer);
        }
        self.log = Some((first, last));
        Ok((BlobName::Log(backup), seal))
    }

    fn take_segment<I: Input>(
        &mut self,
        reader: &mut BlobReader<'_, I>,
        advance: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<(BlobName, Seal)> {
        let Header { backup, a: segment, b: from, .. } = reader.header;
        let entry = self.version.as_ref().and_then(|version| version.segments.get(segment));
        let Some((begin, used)) = entry.map(|entry| (entry.segment.offset(), entry.used)) else {
            return Err(reader.damage("the segment", "one of the version", segment));
        };
        let mut at = from;
        while let Some(chunk) = reader.next()? {
            let len = chunk.len() as u64;
            if at.checked_add(len).is_none_or(|end| end > used) {
                return Err(reader.damage("the bytes of the segment", format!("at most {used}"), "more"));
            }
            if let Some(Output { volume, data, .. }) = &self.output {
                volume.write(&[Write { file: *data, offset: begin + at, data: chunk }])?;
            }
            at += len;
            advance(len)?;
        }
        Ok((BlobName::Segment { segment, from, to: at, backup }, reader.finish()?))
    }

    /// Checks that all that the manifest names was taken, and makes it a database.
    pub fn finish(
        mut self,
        manifest: &BackupManifest,
        damage: &dyn Fn(&str, String, String) -> Error,
    ) -> Result<()> {
        let mut taken = std::mem::take(&mut self.taken);
        for (name, seal) in needed(manifest) {
            let found = taken.remove(&name);
            if found != Some(seal) {
                let found = found.map_or("no such blob".to_owned(), |found| format!("{found:?}"));
                return Err(damage(&name.to_string(), format!("{seal:?}"), found));
            }
        }
        if let Some((name, _)) = taken.first_key_value() {
            return Err(damage(&name.to_string(), "not in this backup".to_owned(), "a blob".to_owned()));
        }
        let (Some(mut version), Some((first, last))) = (self.version.take(), self.log) else {
            return Err(damage("blobs", "a version and a log".to_owned(), "none".to_owned()));
        };
        let segments = manifest.segments.iter().map(|entry| (entry.segment, entry.used));
        let is_it = version.segments.iter().map(|entry| (entry.segment.number, entry.used)).eq(segments);
        let says = (version.flushed_seq + 1, version.epoch, version.span);
        if !is_it || says != (first, manifest.epoch, manifest.span) || last != manifest.seq {
            return Err(damage(
                "the manifest",
                "what version and log say".to_owned(),
                "something else".to_owned(),
            ));
        }
        for edit in std::mem::take(&mut self.happened) {
            happen_again(&mut version, edit).map_err(|why| {
                damage("an archive", "what could happen to keyspaces".to_owned(), why.to_owned())
            })?;
        }
        let last = last.max(self.archived.seq);
        match self.output.take() {
            Some(output) => output.complete(version, last),
            None => Ok(()),
        }
    }
}

impl Output {
    /// Makes the files durable, and then a database.
    fn complete(mut self, version: Version, last_seq: SeqNo) -> Result<()> {
        let Some(log) = self.log.take() else { return Err(Error::Closed) };
        complete(&self.volume, (self.data, self.database, &self.encryption), log, version, last_seq)
    }
}

/// Makes the files durable, and then a database, whose log ends with the operation `last_seq`.
pub(crate) fn complete(
    volume: &Arc<dyn Volume>,
    (data, database, encryption): (FileId, DatabaseId, &Encryption),
    log: WalWriter,
    mut version: Version,
    last_seq: SeqNo,
) -> Result<()> {
    (version.wal_low, version.wal_high) = (1, log.generation());
    // What happened in the database that was copied is not the history of this one.
    if let Some(log) = version.change_log.as_mut() {
        Arc::make_mut(log).begin_anew(last_seq);
    }
    drop(log);
    // Segments may end anywhere: those that a repair has written do.
    let written = volume.len(data)?;
    let len = least_len(version.table.ids_end()).max(written).next_multiple_of(PAGE);
    if written < len {
        volume.resize(data, len)?;
    }
    volume.sync(data).map_err(Error::undecided)?;
    let format = current::FORMAT;
    let current = Current { format, database, manifest: 1, span: version.span, manifest_len: 0 };
    // Syncs the directory before it writes CURRENT.
    let created = Manifest::create(Arc::clone(volume), (current, encryption), &version);
    let mut manifest = created.map_err(|error| without_current(&**volume, error))?;
    // It is a database by now, and durable. What follows the next opening does as well, and nobody could repeat it here.
    let sealed = manifest.seal(&version);
    drop(manifest);
    let removed = volume.remove(RESTORING).and_then(|()| volume.sync_directory());
    for error in [sealed.err(), removed.err().map(Error::from)].into_iter().flatten() {
        tracing::warn!(%error, path = volume.describe(), "the database is whole, and looks as if it had not been closed");
    }
    Ok(())
}

/// Takes `CURRENT` away again after this error: it may be there and not last, and where it is, nothing can be restored. What is said to have
/// failed may be repeated then. A power failure may bring it back: all that it needs was durable before it, and stays until that is durable
/// ([`prepare`]).
fn without_current(volume: &dyn Volume, error: Error) -> Error {
    match (volume.remove(current::FILE), error) {
        (Ok(()) | Err(psync::Error::NotFound { .. }), error) => error,
        (Err(_), Error::Poisoned { cause }) => Error::Poisoned {
            cause: format!(
                "{cause}; if {} is there, open the database, or empty the directory",
                current::FILE
            ),
        },
        (Err(_), error) => error,
    }
}

/// The error of a restore or a repair that has failed, the `work`: there is no database yet that could be opened again.
pub(crate) fn not_made(work: &'static str, error: Error) -> Error {
    match error {
        Error::Poisoned { cause } => {
            let (file, source) = ("the database".to_owned(), std::io::Error::other(cause));
            psync::Error::Io { operation: work, file, offset: None, source }.into()
        }
        other => other.of_none(),
    }
}

/// Applies an edit of the version, whose segments get places one behind the other.
fn apply(
    version: &mut Version,
    edit: &Edit,
    data_len: u64,
    slots: &Arc<Slots>,
) -> std::result::Result<(), String> {
    if let Some((id, _)) = edit.set.iter().find(|(id, _)| least_len(id.0.saturating_add(1)) > data_len) {
        return Err(format!("node {} in a data file of {data_len} bytes", id.0));
    }
    let is_absurd = |number: u64| number >= u64::MAX / version.span / 2;
    if edit.segments.iter().map(|(number, _)| *number).chain(edit.open_segment).any(is_absurd) {
        return Err("a segment with an absurd number".to_owned());
    }
    let used: BTreeMap<u64, u64> = edit.used.iter().copied().collect();
    let most = granules(data_len);
    let mut place = |number: u64, _: u32| {
        let granules = granules(used.get(&number).copied().unwrap_or(0));
        // In the file that was backed up each has a place of its own.
        if slots.used() as u64 + u64::from(granules) > u64::from(most) {
            return Err("segments are longer than the data file");
        }
        if granules == 0 {
            return Ok(Segment::found(number, 0, slots));
        }
        Ok(Segment::new(number, slots.take(granules, granules), slots))
    };
    Ok(version.apply(edit, &mut place)?)
}

/// Appends a commit, and writes what has gathered. What went wrong then is in `failed`: it is no damage of the blob.
fn append(
    writer: &mut WalWriter,
    (seq, count, body): (SeqNo, u32, &[u8]),
    failed: &mut Option<Error>,
) -> std::result::Result<(), String> {
    writer.append(seq, count, body);
    if writer.pending() > LOG_STEP
        && let Err(error) = writer.write()
    {
        *failed = Some(error);
        return Err("the log could not be written".to_owned());
    }
    Ok(())
}

/// What was written to the log becomes durable, and the next file's header says how far it reaches.
fn end_of_log(writer: &mut WalWriter) -> Result<()> {
    writer.sync()?;
    if !writer.is_empty() {
        writer.rotate()?;
        writer.begin()?;
    }
    Ok(())
}

fn commit(frame: &[u8]) -> Option<(u64, u32, &[u8])> {
    commit_or_event(frame).filter(|(_, count, _)| *count > 0)
}

/// Number, operations and body; an event has no operations.
fn commit_or_event(frame: &[u8]) -> Option<(u64, u32, &[u8])> {
    let (seq, rest) = frame.split_first_chunk::<8>()?;
    let (count, body) = rest.split_first_chunk::<4>()?;
    let (seq, count) = (u64::from_le_bytes(*seq), u32::from_le_bytes(*count));
    (seq < NUMBER_MAX).then_some((seq, count, body))
}

/// Checks that the body of a commit has so many whole operations.
fn check_body(body: &[u8], count: u32) -> std::result::Result<(), String> {
    let mut found = 0u32;
    for operation in Operations::new(body) {
        operation?;
        found += 1;
    }
    if found == count { Ok(()) } else { Err(format!("{found} operations where {count} should be")) }
}
