//! What a check tells, beside writers and on devices that fail.

use crate::cache::pager::ReadMode;
use crate::current_state::State;
use crate::db::check::DAMAGE_MAX;
use crate::log_area::maplet::KeyHash;
use crate::log_area::{DeltaRun, Fences, LogArea, Size};
use crate::operation::KeyspaceId;
use crate::storage::mapping_table::Address;
use crate::storage::node::NodeId;
use crate::version::Tree;
use crate::{Compression, Database, Durability, EncryptionKey, Error, Keyspace};
use parking_lot::Mutex;
use psync::{Access, Fault, FileId, Filter, OperationKind, PassThrough, Read, Repeat, Simulated, Volume};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::time::Duration;

type Meeting = (SyncSender<()>, Receiver<()>);

/// A read of a file that is open for reading only, but for its header, waits until another thread has done its
/// work.
struct Meets {
    inner: Simulated,
    meeting: Mutex<Option<Meeting>>,
    files: Mutex<Vec<FileId>>,
}

impl PassThrough for Meets {
    fn inner(&self) -> &dyn Volume {
        &self.inner
    }

    fn open(&self, name: &str, access: Access) -> psync::Result<FileId> {
        let file = self.inner().open(name, access)?;
        if !access.write {
            self.files.lock().push(file);
        }
        Ok(file)
    }

