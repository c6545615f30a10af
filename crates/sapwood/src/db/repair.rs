//! Repairs a database that is damaged: makes a new one of all that can be read, and lists what is lost, by keyspace and key range.
//! [`Repair`] is the place to begin.
//!
//! ```text
//! plan ──▶ trees copied without what is damaged ──▶ log up to its damage ──▶ removals of what is incomplete ──▶ CURRENT
//!    └───▶ trees made of the nodes in the data file ──▲     (no manifest tells what counts)
//! ```
//! Nodes are copied as they are stored, under their ids, and the log as it is; so the new database has what the old one had, with
//! expiry, merging and sequence numbers, and no operator is asked for. What is damaged is cut out of the trees.
//!
//! Invariants:
//! 1. No file of the damaged database is changed.
//! 2. What a reader of the new database finds was there in the damaged one. Whatever is missing, or older, lies in a listed range.
//! 3. As long as there is `RESTORING` and no `CURRENT`, the new directory is no database, and the next repair begins it anew.
//! 4. Memory: the version, as when a database is open; a half of the budget for an index where nodes are searched; if anything is lost, the ids of
//!    large values, and the keys of those that the log changes; some mebibytes.

mod copy_log;
mod large;
mod old_nodes;
mod orphans;
mod output;
mod plan;
mod report;
mod scan;
mod sweep;
#[cfg(test)]
mod tests;
mod tree_builder;
mod trees;

pub use report::{Loss, LossCause, LostRange, RepairReport, RepairedKeyspace, RepairedLog};

use crate::backup::{Progress, Reporter, assembly};
use crate::compression::Compression;
use crate::database_id::DatabaseId;
use crate::db::handle::Handle;
use crate::db::open;
use crate::db::options::{Builder, MEMORY_MIN, check_memory};
use crate::db::repair::copy_log::{CopyLog, Removals};
use crate::db::repair::large::{each_lacking, each_misnamed, replay_large};
use crate::db::repair::old_nodes::OldNodes;
use crate::db::repair::orphans::Orphans;
use crate::db::repair::output::{New, Output};
use crate::db::repair::plan::{Plan, recover};
use crate::db::repair::report::{Covered, Losses};
use crate::db::repair::scan::Known;
use crate::db::repair::sweep::Sweep;
use crate::db::repair::trees::{CopyTree, behind};
use crate::encryption::{Encryption, EncryptionKey};
use crate::error::{DATA, Error, Result};
use crate::merging::is_operands;
use crate::operation::{KeyRange, KeyspaceId};
use crate::source::{FileSource, Window};
use crate::storage::frames::Frames;
use crate::storage::slots::Slots;
use crate::version::current::{self, Current};
use crate::version::{Tree, Version};
use crate::wal::LogFiles;
use psync::{Access, FileId, Lock, LockKind, Volume};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An index of nodes has at least so many bytes (1 MiB), however little memory there is: each one is a pass over the data file. Small
/// in unit tests, so that they see several passes.
const INDEX_MIN: u64 = if cfg!(test) { 2 << 10 } else { 1 << 20 };

enum OldDatabase {
    Path(PathBuf),
    Volume(Arc<dyn Volume>),
}

