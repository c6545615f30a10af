//! How long puts take: when nothing is flushed, and with flushing all the time.

use super::ends::Ends;
use super::latencies::Latencies;
use super::stalls::{MEANING, NAMES};
use crate::numbered::key;
use crate::{Outcome, Times, records};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Database, Durability, Keyspace};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How many times as long as with the log alone the 999th of 1000 puts may take.
pub const AIM: f64 = 5.0;

/// The longest that a put may take, in milliseconds.
pub const STALL_AIM_MS: f64 = 100.0;

/// Bytes that a record takes in the queue, rounded up.
const QUEUED: u64 = 160;

/// Puts of one kind.
#[derive(Clone, Copy)]
pub struct Puts {
    pub name: &'static str,
    threads: u64,
    /// Records of a commit.
    records: u64,
    durability: Durability,
}

/// Batches, buffered: also what keeps a flush at work beside others.
const BATCHES: Puts =
    Puts { name: "batches of 1000", threads: 1, records: records::BATCH, durability: Durability::Buffered };

/// Those that are measured. Where there are fewer processors than threads, four that put without pause wait for one another's processor, with the log
/// alone too; one thread shows what the flush adds.
pub const KINDS: [Puts; 5] = [
    Puts { name: "buffered, 1 thread", threads: 1, records: 1, durability: Durability::Buffered },
    Puts { name: "buffered, 4 threads", threads: 4, records: 1, durability: Durability::Buffered },
    BATCHES,
    Puts { name: "durable, 1 thread", threads: 1, records: 1, durability: Durability::Immediate },
    Puts { name: "durable, 16 threads", threads: 16, records: 1, durability: Durability::Immediate },
];

impl Puts {
    /// What puts beside these under full load. Durable ones are too slow to keep a flush at work, so a thread beside them puts batches, buffered and without
    /// pause. (Not single records: each would wait for the sync of a group of commits, and be no more than the durable ones are.)
    pub fn beside(self) -> Option<Puts> {
        (self.durability == Durability::Immediate).then_some(BATCHES)
    }
}

/// What one measurement came to.
pub struct Measured {
    latencies: Latencies,
    seconds: f64,
    pub flushes: u64,
    /// Records a second that were put beside these.
    pub beside: f64,
    delayed: f64,
    stopped: f64,
}

impl Measured {
    pub fn p999(&self) -> f64 {
        self.latencies.micros(0.999)
    }

    pub fn longest_ms(&self) -> f64 {
        self.latencies.stalls.longest_ms()
    }

    /// The heading of what `tell` tells.
    pub fn head() {
        println!(
            "\n({MEANING})\n{:<20} {:<10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>10} {:>10} {:>10} {:>7} {:>8} {:>9}",
            "puts",
            "",
            "calls",
            "calls/s",
            "p50 us",
            "p99 us",
            "p99.9 us",
            "longest us",
            NAMES[0],
            NAMES[1],
            "flushes",
            "slowed s",
            "stopped s"
        );
    }

    pub fn tell(&self, kind: &str, load: &str) {
        let [long, very_long] = self.latencies.stalls.percent();
        println!(
            "{kind:<20} {load:<10} {:>9} {:>9.0} {:>9.1} {:>9.1} {:>9.1} {:>10.1} {long:>8.2} % {very_long:>8.2} % {:>7} {:>8.1} {:>9.1}",
            self.latencies.count(),
            self.latencies.count() as f64 / self.seconds,
            self.latencies.micros(0.5),
            self.latencies.micros(0.99),
            self.p999(),
            self.latencies.micros(1.0),
            self.flushes,
            self.delayed,
            self.stopped,
        );
    }
}

/// When puts begin to count, and when they end.
#[derive(Default)]
struct Signals {
    counts: AtomicBool,
    stop: AtomicBool,
}

/// What one thread has done.
struct Done {
    latencies: Latencies,
    /// Records a second, from its first to its last.
    rate: f64,
}

