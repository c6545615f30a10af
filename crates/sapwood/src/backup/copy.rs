//! Takes a backup.

use super::archive::Archiver;
use super::blob::{BlobWriter, CHUNK_MAX, Header, Kind, Seal};
use super::listing::Listing;
use super::log_source::LogSource;
use super::manifest::{Archive, BackupManifest, Part, SegmentParts, named};
use super::name::BlobName;
use super::nodes::{NodeAt, NodeCheck};
use super::output::{Failure, put, put_keys};
use super::retain::{BackupInfo, delete, remove_unnamed, remove_vain};
use super::reuse::{self, Rows};
use super::target::Target;
use super::throttle::Throttle;
use super::{Progress, Reporter, called, damage};
use crate::clock::Clock;
use crate::commit::CommitPipeline;
use crate::database_id::DatabaseId;
use crate::encryption::Encryption;
use crate::error::{Error, Result};
use crate::health::Health;
use crate::operation::SeqNo;
use crate::storage::data_file::least_len;
use crate::storage::reader::unread;
use crate::storage::slots::{GRANULE, granules};
use crate::version::Version;
use crate::version::checkpoint::Checkpoint;
use crate::version::current::{Current, FORMAT};
use crate::wal::LogFiles;
use psync::{AlignedBuffer, FileId, InFlight, ReadInto, Volume};
use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

/// Buffers: one is written to the target while the others are read.
pub(super) const BUFFERS: usize = 3;
/// A buffer has this part (1/256) of the memory budget, within these bounds.
const BUFFER_PART: u64 = 256;
const BUFFER_MIN: usize = 64 << 10;
/// What is known of nodes at a time has this part (1/128) of the memory budget.
const NODES_PART: u64 = 128;

/// The parts of an open database that a backup needs.
pub(crate) struct BackupSource {
    pub volume: Arc<dyn Volume>,
    pub data: FileId,
    pub commits: Arc<CommitPipeline>,
    pub health: Arc<Health>,
    pub encryption: Encryption,
    pub clock: Arc<Clock>,
    /// Whether a record of a keyspace of large values says that its value lies elsewhere.
    pub is_apart: fn(&[u8]) -> bool,
    /// The memory budget, in bytes.
    pub memory: u64,
    /// Refreshes the database, if it follows another process.
    pub refresh: Option<Refresh>,
    /// Says what an error of reading nodes is a sign of.
    pub reword: Reword,
    /// Keeps the database open.
    #[expect(dead_code, reason = "held for its drop")]
    pub open: Arc<dyn Send + Sync>,
}

/// See [`BackupSource`].
pub(crate) type Refresh = Box<dyn Fn() -> Result<()> + Send + Sync>;

/// See [`BackupSource`].
pub(crate) type Reword = Box<dyn Fn(Error) -> Error + Send + Sync>;

/// How often the log is read of a database that is followed (count): a flush can remove it meanwhile, but not each time.
const LOG_ATTEMPTS: u32 = 10;
/// What is gathered of such a log has this part (1/3) of the memory budget: what the queues hold, if the writer's budget is the same.
const GATHERED_PART: u64 = 3;

/// A backup that is about to be taken. Made by [`Database::backup`](crate::Database::backup).
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # db.keyspace("ships")?.insert("fram", "1892")?;
/// use sapwood::backup::{Directory, Restore};
///
/// let target = Directory::open(dir.path().join("backups"))?;
/// let first = db.backup().run(&target)?;
/// db.keyspace("ships")?.insert("beagle", "1820")?;
/// let second = db.backup().run(&target)?; // copies what is new
/// assert_eq!((first.number, second.number), (1, 2));
///
/// Restore::from(&target).number(1).into_directory(dir.path().join("old.db"))?;
/// let old = sapwood::Database::open(dir.path().join("old.db"))?;
/// assert_eq!(old.keyspace("ships")?.iter().count(), 1);
/// # Ok(()) }
/// ```
#[must_use = "a backup is taken by `run`"]
pub struct Backup<'p> {
    source: BackupSource,
    rate: Option<u64>,
    archives: bool,
    reporter: Reporter<'p>,
}

/// Where a backup goes.
struct Destination<'t> {
    target: &'t dyn Target,
    /// What the target has already.
    listing: Listing,
    database: DatabaseId,
    /// Of the backup.
    number: u64,
    is_encrypted: bool,
}

impl Destination<'_> {
    /// The header of a blob of this backup, but of its manifest and archive.
    fn header(&self, kind: Kind, a: u64, b: u64) -> Header {
        let is_encrypted = kind != Kind::Segment && self.is_encrypted;
        Header { is_encrypted, has_archive: false, kind, database: self.database, backup: self.number, a, b }
    }
}