/// Makes a new database of all that can be read of a damaged one.
///
/// Nothing in the damaged directory is changed. The new database has its keyspaces, with their options, and all records outside of
/// the ranges that the [report](RepairReport) lists, as they were; inside of them what could be saved. It is sound: a
/// [check](crate::Database::check) finds nothing.
///
/// | damaged | saved | listed |
/// |---|---|---|
/// | a leaf | all else, and newer changes of its records | its range |
/// | a log piece | all else; older values of its records | its range |
/// | an inner node | all below it, found by their keys | nothing, or what is between them and cannot be read |
/// | the log | what is before the damage | all keyspaces: a commit may have changed any record |
/// | `CURRENT` | all | nothing |
/// | the manifest | the newest records that the data file has | all keyspaces: removed records may be back |
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let (old, new) = (dir.path().join("ships.db"), dir.path().join("repaired.db"));
/// # let db = sapwood::Database::open(&old)?;
/// # db.keyspace("ships")?.insert("fram", "1892")?;
/// # db.close()?;
/// use sapwood::repair::Repair;
///
/// # std::fs::remove_file(old.join("CURRENT")).expect("a file less");
/// let report = Repair::of(&old).into_directory(&new)?;
/// for keyspace in &report.keyspaces {
///     for range in &keyspace.lost {
///         println!("{}: {:?} to {:?}: {}", keyspace.name, range.from, range.to, range.cause);
///     }
/// }
/// assert!(!report.has_losses() && report.damage.len() == 1);
/// let ships = sapwood::Database::open(&new)?.keyspace("ships")?;
/// assert_eq!(ships.get("fram")?.as_deref(), Some(&b"1892"[..]));
/// # Ok(()) }
/// ```
#[must_use = "a repair is done by `into_directory`"]
pub struct Repair<'p> {
    of: OldDatabase,
    key: Option<EncryptionKey>,
    memory: u64,
    reporter: Reporter<'p>,
}

impl std::fmt::Debug for Repair<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let of = match &self.of {
            OldDatabase::Path(path) => path.display().to_string(),
            OldDatabase::Volume(volume) => volume.describe(),
        };
        write!(f, "Repair({of})")
    }
}

impl<'p> Repair<'p> {
    /// Of the database in this directory.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let (old, new) = (dir.path().join("ships.db"), dir.path().join("repaired.db"));
    /// # sapwood::Database::open(&old)?.close()?;
    /// let report = sapwood::repair::Repair::of(&old).into_directory(&new)?;
    /// assert!(report.damage.is_empty());
    /// # Ok(()) }
    /// ```
    pub fn of(path: impl AsRef<Path>) -> Self {
        Self::new(OldDatabase::Path(path.as_ref().to_owned()))
    }

    /// Of the database on this volume.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// use sapwood::psync::Simulated;
    /// use sapwood::repair::Repair;
    /// use std::sync::Arc;
    ///
    /// let (old, new) = (Arc::new(Simulated::new(1)), Arc::new(Simulated::new(2)));
    /// sapwood::Database::builder().open_on(old.clone())?.close()?;
    /// assert!(!Repair::of_volume(old).onto(new)?.has_losses());
    /// # Ok(()) }
    /// ```
    pub fn of_volume(volume: Arc<dyn Volume>) -> Self {
        Self::new(OldDatabase::Volume(volume))
    }

    fn new(of: OldDatabase) -> Self {
        Self { of, key: None, memory: 64 << 20, reporter: Reporter::default() }
    }

    /// The key of an [encrypted](crate::Builder::encryption_key) database. The new one is encrypted too, and opens with it. Without the file
    /// `KEYS` nothing can be saved.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let (old, new) = (dir.path().join("ships.db"), dir.path().join("repaired.db"));
    /// use sapwood::{Database, EncryptionKey, repair::Repair};
    ///
    /// let key = EncryptionKey::generate()?;
    /// Database::builder().encryption_key(key.clone()).open(&old)?.close()?;
    /// Repair::of(&old).encryption_key(key.clone()).into_directory(&new)?;
    /// Database::builder().encryption_key(key).open(&new)?.check()?;
    /// # Ok(()) }
    /// ```
    pub fn encryption_key(self, key: EncryptionKey) -> Self {
        Self { key: Some(key), ..self }
    }

    /// How much memory it may use, in bytes, 4 MiB to 4 TiB, less counts as 4 MiB; 64 MiB unless told. The table of a database's nodes comes on top of that:
    /// 20 bytes each.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let (old, new) = (dir.path().join("ships.db"), dir.path().join("repaired.db"));
    /// # sapwood::Database::open(&old)?.close()?;
    /// sapwood::repair::Repair::of(&old).memory(16 << 20).into_directory(&new)?;
    /// # Ok(()) }
    /// ```
    pub fn memory(self, bytes: u64) -> Self {
        Self { memory: bytes, ..self }
    }

