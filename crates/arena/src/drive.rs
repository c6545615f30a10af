//! Drives a store through a workload, with as many threads as it has, and takes the time of every call.
//!
//! Invariants:
//! 1. what a store answers is checked against the records while it is measured: a wrong or missing value is an error, not a
//!    figure;
//! 2. a workload ends when its work or its time is over, whatever comes first, and a call under way is waited for;
//! 3. each transaction adds one to the numbers in its records; if their sum does not tell how many were committed, an update was
//!    lost or made twice, and that is an error, not a figure;
//! 4. writes that are not durable one by one are made durable at the end, within the time that is measured.

use crate::engine::{Change, Engine, Failed, Level, Result, Session};
use crate::outcome::{Latencies, Outcome};
use crate::records::Records;
use crate::targets::{Choice, Held};
use crate::workload::Workload;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a workload may take.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Those that end with their work: at most this.
    pub cap: Duration,
    /// The others: this.
    pub steady: Duration,
    /// Before these others: this, which is not measured.
    pub warm_up: Duration,
}

/// Records of a batch.
const BATCH: u64 = 1000;

/// Keys of a multi_get.
const KEYS: usize = 64;

/// Records of a transaction.
const OF_A_TRANSACTION: usize = 4;

/// Where in a value its number is: behind the tag.
const NUMBER: std::ops::Range<usize> = 8..16;

/// Runs `workload` on a store that `held` describes, and calls `progress` with the share that is done, every now and then.
///
/// # Errors
/// What the store says; answers that are wrong.
pub fn drive(
    workload: Workload,
    engine: &dyn Engine,
    records: &Records,
    held: &Held,
    limits: &Limits,
    seed: u64,
    progress: &mut dyn FnMut(f64),
) -> Result<Outcome> {
    let scene = |time, calls| Scene {
        workload,
        engine,
        records,
        held,
        choice: choice(workload, records.count),
        ends: Instant::now() + time,
        time,
        calls,
        begun: AtomicU64::new(0),
        stop: AtomicBool::new(false),
    };
    let fixed = match workload {
        Workload::RandomLoad | Workload::SortedLoad => Some(records.count.div_ceil(BATCH)),
        Workload::DeleteHalf => Some((records.count / 2).div_ceil(BATCH)),
        Workload::Update => Some(2 * records.count),
        Workload::ScanAll | Workload::ScanDeleted => Some(1),
        _ => None,
    };
    if let Some(calls) = fixed {
        return scene(limits.cap, calls).run(seed, progress);
    }
    if workload.is_transactional() && records.value_len < NUMBER.end {
        let what =
            format!("values need {} bytes, for a number in each, and have {}", NUMBER.end, records.value_len);
        return Err(Failed::new("run transactions", what));
    }
    let sum = if workload.is_transactional() { Some(sum(engine, records)?) } else { None };
    // The device's counters go on from the beginning of the warm-up to the end of the settling, and so do the bytes that they are divided by.
    let mut others = Work::default();
    if is_warmed_up(workload) && !limits.warm_up.is_zero() {
        let warm_up = scene(limits.warm_up, u64::MAX).run(seed ^ 0x7761_726d, &mut |_| progress(0.0))?;
        others.operations += warm_up.operations;
        others.written += warm_up.bytes_written;
        others.read += warm_up.bytes_read;
    }
    let steady = if workload == Workload::OpenKilled { limits.cap } else { limits.steady };
    let measured = scene(steady, u64::MAX).run(seed, progress)?;
    if let Some((before, read_before)) = sum {
        let (after, read_after) = self::sum(engine, records)?;
        others.read += read_before + read_after;
        let transactions = measured.operations + others.operations;
        check_sum(after.wrapping_sub(before), transactions)?;
    }
    Ok(Outcome {
        warm_up_operations: sum.is_none().then_some(others.operations),
        bytes_written: measured.bytes_written + others.written,
        bytes_read: measured.bytes_read + others.read,
        ..measured
    })
}

