//! Moments between backups, restored from archives of the log: each is what the database was then.

use crate::flips::flip;
use crate::ground::{Load, Watched, directory, hash, open, open_kept, options};
use psync::{Simulated, Volume};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::backup::{self, ArchiveGap, BackupInfo, Directory, Point, Restore, Target};
use sapwood::{Database, Durability, EncryptionKey, Error, Keyspace, KeyspaceOptions, LargeValues};
use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What the database was after a step.
#[derive(Clone, Copy, Debug)]
struct Seen {
    seq: u64,
    time: u64,
    hash: (u64, usize),
}

/// A database with a clock that goes on by whole seconds, and what it was.
struct World {
    volume: Simulated,
    target: Simulated,
    clock: Arc<AtomicU64>,
    rng: StdRng,
    key: Option<EncryptionKey>,
    ingests: bool,
    seen: Vec<Seen>,
    taken: Vec<BackupInfo>,
}

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

fn open_at(volume: &Simulated, clock: &Arc<AtomicU64>, key: Option<&EncryptionKey>) -> Database {
    let clock = Arc::clone(clock);
    let builder = options().keep_changes(16 << 20).clock(move || at(clock.load(Relaxed)));
    let builder = key.into_iter().fold(builder, |builder, key| builder.encryption_key(key.clone()));
    builder.open_on(Arc::new(volume.clone()) as Arc<dyn Volume>).expect("opens")
}

fn sequence(db: &Database) -> u64 {
    db.snapshot_for_changes().expect("keeps changes").1.sequence()
}

impl World {
    fn new(seed: u64, ingests: bool, is_encrypted: bool) -> Self {
        Self {
            volume: Simulated::new(seed),
            target: Simulated::new(seed + 1000),
            clock: Arc::new(AtomicU64::new(5000)),
            rng: StdRng::seed_from_u64(seed),
            key: is_encrypted.then(|| EncryptionKey::from_bytes([7; 32])),
            ingests,
            seen: Vec::new(),
            taken: Vec::new(),
        }
    }

    fn open(&self) -> Database {
        open_at(&self.volume, &self.clock, self.key.as_ref())
    }

    fn back_up(&mut self, db: &Database) {
        self.taken.push(db.backup().archive_log().run(&directory(&self.target)).expect("a backup"));
    }

    fn see(&mut self, db: &Database) {
        let (seq, time) = (sequence(db), self.clock.load(Relaxed));
        self.seen.push(Seen { seq, time, hash: hash(db) });
    }

    /// Some lives of the database, each of which ends by a power loss or a close.
    fn run(&mut self, lives: usize, steps: usize) {
        for life in 0..lives {
            let db = self.open();
            let mut load = Load::new(&db, self.rng.random()).expect("keyspaces");
            load.ingests = self.ingests;
            self.see(&db);
            for step in 0..steps {
                if self.rng.random_bool(0.6) {
                    self.clock.fetch_add(self.rng.random_range(1..4), Relaxed);
                }
                match self.rng.random_range(0..12) {
                    0 => self.back_up(&db),
                    1 => self.rename(&db),
                    _ => load.step(&db).expect("writes"),
                }
                self.see(&db);
                if step == steps / 2 && life == 1 && self.key.is_some() {
                    db.change_encryption_key(&EncryptionKey::from_bytes([8; 32])).expect("another key");
                    self.key = Some(EncryptionKey::from_bytes([8; 32]));
                }
            }
            if self.rng.random() {
                drop(load);
                db.close().expect("closes");
            } else {
                // All was durable when it was seen.
                self.volume = self.volume.power_loss(self.rng.random());
                std::mem::forget((db, load));
            }
        }
        let db = self.open();
        self.back_up(&db);
    }

    fn rename(&mut self, db: &Database) {
        let names = db.keyspaces();
        let Some(name) = names.iter().find(|name| name.starts_with("extra")) else { return };
        let new = format!("extra {}", self.rng.random_range(1000..9000));
        if !db.contains_keyspace(&new) {
            db.rename_keyspace(name, &new).expect("renames");
        }
    }

