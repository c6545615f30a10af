//! A writer and its followers on one volume, against a model of what was committed.

mod full_disk;
mod opening;
mod refused;

use crate::backup::{Directory, Restore};
use crate::db::database::Database;
use crate::db::keyspace::Keyspace;
use crate::db::options::Builder;
use crate::db::snapshot::Snapshot;
use crate::durability::Durability;
use crate::error::Error;
use psync::{Access, Fault, FileId, Filter, OperationKind, PassThrough, Repeat, Simulated, Volume};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::Duration;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

const COUNTER: &[u8] = b"counter";
const KEYS: u32 = 3000;

fn builder() -> Builder {
    Database::builder().memory(4 << 20).leaf_len(512).segment_span(1 << 20).background_threads(0)
}

fn follow(volume: &Simulated) -> Database {
    builder().follow(true).open_on(Arc::new(volume.clone())).expect("it can be followed")
}

fn key(number: u32) -> Vec<u8> {
    format!("key {number:06}").into_bytes()
}

/// One commit's changes, in order.
enum Change {
    Insert(Vec<u8>, Vec<u8>),
    Remove(Vec<u8>),
    RemoveRange(Vec<u8>, Vec<u8>),
}

/// All commits, the `n`th of which sets the counter to `n`.
#[derive(Default)]
struct History(Vec<Vec<Change>>);

impl History {
    fn apply(&self, model: &mut Model, commits: std::ops::Range<u64>) {
        for change in self.0[commits.start as usize..commits.end as usize].iter().flatten() {
            match change {
                Change::Insert(key, value) => drop(model.insert(key.clone(), value.clone())),
                Change::Remove(key) => drop(model.remove(key)),
                Change::RemoveRange(from, to) => model.retain(|key, _| key < from || key >= to),
            }
        }
    }
}

/// A writer whose commits are known.
struct Ground {
    volume: Simulated,
    db: Option<Database>,
    history: History,
    /// So many commits are durable at least.
    durable: u64,
    rng: StdRng,
}

impl Ground {
    fn new(seed: u64) -> Self {
        let volume = Simulated::new(seed).with_windows();
        let rng = StdRng::seed_from_u64(seed);
        let mut ground = Self { volume, db: None, history: History::default(), durable: 0, rng };
        ground.open();
        ground
    }

    fn open(&mut self) {
        let lease = Duration::from_secs(600);
        let db = builder().follower_lease(lease).open_on(Arc::new(self.volume.clone())).unwrap();
        self.db = Some(db);
    }

    fn db(&self) -> &Database {
        self.db.as_ref().unwrap()
    }

    fn main(&self) -> Keyspace {
        self.db().keyspace("main").unwrap()
    }

    fn commits(&self) -> u64 {
        self.history.0.len() as u64
    }

    fn commit(&mut self, durability: Durability) -> crate::Result<()> {
        let (db, main) = (self.db().clone(), self.main());
        let number = self.commits() + 1;
        let mut changes = Vec::new();
        for _ in 0..self.rng.random_range(1..60) {
            let from = self.rng.random_range(0..KEYS);
            changes.push(match self.rng.random_range(0..20) {
                0 => Change::RemoveRange(key(from), key(from + self.rng.random_range(1..200))),
                1..5 => Change::Remove(key(from)),
                _ => {
                    let len = self.rng.random_range(0..200);
                    Change::Insert(
                        key(from),
                        format!("{number} {from} ").repeat(60).as_bytes()[..len].to_vec(),
                    )
                }
            });
        }
        changes.push(Change::Insert(COUNTER.to_vec(), number.to_be_bytes().to_vec()));
        let mut batch = db.batch();
        for change in &changes {
            match change {
                Change::Insert(key, value) => batch.insert(&main, key, value),
                Change::Remove(key) => batch.remove(&main, key),
                Change::RemoveRange(from, to) => batch.remove_range(&main, from.clone()..to.clone()),
            };
        }
        // What fails may be there nevertheless.
        self.history.0.push(changes);
        batch.durability(durability).commit()?;
        if durability == Durability::Immediate {
            self.durable = number;
        }
        Ok(())
    }