/// Whether calls are made before those that count. A new database has nothing to warm up.
fn is_warmed_up(workload: Workload) -> bool {
    workload.level() == Level::Buffered || workload.is_transactional()
}

/// The sum of the numbers in all records, and the bytes that were read for it.
fn sum(engine: &dyn Engine, records: &Records) -> Result<(u64, u64)> {
    let (mut sum, mut read, mut key, mut bad) = (0u64, 0, Vec::new(), None);
    records.key(0, &mut key);
    engine.session()?.scan(&key, u64::MAX, &mut |key, value| {
        match number_in(value) {
            Some(number) => sum = sum.wrapping_add(number),
            None => bad = records.number(key),
        }
        read += records.len();
        bad.is_none()
    })?;
    bad.map_or(Ok((sum, read)), |number| Err(wrong("add up", number, Some(false))))
}

fn number_in(value: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(value.get(NUMBER)?.try_into().ok()?))
}

fn check_sum(added: u64, transactions: u64) -> Result<()> {
    let expected = transactions * OF_A_TRANSACTION as u64;
    if added == expected {
        return Ok(());
    }
    let what = format!(
        "{transactions} were committed, which add {expected} to the records; {added} was added: updates are lost, or made twice"
    );
    Err(Failed::new("add up after transactions", what))
}

fn choice(workload: Workload, count: u64) -> Choice {
    match workload {
        Workload::YcsbA | Workload::YcsbB | Workload::YcsbC | Workload::YcsbE | Workload::YcsbF => {
            Choice::zipfian(count)
        }
        Workload::TxZipf1
        | Workload::TxZipf4
        | Workload::TxZipf16
        | Workload::DurableTxZipf1
        | Workload::DurableTxZipf4
        | Workload::DurableTxZipf16 => Choice::zipfian(count),
        Workload::YcsbD => Choice::latest(count),
        _ => Choice::Uniform,
    }
}

/// A workload while it runs.
struct Scene<'a> {
    workload: Workload,
    engine: &'a dyn Engine,
    records: &'a Records,
    held: &'a Held,
    choice: Choice,
    ends: Instant,
    time: Duration,
    /// Calls to make, by all threads together.
    calls: u64,
    begun: AtomicU64,
    stop: AtomicBool,
}

/// What a thread did.
struct Tally {
    latencies: Latencies,
    work: Work,
    calls: u64,
}

/// What a call did.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    operations: u64,
    written: u64,
    read: u64,
    /// A scan that had to end before its work was done.
    cut: bool,
    /// How often a transaction was run again.
    conflicts: u64,
}

impl Scene<'_> {
    fn run(&self, seed: u64, progress: &mut dyn FnMut(f64)) -> Result<Outcome> {
        let threads = self.workload.threads();
        let began = Instant::now();
        let tallies = std::thread::scope(|scope| {
            let hands: Vec<_> = (0..threads as u64)
                .map(|thread| {
                    let random = SmallRng::seed_from_u64(seed.wrapping_mul(1000).wrapping_add(thread));
                    scope.spawn(move || {
                        let tally = Hand::new(self, random).and_then(Hand::run);
                        if tally.is_err() {
                            self.stop.store(true, Ordering::Relaxed);
                        }
                        tally
                    })
                })
                .collect();
            let mut told = Instant::now();
            while hands.iter().any(|hand| !hand.is_finished()) {
                std::thread::sleep(Duration::from_millis(2));
                if told.elapsed() >= Duration::from_millis(500) {
                    told = Instant::now();
                    progress(self.share(began.elapsed()));
                }
            }
            let died = |_| Failed::new(format!("drive {}", self.workload), "a thread panicked");
            hands.into_iter().map(|hand| hand.join().map_err(died)?).collect::<Result<Vec<_>>>()
        })?;
        if self.workload.writes() && self.workload.level() == Level::Buffered {
            self.engine.sync()?;
        }
        let seconds = began.elapsed().as_secs_f64();
        let (mut latencies, mut work, mut calls) = (Latencies::new(), Work::default(), 0);
        for tally in &tallies {
            latencies.merge(&tally.latencies);
            work = work.and(tally.work);
            calls += tally.calls;
        }
        let done = match self.workload {
            Workload::ScanAll | Workload::ScanDeleted if work.cut => {
                work.operations as f64 / self.held.count().max(1) as f64
            }
            _ if self.calls == u64::MAX => 1.0,
            _ => calls as f64 / self.calls as f64,
        };
        Ok(Outcome {
            operations: work.operations,
            warm_up_operations: Some(0),
            calls,
            seconds,
            bytes_written: work.written,
            bytes_read: work.read,
            latency: latencies.latency(),
            done: done.min(1.0),
            conflicts: work.conflicts,
        })
    }

    fn share(&self, elapsed: Duration) -> f64 {
        let time = elapsed.as_secs_f64() / self.time.as_secs_f64().max(1e-9);
        let begun = self.begun.load(Ordering::Relaxed);
        let share =
            if self.calls <= 1 || self.calls == u64::MAX { time } else { begun as f64 / self.calls as f64 };
        share.clamp(0.0, 1.0)
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || Instant::now() >= self.ends
    }
}