    /// Restores a moment. The copy is looked at as of this time. The key is that of the first backup behind the moment.
    fn restored(&self, point: Point, time: u64) -> Result<(BackupInfo, (u64, usize)), Error> {
        let copy = Simulated::new(77);
        let target = directory(&self.target);
        let restore = |key: Option<&EncryptionKey>| {
            let restore = Restore::from(&target).to(point);
            let restore = key.into_iter().fold(restore, |restore, key| restore.encryption_key(key.clone()));
            restore.onto(Arc::new(copy.clone()))
        };
        let mut key = self.key.clone();
        let info = match restore(key.as_ref()) {
            Err(Error::EncryptionKey { .. }) => {
                key = Some(EncryptionKey::from_bytes([7; 32]));
                restore(key.as_ref())?
            }
            restored => restored?,
        };
        let db = open_at(&copy, &Arc::new(AtomicU64::new(time)), key.as_ref());
        db.check().expect("sound");
        Ok((info, hash(&db)))
    }
}

/// What was first seen with each sequence number: what happened to keyspaces behind it comes after it.
fn by_sequence(seen: &[Seen]) -> BTreeMap<u64, Seen> {
    seen.iter().rev().map(|seen| (seen.seq, *seen)).collect()
}

/// What was last seen at each time.
fn by_time(seen: &[Seen]) -> BTreeMap<u64, Seen> {
    seen.iter().map(|seen| (seen.time, *seen)).collect()
}

/// Restores every moment that was seen; returns how many could not be.
fn all_moments(world: &World) -> usize {
    let (first, last) = (world.taken.first().expect("a backup"), world.taken.last().expect("a backup"));
    let mut missing = 0;
    let mut look = |point, seen: Seen, context: &str| match world.restored(point, seen.time) {
        Ok((info, hash)) => {
            assert_eq!(hash, seen.hash, "{context}: {point:?}, {seen:?}, {info:?}");
            assert_eq!(info.sequence, seen.seq, "{context}: {point:?}");
        }
        Err(Error::NotArchived { .. }) => missing += 1,
        Err(error) => panic!("{context}: {point:?}: {error}"),
    };
    for (seq, seen) in by_sequence(&world.seen).range(first.sequence..=last.sequence) {
        look(Point::Sequence(*seq), *seen, "by sequence");
    }
    let end = last.time.duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let begin = first.time.duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    for (time, seen) in by_time(&world.seen).range(begin + 1..end) {
        look(Point::Time(at(*time)), *seen, "by time");
    }
    missing
}

#[test]
fn every_moment_since_the_first_backup_comes_back() {
    let mut backups = 0;
    let seeds: u64 = std::env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(3);
    for (seed, is_encrypted) in (1..=seeds).map(|seed| (seed, seed % 3 == 0)) {
        let mut world = World::new(seed, false, is_encrypted);
        world.run(3, 24);
        assert!(world.seen.len() > 60);
        backups += world.taken.len();
        let since = world.taken.last().and_then(|taken| taken.archive).expect("archived");
        assert_eq!((since.since, since.gap), (world.taken[0].time, None));
        assert_eq!(all_moments(&world), 0, "seed {seed}");
        Restore::from(&directory(&world.target)).encryption_key_of(&world).verify().expect("whole");
    }
    assert!(backups > 4 * seeds as usize, "{backups}");
}

trait WithKey {
    fn encryption_key_of(self, world: &World) -> Self;
}

impl WithKey for Restore<'_> {
    fn encryption_key_of(self, world: &World) -> Self {
        world.key.iter().fold(self, |restore, key| restore.encryption_key(key.clone()))
    }
}

