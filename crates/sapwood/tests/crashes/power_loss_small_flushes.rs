//! Power loss among many small flushes, each of them one edit and its log never synced, while commits that are durable at once
//! and others come by turns, to several keyspaces in each batch, and log areas are cleansed and segments collected. What holds at
//! every point: durable commits that returned are there, each batch is whole in all keyspaces, and what is there is a prefix.
//!
//! More of it: `SMALL_FLUSHES_LIVES=20000 cargo test -p sapwood --test crashes small_flushes::`. To replay one life of those without a
//! second thread: `SMALL_FLUSHES_SEED=<seed>`.

use crate::scenario;
use psync::{Fault, Filter, OperationKind, Repeat, Simulated, Volume};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Batch, Database, Durability, Error, Keyspace};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

const KEYSPACES: [&str; 3] = ["counted", "large", "third"];
const COUNTER: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Shape {
    background: usize,
    /// Whether another thread asks for flushes, at any time, or the one that commits, in between.
    is_flushed_beside: bool,
    /// Keys of a keyspace.
    keys: u32,
    /// Bytes of a value of the second keyspace.
    large: u32,
    /// Whether flushes find no space now and then, so that commits go on beside a frozen queue.
    is_short: bool,
}

const SHAPES: [Shape; 5] = [
    Shape { background: 0, is_flushed_beside: false, keys: 900, large: 100, is_short: false },
    Shape { background: 0, is_flushed_beside: false, keys: 400, large: 8000, is_short: false },
    Shape { background: 1, is_flushed_beside: false, keys: 400, large: 8000, is_short: false },
    Shape { background: 1, is_flushed_beside: true, keys: 800, large: 3000, is_short: false },
    Shape { background: 0, is_flushed_beside: false, keys: 600, large: 1000, is_short: true },
];

impl Shape {
    fn open(&self, volume: &Simulated) -> Result<Opened, Error> {
        let volume: Arc<dyn Volume> = Arc::new(volume.clone());
        let db = scenario::plain_options().background_threads(self.background).open_on(volume)?;
        let keyspaces = KEYSPACES.iter().map(|name| db.keyspace(name)).collect::<Result<_, _>>()?;
        Ok(Opened { db, keyspaces })
    }
}

struct Opened {
    db: Database,
    keyspaces: Vec<Keyspace>,
}

/// A value is the number of the batch that wrote it, and as many bytes of it as the value is long.
type Content = BTreeMap<(usize, u32), (u64, u32)>;
type Change = ((usize, u32), Option<(u64, u32)>);

fn key(number: u32) -> Vec<u8> {
    format!("{number:010}").into_bytes()
}

fn value((number, len): (u64, u32)) -> Vec<u8> {
    let mut value = number.to_le_bytes().to_vec();
    value.resize(len as usize, number as u8);
    value
}

#[derive(Clone)]
struct Model {
    shape: Shape,
    rng: StdRng,
    /// What is there after batch `from`, and the batches behind it.
    content: Content,
    from: u64,
    batches: Vec<Vec<Change>>,
}

impl Model {
    fn apply(content: &mut Content, changes: &[Change]) {
        for (at, change) in changes {
            match change {
                Some(value) => content.insert(*at, *value),
                None => content.remove(at),
            };
        }
    }

    /// The next batch, which counts as issued whatever becomes of it.
    fn next(&mut self, opened: &Opened) -> (Batch, u64) {
        let number = self.from + self.batches.len() as u64 + 1;
        let mut batch = opened.db.batch();
        let mut changes = vec![((0, COUNTER), Some((number, 8)))];
        for _ in 0..self.rng.random_range(1..8) {
            let keyspace = self.rng.random_range(0..KEYSPACES.len());
            // Some records stay where they are, among others that die: what a collector is for.
            let keys = if self.rng.random_bool(0.85) { self.shape.keys / 8 } else { self.shape.keys };
            let key = self.rng.random_range(0..keys);
            let len_max = if keyspace == 1 { self.shape.large } else { 100 };
            let len = self.rng.random_range(8..=len_max);
            changes.push(((keyspace, key), self.rng.random_bool(0.85).then_some((number, len))));
        }
        for ((keyspace, at), change) in &changes {
            match change {
                Some(content) => batch.insert(&opened.keyspaces[*keyspace], key(*at), value(*content)),
                None => batch.remove(&opened.keyspaces[*keyspace], key(*at)),
            };
        }
        self.batches.push(changes);
        (batch, number)
    }