    fn all_durable(&mut self) {
        self.durable = self.commits();
    }
}

/// A follower, and what it should see.
struct Seen {
    db: Database,
    commits: u64,
    model: Model,
}

/// Reads once more what a planned fault has hit.
fn read<T>(read: impl Fn() -> crate::Result<T>) -> T {
    match read() {
        Err(Error::Io(_)) => read(),
        other => other,
    }
    .expect("sound")
}

fn counter(snapshot: &Snapshot, main: &Keyspace) -> u64 {
    let counter = read(|| snapshot.get(main, COUNTER));
    counter.map_or(0, |counter| u64::from_be_bytes(counter[..].try_into().unwrap()))
}

/// Compares with what is on the device, whatever the caches have.
fn compare_cold(snapshot: &Snapshot, main: &Keyspace, model: &Model) {
    snapshot.handle.engine.pager.cache.set_capacity(0, 0);
    compare(snapshot, main, model);
    snapshot.handle.engine.memory.balance_memory();
}

fn compare(snapshot: &Snapshot, main: &Keyspace, model: &Model) {
    let found = read(|| snapshot.iter(main).collect::<crate::Result<Vec<_>>>());
    let found: Model = found.into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
    assert!(found == *model, "{} records, {} expected", found.len(), model.len());
}

impl Seen {
    fn of(ground: &Ground) -> Self {
        let mut seen = Self { db: follow(&ground.volume), commits: 0, model: Model::default() };
        seen.check(ground);
        seen
    }

    /// What is seen is what some number of commits have made: not fewer than before, nor than are durable, and never too many.
    fn check(&mut self, ground: &Ground) {
        if !self.db.contains_keyspace("main") {
            assert_eq!(ground.durable, 0);
            return;
        }
        let (snapshot, main) = (self.db.snapshot(), self.db.keyspace("main").unwrap());
        let commits = counter(&snapshot, &main);
        let (least, most) = (self.commits.max(ground.durable), ground.commits());
        assert!((least..=most).contains(&commits), "{commits} commits are seen, {least} to {most} expected");
        ground.history.apply(&mut self.model, self.commits..commits);
        self.commits = commits;
        compare(&snapshot, &main, &self.model);
        for number in (0..KEYS).step_by(97) {
            let value = read(|| main.get(key(number)));
            assert_eq!(value.as_deref(), self.model.get(&key(number)).map(Vec::as_slice));
        }
    }

    fn refresh(&mut self, ground: &Ground) {
        let refreshed = self.db.refresh().expect("it can be followed");
        assert_eq!(refreshed.sequence, self.db.handle.engine.state.visible());
        self.check(ground);
    }

    fn held(&self) -> (Snapshot, Keyspace, Model) {
        (self.db.snapshot(), self.db.keyspace("main").unwrap(), self.model.clone())
    }
}

