//! Restores a backup into an empty directory, or checks all of it without that.

#[cfg(test)]
mod tests;

use super::assembly::{self, Assembly, not_made};
use super::blob::{BlobReader, Input, Kind, Seal};
use super::input::{BlobInput, decode_manifest, read_manifest};
use super::listing::Listing;
use super::manifest::{ArchivePart, BackupManifest, needed};
use super::name::BlobName;
use super::point::{NotChosen, Point, choose, slim, time_of};
use super::retain::{BackupInfo, no_backup};
use super::stream::StreamInput;
use super::target::Target;
use super::{Progress, Reporter, damage, is_missing, is_unreadable};
use crate::encryption::EncryptionKey;
use crate::error::{Error, KeyProblem, Result};
use crate::version::current;
use psync::{LockKind, Volume};
use std::collections::BTreeSet;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// Restores a backup.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// use sapwood::backup::{Directory, Restore};
///
/// db.keyspace("ships")?.insert("fram", "1892")?;
/// let target = Directory::open(dir.path().join("backups"))?;
/// db.backup().run(&target)?;
/// Restore::from(&target).verify()?; // reads all of it
/// Restore::from(&target).into_directory(dir.path().join("copy.db"))?;
/// let copy = sapwood::Database::open(dir.path().join("copy.db"))?;
/// assert_eq!(copy.keyspace("ships")?.get("fram")?.as_deref(), Some(&b"1892"[..]));
/// # Ok(()) }
/// ```
#[must_use = "a backup is restored by `into_directory`"]
pub struct Restore<'p> {
    from: From<'p>,
    number: Option<u64>,
    point: Option<Point>,
    key: Option<EncryptionKey>,
    reporter: Reporter<'p>,
}