    /// Commits until the power goes, and keeps in `durable` what is promised.
    fn commit(
        &mut self,
        volume: &Simulated,
        opened: &Opened,
        commits: u32,
        seen: &Seen,
    ) -> Result<(), Error> {
        let mut to_flush = 1;
        for _ in 0..commits {
            let (mut batch, number) = self.next(opened);
            let durability =
                [Durability::Immediate, Durability::Buffered, Durability::Buffered, Durability::None]
                    [self.rng.random_range(0..4)];
            batch.durability(durability).commit()?;
            seen.acknowledged.store(number, SeqCst);
            if durability == Durability::Immediate {
                seen.durable.fetch_max(number, SeqCst);
            }
            to_flush -= 1;
            if !self.shape.is_flushed_beside && to_flush == 0 {
                if self.shape.is_short && self.rng.random_bool(0.6) {
                    let writes = Filter::kinds([OperationKind::Write]).file("data");
                    for nth in 1..self.rng.random_range(2..8) {
                        volume.fail_nth(writes.clone(), nth, Fault::NoSpace, Repeat::Once);
                    }
                }
                match opened.db.flush() {
                    Err(full) if full.is_disk_full() => {}
                    flushed => {
                        flushed?;
                        seen.durable.fetch_max(number, SeqCst);
                    }
                }
                to_flush = self.rng.random_range(1..7);
            }
        }
        Ok(())
    }

    /// Some batch and all before it are there, `at_least` among them, and nothing else. Goes on from there.
    fn verify(&mut self, opened: &Opened, at_least: u64, story: &str) {
        let mut found = Content::new();
        for (index, keyspace) in opened.keyspaces.iter().enumerate() {
            for item in keyspace.iter() {
                let (at, bytes) = item.unwrap_or_else(|error| panic!("{story}: {error}"));
                let at = String::from_utf8_lossy(&at).parse().expect("a number");
                let number = bytes.first_chunk().map_or(0, |number| u64::from_le_bytes(*number));
                let content = (number, bytes.len() as u32);
                assert_eq!(bytes[..], value(content)[..], "{story}: key {at}");
                found.insert((index, at), content);
            }
        }
        let number = found.get(&(0, COUNTER)).map_or(0, |content| content.0);
        assert!(number >= at_least, "{story}: {at_least} was promised, but only {number} is there");
        assert!(number >= self.from && number <= self.from + self.batches.len() as u64, "{story}: {number}");
        for changes in self.batches.drain(..).take((number - self.from) as usize) {
            Self::apply(&mut self.content, &changes);
        }
        self.from = number;
        let differs = |(at, content): &(&(usize, u32), &(u64, u32))| self.content.get(at) != Some(content);
        let wrong = found.iter().find(differs);
        assert!(wrong.is_none(), "{story}: after batch {number} there is {wrong:?}");
        assert_eq!(found.len(), self.content.len(), "{story}: after batch {number} records are missing");
        opened.db.check().unwrap_or_else(|error| panic!("{story}: {error:?}"));
    }
}

/// What one thread tells another.
#[derive(Default)]
struct Seen {
    acknowledged: AtomicU64,
    durable: AtomicU64,
    is_over: AtomicBool,
}

/// A database whose log areas and segments are such that little more brings them to be cleansed and collected.
fn grown(shape: Shape) -> (Simulated, Model) {
    let volume = Simulated::new(1);
    let mut model =
        Model { shape, rng: StdRng::seed_from_u64(1), content: Content::new(), from: 0, batches: Vec::new() };
    let opened = shape.open(&volume).expect("opens");
    let space = || opened.db.stats().space;
    for round in 0.. {
        for _ in 0..100 {
            model.next(&opened).0.durability(Durability::None).commit().expect("commits");
        }
        opened.db.flush().expect("flushes");
        // Where all of a segment dies by itself, nothing is ever to be collected.
        if round >= 20 && (round == 100 || space().used > space().live + (3 << 19)) {
            break;
        }
    }
    let last = model.batches.len() as u64;
    model.verify(&opened, last, "grown");
    opened.db.close().expect("closes");
    (volume, model)
}