    fn read(&self, set: &mut [Read<'_>]) -> psync::Result<()> {
        if set[0].buffer.len() > 100
            && self.files.lock().contains(&set[0].file)
            && let Some((begins, done)) = &*self.meeting.lock()
        {
            begins.send(()).expect("a thread that waits");
            done.recv_timeout(Duration::from_secs(60)).expect("a thread that need not wait");
        }
        self.inner().read(set)
    }
}

#[test]
fn commits_and_flushes_do_not_wait_for_a_check_nor_take_its_log_away() {
    let volume = Meets { inner: Simulated::new(1), meeting: Mutex::default(), files: Mutex::default() };
    let volume = Arc::new(volume);
    let builder = Database::builder().memory(4 << 20).background_threads(0);
    let db = builder.open_on(volume.clone() as Arc<dyn Volume>).unwrap();
    let keyspace = db.keyspace("main").unwrap();
    let log_files = || {
        let entries = PassThrough::list(&*volume).unwrap();
        entries.iter().filter(|entry| entry.name.starts_with("wal-")).count()
    };
    // Zeros are written ahead of durable commits, and cut off when the next file begins.
    let insert = |key: &str| {
        let mut batch = db.batch();
        batch.insert(&keyspace, key, "green");
        batch.durability(Durability::Immediate).commit().unwrap();
    };
    insert("cress");
    let (begins, begun) = sync_channel(0);
    let (done, is_done) = channel();
    *volume.meeting.lock() = Some((begins, is_done));
    let checked = std::thread::scope(|scope| {
        let check = scope.spawn(|| db.check());
        while !check.is_finished() {
            if begun.recv_timeout(Duration::from_millis(10)).is_ok() {
                insert("kale");
                db.flush().unwrap();
                insert("cress");
                done.send(()).unwrap();
            }
        }
        check.join().unwrap()
    });
    *volume.meeting.lock() = None;
    assert!(checked.unwrap().log_records > 0);
    assert_eq!(log_files(), 1, "nothing is kept for longer than it is needed");
}

/// A database with log areas, of which runs have several pieces.
fn logged() -> Database {
    let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
    let builder = Database::builder().memory(4 << 20).leaf_len(4096).background_threads(0);
    let db = builder.open_on(volume).expect("opens");
    let keyspace = db.keyspace("main").expect("a keyspace");
    for step in [1, 40, 41, 20] {
        let mut batch = db.batch();
        (0..9000u64).step_by(step).for_each(|number| {
            batch.insert(&keyspace, number.to_be_bytes(), [7; 50]);
        });
        batch.commit().expect("commits");
        db.flush().expect("flushes");
    }
    db.check().expect("sound");
    db
}

/// What a check says when an area of several pieces is made anew with these hashes and fences.
fn with_runs(db: &Database, change: impl Fn(&mut Vec<KeyHash>, &mut Vec<u8>)) -> String {
    let engine = &db.handle.engine;
    let before = engine.state.version();
    let mut version = (*before).clone();
    let has_fences = |area: &LogArea| area.runs().any(|run| run.pieces.len() > 1);
    let (block, area) = before.logs.iter().find(|(_, area)| has_fences(area)).expect("short pieces");
    version.logs.remove(block);
    for (run, mut hashes) in area.runs().zip(area.hashes()) {
        let pieces: Vec<_> = run.pieces.iter().collect();
        let mut fences = run.fences.0.to_vec();
        if pieces.len() > 1 {
            change(&mut hashes, &mut fences);
        }
        let len = |id: &NodeId| u64::from(version.table.address(*id).expect("an address").len());
        let (len, fences) = (pieces.iter().map(len).sum(), Fences(&fences));
        let run = DeltaRun { pieces: &pieces, fences, removals: run.removals };
        version.logs.push(block, run, Size { bytes: len, fresh: 0 }, &hashes);
    }
    let version = Arc::new(version);
    engine.state.replace(|state| State { version: Arc::clone(&version), ..State::clone(state) });
    let found = db.check();
    engine.state.replace(|state| State { version: Arc::clone(&before), ..State::clone(state) });
    match found {
        Ok(_) => String::new(),
        Err(Error::Damaged { damage, .. }) => {
            assert_eq!(damage.len(), 1, "{damage:?}");
            damage[0].to_string()
        }
        Err(other) => panic!("{other}"),
    }
}

fn opened() -> (Simulated, Database, Keyspace) {
    let volume = Simulated::new(1);
    let shared: Arc<dyn Volume> = Arc::new(volume.clone());
    let db = Database::builder().memory(4 << 20).background_threads(0).open_on(shared).unwrap();
    let keyspace = db.keyspace("main").unwrap();
    (volume, db, keyspace)
}

/// Calls what it was given at the next read of data.
struct AtRead {
    inner: Simulated,
    data: Mutex<Vec<FileId>>,
    then: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl PassThrough for AtRead {
    fn inner(&self) -> &dyn Volume {
        &self.inner
    }

    fn open(&self, name: &str, access: Access) -> psync::Result<FileId> {
        let file = self.inner().open(name, access)?;
        if name == "data" {
            self.data.lock().push(file);
        }
        Ok(file)
    }

    fn read(&self, set: &mut [Read<'_>]) -> psync::Result<()> {
        if set.iter().any(|read| self.data.lock().contains(&read.file))
            && let Some(then) = self.then.lock().take()
        {
            then();
        }
        self.inner().read(set)
    }
}

/// Trees of one leaf were read one by one.
#[test]
fn trees_of_one_leaf_are_read_together() {
    const COUNT: u32 = 1000;
    let (volume, db, large) = opened();
    large.ingest((0..5000u32).map(|number| (number.to_be_bytes(), [7; 100]))).unwrap();
    let names = (0..COUNT).map(|number| format!("keyspace {number}"));
    let keyspaces = db.create_keyspaces(names).unwrap();
    let mut batch = db.batch();
    keyspaces.iter().for_each(|keyspace| _ = batch.insert(keyspace, "key", "value"));
    batch.commit().unwrap();
    db.flush().unwrap();
    let pager = &db.handle.engine.pager;
    let sets = || pager.reader.counters.total(|counters| &counters.sets);
    let before = sets();
    let checked = db.check().unwrap();
    let sets = sets() - before;
    assert_eq!((checked.keyspaces, checked.records), (u64::from(COUNT) + 1, u64::from(COUNT) + 5000));
    let most = u64::from(COUNT) / pager.pio_max() as u64 + 100;
    assert!(sets < most, "{sets} sets of reads, at most {most} are enough");
    // Each of those that are damaged is told, and nothing of those that were read with it.
    let damaged = [3, 500, 501, 999].map(|number| &keyspaces[number]);
    for keyspace in damaged {
        assert_eq!(damage_nodes(&db, &volume, (keyspace.id(), 0), 1), 1);
    }
    // A wrong count among them is told as well.
    let engine = &db.handle.engine;
    let mut version = (*engine.state.load().version).clone();
    let wrong = keyspaces[502].id();
    let tree = version.trees.get(&wrong).unwrap().clone();
    version.trees.insert(wrong, Tree { len: 2, ..tree });
    let version = Arc::new(version);
    engine.state.replace(|state| State { version: Arc::clone(&version), ..State::clone(state) });
    let Err(Error::Damaged { damage, .. }) = db.check() else { panic!("damage is told") };
    let told: Vec<_> = damage.iter().map(ToString::to_string).collect();
    assert_eq!(told.len(), damaged.len() + 1, "{told:?}");
    let of = |what: &str| told.iter().filter(|text| text.contains(what)).count();
    assert_eq!(of("number of records in keyspace \"keyspace 502\""), 1, "{told:?}");
}

/// It went on, and took the manifest and log of whoever had opened the database since for its own.
#[test]
fn a_check_ends_when_the_database_is_closed() {
    let simulated = Simulated::new(1);
    let (data, then) = (Mutex::default(), Mutex::default());
    let volume = Arc::new(AtRead { inner: simulated.clone(), data, then });
    let builder = Database::builder().memory(4 << 20).background_threads(0);
    let db = builder.clone().open_on(Arc::clone(&volume) as Arc<dyn Volume>).unwrap();
    let keyspace = db.keyspace("main").unwrap();
    keyspace.ingest((0..20_000u32).map(|number| (number.to_be_bytes(), [7; 100]))).unwrap();
    let closed = db.clone();
    *volume.then.lock() = Some(Box::new(move || {
        closed.close().unwrap();
        let db = builder.open_on(Arc::new(simulated)).unwrap();
        let keyspace = db.keyspace("main").unwrap();
        for round in 0..3u8 {
            keyspace.insert([round], "new").unwrap();
            db.flush().unwrap();
        }
    }));
    let found = db.check();
    assert!(matches!(found, Err(Error::Closed)), "{found:?}");
    assert!(volume.then.lock().is_none());
}

/// The counts of all keyspaces behind one with a leaf that could not be read were compared no more.
#[test]
fn what_cannot_be_read_hides_no_wrong_count_of_another_keyspace() {
    let (volume, db, keyspace) = opened();
    let second = db.keyspace("second").unwrap();
    for keyspace in [&keyspace, &second] {
        keyspace.ingest((0..1000u32).map(|number| (number.to_be_bytes(), [7; 100]))).unwrap();
    }
    let engine = &db.handle.engine;
    let (_, at, len) = nodes(&db, (keyspace.id(), 0)).remove(3);
    volume.flip_bit("data", at + len / 2, 1).unwrap();
    let mut version = (*engine.state.load().version).clone();
    let mut tree = version.trees.get(&second.id()).unwrap().clone();
    tree.len += 1;
    version.trees.insert(second.id(), tree);
    let version = Arc::new(version);
    engine.state.replace(|state| State { version: Arc::clone(&version), ..State::clone(state) });
    let Err(Error::Damaged { damage, .. }) = db.check() else { panic!("it is damaged") };
    let told = damage.iter().filter(|error| error.to_string().contains("number of records")).count();
    assert_eq!((damage.len(), told), (2, 1), "{damage:?}");
}

/// A disk that fails is when one wants to know of all damage.
#[test]
fn what_cannot_be_read_hides_no_damage() {
    let (volume, db, keyspace) = opened();
    keyspace.ingest((0..20_000u32).map(|number| (number.to_be_bytes(), [7; 100]))).unwrap();
    let fail = |nth| {
        volume.fail_nth(Filter::kinds([OperationKind::Read]).file("data"), nth, Fault::Error, Repeat::Sticky)
    };
    fail(4);
    assert!(matches!(db.check(), Err(Error::Io(_))), "nothing is damaged");
    volume.clear_faults();
    let damaged = |found| match found {
        Err(Error::Damaged { damage, .. }) => damage,
        other => panic!("{other:?}"),
    };
    (0..64).for_each(|byte| volume.flip_bit("data", 5000 + byte, 1).unwrap());
    let all = damaged(db.check());
    // The group of nodes that the damaged one is in is read one by one.
    fail(30);
    let found = damaged(db.check());
    let told = |damage: &[Error]| -> Vec<String> {
        damage.iter().filter(|error| error.is_damage()).map(Error::to_string).collect()
    };
    assert_eq!(told(&found), told(&all));
    assert!(found.iter().any(|error| matches!(error, Error::Io(_))), "{found:?}");
}

/// Damage of the trees was found, and not told.
#[test]
fn a_file_beside_the_trees_that_cannot_be_read_hides_none_of_their_damage() {
    let volume = Simulated::new(1);
    let builder = Database::builder().memory(4 << 20).background_threads(0);
    let builder = builder.encryption_key(EncryptionKey::generate().unwrap());
    let db = builder.open_on(Arc::new(volume.clone())).unwrap();
    let keyspace = db.keyspace("main").unwrap();
    keyspace.ingest((0..20_000u32).map(|number| (number.to_be_bytes(), [7; 100]))).unwrap();
    keyspace.insert("key", "value").unwrap();
    assert_eq!(damage_nodes(&db, &volume, (keyspace.id(), 0), 2), 2);
    for file in ["wal-", "manifest-", "CURRENT", "KEYS"] {
        let before = volume.fired();
        let reads = Filter::kinds([OperationKind::Read]).file(file);
        volume.fail_nth(reads, 1, Fault::Error, Repeat::Sticky);
        let told = db.check();
        let Err(Error::Damaged { damage, left_out: 0 }) = &told else { panic!("{file}: {told:?}") };
        let of_trees = damage.iter().filter(|error| matches!(error, Error::Corrupt { .. })).count();
        let has_file = damage.iter().any(|error| error.to_string().contains(file));
        assert!(of_trees == 2 && has_file && volume.fired() > before, "{file}: {damage:?}");
        volume.clear_faults();
    }
}

/// The record of an edit of unknown outcome was reported as damage.
#[test]
fn a_manifest_that_could_not_be_synced_is_no_damage() {
    let (volume, db, keyspace) = opened();
    keyspace.insert("key", "value").unwrap();
    volume.fail_nth(Filter::kinds([OperationKind::Sync]).file("manifest"), 1, Fault::Error, Repeat::Once);
    db.flush().unwrap_err();
    assert_eq!(volume.fired(), 1);
    db.check().unwrap();
    drop((keyspace, db));
    Database::builder().memory(4 << 20).open_on(Arc::new(volume)).unwrap().check().unwrap();
}

/// They are closed when the check ends, and a sync of a closed file is a failed sync.
#[test]
fn what_only_a_check_keeps_of_the_log_is_not_synced() {
    let (volume, db, keyspace) = opened();
    let engine = &db.handle.engine;
    let low = || engine.state.load().version.wal_low;
    let kept = engine.commits.keep_log().unwrap();
    for _ in 0..3 {
        let mut batch = db.batch();
        batch.insert(&keyspace, "key", "value");
        batch.durability(Durability::Buffered).commit().unwrap();
        db.flush().unwrap();
    }
    let unsynced = engine.commits.log.lock_for_test().as_ref().unwrap().wal.unsynced();
    assert!(unsynced.iter().filter(|old| old.generation() < low()).count() > 1);
    volume.fail_nth(Filter::kinds([OperationKind::Sync]), 1, Fault::Error, Repeat::Sticky);
    engine.commits.sync_log_below(low()).unwrap();
    engine.health.check_writable().unwrap();
    volume.clear_faults();
    kept.log.verify(&mut |_| Ok(())).unwrap();
    drop(kept);
    db.check().unwrap();
}

/// What was found in files before it was dropped, and those behind it were not read.
#[test]
fn a_log_file_that_cannot_be_read_hides_no_damage_of_others() {
    let (volume, db, keyspace) = opened();
    let engine = &db.handle.engine;
    let kept = engine.commits.keep_log().unwrap();
    let low = engine.state.load().version.wal_low;
    for _ in 0..3 {
        let mut batch = db.batch();
        batch.insert(&keyspace, "key", "value");
        batch.durability(Durability::Immediate).commit().unwrap();
        db.flush().unwrap();
    }
    let name = |behind: u64| format!("wal-{:010}", low + behind);
    for behind in [0, 2] {
        let bytes = volume.read_file(&name(behind)).unwrap();
        let at = bytes.windows(5).position(|window| window == b"value").expect("the record");
        volume.flip_bit(&name(behind), at as u64, 1).unwrap();
    }
    let log = engine.commits.log.lock_for_test().as_mut().unwrap().wal.keep(low);
    // The first reads are of headers, without which no file is looked at.
    let is_told = (1..9).any(|nth| {
        volume.fail_nth(
            Filter::kinds([OperationKind::Read]).file(name(1)),
            nth,
            Fault::Error,
            Repeat::Sticky,
        );
        let found = log.verify(&mut |_| Ok(()));
        volume.clear_faults();
        let Err(Error::Damaged { damage, .. }) = found else { return false };
        let unreadable = damage.iter().filter(|error| matches!(error, Error::Io(_))).count();
        (damage.len(), unreadable) == (3, 1)
    });
    assert!(is_told);
    engine.commits.log.lock_for_test().as_mut().unwrap().wal.let_go();
    drop(kept);
}

/// A wrong one would have a get look past the newest change of a key.
#[test]
fn wrong_hashes_and_fences_of_a_log_area_are_damage() {
    let db = logged();
    assert_eq!(with_runs(&db, |_, _| ()), "");
    let told = with_runs(&db, |hashes, _| hashes[0] = KeyHash::of(b"a stranger"));
    assert!(told.contains("hashes"), "{told}");
    // Fences lie between two keys: a little more is above one, a little less below the other.
    for (by, is_sound) in [(0u8, true), (255, false), (1, false)] {
        let told = with_runs(&db, |_, fences| {
            let last = fences.last_mut().expect("a fence");
            *last = last.wrapping_add(by.wrapping_mul(45));
        });
        assert!(told.is_empty() == is_sound && (is_sound || told.contains("fences")), "{by}: {told}");
    }
}

/// The first key, the place and the length of each node of this level, of this keyspace.
fn nodes(db: &Database, (keyspace, level): (KeyspaceId, u8)) -> Vec<(Vec<u8>, u64, u64)> {
    let engine = &db.handle.engine;
    let version = engine.state.version();
    let meant = |(id, address): (NodeId, Address)| {
        let node = engine.pager.fetch(&version.segments, &[(id, address)], ReadMode::Verify).ok()?;
        let (name, len) = (node[0].name(), address.len() as usize);
        let at = version.segments.file_offset(address.position, len, version.span).expect("it has a place");
        let first = usize::from(level > 0);
        ((name.keyspace, name.level) == (keyspace, level))
            .then(|| (node[0].key(first).to_vec(), at, len as u64))
    };
    version.table.iter().filter_map(meant).collect()
}

/// Flips a bit in each of so many nodes of this level, of this keyspace.
fn damage_nodes(db: &Database, volume: &Simulated, of: (KeyspaceId, u8), most: usize) -> usize {
    let nodes = nodes(db, of).into_iter().take(most);
    nodes.map(|(_, at, len)| volume.flip_bit("data", at + len / 2, 1).expect("a bit")).count()
}

/// A thousand damaged leaves were all that was ever told, and large values were looked at where nothing else was damaged.
#[test]
fn what_is_damaged_is_counted_and_hides_no_other_part() {
    let volume = Simulated::new(1);
    let builder = Database::builder().memory(4 << 20).background_threads(0).leaf_len(512);
    let builder = builder.compression(Compression::None);
    let db = builder.clone().open_on(Arc::new(volume.clone())).unwrap();
    let (main, films) = (db.keyspace("main").unwrap(), db.large_values("films").unwrap());
    main.ingest((0..10_000u32).map(|number| (number.to_be_bytes(), [7; 100]))).unwrap();
    films.insert("nosferatu", vec![1; 700_000]).unwrap();
    db.flush().unwrap();
    db.check().unwrap();
    drop((main, films, db));
    // Nothing is cached.
    let db = builder.open_on(Arc::new(volume.clone())).unwrap();
    let main = db.keyspace("main").unwrap();
    main.insert("key", "in the log alone").unwrap();
    let leaves = damage_nodes(&db, &volume, (main.id(), 0), usize::MAX);
    assert!(leaves > 1500);
    let version = db.handle.engine.state.version();
    let chunks = version.trees.iter().find_map(|(_, tree)| tree.chunks).expect("a keyspace of chunks");
    let damaged_chunks = damage_nodes(&db, &volume, (chunks, 0), 1);
    assert_eq!(damaged_chunks, 1);
    let log = format!("wal-{:010}", version.wal_high);
    let bytes = volume.read_file(&log).unwrap();
    let at = bytes.windows(5).position(|window| window == b"alone").expect("the record");
    volume.flip_bit(&log, at as u64, 1).unwrap();
    let Err(error @ Error::Damaged { .. }) = db.check() else { panic!("it is damaged") };
    let Error::Damaged { damage, left_out } = &error else { unreachable!() };
    // The log, the leaf with chunks, and the value are told besides.
    let names = |part: &str| damage.iter().filter(|error| error.to_string().contains(part)).count();
    assert_eq!((names("wal-"), names("a chunk of the value of")), (1, 1));
    assert_eq!((damage.len(), *left_out), (DAMAGE_MAX + 2, (leaves + 1 - DAMAGE_MAX) as u64));
    assert!(error.to_string().starts_with(&format!("{} damaged", leaves + 3)), "{error}");
}

/// Leaves were not read, and nobody was told.
#[test]
fn an_inner_node_that_is_damaged_says_that_there_may_be_more() {
    let (volume, db, keyspace) = opened();
    keyspace.ingest((0..20_000u32).map(|number| (number.to_be_bytes(), [7; 100]))).unwrap();
    db.check().unwrap();
    let told = || db.check().map_err(|error| error.to_string()).expect_err("it is damaged");
    assert_eq!(damage_nodes(&db, &volume, (keyspace.id(), 0), 1), 1);
    assert!(!told().contains("below"), "{}", told());
    assert!(damage_nodes(&db, &volume, (keyspace.id(), 1), 1) == 1);
    assert!(told().contains("in an inner node, so that nothing below it was checked"), "{}", told());
    // As does one that cannot be read: the root.
    volume.fail_nth(Filter::kinds([OperationKind::Read]).file("data"), 1, Fault::Error, Repeat::Sticky);
    let error = db.check().expect_err("it cannot be read");
    let words = error.to_string();
    assert!(matches!(error, Error::Io(_)) && words.contains("nothing below it was checked"), "{words}");
}

/// Some bytes of the data file cannot be read.
struct Unreadable {
    inner: Simulated,
    data: Mutex<Vec<FileId>>,
    places: Mutex<Vec<(u64, u64)>>,
}

impl PassThrough for Unreadable {
    fn inner(&self) -> &dyn Volume {
        &self.inner
    }

    fn open(&self, name: &str, access: Access) -> psync::Result<FileId> {
        let file = self.inner().open(name, access)?;
        if name == "data" {
            self.data.lock().push(file);
        }
        Ok(file)
    }

    fn read(&self, set: &mut [Read<'_>]) -> psync::Result<()> {
        let (data, places) = (self.data.lock(), self.places.lock());
        let is_in = |read: &Read<'_>, at: u64, len: u64| {
            read.offset < at + len && at < read.offset + read.buffer.len() as u64
        };
        let is_bad = |read: &&mut Read<'_>| {
            data.contains(&read.file) && places.iter().any(|(at, len)| is_in(read, *at, *len))
        };
        if let Some(read) = set.iter_mut().find(is_bad) {
            let source = std::io::Error::other("a bad sector");
            let (file, offset) = ("data".to_owned(), Some(read.offset));
            return Err(psync::Error::Io { operation: "read", file, offset, source });
        }
        drop((data, places));
        self.inner().read(set)
    }
}

/// One chunk that could not be read, or one leaf, and nothing was told of values that lack others.
#[test]
fn what_cannot_be_read_hides_no_large_value_that_lacks_a_chunk() {
    let (data, places) = (Mutex::default(), Mutex::default());
    let volume = Arc::new(Unreadable { inner: Simulated::new(1), data, places });
    let builder = Database::builder().memory(4 << 20).background_threads(0).leaf_len(512);
    let builder = builder.compression(Compression::None);
    let open = || builder.clone().open_on(Arc::clone(&volume) as Arc<dyn Volume>).unwrap();
    let db = open();
    let films = db.large_values("films").unwrap();
    ["one", "three", "two"].iter().for_each(|name| films.insert(name, vec![1; 700_000]).unwrap());
    db.flush().unwrap();
    let version = db.handle.engine.state.version();
    let found = version.trees.iter().find_map(|(id, tree)| Some((id, tree.chunks?, Arc::clone(&tree.name))));
    let (heads, chunks, name) = found.expect("a keyspace of chunks");
    let keyspace = Keyspace::in_version(Arc::clone(&db.handle), &version, chunks, name);
    let records = keyspace.iter().map(|record| record.unwrap());
    let keys: Vec<_> = records.filter(|(_, value)| value.len() > 1000).map(|(key, _)| key).collect();
    assert_eq!(keys.len(), 18, "six of each value");
    [2, 14].iter().for_each(|index| keyspace.remove(&keys[*index]).unwrap());
    db.flush().unwrap();
    drop((films, keyspace, version, db));
    // Nothing is cached.
    let db = open();
    let leaves = nodes(&db, (chunks, 0));
    let of_second = leaves.iter().filter(|(key, ..)| key[..] == keys[8][..]);
    *volume.places.lock() = of_second.map(|(_, at, len)| (*at, *len)).collect();
    assert_eq!(volume.places.lock().len(), 1);
    let told = |db: &Database| match db.check() {
        Err(Error::Damaged { damage, .. }) => damage.iter().map(Error::to_string).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    let lines = |told: &[String], words: &str| told.iter().filter(|line| line.contains(words)).count();
    let found = told(&db);
    assert_eq!((lines(&found, "chunk 2 of the value"), lines(&found, "a bad sector")), (2, 2), "{found:?}");
    // Nor is it silent of values whose own records are damaged.
    drop(db);
    let db = open();
    assert_eq!(damage_nodes(&db, &volume.inner, (heads, 0), 1), 1);
    let found = told(&db);
    assert_eq!(lines(&found, "large values of keyspace \"films\""), 1, "{found:?}");
}