/// Commits of all durabilities, flushes, cleansings, checkpoints and reopenings. Each snapshot is read long after what it sees was
/// replaced, and segments that died are written anew.
#[test]
fn a_follower_sees_what_is_durable_and_goes_on_seeing_what_it_saw() {
    let (mut held_on, mut freed) = (0, 0);
    for seed in 0..3 {
        let mut ground = Ground::new(seed);
        ground.commit(Durability::Immediate).unwrap();
        let mut followers = vec![Seen::of(&ground)];
        let mut held: Vec<(u64, Snapshot, Keyspace, Model)> = Vec::new();
        for step in 0..400u64 {
            match ground.rng.random_range(0..40) {
                0..12 => ground.commit(Durability::Immediate).unwrap(),
                12..18 => ground.commit(Durability::Buffered).unwrap(),
                18..24 => ground.commit(Durability::None).unwrap(),
                24 => {
                    ground.db().sync().unwrap();
                    ground.all_durable();
                }
                25..28 => {
                    ground.db().flush().unwrap();
                    ground.all_durable();
                }
                28..30 => {
                    ground.db().compact().unwrap();
                    ground.all_durable();
                }
                30 => {
                    ground.db.take().unwrap().close().unwrap();
                    ground.all_durable();
                    if ground.rng.random_bool(0.5) {
                        followers.iter_mut().for_each(|seen| seen.refresh(&ground));
                    }
                    ground.open();
                }
                31 if followers.len() < 3 => followers.push(Seen::of(&ground)),
                32 if followers.len() > 1 => drop(followers.pop()),
                33 => {
                    let (snapshot, main, model) = followers[0].held();
                    held.push((step, snapshot, main, model));
                }
                34 if !held.is_empty() => {
                    let index = ground.rng.random_range(0..held.len());
                    let (since, snapshot, main, model) = held.swap_remove(index);
                    compare_cold(&snapshot, &main, &model);
                    held_on += u64::from(step - since > 50);
                }
                _ => {
                    let index = ground.rng.random_range(0..followers.len());
                    followers[index].refresh(&ground);
                }
            }
        }
        for (_, snapshot, main, model) in held {
            compare_cold(&snapshot, &main, &model);
        }
        drop(followers);
        ground.db().compact().unwrap();
        ground.db().check().unwrap();
        let slots = &ground.db().handle.engine.space.slots;
        assert!(slots.waiting() == 0, "nothing waits for those that are gone");
        freed += slots.used();
    }
    assert!(held_on > 10 && freed > 0, "{held_on} snapshots were held for long");
}

/// A follower has seen nothing that the power loss took, and after it sees no less.
#[test]
fn no_power_loss_takes_what_a_follower_has_seen() {
    let (mut seen_more, mut lost, mut unfollowed) = (0, 0, 0);
    for nth in (10..4000).step_by(61) {
        let mut ground = Ground::new(nth);
        ground.commit(Durability::Immediate).unwrap();
        let mut seen = Seen::of(&ground);
        ground.volume.fail_nth(Filter::changes(), nth, Fault::PowerOff, Repeat::Once);
        for step in 0..60 {
            let durability = match step % 4 {
                0 => Durability::Immediate,
                1 | 2 => Durability::Buffered,
                _ => Durability::None,
            };
            let is_on = ground.commit(durability).is_ok()
                && (step % 9 != 0 || ground.db().flush().is_ok())
                && (step % 23 != 0 || ground.db().compact().is_ok())
                && seen.db.refresh().is_ok();
            if !is_on {
                break;
            }
            seen.check(&ground);
        }
        let image = ground.volume.power_loss(nth);
        // First by another follower, before any writer has seen it.
        let mut of_follower = seen.commits;
        match builder().follow(true).open_on(Arc::new(image.clone())) {
            Ok(db) => {
                let mut after = Seen { db, commits: 0, model: Model::default() };
                ground.durable = 0;
                after.check(&ground);
                of_follower = after.commits;
            }
            // The name of `DURABLE` is lost.
            Err(Error::NotFollowable { .. }) => unfollowed += 1,
            Err(other) => panic!("{other:?}"),
        }
        let db = builder().open_on(Arc::new(image)).unwrap();
        let after = counter(&db.snapshot(), &db.keyspace("main").unwrap());
        assert!(
            of_follower >= seen.commits && after >= of_follower,
            "{after} are left, {} were seen",
            seen.commits
        );
        seen_more += u64::from(seen.commits > 1);
        lost += u64::from(after < ground.commits());
    }
    assert!(seen_more > 30 && lost > 15 && unfollowed < 20, "{seen_more}, {lost}, {unfollowed}");
}