enum From<'p> {
    Target(&'p dyn Target),
    Stream(Box<dyn io::Read + 'p>),
}

impl<'p> Restore<'p> {
    /// Restores from a target: the newest backup, unless [`number`](Restore::number) says another.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let target = sapwood::backup::Directory::open(dir.path().join("backups"))?;
    /// let none = sapwood::backup::Restore::from(&target).into_directory(dir.path().join("copy.db"));
    /// assert!(matches!(none, Err(sapwood::Error::NoBackup { .. })));
    /// # Ok(()) }
    /// ```
    pub fn from(target: &'p dyn Target) -> Self {
        Self::of(From::Target(target))
    }

    fn of(from: From<'p>) -> Self {
        Self { from, number: None, point: None, key: None, reporter: Reporter::default() }
    }

    /// Restores what a [`StreamWriter`](crate::backup::StreamWriter) has written. The stream ends with the backup: more is damage.
    ///
    /// ```no_run
    /// # fn main() -> sapwood::Result<()> {
    /// sapwood::backup::Restore::from_stream(std::io::stdin()).into_directory("copy.db")?;
    /// # Ok(()) }
    /// ```
    pub fn from_stream(stream: impl io::Read + 'p) -> Self {
        Self::of(From::Stream(Box::new(stream)))
    }

    /// Restores the backup of this number. A stream has one only.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let target = sapwood::backup::Directory::open(dir.path().join("backups"))?;
    /// # db.backup().run(&target)?;
    /// let restored = sapwood::backup::Restore::from(&target).number(1).into_directory(dir.path().join("copy.db"))?;
    /// assert_eq!(restored.number, 1);
    /// # Ok(()) }
    /// ```
    pub fn number(self, number: u64) -> Self {
        Self { number: Some(number), ..self }
    }

    /// Restores a moment between backups, for which [the log was archived](crate::backup::Backup::archive_log): from the last backup before it,
    /// or the one that [`number`](Restore::number) says, and what was committed from there on. The information that is returned is that backup's,
    /// with the sequence number of the last operation that was restored, and the last time that the log tells up to there.
    /// If several databases have backups in the target from which the moment can be restored, one has to be said by [`number`](Restore::number);
    /// of a database that was set back the newest backup before the moment counts.
    ///
    /// Options of keyspaces that were changed in between are those of that backup. A stream has no archive.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// use sapwood::backup::{Directory, Point, Restore};
    ///
    /// let db = sapwood::Database::builder().keep_changes(64 << 20).open(dir.path().join("ships.db"))?;
    /// let target = Directory::open(dir.path().join("backups"))?;
    /// db.backup().archive_log().run(&target)?;
    /// db.keyspace("ships")?.insert("fram", "1892")?;
    /// # std::thread::sleep(std::time::Duration::from_millis(5)); // backups tell milliseconds
    /// let now = std::time::SystemTime::now();
    /// # std::thread::sleep(std::time::Duration::from_millis(5));
    /// let early = Restore::from(&target).to(Point::Time(now)).into_directory(dir.path().join("copy.db"));
    /// assert!(matches!(early, Err(sapwood::Error::NotArchived { .. }))); // not yet
    ///
    /// db.backup().archive_log().run(&target)?;
    /// let restored = Restore::from(&target).to(Point::Time(now)).into_directory(dir.path().join("copy.db"))?;
    /// assert_eq!((restored.number, restored.sequence), (1, 1));
    /// # Ok(()) }
    /// ```
    pub fn to(self, point: Point) -> Self {
        Self { point: Some(point), ..self }
    }

    /// The key of a backup of an [encrypted](crate::Builder::encryption_key) database: the one that the database opened with when the backup was
    /// taken. What is restored is encrypted, and opens with this key.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let target = sapwood::backup::Directory::open(dir.path().join("backups"))?;
    /// use sapwood::{Database, EncryptionKey, backup::Restore};
    ///
    /// let key = EncryptionKey::generate()?;
    /// let db = Database::builder().encryption_key(key.clone()).open(dir.path().join("ships.db"))?;
    /// db.backup().run(&target)?;
    /// assert!(Restore::from(&target).verify().is_err(), "no key");
    /// Restore::from(&target).encryption_key(key.clone()).into_directory(dir.path().join("copy.db"))?;
    /// let copy = Database::builder().encryption_key(key).open(dir.path().join("copy.db"))?;
    /// # Ok(()) }
    /// ```
    pub fn encryption_key(self, key: EncryptionKey) -> Self {
        Self { key: Some(key), ..self }
    }

    /// Calls `tell` after every chunk that was read. It can end the work.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let target = sapwood::backup::Directory::open(dir.path().join("backups"))?;
    /// # db.backup().run(&target)?;
    /// use std::ops::ControlFlow;
    ///
    /// let mut read = 0;
    /// let restore = sapwood::backup::Restore::from(&target).on_progress(|progress| {
    ///     read = progress.done;
    ///     ControlFlow::Continue(())
    /// });
    /// restore.verify()?;
    /// # Ok(()) }
    /// ```
    pub fn on_progress(mut self, tell: impl FnMut(&Progress) -> ControlFlow<()> + 'p) -> Self {
        self.reporter.tell = Some(Box::new(tell));
        self
    }

    /// Restores into an empty directory, which is created if there is none. All bytes are checked. The directory becomes a database
    /// at the end, with one step: a restore that fails or is killed leaves none, and can be repeated there. The copy is a database of its own,
    /// with another id.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let target = sapwood::backup::Directory::open(dir.path().join("backups"))?;
    /// # db.backup().run(&target)?;
    /// use sapwood::backup::Restore;
    ///
    /// Restore::from(&target).into_directory(dir.path().join("copy.db"))?;
    /// let again = Restore::from(&target).into_directory(dir.path().join("copy.db"));
    /// assert!(matches!(again, Err(sapwood::Error::NotEmpty { .. })));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::NotEmpty`], [`Error::NoBackup`], [`Error::NotArchived`], [`Error::BackupDamaged`], [`Error::BackupTarget`], [`Error::NewerFormat`],
    /// [`Error::Stopped`], [`Error::Locked`], [`Error::DiskFull`], I/O errors.
    pub fn into_directory(self, path: impl AsRef<Path>) -> Result<BackupInfo> {
        self.onto_opened(|| assembly::open(path.as_ref(), true))
    }

    /// Restores onto any empty [`Volume`], for example a simulated one.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let target = sapwood::backup::Directory::open(dir.path().join("backups"))?;
    /// # db.backup().run(&target)?;
    /// let volume = std::sync::Arc::new(sapwood::psync::Simulated::new(1));
    /// sapwood::backup::Restore::from(&target).onto(volume.clone())?;
    /// let copy = sapwood::Database::builder().background_threads(0).open_on(volume)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Restore::into_directory`].
    pub fn onto(self, volume: Arc<dyn Volume>) -> Result<BackupInfo> {
        self.onto_opened(|| Ok(volume))
    }

    /// Opens the volume once there is something to restore: no directory is made for a backup that is not there.
    fn onto_opened(self, open: impl FnOnce() -> Result<Arc<dyn Volume>>) -> Result<BackupInfo> {
        let mut lock = None;
        let restored = self.assemble(|key| {
            let volume = open()?;
            let holder = format!("a restore by process {}", std::process::id());
            lock = match volume.lock(LockKind::Exclusive, &holder) {
                Err(psync::Error::NoLocks { .. }) => None,
                taken => Some(taken.map_err(|error| Error::of_opening(error, &volume.describe()))?),
            };
            Assembly::on(&volume, key)
        });
        drop(lock);
        restored.map_err(|error| not_made("restore", error))
    }

    /// Reads all of the backup and checks it, without restoring it.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let target = sapwood::backup::Directory::open(dir.path().join("backups"))?;
    /// # db.backup().run(&target)?;
    /// let verified = sapwood::backup::Restore::from(&target).verify()?;
    /// println!("backup {} is whole: {} bytes", verified.number, verified.bytes);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoBackup`], [`Error::BackupDamaged`], [`Error::BackupTarget`], [`Error::NewerFormat`], [`Error::Stopped`].
    pub fn verify(self) -> Result<BackupInfo> {
        self.assemble(|key| Ok(Assembly::checking(key)))
    }

    fn assemble(self, begin: impl FnOnce(Option<&EncryptionKey>) -> Result<Assembly>) -> Result<BackupInfo> {
        let Self { from, number, point, key, mut reporter } = self;
        let key = key.as_ref();
        let begin = || begin(key);
        match (from, point) {
            (From::Target(target), None) => from_target(target, number, key, &mut reporter, begin),
            (From::Target(target), Some(point)) => {
                from_archives(target, (number, point), key, &mut reporter, begin)
            }
            (From::Stream(stream), None) => from_stream(StreamInput::new(stream), key, &mut reporter, begin),
            (From::Stream(_), Some(point)) => Err(not_archived("the stream", point, "its own".to_owned())),
        }
    }
}

impl std::fmt::Debug for Restore<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let from = match &self.from {
            From::Target(target) => target.describe(),
            From::Stream(_) => "a stream".to_owned(),
        };
        write!(f, "Restore({from}, number {:?})", self.number)
    }
}