    /// Has `tell` called now and then; `Break` ends the repair with [`Error::Stopped`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let (old, new) = (dir.path().join("ships.db"), dir.path().join("repaired.db"));
    /// # sapwood::Database::open(&old)?.close()?;
    /// use std::ops::ControlFlow;
    ///
    /// let repair = sapwood::repair::Repair::of(&old).on_progress(|progress| {
    ///     eprintln!("{} of {} bytes", progress.done, progress.total);
    ///     ControlFlow::Continue(())
    /// });
    /// repair.into_directory(&new)?;
    /// # Ok(()) }
    /// ```
    pub fn on_progress(mut self, tell: impl FnMut(&Progress) -> ControlFlow<()> + 'p) -> Self {
        self.reporter.tell = Some(Box::new(tell));
        self
    }

    /// Makes the new database in this directory, which is empty or is created; or holds a repair or restore that was interrupted.
    ///
    /// # Errors
    /// [`Error::NotEmpty`]; [`Error::Locked`] if a process has either open; [`Error::Missing`] and [`Error::NotADatabase`] if there
    /// is nothing to repair; [`Error::NewerFormat`] and [`Error::OlderFormat`] if it is of another version; [`Error::DiskFull`] and
    /// other errors of writing the new one; [`Error::Stopped`]. No damage of the old one is an error.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let (old, new) = (dir.path().join("ships.db"), dir.path().join("repaired.db"));
    /// # sapwood::Database::open(&old)?.close()?;
    /// let report = sapwood::repair::Repair::of(&old).into_directory(&new)?;
    /// assert!(!report.has_losses());
    /// sapwood::Database::open(&new)?.check()?;
    /// # Ok(()) }
    /// ```
    pub fn into_directory(self, path: impl AsRef<Path>) -> Result<RepairReport> {
        let path = path.as_ref();
        self.onto_opened(|| assembly::open(path, true))
    }

    /// The same on a volume of one's own.
    ///
    /// # Errors
    /// As [`into_directory`](Repair::into_directory).
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # use std::sync::Arc;
    /// let (old, new) = (sapwood::psync::Simulated::new(1), sapwood::psync::Simulated::new(2));
    /// sapwood::Database::builder().open_on(Arc::new(old.clone()))?.close()?;
    /// sapwood::repair::Repair::of_volume(Arc::new(old)).onto(Arc::new(new))?;
    /// # Ok(()) }
    /// ```
    pub fn onto(self, volume: Arc<dyn Volume>) -> Result<RepairReport> {
        self.onto_opened(|| Ok(volume))
    }

    /// Opens the volume once there is something to repair: no directory is made for nothing.
    fn onto_opened(mut self, open: impl FnOnce() -> Result<Arc<dyn Volume>>) -> Result<RepairReport> {
        check_memory(self.memory.max(MEMORY_MIN))?;
        let old = match &self.of {
            OldDatabase::Volume(old) => Arc::clone(old),
            OldDatabase::Path(path) => assembly::open(path, false)?,
        };
        // Before there is a file `LOCK` in a directory that is none of ours.
        Plan::refuse_nothing(&*old)?;
        let _lock = lock(&*old, LockKind::Shared)?;
        let plan = Plan::of(&*old, self.key.as_ref())?;
        plan.version.check_compression()?;
        self.make(&old, plan, open).map_err(|error| assembly::not_made("repair", error))
    }