/// Each I/O fails once, of whichever side. A refresh that fails shows what was there before or something newer; the next ones succeed.
#[test]
fn a_fault_of_either_side_does_no_harm() {
    let (mut refused, mut fired) = (0, 0);
    for nth in (1..900).step_by(11) {
        let mut ground = Ground::new(5);
        ground.commit(Durability::Immediate).unwrap();
        let mut seen = Seen::of(&ground);
        ground.volume.fail_nth(Filter::any(), nth, Fault::Error, Repeat::Once);
        let held = seen.held();
        for step in 0..25 {
            if ground.commit(Durability::Immediate).is_err()
                || (step % 6 == 5 && ground.db().flush().is_err())
            {
                // It refuses writes from now on.
                ground.db = None;
                ground.volume.clear_faults();
                ground.open();
                let (db, main) = (ground.db().clone(), ground.main());
                let kept = counter(&db.snapshot(), &main);
                assert!(kept >= ground.durable && kept + 1 >= ground.commits());
                ground.history.0.truncate(kept as usize);
                ground.all_durable();
            }
            match seen.db.refresh() {
                Ok(_) => seen.check(&ground),
                Err(_) => refused += 1,
            }
        }
        fired += ground.volume.fired();
        ground.volume.clear_faults();
        compare(&held.0, &held.1, &held.2);
        seen.refresh(&ground);
        Seen::of(&ground).check(&ground);
    }
    assert!(fired > 60, "{fired} faults, {refused} refreshes failed");
}

/// Rewrites everything so often that all places are used again.
fn rewrite(ground: &mut Ground) {
    for round in 0..6 {
        let main = ground.main();
        for number in 0..KEYS {
            main.insert(key(number), format!("{round}").repeat(150)).unwrap();
        }
        ground.db().compact().unwrap();
    }
}

/// What cannot be read any more is told as that, and a refresh mends it.
#[track_caller]
fn is_too_old(seen: &mut Seen, held: &(Snapshot, Keyspace, Model)) {
    seen.db.handle.engine.pager.cache.set_capacity(0, 0);
    let (snapshot, main, model) = held;
    let errors = snapshot.iter(main).filter_map(Result::err);
    let errors: Vec<_> =
        errors.inspect(|error| assert!(matches!(error, Error::SnapshotTooOld { .. }), "{error}")).collect();
    assert!(!errors.is_empty(), "{} records are still there", model.len());
    seen.db.refresh().unwrap();
    assert_eq!(seen.db.keyspace("main").unwrap().get(key(7)).unwrap().as_deref(), Some(&[b'5'; 150][..]));
    assert!(
        snapshot.iter(main).any(|item| matches!(item, Err(Error::SnapshotTooOld { .. }))),
        "still too old"
    );
}

/// A ground with much that is flushed, a follower of it and a snapshot.
fn with_snapshot(lease: Duration) -> (Ground, Seen, (Snapshot, Keyspace, Model)) {
    let mut ground = Ground::new(9);
    ground.db = None;
    ground.db = Some(builder().follower_lease(lease).open_on(Arc::new(ground.volume.clone())).unwrap());
    for _ in 0..100 {
        ground.commit(Durability::Buffered).unwrap();
    }
    ground.db().flush().unwrap();
    ground.all_durable();
    let seen = Seen::of(&ground);
    let held = seen.held();
    (ground, seen, held)
}

#[test]
fn a_follower_that_is_not_heard_of_loses_what_it_needs() {
    let (mut ground, mut seen, held) = with_snapshot(Duration::ZERO);
    rewrite(&mut ground);
    is_too_old(&mut seen, &held);
    // One that is heard of does not.
    let (mut ground, _seen, held) = with_snapshot(Duration::from_secs(600));
    rewrite(&mut ground);
    compare_cold(&held.0, &held.1, &held.2);
}

/// What versions before its own have, a writer that opens does not know.
#[test]
fn a_writer_that_opens_keeps_what_followers_need() {
    let (mut ground, seen, held) = with_snapshot(Duration::from_secs(600));
    rewrite(&mut ground);
    ground.db = None;
    ground.open();
    rewrite(&mut ground);
    compare_cold(&held.0, &held.1, &held.2);
    drop((seen, held));
    ground.commit(Durability::Immediate).unwrap();
    ground.db().flush().unwrap();
    assert!(ground.db().handle.engine.space.slots.waiting() == 0);
}

