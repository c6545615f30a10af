//! Publishing: makes an edit durable, and then visible to all readers in one step.
//!
//! Invariants:
//! 1. Edits are durable and visible in the same order, that of the manifest.
//! 2. As long as it is unknown whether an edit is durable, nothing is written where it refers to.

use crate::clock::Clock;
use crate::current_state::{CurrentState, State};
use crate::error::{Error, Result};
use crate::followers::Followers;
use crate::health::{Health, Panicked};
use crate::latency::Timed;
use crate::lock_order::{RankedMutex, rank};
use crate::operation::KeyspaceId;
use crate::pool::Pool;
use crate::reserve::Reserve;
use crate::spans::span;
use crate::storage::segment::Segment;
use crate::version::Version;
use crate::version::builder::{Sealed, VersionBuilder};
use crate::version::change_log::{EventKind, KeyspaceEvent};
use crate::version::edit::Edit;
use crate::version::manifest::Manifest;
use bytes::Bytes;
use psync::{FileId, Volume};
use std::sync::Arc;

/// How an edit changes the contents of the trees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TreesChange {
    /// The contents do not change, or only by what the frozen queue holds too.
    #[default]
    Same,
    /// The whole frozen queue is in the trees now; the queue is dropped.
    Flushed,
    /// The trees gain records that were in no queue (ingestion).
    Grown,
}

/// What accompanies an edit but is not recorded in the manifest.
#[derive(Clone, Copy, Default)]
pub(crate) struct PublishContext<'a> {
    /// The segments that the edit begins.
    pub begun: &'a [Arc<Segment>],
    pub trees: TreesChange,
    /// The keys of all records that the trees gain, if it is known that these are few.
    pub keys: Option<&'a [Bytes]>,
}

/// The version that results from an edit, and the version the edit was applied to.
struct NextVersion {
    base: Arc<Version>,
    version: Version,
}

/// Segments of an edit while it is unknown whether the next open will find that edit. If an error or panic
/// leaves this undecided for good, their slots are never reused: another writer running beside this attempt,
/// unaware of the failure, would overwrite data that the edit refers to. A panic poisons the engine, and does so
/// before the version builder lets go of the writer, which would write to the same places again.
struct Undecided<'a> {
    begun: &'a [Arc<Segment>],
    _panicked: Panicked<'a>,
}

impl Undecided<'_> {
    fn decided(self) {
        std::mem::forget(self);
    }
}

impl Drop for Undecided<'_> {
    fn drop(&mut self) {
        self.begun.iter().cloned().for_each(std::mem::forget);
    }
}

/// Makes edits durable and visible, one after the other.
pub(crate) struct Publisher {
    volume: Arc<dyn Volume>,
    data: FileId,
    state: Arc<CurrentState>,
    health: Arc<Health>,
    reserve: Arc<Reserve>,
    followers: Arc<Followers>,
    pool: Arc<Pool>,
    clock: Arc<Clock>,
    /// `None` until the database is open, if it is read-only, and once it is closed.
    manifest: RankedMutex<rank::Manifest, Option<Manifest>>,
}

impl Publisher {
    /// The publisher of a database that is being opened.
    pub fn new(
        (volume, data): (Arc<dyn Volume>, FileId),
        state: Arc<CurrentState>,
        (health, reserve, followers): (Arc<Health>, Arc<Reserve>, Arc<Followers>),
        pool: Arc<Pool>,
        clock: Arc<Clock>,
    ) -> Self {
        let manifest = RankedMutex::new(None);
        Self { volume, data, state, health, reserve, followers, pool, clock, manifest }
    }

    /// Gives a newly opened database its manifest.
    pub fn install_manifest(&self, manifest: Manifest) {
        *self.manifest.lock() = Some(manifest);
    }

    /// Calls `read` with the manifest, if there is one. No edit is published meanwhile.
    pub fn with_manifest<T>(&self, read: impl FnOnce(Option<&Manifest>) -> T) -> T {
        read(self.manifest.lock().as_ref())
    }