/// Of what a backup is, and what is copied at once.
struct Moment {
    version: Arc<Version>,
    /// The last operation.
    seq: SeqNo,
    /// What was committed before the one is in it, and what is in it was before the other.
    times: (u64, u64),
    encryption: Encryption,
    keys: Option<Seal>,
    log: Seal,
}

/// A part of a segment that is to be copied.
struct CopyPart {
    segment: u64,
    /// Where the segment begins in the data file.
    begin: u64,
    range: Range<u64>,
}

impl<'p> Backup<'p> {
    pub(crate) fn new(source: BackupSource) -> Self {
        Self { source, rate: None, archives: false, reporter: Reporter::default() }
    }

    /// Archives the log as well: what was committed since the newest backup in the target for which it was. Then every moment between these
    /// backups [can be restored](crate::backup::Restore::to), to the second. It takes what was written, once, until the backups that it continues are removed.
    ///
    /// The database has to [keep its changes](crate::Builder::keep_changes), as many as are written between backups. If it did not, or for the
    /// [other reasons that there are](crate::backup::ArchiveGap), the backup is taken all the same, and says so.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// use sapwood::Database;
    /// use sapwood::backup::{Directory, Point, Restore};
    ///
    /// let db = Database::builder().keep_changes(64 << 20).open(dir.path().join("ships.db"))?;
    /// let ships = db.keyspace("ships")?;
    /// let target = Directory::open(dir.path().join("backups"))?;
    /// db.backup().archive_log().run(&target)?;
    /// ships.insert("fram", "1892")?;
    /// ships.remove_range(..)?; // by accident: the second operation
    /// let taken = db.backup().archive_log().run(&target)?;
    /// assert!(taken.archive.is_some_and(|archive| archive.gap.is_none()));
    ///
    /// Restore::from(&target).to(Point::Sequence(1)).into_directory(dir.path().join("before.db"))?;
    /// let before = Database::open(dir.path().join("before.db"))?;
    /// assert_eq!(before.keyspace("ships")?.get("fram")?.as_deref(), Some(&b"1892"[..]));
    /// # Ok(()) }
    /// ```
    pub fn archive_log(self) -> Self {
        Self { archives: true, ..self }
    }

    /// Copies at most so many bytes a second. The log is copied at once, so that its files are not kept for long; what follows
    /// waits for it.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let target = sapwood::backup::Directory::open(dir.path().join("backups"))?;
    /// db.backup().rate(50 << 20).run(&target)?; // 50 MiB a second
    /// # Ok(()) }
    /// ```
    pub fn rate(self, bytes_per_second: u64) -> Self {
        Self { rate: Some(bytes_per_second), ..self }
    }

    /// Calls `tell` after every chunk that was copied. It can end the backup.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # db.keyspace("ships")?.insert("fram", "1892")?;
    /// # db.flush()?;
    /// # let target = sapwood::backup::Directory::open(dir.path().join("backups"))?;
    /// use std::ops::ControlFlow;
    ///
    /// let stopped = db.backup().on_progress(|_| ControlFlow::Break(())).run(&target);
    /// assert!(matches!(stopped, Err(sapwood::Error::Stopped)));
    /// # Ok(()) }
    /// ```
    pub fn on_progress(mut self, tell: impl FnMut(&Progress) -> ControlFlow<()> + 'p) -> Self {
        self.reporter.tell = Some(Box::new(tell));
        self
    }

    /// Takes the backup: the database as it is now, whatever is written meanwhile. Copies what the target does not have. If it
    /// fails or is killed, nothing that the target had is harmed, and the next one goes on where this one was.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// let taken = db.backup().run(&sapwood::backup::Directory::open(dir.path().join("backups"))?)?;
    /// println!("{} bytes, {} of them copied", taken.bytes, taken.copied);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::BackupTarget`]; [`Error::Corrupt`] if the database is damaged; [`Error::NoChanges`] if the log is to be archived and the
    /// database keeps none; [`Error::Stopped`]; [`Error::DiskFull`] if
    /// commits without durability find no space in the log; [`Error::Poisoned`]; [`Error::Closed`]; I/O errors.
    pub fn run(mut self, target: &dyn Target) -> Result<BackupInfo> {
        let _lock = called(target, "lock", "the target", target.lock())?;
        self.take(target).inspect_err(|_| {
            // What was copied is there for the next one.
            if let Err(error) = target.sync() {
                tracing::warn!(%error, "what was copied before is copied again");
            }
        })
    }