/// A removal that is in the trees does not hide what is ingested after it.
#[test]
fn what_is_ingested_after_a_removal_is_seen() {
    let ground = Ground::new(3);
    let main = ground.main();
    let follower = follow(&ground.volume);
    for round in 0..5u32 {
        main.ingest((0..100).map(|number| (key(number), round.to_be_bytes()))).unwrap();
        follower.refresh().unwrap();
        let seen = follower.keyspace("main").unwrap();
        assert_eq!(seen.get(key(50)).unwrap().as_deref(), Some(&round.to_be_bytes()[..]));
        assert_eq!(seen.iter().count(), 100, "round {round}");
        main.clear().unwrap();
        follower.refresh().unwrap();
        assert!(seen.is_empty().unwrap());
        ground.db().flush().unwrap();
    }
}

/// A flush comes to the trees in portions, and fails in the middle. The commit that it has was not durable when it began.
#[test]
fn a_commit_is_seen_as_a_whole_when_a_part_of_it_is_in_the_trees() {
    const RECORDS: u32 = 6000;
    for portions in 1..4u64 {
        let volume = Simulated::new(1).with_windows();
        let big = || builder().memory(64 << 20).leaf_len(4 << 10);
        let db = big().open_on(Arc::new(volume.clone())).unwrap();
        let main = db.keyspace("main").unwrap();
        main.ingest((0..RECORDS).map(|number| (key(number), [0; 1000]))).unwrap();
        let follower = big().follow(true).open_on(Arc::new(volume.clone())).unwrap();
        let seen = follower.keyspace("main").unwrap();
        let mut batch = db.batch();
        for number in 0..RECORDS {
            batch.insert(&main, key(number), [1; 600]);
        }
        batch.durability(Durability::Buffered).commit().unwrap();
        // Without space, the portions are small.
        volume.set_capacity(volume.used() + (100 << 10));
        let syncs = Filter::kinds([OperationKind::Sync]).file("manifest-");
        volume.fail_nth(syncs, portions + 1, Fault::Error, Repeat::Once);
        db.flush().unwrap_err();
        assert!(db.stats().writes.portions >= portions, "some of it is in the trees");
        follower.refresh().unwrap();
        assert!(seen.iter().all(|item| item.unwrap().1[..] == [1; 600]), "{portions} portions");
    }
}

/// The copy is that of the moment when it began, whatever the writer does meanwhile.
#[test]
fn a_follower_takes_backups_beside_the_writer() {
    let (mut ground, seen, _) = with_snapshot(Duration::from_secs(600));
    for _ in 0..20 {
        ground.commit(Durability::Immediate).unwrap();
    }
    let mut expected = Model::default();
    ground.history.apply(&mut expected, 0..ground.commits());
    let dir = tempfile::tempdir().unwrap();
    let target = Directory::open(dir.path().join("backups")).unwrap();
    let mut calls = 0;
    let taken = seen.db.backup().on_progress(|_| {
        calls += 1;
        if calls == 1 {
            rewrite(&mut ground);
        }
        ControlFlow::Continue(())
    });
    let taken = taken.run(&target).unwrap();
    assert!(calls > 0 && taken.sequence > 0);
    Restore::from(&target).into_directory(dir.path().join("copy")).unwrap();
    let copy = builder().open(dir.path().join("copy")).unwrap();
    compare(&copy.snapshot(), &copy.keyspace("main").unwrap(), &expected);
}

/// Refuses to create files of followers.
struct Unwritable(Simulated);

impl PassThrough for Unwritable {
    fn inner(&self) -> &dyn Volume {
        &self.0
    }

    fn open(&self, name: &str, access: Access) -> psync::Result<FileId> {
        if name.starts_with("follower-") && access.write {
            let refused = std::io::Error::from(std::io::ErrorKind::ReadOnlyFilesystem);
            return Err(psync::Error::from_io("open", name, None, refused));
        }
        self.0.open(name, access)
    }
}