impl Work {
    fn and(self, other: Work) -> Work {
        Work {
            operations: self.operations + other.operations,
            written: self.written + other.written,
            read: self.read + other.read,
            cut: self.cut || other.cut,
            conflicts: self.conflicts + other.conflicts,
        }
    }
}

/// One thread.
struct Hand<'a> {
    scene: &'a Scene<'a>,
    session: Box<dyn Session + 'a>,
    random: SmallRng,
    key: Vec<u8>,
    value: Vec<u8>,
    /// Records of a batch, each key and value.
    batch: Vec<(Vec<u8>, Vec<u8>)>,
    keys: Vec<Vec<u8>>,
    numbers: Vec<u64>,
}

impl<'a> Hand<'a> {
    fn new(scene: &'a Scene<'a>, random: SmallRng) -> Result<Self> {
        let session = scene.engine.session()?;
        let (key, value) = (Vec::new(), Vec::new());
        let keys = vec![Vec::new(); KEYS];
        Ok(Self { scene, session, random, key, value, batch: Vec::new(), keys, numbers: vec![0; KEYS] })
    }

    fn run(mut self) -> Result<Tally> {
        let mut tally = Tally { latencies: Latencies::new(), work: Work::default(), calls: 0 };
        // Within a time, a thread makes a call also if it gets its processor when that is over: none is no figure.
        let least = u64::from(self.scene.calls == u64::MAX);
        while tally.calls < least || !self.scene.is_over() {
            let call = self.scene.begun.fetch_add(1, Ordering::Relaxed);
            if call >= self.scene.calls {
                break;
            }
            self.prepare(call);
            let began = Instant::now();
            let work = self.call(call)?;
            tally.latencies.add(began.elapsed());
            tally.work = tally.work.and(work);
            tally.calls += 1;
        }
        Ok(tally)
    }

    /// What is made before the clock of a call runs.
    fn prepare(&mut self, call: u64) {
        let Scene { workload, records, held, .. } = *self.scene;
        match workload {
            Workload::RandomLoad | Workload::SortedLoad | Workload::DeleteHalf => {
                let all = if workload == Workload::DeleteHalf { records.count / 2 } else { records.count };
                let places = call * BATCH..((call + 1) * BATCH).min(all);
                self.batch.resize_with((places.end - places.start) as usize, Default::default);
                for ((key, value), place) in self.batch.iter_mut().zip(places) {
                    let number =
                        if workload == Workload::SortedLoad { 2 * place } else { held.at_random(place) };
                    records.key(number, key);
                    records.value(number, 0, value);
                }
            }
            Workload::MultiGet => {
                for (key, number) in self.keys.iter_mut().zip(&mut self.numbers) {
                    *number = held.choose(&self.scene.choice, &mut self.random);
                    records.key(*number, key);
                }
            }
            _ if workload.is_transactional() => {
                for at in 0..OF_A_TRANSACTION {
                    let number = loop {
                        let number = held.choose(&self.scene.choice, &mut self.random);
                        if !self.numbers[..at].contains(&number) {
                            break number;
                        }
                    };
                    self.numbers[at] = number;
                    records.key(number, &mut self.keys[at]);
                }
            }
            _ => {}
        }
    }

