//! Power loss at any write or sync, while commits of all kinds come that are visible before they are durable. What was reported
//! durable, by whatever way, is there afterwards; what was not may be; and what is there is all of the log up to some
//! point, for each thread and all it had seen of others.

use crate::scenario;
use psync::{Fault, Filter, Repeat, Simulated, Volume};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Database, Durability, Error, Keyspace, Pending};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};

const COMMITS: u64 = 400;

fn open(volume: &Simulated, threads: usize) -> Result<Database, Error> {
    let volume: Arc<dyn Volume> = Arc::new(volume.clone());
    scenario::options().background_threads(threads).open_on(volume)
}

fn number(keyspace: &Keyspace, key: &[u8]) -> Result<u64, Error> {
    let value = keyspace.get(key)?;
    Ok(value.map_or(0, |value| u64::from_be_bytes(*value.first_chunk().expect("a number"))))
}

/// One writer. Each commit has the next number, the number of the other writer that this one has seen before, and ballast that
/// makes queues full.
struct Writer<'d> {
    db: &'d Database,
    keyspace: Keyspace,
    own: u8,
    /// The last number that was reported durable.
    durable: Arc<AtomicU64>,
}

impl Writer<'_> {
    fn write(&self, rng: &mut StdRng) -> Result<(), Error> {
        let mut futures: Vec<(u64, Pending)> = Vec::new();
        for next in 1..=COMMITS {
            let seen = number(&self.keyspace, &[1 - self.own])?;
            let mut batch = self.db.batch();
            batch.insert(&self.keyspace, [self.own], next.to_be_bytes());
            batch.insert(&self.keyspace, [self.own, 1], seen.to_be_bytes());
            let ballast = [&[2 + self.own][..], &rng.random_range(0..300_u16).to_be_bytes()].concat();
            batch.insert(&self.keyspace, ballast, [next as u8; 3000]);
            let durable = Arc::clone(&self.durable);
            match rng.random_range(0..20) {
                0 => {
                    batch.commit()?;
                    durable.fetch_max(next, SeqCst);
                }
                1 => batch.durability(Durability::None).commit()?,
                2..6 => batch.durability(Durability::Buffered).commit()?,
                6..8 => {
                    batch.commit_visible()?.wait()?;
                    durable.fetch_max(next, SeqCst);
                }
                8..14 => batch.commit_visible()?.on_durable(move |result| {
                    if result.is_ok() {
                        durable.fetch_max(next, SeqCst);
                    }
                }),
                _ => futures.push((next, batch.commit_visible()?)),
            }
            batch.durability(Durability::Immediate);
            futures.retain_mut(|(number, pending)| {
                match Pin::new(pending).poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(Ok(())) => _ = self.durable.fetch_max(*number, SeqCst),
                    Poll::Ready(Err(_)) => {}
                    Poll::Pending => return true,
                }
                false
            });
            assert_eq!(number(&self.keyspace, &[self.own])?, next, "it is seen");
        }
        Ok(())
    }
}

fn life(seed: u64) -> bool {
    let volume = Simulated::new(seed);
    drop(open(&volume, 0).expect("opens").keyspace("main").expect("a keyspace"));
    let mut rng = StdRng::seed_from_u64(seed);
    let threads = [0, 1, 2, 4][seed as usize % 4];
    let nth = rng.random_range(1..if seed % 8 < 4 { 150 } else { 1500 });
    let story = format!("seed {seed}, {threads} threads, off at change {nth}");
    volume.fail_nth(Filter::changes(), nth, Fault::PowerOff, Repeat::Once);
    let durable = [(); 2].map(|()| Arc::<AtomicU64>::default());
    if let Ok(db) = open(&volume, threads)
        && let Ok(keyspace) = db.keyspace("main")
    {
        std::thread::scope(|scope| {
            for own in 0..2 {
                let (db, keyspace, durable) = (&db, keyspace.clone(), Arc::clone(&durable[own as usize]));
                let (mut rng, volume, story) = (StdRng::seed_from_u64(rng.random()), &volume, &story);
                scope.spawn(move || {
                    let writer = Writer { db, keyspace, own, durable };
                    if let Err(error) = writer.write(&mut rng) {
                        assert!(volume.is_off(), "{story}: {error}");
                    }
                });
            }
        });
    }
    let db = open(&volume.power_loss(seed), 0).unwrap_or_else(|error| panic!("{story}: {error}"));
    let keyspace = db.keyspace("main").expect("a keyspace");
    let last = [0, 1].map(|own| number(&keyspace, &[own]).expect("reads"));
    for own in [0, 1] {
        let promised = durable[own].load(SeqCst);
        assert!(last[own] >= promised, "{story}: {promised} of {own} was durable, {} is there", last[own]);
        let seen = number(&keyspace, &[own as u8, 1]).expect("reads");
        assert!(last[1 - own] >= seen, "{story}: {own} had seen {seen}, and {} is there", last[1 - own]);
    }
    db.check().unwrap_or_else(|error| panic!("{story}: {error:?}"));
    volume.is_off() && last.iter().sum::<u64>() > 0
}

#[test]
fn what_was_reported_durable_is_there_and_the_order_of_the_log_holds() {
    let lives = std::env::var("PENDING_LIVES").map_or(160, |lives| lives.parse().expect("a number"));
    let cut = (0..lives).filter(|seed| life(*seed)).count() as u64;
    assert!(cut > lives / 2, "{cut} of {lives} were cut off");
}
