//! Merging through queue, log areas, leaves, crashes and replays.

mod together;

use crate::merge::{AddU64, Append, MergeOperator};
use crate::version::manifest::file_name;
use crate::{Database, Durability, Error, Keyspace, KeyspaceOptions, Snapshot};
use proptest::prelude::*;
use psync::{Device, Fault, FileId, Filter, OperationKind, PassThrough, Repeat, Simulated, Volume};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

fn open(volume: &Simulated) -> Database {
    let shared: Arc<dyn Volume> = Arc::new(volume.clone());
    Database::builder().memory(4 << 20).background_threads(0).open_on(shared).unwrap()
}

fn appending(db: &Database) -> Keyspace {
    db.keyspace_with("main", KeyspaceOptions::new().merge(Append)).unwrap()
}

#[derive(Clone, Debug)]
enum Step {
    Merge(u16, u8),
    /// Many keys at once, so that blocks get log areas.
    MergeMany(u16),
    Insert(u16, u8),
    Remove(u16),
    RemoveRange(u16, u16),
    Transact(u16, u16),
    Flush,
    Compact,
    Snapshot,
    Reopen,
    /// The process is gone, with a flush that had begun.
    Crash(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0u16..600;
    prop_oneof![
        8 => (key.clone(), any::<u8>()).prop_map(|(key, len)| Step::Merge(key, len)),
        3 => any::<u16>().prop_map(Step::MergeMany),
        2 => (key.clone(), any::<u8>()).prop_map(|(key, len)| Step::Insert(key, len)),
        2 => key.clone().prop_map(Step::Remove),
        1 => (key.clone(), key.clone()).prop_map(|(from, to)| Step::RemoveRange(from, to)),
        2 => (key.clone(), key).prop_map(|(one, other)| Step::Transact(one, other)),
        2 => Just(Step::Flush),
        1 => Just(Step::Compact),
        2 => Just(Step::Snapshot),
        1 => Just(Step::Reopen),
        2 => any::<u64>().prop_map(Step::Crash),
    ]
}

fn key(number: u16) -> [u8; 2] {
    number.to_be_bytes()
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn merge(model: &mut Model, key: &[u8], operand: &[u8]) {
    model.entry(key.to_vec()).or_default().extend_from_slice(operand);
}

fn check(found: impl Iterator<Item = crate::Result<(crate::Key, crate::Value)>>, model: &Model) {
    let found: Vec<_> =
        found.map(|item| item.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap()).collect();
    let expected: Vec<_> = model.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found, expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn merging_is_what_one_operand_after_the_other_makes(steps in prop::collection::vec(step(), 1..120)) {
        run(steps);
    }
}

fn run(steps: Vec<Step>) {
    let mut volume = Simulated::new(7);
    let mut db = open(&volume);
    let mut keyspace = appending(&db);
    let (mut model, mut number) = (Model::new(), 0u32);
    let mut snapshots = Vec::new();
    let mut operand = |len: u8| {
        number += 1;
        [&number.to_be_bytes()[..], &vec![b'x'; usize::from(len) * 2]].concat()
    };
    for step in steps {
        match step {
            Step::Merge(at, len) => {
                let operand = operand(len);
                keyspace.merge(key(at), &operand).unwrap();
                merge(&mut model, &key(at), &operand);
            }
            Step::MergeMany(from) => {
                let mut batch = db.batch();
                for at in 0..60u16 {
                    let (key, operand) = (key((from.wrapping_add(at * 10)) % 600), operand(9));
                    batch.merge(&keyspace, key, &operand);
                    merge(&mut model, &key, &operand);
                }
                batch.durability(Durability::Buffered).commit().unwrap();
            }
            Step::Insert(at, len) => {
                let value = operand(len);
                keyspace.insert(key(at), &value).unwrap();
                model.insert(key(at).to_vec(), value);
            }
            Step::Remove(at) => {
                keyspace.remove(key(at)).unwrap();
                model.remove(&key(at)[..]);
            }
            Step::RemoveRange(from, to) => {
                keyspace.remove_range(key(from)..key(to)).unwrap();
                model.retain(|at, _| !(at[..] >= key(from)[..] && at[..] < key(to)[..]));
            }
            Step::Transact(one, other) => {
                let (first, second, third) = (operand(1), operand(2), operand(3));
                let mut tx = db.transaction().unwrap();
                tx.merge(&keyspace, key(one), &first).unwrap();
                let mark = tx.savepoint();
                tx.merge(&keyspace, key(one), &third).unwrap();
                tx.roll_back_to(mark).unwrap();
                tx.merge(&keyspace, key(other), &second).unwrap();
                merge(&mut model, &key(one), &first);
                merge(&mut model, &key(other), &second);
                check(tx.iter(&keyspace), &model);
                let read = tx.get(&keyspace, key(one)).unwrap();
                assert_eq!(read.as_deref(), model.get(&key(one)[..]).map(|value| &value[..]));
                let both = tx.multi_get(&keyspace, [key(one), key(other)]).unwrap();
                assert_eq!(both[1].as_deref(), model.get(&key(other)[..]).map(|value| &value[..]));
                tx.commit().unwrap();
            }
            Step::Flush => db.flush().unwrap(),
            Step::Compact => db.compact().unwrap(),
            Step::Snapshot => {
                snapshots.push((db.snapshot(), model.clone()));
                if snapshots.len() > 3 {
                    snapshots.remove(0);
                }
            }
            Step::Reopen => {
                snapshots.clear();
                drop((keyspace, db));
                db = open(&volume);
                keyspace = appending(&db);
            }
            Step::Crash(seed) => {
                snapshots.clear();
                db.sync().unwrap();
                // A part of the queue is published, and the process ends.
                volume.set_capacity(volume.used() + (seed % (300 << 10)));
                _ = db.flush();
                volume.set_capacity(u64::MAX);
                volume = volume.power_loss(seed);
                db = open(&volume);
                keyspace = appending(&db);
            }
        }
        check(keyspace.iter(), &model);
        for (snapshot, model) in &snapshots {
            check(snapshot.iter(&keyspace), model);
        }
    }
    check(keyspace.iter(), &model);
    let upside_down = keyspace.iter().rev().map(|item| item.unwrap().0.to_vec());
    assert!(upside_down.eq(model.keys().rev().cloned()));
    let keys: Vec<_> = (0..600).map(key).collect();
    for (key, found) in keys.iter().zip(keyspace.multi_get(&keys).unwrap()) {
        assert_eq!(found.as_deref(), model.get(&key[..]).map(|value| &value[..]));
        assert_eq!(keyspace.get(key).unwrap(), found);
    }
    db.compact().unwrap();
    assert_eq!(db.check().unwrap().records as usize, model.len());
    check(keyspace.iter(), &model);
}

/// A queue comes to the trees in portions, and the process is gone between them; the next one replays all of it, and may be gone as
/// well.
#[test]
fn operands_come_once_whatever_a_crash_leaves_of_a_flush() {
    const KEYS: u16 = 6000;
    let open = |volume: &Simulated| {
        let shared: Arc<dyn Volume> = Arc::new(volume.clone());
        let db = Database::builder().memory(64 << 20).background_threads(0).open_on(shared).unwrap();
        let keyspace = appending(&db);
        (db, keyspace)
    };
    let loaded = Simulated::new(1);
    let (db, keyspace) = open(&loaded);
    keyspace.ingest((0..KEYS).map(|number| (key(number), [b'.'; 1000]))).unwrap();
    drop((keyspace, db));
    let mut seen = [0; 4];
    for seed in 0..12u64 {
        let mut volume = loaded.power_loss(seed);
        let mut model: Model = (0..KEYS).map(|number| (key(number).to_vec(), vec![b'.'; 1000])).collect();
        for crash in 0..3u8 {
            let (db, keyspace) = open(&volume);
            seen[db.handle.engine.state.load().version.begun_flushes.len()] += 1;
            check(keyspace.iter(), &model);
            for chunk in 0..12u16 {
                let mut batch = db.batch();
                for number in (chunk..KEYS).step_by(12) {
                    let operand = [&[b'0' + crash][..], &[b'a' + chunk as u8; 200]].concat();
                    // Some more often than others, some not at all, and some anew.
                    match (number + u16::from(crash)) % 7 {
                        0 => {}
                        1 if number % 11 == 0 => {
                            batch.insert(&keyspace, key(number), &operand);
                            model.insert(key(number).to_vec(), operand);
                        }
                        2 if number % 13 == 0 => {
                            batch.remove(&keyspace, key(number));
                            model.remove(&key(number)[..]);
                        }
                        often => (0..often.min(3)).for_each(|_| {
                            batch.merge(
                                &keyspace,
                                key(number),
                                &operand[..operand.len() / usize::from(often)],
                            );
                            merge(&mut model, &key(number), &operand[..operand.len() / usize::from(often)]);
                        }),
                    }
                }
                batch.durability(Durability::Buffered).commit().unwrap();
            }
            db.sync().unwrap();
            let manifest =
                db.handle.engine.publisher.manifest_for_test().as_ref().unwrap().current().manifest;
            let writes = Filter::kinds([OperationKind::Write]).file(file_name(manifest));
            volume.fail_nth(
                writes,
                [2, 3, 2, 9, 1][(seed as usize >> crash) % 5],
                Fault::Error,
                Repeat::Once,
            );
            // In small portions.
            db.handle.engine.flush.low_space.failed(0);
            _ = db.flush();
            drop((keyspace, db));
            volume = volume.power_loss(seed + u64::from(crash));
        }
        let (db, keyspace) = open(&volume);
        check(keyspace.iter(), &model);
        db.flush().unwrap();
        check(keyspace.iter(), &model);
        db.compact().unwrap();
        check(keyspace.iter(), &model);
        assert_eq!(db.check().unwrap().records as usize, model.len());
    }
    assert!(seen[1] > 5 && seen[2] > 2, "flushes had begun: {seen:?}");
}

/// The sync of a durable commit takes as long as another thread says.
struct Gated {
    inner: Simulated,
    gate: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

impl PassThrough for Gated {
    fn inner(&self) -> &dyn Volume {
        &self.inner
    }

    fn sync(&self, file: FileId) -> psync::Result<()> {
        if let Some((begun, open)) = self.gate.lock().unwrap().take() {
            begun.send(()).unwrap();
            open.recv().unwrap();
        }
        self.inner().sync(file)
    }
}

/// It waits for the device, but not with what other commits need: a merge, or a change of a key that is being synced.
#[test]
fn a_commit_that_waits_for_a_sync_holds_up_no_other_commit() {
    for merges in [true, false] {
        passes_by_one_that_waits(merges);
    }
}

fn passes_by_one_that_waits(merges: bool) {
    let volume = Simulated::new(1);
    let gated = Arc::new(Gated { inner: volume, gate: Mutex::default() });
    let builder = Database::builder().memory(4 << 20).background_threads(0);
    let db = builder.open_on(gated.clone() as Arc<dyn Volume>).unwrap();
    let (keyspace, other) = (appending(&db), db.keyspace("other").unwrap());
    let (begins, has_begun) = channel();
    let (opens, is_open) = channel();
    *gated.gate.lock().unwrap() = Some((begins, is_open));
    std::thread::scope(|scope| {
        let durable = scope.spawn(|| other.insert("durable", "").unwrap());
        has_begun.recv().unwrap();
        let buffered = keyspace.with_durability(Durability::Buffered);
        let of_key = other.with_durability(Durability::Buffered);
        let merging = scope.spawn(move || match merges {
            true => buffered.merge("k", "a").unwrap(),
            false => of_key.insert("durable", "another").unwrap(),
        });
        while db.handle.engine.commits.queues.wanted.load(std::sync::atomic::Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        let others: Vec<_> = (0..4u8)
            .map(|number| {
                let other = other.with_durability(Durability::Buffered);
                scope.spawn(move || other.insert([number], "").unwrap())
            })
            .collect();
        let began = Instant::now();
        while !others.iter().all(|other| other.is_finished()) && began.elapsed() < Duration::from_secs(10) {
            std::thread::yield_now();
        }
        let (has_passed, has_merged) =
            (others.iter().all(|other| other.is_finished()), merging.is_finished());
        opens.send(()).unwrap();
        durable.join().unwrap();
        assert!(has_passed && !has_merged, "{has_passed}, {has_merged}");
    });
}

/// What passes by a commit that is being synced is visible before it, and behind it in the log: its operations have other numbers
/// there than in the queue. The log is replayed over a part of what the queue has brought to the trees.
#[test]
fn operands_come_once_beside_a_commit_that_is_synced() {
    const KEYS: u16 = 3000;
    let loaded = Simulated::new(1);
    let builder = || Database::builder().memory(64 << 20).background_threads(0);
    let db = builder().open_on(Arc::new(loaded.clone()) as Arc<dyn Volume>).unwrap();
    appending(&db).ingest((0..KEYS).map(|number| (key(number), [b'.'; 1000]))).unwrap();
    drop(db);
    let mut begun_flushes = 0;
    for (seed, behind) in (0..12u64).map(|seed| (seed, 1 + seed as usize % 3)) {
        let volume = loaded.power_loss(seed);
        let gated = Arc::new(Gated { inner: volume.clone(), gate: Mutex::default() });
        let db = builder().open_on(gated.clone() as Arc<dyn Volume>).unwrap();
        let (keyspace, other) = (appending(&db), db.keyspace("other").unwrap());
        other.insert("before", "").unwrap();
        let (begins, has_begun) = channel();
        let (opens, is_open) = channel();
        *gated.gate.lock().unwrap() = Some((begins, is_open));
        std::thread::scope(|scope| {
            let durable = scope.spawn(|| other.insert("durable", "").unwrap());
            has_begun.recv().unwrap();
            let passing = scope.spawn(|| {
                for operand in [b'a'; 2] {
                    let mut batch = db.batch();
                    (0..KEYS).for_each(|number| _ = batch.merge(&keyspace, key(number), [operand; 200]));
                    batch.durability(Durability::Buffered).commit().unwrap();
                }
            });
            // Commits that may pass by have done so; others wait for the sync.
            let began = Instant::now();
            while !passing.is_finished() && began.elapsed() < Duration::from_millis(300) {
                std::thread::yield_now();
            }
            opens.send(()).unwrap();
            durable.join().unwrap();
            passing.join().unwrap();
        });
        db.sync().unwrap();
        let manifest = db.handle.engine.publisher.manifest_for_test().as_ref().unwrap().current().manifest;
        let writes = Filter::kinds([OperationKind::Write]).file(file_name(manifest));
        volume.fail_nth(writes, 1 + behind as u64, Fault::Error, Repeat::Once);
        db.handle.engine.flush.low_space.failed(0);
        _ = db.flush();
        drop((keyspace, other, db));
        let volume = volume.power_loss(seed);
        let db = open(&volume);
        begun_flushes += db.handle.engine.state.load().version.begun_flushes.len();
        let model: Model = (0..KEYS)
            .map(|number| (key(number).to_vec(), [vec![b'.'; 1000], vec![b'a'; 400]].concat()))
            .collect();
        check(appending(&db).iter(), &model);
        db.flush().unwrap();
        check(appending(&db).iter(), &model);
    }
    assert!(begun_flushes > 3, "flushes had begun: {begun_flushes}");
}

#[test]
fn options_say_by_what_a_keyspace_merges() {
    let volume = Simulated::new(1);
    let db = open(&volume);
    let adding = KeyspaceOptions::new().merge(AddU64);
    let hits = db.keyspace_with("hits", adding.clone()).unwrap();
    let stored = adding.clone().compression(crate::Compression::None); // the default of unit tests
    assert_eq!(hits.options().unwrap(), stored);
    db.keyspace_with("hits", adding.clone()).unwrap();
    let other = db.keyspace_with("hits", KeyspaceOptions::new().merge(Append));
    assert!(matches!(other, Err(Error::OtherMergeOperator { stored, .. }) if stored == "add u64"));
    let plain = db.keyspace("plain").unwrap();
    assert!(matches!(plain.merge("k", "v"), Err(Error::NoMergeOperator { .. })));
    let late = db.keyspace_with("plain", adding.clone());
    assert!(matches!(late, Err(Error::NoMergeOperator { .. })));
    let both = db.keyspace_with("both", adding.clone().expiring());
    assert!(matches!(both, Err(Error::BadOption { option: "merge", .. })));
    assert!(matches!(hits.merge("k", "no number"), Err(Error::BadOperand { .. })));
    hits.insert("k", "no number").unwrap();
    hits.merge("k", 1u64.to_be_bytes()).unwrap();
    assert!(matches!(hits.get("k"), Err(Error::MergeFailed { .. })));
    db.flush().unwrap();
    assert!(matches!(hits.get("k"), Err(Error::MergeFailed { .. })));
    hits.insert("k", 1u64.to_be_bytes()).unwrap();
    assert_eq!(hits.get("k").unwrap().as_deref(), Some(&1u64.to_be_bytes()[..]));
}

/// What was committed with a large budget is read, and made a value, with a small one.
#[test]
fn a_smaller_budget_destroys_no_value() {
    let volume = Simulated::new(1);
    let open = |memory: u64, read_only: bool| {
        let shared = Arc::new(volume.clone()) as Arc<dyn Volume>;
        let builder = Database::builder().memory(memory).background_threads(0).read_only(read_only);
        builder.durability(Durability::Buffered).open_on(shared).unwrap()
    };
    let long = vec![b'l'; 5 << 20];
    let expected = [&long[..], b"x"].concat();
    {
        let db = open(256 << 20, false);
        let keyspace = appending(&db);
        for key in ["flushed", "waits"] {
            keyspace.insert(key, &long).unwrap();
        }
        keyspace.merge("waits", "x").unwrap();
        db.close().unwrap();
    }
    {
        let db = open(4 << 20, false);
        let keyspace = appending(&db);
        let refused = keyspace.insert("long", &long);
        assert!(matches!(refused, Err(Error::ValueTooLong { .. })));
        keyspace.merge("flushed", "x").unwrap();
        assert_eq!(keyspace.get("flushed").unwrap().as_deref(), Some(&expected[..]));
        // A transaction takes what it can commit, whatever the value becomes.
        let halves = |len: usize| {
            db.transact(|tx| {
                tx.insert(&keyspace, "halves", vec![b'h'; len])?;
                tx.merge(&keyspace, "halves", vec![b'h'; len])
            })
        };
        let refused = halves(700 << 10);
        assert!(matches!(refused, Err(Error::BatchTooLarge { .. })), "{refused:?}");
        assert!(!keyspace.contains("halves").unwrap());
        halves(500_000).unwrap();
        assert_eq!(keyspace.get("halves").unwrap().map(|value| value.len()), Some(1_000_000));
        keyspace.remove("halves").unwrap();
        db.flush().unwrap();
        db.compact().unwrap();
        db.close().unwrap();
    }
    for (memory, read_only) in [(4 << 20, true), (256 << 20, false)] {
        let db = open(memory, read_only);
        let keyspace = db.keyspace("main").unwrap();
        for key in ["flushed", "waits"] {
            assert_eq!(keyspace.get(key).unwrap().as_deref(), Some(&expected[..]), "{key}, {memory}");
        }
    }
}

/// One that could not be merged is told where it lies, and keeps nobody from the others.
#[test]
fn records_beside_one_that_cannot_be_merged_are_reached() {
    let volume = Simulated::new(1);
    let db = open(&volume);
    let hits = db.keyspace_with("hits", KeyspaceOptions::new().merge(AddU64)).unwrap();
    for key in ["b", "d"] {
        hits.insert(key, "no number").unwrap();
    }
    for key in ["a", "b", "c", "d", "e"] {
        hits.merge(key, 1u64.to_be_bytes()).unwrap();
    }
    let shown = |item: crate::Result<(crate::Key, crate::Value)>| match item {
        Ok((key, value)) => format!("{}={}", String::from_utf8_lossy(&key), value[7]),
        Err(Error::MergeFailed { key, .. }) => format!("{}?", String::from_utf8_lossy(&key)),
        Err(error) => panic!("{error}"),
    };
    let expected = ["a=1", "b?", "c=1", "d?", "e=1"];
    for flushed in [false, true] {
        if flushed {
            db.flush().unwrap();
        }
        assert_eq!(hits.iter().map(shown).collect::<Vec<_>>(), expected);
        assert!(hits.iter().rev().map(shown).eq(expected.iter().rev().copied()));
        assert_eq!(hits.count(..).unwrap(), 5);
        assert!(!hits.is_empty().unwrap());
        let keys = hits.iter().keys().collect::<crate::Result<Vec<_>>>().unwrap();
        assert_eq!(keys, ["a", "b", "c", "d", "e"]);
        let told = |error: Error| matches!(error, Error::MergeFailed { key, .. } if key == "b");
        assert!(told(hits.get("b").unwrap_err()));
        assert!(told(hits.multi_get(["a", "b"]).unwrap_err()));
        #[cfg(feature = "async")]
        {
            use futures_util::StreamExt;
            assert!(told(futures_executor::block_on(hits.get_async("b")).unwrap_err()));
            let stream = hits.iter().into_stream().map(shown).collect::<Vec<_>>();
            assert_eq!(futures_executor::block_on(stream), expected);
        }
        let mut tx = db.transaction().unwrap();
        assert_eq!(tx.iter(&hits).map(shown).collect::<Vec<_>>(), expected);
        // What it has written itself counts.
        tx.remove(&hits, "b").unwrap();
        tx.insert(&hits, "d", 7u64.to_be_bytes()).unwrap();
        tx.merge(&hits, "c", 1u64.to_be_bytes()).unwrap();
        let own = ["a=1", "c=2", "d=7", "e=1"];
        assert_eq!(tx.iter(&hits).map(shown).collect::<Vec<_>>(), own);
        assert!(tx.iter(&hits).rev().map(shown).eq(own.iter().rev().copied()));
        tx.remove_range(&hits, ..).unwrap();
        tx.insert(&hits, "z", 1u64.to_be_bytes()).unwrap();
        assert_eq!(tx.iter(&hits).map(shown).collect::<Vec<_>>(), ["z=1"]);
    }
}

/// A loop with a cursor came to the same record again and again.
#[test]
fn cursors_go_on_behind_a_record_that_cannot_be_merged() {
    let db = open(&Simulated::new(1));
    let hits = db.keyspace_with("hits", KeyspaceOptions::new().merge(AddU64)).unwrap();
    for key in ["a", "d", "e"] {
        hits.insert(key, "no number").unwrap();
    }
    for key in ["a", "b", "c", "d", "e", "f"] {
        hits.merge(key, 1u64.to_be_bytes()).unwrap();
    }
    let shown = |step: crate::Result<Option<(&[u8], &[u8])>>| match step {
        Ok(record) => record.map(|(key, _)| String::from_utf8_lossy(key).into_owned()),
        Err(Error::MergeFailed { key, .. }) => Some(format!("{}?", String::from_utf8_lossy(&key))),
        Err(error) => panic!("{error}"),
    };
    let tx = db.transaction().unwrap();
    for mut cursor in [hits.cursor(), tx.cursor(&hits)] {
        let up: Vec<_> = std::iter::from_fn(|| shown(cursor.next())).take(20).collect();
        assert_eq!(up, ["a?", "b", "c", "d?", "e?", "f"]);
        let down: Vec<_> = std::iter::from_fn(|| shown(cursor.prev())).take(20).collect();
        assert_eq!(down, ["f", "e?", "d?", "c", "b", "a?"]);
        // It turns at the last record that it came to.
        assert_eq!(shown(cursor.seek("c")).as_deref(), Some("c"));
        assert_eq!(shown(cursor.next()).as_deref(), Some("d?"));
        assert_eq!(cursor.record().map(|(key, _)| key), Some(&b"c"[..]));
        assert_eq!(shown(cursor.prev()).as_deref(), Some("b"));
        assert_eq!(shown(cursor.seek_to_first()).as_deref(), Some("a?"));
        assert_eq!(shown(cursor.next()).as_deref(), Some("b"));
    }
}

/// A get saw the operand in a state without what it builds on: a value that never was.
#[test]
fn a_get_that_sees_an_operand_sees_what_was_ingested_before_it() {
    let db = open(&Simulated::new(1));
    let hits = db.keyspace_with("hits", KeyspaceOptions::new().merge(AddU64)).unwrap();
    let mut times = 0;
    let found = db.handle.engine.state.get_while(hits.id(), b"k", || {
        if times == 0 {
            hits.ingest([("k", 5u64.to_be_bytes())]).unwrap();
            hits.merge("k", 1u64.to_be_bytes()).unwrap();
        }
        times += 1;
    });
    let found = hits.values().read_found(b"k", found.unwrap()).unwrap().unwrap();
    assert_eq!((&found[..], times), (&6u64.to_be_bytes()[..], 2));
}

/// Its operands were damage to a view that knew no operator for it.
#[test]
fn a_view_that_sees_an_operand_has_its_keyspace() {
    let db = open(&Simulated::new(1));
    let mut hits = None;
    let (state, seq) = db.handle.engine.state.view_while(|| {
        hits.get_or_insert_with(|| {
            let hits = db.keyspace_with("hits", KeyspaceOptions::new().merge(AddU64)).unwrap();
            hits.merge("k", 1u64.to_be_bytes()).unwrap();
            hits
        });
    });
    let snapshot = Snapshot::of(Arc::clone(&db.handle), state, seq);
    let found = snapshot.get(&hits.unwrap(), "k").unwrap().unwrap();
    assert_eq!(&found[..], &1u64.to_be_bytes()[..]);
}

/// It read what operands of the transaction build on, one after the other, on the thread of the caller.
#[cfg(feature = "async")]
#[test]
fn a_multi_get_of_a_task_reads_nothing_before_it_is_polled() {
    let volume = Simulated::new(1);
    let db = open(&volume);
    let hits = db.keyspace_with("hits", KeyspaceOptions::new().merge(AddU64)).unwrap();
    hits.ingest((0..50_000u32).map(|number| (number.to_be_bytes(), 5u64.to_be_bytes()))).unwrap();
    drop((hits, db));
    let db = open(&volume);
    let hits = db.keyspace_with("hits", KeyspaceOptions::new().merge(AddU64)).unwrap();
    let mut tx = db.transaction().unwrap();
    let keys: Vec<_> = (0..10u32).map(|number| (number * 5000).to_be_bytes()).collect();
    for key in &keys[..8] {
        tx.merge(&hits, key, 1u64.to_be_bytes()).unwrap();
    }
    tx.remove(&hits, keys[0]).unwrap();
    let reads = volume.counters().reads;
    let waiting = tx.multi_get_async(&hits, &keys);
    assert_eq!(volume.counters().reads, reads);
    let found = futures_executor::block_on(waiting).unwrap();
    assert!(volume.counters().reads > reads);
    let numbers: Vec<_> = found.iter().map(|value| value.as_ref().map(|value| value[7])).collect();
    assert_eq!(numbers, [vec![None], vec![Some(6); 7], vec![Some(5); 2]].concat());
    assert_eq!(tx.multi_get(&hits, &keys).unwrap(), found);
    hits.insert(keys[3], 1u64.to_be_bytes()).unwrap();
    assert!(tx.commit().unwrap_err().is_conflict(), "what operands build on was read");
}

struct Own;

impl MergeOperator for Own {
    fn name(&self) -> &str {
        "own"
    }

    fn apply(&self, value: Option<&[u8]>, operand: &[u8]) -> std::result::Result<Vec<u8>, String> {
        Ok(self.combine(value.unwrap_or_default(), operand))
    }

    fn combine(&self, older: &[u8], newer: &[u8]) -> Vec<u8> {
        [older, b",", newer].concat()
    }
}

#[test]
fn an_own_operator_must_be_told() {
    let volume = Simulated::new(1);
    let db = open(&volume);
    let keyspace = db.keyspace_with("own", KeyspaceOptions::new().merge(Own)).unwrap();
    keyspace.merge("k", "a").unwrap();
    db.flush().unwrap();
    drop((keyspace, db));
    let shared = || Arc::new(volume.clone()) as Arc<dyn Volume>;
    let unknown = Database::builder().memory(4 << 20).background_threads(0).open_on(shared());
    assert!(matches!(unknown, Err(Error::UnknownMergeOperator { operator, .. }) if operator == "own"));
    // What only reads finds what has been merged.
    let reading = || Database::builder().memory(4 << 20).read_only(true).open_on(shared()).unwrap();
    let found = reading().keyspace("own").unwrap().get("k");
    assert!(found.is_ok_and(|value| value.as_deref() == Some(b",a")));
    let builder = Database::builder().memory(4 << 20).background_threads(0).merge_operator(Own);
    let db = builder.open_on(shared()).unwrap();
    let keyspace = db.keyspace("own").unwrap();
    keyspace.merge("k", "b").unwrap();
    assert_eq!(keyspace.get("k").unwrap().as_deref(), Some(&b",a,b"[..]));
    db.sync().unwrap();
    let volume = volume.power_loss(1);
    let crashed =
        Database::builder().memory(4 << 20).read_only(true).open_on(Arc::new(volume) as Arc<dyn Volume>);
    let waits = crashed.unwrap().keyspace("own").unwrap().get("k");
    assert!(matches!(waits, Err(Error::MergeFailed { .. })), "{waits:?}");
}

/// A flush adds what readers have asked for to the cache of single records; an operand is no record.
#[test]
fn operands_that_were_asked_for_are_not_cached_as_records() {
    let volume = Simulated::new(1);
    let db = open(&volume);
    let plain = db.keyspace("plain").unwrap();
    plain.ingest((0..20_000u32).map(|number| (number.to_be_bytes(), [7; 100]))).unwrap();
    let keyspace = appending(&db);
    keyspace.merge("k", "a").unwrap();
    db.flush().unwrap();
    // The cache of records is used from here on.
    for number in (0..20_000u32).step_by(3) {
        assert!(plain.get((number * 7919 % 20_000).to_be_bytes()).unwrap().is_some());
    }
    assert!(db.handle.engine.pager.cache.records().is_used());
    for (operand, expected) in [("b", "ab"), ("c", "abc"), ("d", "abcd")] {
        keyspace.merge("k", operand).unwrap();
        assert_eq!(keyspace.get("k").unwrap().as_deref(), Some(expected.as_bytes()));
        db.flush().unwrap();
        assert_eq!(keyspace.get("k").unwrap().as_deref(), Some(expected.as_bytes()));
    }
}

/// It refused all records behind it, too.
#[test]
fn records_are_ingested_behind_one_that_cannot_be_merged() {
    let db = open(&Simulated::new(1));
    let hits = db.keyspace_with("hits", KeyspaceOptions::new().merge(AddU64)).unwrap();
    hits.insert("b", "no number").unwrap();
    hits.merge("b", 1u64.to_be_bytes()).unwrap();
    assert!(hits.last().is_err() && !hits.is_empty().unwrap());
    assert!(matches!(hits.ingest([("b", 1u64.to_be_bytes())]), Err(Error::NotSorted { .. })));
    assert_eq!(hits.ingest([("c", 1u64.to_be_bytes())]).unwrap(), 1);
    assert_eq!(hits.get("c").unwrap().as_deref(), Some(&1u64.to_be_bytes()[..]));
}