/// Returns an error if a key is given that is not needed, or none that is: before anything is made.
fn check_need(is_encrypted: bool, key: Option<&EncryptionKey>) -> Result<()> {
    let problem = match (is_encrypted, key) {
        (true, None) => KeyProblem::Needed,
        (false, Some(_)) => KeyProblem::Needless,
        _ => return Ok(()),
    };
    Err(Error::EncryptionKey { path: "the backup".to_owned(), problem })
}

/// The same, and if it is not the key of these keys, which are of that backup.
fn check_key(
    target: &dyn Target,
    (keys, backup): (Option<Seal>, u64),
    key: Option<&EncryptionKey>,
) -> Result<()> {
    check_need(keys.is_some(), key)?;
    if keys.is_some() {
        let mut input = BlobInput::new(target, BlobName::Keys(backup));
        Assembly::checking(key).take_later_keys(input.open(Kind::Keys, backup)?)?;
    }
    Ok(())
}

fn from_target(
    target: &dyn Target,
    number: Option<u64>,
    key: Option<&EncryptionKey>,
    reporter: &mut Reporter<'_>,
    begin: impl FnOnce() -> Result<Assembly>,
) -> Result<BackupInfo> {
    let listing = Listing::read(target)?;
    let backups = listing.backups();
    let found = number.or(backups.last().copied()).filter(|number| backups.contains(number));
    let number = found.ok_or_else(|| no_backup(target, number, &listing))?;
    let (manifest, seal) = read_manifest(target, number)?;
    check_format(&manifest, &target.describe())?;
    let lacks = |error| lacks(target, number, error);
    check_key(target, (manifest.keys, number), key).map_err(lacks)?;
    reporter.progress.total = manifest.used();
    let mut assembly = begin()?;
    take_needed(target, &manifest, &mut assembly, reporter).map_err(lacks)?;
    if assembly.only_checks() {
        for part in manifest.archive.iter().flat_map(|archive| &archive.parts) {
            take_archive(target, part, &mut assembly, None).map_err(lacks)?;
        }
    }
    finish(assembly, &manifest, &target.describe())?;
    Ok(BackupInfo::of(&manifest, seal, &backups))
}

