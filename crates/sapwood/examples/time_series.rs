//! Measurements of many sensors: raw ones that are kept for a day, and averages by the hour that are kept for a year. Both go by
//! themselves. A key begins with the sensor, so that a sensor's measurements lie side by side, in the order of time.
//!
//! `cargo run -p sapwood --example time_series`

use sapwood::{Database, Durability, Keyspace, KeyspaceOptions, Result};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, UNIX_EPOCH};

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;
const SENSORS: u32 = 40;
/// Seconds between two measurements of a sensor.
const STEP: u64 = 60;
/// The time of the example, in seconds since 1970: three days in some seconds.
static NOW: AtomicU64 = AtomicU64::new(1_800_000_000 / HOUR * HOUR);

struct Series {
    db: Database,
    /// Sensor, time → measured value.
    raw: Keyspace,
    /// Sensor, hour → average.
    hourly: Keyspace,
}

fn key(sensor: u32, time: u64) -> [u8; 12] {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&sensor.to_be_bytes());
    key[4..].copy_from_slice(&time.to_be_bytes());
    key
}

fn time_of(key: &[u8]) -> u64 {
    u64::from_be_bytes(key[4..].try_into().expect("8 bytes"))
}

fn number(value: &[u8]) -> f64 {
    f64::from_le_bytes(value.try_into().expect("8 bytes"))
}

impl Series {
    fn open(db: &Database) -> Result<Self> {
        let kept = |seconds| KeyspaceOptions::new().time_to_live(Duration::from_secs(seconds));
        let raw = db.keyspace_with("raw", kept(DAY))?;
        let hourly = db.keyspace_with("hourly", kept(365 * DAY))?;
        Ok(Self { db: db.clone(), raw, hourly })
    }

    /// Takes in what all sensors have measured. If the power fails, the last moments may be lost.
    fn measured(&self, time: u64, values: &[f64]) -> Result<()> {
        let mut batch = self.db.batch();
        for (sensor, value) in values.iter().enumerate() {
            batch.insert(&self.raw, key(sensor as u32, time), value.to_le_bytes());
        }
        batch.durability(Durability::Buffered).commit()
    }

    /// Averages the hour that begins at `hour`, of all sensors, as of one moment.
    fn average(&self, hour: u64) -> Result<()> {
        let snapshot = self.db.snapshot();
        let mut batch = self.db.batch();
        for sensor in 0..SENSORS {
            let (mut sum, mut count) = (0.0, 0);
            let mut range = snapshot.range(&self.raw, key(sensor, hour)..key(sensor, hour + HOUR));
            while let Some(record) = range.next_ref() {
                sum += number(record?.1);
                count += 1;
            }
            if count > 0 {
                let average = sum / f64::from(count);
                batch.insert(&self.hourly, key(sensor, hour), average.to_le_bytes());
            }
        }
        batch.commit()
    }

    /// The newest measurement of a sensor, if it is less than a day old.
    fn newest(&self, sensor: u32) -> Result<Option<(u64, f64)>> {
        let newest = self.raw.prefix(sensor.to_be_bytes()).next_back().transpose()?;
        Ok(newest.map(|(key, value)| (time_of(&key), number(&value))))
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let clock = || UNIX_EPOCH + Duration::from_secs(NOW.load(Relaxed));
    let open = || Database::builder().memory(64 << 20).clock(clock).open(dir.path().join("series.db"));
    let db = open()?;
    let series = Series::open(&db)?;
    let began = NOW.load(Relaxed);
    while NOW.load(Relaxed) < began + 3 * DAY {
        let now = NOW.load(Relaxed);
        let hours = ((now - began) / HOUR) as f64;
        let values: Vec<_> = (0..SENSORS).map(|sensor| f64::from(sensor) + hours).collect();
        series.measured(now, &values)?;
        if (now + STEP).is_multiple_of(HOUR) {
            series.average(now + STEP - HOUR)?;
        }
        NOW.store(now + STEP, Relaxed);
    }
    let (time, value) = series.newest(7)?.expect("it has measured");
    println!("sensor 7: {value} {} s ago", NOW.load(Relaxed) - time);
    assert_eq!((time, value), (began + 3 * DAY - STEP, 7.0 + 71.0));
    assert_eq!(series.raw.count(..)?, u64::from(SENSORS) * (DAY / STEP - 1), "of the last day");
    assert_eq!(series.hourly.count(..)?, u64::from(SENSORS) * 72, "of all three");
    let averages: Vec<_> = series.hourly.prefix(7u32.to_be_bytes()).collect::<Result<_>>()?;
    assert!(averages.iter().zip(0..).all(|((_, average), hour)| number(average) == 7.0 + f64::from(hour)));
    db.compact()?;
    let stored = db.stats().keyspaces.iter().map(|keyspace| keyspace.records).sum::<u64>();
    assert!(stored < 70_000, "those that have expired are gone");
    println!("{stored} records of {} are stored", u64::from(SENSORS) * (3 * DAY / STEP + 72));
    Ok(())
}