    /// Begins another manifest with what the version has now, and makes it the valid one.
    pub fn renew_manifest(&self) -> Result<()> {
        self.health.check_writable()?;
        let mut guard = self.manifest.lock();
        let manifest = guard.as_mut().ok_or(Error::Closed)?;
        let version = self.state.version();
        let renewed = manifest.renew(&version);
        renewed.inspect_err(|error| {
            if !error.is_refusal() {
                self.health.poison(error)
            }
        })
    }

    /// Whether a next manifest is being written.
    pub fn has_next_manifest(&self) -> bool {
        self.with_manifest(|manifest| manifest.is_some_and(Manifest::has_next))
    }

    /// Writes some more of the next manifest. Returns whether there was one.
    pub fn go_on_with_next(&self) -> Result<bool> {
        let mut guard = self.manifest.lock();
        let Some(manifest) = guard.as_mut().filter(|manifest| manifest.has_next()) else { return Ok(false) };
        manifest.go_on_with_next(&self.state.load().version)?;
        Ok(true)
    }

    /// Abandons the next manifest, and returns whether there was one. Skips if the manifest is locked: the
    /// thread that is publishing will find out itself that there is no space.
    pub fn give_up_next_manifest(&self) -> bool {
        let Some(mut guard) = self.manifest.try_lock() else { return false };
        let Some(manifest) = guard.as_mut().filter(|manifest| manifest.has_next()) else { return false };
        manifest.give_up_for_space();
        true
    }

    /// Marks the end of the manifest, before the database is closed.
    pub fn seal(&self) -> Result<()> {
        let mut manifest = self.manifest.lock();
        let version = self.state.version();
        manifest.as_mut().map_or(Ok(()), |manifest| manifest.seal(&version))
    }

    /// Drops the manifest. Nothing is published from now on.
    pub fn close(&self) {
        *self.manifest.lock() = None;
    }

    #[cfg(test)]
    #[track_caller]
    pub fn manifest_for_test(&self) -> impl std::ops::DerefMut<Target = Option<Manifest>> {
        self.manifest.lock()
    }

    /// Makes a version builder durable and visible. Builds the next version while the version builder's data is being
    /// synced, and in this thread, which is the same for most versions: the tables live long, and if many threads made
    /// them, each would leave some in another arena of the allocator, none of which could be given back.
    pub fn commit_version(&self, builder: VersionBuilder<'_>, trees: TreesChange) -> Result<()> {
        self.commit_with(builder, PublishContext { trees, ..PublishContext::default() })
    }

    /// The same of one that has ingested records. `keys`: those of all of them, if they are few.
    pub fn commit_ingested(&self, builder: VersionBuilder<'_>, keys: Option<&[Bytes]>) -> Result<()> {
        let trees = TreesChange::Grown;
        self.commit_with(builder, PublishContext { trees, keys, ..PublishContext::default() })
    }

    fn commit_with(&self, mut builder: VersionBuilder<'_>, with: PublishContext<'_>) -> Result<()> {
        let Sealed { mut edit, begun } = builder.seal()?;
        let with = PublishContext { begun: &begun, ..with };
        builder.finish()?;
        // The user's clock may panic: only now is nothing being written any more to the places that are given back then.
        self.note_time(&mut edit);
        let next = if edit.set.is_empty() {
            self.next_version(&edit, with)
        } else {
            let (volume, data) = (Arc::clone(&self.volume), self.data);
            let latencies = self.state.pager.latencies.clone();
            let sync = move || Ok(latencies.timed(Timed::DataSync, || volume.sync(data)));
            let sync = self.pool.submit("the sync of data", sync);
            // Without a thread everything happens in one order: the sync first.
            let next = self.pool.has_threads().then(|| self.next_version(&edit, with));
            let synced = sync.wait().and_then(|synced| synced.map_err(Error::undecided));
            if let Err(error) = synced {
                // Others shall not hold the segments that are given back now.
                drop(next);
                self.health.poison(&error);
                return Err(error);
            }
            next.unwrap_or_else(|| self.next_version(&edit, with))
        };
        self.publish_made(&edit, with, next)?;
        builder.committed();
        Ok(())
    }

    /// Applies the edit to the current version. On `DiskFull` nothing has changed; other errors poison the
    /// engine.
    pub fn publish(&self, mut edit: Edit, with: PublishContext<'_>) -> Result<()> {
        self.note_time(&mut edit);
        self.publish_made(&edit, with, self.next_version(&edit, with))
    }