    /// Makes the new database on the volume that is opened so.
    fn make(
        &mut self,
        old: &Arc<dyn Volume>,
        plan: Plan,
        open: impl FnOnce() -> Result<Arc<dyn Volume>>,
    ) -> Result<RepairReport> {
        let volume = open()?;
        if old.describe() == volume.describe() && matches!(self.of, OldDatabase::Path(_)) {
            return Err(Error::NotEmpty {
                path: volume.describe(),
                found: "the damaged database".to_owned(),
            });
        }
        let _other = lock(&*volume, LockKind::Exclusive)?;
        let data = assembly::begin(&*volume)?;
        let (database, old_one) = (DatabaseId::random()?, &plan.encryption);
        let encryption = match &self.key {
            Some(key) => old_one.copy_to(&*volume, database, key)?,
            None => Encryption::NONE,
        };
        let new = New { volume, data, database, encryption };
        repair(old, plan, &new, self.memory, &mut self.reporter)
    }
}

fn lock(volume: &dyn Volume, kind: LockKind) -> Result<Option<Lock>> {
    match volume.lock(kind, &format!("a repair by process {}", std::process::id())) {
        Err(psync::Error::NoLocks { .. }) => Ok(None),
        taken => Ok(Some(taken.map_err(|error| Error::of_opening(error, &volume.describe()))?)),
    }
}

/// A file that is closed when this is dropped.
struct Opened<'v>(&'v dyn Volume, FileId);

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        // Nothing was written through this handle, so nothing can be lost.
        let _ = self.0.close(self.1);
    }
}

fn repair(
    old: &Arc<dyn Volume>,
    plan: Plan,
    new: &New,
    memory: u64,
    reporter: &mut Reporter<'_>,
) -> Result<RepairReport> {
    let mut losses = Losses::default();
    plan.damage.iter().for_each(|error| losses.note(error.clone()));
    let frames = Frames::new(0);
    let file = match old.open(DATA, Access::default()) {
        Ok(file) => Some(Opened(&**old, file)),
        Err(psync::Error::NotFound { .. }) => {
            losses.note(Error::corrupt(DATA, 0, "the data file is missing", "a file", "none"));
            None
        }
        // Whoever may not open a file has not lost it.
        Err(error) => return Err(error.into()),
    };
    let len = file.as_ref().map_or(Ok(0), |file| old.len(file.1))?;
    let nodes = OldNodes {
        volume: &**old,
        file: file.as_ref().map(|file| file.1),
        len,
        version: &plan.version,
        encryption: &plan.encryption,
        frames: Arc::clone(&frames),
    };
    let mut out = if plan.is_known {
        copied(&nodes, new, &mut losses, reporter)?
    } else {
        searched(old, &plan, (new, len), (&mut losses, memory), reporter)?
    };
    // Another build of the program saves more.
    if let Some(error) = losses.unsupported.take() {
        return Err(error);
    }
    out.finish()?;
    let mut version = out.version.clone();
    let covered = losses.covered();
    let (mut log, dropped) = copy_log(old, &plan, new, &mut version, &covered)?;
    let mut removals = Removals::default();
    // All keyspaces are listed if the log is damaged.
    let (damage, report) = (log.damage.take(), log.report.clone());
    let without_base = std::mem::take(&mut log.without_base);
    let of_areas = operands_of_areas(&out, &frames, &covered);
    for (id, key) in without_base.into_iter().chain(of_areas).collect::<BTreeSet<_>>() {
        log.remove(&mut removals, id, &key)?;
    }
    log.flush(&mut removals, 0)?;
    let unfinished = dropped + plan.unfinished;
    let ids: Vec<_> = log.version.trees.iter().map(|(id, _)| id).collect();
    let mut list_all = |cause| ids.iter().for_each(|id| losses.add(*id, (&[], None), Loss::Older, cause));
    if unfinished > 0 {
        list_all(LossCause::Unfinished);
    }
    if let Some(error) = damage {
        list_all(LossCause::Log);
        losses.note(error);
    }
    if !losses.is_empty() && log.version.trees.iter().any(|(_, tree)| tree.chunks.is_some()) {
        log.write()?;
        leave_out_large(&mut log, new, memory, &mut losses)?;
    }
    let (log, last) = log.finish()?;
    let report = RepairReport {
        keyspaces: listed(&version, &mut losses),
        may_lack_keyspaces: !plan.is_known,
        log: report,
        unfinished,
        damage: losses.damage,
        damage_left_out: losses.left_out,
        bytes: out.bytes,
    };
    assembly::complete(&new.volume, (out.data, new.database, &new.encryption), log, version, last)?;
    Ok(report)
}

