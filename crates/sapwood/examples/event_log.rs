//! An event log with retention: events by time, and an index of each service's events. What is older than a day goes with two small
//! records in the log for each service, however many events it was; a reader sees an event with its index entry, or neither.
//!
//! `cargo run -p sapwood --example event_log`

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Database, Durability, Keyspace, Result};

const SERVICES: [&str; 3] = ["api", "billing", "mail"];
/// Events are kept for so long, in milliseconds.
const KEPT: u64 = 24 * HOUR;
const HOUR: u64 = 3_600_000;
/// Hours that the example plays through, and events of each.
const HOURS: u64 = 72;
const EVENTS: u64 = 5000;

struct EventLog {
    db: Database,
    /// (time, number) → service, message.
    events: Keyspace,
    /// service, (time, number) → nothing.
    by_service: Keyspace,
}

/// Times sort by number if the greatest byte comes first; the number tells events of the same millisecond apart.
fn key(time: u64, number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&time.to_be_bytes());
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

/// An entry of the index. A zero byte ends the service's name, so that no name is the beginning of another.
fn entry(service: &str, rest: &[u8]) -> Vec<u8> {
    [service.as_bytes(), &[0], rest].concat()
}

impl EventLog {
    fn open(db: &Database) -> Result<Self> {
        let (events, by_service) = (db.keyspace("events")?, db.keyspace("events by service")?);
        Ok(Self { db: db.clone(), events, by_service })
    }

    /// Writes some events at once. After a power failure the last second of events may be missing, and never half of one.
    fn append(&self, events: impl Iterator<Item = (u64, u64, &'static str, String)>) -> Result<()> {
        let mut batch = self.db.batch();
        for (time, number, service, message) in events {
            batch.insert(&self.events, key(time, number), format!("{service}\n{message}"));
            batch.insert(&self.by_service, entry(service, &key(time, number)), "");
        }
        batch.durability(Durability::Buffered).commit()
    }

    /// Removes all events before a time, and their index entries, together.
    fn remove_before(&self, time: u64) -> Result<()> {
        let mut batch = self.db.batch();
        batch.remove_range(&self.events, ..key(time, 0));
        for service in SERVICES {
            batch.remove_range(&self.by_service, entry(service, &[])..entry(service, &key(time, 0)));
        }
        batch.commit()
    }

    /// The last events of a service, the newest first: the index says which, and these are read together.
    fn last_of(&self, service: &str, count: usize) -> Result<Vec<String>> {
        let snapshot = self.db.snapshot();
        let prefix = entry(service, &[]);
        let entries = snapshot.prefix(&self.by_service, &prefix).rev().take(count);
        let keys = entries.map(|entry| Ok(entry?.0[prefix.len()..].to_vec())).collect::<Result<Vec<_>>>()?;
        let found = snapshot.multi_get(&self.events, &keys)?;
        Ok(found
            .iter()
            .map(|event| String::from_utf8_lossy(event.as_deref().expect("indexed")).into())
            .collect())
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let db = Database::builder().memory(64 << 20).open(dir.path().join("events.db"))?;
    let log = EventLog::open(&db)?;
    let mut rng = StdRng::seed_from_u64(1);
    for hour in 0..HOURS {
        let events = (0..EVENTS).map(|number| {
            let service = SERVICES[rng.random_range(0..SERVICES.len())];
            let time = hour * HOUR + number * HOUR / EVENTS;
            (time, number, service, format!("request {} took {} ms", number, rng.random_range(1..900)))
        });
        log.append(events)?;
        log.remove_before(((hour + 1) * HOUR).saturating_sub(KEPT))?;
    }
    let (kept, indexed) = (log.events.iter().count() as u64, log.by_service.iter().count() as u64);
    println!("{} events came, {kept} are kept, with {indexed} index entries", HOURS * EVENTS);
    assert_eq!((kept, indexed), (KEPT / HOUR * EVENTS, KEPT / HOUR * EVENTS));
    for service in SERVICES {
        let last = log.last_of(service, 3)?;
        println!("{service}: {}", last.join("; ").replace('\n', " "));
        assert!(last.len() == 3 && last.iter().all(|event| event.starts_with(service)));
    }
    Ok(())
}