/// Points, flushes, blocks cleansed, bytes collected, stores to the log.
type Counts = [u64; 5];

fn sum(a: Counts, b: Counts) -> Counts {
    std::array::from_fn(|index| a[index] + b[index])
}

/// Two rounds of work, each ended by a power loss.
fn life(seed: u64, grown: &(Simulated, Model)) -> Counts {
    let mut rng = StdRng::seed_from_u64(seed ^ 0xf1a5);
    let (mut volume, mut model) = (grown.0.power_loss(seed), grown.1.clone());
    // Half of the lives of each shape have windows to store to.
    if seed / SHAPES.len() as u64 % 2 == 1 {
        volume = volume.with_windows();
    }
    model.rng = StdRng::seed_from_u64(seed);
    let shape = model.shape;
    let mut counts = [0; 5];
    for round in 0..2 {
        let end = if rng.random_bool(0.2) { 40 } else { 500 };
        let nth = rng.random_range(1..end);
        volume.fail_nth(Filter::changes(), nth, Fault::PowerOff, Repeat::Once);
        let seen = Seen::default();
        if let Ok(opened) = shape.open(&volume) {
            // Whatever fails, fails because the power is off.
            std::thread::scope(|scope| {
                if shape.is_flushed_beside {
                    scope.spawn(|| {
                        while !seen.is_over.load(SeqCst) {
                            let before = seen.acknowledged.load(SeqCst);
                            if opened.db.flush().is_err() {
                                break;
                            }
                            seen.durable.fetch_max(before, SeqCst);
                        }
                    });
                }
                let _ = model.commit(&volume, &opened, 80, &seen);
                seen.is_over.store(true, SeqCst);
            });
            let writes = opened.db.stats().writes;
            counts = sum(
                counts,
                [0, writes.flushes, writes.blocks_cleansed, writes.collected_bytes, volume.stores()],
            );
        }
        let durable = seen.durable.load(SeqCst);
        for image in 0..2 {
            let story = format!("seed {seed}, round {round}, off at change {nth}, image {image}, {shape:?}");
            let found = volume.power_loss(seed * 100 + round * 10 + image);
            let opened = shape.open(&found).unwrap_or_else(|error| panic!("{story}: {error}"));
            let mut after = model.clone();
            after.verify(&opened, durable, &story);
            counts[0] += 1;
            if image == 1 {
                drop(opened);
                (volume, model) = (found, after);
                break;
            }
        }
    }
    counts
}

#[test]
fn small_flushes_lose_nothing_that_was_promised_and_tear_no_batch() {
    let bases = SHAPES.map(grown);
    let of = |seed: u64| &bases[seed as usize % bases.len()];
    if let Ok(seed) = std::env::var("SMALL_FLUSHES_SEED") {
        let seed = seed.parse().expect("a number");
        life(seed, of(seed));
        return;
    }
    let lives = std::env::var("SMALL_FLUSHES_LIVES").map_or(200, |lives| lives.parse().expect("a number"));
    let next = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let counts = std::thread::scope(|scope| {
        let work = || {
            let seeds = std::iter::repeat_with(|| next.fetch_add(1, SeqCst)).take_while(|seed| *seed < lives);
            seeds.map(|seed| life(seed, of(seed))).fold([0; 5], sum)
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().map(|worker| worker.join().expect("no worker fails")).fold([0; 5], sum)
    });
    let [points, flushes, cleansed, collected, stores] = counts;
    println!(
        "{points} points, {flushes} flushes, {cleansed} blocks cleansed, {collected} bytes collected, {stores} stores"
    );
    assert!(stores > lives, "{stores} stores");
    assert!(points == 4 * lives && flushes > 5 * lives, "{points} points, {flushes} flushes");
    assert!(cleansed > lives && collected > lives * 1000, "{cleansed} cleansed, {collected} bytes collected");
}