    fn take(&mut self, target: &dyn Target) -> Result<BackupInfo> {
        let listing = Listing::read(target)?;
        let number = listing.next_number();
        if let Err(error) = remove_vain(target, &listing) {
            tracing::warn!(%error, "what attempts have left in vain was not removed; the next backup does it");
        }
        let database = Current::read(&*self.source.volume)?.database;
        let is_encrypted = self.source.encryption.is_on();
        let to = Destination { target, listing, database, number, is_encrypted };
        let mut throttle = Throttle::new(self.rate);
        let moment = self.copy_log(&to)?;
        let Moment { version, encryption, .. } = &moment;
        let data_len = believed_len(version, self.source.volume.len(self.source.data)?);
        let header = (&to.header(Kind::Version, version.span, version.epoch), encryption);
        let put_version = &mut |blob: &mut BlobWriter<'_>| put_version(version, data_len, blob);
        let of_version = put(target, BlobName::Version(number), header, put_version)?;
        throttle.note(moment.log.len + of_version.len);
        let archive = match self.archives {
            true => Some(self.archive(&to, &moment, &mut throttle)?),
            false => None,
        };
        let segments = self.copy_segments(&to, &moment, &mut throttle)?;
        let manifest = BackupManifest {
            database,
            number,
            database_format: FORMAT,
            span: version.span,
            epoch: version.epoch,
            seq: moment.seq,
            time: moment.times.1,
            copied: self.reporter.progress.done,
            version: of_version,
            log: moment.log,
            segments,
            keys: moment.keys,
            archive,
        };
        self.put_manifest(&to, &manifest, encryption)
    }

    /// Decides of which moment the backup is, and copies the log up to it, with the keys of then.
    fn copy_log(&self, to: &Destination<'_>) -> Result<Moment> {
        let volume = &*self.source.volume;
        let mut left = LOG_ATTEMPTS;
        loop {
            let began = self.source.clock.now();
            let follows = self.source.refresh.as_ref().map(|refresh| refresh()).transpose()?.is_some();
            let (state, seq, kept) = self.source.commits.keep_view()?;
            let times = (began, self.source.clock.now());
            // Without the queues, which would be held as well.
            let version = Arc::clone(&state.version);
            drop(state);
            if self.archives && version.kept_log_max() == 0 {
                return Err(Error::NoChanges { path: self.source.health.path().into() });
            }
            // The view needs none that comes later.
            let encryption = self.source.encryption.frozen()?;
            let source = LogSource {
                files: LogFiles::new(volume, to.database),
                encryption: &self.source.encryption,
                version: &version,
                seq,
                kept: kept.as_ref(),
                follows,
            };
            left -= 1;
            // Of a log that may go meanwhile nothing is written before all of it is there.
            let gathered = match follows.then(|| source.gather(self.source.memory / GATHERED_PART)) {
                Some(Err(Error::SnapshotTooOld { .. })) if left > 0 => continue,
                Some(gathered) => gathered?,
                None => None,
            };
            // As the database has them: encrypted with the key that it opens with now.
            let keys = encryption.sound_content(volume, to.database)?;
            let header = to.header(Kind::Keys, 0, 0);
            let keys = keys.map(|content| put_keys(to.target, to.number, &header, &content)).transpose()?;
            let header = (&to.header(Kind::Log, version.flushed_seq + 1, seq), &encryption);
            let log = put(to.target, BlobName::Log(to.number), header, &mut |blob| match &gathered {
                Some(frames) => Ok(blob.put(frames)?),
                None => source.read(&mut |bytes| blob.put(bytes)),
            })?;
            return Ok(Moment { version, seq, times, encryption, keys, log });
        }
    }

    /// Copies what the target does not have of the segments. Returns where all of them are.
    fn copy_segments(
        &mut self,
        to: &Destination<'_>,
        Moment { version, encryption, .. }: &Moment,
        throttle: &mut Throttle,
    ) -> Result<Vec<SegmentParts>> {
        let &Destination { target, number: backup, .. } = to;
        let (mut rows, left) = reuse::find(target, &to.listing, to.database, (version, encryption))?;
        if let Err(error) = delete(target, left.iter()) {
            tracing::warn!(%error, "what attempts have left in vain was not removed; the next backup does it");
        }
        let parts = self.plan(version, &rows);
        let nodes = NodesOfParts { version, memory: self.source.memory };
        let mut rest = &parts[..];
        while !rest.is_empty() {
            let (group, later) = rest.split_at(nodes.group(rest));
            let nodes = nodes.of(group);
            for (part, nodes) in group.iter().zip(&nodes) {
                let Range { start, end } = part.range;
                let name = BlobName::Segment { segment: part.segment, from: start, to: end, backup };
                let header = (&to.header(Kind::Segment, part.segment, start), encryption);
                let seal = put(target, name, header, &mut |blob| self.put_part(part, nodes, throttle, blob))?;
                rows.entry(part.segment).or_default().push(Part { from: start, to: end, backup, seal });
            }
            rest = later;
        }
        let segments = version.segments.iter().map(|entry| {
            let segment = entry.segment.number;
            SegmentParts { segment, used: entry.used, parts: rows.remove(&segment).unwrap_or_default() }
        });
        Ok(segments.collect())
    }