/// Ingested records are in no log: what comes between them and the next backup cannot be restored, all else can.
#[test]
fn what_follows_ingested_records_comes_back_from_the_next_backup_on() {
    let mut world = World::new(11, true, false);
    world.run(3, 24);
    let gaps = world.taken.iter().filter(|taken| taken.archive.is_some_and(|archive| archive.gap.is_some()));
    assert!(gaps.count() > 0, "{:?}", world.taken);
    let missing = all_moments(&world);
    assert!(missing > 0 && missing < world.seen.len(), "{missing} of {}", world.seen.len());
}

#[test]
fn a_backup_that_is_removed_takes_the_moments_behind_it_along() {
    let mut world = World::new(5, false, false);
    world.run(2, 30);
    let target = directory(&world.target);
    let (first, second) = (world.taken[0].clone(), world.taken[1].clone());
    let before =
        backup::list(&target).expect("lists").last().and_then(|info| info.archive).expect("archived");
    backup::remove(&target, first.number).expect("removes");
    let point = Point::Sequence(first.sequence);
    match world.restored(point, 9000) {
        Err(Error::NotArchived { existing, .. }) => assert!(existing.contains("operations"), "{existing}"),
        other => panic!("{other:?}"),
    }
    // All moments behind the second are there still, and its archive goes with the next backup.
    world.taken.remove(0);
    assert_eq!(all_moments(&world), 0);
    let db = world.open();
    world.back_up(&db);
    let after = world.taken.last().and_then(|taken| taken.archive).expect("archived");
    assert_eq!(after.since, second.time);
    assert!(after.bytes < before.bytes, "{after:?}, {before:?}");
}

/// An older backup, of another database, kept all archives for ever.
#[test]
fn archives_go_with_the_backups_that_they_continue() {
    let mut world = World::new(5, false, false);
    let target = world.target.clone();
    let other = open(&Simulated::new(1)).expect("opens");
    other.backup().run(&directory(&target)).expect("a backup of another database");
    let db = world.open();
    let ships = db.keyspace("ships").expect("a keyspace");
    let back_up = |world: &mut World| {
        ships.insert("number", "").expect("writes");
        world.see(&db);
        world.back_up(&db);
    };
    let remove = |number| _ = backup::remove(&directory(&target), number).expect("removes");
    let archives = || {
        let names = target.list().expect("lists").into_iter().map(|entry| entry.name);
        names.filter(|name| name.starts_with("archive-")).collect::<Vec<_>>()
    };
    (2..=5).for_each(|_| back_up(&mut world));
    (2..=4).for_each(remove);
    back_up(&mut world);
    remove(5);
    assert_eq!(archives(), ["archive-000006"]);
    (7..=8).for_each(|_| back_up(&mut world));
    remove(6);
    // Behind 7 every moment comes back, by the archive of 8; its manifest names that of 7 as well.
    assert_eq!(archives(), ["archive-000007", "archive-000008"]);
    let seen = world.seen[world.seen.len() - 2];
    assert_eq!(world.restored(Point::Sequence(seen.seq), 9000).expect("restores").1, seen.hash);
    remove(7);
    back_up(&mut world);
    remove(8);
    assert_eq!(archives(), ["archive-000009"]);
}

