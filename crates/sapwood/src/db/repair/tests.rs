//! What only shows with little memory: several passes over the data file.

use crate::{Database, EncryptionKey, Keyspace};
use psync::{Access, Fault, FileId, Filter, Lock, LockKind, PassThrough, Read, Repeat, Simulated, Volume};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use super::{Repair, RepairReport};

type Records = BTreeMap<Vec<u8>, Vec<u8>>;

fn open(volume: &Simulated) -> (Database, Keyspace) {
    let builder = Database::builder().memory(4 << 20).leaf_len(512).segment_span(1 << 20);
    let volume: Arc<dyn Volume> = Arc::new(volume.clone());
    let db = builder.background_threads(0).open_on(volume).expect("opens");
    let name = db.keyspaces().first().cloned().unwrap_or_else(|| "main".to_owned());
    let keyspace = db.keyspace(&name).expect("a keyspace");
    (db, keyspace)
}

fn records(keyspace: &Keyspace) -> Records {
    let record = |item: crate::Result<(crate::Key, crate::Value)>| {
        let (key, value) = item.expect("a record");
        (key.to_vec(), value.to_vec())
    };
    keyspace.iter().map(record).collect()
}

/// From now on nothing tells where nodes are in the data file.
fn lose_the_manifest(volume: &Simulated) {
    for entry in volume.list().expect("a list") {
        if entry.name == "CURRENT" || entry.name.starts_with("manifest-") {
            volume.remove_file(&entry.name).expect("removed");
        }
    }
}

fn len_of(volume: &Simulated, file: &str) -> u64 {
    volume.read_file(file).expect("a file").len() as u64
}

#[test]
fn an_index_of_a_part_of_the_nodes_gives_the_same_records() {
    let volume = Simulated::new(1);
    let (db, keyspace) = open(&volume);
    for step in [1u32, 7, 40] {
        let mut batch = db.batch();
        for number in (0..3000u32).step_by(step as usize) {
            match (number / step) % 5 {
                4 if step > 1 => batch.remove(&keyspace, number.to_be_bytes()),
                _ => batch.insert(&keyspace, number.to_be_bytes(), format!("{number} of step {step}")),
            };
        }
        batch.commit().expect("commits");
        db.flush().expect("flushes");
    }
    // So many that they come to the leaves at once; what was put lies in log pieces that are dead.
    let mut batch = db.batch();
    (1..3000u32).step_by(2).for_each(|number| _ = batch.remove(&keyspace, number.to_be_bytes()));
    batch.commit().expect("commits");
    db.flush().expect("flushes");
    db.compact().expect("compacts");
    let before = records(&keyspace);
    drop(keyspace);
    db.close().expect("closes");
    lose_the_manifest(&volume);
    let len = len_of(&volume, "data");
    let mut passes = Vec::new();
    for memory in [64 << 20, 16 << 10, 4 << 10] {
        let (new, mut done) = (Simulated::new(2), 0);
        let repair = Repair::of_volume(Arc::new(volume.clone())).memory(memory).on_progress(|progress| {
            done = progress.done;
            std::ops::ControlFlow::Continue(())
        });
        let report = repair.onto(Arc::new(new.clone())).expect("repairs");
        assert!(report.may_lack_keyspaces && report.has_losses());
        let (db, keyspace) = open(&new);
        assert_eq!(keyspace.name(), "recovered-1");
        let after = records(&keyspace);
        assert!(before.iter().all(|(key, value)| after.get(key) == Some(value)), "{memory} bytes");
        // Few of the 1500 that were removed are back: between leaves nothing says that they are gone.
        assert!(after.len() < before.len() + 50, "{} of {}", after.len(), before.len());
        db.check().expect("sound");
        passes.push(done / len);
    }
    assert!(passes[0] == 2 && passes[1] > 2 && passes[2] > passes[1], "{passes:?}");
}

/// Writes down what a repair does first.
struct Noted(Simulated, Mutex<Vec<String>>);

impl PassThrough for Noted {
    fn inner(&self) -> &dyn Volume {
        &self.0
    }

    fn open(&self, name: &str, access: Access) -> psync::Result<FileId> {
        self.1.lock().expect("one at a time").push(name.to_owned());
        self.0.open(name, access)
    }