    /// The manifest learns what time it is, if records may expire, or the log has times: those of the next opening do not lie before them.
    fn note_time(&self, edit: &mut Edit) {
        let version = &self.state.load().version;
        if version.clock > 0 || version.kept_log_max() > 0 {
            edit.clock = Some(self.clock.now());
        }
    }

    fn publish_made(&self, edit: &Edit, with: PublishContext<'_>, next: Result<NextVersion>) -> Result<()> {
        self.health.check_writable()?;
        let undecided = Undecided {
            begun: with.begun,
            _panicked: Panicked::watch(&self.health, "a thread that was publishing"),
        };
        let result = next.and_then(|next| self.publish_inner(edit, with, next));
        match &result {
            Err(error) if !error.is_refusal() => self.health.poison(error),
            _ => undecided.decided(),
        }
        result
    }

    /// The version that results from applying the edit to the current version.
    fn next_version(&self, edit: &Edit, with: PublishContext<'_>) -> Result<NextVersion> {
        next_version(self.state.version(), edit, with.begun)
    }

    fn publish_inner(&self, edit: &Edit, with: PublishContext<'_>, mut next: NextVersion) -> Result<()> {
        span!("publish");
        let mut guard = self.manifest.lock();
        let manifest = guard.as_mut().ok_or(Error::Closed)?;
        // Another thread may have published meanwhile. Now that the manifest is locked, none can.
        if !Arc::ptr_eq(&next.base, &self.state.load().version) {
            next = self.next_version(edit, with)?;
        }
        let told;
        let edit = match without_dropped(edit, &next.base) {
            None => edit,
            Some(events) => {
                told = Edit { events, ..edit.clone() };
                next = self.next_version(&told, with)?;
                &told
            }
        };
        let (version, trees) = (next.version, with.trees);
        manifest.append(edit, version.epoch)?;
        self.reserve.note_version(version.live_bytes(), manifest.len());
        // Before the version is shown: what it does not have may be let go then.
        self.followers.note_version(version.epoch);
        let version = Arc::new(version);
        let (mut number, mut ingested) = (0, 0);
        let mut show = || {
            self.state.replace(|state| {
                number = state.number + numbers_for(trees);
                ingested = state.ingested + u64::from(trees == TreesChange::Grown);
                State {
                    number,
                    ingested,
                    active: Arc::clone(&state.active),
                    frozen: if trees == TreesChange::Flushed { None } else { state.frozen.clone() },
                    version: Arc::clone(&version),
                }
            });
            ingested
        };
        match trees {
            TreesChange::Grown => {
                // Whatever is in other keyspaces stays what it was.
                let grown = edit.trees.iter().map(|(id, _)| *id).chain(edit.dropped.iter().copied());
                self.state.empty_ranges.forget_while(grown, show);
            }
            _ => _ = show(),
        }
        if trees != TreesChange::Same {
            let records = self.state.pager.cache.records();
            let expiring = trees_that_expire(edit, &version);
            if trees == TreesChange::Grown && !expiring.is_empty() {
                // Ingested keys may be those of expired records. No state is served meanwhile, so that none comes back.
                records.serve(number - 1);
                match with.keys {
                    // The cache may have very many records.
                    Some(keys) => {
                        let all = expiring.iter().flat_map(|id| keys.iter().map(move |key| (*id, key)));
                        all.for_each(|(keyspace, key)| records.renew(keyspace, key, None, false));
                    }
                    None => records.remove_all(|keyspace, _| expiring.contains(&keyspace)),
                }
            }
            records.serve(number);
        }
        if let Err(error) = manifest.go_on_with_next(&version) {
            // After a refusal the old manifest remains in use. After any other error it is unknown what is on
            // disk.
            if !error.is_refusal() {
                return Err(error);
            }
            tracing::warn!(%error, "no checkpoint of the mapping table yet");
        }
        Ok(())
    }
}

/// A keyspace can be dropped while records are ingested into it. Nobody is told of these behind the drop: the events of the edit but for
/// them, if there are such.
fn without_dropped(edit: &Edit, base: &Version) -> Option<Vec<KeyspaceEvent>> {
    let is_told =
        |event: &KeyspaceEvent| event.kind != EventKind::Ingested || base.trees.contains(&event.keyspace);
    let are_all = edit.events.iter().all(is_told);
    (!are_all).then(|| edit.events.iter().filter(|event| is_told(event)).cloned().collect())
}

