//! A work queue: jobs in order of urgency, taken by several workers, each under a lease. A worker that dies loses its lease, and
//! another does the job. What a job does and that it is done is one transaction, so each job takes effect exactly once.
//!
//! `cargo run -p sapwood --example work_queue`

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Database, Durability, Key, Keyspace, Result};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const WORKERS: u64 = 4;
const JOBS: u64 = 5000;
/// A lease lasts so many ticks of the program's clock.
const LEASE: u64 = 200;

struct Queue {
    db: Database,
    /// (urgency, number) → job. The first one is the most urgent, and the oldest of these.
    waiting: Keyspace,
    /// (end of the lease, urgency, number) → job. The first one ends first.
    leased: Keyspace,
    clock: AtomicU64,
}

/// Integers sort by number if the greatest byte comes first.
fn key(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
}

impl Queue {
    fn open(db: &Database) -> Result<Self> {
        let (waiting, leased) = (db.keyspace("waiting")?, db.keyspace("leased")?);
        Ok(Self { db: db.clone(), waiting, leased, clock: AtomicU64::new(0) })
    }

    fn push(&self, urgency: u64, number: u64, job: &str) -> Result<()> {
        let mut batch = self.db.batch();
        batch.insert(&self.waiting, key(&[urgency, number]), job);
        batch.durability(Durability::Buffered).commit()
    }

    /// Takes the most urgent job, under a lease: the key under which to finish it. A job whose lease is over comes first.
    fn lease(&self) -> Result<Option<(Key, String)>> {
        let now = self.clock.fetch_add(1, Relaxed);
        self.db.transact(|tx| {
            tx.durability(Durability::Buffered);
            let over = match tx.first(&self.leased)? {
                Some((lease, job)) if lease[..8] < key(&[now])[..] => {
                    tx.remove(&self.leased, &lease)?;
                    Some((lease[8..].to_vec(), job))
                }
                _ => tx.pop_first(&self.waiting)?.map(|(place, job)| (place.to_vec(), job)),
            };
            let Some((place, job)) = over else { return Ok(None) };
            let lease = [key(&[now + LEASE]), place].concat();
            tx.insert(&self.leased, &lease, &job)?;
            Ok(Some((lease.into(), String::from_utf8_lossy(&job).into_owned())))
        })
    }

    /// Does the job's work, unless the lease was lost, and so another does it. Returns whether this worker did.
    fn finish(&self, lease: &Key, totals: &Keyspace, job: &str) -> Result<bool> {
        self.db.transact(|tx| {
            tx.durability(Durability::Buffered);
            if tx.take(&self.leased, lease)?.is_none() {
                return Ok(false);
            }
            let count = |old: Option<&[u8]>| {
                old.map_or(0, |old| u64::from_be_bytes(old.try_into().unwrap_or_default()))
            };
            tx.update(totals, job, |old| Some((count(old) + 1).to_be_bytes()))?;
            Ok(true)
        })
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let db = Database::builder().memory(64 << 20).open(dir.path().join("queue.db"))?;
    let (queue, totals) = (Queue::open(&db)?, db.keyspace("totals")?);
    for number in 0..JOBS {
        queue.push(number % 3, number, &format!("kind {}", number % 10))?;
    }
    let work = |worker: u64| -> Result<(u64, u64)> {
        let mut rng = StdRng::seed_from_u64(worker);
        let (mut done, mut died) = (0, 0);
        // Leases of workers that died end as the clock goes on.
        while !(queue.waiting.is_empty()? && queue.leased.is_empty()?) {
            let Some((lease, job)) = queue.lease()? else { continue };
            match rng.random_ratio(1, 50) {
                true => died += 1,
                false => done += u64::from(queue.finish(&lease, &totals, &job)?),
            }
        }
        Ok((done, died))
    };
    let (done, died) = std::thread::scope(|scope| {
        let work = &work;
        let workers: Vec<_> = (0..WORKERS).map(|worker| scope.spawn(move || work(worker))).collect();
        workers
            .into_iter()
            .map(|worker| worker.join().expect("it does not panic"))
            .try_fold((0, 0), |(done, died), outcome| {
                outcome.map(|(more, deaths)| (done + more, died + deaths))
            })
    })?;
    println!("{done} jobs done; workers died with {died} leases");
    let counted: Result<u64> = totals.iter().try_fold(0, |sum, record| {
        Ok(sum + u64::from_be_bytes(record?.1[..].try_into().unwrap_or_default()))
    });
    assert!(done == JOBS && counted? == JOBS, "each job once");
    Ok(())
}