#[test]
fn where_a_follower_cannot_register_it_reads_what_is_there() {
    let (mut ground, seen, _) = with_snapshot(Duration::from_secs(600));
    drop(seen);
    let db = builder().follow(true).open_on(Arc::new(Unwritable(ground.volume.clone()))).unwrap();
    let mut seen = Seen { db, commits: 0, model: Model::default() };
    seen.check(&ground);
    let held = seen.held();
    rewrite(&mut ground);
    is_too_old(&mut seen, &held);
}

/// Does something when `CURRENT` is opened next. Followers cannot register: a writer that finds the disk full would end that.
struct Between {
    inner: Simulated,
    work: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl PassThrough for Between {
    fn inner(&self) -> &dyn Volume {
        &self.inner
    }

    fn open(&self, name: &str, access: Access) -> psync::Result<FileId> {
        let work = if name == "CURRENT" { self.work.lock().unwrap().take() } else { None };
        work.into_iter().for_each(|work| work());
        PassThrough::open(&Unwritable(self.inner.clone()), name, access)
    }
}

/// A commit was seen in half whose other half was still in the queue, when the writer had changed to another manifest after the follower
/// had read how far the log is durable.
#[test]
fn a_manifest_that_comes_between_two_reads_shows_no_part_of_a_commit() {
    let shown = (1..6).filter(|nth| manifest_between_two_reads(*nth)).count();
    assert!(shown > 0, "a part of a queue was in the trees");
}

/// The writer's flush ends with its `nth` edit. Returns whether a part of the queue was in the trees by then.
fn manifest_between_two_reads(nth: u64) -> bool {
    let mut ground = Ground::new(1);
    ground.db.take().unwrap().close().unwrap();
    // So much that a batch takes several portions.
    let builder_of_much = builder().memory(64 << 20).compression(crate::Compression::None);
    ground.db = Some(builder_of_much.open_on(Arc::new(ground.volume.clone())).unwrap());
    (0..150).for_each(|_| ground.commit(Durability::Immediate).unwrap());
    ground.db().flush().unwrap();
    let between = Arc::new(Between { inner: ground.volume.clone(), work: Mutex::default() });
    let db = builder().follow(true).open_on(between.clone()).unwrap();
    let mut seen = Seen { db, commits: 0, model: Model::default() };
    seen.check(&ground);
    let mut changes: Vec<_> = (0..KEYS).map(|number| Change::Insert(key(number), vec![b'n'; 1000])).collect();
    changes.push(Change::Insert(COUNTER.to_vec(), (ground.commits() + 1).to_be_bytes().to_vec()));
    let (writer, main, volume) = (ground.db().clone(), ground.main(), ground.volume.clone());
    let mut batch = writer.batch();
    for change in &changes {
        let Change::Insert(key, value) = change else { unreachable!() };
        batch.insert(&main, key, value);
    }
    batch.durability(Durability::Buffered);
    let manifest =
        |db: &Database| db.handle.engine.publisher.manifest_for_test().as_ref().unwrap().current().manifest;
    let work = {
        let writer = writer.clone();
        move || {
            batch.commit().unwrap();
            // In small portions, of which a later one has no space.
            writer.handle.engine.flush.low_space.failed(0);
            let writes = Filter::kinds([OperationKind::Write]).file("manifest-");
            volume.fail_nth(writes, nth, Fault::NoSpace, Repeat::Sticky);
            _ = writer.flush();
            volume.clear_faults();
            let before = manifest(&writer);
            for number in 0.. {
                let names = (0..200).map(|of| format!("{number} {of} {}", "long ".repeat(40)));
                writer.create_keyspaces(names).unwrap();
                if manifest(&writer) > before {
                    break;
                }
            }
        }
    };
    *between.work.lock().unwrap() = Some(Box::new(work));
    seen.db.refresh().unwrap();
    assert!(between.work.lock().unwrap().is_none());
    let state = writer.handle.engine.state.load_full();
    let is_in_part = state.frozen.as_ref().is_some_and(|frozen| !frozen.is_whole());
    drop(state);
    ground.history.0.push(changes);
    seen.check(&ground);
    ground.db().flush().unwrap();
    ground.all_durable();
    seen.refresh(&ground);
    is_in_part
}

/// A name may be another keyspace's by then, with as many keyspaces as before.
#[test]
fn a_follower_finds_keyspaces_by_their_names_of_now() {
    let volume = Simulated::new(1).with_windows();
    let writer = builder().open_on(Arc::new(volume.clone())).unwrap();
    for name in ["a", "b", "ships", "gone"] {
        writer.keyspace(name).unwrap().insert("name", name).unwrap();
    }
    let follower = follow(&volume);
    let of = |name: &str| follower.keyspace(name)?.get("name").map(|found| found.map(|found| found.to_vec()));
    let all = |expected: [(&str, &str); 4]| {
        follower.refresh().unwrap();
        for (name, value) in expected {
            assert_eq!(of(name).unwrap(), Some(value.as_bytes().to_vec()), "{name}");
            assert!(follower.keyspace_if_exists(name).unwrap().is_some());
        }
    };
    all([("a", "a"), ("b", "b"), ("ships", "ships"), ("gone", "gone")]);
    for (from, to) in [("a", "t"), ("b", "a"), ("t", "b")] {
        writer.rename_keyspace(from, to).unwrap();
    }
    writer.keyspace("new").unwrap().insert("name", "new ships").unwrap();
    writer.replace_keyspace("new", "ships").unwrap();
    writer.drop_keyspace("gone").unwrap();
    writer.keyspace("other").unwrap().insert("name", "other").unwrap();
    all([("a", "b"), ("b", "a"), ("ships", "new ships"), ("other", "other")]);
    assert!(matches!(of("gone"), Err(Error::NoKeyspace { .. })));
    assert!(follower.keyspace_if_exists("gone").unwrap().is_none());
}

/// Damage of what the registration covers is damage.
#[test]
fn damage_is_not_taken_for_age() {
    let (ground, seen, held) = with_snapshot(Duration::from_secs(600));
    let len = ground.volume.read_file("data").unwrap().len() as u64;
    (0..len).step_by(64).for_each(|byte| ground.volume.flip_bit("data", byte, 1).unwrap());
    seen.db.handle.engine.pager.cache.set_capacity(0, 0);
    let error = held.0.iter(&held.1).find_map(Result::err);
    assert!(matches!(error, Some(Error::Corrupt { .. })), "{error:?}");
}

#[test]
fn what_cannot_be_followed_says_so() {
    let volume = Simulated::new(1);
    let open = |builder: Builder| builder.open_on(Arc::new(volume.clone()));
    assert!(matches!(open(builder().follow(true)), Err(Error::Missing { .. })));
    let db = open(builder()).unwrap();
    db.keyspace("main").unwrap().insert("key", "value").unwrap();
    let follower = open(builder().follow(true)).unwrap();
    let main = follower.keyspace("main").unwrap();
    assert!(matches!(main.insert("key", "other"), Err(Error::ReadOnly)));
    assert!(matches!(follower.keyspace("other"), Err(Error::NoKeyspace { .. })));
    follower.check().unwrap();
    let names =
        |prefix: &str| volume.list().unwrap().iter().filter(|entry| entry.name.starts_with(prefix)).count();
    assert_eq!(names("follower-"), 1);
    let other = follower.clone();
    follower.close().unwrap();
    assert_eq!(names("follower-"), 0);
    assert!(matches!(other.refresh(), Err(Error::Closed)));
    // A writer is not kept out, and itself sees what is newest.
    assert_eq!(db.refresh().unwrap().operations, 0);
    volume.remove("DURABLE").unwrap();
    assert!(matches!(open(builder().follow(true)), Err(Error::NotFollowable { .. })));
}