/// What an error in reading a blob means that the manifest of this backup names: one that is missing is damage, unless the backup was
/// removed meanwhile.
fn lacks(target: &dyn Target, number: u64, error: Error) -> Error {
    match &error {
        Error::BackupTarget { name, .. } if is_missing(&error) && read_manifest(target, number).is_ok() => {
            damage(&target.describe(), name, 0, "it is missing", "a blob", "none")
        }
        _ => error,
    }
}

/// Takes what makes the database as of the backup.
fn take_needed(
    target: &dyn Target,
    manifest: &BackupManifest,
    assembly: &mut Assembly,
    reporter: &mut Reporter<'_>,
) -> Result<()> {
    for (name, _) in needed(manifest) {
        let kind = match name {
            BlobName::Version(_) => Kind::Version,
            BlobName::Log(_) => Kind::Log,
            BlobName::Keys(_) => Kind::Keys,
            BlobName::Archive(_) => Kind::Archive,
            BlobName::Segment { .. } | BlobName::Manifest(_) => Kind::Segment,
        };
        let mut input = BlobInput::new(target, name);
        let mut reader = input.open(kind, name.backup())?;
        assembly.take(&mut reader, &mut |bytes| reporter.advance(bytes))?;
    }
    Ok(())
}

fn take_archive(
    target: &dyn Target,
    part: &ArchivePart,
    assembly: &mut Assembly,
    point: Option<Point>,
) -> Result<()> {
    let mut input = BlobInput::new(target, BlobName::Archive(part.backup));
    let reader = input.open(Kind::Archive, part.backup)?;
    assembly.take_archive(reader, part, point)
}

fn not_archived(target: &str, point: Point, existing: String) -> Error {
    Error::NotArchived { target: target.to_owned(), wanted: point.to_string(), existing }
}

fn from_archives(
    target: &dyn Target,
    (number, point): (Option<u64>, Point),
    key: Option<&EncryptionKey>,
    reporter: &mut Reporter<'_>,
    begin: impl FnOnce() -> Result<Assembly>,
) -> Result<BackupInfo> {
    let listing = Listing::read(target)?;
    let backups = listing.backups();
    if backups.is_empty() || number.is_some_and(|number| !backups.contains(&number)) {
        return Err(no_backup(target, number, &listing));
    }
    let read = |backup| -> Result<(BackupManifest, Seal)> {
        let (manifest, seal) = read_manifest(target, backup)?;
        check_format(&manifest, &target.describe())?;
        Ok((manifest, seal))
    };
    let (mut manifests, mut known, mut damaged) = (Vec::new(), BTreeSet::new(), Vec::new());
    for backup in backups.into_iter().rev() {
        match read(backup) {
            Ok((manifest, _)) => manifests.push(slim(manifest, &mut known)),
            Err(error) if is_unreadable(&error) => damaged.push((backup, error)),
            Err(error) => return Err(error),
        }
    }
    manifests.reverse();
    damaged.reverse();
    let plan = choose(&manifests, point, number).map_err(|NotChosen { existing, is_ambiguous }| {
        // What it says may be what is missing.
        let may_be_needed = |backup| number.map_or(!is_ambiguous, |number| number == backup);
        let needed = damaged.iter().position(|(backup, _)| may_be_needed(*backup));
        match needed.map(|index| damaged.swap_remove(index)) {
            Some((_, error)) => error,
            None => not_archived(&target.describe(), point, existing),
        }
    })?;
    for (_, error) in damaged {
        tracing::warn!(%error, "the moment is restored without a backup that cannot be read");
    }
    let (mut base, seal) = read(plan.base.number)?;
    let (base_lacks, last_lacks) =
        (|error| lacks(target, plan.base.number, error), |error| lacks(target, plan.last.number, error));
    check_key(target, (base.keys, plan.last.number), key).map_err(last_lacks)?;
    let mut info = BackupInfo::of(&base, seal, &manifests.iter().map(|it| it.number).collect());
    reporter.progress.total = base.used() + plan.parts.iter().map(|part| part.seal.len).sum::<u64>();
    let mut assembly = begin()?;
    if base.keys.take().is_some() {
        let mut input = BlobInput::new(target, BlobName::Keys(plan.last.number));
        let keys = input.open(Kind::Keys, plan.last.number).map_err(last_lacks)?;
        let (name, found) = assembly.take_later_keys(keys)?;
        if plan.last.keys != Some(found) {
            let (expected, found) = (format!("{:?}", plan.last.keys), format!("{found:?}"));
            return Err(damage(&target.describe(), &name.to_string(), 0, "the keys", expected, found));
        }
    }
    take_needed(target, &base, &mut assembly, reporter).map_err(base_lacks)?;
    for part in &plan.parts {
        if assembly.archived().is_passed {
            break;
        }
        take_archive(target, part, &mut assembly, Some(point)).map_err(last_lacks)?;
        reporter.advance(part.seal.len)?;
    }
    let archived = assembly.archived();
    finish(assembly, &base, &target.describe())?;
    info.sequence = info.sequence.max(archived.seq);
    info.time = info.time.max(time_of(archived.time));
    Ok(info)
}