/// Puts at uniform keys below `below` until told to stop, or until `most` records are put; a quarter of them is enough to warm up. No more than `rate` records
/// a second, if there is one.
fn put(
    (db, keyspace): (&Database, &Keyspace),
    (puts, rate): (Puts, Option<f64>),
    (below, most): (u64, u64),
    seed: u64,
    signals: &Signals,
) -> Outcome<Done> {
    let _ends = Ends(&signals.stop);
    let first = Instant::now();
    let (mut latencies, mut rng, mut done) = (Latencies::default(), StdRng::seed_from_u64(seed), 0);
    let mut changes = Vec::new();
    let mut since = None;
    while done < most && !signals.stop.load(Relaxed) {
        changes.clear();
        changes.resize_with(puts.records as usize, || {
            (key(rng.random_range(0..below)), records::value(&mut rng))
        });
        let (counts, began) = (signals.counts.load(Relaxed), Instant::now());
        let mut batch = db.batch();
        for (key, value) in &changes {
            batch.insert(keyspace, key, value);
        }
        batch.durability(puts.durability).commit()?;
        if counts {
            since.get_or_insert(began);
            latencies.add(began.elapsed());
        }
        done += puts.records;
        if done >= most / 4 {
            signals.counts.store(true, Relaxed);
        }
        if let Some(rate) = rate {
            std::thread::sleep(Duration::from_secs_f64(done as f64 / rate).saturating_sub(first.elapsed()));
        }
    }
    latencies.stalls.lasted(since.map_or(Duration::ZERO, |since| since.elapsed()));
    Ok(Done { latencies, rate: done as f64 / first.elapsed().as_secs_f64() })
}

/// Measures puts while `beside`, if any, are made by threads that are not measured: without pause, or at a rate in records a second.
fn measure(
    (db, keyspace): (&Database, &Keyspace),
    puts: Puts,
    beside: Option<(Puts, Option<f64>)>,
    (below, most): (u64, u64),
    times: Times,
) -> Outcome<Measured> {
    let signals = &Signals::default();
    std::thread::scope(|scope| {
        let start = |(puts, rate): (Puts, Option<f64>), seed| {
            let most = most / puts.threads;
            let rate = rate.map(|rate| rate / puts.threads as f64);
            let threads = (0..puts.threads).map(|thread| {
                scope.spawn(move || put((db, keyspace), (puts, rate), (below, most), seed + thread, signals))
            });
            threads.collect::<Vec<_>>()
        };
        let mut threads = start((puts, None), 200);
        let measured = threads.len();
        threads.extend(beside.map(|puts| start(puts, 300)).unwrap_or_default());
        // In short steps, since the threads may be at their end earlier.
        let wait = |until: Duration, end: &AtomicBool| {
            let began = Instant::now();
            while began.elapsed() < until && !end.load(Relaxed) && !signals.stop.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        wait(times.warm_up, &signals.counts);
        signals.counts.store(true, Relaxed);
        let (before, began) = (db.stats().writes, Instant::now());
        wait(Duration::from_secs(times.seconds), &signals.stop);
        let seconds = began.elapsed().as_secs_f64();
        signals.stop.store(true, Relaxed);
        let (mut latencies, mut beside) = (Latencies::default(), 0.0);
        for (number, thread) in threads.into_iter().enumerate() {
            let done = thread.join().expect("no panic")?;
            if number < measured {
                latencies.merge(&done.latencies);
            } else {
                beside += done.rate;
            }
        }
        let after = db.stats().writes;
        Ok(Measured {
            latencies,
            seconds,
            flushes: after.flushes - before.flushes,
            beside,
            delayed: (after.delayed_us - before.delayed_us) as f64 / 1e6,
            stopped: (after.stopped_us - before.stopped_us) as f64 / 1e6,
        })
    })
}

/// Into a database of its own with a memory of so many bytes, a sixth of which is the queue's: it is never full. Beside whatever else puts so many records a second, or nothing.
pub fn alone(
    db: &Database,
    memory: u64,
    (puts, beside): (Puts, Option<(Puts, f64)>),
    below: u64,
    times: Times,
) -> Outcome<Measured> {
    let keyspace = db.keyspace("bench")?;
    let kinds = 1 + u64::from(beside.is_some());
    let beside = beside.map(|(puts, rate)| (puts, Some(rate)));
    measure((db, &keyspace), puts, beside, (below, memory / 7 / QUEUED / kinds), times)
}

/// Into a database with more data than memory, beside what these need to keep a flush at work.
pub fn loaded(db: &Database, keyspace: &Keyspace, puts: Puts, below: u64, times: Times) -> Outcome<Measured> {
    measure((db, keyspace), puts, puts.beside().map(|beside| (beside, None)), (below, u64::MAX), times)
}