    /// Ends the backup: from here on it counts.
    fn put_manifest(
        &self,
        Destination { target, listing, number, .. }: &Destination<'_>,
        manifest: &BackupManifest,
        encryption: &Encryption,
    ) -> Result<BackupInfo> {
        self.check_open()?;
        called(*target, "sync", "blobs", target.sync())?;
        check_named(*target, manifest)?;
        let content = manifest.encode();
        let header = (&manifest.header(), encryption);
        let seal = put(*target, BlobName::Manifest(*number), header, &mut |blob| Ok(blob.put(&content)?))?;
        called(*target, "sync", "the manifest", target.sync())?;
        if let Err(error) = remove_unnamed(*target, manifest) {
            tracing::warn!(%error, "blobs that no backup needs were not removed; the next backup does it");
        }
        Ok(BackupInfo::of(manifest, seal, &listing.backups()))
    }

    /// Archives the log up to this backup.
    fn archive(&mut self, to: &Destination<'_>, moment: &Moment, throttle: &mut Throttle) -> Result<Archive> {
        if !self.source.health.is_read_only() {
            // A power loss must not take back what the backup has, or the log would go on otherwise.
            self.source.commits.sync()?;
        }
        let archiver = Archiver {
            target: to.target,
            listing: &to.listing,
            volume: &*self.source.volume,
            database: to.database,
            encryption: &moment.encryption,
            version: &moment.version,
            follows: self.source.refresh.is_some(),
            number: to.number,
            seq: moment.seq,
            began: moment.times.0,
            is_apart: self.source.is_apart,
        };
        let reporter = &mut self.reporter;
        let mut written = 0;
        archiver.run(&mut |bytes| {
            written += bytes;
            // Commits may be short, and who watches need not hear of each.
            if written < BUFFER_MIN as u64 {
                return Ok(());
            }
            throttle.pass(written, &mut || reporter.advance(0))?;
            written = 0;
            reporter.advance(0)
        })
    }

    /// What is to be copied. Rows that are too short go on with the part.
    fn plan(&mut self, version: &Version, rows: &Rows) -> Vec<CopyPart> {
        let mut parts = Vec::new();
        for entry in version.segments.iter() {
            let (segment, begin) = (entry.segment.number, entry.segment.offset());
            let from = rows.get(&segment).and_then(|row| row.last()).map_or(0, |last| last.to);
            self.reporter.progress.reused += from;
            if from < entry.used {
                self.reporter.progress.total += entry.used - from;
                parts.push(CopyPart { segment, begin, range: from..entry.used });
            }
        }
        parts
    }

    /// Returns an error if the database was closed: then others may open it, and write where segments were.
    fn check_open(&self) -> Result<()> {
        if self.source.health.is_closed() { Err(Error::Closed) } else { Ok(()) }
    }

    fn put_part(
        &mut self,
        part: &CopyPart,
        nodes: &[NodeAt],
        throttle: &mut Throttle,
        blob: &mut BlobWriter<'_>,
    ) -> std::result::Result<(), Failure> {
        let limits = self.source.volume.limits();
        let alignment = if limits.direct { limits.alignment as u64 } else { 1 };
        let most = usize::try_from(self.source.memory / BUFFER_PART).unwrap_or(CHUNK_MAX);
        let len = throttle.piece(most.clamp(BUFFER_MIN, CHUNK_MAX), BUFFER_MIN);
        let len = (len as u64).next_multiple_of(alignment).min(CHUNK_MAX as u64);
        let mut check = NodeCheck::new(nodes, part.begin);
        let mut ahead = VecDeque::new();
        let mut next = part.range.start;
        loop {
            while ahead.len() < BUFFERS - 1 && next < part.range.end {
                let range = next..part.range.end.min(next + len);
                next = range.end;
                ahead.push_back(self.begin_read(part.begin, range, alignment));
            }
            let Some((range, within, read)) = ahead.pop_front() else { break };
            let buffers = read.wait().map_err(|error| (self.source.reword)(unread(error)))?;
            // What was read before it was closed was still its own.
            self.check_open()?;
            let count = range.end - range.start;
            let bytes = buffers.first().and_then(|buffer| buffer.get(within..within + count as usize));
            let bytes = bytes.unwrap_or_default();
            check.feed(range.start, bytes).map_err(&self.source.reword)?;
            blob.put(bytes)?;
            throttle.pass(count, &mut || self.reporter.advance(0))?;
            self.reporter.advance(count)?;
        }
        debug_assert!(check.is_done(), "every node lies in the segment's bytes");
        Ok(())
    }