    fn lock(&self, kind: LockKind, holder: &str) -> psync::Result<Lock> {
        self.1.lock().expect("one at a time").push("lock".to_owned());
        self.0.lock(kind, holder)
    }
}

/// A writer that ended in between had changed what was read before.
#[test]
fn the_manifest_is_read_behind_the_lock() {
    let volume = Simulated::new(1);
    drop(open(&volume));
    let noted = Arc::new(Noted(volume, Mutex::default()));
    Repair::of_volume(Arc::clone(&noted) as Arc<dyn Volume>)
        .onto(Arc::new(Simulated::new(2)))
        .expect("repairs");
    let noted = noted.1.lock().expect("one at a time");
    assert_eq!(noted.first().map(String::as_str), Some("lock"), "{noted:?}");
}

/// The first steps advised to open again what was not there, and to remove records of it.
#[test]
fn no_error_of_a_repair_takes_the_new_database_for_one_that_is_there() {
    let old: Arc<dyn Volume> = Arc::new(Simulated::new(1));
    let key = EncryptionKey::generate().expect("random bytes");
    let builder = Database::builder().memory(4 << 20).background_threads(0).encryption_key(key.clone());
    let db = builder.open_on(Arc::clone(&old)).expect("opens");
    db.keyspace("main").expect("a keyspace").insert("key", "value").expect("inserts");
    db.close().expect("closes");
    for fault in [Fault::Error, Fault::NoSpace] {
        let mut failed = 0;
        for nth in 1.. {
            let new = Simulated::new(2);
            new.fail_nth(Filter::any(), nth, fault, Repeat::Once);
            let repair = Repair::of_volume(Arc::clone(&old)).encryption_key(key.clone());
            let told = repair.onto(Arc::new(new.clone())).map(drop).map_err(|error| error.to_string());
            if new.fired() == 0 {
                break;
            }
            if let Err(words) = told {
                let is_wrong = words.contains("reopen") || words.contains("removing records");
                assert!(!is_wrong, "{fault:?} at operation {nth}: {words}");
                failed += 1;
            }
        }
        assert!(failed > 10, "{failed} failed");
    }
}

/// A device that cannot read one page of a file, and counts the bytes that are read of it.
struct BadPage {
    inner: Simulated,
    file: &'static str,
    /// The byte at which the page begins.
    at: u64,
    ids: Mutex<Vec<FileId>>,
    bytes: AtomicU64,
}

impl BadPage {
    fn new(inner: Simulated, file: &'static str, at: u64) -> Arc<Self> {
        Arc::new(Self { inner, file, at, ids: Mutex::default(), bytes: AtomicU64::new(0) })
    }
}

impl PassThrough for BadPage {
    fn inner(&self) -> &dyn Volume {
        &self.inner
    }

    fn open(&self, name: &str, access: Access) -> psync::Result<FileId> {
        let id = self.inner.open(name, access)?;
        if name.starts_with(self.file) {
            self.ids.lock().expect("one at a time").push(id);
        }
        Ok(id)
    }