/// By how much the number of states goes on: an ingestion leaves one out, which no state has.
fn numbers_for(trees: TreesChange) -> u64 {
    match trees {
        TreesChange::Same => 0,
        TreesChange::Flushed => 1,
        TreesChange::Grown => 2,
    }
}

/// The trees of an edit whose records may expire.
fn trees_that_expire(edit: &Edit, version: &Version) -> Vec<KeyspaceId> {
    let may_expire = |id: &KeyspaceId| version.trees.get(id).is_some_and(|tree| tree.ttl.is_some());
    edit.trees.iter().map(|(id, _)| *id).filter(may_expire).collect()
}

/// Builds the version that results from applying the edit to `base`. `begun`: segments that the edit begins.
fn next_version(base: Arc<Version>, edit: &Edit, begun: &[Arc<Segment>]) -> Result<NextVersion> {
    let mut version = (*base).clone();
    let mut handle = |number: u64, _: u32| {
        begun.iter().find(|segment| segment.number == number).cloned().ok_or("a segment that was not begun")
    };
    version.apply(edit, &mut handle).map_err(|why| {
        Error::corrupt(
            "memory",
            0,
            "an edit does not fit the version it was made for",
            "a consistent edit",
            why,
        )
    })?;
    Ok(NextVersion { base, version })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Database;
    use crate::operation::KeyspaceId;
    use crate::version::Tree;
    use psync::{PassThrough, Simulated};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// The next version is made before other threads are kept from publishing.
    #[test]
    fn what_another_thread_has_published_meanwhile_is_not_lost() {
        let db =
            Database::builder().memory(4 << 20).background_threads(0).open_on(Arc::new(Simulated::new(1)));
        let db = db.unwrap();
        let engine = &db.handle.engine;
        let edit = |id: u32| {
            let tree = Tree::empty(format!("{id}").into());
            Edit { trees: vec![(KeyspaceId(id), tree)], ..Edit::default() }
        };
        let slow = edit(8);
        let next = next_version(engine.state.version(), &slow, &[]).unwrap();
        engine.publisher.publish(edit(7), PublishContext::default()).unwrap();
        engine.publisher.publish_inner(&slow, PublishContext::default(), next).unwrap();
        let version = engine.state.version();
        assert!([7, 8].iter().all(|id| version.trees.contains(&KeyspaceId(*id))));
        db.check().unwrap();
    }

    /// Panics when any file but this one is synced.
    struct Panicking(Simulated, Arc<parking_lot::Mutex<Option<FileId>>>);

    impl PassThrough for Panicking {
        fn inner(&self) -> &dyn Volume {
            &self.0
        }

        fn sync(&self, file: FileId) -> psync::Result<()> {
            assert!(self.1.lock().is_none_or(|data| data == file), "a panic on purpose");
            self.inner().sync(file)
        }
    }

    /// The next attempt would write over what the edit refers to, and the edit may be durable.
    #[test]
    fn after_a_panic_while_an_edit_becomes_durable_writes_are_refused() {
        let data = Arc::default();
        let volume = Arc::new(Panicking(Simulated::new(1), Arc::clone(&data)));
        let db = Database::builder().memory(4 << 20).background_threads(0).open_on(volume).unwrap();
        let keyspace = db.keyspace("main").unwrap();
        keyspace.ingest((0u32..1000).map(|number| (number.to_be_bytes(), [0; 40]))).unwrap();
        *data.lock() = Some(db.handle.engine.data);
        let more = || keyspace.ingest((1000u32..2000).map(|number| (number.to_be_bytes(), [0; 40])));
        assert!(catch_unwind(AssertUnwindSafe(more)).is_err());
        *data.lock() = None;
        assert!(matches!(more(), Err(Error::Poisoned { .. })));
        assert!(matches!(keyspace.insert("key", "value"), Err(Error::Poisoned { .. })));
        assert_eq!(keyspace.iter().count(), 1000, "reading goes on");
    }
}