/// Copies the trees of a version that is known.
fn copied(
    nodes: &OldNodes<'_>,
    new: &New,
    losses: &mut Losses,
    reporter: &mut Reporter<'_>,
) -> Result<Output> {
    let old = nodes.version;
    let mut out = Output::new(new, old, (old.epoch + 1, old.table.ids_end()));
    reporter.progress.total = old.segments.live_bytes();
    // Dropped trees have nodes too, which are not copied.
    let mut orphans = Orphans::find(nodes, old.trees.iter().chain(old.dropped.iter()))?;
    for (id, tree) in old.trees.iter() {
        let copy = CopyTree::new((nodes, &mut out), (losses, &mut orphans), reporter, (id, tree));
        let tree = copy.run()?;
        out.version.trees.insert(id, tree);
    }
    Ok(out)
}

/// Makes trees of the nodes in the data file.
fn searched(
    old: &Arc<dyn Volume>,
    plan: &Plan,
    (new, len): (&New, u64),
    (losses, memory): (&mut Losses, u64),
    reporter: &mut Reporter<'_>,
) -> Result<Output> {
    let version = &plan.version;
    let known = Known { version, encryption: &plan.encryption, whole_to: plan.whole_to };
    let (mut trees, mut epoch) = (Vec::new(), version.epoch);
    let begin = |epoch| Output::new(new, version, (epoch, 0));
    let out = match FileSource::open(&**old, DATA) {
        Err(_) => begin(epoch + 1),
        Ok(source) => {
            let mut source = Window::of_damaged(source);
            reporter.progress.total = 2 * len;
            let newest = scan::newest(&mut source, &known)?;
            reporter.advance(len)?;
            epoch = epoch.max(newest.epoch);
            let mut out = begin(epoch + 1);
            let mut sweep = Sweep {
                source: &mut source,
                known: &known,
                newest: &newest,
                frames: Frames::new(0),
                room: (memory / 2).max(INDEX_MIN) as usize,
                advance: &mut |bytes| reporter.advance(bytes),
            };
            let tree_of =
                |id: KeyspaceId| version.trees.get(&id).cloned().unwrap_or_else(|| Tree::empty("".into()));
            let (made, unpacked) = sweep.run(&mut out, &tree_of)?;
            trees = made;
            if !unpacked.is_empty() {
                Compression::Zstd { level: 3 }.check()?;
            }
            for (id, count) in unpacked {
                let what = format!("nodes of keyspace {}: the dictionary that they need is lost", id.0);
                losses.note(Error::corrupt(DATA, 0, what, "a dictionary", format!("{count} nodes")));
            }
            out
        }
    };
    let mut out = out;
    for (id, tree) in version.trees.iter() {
        let empty = Tree { root: None, height: 0, len: 0, bytes: 0, is_estimated: false, ..tree.clone() };
        out.version.trees.insert(id, empty);
    }
    for (id, tree) in trees {
        if out.version.trees.contains(&id) {
            out.version.trees.insert(id, tree);
        } else {
            recover(&mut out.version, id, Some(tree));
        }
    }
    out.version.begun_flushes.clear();
    for (id, _) in out.version.trees.iter() {
        losses.add(id, (&[], None), Loss::Older, LossCause::Manifest);
    }
    Ok(out)
}

/// Copies the log. Returns what is still being written, and how many bytes behind its end were no records.
fn copy_log<'a>(
    old: &Arc<dyn Volume>,
    plan: &Plan,
    new: &'a New,
    version: &'a mut Version,
    losses: &Covered,
) -> Result<(CopyLog<'a>, u64)> {
    let mut log = CopyLog::new(new, version, plan.is_known);
    let files = LogFiles::new(&**old, plan.current.database);
    let salvaged = files.salvage(&plan.encryption, plan.generations, &mut |found| log.take(found, losses))?;
    log.end(salvaged.damage)?;
    Ok((log, salvaged.dropped))
}