    fn call(&mut self, call: u64) -> Result<Work> {
        let scene = self.scene;
        match scene.workload {
            Workload::RandomLoad | Workload::SortedLoad => self.write_batch(false),
            Workload::DeleteHalf => self.write_batch(true),
            Workload::DurablePut1 | Workload::DurablePut16 => {
                self.put(scene.held.at_random(call % scene.records.count))
            }
            Workload::Get1 | Workload::Get4 | Workload::Get16 | Workload::YcsbC => self.get(),
            Workload::MultiGet => self.multi_get(),
            Workload::Scan100 => self.scan(100),
            Workload::Scan10k => self.scan(10_000),
            Workload::ScanAll | Workload::ScanDeleted => self.scan_all(),
            Workload::YcsbA => self.read_or(0.5, Self::update),
            Workload::YcsbB => self.read_or(0.95, Self::update),
            Workload::YcsbD => self.read_or(0.95, Self::insert),
            Workload::YcsbF => self.read_or(0.5, Self::read_modify_write),
            Workload::YcsbE => {
                if self.random.random_bool(0.95) {
                    let len = self.random.random_range(1..=100);
                    self.scan(len).map(|work| Work { operations: 1, ..work })
                } else {
                    self.insert()
                }
            }
            Workload::Update | Workload::OpenKilled => self.update(),
            Workload::Tx1
            | Workload::Tx4
            | Workload::Tx16
            | Workload::TxZipf1
            | Workload::TxZipf4
            | Workload::TxZipf16
            | Workload::DurableTx1
            | Workload::DurableTx4
            | Workload::DurableTx16
            | Workload::DurableTxZipf1
            | Workload::DurableTxZipf4
            | Workload::DurableTxZipf16 => self.transact(),
        }
    }

    fn choose(&mut self) -> u64 {
        self.scene.held.choose(&self.scene.choice, &mut self.random)
    }

    fn read_or(&mut self, reads: f64, other: fn(&mut Self) -> Result<Work>) -> Result<Work> {
        if self.random.random_bool(reads) { self.get() } else { other(self) }
    }

    fn get(&mut self) -> Result<Work> {
        let number = self.choose();
        self.get_number(number)
    }

    fn get_number(&mut self, number: u64) -> Result<Work> {
        let records = self.scene.records;
        records.key(number, &mut self.key);
        let mut fits = None;
        self.session.get(&self.key, &mut |value| fits = Some(records.fits(number, value)))?;
        match fits {
            Some(true) => Ok(Work { operations: 1, read: records.len(), ..Work::default() }),
            found => Err(wrong("get", number, found)),
        }
    }

    fn multi_get(&mut self) -> Result<Work> {
        let (records, numbers) = (self.scene.records, &self.numbers);
        let mut right = [false; KEYS];
        self.session.multi_get(&self.keys, &mut |at, value| right[at] = records.fits(numbers[at], value))?;
        match right.iter().position(|right| !right) {
            None => {
                let keys = KEYS as u64;
                Ok(Work { operations: keys, read: keys * records.len(), ..Work::default() })
            }
            Some(at) => Err(wrong("multi_get", numbers[at], None)),
        }
    }

    fn scan(&mut self, len: u64) -> Result<Work> {
        let number = self.choose();
        self.scan_from(number, len, false)
    }