fn from_stream<R: io::Read>(
    mut stream: StreamInput<R>,
    key: Option<&EncryptionKey>,
    reporter: &mut Reporter<'_>,
    begin: impl FnOnce() -> Result<Assembly>,
) -> Result<BackupInfo> {
    let mut assembly = None;
    let mut begin = Some(begin);
    loop {
        let Some(mut reader) = BlobReader::begin(&mut stream)? else {
            return Err(damage("stream", "stream", 0, "the manifest at its end", "one", "none"));
        };
        if reader.header.kind != Kind::Manifest {
            // When there is something to restore. Keys come first.
            if let Some(begin) = begin.take() {
                check_need(reader.header.kind == Kind::Keys, key)?;
                assembly = Some(begin()?);
            }
            if let Some(assembly) = &mut assembly
                && let Err(error) = assembly.take(&mut reader, &mut |bytes| reporter.advance(bytes))
            {
                // What a newer Sapwood has written is no damage, and only the end says so.
                let newer = error.is_damage() && reader.finish().is_ok();
                let newer = newer.then(|| format_of_rest(&mut stream).err()).flatten();
                return Err(newer.unwrap_or(error));
            }
            continue;
        }
        let (manifest, seal) = decode_manifest(&mut reader)?;
        check_format(&manifest, "stream")?;
        let Some(assembly) = assembly else {
            return Err(reader.damage("what comes before the manifest", "a version and a log", "nothing"));
        };
        if stream.fill(&mut [0])? {
            let expected = "the end of the stream";
            return Err(damage(
                "stream",
                "stream",
                stream.at(),
                "what follows the manifest",
                expected,
                "more",
            ));
        }
        finish(assembly, &manifest, "stream")?;
        return Ok(BackupInfo::of(&manifest, seal, &BTreeSet::new()));
    }
}

/// Returns [`Error::NewerFormat`] if the manifest at the end of a stream says so, and nothing in between is damaged.
fn format_of_rest<R: io::Read>(stream: &mut StreamInput<R>) -> Result<()> {
    while let Ok(Some(mut reader)) = BlobReader::begin(stream) {
        if reader.header.kind == Kind::Manifest {
            let read = decode_manifest(&mut reader);
            return read.map_or(Ok(()), |(manifest, _)| check_format(&manifest, "stream"));
        }
        if reader.finish().is_err() {
            break;
        }
    }
    Ok(())
}

/// Returns an error if a backup is of a newer Sapwood. `place`: where it is, for messages.
fn check_format(manifest: &BackupManifest, place: &str) -> Result<()> {
    if manifest.database_format <= current::FORMAT {
        return Ok(());
    }
    let path = format!("backup {} in {place}", manifest.number);
    Err(Error::NewerFormat { path, found: manifest.database_format, supported: current::FORMAT })
}

fn finish(assembly: Assembly, manifest: &BackupManifest, place: &str) -> Result<()> {
    let name = BlobName::Manifest(manifest.number).to_string();
    assembly.finish(manifest, &|what, expected, found| damage(place, &name, 0, what, expected, found))
}