/// It was said of moments that only backups could begin with that had been removed.
#[test]
fn moments_are_told_of_backups_that_are_there() {
    let mut world = World::new(7, false, false);
    let target = world.target.clone();
    let db = world.open();
    let ships = db.keyspace("ships").expect("a keyspace");
    for number in 0..4u8 {
        world.clock.fetch_add(10, Relaxed);
        ships.insert("number", [number]).expect("writes");
        world.back_up(&db);
    }
    let taken = std::mem::take(&mut world.taken);
    let remove = |number| _ = backup::remove(&directory(&target), number).expect("removes");
    let told_of = |info: &BackupInfo| {
        let archive = info.archive.expect("archived");
        (archive.since, archive.since_sequence)
    };
    let told = || {
        let listed = backup::list_each(&directory(&target)).expect("lists");
        told_of(listed.last().expect("a backup").1.as_ref().expect("readable"))
    };
    let begins_with = |number: usize| (taken[number - 1].time, taken[number - 1].sequence);
    let comes_back = |(_, sequence)| world.restored(Point::Sequence(sequence), 9000).is_ok();
    // Those behind the first, also where some between are gone.
    remove(2);
    assert_eq!(told(), begins_with(1));
    let newest = Restore::from(&directory(&target)).verify().expect("whole");
    assert_eq!(told_of(&newest), begins_with(1));
    // With one that cannot be read nothing begins.
    flip(&target, "backup-000001", 100, 1);
    assert_eq!(told(), begins_with(3));
    flip(&target, "backup-000001", 100, 1);
    remove(1);
    let newest = Restore::from(&directory(&target)).verify().expect("whole");
    assert_eq!(told_of(&newest), begins_with(3));
    assert_eq!(told(), begins_with(3));
    assert!(comes_back(begins_with(3)) && !comes_back(begins_with(2)));
    remove(3);
    assert_eq!(told(), begins_with(4));
    assert!(comes_back(begins_with(4)) && !comes_back(begins_with(3)));
    // What begins behind a gap went with the backup there, and a new one says so.
    ships.ingest([("z", "z")]).expect("ingests");
    for number in [5, 6] {
        world.clock.fetch_add(10, Relaxed);
        world.back_up(&db);
        assert_eq!(told_of(&world.taken[number - 5]).1, world.taken[0].sequence);
    }
    remove(5);
    world.clock.fetch_add(10, Relaxed);
    world.back_up(&db);
    let six = &world.taken[1];
    assert_eq!(told_of(&world.taken[2]), (six.time, six.sequence));
    assert_eq!(told_of(&world.taken[2]), told());
}

/// A database that was set back, and has gone on otherwise, is not taken for the one that was backed up.
#[test]
fn another_history_is_not_archived() {
    let mut world = World::new(6, false, false);
    let db = world.open();
    let ships = db.keyspace("ships").expect("a keyspace");
    ships.insert("fram", "1892").expect("writes");
    db.sync().expect("syncs");
    let set_back = world.volume.crash();
    ships.insert("beagle", "1820").expect("writes");
    world.back_up(&db);
    drop((ships, db));
    world.volume = set_back;
    let db = world.open();
    let ships = db.keyspace("ships").expect("a keyspace");
    for ship in ["vega", "maud"] {
        ships.insert(ship, "another history").expect("writes");
    }
    world.back_up(&db);
    let archive = world.taken[1].archive.expect("archived");
    assert_eq!((archive.gap, archive.since), (Some(ArchiveGap::NotKept), world.taken[1].time));
    let restored = world.restored(Point::Sequence(3), 9000);
    assert_eq!(restored.expect("the second backup").1, hash(&db));
}

#[test]
fn what_the_log_lacks_is_told() {
    let mut world = World::new(7, false, false);
    let db = world.open();
    let ships = db.keyspace("ships").expect("a keyspace");
    let films: LargeValues = db.large_values("films").expect("large values");
    ships.insert("fram", "1892").expect("writes");
    world.back_up(&db);
    assert_eq!(world.taken[0].archive.and_then(|archive| archive.gap), None);
    films.insert("short", [7; 10]).expect("writes");
    world.see(&db);
    films.insert("long", [7; 100_000]).expect("writes");
    ships.insert("vega", "1872").expect("writes");
    let last = sequence(&db);
    world.back_up(&db);
    assert_eq!(world.taken[1].archive.and_then(|archive| archive.gap), Some(ArchiveGap::LargeValue));
    let target = directory(&world.target);
    let seen = world.seen[0];
    assert!(world.restored(Point::Sequence(seen.seq), 9000).is_ok());
    match world.restored(Point::Sequence(last - 1), 9000) {
        Err(Error::NotArchived { existing, .. }) => assert!(existing.contains("large value"), "{existing}"),
        other => panic!("{other:?}"),
    }
    // A database that keeps no changes has no log to archive.
    let other = open(&Simulated::new(1)).expect("opens");
    let refused = other.backup().archive_log().run(&target);
    assert!(matches!(refused, Err(Error::NoChanges { .. })), "{refused:?}");
    // One that keeps few has not all that was written.
    let few = options().keep_changes(1 << 20).open_on(Arc::new(Simulated::new(2))).expect("opens");
    many(&few, &target, 60_000);
    let taken = few.backup().archive_log().run(&target).expect("a backup");
    assert_eq!(taken.archive.and_then(|archive| archive.gap), Some(ArchiveGap::NotKept));
    // Those of another database in the same target are as they were.
    assert!(world.restored(Point::Sequence(seen.seq), 9000).is_ok());
}