/// Records that have operands in log areas without what they belong to.
fn operands_of_areas(out: &Output, frames: &Arc<Frames>, losses: &Covered) -> Vec<(KeyspaceId, Vec<u8>)> {
    let version = &out.version;
    let is_in_question =
        |id: KeyspaceId| losses.has(id) && version.trees.get(&id).is_some_and(|tree| tree.merging.is_some());
    let mut found = Vec::new();
    if !version.trees.iter().any(|(id, _)| is_in_question(id)) {
        return found;
    }
    let len = out.volume.len(out.data).unwrap_or(0);
    let frames = Arc::clone(frames);
    let nodes = OldNodes {
        volume: &*out.volume,
        file: Some(out.data),
        len,
        version,
        encryption: &out.encryption,
        frames,
    };
    for (_, area) in version.logs.iter() {
        for id in area.pieces() {
            let Some(Ok(piece)) = nodes.read(&[id], None).pop() else { continue };
            let keyspace = piece.node.name().keyspace;
            if !is_in_question(keyspace) {
                break;
            }
            for index in 0..piece.node.count() {
                let key = piece.node.key(index);
                if piece.node.logged_value(index).is_some_and(is_operands) && losses.contains(keyspace, key) {
                    found.push((keyspace, key.to_vec()));
                }
            }
        }
    }
    found
}

/// Leaves out large values that lack a chunk, and lists them; and sees to it that the chunks of others that are lost are removed.
fn leave_out_large(
    log: &mut CopyLog<'_>,
    New { volume, database, encryption, .. }: &New,
    memory: u64,
    losses: &mut Losses,
) -> Result<()> {
    let options = Builder::default().memory(memory.max(MEMORY_MIN)).read_only(true).background_threads(0);
    let (format, span) = (current::FORMAT, log.version.span);
    let current = Current { format, database: *database, manifest: 1, span, manifest_len: 0 };
    let slots: Arc<Slots> = Arc::default();
    let generations = log.generations();
    let engine = open::engine(
        volume,
        (&current, encryption),
        log.version.clone(),
        &slots,
        &options,
        volume.describe(),
    )?;
    replay_large(&engine, &**volume, *database, generations)?;
    let handle = Arc::new(Handle::of(engine)?);
    let mut removals = Removals::default();
    each_lacking(&handle, &mut |lacking| {
        let (key, to) = (&lacking.key, behind(&lacking.key));
        losses.add(lacking.heads, (key, Some(&to)), Loss::Missing, LossCause::Chunk);
        log.remove(&mut removals, lacking.heads, key)?;
        if let Some((id, count)) = lacking.id {
            let (from, to) = (id.chunk(0), id.chunk(count));
            log.remove_range(
                &mut removals,
                KeyRange { keyspace: lacking.chunks, from: &from, to: Some(&to) },
            )?;
        }
        Ok(())
    })?;
    each_misnamed(&handle, &mut |chunks, id, is_unnamed| match is_unnamed {
        true => log.insert(&mut removals, chunks, &id.begun()),
        false => log.remove(&mut removals, chunks, &id.begun()),
    })?;
    log.flush(&mut removals, 0)
}

/// The keyspaces of the new database with what is lost of each. Those that have only chunks of large values are told by the others.
fn listed(version: &Version, losses: &mut Losses) -> Vec<RepairedKeyspace> {
    let hidden: BTreeSet<_> = version.trees.iter().filter_map(|(_, tree)| tree.chunks).collect();
    let mut keyspaces = Vec::new();
    for (id, tree) in version.trees.iter().filter(|(id, _)| !hidden.contains(id)) {
        let (name, records, bytes) = (tree.name.to_string(), tree.len, tree.bytes);
        keyspaces.push(RepairedKeyspace { name, records, bytes, lost: losses.take(id) });
    }
    keyspaces
}
