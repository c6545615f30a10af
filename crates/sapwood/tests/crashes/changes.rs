//! The change feed: a replica that follows a database over power losses, kills and restarts of both is what the database is, at each
//! moment that it asks; what it cannot follow it is told.

use psync::{Fault, FileId, Filter, OperationKind, PassThrough, Repeat, Simulated, Volume};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::merge::Append;
use sapwood::{
    Change, ChangesPosition, CommittedOperation, Database, Durability, Error, Expiry, Keyspace,
    KeyspaceOptions, Snapshot,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const MB: u64 = 1 << 20;
/// So much that nothing is given up.
const ALL: u64 = 1 << 40;

type Records = BTreeMap<Vec<u8>, (Vec<u8>, Expiry)>;

fn open(volume: &Simulated, keep: Option<u64>) -> sapwood::Result<Database> {
    let builder = Database::builder().memory(4 << 20).leaf_len(512).segment_span(1 << 20);
    let builder = builder.clock(|| UNIX_EPOCH + Duration::from_secs(9)).background_threads(0);
    let builder = keep.into_iter().fold(builder, |builder, bytes| builder.keep_changes(bytes));
    let volume: Arc<dyn Volume> = Arc::new(volume.clone());
    builder.open_on(volume)
}

/// A copy of a database that follows its changes.
#[derive(Clone, Default)]
pub struct Replica {
    position: Option<ChangesPosition>,
    keyspaces: BTreeMap<u32, (String, Records)>,
    /// How often everything was copied.
    pub copies: u32,
    events: u32,
}

impl Replica {
    pub fn copy(&mut self, db: &Database) -> sapwood::Result<()> {
        let (snapshot, position) = db.snapshot_for_changes()?;
        self.keyspaces = contents(&snapshot)?;
        self.position = Some(position);
        self.copies += 1;
        Ok(())
    }

    /// Applies so many changes, or all that there are.
    pub fn follow(&mut self, db: &Database, most: usize) -> sapwood::Result<usize> {
        let Some(position) = self.position else {
            self.copy(db)?;
            return Ok(0);
        };
        let mut changes = db.changes(&position)?;
        let mut count = 0;
        while count < most
            && let Some(change) = changes.next()
        {
            let before = self.position.map_or(0, |position| position.sequence());
            if self.apply(change?, before) {
                self.copy(db)?;
                return Ok(count);
            }
            self.position = Some(changes.position());
            count += 1;
        }
        Ok(count)
    }

    /// Returns whether everything is to be copied.
    fn apply(&mut self, change: Change, before: u64) -> bool {
        match change {
            Change::Commit(commit) => {
                assert_eq!(commit.first_sequence(), before + 1, "each once, in order");
                commit.operations().for_each(|operation| self.apply_operation(operation));
                return false;
            }
            Change::KeyspaceCreated { id, name } => {
                assert!(self.keyspaces.insert(id, (name, Records::new())).is_none(), "created twice");
            }
            Change::KeyspaceRenamed { id, name } => self.keyspaces.get_mut(&id).expect("there").0 = name,
            Change::KeyspaceDropped { id, .. } => {
                assert!(self.keyspaces.remove(&id).is_some(), "dropped twice");
            }
            Change::KeyspaceIngested { .. } => return true,
            other => panic!("{other:?}"),
        }
        self.events += 1;
        false
    }

    fn apply_operation(&mut self, operation: CommittedOperation<'_>) {
        let records = &mut self.keyspaces.get_mut(&operation.keyspace().id).expect("it was created").1;
        match operation {
            CommittedOperation::Insert { key, value, expiry, .. } => {
                records.insert(key.to_vec(), (value.to_vec(), expiry));
            }
            CommittedOperation::Remove { key, .. } => _ = records.remove(key),
            CommittedOperation::RemoveRange { from, to, .. } => {
                records.retain(|key, _| &key[..] < from || to.is_some_and(|to| &key[..] >= to));
            }
            CommittedOperation::Merge { key, operand, .. } => {
                let found = records.entry(key.to_vec()).or_insert_with(|| (Vec::new(), Expiry::Never));
                found.0.extend_from_slice(operand);
            }
            other => panic!("{other:?}"),
        }
    }
}

fn contents(snapshot: &Snapshot) -> sapwood::Result<BTreeMap<u32, (String, Records)>> {
    let mut contents = BTreeMap::new();
    for keyspace in snapshot.keyspaces() {
        let mut records = Records::new();
        for record in snapshot.iter(&keyspace) {
            let (key, value) = record?;
            let expiry = snapshot.expiry(&keyspace, &key)?.expect("it is there");
            records.insert(key.to_vec(), (value.to_vec(), expiry));
        }
        contents.insert(keyspace.number(), (keyspace.name().to_owned(), records));
    }
    Ok(contents)
}

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

const NAMES: [&str; 4] = ["plain", "expiring", "merging", "other"];

fn keyspace(db: &Database, name: &str) -> sapwood::Result<Keyspace> {
    match name {
        "expiring" => db.keyspace_with(name, KeyspaceOptions::new().expiring()),
        "merging" => db.keyspace_with(name, KeyspaceOptions::new().merge(Append)),
        _ => db.keyspace(name),
    }
}

/// One change to the database, of any kind.
fn change(db: &Database, rng: &mut StdRng) -> sapwood::Result<()> {
    let name = NAMES[rng.random_range(0..NAMES.len())];
    match rng.random_range(0..100) {
        0 => _ = db.drop_keyspace(name)?,
        1 => {
            let new = format!("{name} {}", rng.random_range(0..1000));
            if db.contains_keyspace(name) && !db.contains_keyspace(&new) {
                db.rename_keyspace(name, &new)?;
            }
        }
        2 => {
            let last = keyspace(db, "other")?;
            let next = last
                .iter()
                .next_back()
                .transpose()?
                .map_or(0, |(key, _)| key.first().copied().unwrap_or(0) + 1);
            if next < 250 {
                last.ingest((0..20u8).map(|number| ([next, number], [1; 30])))?;
            }
        }
        3 => db.flush()?,
        4 => db.sync()?,
        _ => {
            let durability = match rng.random_range(0..20) {
                0 => Durability::Immediate,
                1 => Durability::None,
                _ => Durability::Buffered,
            };
            let keyspace = keyspace(db, name)?.with_durability(durability);
            let key = [b'a' + rng.random_range(0..20u8), rng.random_range(0..20)];
            let value = vec![rng.random::<u8>(); rng.random_range(0..2000)];
            match (name, rng.random_range(0..10)) {
                (_, 0) => keyspace.remove_range(key..[key[0] + 1, key[1]])?,
                (_, 1) => keyspace.remove(key)?,
                (_, 2) => {
                    let mut batch = db.batch();
                    batch.insert(&keyspace, key, &value).remove(&keyspace, [b'a', key[1]]);
                    batch
                        .insert(&keyspace, [key[1], key[0]], "of a batch")
                        .durability(durability)
                        .commit()?;
                }
                ("expiring", _) => {
                    keyspace.insert_expiring(key, value, Expiry::At(at(rng.random_range(100..900))))?
                }
                ("merging", _) if value.len() < 60 => keyspace.merge(key, value)?,
                _ => keyspace.insert(key, value)?,
            }
        }
    }
    Ok(())
}

/// Works on a database, with a replica that follows now and then. An error is that of the device.
fn work(db: &Database, rng: &mut StdRng, replica: &mut Replica, steps: usize) -> sapwood::Result<()> {
    for _ in 0..steps {
        change(db, rng)?;
        if rng.random_bool(0.3) {
            // A replica that is killed goes on from what it has stored.
            let stored = replica.clone();
            replica.follow(db, rng.random_range(1..40))?;
            if rng.random_bool(0.2) {
                *replica = stored;
            }
        }
    }
    Ok(())
}

/// Follows to the end. The replica is then what the database is.
pub fn is_equal(db: &Database, replica: &mut Replica, story: &str) {
    db.sync().unwrap_or_else(|error| panic!("{story}: {error}"));
    while replica.follow(db, usize::MAX).unwrap_or_else(|error| panic!("{story}: {error}")) > 0 {}
    let found = contents(&db.snapshot()).expect("reads");
    for (id, (name, records)) in &found {
        let Some((told, copied)) = replica.keyspaces.get(id) else { panic!("{story}: {name} is missing") };
        assert_eq!(told, name, "{story}");
        for (key, record) in records {
            assert_eq!(copied.get(key), Some(record), "{story}: {key:?} of {name}");
        }
        assert_eq!(copied.len(), records.len(), "{story}: {name}");
    }
    assert_eq!(replica.keyspaces.len(), found.len(), "{story}");
}

/// A life with several power losses or kills.
fn life(seed: u64) -> (u32, u32) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut volume = Simulated::new(seed);
    if seed.is_multiple_of(2) {
        volume = volume.with_windows();
    }
    let mut replica = Replica::default();
    for round in 0..4 {
        let off = rng.random_range(1..300);
        let story = format!("seed {seed}, round {round}, power off at operation {off}");
        volume.fail_nth(Filter::any(), off, Fault::PowerOff, Repeat::Once);
        if let Ok(db) = open(&volume, Some(ALL)) {
            let done = work(&db, &mut rng, &mut replica, 150);
            let told = |error: &Error| {
                matches!(
                    error,
                    Error::ChangesGone { .. } | Error::OtherHistory { .. } | Error::Corrupt { .. }
                )
            };
            assert!(!done.as_ref().is_err_and(told), "{story}: {done:?}");
        }
        // A process that is killed leaves more than a power loss.
        let is_kill = rng.random_bool(0.3);
        volume = if is_kill && !volume.is_off() { volume.crash() } else { volume.power_loss(seed ^ round) };
        let db = open(&volume, None).unwrap_or_else(|error| panic!("{story}: {error}"));
        if replica.position.is_none() {
            // It may not have come so far as to be told to keep changes.
            if matches!(db.oldest_change(), Err(Error::NoChanges { .. })) {
                continue;
            }
        }
        is_equal(&db, &mut replica, &story);
        work(&db, &mut rng, &mut replica, 20).unwrap_or_else(|error| panic!("{story}: {error}"));
        is_equal(&db, &mut replica, &story);
        assert!(db.check().is_ok(), "{story}");
    }
    (replica.copies, replica.events)
}

