//! A workload whose every state is known: each batch also writes its number, so that whatever is found after a crash
//! can be compared with the state after exactly that batch.

use psync::{Simulated, Volume};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::merge::Append;
use sapwood::{
    Builder, Compression, Database, Durability, EncryptionKey, Error, Expiry, Keyspace, KeyspaceOptions,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub type Contents = BTreeMap<Vec<u8>, Vec<u8>>;
/// Values, and when they expire (0: never).
type Stored = BTreeMap<Vec<u8>, (Vec<u8>, u64)>;
const COUNTER: &[u8] = b"!counter";

thread_local! {
    /// The time of the databases that this thread opens, in milliseconds: it goes on with the thread's last workload, so that a seed makes
    /// the same happen each time.
    static TIME: RefCell<Arc<AtomicU64>> = RefCell::default();
    /// Whether they are encrypted.
    static ENCRYPTED: Cell<bool> = const { Cell::new(false) };
}

fn at(millis: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(millis)
}

/// Options that make everything happen often: tiny leaves, little memory, flushes within the commits.
pub fn options() -> Builder {
    let builder = Database::builder().memory(4 << 20).leaf_len(512).segment_span(1 << 20);
    let time = TIME.with_borrow(Arc::clone);
    let builder = builder.clock(move || at(time.load(Ordering::SeqCst))).background_threads(0);
    if ENCRYPTED.get() { builder.encryption_key(EncryptionKey::from_bytes([7; 32])) } else { builder }
}

/// The same for tests that count on what records take: their values are alike, and compress to next to nothing.
pub fn plain_options() -> Builder {
    options().compression(Compression::None)
}

/// A volume on which every second seed has windows to store to.
pub fn volume(seed: u64) -> Simulated {
    let volume = Simulated::new(seed);
    if seed.is_multiple_of(2) { volume } else { volume.with_windows() }
}

/// The same, with [`plain_options`].
pub fn open_plain(volume: &Simulated) -> sapwood::Result<Database> {
    plain_options().open_on(Arc::new(volume.clone()) as Arc<dyn Volume>)
}

pub fn open(volume: &Simulated) -> sapwood::Result<Database> {
    let volume: Arc<dyn Volume> = Arc::new(volume.clone());
    options().open_on(volume)
}

#[derive(Clone, Debug)]
enum Change {
    Insert(Vec<u8>, Vec<u8>, u64),
    Remove(Vec<u8>),
    RemoveRange(Vec<u8>, Vec<u8>),
    /// What is appended.
    Merge(Vec<u8>, Vec<u8>),
}

/// What was done, and what was promised.
pub struct Workload {
    rng: StdRng,
    /// Of its databases, in milliseconds, also of those in other threads whose options this one has made.
    pub time: Arc<AtomicU64>,
    /// Only flushes make anything durable, so that the log is stored to: between frequent syncs it is written.
    unsynced: bool,
    keys: u32,
    value_max: usize,
    /// Whether records expire.
    expires: bool,
    /// Whether operands are merged into records.
    merges: bool,
    compression: Compression,
    base: (u64, Stored),
    batches: Vec<Vec<Change>>,
    /// Batches up to this one must survive a power loss.
    pub durable: u64,
    /// Batches up to this one must survive the death of the process.
    pub written: u64,
    /// Batches up to this one were acknowledged.
    pub acknowledged: u64,
    /// Follows `durable`, for whoever watches from another thread.
    pub watched: Arc<AtomicU64>,
}

impl Workload {
    pub fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let time = Arc::new(AtomicU64::new(1_000_000));
        TIME.set(Arc::clone(&time));
        ENCRYPTED.set(seed % 5 == 4);
        let (keys, value_max) = match rng.random_range(0..20) {
            // Values so large that segments fill, die and are collected.
            0..3 => (200, 12_000),
            // So many keys that changes are sparse, and gather in log areas.
            3..9 => (rng.random_range(400..3000), 100),
            _ => (rng.random_range(1..400), 100),
        };
        Self {
            rng,
            time,
            unsynced: seed.is_multiple_of(3),
            keys,
            value_max,
            expires: seed % 4 < 2,
            merges: seed % 4 == 2,
            compression: match seed / 4 % 4 {
                0 => Compression::Lz4,
                1 => Compression::ZstdDictionary { level: 1 },
                _ => Compression::None,
            },
            base: (0, Stored::new()),
            batches: Vec::new(),
            durable: 0,
            written: 0,
            acknowledged: 0,
            watched: Arc::default(),
        }
    }

    /// Goes on after a recovery that found the contents after batch `number`.
    pub fn resume(&mut self, number: u64) {
        self.base = (number, self.stored(number));
        self.batches.clear();
        self.durable = number;
        self.written = number;
        self.acknowledged = number;
    }

    fn next_number(&self) -> u64 {
        self.base.0 + self.batches.len() as u64 + 1
    }

    /// The keyspace, which may have been created by whoever looked at the database first.
    fn keyspace(&self, db: &Database) -> Result<Keyspace, Error> {
        let options = KeyspaceOptions::new();
        let options = if self.expires {
            options.expiring()
        } else if self.merges {
            options.merge(Append)
        } else {
            options
        };
        db.keyspace_with("main", options.compression(self.compression))
    }

    /// Runs `steps` steps, or until one fails. Returns the failure.
    pub fn run(&mut self, db: &Database, steps: usize) -> Result<(), Error> {
        let keyspace = self.keyspace(db)?;
        for _ in 0..steps {
            self.time.fetch_add(u64::from(self.expires) * 100, Ordering::SeqCst);
            match self.rng.random_range(0..20) {
                0 => {
                    db.flush()?;
                    self.durable = self.acknowledged;
                    self.written = self.acknowledged;
                }
                1 if !self.unsynced => {
                    db.sync()?;
                    self.durable = self.acknowledged;
                    self.written = self.acknowledged;
                }
                _ => self.commit(db, &keyspace)?,
            }
            self.watched.store(self.durable, Ordering::SeqCst);
        }
        Ok(())
    }

    fn commit(&mut self, db: &Database, keyspace: &sapwood::Keyspace) -> Result<(), Error> {
        let number = self.next_number();
        let mut batch = db.batch();
        let mut changes = Vec::new();
        for _ in 0..self.rng.random_range(1..12) {
            let key = format!("key{:05}", self.rng.random_range(0..self.keys)).into_bytes();
            if self.rng.random_bool(0.01) {
                let len = self.rng.random_range(1..self.keys.max(2));
                let end = format!("key{:05}", self.rng.random_range(0..self.keys) + len).into_bytes();
                batch.remove_range(keyspace, &key..&end);
                changes.push(Change::RemoveRange(key, end));
            } else if self.rng.random_bool(0.25) {
                batch.remove(keyspace, &key);
                changes.push(Change::Remove(key));
            } else if self.merges && self.rng.random_bool(0.6) {
                let operand = vec![self.rng.random(); self.rng.random_range(0..self.value_max / 4)];
                batch.merge(keyspace, &key, &operand);
                changes.push(Change::Merge(key, operand));
            } else {
                let (byte, len) = (self.rng.random::<u8>(), self.rng.random_range(0..self.value_max));
                let value = match self.compression {
                    // Of something that dictionaries can be made of.
                    Compression::ZstdDictionary { .. } => format!("{byte} of {} and so on; ", byte % 16)
                        .into_bytes()
                        .into_iter()
                        .cycle()
                        .take(len)
                        .collect(),
                    _ => vec![byte; len],
                };
                if self.expires && self.rng.random_bool(0.5) {
                    let time = self.time.load(Ordering::SeqCst) + self.rng.random_range(0..10_000);
                    batch.insert_expiring(keyspace, &key, &value, Expiry::At(at(time)));
                    changes.push(Change::Insert(key, value, time));
                } else {
                    batch.insert(keyspace, &key, &value);
                    changes.push(Change::Insert(key, value, 0));
                }
            }
        }
        batch.insert(keyspace, COUNTER, number.to_le_bytes());
        changes.push(Change::Insert(COUNTER.to_vec(), number.to_le_bytes().to_vec(), 0));
        let mut durability =
            [Durability::Immediate, Durability::Buffered, Durability::None][self.rng.random_range(0..3)];
        if self.unsynced {
            durability = durability.min(Durability::Buffered);
        }
        // Also a commit that fails may have happened (unless it failed for want of space), so it counts as issued.
        let result = batch.durability(durability).commit();
        if result.as_ref().is_err_and(Error::is_disk_full) {
            return result;
        }
        self.batches.push(changes);
        result?;
        self.acknowledged = number;
        if durability >= Durability::Buffered {
            self.written = number;
        }
        if durability == Durability::Immediate {
            self.durable = number;
        }
        Ok(())
    }

    /// The last batch that was tried.
    pub fn issued(&self) -> u64 {
        self.next_number() - 1
    }

    /// The contents after batch `number`, without what has expired.
    pub fn contents(&self, number: u64) -> Contents {
        let (stored, now) = (self.stored(number).into_iter(), self.time.load(Ordering::SeqCst));
        let alive = stored.filter(|(_, (_, expires))| *expires == 0 || *expires > now);
        alive.map(|(key, (value, _))| (key, value)).collect()
    }

    /// How many of them expire, but have not.
    pub fn expiring(&self, number: u64) -> usize {
        let now = self.time.load(Ordering::SeqCst);
        self.stored(number).values().filter(|(_, expires)| *expires > now).count()
    }

    fn stored(&self, number: u64) -> Stored {
        let mut contents = self.base.1.clone();
        for changes in &self.batches[..(number - self.base.0) as usize] {
            for change in changes {
                match change {
                    Change::Insert(key, value, expires) => {
                        contents.insert(key.clone(), (value.clone(), *expires));
                    }
                    Change::Remove(key) => _ = contents.remove(key),
                    Change::Merge(key, operand) => {
                        contents.entry(key.clone()).or_default().0.extend_from_slice(operand);
                    }
                    Change::RemoveRange(from, to) => contents.retain(|key, _| key < from || key >= to),
                }
            }
        }
        contents
    }

    /// Checks a database that was opened after a crash: it holds exactly the state after some batch that is not older
    /// than `at_least`. Returns which, and the state.
    pub fn verify(&self, db: &Database, at_least: u64, story: &str) -> (u64, Contents) {
        let keyspace = self.keyspace(db).expect("the keyspace was created before the crash or now");
        let found: Contents = keyspace
            .iter()
            .map(|item| {
                item.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap_or_else(|error| panic!("{story}: {error}"))
            })
            .collect();
        let number =
            found.get(COUNTER).map_or(0, |bytes| u64::from_le_bytes(bytes[..].try_into().expect("8 bytes")));
        assert!(number >= at_least, "{story}: batch {at_least} was acknowledged, but only {number} is there");
        assert!(number < self.next_number(), "{story}: batch {number} was never issued");
        assert!(
            number >= self.base.0,
            "{story}: batch {number} is from before the last recovery at {}",
            self.base.0
        );
        let expected = self.contents(number);
        if found != expected {
            let lost = expected.iter().filter(|(k, v)| found.get(*k) != Some(v)).count();
            let extra = found.keys().filter(|k| !expected.contains_key(*k)).count();
            panic!(
                "{story}: after batch {number} {lost} of {} records differ, {extra} are extra",
                expected.len()
            );
        }
        db.check().unwrap_or_else(|error| panic!("{story}: {error:?}"));
        (number, found)
    }
}