/// The rest of the log was read, and waited for, when the target had refused the archive.
#[test]
fn the_log_is_not_read_on_for_a_target_that_refuses_it() {
    let (target, db) = (Simulated::new(1), open_kept(&Simulated::new(2)));
    many(&db, &directory(&target), 30_000);
    let (is_refused, mut calls) = (AtomicU64::new(0), 0);
    let refusing = Watched::new(directory(&target), |name, piece| {
        if name.starts_with("archive-") && piece == 2 {
            is_refused.store(1, Relaxed);
            return Err(io::Error::other("no more"));
        }
        Ok(())
    });
    let backup = db.backup().archive_log().on_progress(|_| {
        calls += is_refused.load(Relaxed);
        ControlFlow::Continue(())
    });
    let taken = backup.run(&refusing);
    assert!(matches!(taken, Err(Error::BackupTarget { .. })), "{taken:?}");
    assert_eq!((is_refused.load(Relaxed), calls), (1, 0));
}

/// Takes a backup, and commits so many records behind it.
fn many(db: &Database, target: &Directory, count: u32) {
    db.backup().archive_log().run(target).expect("a backup");
    let keyspace = db.keyspace("ships").expect("a keyspace").with_durability(Durability::Buffered);
    for number in 0..count {
        keyspace.insert(number.to_be_bytes(), [7; 100]).expect("writes");
    }
    db.flush().expect("flushes");
}

/// Ten times as much as the queues of the copy have room for comes through its log, which opening flushes on the way.
#[test]
fn an_archive_may_be_longer_than_memory() {
    let target = directory(&Simulated::new(1));
    let db = open_kept(&Simulated::new(2));
    many(&db, &target, 60_000);
    db.backup().archive_log().run(&target).expect("a backup");
    let copy = Simulated::new(3);
    let info = Restore::from(&target).to(Point::Sequence(40_000)).onto(Arc::new(copy.clone()));
    assert_eq!(info.expect("restores").sequence, 40_000);
    let db = open(&copy).expect("opens");
    let keys: Vec<_> =
        db.keyspace("ships").expect("a keyspace").iter().map(|item| item.expect("a record").0).collect();
    assert_eq!(keys.len(), 40_000);
    assert_eq!(keys.last().map(|key| &key[..]), Some(&39_999u32.to_be_bytes()[..]));
    db.check().expect("sound");
}

/// A keyspace of large values has another one for their chunks, of which no event tells.
#[test]
fn chunks_go_with_their_keyspace() {
    let mut world = World::new(8, false, false);
    let db = world.open();
    let films = db.large_values("films").expect("large values");
    films.insert("long", [7; 100_000]).expect("writes");
    db.flush().expect("flushes");
    world.back_up(&db);
    drop(films);
    db.drop_keyspace("films").expect("drops");
    db.keyspace("ships").and_then(|ships| ships.insert("fram", "1892")).expect("writes");
    let seq = sequence(&db);
    world.back_up(&db);
    let copy = Simulated::new(77);
    let target = directory(&world.target);
    Restore::from(&target).to(Point::Sequence(seq)).onto(Arc::new(copy.clone())).expect("restores");
    let db = open(&copy).expect("opens");
    db.compact().expect("compacts");
    assert_eq!(db.keyspaces(), ["ships"]);
    assert!(db.stats().space.live < 10_000, "{}", db.stats());
    db.check().expect("sound");
}