/// To replay one: `CHANGES_SEED=<seed>`; more of them: `CHANGES_LIVES=<n>`.
#[test]
fn a_replica_follows_over_power_losses_and_kills() {
    if let Ok(seed) = std::env::var("CHANGES_SEED") {
        life(seed.parse().expect("a number"));
        return;
    }
    let lives = std::env::var("CHANGES_LIVES").map_or(40, |lives| lives.parse().expect("a number"));
    let (mut copies, mut events) = (0, 0);
    for seed in 0..lives {
        let (copied, told) = life(seed);
        (copies, events) = (copies + copied, events + told);
    }
    assert!(events > lives as u32, "{events} events");
    println!("{lives} lives, {copies} copies, {events} events");
}

/// A small scenario with everything in it, and a replica that follows.
fn scenario(volume: &Simulated, replica: &mut Replica) -> sapwood::Result<()> {
    let db = open(volume, Some(ALL))?;
    let plain = db.keyspace("plain")?;
    plain.insert("a", "1")?;
    replica.follow(&db, 9)?;
    plain.clone().with_durability(Durability::Buffered).insert("b", "2")?;
    db.flush()?;
    replica.follow(&db, 9)?;
    plain.clone().with_durability(Durability::Buffered).insert("c", "3")?;
    db.drop_keyspace("plain")?;
    let other = db.keyspace("other")?;
    replica.follow(&db, 2)?;
    other.ingest([("x", "1")])?;
    other.insert("a", "4")?;
    replica.follow(&db, 9)?;
    db.close()
}

