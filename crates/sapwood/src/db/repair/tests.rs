//! What only shows with little memory: several passes over the data file.

use crate::{Database, EncryptionKey, Keyspace};
use psync::{Access, Fault, FileId, Filter, Lock, LockKind, PassThrough, Repeat, Simulated, Volume};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::Repair;

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
    for entry in volume.list().expect("a list") {
        if entry.name == "CURRENT" || entry.name.starts_with("manifest-") {
            volume.remove_file(&entry.name).expect("removed");
        }
    }
    let len = volume.read_file("data").expect("data").len() as u64;
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
