//! A random database with keyspaces of all kinds, and the history of each of its keys.

use psync::{Simulated, Volume};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::merge::AddU64;
use sapwood::repair::{Loss, Repair, RepairReport};
use sapwood::{
    Builder, Compression, Database, Durability, EncryptionKey, Error, Expiry, Keyspace, KeyspaceOptions,
};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

/// What a key was, one after the other; the last is what it is. Counters and large values have all totals and lengths too.
pub type History = BTreeMap<(&'static str, Vec<u8>), Vec<Option<Vec<u8>>>>;

pub const KEYSPACES: [&str; 4] = ["plain", "packed", "sessions", "counts"];
pub const FILMS: &str = "films";

thread_local! {
    /// Whether the databases of this thread's world are encrypted.
    static ENCRYPTED: Cell<bool> = const { Cell::new(false) };
}

fn key() -> Option<EncryptionKey> {
    ENCRYPTED.get().then(|| EncryptionKey::from_bytes([7; 32]))
}

/// Tiny leaves, so that trees are high; little memory.
pub fn options() -> Builder {
    let builder = Database::builder().memory(4 << 20).leaf_len(512).segment_span(1 << 20);
    let builder = builder.compression(Compression::None);
    key().into_iter().fold(builder.background_threads(0), |builder, key| builder.encryption_key(key))
}

pub fn open(volume: &Simulated) -> sapwood::Result<Database> {
    options().open_on(Arc::new(volume.clone()) as Arc<dyn Volume>)
}

pub struct World {
    pub volume: Simulated,
    pub history: History,
    rng: StdRng,
    keys: u32,
}

/// What is to be in the database.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Keys that a keyspace may have (count).
    pub keys: u32,
    pub rounds: usize,
    /// Batches between flushes (count).
    pub batches: usize,
    pub has_films: bool,
    /// Whether it is closed at the end.
    pub is_closed: bool,
    pub is_encrypted: bool,
}

fn opened(db: &Database, name: &str) -> Keyspace {
    let options = KeyspaceOptions::new();
    let options = match name {
        "packed" => options.compression(Compression::ZstdDictionary { level: 1 }),
        "sessions" => options.expiring().compression(Compression::Lz4),
        "counts" => options.merge(AddU64),
        _ => options,
    };
    db.keyspace_with(name, options).expect("a keyspace")
}

impl World {
    pub fn new(seed: u64, shape: Shape) -> Self {
        ENCRYPTED.set(shape.is_encrypted);
        let (volume, rng) = (Simulated::new(seed), StdRng::seed_from_u64(seed));
        let mut world = Self { volume, history: History::new(), rng, keys: shape.keys };
        for round in 0..shape.rounds {
            let db = open(&world.volume).expect("opens");
            world.round(&db, shape);
            if round + 1 < shape.rounds || shape.is_closed {
                db.close().expect("closes");
            } else {
                world.volume = world.volume.crash();
                std::mem::forget(db);
            }
        }
        world
    }

    fn round(&mut self, db: &Database, shape: Shape) {
        let keyspaces: Vec<_> = KEYSPACES.iter().map(|name| (*name, opened(db, name))).collect();
        for number in 0..shape.batches {
            let mut batch = db.batch();
            for _ in 0..self.rng.random_range(1..300) {
                let (name, keyspace) = &keyspaces[self.rng.random_range(0..keyspaces.len())];
                self.change(&mut batch, (name, keyspace));
            }
            batch.durability(Durability::Immediate).commit().expect("commits");
            if number % 7 == 6 {
                db.flush().expect("flushes");
            }
        }
        if shape.has_films {
            self.films(db);
        }
    }

    fn note(&mut self, name: &'static str, key: &[u8], value: Option<Vec<u8>>) {
        self.history.entry((name, key.to_vec())).or_insert_with(|| vec![None]).push(value);
    }

    fn current(&self, name: &'static str, key: &[u8]) -> Option<Vec<u8>> {
        self.history.get(&(name, key.to_vec())).and_then(|history| history.last().cloned().flatten())
    }