/// At each I/O of the scenario in turn the power goes, or it fails, or the disk is full. What a process finds that starts on that, and
/// after a power loss, the replica can follow.
#[test]
fn a_replica_follows_over_a_fault_at_every_operation() {
    for fault in [Fault::PowerOff, Fault::Error, Fault::NoSpace, Fault::Exhausted] {
        for nth in 1.. {
            let volume = Simulated::new(nth);
            volume.fail_nth(Filter::any(), nth, fault, Repeat::Once);
            let mut replica = Replica::default();
            let done = scenario(&volume, &mut replica);
            let story = format!("{fault:?} at operation {nth}: {done:?}");
            let restarted = (fault != Fault::PowerOff).then(|| volume.crash());
            for image in restarted.into_iter().chain((0..2).map(|image| volume.power_loss(image))) {
                let db = open(&image, Some(ALL)).unwrap_or_else(|error| panic!("{story}: {error}"));
                is_equal(&db, &mut replica.clone(), &story);
            }
            if volume.fired() == 0 {
                assert!(done.is_ok() && nth > 30, "{nth} operations, {done:?}");
                break;
            }
        }
    }
}

fn filled(volume: &Simulated, keep: u64, records: u32) -> Database {
    let db = open(volume, Some(keep)).expect("opens");
    let plain = db.keyspace("plain").expect("a keyspace").with_durability(Durability::Buffered);
    for number in 0..records {
        plain.insert(number.to_be_bytes(), [number as u8; 1000]).expect("commits");
    }
    db
}

