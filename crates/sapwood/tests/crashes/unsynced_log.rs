//! A queue that goes to the trees with one edit has a log that was never synced, as in a sorted load. What must hold all the
//! same: after a power loss at any operation there is a prefix of the batches, with all that was promised, also when durable
//! commits come while such a log is still needed.

use crate::scenario;
use psync::{Fault, Filter, OperationKind, Repeat, Simulated, Volume};
use sapwood::{Database, Durability, Error};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Records of a batch, and bytes of a value.
const BATCH: u32 = 25;
const VALUE: usize = 1000;
/// Batches of a load: enough for three flushes.
const BATCHES: u32 = 110;

#[derive(Clone, Copy, Debug)]
struct Shape {
    /// With short leaves the list of them is too long for one edit, and a flush has portions.
    leaf_len: usize,
    background: usize,
    /// Every so many commits one is durable.
    durable: u32,
    /// From this batch on so many writes of data find no space, so that a queue stays frozen.
    full: Option<(u32, u64)>,
}

impl Shape {
    fn open(&self, volume: &Simulated) -> sapwood::Result<Database> {
        let volume: Arc<dyn Volume> = Arc::new(volume.clone());
        scenario::plain_options().leaf_len(self.leaf_len).background_threads(self.background).open_on(volume)
    }
}

fn key(number: u32) -> [u8; 8] {
    *format!("{number:08}").as_bytes().first_chunk().expect("eight digits")
}

fn data_writes() -> Filter {
    Filter::kinds([OperationKind::Write]).file("data")
}

fn value(number: u32) -> Vec<u8> {
    number.to_le_bytes().repeat(VALUE / 4)
}

/// Loads in the order of keys, as far as it gets. Keeps in `durable` how many batches are promised to be there.
fn load(volume: &Simulated, shape: Shape, durable: &AtomicU64) -> Result<Database, Error> {
    let db = shape.open(volume)?;
    let keyspace = db.keyspace("main")?;
    for number in 0..BATCHES {
        for nth in 1..=shape.full.filter(|full| full.0 == number).map_or(0, |full| full.1) {
            volume.fail_nth(data_writes(), nth, Fault::NoSpace, Repeat::Once);
        }
        let mut batch = db.batch();
        for record in number * BATCH..(number + 1) * BATCH {
            batch.insert(&keyspace, key(record), value(record));
        }
        let is_durable = number % shape.durable == shape.durable - 1;
        let durability = if is_durable { Durability::Immediate } else { Durability::Buffered };
        batch.durability(durability).commit()?;
        if is_durable {
            durable.store(u64::from(number) + 1, Ordering::SeqCst);
        }
    }
    Ok(db)
}

/// What is found is a prefix of whole batches, `at_least` so many. Says how many.
fn verify(image: &Simulated, shape: Shape, at_least: u64, story: &str) -> u64 {
    let db = shape.open(image).unwrap_or_else(|error| panic!("{story}: {error}"));
    let keyspace = db.keyspace("main").expect("there, or new");
    let mut records = 0;
    for item in keyspace.iter() {
        let (found, content) = item.unwrap_or_else(|error| panic!("{story}: {error}"));
        assert_eq!(found[..], key(records)[..], "{story}: a record is missing, and later ones are there");
        assert_eq!(content[..], value(records)[..], "{story}: record {records} is another");
        records += 1;
    }
    assert_eq!(records % BATCH, 0, "{story}: a batch is half there");
    let batches = u64::from(records / BATCH);
    assert!(batches >= at_least, "{story}: {at_least} batches were promised, {batches} are there");
    db.check().unwrap_or_else(|error| panic!("{story}: {error:?}"));
    batches
}

#[test]
fn after_a_power_loss_at_any_operation_there_is_a_prefix_with_all_that_was_promised() {
    let mut points = 0;
    let shapes = [
        Shape { leaf_len: 4096, background: 0, durable: u32::MAX, full: None },
        Shape { leaf_len: 4096, background: 0, durable: 23, full: Some((30, 30)) },
        Shape { leaf_len: 512, background: 0, durable: 40, full: None },
        Shape { leaf_len: 4096, background: 1, durable: 17, full: None },
        Shape { leaf_len: 4096, background: 1, durable: 30, full: Some((25, 3)) },
    ];
    for shape in shapes {
        for nth in (1..).step_by(4) {
            let (volume, durable) = (scenario::volume(nth), AtomicU64::new(0));
            volume.fail_nth(Filter::changes(), nth, Fault::PowerOff, Repeat::Once);
            drop(load(&volume, shape, &durable));
            if !volume.is_off() {
                break;
            }
            for image in 0..2 {
                let story = format!("{shape:?}, off at operation {nth}, image {image}");
                let found = volume.power_loss(nth * 10 + image);
                verify(&found, shape, durable.load(Ordering::SeqCst), &story);
                points += 1;
            }
        }
    }
    println!("{points} points");
    assert!(points > 400, "{points} points");
}

/// The operating system has lost a part of the unsynced log that is still needed, and tells whoever syncs it next.
#[test]
fn a_durable_commit_fails_if_the_log_before_it_was_lost() {
    let shape = Shape { leaf_len: 4096, background: 0, durable: u32::MAX, full: None };
    let volume = Simulated::new(1);
    let db = shape.open(&volume).expect("opens");
    let keyspace = db.keyspace("main").expect("a keyspace");
    volume.fail_nth(data_writes(), 1, Fault::NoSpace, Repeat::Sticky);
    let mut number = 0;
    let mut put = |durability| {
        number += 1;
        let mut batch = db.batch();
        batch.insert(&keyspace, key(number), value(number));
        batch.durability(durability).commit()
    };
    while db.stats().writes.changes_queued < 800 {
        put(Durability::Buffered).expect("commits");
    }
    let names: Vec<_> = volume.list().expect("a list").into_iter().map(|entry| entry.name).collect();
    assert!(names.iter().any(|name| name == "wal-0000000002"), "a queue is frozen: {names:?}");
    volume.fail_nth(
        Filter::kinds([OperationKind::Sync]).file("wal-0000000001"),
        1,
        Fault::Error,
        Repeat::Once,
    );
    put(Durability::Immediate).expect_err("what came before it is not durable");
    put(Durability::Buffered).expect_err("nobody knows what is on the disk");
}

/// What a sorted load writes once, when the log is not counted: whoever wants nothing durable before the end never syncs it.
#[test]
fn a_sorted_load_never_syncs_its_log() {
    let shape = Shape { leaf_len: 4096, background: 0, durable: u32::MAX, full: None };
    let (volume, durable) = (Simulated::new(1), AtomicU64::new(0));
    let db = load(&volume, shape, &durable).expect("loads");
    let writes = db.stats().writes;
    assert!(writes.flushes >= 3 && writes.portions == writes.flushes, "{writes:?}");
    // A file and its name when it is begun.
    assert!(writes.log_syncs <= 2 * (writes.flushes + 1), "{writes:?}");
}