/// A new name tells nothing of the metadata: it was taken from the later backup, which has none of what was dropped.
#[test]
fn a_keyspace_that_was_renamed_and_dropped_has_its_metadata() {
    let mut world = World::new(9, false, false);
    let db = world.open();
    let ships = db.keyspace("ships").expect("a keyspace");
    ships.set_metadata("m").expect("sets");
    world.back_up(&db);
    ships.insert("fram", "1892").expect("writes");
    db.rename_keyspace("ships", "fleet").expect("renames");
    ships.set_metadata("later").expect("sets");
    ships.insert("vega", "1872").expect("writes");
    let named = db.keyspace("boats").expect("a keyspace");
    named.set_metadata("n").expect("sets");
    world.back_up(&db);
    db.rename_keyspace("boats", "yachts").expect("renames");
    named.insert("one", "1900").expect("writes");
    drop((ships, named));
    for name in ["fleet", "yachts"] {
        db.drop_keyspace(name).expect("drops");
    }
    db.keyspace("others").and_then(|others| others.insert("key", "value")).expect("writes");
    world.back_up(&db);
    for (base, expected) in [(1, "m"), (2, "later")] {
        let copy = Simulated::new(77);
        let target = directory(&world.target);
        let restore = Restore::from(&target).number(base).to(Point::Sequence(3));
        restore.onto(Arc::new(copy.clone())).expect("restores");
        let copy = open(&copy).expect("opens");
        assert_eq!(copy.keyspaces(), ["fleet", "yachts"]);
        let metadata = |name: &str| copy.keyspace(name).and_then(|it| it.metadata()).expect("reads");
        assert_eq!(metadata("fleet"), expected.as_bytes());
        assert_eq!(metadata("yachts"), b"n");
    }
}

fn cut(target: &Simulated, name: &str) {
    let file = target.open(name, psync::Access { write: true, ..Default::default() }).expect("it is there");
    psync::Device::resize(target, file, 70).and_then(|()| target.close(file)).expect("cuts");
}