#[test]
fn what_is_kept_stays_within_its_bound_and_a_reader_is_told_what_it_has_missed() {
    let volume = Simulated::new(1);
    let db = open(&volume, Some(2 * MB)).expect("opens");
    let first = db.oldest_change().expect("a position");
    drop(db);
    let db = filled(&volume, 2 * MB, 20_000);
    let is_gone = |db: &Database, since| {
        let mut changes = db.changes(&since).expect("begins");
        match changes.next() {
            Some(Err(Error::ChangesGone { since, from })) => {
                assert_eq!(since, first.sequence());
                from
            }
            other => panic!("{other:?}"),
        }
    };
    let from = is_gone(&db, first);
    db.flush().expect("flushes");
    let kept = db.stats().space.kept_log;
    assert!((MB / 2..=2 * MB).contains(&kept), "{kept} bytes");
    // From there on it can be read, to the end.
    let oldest = db.oldest_change().expect("a position");
    assert!(oldest.sequence() >= from);
    let last = db.changes(&oldest).expect("begins").map(|change| change.expect("reads")).last();
    assert!(matches!(last, Some(Change::Commit(commit)) if commit.last_sequence() == 20_000));
    // It is so after a restart, also for who only reads, and the bound can be changed.
    drop(db);
    let kept = open(&volume, None).expect("opens").stats().space.kept_log;
    let read_only = Database::builder().read_only(true).open_on(Arc::new(volume.clone())).expect("opens");
    assert!(kept > 0 && read_only.stats().space.kept_log == kept);
    drop(read_only);
    let db = open(&volume, None).expect("opens");
    assert_eq!(db.oldest_change().expect("a position"), oldest);
    drop(db);
    let db = open(&volume, Some(MB)).expect("opens");
    assert!(db.oldest_change().expect("a position").sequence() > oldest.sequence());
    assert!(db.stats().space.kept_log <= MB);
    drop(db);
    let db = open(&volume, Some(0)).expect("opens");
    assert_eq!(db.stats().space.kept_log, 0);
    assert!(matches!(db.changes(&oldest), Err(Error::NoChanges { .. })));
    db.keyspace("unseen").expect("a keyspace");
    drop(db);
    // Whoever had read everything before has missed the keyspace.
    let db = open(&volume, Some(MB)).expect("opens");
    let mut changes = db.changes(&oldest).expect("begins");
    assert!(matches!(changes.next(), Some(Err(Error::ChangesGone { .. }))));
}

#[test]
fn a_reader_at_the_end_that_missed_a_time_without_changes_is_told() {
    let volume = Simulated::new(1);
    let db = filled(&volume, MB, 3);
    let (_, end) = db.snapshot_for_changes().expect("a position");
    drop(db);
    let db = open(&volume, Some(0)).expect("opens");
    db.keyspace("unseen").expect("a keyspace");
    drop(db);
    let db = open(&volume, Some(MB)).expect("opens");
    assert!(matches!(db.changes(&end).expect("begins").next(), Some(Err(Error::ChangesGone { .. }))));
}