    fn scan_all(&mut self) -> Result<Work> {
        let held = self.scene.held.count();
        let work = self.scan_from(0, u64::MAX, true)?;
        if !work.cut && work.operations != held {
            let what = format!("{} records came, {held} are there", work.operations);
            return Err(Failed::new("full scan", what));
        }
        Ok(work)
    }

    /// `from_start`: the first record may be any.
    fn scan_from(&mut self, number: u64, len: u64, from_start: bool) -> Result<Work> {
        let (scene, records) = (self.scene, self.scene.records);
        records.key(number, &mut self.key);
        let (mut seen, mut bad, mut cut, mut last) = (0, None, false, None);
        self.session.scan(&self.key, len, &mut |key, value| {
            let found = records.number(key);
            let first = from_start || last.is_some() || found == Some(number);
            let fits = found.is_some_and(|found| records.fits(found, value));
            if !first || !fits || last >= found {
                bad = Some(found.unwrap_or(number));
                return false;
            }
            (last, seen) = (found, seen + 1);
            cut = seen % 1024 == 0 && len > 10_000 && scene.is_over();
            seen < len && !cut
        })?;
        match bad {
            Some(number) => Err(wrong("scan", number, Some(false))),
            None if seen == 0 => Err(wrong("scan", number, None)),
            None => Ok(Work { operations: seen, read: seen * records.len(), cut, ..Work::default() }),
        }
    }

    fn update(&mut self) -> Result<Work> {
        let number = self.choose();
        self.put(number)
    }

    fn insert(&mut self) -> Result<Work> {
        // When as many were inserted as were loaded, updates take their place.
        let Some(ticket) = self.scene.held.insert() else { return self.update() };
        let work = self.put(self.scene.held.inserted_number(ticket))?;
        self.scene.held.insert_done(ticket);
        Ok(work)
    }

    fn read_modify_write(&mut self) -> Result<Work> {
        let number = self.choose();
        let work = self.get_number(number)?.and(self.put(number)?);
        Ok(Work { operations: 1, ..work })
    }

    /// Adds one to the numbers in records that were chosen before.
    fn transact(&mut self) -> Result<Work> {
        let (records, numbers) = (self.scene.records, &self.numbers);
        let conflicts = self.session.modify(&self.keys[..OF_A_TRANSACTION], &mut |at, value| {
            let fitting = value.filter(|value| records.fits(numbers[at], value));
            let number = fitting.and_then(number_in);
            let (Some(value), Some(number)) = (fitting, number) else {
                return Err(wrong("a transaction's read", numbers[at], value.map(|_| false)));
            };
            let mut value = value.to_vec();
            value[NUMBER].copy_from_slice(&number.wrapping_add(1).to_le_bytes());
            Ok(value)
        })?;
        let bytes = OF_A_TRANSACTION as u64 * records.len();
        Ok(Work { operations: 1, written: bytes, read: bytes, conflicts, ..Work::default() })
    }

    fn put(&mut self, number: u64) -> Result<Work> {
        let records = self.scene.records;
        records.key(number, &mut self.key);
        records.value(number, self.scene.held.next_version(), &mut self.value);
        self.session.write(&[Change::Put(&self.key, &self.value)])?;
        Ok(Work { operations: 1, written: records.len(), ..Work::default() })
    }

    fn write_batch(&mut self, remove: bool) -> Result<Work> {
        let changes: Vec<_> = self
            .batch
            .iter()
            .map(|(key, value)| if remove { Change::Remove(key) } else { Change::Put(key, value) })
            .collect();
        self.session.write(&changes)?;
        let count = changes.len() as u64;
        if remove {
            self.scene.held.removed(count);
        }
        Ok(Work { operations: count, written: count * self.scene.records.len(), ..Work::default() })
    }
}

fn wrong(doing: &str, number: u64, found: Option<bool>) -> Failed {
    let what = if found.is_none() { "is not there" } else { "has another's value, or is out of order" };
    Failed::new(doing, format!("record number {number} {what}"))
}