    fn read(&self, set: &mut [Read<'_>]) -> psync::Result<()> {
        let ids = self.ids.lock().expect("one at a time").clone();
        for read in set.iter().filter(|read| ids.contains(&read.file)) {
            let (offset, len) = (read.offset, read.buffer.len() as u64);
            if offset < self.at + PAGE && self.at < offset + len {
                let (file, source) = (self.file.to_owned(), std::io::Error::from_raw_os_error(5));
                return Err(psync::Error::Io { operation: "read", file, offset: Some(offset), source });
            }
            self.bytes.fetch_add(len, Relaxed);
        }
        psync::Device::read(&self.inner, set)
    }
}

const PAGE: u64 = 4096;

fn repaired(volume: &Arc<BadPage>) -> (Simulated, RepairReport) {
    let new = Simulated::new(2);
    let repair = Repair::of_volume(Arc::clone(volume) as Arc<dyn Volume>);
    let report = repair.onto(Arc::new(new.clone())).expect("repairs");
    (new, report)
}

/// A whole window was given up for one page in it: of a log that was shorter, no commit was saved. And what lies behind was neither looked for
/// nor counted; where it was, the whole window was read for each record.
#[test]
fn one_bad_page_of_the_log_costs_what_lies_behind_it() {
    let volume = Simulated::new(1);
    let builder = Database::builder().memory(64 << 20).background_threads(0);
    let db = builder.open_on(Arc::new(volume.clone())).expect("opens");
    let keyspace = db.keyspace("main").expect("a keyspace");
    for number in 0..15_000u32 {
        keyspace.insert(number.to_be_bytes(), [7; 150]).expect("inserts");
    }
    assert_eq!(db.stats().writes.flushes, 0);
    std::mem::forget((db, keyspace));
    let volume = volume.power_loss(1);
    let log = volume.list().expect("a list").into_iter().find(|entry| entry.name.starts_with("wal-"));
    let len = len_of(&volume, &log.expect("a log").name);
    for at in [40 * PAGE, 400 * PAGE] {
        let bad = BadPage::new(volume.clone(), "wal-", at);
        let (new, report) = repaired(&bad);
        let (db, keyspace) = open(&new);
        let saved = records(&keyspace).len() as u64;
        // A record takes some 200 bytes.
        assert!((at / 220..at / 190).contains(&saved), "{saved} before {at}");
        let counted = saved + report.log.operations_left_out;
        assert!((14_900..15_000).contains(&counted), "{counted}: {:?}", report.log);
        let bytes = bad.bytes.load(Relaxed);
        assert!(bytes < 20 * len, "{bytes} of {len}");
        db.check().expect("sound");
    }
}

/// Nothing at all was saved: it could not be told whether the manifest was encrypted. And with that, no keyspace had its name.
#[test]
fn one_bad_page_of_the_manifest_costs_no_names() {
    let volume = Simulated::new(1);
    let (db, keyspace) = open(&volume);
    db.create_keyspaces((0..1000).map(|number| format!("keyspace {number}"))).expect("keyspaces");
    for number in 0..1000u32 {
        keyspace.insert(number.to_be_bytes(), [7; 150]).expect("inserts");
    }
    drop(keyspace);
    db.close().expect("closes");
    let (db, keyspace) = open(&volume);
    for number in 0..200u32 {
        keyspace.insert(number.to_be_bytes(), [8; 150]).expect("inserts");
        db.flush().expect("flushes");
    }
    drop(keyspace);
    db.close().expect("closes");
    let manifest =
        volume.list().expect("a list").into_iter().find(|entry| entry.name.starts_with("manifest-"));
    let len = len_of(&volume, &manifest.expect("a manifest").name);
    assert!(len > 4 * PAGE);
    let (new, report) = repaired(&BadPage::new(volume, "manifest-", (len - 1) / PAGE * PAGE - PAGE));
    assert!(!report.damage.is_empty());
    let (db, _) = open(&new);
    assert_eq!(db.keyspaces().len(), 1001);
    let saved = records(&db.keyspace("main").expect("a keyspace"));
    assert_eq!(saved.len(), 1000);
    db.check().expect("sound");
}

/// All nodes of the mebibyte before it were passed over, and the whole window was read for each node.
#[test]
fn one_bad_page_of_the_data_costs_the_nodes_that_lie_in_it() {
    let volume = Simulated::new(1);
    let (db, keyspace) = open(&volume);
    let rows = (0..40_000u32).map(|number| (number.to_be_bytes(), number.to_be_bytes().repeat(25)));
    keyspace.ingest(rows).expect("ingests");
    let before = records(&keyspace);
    drop(keyspace);
    db.close().expect("closes");
    lose_the_manifest(&volume);
    let len = len_of(&volume, "data");
    for at in [220 * PAGE, 700 * PAGE, len / PAGE * PAGE - 8 * PAGE] {
        let bad = BadPage::new(volume.clone(), "data", at);
        let (new, _) = repaired(&bad);
        let (db, keyspace) = open(&new);
        let after = records(&keyspace);
        // A page has some 40 records, and cuts two nodes.
        assert!(before.len() - after.len() < 100, "{} of {}", after.len(), before.len());
        let bytes = bad.bytes.load(Relaxed);
        assert!(bytes < 12 * len, "{bytes} of {len}");
        db.check().expect("sound");
    }
}