/// The file is kept, not written again: what comes to the device is the same, but for a sync a flush.
#[test]
fn keeping_changes_writes_nothing_twice() {
    let written = |keep: u64| {
        let volume = Simulated::new(1);
        let db = filled(&volume, keep, 20_000);
        db.flush().expect("flushes");
        let writes = db.stats().writes;
        (writes.log_bytes, writes.data_bytes, writes.flushes, writes.log_syncs)
    };
    let (without, with) = (written(0), written(ALL));
    assert_eq!((without.0, without.1, without.2), (with.0, with.1, with.2));
    assert!(without.2 > 5 && with.3 <= without.3 + without.2, "{without:?}, {with:?}");
}

/// Nothing waits for a reader, and a full disk has the space of what is kept.
#[test]
fn a_full_disk_has_what_was_kept() {
    let volume = Simulated::new(1);
    let db = filled(&volume, ALL, 12_000);
    db.flush().expect("flushes");
    let first = db.oldest_change().expect("a position");
    let mut reader = db.changes(&first).expect("begins");
    assert!(matches!(reader.next(), Some(Ok(Change::KeyspaceCreated { .. }))));
    let kept = db.stats().space.kept_log;
    assert!(kept > 8 * MB, "{kept} bytes");
    volume.set_capacity(volume.used() + MB);
    let plain = db.keyspace("plain").expect("a keyspace").with_durability(Durability::Buffered);
    // The same records, again and again: they need no more space than there is.
    for number in 0..12_000u32 {
        plain.insert((number % 3000).to_be_bytes(), [1; 1000]).expect("there is space");
    }
    assert!(db.stats().space.kept_log < kept);
    let told = reader.find_map(|change| change.err());
    assert!(matches!(told, Some(Error::ChangesGone { .. })), "{told:?}");
}

#[test]
fn positions_of_other_histories_are_refused() {
    let (one, two) = (Simulated::new(1), Simulated::new(2));
    let (db, other) = (filled(&one, MB, 3), filled(&two, MB, 3));
    db.keyspace("late").expect("a keyspace");
    let (_, position) = db.snapshot_for_changes().expect("a position");
    assert!(matches!(other.changes(&position), Err(Error::OtherHistory { .. })));
    // The same database, restored.
    let stream = sapwood::backup::StreamWriter::new(Vec::new());
    db.backup().run(&stream).expect("a backup");
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("copy");
    sapwood::backup::Restore::from_stream(&stream.into_inner()[..]).into_directory(&path).expect("restores");
    let copy = Database::builder().open(&path).expect("opens");
    assert!(matches!(copy.changes(&position), Err(Error::OtherHistory { .. })));
    // Its history begins with it.
    let oldest = copy.oldest_change().expect("a position");
    assert_eq!(oldest.sequence(), 3);
    assert_eq!(copy.changes(&oldest).expect("begins").count(), 0);
    let mut replica = Replica::default();
    copy.keyspace("plain").expect("a keyspace").insert("new", "1").expect("commits");
    replica.follow(&copy, 0).expect("copies");
    copy.keyspace("more").expect("a keyspace").insert("new", "1").expect("commits");
    is_equal(&copy, &mut replica, "the restored one");
    assert_eq!(replica.copies, 1);
    // Ahead of everything, and between two operations of a batch.
    let plain = db.keyspace("plain").expect("a keyspace");
    db.batch().insert(&plain, "a", "1").insert(&plain, "b", "2").commit().expect("commits");
    for seq in [4, 100, u64::MAX] {
        let mut bytes = position.to_bytes();
        bytes[16..24].copy_from_slice(&seq.to_le_bytes());
        let forged = ChangesPosition::from_bytes(&bytes).expect("a position");
        let mut reader = db.changes(&forged).expect("begins");
        // What is told once is told again, also when there is more.
        for more in [false, false, true] {
            if more {
                plain.insert("c", seq.to_string()).expect("commits");
            }
            let told = reader.next();
            assert!(matches!(told, Some(Err(Error::OtherHistory { .. }))), "{seq}: {told:?}");
            assert!(reader.next().is_none(), "an error is the end");
            let waited = reader.wait(Duration::ZERO);
            assert!(matches!(waited, Err(Error::OtherHistory { .. })), "{seq}: {waited:?}");
        }
    }
    // Events up to one that was never given would not be told.
    let (_, position) = db.snapshot_for_changes().expect("a snapshot");
    let mut bytes = position.to_bytes();
    bytes[24..32].copy_from_slice(&77u64.to_le_bytes());
    let forged = ChangesPosition::from_bytes(&bytes).expect("a position");
    db.keyspace("newest").and_then(|newest| newest.insert("a", "1")).expect("commits");
    let told = db.changes(&forged).expect("begins").next();
    assert!(matches!(told, Some(Err(Error::OtherHistory { .. }))), "{told:?}");
}