/// A moment needs the manifests of two backups, and the archives between them.
#[test]
fn a_damaged_manifest_keeps_nobody_from_other_moments() {
    let mut world = World::new(10, false, false);
    let db = world.open();
    let ships = db.keyspace("ships").expect("a keyspace");
    for number in 0..5u32 {
        world.back_up(&db);
        ships.insert(number.to_be_bytes(), "").expect("writes");
        world.see(&db);
        world.clock.fetch_add(2, Relaxed);
    }
    for damaged in ["backup-000001", "backup-000003"] {
        cut(&world.target, damaged);
    }
    for seen in &world.seen[1..3] {
        let (info, found) = world.restored(Point::Sequence(seen.seq), 9000).expect("restores");
        assert_eq!((info.number, info.sequence, found), (2, seen.seq, seen.hash));
    }
    // What the damaged one may be needed for.
    assert!(world.restored(Point::Sequence(0), 9000).is_err_and(|error| error.is_damage()));
    let target = directory(&world.target);
    let named = Restore::from(&target).number(3).to(Point::Sequence(3)).verify();
    match named {
        Err(Error::BackupDamaged { blob, .. }) => assert!(blob.contains("backup-000003"), "{blob}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_missing_archive_is_damage() {
    let mut world = World::new(10, false, false);
    let db = world.open();
    let ships = db.keyspace("ships").expect("a keyspace");
    for number in 0..3u32 {
        world.back_up(&db);
        ships.insert(number.to_be_bytes(), "").expect("writes");
        world.see(&db);
    }
    let target = directory(&world.target);
    target.delete(&["archive-000003".to_owned()]).expect("deletes");
    for damaged in [Restore::from(&target), Restore::from(&target).to(Point::Sequence(2))] {
        let told = damaged.verify().expect_err("one is missing");
        assert!(
            matches!(&told, Error::BackupDamaged { blob, .. } if blob.contains("archive-000003")),
            "{told}"
        );
    }
}

/// That a backup cannot be read hid that there are two to choose from.
#[test]
fn two_databases_are_told_of_beside_a_damaged_manifest() {
    let target = Simulated::new(2);
    let dbs = [open_kept(&Simulated::new(1)), open_kept(&Simulated::new(3))];
    for number in 0..3u32 {
        for db in &dbs {
            db.keyspace("ships").and_then(|it| it.insert(number.to_be_bytes(), "")).expect("writes");
            db.backup().archive_log().run(&directory(&target)).expect("a backup");
        }
    }
    cut(&target, "backup-000006");
    let told = |restore: Restore<'_>| restore.to(Point::Sequence(2)).verify().expect_err("refused");
    let ambiguous = told(Restore::from(&directory(&target)));
    assert!(ambiguous.to_string().contains("several databases"), "{ambiguous}");
    assert!(told(Restore::from(&directory(&target)).number(6)).is_damage());
}

/// What comes behind the newest backup that can be read is archived; without one it is told that nothing is.
#[test]
fn an_archive_goes_on_behind_a_damaged_backup() {
    let mut world = World::new(12, false, false);
    let db = world.open();
    let ships = db.keyspace("ships").expect("a keyspace");
    let step = |world: &mut World, number: u32| {
        world.back_up(&db);
        ships.insert(number.to_be_bytes(), "").expect("writes");
        world.see(&db);
    };
    (0..3).for_each(|number| step(&mut world, number));
    cut(&world.target, "backup-000003");
    step(&mut world, 3);
    let archive = world.taken[3].archive.expect("archived");
    assert_eq!((archive.gap, archive.since_sequence), (None, 0));
    for seen in &world.seen[..3] {
        assert_eq!(world.restored(Point::Sequence(seen.seq), 9000).expect("restores").1, seen.hash);
    }
    for damaged in ["backup-000001", "backup-000002", "backup-000004"] {
        cut(&world.target, damaged);
    }
    step(&mut world, 4);
    let archive = world.taken[4].archive.expect("archived");
    assert_eq!((archive.gap, archive.since_sequence), (Some(ArchiveGap::NotKept), 4));
}

/// What is committed between a backup's view and its look at the clock is not in it: its archive does not reach to that time.
#[test]
fn an_archive_claims_no_time_before_which_something_is_missing() {
    let target = directory(&Simulated::new(2));
    let now = Arc::new(AtomicU64::new(100));
    let commits: Arc<Mutex<Option<Keyspace>>> = Arc::default();
    let (time, committed) = (Arc::clone(&now), Arc::clone(&commits));
    let builder = options().keep_changes(16 << 20).clock(move || {
        // Taken while it is used, since a commit looks at the clock as well.
        let keyspace = committed.lock().expect("sound").take();
        if let Some(keyspace) = keyspace {
            let second = time.fetch_add(5, Relaxed) + 5;
            keyspace.insert(second.to_be_bytes(), "").expect("writes");
            time.fetch_add(5, Relaxed);
            *committed.lock().expect("sound") = Some(keyspace);
        }
        at(time.load(Relaxed))
    });
    let db = builder.open_on(Arc::new(Simulated::new(1))).expect("opens");
    let ships = db.keyspace("ships").expect("a keyspace");
    db.backup().archive_log().run(&target).expect("a backup");
    *commits.lock().expect("sound") = Some(ships);
    let taken = db.backup().archive_log().run(&target).expect("a backup");
    *commits.lock().expect("sound") = None;
    assert_eq!((taken.sequence, taken.time, sequence(&db)), (1, at(120), 2));
    let restored = |seconds| {
        let restore = Restore::from(&target).to(Point::Time(at(seconds)));
        Ok::<_, Error>(restore.onto(Arc::new(Simulated::new(3)))?.sequence)
    };
    assert_eq!(restored(107).expect("restores"), 1);
    let refused = restored(117);
    assert!(matches!(refused, Err(Error::NotArchived { .. })), "{refused:?}");
    now.store(130, Relaxed);
    db.backup().archive_log().run(&target).expect("a backup");
    assert_eq!((restored(112).expect("restores"), restored(117).expect("restores")), (1, 2));
}

/// A database in which nothing expires forgot between two openings what time it was: if the system's clock was set back, what was committed then
/// came before what had been, and a restore ended where the first time lay behind the moment.
#[test]
fn times_of_the_log_do_not_go_back_with_the_clock() {
    for (is_closed, is_flushed) in [(true, true), (true, false), (false, true), (false, false)] {
        let (volume, target) = (Simulated::new(1), directory(&Simulated::new(2)));
        let clock = Arc::new(AtomicU64::new(1000));
        let db = open_at(&volume, &clock, None);
        let ships = db.keyspace("ships").expect("a keyspace");
        db.backup().archive_log().run(&target).expect("a backup");
        // A clock that was wrong.
        clock.store(9000, Relaxed);
        ships.insert("fram", "1892").expect("writes");
        if is_flushed {
            db.flush().expect("flushes");
        }
        if is_closed {
            drop(ships);
            db.close().expect("closes");
        } else {
            std::mem::forget((db, ships));
        }
        let volume = if is_closed { volume } else { volume.power_loss(1) };
        clock.store(2000, Relaxed);
        let db = open_at(&volume, &clock, None);
        db.keyspace("ships").and_then(|ships| ships.insert("vega", "1872")).expect("writes");
        let taken = db.backup().archive_log().run(&target).expect("a backup");
        assert_eq!((taken.sequence, taken.time), (2, at(9000)));
        let restored = |seconds| {
            let restore = Restore::from(&target).to(Point::Time(at(seconds)));
            Ok::<_, Error>(restore.onto(Arc::new(Simulated::new(3)))?.sequence)
        };
        assert_eq!((restored(8999).expect("restores"), restored(9000).expect("restores")), (0, 2));
    }
}

/// A keyspace that has expired records was made again without the time, which the backup before did not need: what expired stayed.
#[test]
fn records_of_a_keyspace_that_was_made_behind_the_backup_expire() {
    let (target, clock) = (directory(&Simulated::new(2)), Arc::new(AtomicU64::new(1000)));
    let db = open_at(&Simulated::new(1), &clock, None);
    db.keyspace("ships").expect("a keyspace");
    db.backup().archive_log().run(&target).expect("a backup");
    let minute = KeyspaceOptions::new().time_to_live(Duration::from_secs(60));
    let sessions = db.keyspace_with("sessions", minute).expect("a keyspace");
    for number in 0..1000u32 {
        sessions.insert(number.to_be_bytes(), [7; 100]).expect("writes");
    }
    let last = sequence(&db);
    db.backup().archive_log().run(&target).expect("a backup");
    let copy = Simulated::new(3);
    let restore = Restore::from(&target).to(Point::Sequence(last)).onto(Arc::new(copy.clone()));
    assert_eq!(restore.expect("restores").sequence, last);
    // Where changes are kept, the log needs the time.
    let open_copy = || {
        let clock = Arc::clone(&clock);
        let builder = options().keep_changes(0).clock(move || at(clock.load(Relaxed)));
        builder.open_on(Arc::new(copy.clone())).expect("opens")
    };
    let db = open_copy();
    db.flush().expect("flushes");
    assert!(db.stats().space.live > 100_000);
    clock.store(2000, Relaxed);
    db.compact().expect("compacts");
    assert!(db.stats().space.live < 1000, "{:?}", db.stats().space);
    drop(db);
    // What has expired does not come back with an older clock.
    clock.store(1000, Relaxed);
    let db = open_copy();
    assert_eq!(db.keyspace("sessions").expect("a keyspace").first().expect("reads"), None);
}
