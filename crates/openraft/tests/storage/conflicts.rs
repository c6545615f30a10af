//! Commands that take long, while others write to the same database.

use crate::ground::{self, id};
use openraft::storage::RaftStateMachine;
use openraft::{Entry, EntryPayload};
use sapwood::psync::Simulated;
use sapwood::{KeyspaceOptions, Result};
use sapwood_openraft::{Apply, Machine, Store};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

openraft::declare_raft_types!(
    Config:
        D = u64,
        R = u64,
        SnapshotData = sapwood_openraft::SnapshotFile,
);

/// The number that takes long to add.
const SLOW: u64 = 5;

/// Adds to a sum, and waits for a word between reading it and writing [`SLOW`] more, the first times.
struct Slow {
    waits: usize,
    calls: Arc<AtomicUsize>,
    has_read: SyncSender<()>,
    may_write: Mutex<Receiver<()>>,
}

impl Machine for Slow {
    type Command = u64;
    type Answer = u64;

    fn keyspaces(&self) -> Vec<(String, KeyspaceOptions)> {
        vec![("sums".into(), KeyspaceOptions::new())]
    }

    fn apply(&self, at: &mut Apply<'_>, more: u64) -> Result<u64> {
        let sums = &at.keyspaces[0];
        let before = at.transaction.get(sums, "sum")?;
        let before = before.and_then(|sum| sum.first_chunk().copied()).map_or(0, u64::from_be_bytes);
        if more == SLOW && self.calls.fetch_add(1, SeqCst) < self.waits {
            self.has_read.send(()).expect("someone waits for it");
            self.may_write.lock().expect("sound").recv().expect("someone says so");
        }
        at.transaction.insert(sums, "sum", (before + more).to_be_bytes())?;
        Ok(before + more)
    }

    fn without_command(&self) -> u64 {
        0
    }
}

/// Others write more keys than the history of commits keeps: what the command has read cannot be told to be unchanged then.
#[test]
fn a_command_that_takes_longer_than_the_history_is_applied_again() {
    const WAITS: usize = 3;
    let (volume, directory) = (Simulated::new(1), ground::directory());
    let db = ground::open_on(&volume, 2).expect("opens");
    let store = Store::open(&db, directory.path()).expect("a store");
    let (has_read, is_read) = sync_channel(0);
    let (may_write, waiting) = sync_channel(0);
    let calls = Arc::new(AtomicUsize::new(0));
    let slow = Slow { waits: WAITS, calls: Arc::clone(&calls), has_read, may_write: Mutex::new(waiting) };
    let (_log, mut machine) = store.group::<Config, _>(1, slow).expect("a group");
    let other = db.keyspace("other").expect("a keyspace");
    let writer = std::thread::spawn(move || {
        while is_read.recv().is_ok() {
            for part in 0..40u32 {
                let mut batch = db.batch();
                for number in 0..1000 {
                    batch.insert(&other, (part * 1000 + number).to_be_bytes(), "v");
                }
                batch.commit().expect("commits");
            }
            may_write.send(()).expect("it waits");
        }
    });
    let entry = |(index, more)| Entry { log_id: id(1, index), payload: EntryPayload::Normal(more) };
    let answers = ground::run(machine.apply((1..).zip([1, SLOW, 7]).map(entry))).expect("applies");
    assert_eq!(answers, [1, 6, 13]);
    assert_eq!(calls.load(SeqCst), WAITS + 1, "it conflicts as often");
    assert_eq!(ground::run(machine.applied_state()).expect("reads").0, Some(id(1, 3)));
    drop(machine);
    writer.join().expect("no panic");
}