/// A transaction commits several operands of a key as one, which a replica has to take.
#[test]
fn operands_that_were_combined_can_be_merged_into_a_replica() {
    let (volume, replica) = (Simulated::new(1), Simulated::new(2));
    let open = |volume: &Simulated| {
        let shared: Arc<dyn Volume> = Arc::new(volume.clone());
        let db = Database::builder().memory(4 << 20).keep_changes(MB).open_on(shared).expect("opens");
        let options = KeyspaceOptions::new().merge(sapwood::merge::AddI64);
        let sums = db.keyspace_with("sums", options).expect("a keyspace");
        (db, sums)
    };
    let ((db, sums), (_copy, copied)) = (open(&volume), open(&replica));
    let (_, position) = db.snapshot_for_changes().expect("a position");
    db.transact(|tx| {
        tx.merge(&sums, "k", 5i64.to_be_bytes())?;
        tx.merge(&sums, "k", (-3i64).to_be_bytes())
    })
    .expect("commits");
    for change in db.changes(&position).expect("begins") {
        let Change::Commit(commit) = change.expect("a change") else { panic!("a commit") };
        for operation in commit.operations() {
            let CommittedOperation::Merge { key, operand, .. } = operation else { panic!("a merge") };
            copied.merge(key, operand).expect("takes it");
        }
    }
    assert_eq!(copied.get("k").expect("reads").expect("a record"), 2i64.to_be_bytes());
}

/// Each byte of what is kept is flipped: what is told before that is right, and then the file is named.
#[test]
fn damage_of_what_is_kept_is_named() {
    let volume = Simulated::new(1);
    let db = filled(&volume, ALL, 3);
    db.flush().expect("flushes");
    db.keyspace("plain").expect("a keyspace").insert("a", "1").expect("commits");
    let first = db.oldest_change().expect("a position");
    let expected: Vec<_> = db.changes(&first).expect("begins").map(|change| format!("{change:?}")).collect();
    assert_eq!(expected.len(), 5);
    drop(db);
    let oldest = "wal-0000000001";
    let bytes = volume.read_file(oldest).expect("it is kept");
    let mut named = 0;
    for at in (0..bytes.len()).step_by(7) {
        let image = volume.crash();
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        image.write_file(oldest, &damaged).expect("written");
        let db = open(&image, None).expect("opening does not need it");
        let mut changes = db.changes(&first).expect("begins");
        for expected in &expected {
            match changes.next() {
                Some(Ok(change)) => {
                    assert_eq!(&format!("{:?}", Ok::<_, Error>(change)), expected, "byte {at}")
                }
                Some(Err(Error::Corrupt { file, .. })) => {
                    assert_eq!(file, oldest);
                    named += 1;
                    break;
                }
                other => panic!("byte {at}: {other:?}"),
            }
        }
    }
    assert!(named > 400, "{named} of {} bytes", bytes.len());
}

/// A file that cannot be read is an error, and then it goes on.
#[test]
fn a_failed_read_is_told_and_can_be_repeated() {
    let volume = Simulated::new(1);
    let db = filled(&volume, ALL, 3000);
    db.sync().expect("syncs");
    let first = db.oldest_change().expect("a position");
    for nth in 1..6 {
        volume.fail_nth(Filter::kinds([OperationKind::Read]), nth, Fault::Error, Repeat::Once);
        let mut changes = db.changes(&first).expect("begins");
        let (mut commits, mut errors) = (0, 0);
        for _ in 0..2 {
            for change in changes.by_ref() {
                match change {
                    Ok(Change::Commit(_)) => commits += 1,
                    Ok(_) => {}
                    Err(_) => errors += 1,
                }
            }
        }
        assert_eq!((commits, errors <= 1), (3000, true), "read {nth}");
        volume.clear_faults();
    }
}