    /// Begins to read a range of a segment that begins at this byte of the data file. Returns where the range begins in the buffer.
    fn begin_read(&self, begin: u64, range: Range<u64>, alignment: u64) -> (Range<u64>, usize, InFlight) {
        let offset = (begin + range.start) / alignment * alignment;
        let within = begin + range.start - offset;
        let len = (within + range.end - range.start).next_multiple_of(alignment);
        let buffer = AlignedBuffer::new(len as usize);
        let read = self.source.volume.begin(vec![ReadInto { file: self.source.data, offset, buffer }]);
        (range, within as usize, read)
    }
}

impl std::fmt::Debug for Backup<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Backup({}, rate {:?})", self.source.health.path(), self.rate)
    }
}

/// Finds the nodes that lie in parts.
struct NodesOfParts<'v> {
    version: &'v Version,
    memory: u64,
}

impl NodesOfParts<'_> {
    /// How many of the next parts may have their nodes in memory together: at least one.
    fn group(&self, parts: &[CopyPart]) -> usize {
        let nodes = (self.memory / NODES_PART / size_of::<NodeAt>() as u64).max(1);
        let node_len = self.version.live_bytes() / self.version.table.count().max(1);
        let mut bytes = 0;
        let fits = |part: &&CopyPart| {
            bytes += part.range.end - part.range.start;
            bytes <= nodes * node_len
        };
        parts.iter().take_while(fits).count().max(1)
    }

    fn of(&self, parts: &[CopyPart]) -> Vec<Vec<NodeAt>> {
        let mut nodes: Vec<Vec<NodeAt>> = parts.iter().map(|_| Vec::new()).collect();
        for (id, address) in self.version.table.iter() {
            let (segment, offset) =
                (address.position.0 / self.version.span, address.position.0 % self.version.span);
            if let Ok(index) = parts.binary_search_by_key(&segment, |part| part.segment)
                && parts[index].range.contains(&offset)
            {
                nodes[index].push(NodeAt { offset, id, address });
            }
        }
        nodes.iter_mut().for_each(|nodes| nodes.sort_unstable_by_key(|node| node.offset));
        nodes
    }
}

/// The length of the data file that a restore is told: it believes no nodes and segments beyond. All that the version has lies below, unless
/// another process has cut the file off meanwhile, which a follower of it does not see where the target has all that was there.
fn believed_len(version: &Version, len: u64) -> u64 {
    let needed: u64 = version.segments.iter().map(|entry| u64::from(granules(entry.used)) * GRANULE).sum();
    len.max(needed).max(least_len(version.table.ids_end()))
}

fn put_version(
    version: &Version,
    data_len: u64,
    blob: &mut BlobWriter<'_>,
) -> std::result::Result<(), Failure> {
    blob.put(&8u32.to_le_bytes())?;
    blob.put(&data_len.to_le_bytes())?;
    let mut bytes = Vec::new();
    for edit in Checkpoint::of(version) {
        bytes.clear();
        edit.encode(&mut bytes);
        blob.put(&(bytes.len() as u32).to_le_bytes())?;
        blob.put(&bytes)?;
    }
    Ok(())
}

/// Checks that all that a manifest is about to name is there: another process may have removed some of it where a target has no lock.
fn check_named(target: &dyn Target, manifest: &BackupManifest) -> Result<()> {
    let listing = Listing::read(target)?;
    if listing.blobs.is_empty() {
        // A stream lists nothing.
        return Ok(());
    }
    for (name, seal) in named(manifest) {
        if !listing.has(name, seal.len) {
            let (expected, found) = (format!("{} bytes", seal.len), listing.blobs.get(&name));
            let found = found.map_or("none".to_owned(), |len| format!("{len} bytes"));
            return Err(damage(
                &target.describe(),
                &name.to_string(),
                0,
                "the blob is gone",
                expected,
                found,
            ));
        }
    }
    Ok(())
}
