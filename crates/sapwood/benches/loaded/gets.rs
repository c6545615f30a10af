//! What a get reads while others update, and at rest.
//!
//! A get is *uncached* if it asked the device for anything: all others were answered by the queues, by the cache of records, or by cached nodes.
//! Counted are all requests of the thread that gets, whatever they bring: leaves, log pieces, inner nodes.

use super::ends::Ends;
use super::requests;
use super::stalls::{MEANING, NAMES, Stalls};
use crate::numbered::key;
use crate::{Outcome, Times, records};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Database, Durability, Keyspace};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The most reads that an uncached get may have.
pub const AIM: f64 = 1.15;

/// Who updates meanwhile, one record a commit.
#[derive(Clone, Copy, Debug)]
pub enum Updates {
    /// Nobody.
    None,
    /// So many threads, without pause.
    Steady(u64),
    /// One thread, so many a second.
    Paced(u64),
}

impl std::fmt::Display for Updates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::None => f.write_str("at rest"),
            Self::Steady(threads) => write!(f, "updates by {threads} thread(s) without pause"),
            Self::Paced(rate) => write!(f, "{rate} updates a second"),
        }
    }
}

/// What gets have read in some time.
#[derive(Clone, Copy, Default)]
pub struct Count {
    gets: u64,
    /// Of these, those that read.
    uncached: u64,
    /// Of these, those with more than one request.
    several: u64,
    requests: u64,
    updates: u64,
    seconds: f64,
    stalls: Stalls,
}

impl Count {
    fn add(&mut self, caused: u64, took: Duration) {
        self.stalls.add(took);
        self.gets += 1;
        self.uncached += u64::from(caused > 0);
        self.several += u64::from(caused > 1);
        self.requests += caused;
    }

    fn merge(&mut self, other: &Self) {
        self.gets += other.gets;
        self.uncached += other.uncached;
        self.several += other.several;
        self.requests += other.requests;
        self.updates += other.updates;
        self.seconds += other.seconds;
        self.stalls.merge(&other.stalls);
    }

    /// Reads of an uncached get; `None` if all were cached.
    pub fn reads(&self) -> Option<f64> {
        (self.uncached > 0).then(|| self.requests as f64 / self.uncached as f64)
    }

    fn tell(&self, when: &str) {
        let percent = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
        let [long, very_long] = self.stalls.percent();
        println!(
            "{when:>8} {:>11.0} {:>9.0} {:>9.1} % {:>9.2} % {:>14.4} {long:>9.2} % {very_long:>9.2} % {:>10.1}",
            self.updates as f64 / self.seconds,
            self.gets as f64 / self.seconds,
            percent(self.uncached, self.gets),
            percent(self.several, self.uncached),
            self.reads().unwrap_or(f64::NAN),
            self.stalls.longest_ms()
        );
    }
}

/// Updates uniform keys until told to stop, at most `rate` times a second.
fn update(
    (db, keyspace): (&Database, &Keyspace),
    records: u64,
    (seed, rate): (u64, Option<u64>),
    (done, stop): (&AtomicU64, &AtomicBool),
) -> Outcome {
    let _ends = Ends(stop);
    let (mut rng, began) = (StdRng::seed_from_u64(seed), Instant::now());
    for number in 0u64.. {
        if stop.load(Relaxed) {
            break;
        }
        if let Some(rate) = rate {
            let early = Duration::from_secs_f64(number as f64 / rate as f64).saturating_sub(began.elapsed());
            // A sleep for each would be too long for most.
            if early >= Duration::from_millis(1) {
                std::thread::sleep(early);
            }
        }
        let mut batch = db.batch();
        batch.insert(keyspace, key(rng.random_range(0..records)), records::value(&mut rng));
        batch.durability(Durability::Buffered).commit()?;
        done.fetch_add(1, Relaxed);
    }
    Ok(())
}

/// Gets uniform keys, tells each second, and says what all of them came to.
fn get(
    keyspace: &Keyspace,
    records: u64,
    times: Times,
    done: &AtomicU64,
    stop: &AtomicBool,
) -> Outcome<Count> {
    let _ends = Ends(stop);
    let mut rng = StdRng::seed_from_u64(9);
    let (mut all, mut part) = (Count::default(), Count::default());
    let (mut began, mut updates) = (Instant::now(), done.load(Relaxed));
    let mut length = times.warm_up;
    let mut second = 0;
    while second <= times.seconds && !stop.load(Relaxed) {
        let (before, called) = (requests::of_this_thread(), Instant::now());
        keyspace.get(key(rng.random_range(0..records)))?.ok_or("a record is missing")?;
        part.add(requests::of_this_thread() - before, called.elapsed());
        if began.elapsed() < length {
            continue;
        }
        let lasted = began.elapsed();
        part.stalls.lasted(lasted);
        part.seconds = lasted.as_secs_f64();
        part.updates = done.load(Relaxed) - updates;
        if second > 0 {
            part.tell(&format!("{second} s"));
            all.merge(&part);
        }
        (began, updates, part, length) =
            (Instant::now(), done.load(Relaxed), Count::default(), Duration::from_secs(1));
        second += 1;
    }
    Ok(all)
}

/// One kind of updates and a thread that gets.
pub fn measure(
    db: &Database,
    keyspace: &Keyspace,
    records: u64,
    updates: Updates,
    times: Times,
) -> Outcome<Count> {
    println!("\ngets, {updates}");
    println!(
        "           updates/s    gets/s   uncached  of it more     reads each  {:>10}  {:>10} longest ms",
        NAMES[0], NAMES[1]
    );
    let (threads, rate) = match updates {
        Updates::None => (0, None),
        Updates::Steady(threads) => (threads, None),
        Updates::Paced(rate) => (1, Some(rate)),
    };
    let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let (done, stop) = (&done, &stop);
    let count = std::thread::scope(|scope| {
        let updaters: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || update((db, keyspace), records, (100 + thread, rate), (done, stop)))
            })
            .collect();
        let count = get(keyspace, records, times, done, stop);
        for updater in updaters {
            updater.join().expect("no panic")?;
        }
        count
    })?;
    count.tell("all");
    println!("({MEANING})");
    Ok(count)
}