/// What is visible and not durable is not told until it is.
#[test]
fn nothing_is_told_that_a_power_loss_takes_back() {
    let volume = Simulated::new(1);
    let db = filled(&volume, ALL, 0);
    let (_, position) = db.snapshot_for_changes().expect("a position");
    let plain = db.keyspace("plain").expect("a keyspace").with_durability(Durability::Buffered);
    plain.insert("a", "1").expect("commits");
    let mut changes = db.changes(&position).expect("begins");
    assert!(changes.next().is_none() && !changes.wait(Duration::ZERO).expect("waits"));
    db.sync().expect("syncs");
    assert!(changes.wait(Duration::ZERO).expect("waits"));
    assert!(matches!(changes.next(), Some(Ok(Change::Commit(_)))));
    // A flush makes it durable too, with what is kept of the log.
    plain.insert("b", "1").expect("commits");
    db.flush().expect("flushes");
    assert!(matches!(changes.next(), Some(Ok(Change::Commit(_)))));
    let after = open(&volume.power_loss(1), None).expect("opens");
    assert_eq!(after.changes(&position).expect("begins").count(), 2);
}

/// Writers and a reader at the same time, and a reader that waits.
#[test]
fn a_reader_beside_writers_sees_each_commit_once() {
    let volume = Simulated::new(1);
    let builder = Database::builder().memory(4 << 20).keep_changes(ALL);
    let db = builder.open_on(Arc::new(volume)).expect("opens");
    let plain = db.keyspace("plain").expect("a keyspace");
    let (snapshot, position) = db.snapshot_for_changes().expect("a position");
    drop(snapshot);
    const EACH: u32 = 400;
    let seen = std::thread::scope(|scope| {
        for writer in 0..3u32 {
            let plain = plain.clone();
            scope.spawn(move || {
                for number in 0..EACH {
                    let weak =
                        if number.is_multiple_of(5) { Durability::Immediate } else { Durability::Buffered };
                    let plain = plain.clone().with_durability(weak);
                    plain.insert((writer * EACH + number).to_be_bytes(), [1; 4000]).expect("commits");
                }
                plain.insert((1000 * EACH + writer).to_be_bytes(), "the end").expect("commits");
            });
        }
        let mut changes = db.changes(&position).expect("begins");
        let (mut seen, mut last) = (0, position.sequence());
        while seen < 3 * (EACH + 1) {
            assert!(changes.wait(Duration::from_secs(60)).expect("waits"), "{seen} seen");
            for change in changes.by_ref() {
                let Change::Commit(commit) = change.expect("reads") else { panic!("no events") };
                assert_eq!(commit.first_sequence(), last + 1);
                last = commit.last_sequence();
                seen += 1;
            }
        }
        seen
    });
    assert_eq!(seen, 3 * (EACH + 1));
    // A copy that is made beside writers joins with what follows.
    let (mut replica, copied) = (Replica::default(), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let (db, plain, copied) = (db.clone(), plain.clone(), &copied);
        let writer = scope.spawn(move || {
            let numbers = (0..100_000u32).take_while(|number| *number < 500 || copied.load(SeqCst) < 3);
            numbers.for_each(|number| {
                let weak = [Durability::Immediate, Durability::Buffered, Durability::None];
                let plain = plain.clone().with_durability(weak[number as usize % 3]);
                plain.insert((number % 50).to_be_bytes(), number.to_be_bytes()).expect("commits");
            });
        });
        while !writer.is_finished() {
            replica.copy(&db).expect("copies");
            replica.follow(&db, 7).expect("follows");
            copied.fetch_add(1, SeqCst);
        }
    });
    assert!(copied.into_inner() > 0, "all was written before the first copy");
    is_equal(&db, &mut replica, "beside a writer");
}

/// Values that are stored apart are named, their chunks are not told.
#[test]
fn large_values_are_told_of() {
    let volume = Simulated::new(1);
    let db = open(&volume, Some(ALL)).expect("opens");
    let position = db.oldest_change().expect("a position");
    let photos = db.large_values("photos").expect("a keyspace");
    photos.insert_from("short", &b"as it is"[..]).expect("commits");
    photos.insert_from("long", &vec![7; 300_000][..]).expect("commits");
    photos.remove("long").expect("commits");
    let expected = ["created photos", "short", "long: 300000", "removed", "dropped photos"];
    assert_eq!(told_of_photos(&db, &position), expected[..4]);
    db.drop_keyspace("photos").expect("drops");
    assert_eq!(told_of_photos(&db, &position), expected);
}