    fn change(&mut self, batch: &mut sapwood::Batch, (name, keyspace): (&'static str, &Keyspace)) {
        let number = self.rng.random_range(0..self.keys);
        let key = number.to_be_bytes();
        if self.rng.random_range(0..6) == 0 {
            batch.remove(keyspace, key);
            return self.note(name, &key, None);
        }
        let text = format!("value {} of {number}, ", self.rng.random_range(0..1u32 << 30));
        let times = if self.rng.random_range(0..40) == 0 { 30 } else { self.rng.random_range(1..4) };
        match name {
            "counts" => {
                let by = self.rng.random_range(1..1u64 << 40);
                let total = self
                    .current(name, &key)
                    .map_or(0, |old| u64::from_be_bytes(old.try_into().expect("8 bytes")));
                batch.merge(keyspace, key, by.to_be_bytes());
                self.note(name, &key, Some((total + by).to_be_bytes().to_vec()));
            }
            "sessions" => {
                let expiry = Expiry::After(Duration::from_secs(1 << 30));
                batch.insert_expiring(keyspace, key, text.repeat(times), expiry);
                self.note(name, &key, Some(text.repeat(times).into()));
            }
            _ => {
                batch.insert(keyspace, key, text.repeat(times));
                self.note(name, &key, Some(text.repeat(times).into()));
            }
        }
    }

    fn films(&mut self, db: &Database) {
        let films = db.large_values(FILMS).expect("large values");
        for _ in 0..3 {
            let key = [self.rng.random_range(0..4u8)];
            let len = [100, 70_000, 200_000, 300_000][self.rng.random_range(0..4)];
            let seed = self.rng.random::<u64>();
            let mut value = vec![0; len];
            StdRng::seed_from_u64(seed).fill(&mut value[..]);
            films.insert(key, &value).expect("inserts");
            self.note(FILMS, &key, Some(value));
        }
    }

    pub fn image(&self) -> Simulated {
        self.volume.crash()
    }
}

/// What a repair made of an image.
pub struct Repaired {
    pub volume: Simulated,
    pub report: RepairReport,
}

pub fn repair(image: &Simulated) -> Result<Repaired, Error> {
    let before = files(image);
    let volume = Simulated::new(77);
    let repair = Repair::of_volume(Arc::new(image.clone())).memory(4 << 20);
    let repair = key().into_iter().fold(repair, |repair, key| repair.encryption_key(key));
    let report = repair.onto(Arc::new(volume.clone()))?;
    assert!(files(image) == before, "the damaged database was changed");
    Ok(Repaired { volume, report })
}

fn files(volume: &Simulated) -> Vec<(String, Vec<u8>)> {
    let entries = volume.list().expect("a list");
    let names = entries.into_iter().map(|entry| entry.name).filter(|name| name != "LOCK");
    names.map(|name| (name.clone(), volume.read_file(&name).expect("a file"))).collect()
}

/// How much is listed, and how much is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    pub keys: usize,
    pub listed: usize,
    pub differ: usize,
}

impl Repaired {
    /// Checks the new database, and compares it with the history. Outside of listed ranges all is as it was last; unless commits were
    /// not finished, which only counts if `is_strict` is not set.
    pub fn compare(&self, history: &History, is_strict: bool, context: &str) -> Counted {
        let db = open(&self.volume).unwrap_or_else(|error| panic!("{context}: {error}\n{:?}", self.report));
        db.check().unwrap_or_else(|error| panic!("{context}: {error}\n{:?}", self.report));
        let mut found: BTreeMap<(&'static str, Vec<u8>), Vec<u8>> = BTreeMap::new();
        for name in KEYSPACES {
            let Some(keyspace) = db.keyspace_if_exists(name).expect("a keyspace or none") else { continue };
            for item in keyspace.iter() {
                let (key, value) = item.unwrap_or_else(|error| panic!("{context}: {name}: {error}"));
                found.insert((name, key.to_vec()), value.to_vec());
            }
        }
        if db.contains_keyspace(FILMS) {
            let films = db.large_values(FILMS).expect("large values");
            for item in films.range(..) {
                let (key, _) = item.expect("a key");
                let mut value = Vec::new();
                let mut reader = films.get_reader(&key).expect("a reader").expect("a value");
                reader.read_to_end(&mut value).expect("a whole value");
                found.insert((FILMS, key.to_vec()), value);
            }
        }
        let known = self.report.keyspaces.iter().map(|keyspace| keyspace.name.as_str());
        let names: Vec<_> = known.collect();
        let mut counted = Counted { keys: history.len(), ..Counted::default() };
        for key in found.keys() {
            assert!(history.contains_key(key), "{context}: {key:?} was never there");
        }
        for ((name, key), values) in history {
            let (is, last) = (found.get(&(*name, key.clone())).cloned(), values.last().expect("a value"));
            let listed: Vec<_> = self.report.lost_of(name, key).collect();
            counted.listed += usize::from(!listed.is_empty());
            counted.differ += usize::from(is != *last);
            let once = is.is_none() || values.contains(&is);
            if *last == is {
                continue;
            }
            let is_gone = self.report.may_lack_keyspaces && !names.contains(name);
            assert!(
                !is_strict || !listed.is_empty() || is_gone,
                "{context}: {name} {key:?} is {is:?}, was {last:?}\n{:#?}",
                self.report
            );
            assert!(once, "{context}: {name} {key:?} is {is:?}, and never was\n{:#?}", self.report);
            if is_strict && listed.iter().all(|range| range.loss == Loss::Missing) && !is_gone {
                assert!(is.is_none(), "{context}: {name} {key:?} is an older one\n{:#?}", self.report);
            }
        }
        counted
    }
}