fn told_of_photos(db: &Database, position: &ChangesPosition) -> Vec<String> {
    let mut told = Vec::new();
    for change in db.changes(position).expect("begins") {
        match change.expect("reads") {
            Change::Commit(commit) => {
                for operation in commit.operations() {
                    assert_eq!(operation.keyspace().name, "photos");
                    told.push(match operation {
                        CommittedOperation::Insert { key: b"short", value: b"as it is", .. } => {
                            "short".to_owned()
                        }
                        CommittedOperation::InsertLarge { key: b"long", len, .. } => format!("long: {len}"),
                        CommittedOperation::Remove { key: b"long", .. } => "removed".to_owned(),
                        other => panic!("{other:?}"),
                    });
                }
            }
            Change::KeyspaceCreated { name, .. } => told.push(format!("created {name}")),
            Change::KeyspaceDropped { name, .. } => told.push(format!("dropped {name}")),
            other => panic!("{other:?}"),
        }
    }
    told
}

/// What happens to a keyspace is told behind what was committed before, also if that was not durable yet.
#[test]
fn events_come_behind_what_was_before_them() {
    let volume = Simulated::new(1);
    let db = filled(&volume, ALL, 2);
    let position = db.oldest_change().expect("a position");
    db.rename_keyspace("plain", "other").expect("renames");
    let plain = db.keyspace("other").expect("a keyspace").with_durability(Durability::Buffered);
    plain.insert("a", "1").expect("commits");
    db.drop_keyspace("other").expect("drops");
    let told = db.changes(&position).expect("begins").map(|change| match change.expect("reads") {
        Change::Commit(commit) => {
            commit.operations().map(|operation| operation.keyspace().name.to_owned()).collect()
        }
        Change::KeyspaceCreated { name, .. } => format!("created {name}"),
        Change::KeyspaceRenamed { name, .. } => format!("renamed {name}"),
        Change::KeyspaceDropped { name, .. } => format!("dropped {name}"),
        other => panic!("{other:?}"),
    });
    let told: Vec<String> = told.collect();
    assert_eq!(told, ["created plain", "plain", "plain", "renamed other", "other", "dropped other"]);
}

/// Syncs wait while the gate is closed.
struct Gated {
    volume: Simulated,
    is_closed: Arc<AtomicBool>,
    waits: Arc<AtomicBool>,
}

impl PassThrough for Gated {
    fn inner(&self) -> &dyn Volume {
        &self.volume
    }

    fn sync(&self, file: FileId) -> psync::Result<()> {
        while self.is_closed.load(SeqCst) {
            self.waits.store(true, SeqCst);
            std::thread::sleep(Duration::from_millis(1));
        }
        self.inner().sync(file)
    }
}

/// A commit that is being synced is in the log before one that passes it by and is visible first. A copy that is made at that moment
/// joined behind both, and missed the first one.
#[test]
fn a_copy_joins_exactly_also_while_commits_wait_for_the_device() {
    let (is_closed, waits) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let volume = Simulated::new(1);
    let gated = Gated { volume, is_closed: Arc::clone(&is_closed), waits: Arc::clone(&waits) };
    let builder = Database::builder().memory(4 << 20).keep_changes(ALL);
    let db = builder.open_on(Arc::new(gated)).expect("opens");
    let plain = db.keyspace("plain").expect("a keyspace");
    plain.insert("before", "1").expect("commits");
    let mut replica = Replica::default();
    std::thread::scope(|scope| {
        is_closed.store(true, SeqCst);
        let durable = scope.spawn(|| plain.insert("durable", "1").expect("commits"));
        while !waits.load(SeqCst) {
            std::thread::yield_now();
        }
        plain.clone().with_durability(Durability::Buffered).insert("passes by", "1").expect("commits");
        let copier = scope.spawn(|| replica.copy(&db).expect("copies"));
        std::thread::sleep(Duration::from_millis(100));
        is_closed.store(false, SeqCst);
        durable.join().expect("it does not panic");
        copier.join().expect("it does not panic");
    });
    is_equal(&db, &mut replica, "beside a sync");
}
