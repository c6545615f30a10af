//! Every workload on a store that is right, and on stores that are wrong.

#![allow(clippy::unwrap_used, reason = "a failed test is what it is for")]

use arena::{
    Answer, Change, Engine, Failed, Held, Kind, Level, Limits, Modify, Open, Order, Outcome, Records, Result,
    Session, Settings, Start, Workload, drive, serve,
};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// A store in memory; with a fault, one that is wrong in that way.
#[derive(Default)]
struct Memory {
    map: RwLock<Map>,
    fault: Fault,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Fault {
    #[default]
    None,
    /// Every hundredth write is forgotten.
    Forgets,
    /// Gives another record's value.
    Mixes,
    /// Scans backwards.
    Reverses,
    /// Lets others write between the reads and the writes of a transaction.
    Races,
}

impl Engine for Memory {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Hand(self, 0)))
    }
    fn sync(&self) -> Result<()> {
        Ok(())
    }
    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

struct Hand<'a>(&'a Memory, u64);

impl Session for Hand<'_> {
    fn get(&mut self, key: &[u8], show: &mut dyn FnMut(&[u8])) -> Result<()> {
        let map = self.0.map.read();
        let found = match self.0.fault {
            Fault::Mixes => map.range(key.to_vec()..).nth(1).map(|record| record.1),
            _ => map.get(key),
        };
        if let Some(value) = found {
            show(value);
        }
        Ok(())
    }
    fn scan(&mut self, from: &[u8], _: u64, show: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let map = self.0.map.read();
        let mut records: Vec<_> = map.range(from.to_vec()..).take(20_000).collect();
        if self.0.fault == Fault::Reverses {
            records.reverse();
        }
        records.into_iter().all(|(key, value)| show(key, value));
        Ok(())
    }
    fn write(&mut self, changes: &[Change<'_>]) -> Result<()> {
        let mut map = self.0.map.write();
        for change in changes {
            self.1 += 1;
            match *change {
                _ if self.0.fault == Fault::Forgets && self.1.is_multiple_of(100) => {}
                Change::Put(key, value) => drop(map.insert(key.to_vec(), value.to_vec())),
                Change::Remove(key) => drop(map.remove(key)),
            }
        }
        Ok(())
    }
    fn modify(&mut self, keys: &[Vec<u8>], change: &mut Modify<'_>) -> Result<u64> {
        let mut map = self.0.map.write();
        let changed = keys
            .iter()
            .enumerate()
            .map(|(at, key)| Ok((key.clone(), change(at, map.get(key).map(Vec::as_slice))?)));
        let changed = changed.collect::<Result<Vec<_>>>()?;
        if self.0.fault == Fault::Races {
            drop(map);
            std::thread::yield_now();
            map = self.0.map.write();
        }
        map.extend(changed);
        // As if it had been repeated once.
        Ok(1)
    }
}

const RECORDS: Records =
    Records { count: 3000, key_len: 16, value_len: 24, kind: Kind::Incompressible, text: None };

const LIMITS: Limits = Limits {
    cap: Duration::from_secs(30),
    steady: Duration::from_millis(100),
    warm_up: Duration::from_millis(5),
};

#[test]
fn every_workload_runs_and_counts_what_it_did() {
    let held = Held::new(RECORDS.count, 0);
    let engine = Memory::default();
    for workload in Workload::ALL {
        if workload.start() == Start::Empty {
            engine.map.write().clear();
        }
        let limits = match workload {
            Workload::OpenKilled => Limits { cap: LIMITS.steady, ..LIMITS },
            _ => LIMITS,
        };
        if *workload == Workload::Get1 {
            // The puts of the workload before may not have come to all records.
            drive(Workload::SortedLoad, &engine, &RECORDS, &held, &LIMITS, 1, &mut |_| ()).unwrap();
        }
        let writes = workload.writes() || *workload == Workload::OpenKilled;
        let run = |seed| drive(*workload, &engine, &RECORDS, &held, &limits, seed, &mut |_| ()).unwrap();
        // In some, one call of twenty writes, and on a busy machine a thread makes one call.
        let is_enough = |outcome: &Outcome| !writes || outcome.bytes_written > 0;
        let outcome = (1..100).map(run).find(is_enough).expect("it writes");
        assert!(outcome.operations > 0 && outcome.seconds > 0.0, "{workload}: {outcome:?}");
        assert_eq!(outcome.done, 1.0, "{workload}");
        assert_eq!(outcome.bytes_written > 0, writes, "{workload}");
        assert!(outcome.latency.p50_us <= outcome.latency.p999_us, "{workload}: {outcome:?}");
        let expected = match workload {
            Workload::RandomLoad | Workload::SortedLoad => Some((RECORDS.count, 3)),
            Workload::Update => Some((2 * RECORDS.count, 2 * RECORDS.count)),
            Workload::DeleteHalf => Some((RECORDS.count / 2, 2)),
            Workload::ScanAll | Workload::ScanDeleted => Some((held.count(), 1)),
            _ => None,
        };
        let conflicts = if workload.is_transactional() { outcome.calls } else { 0 };
        assert_eq!(outcome.conflicts, conflicts, "{workload}");
        if let Some(expected) = expected {
            assert_eq!((outcome.operations, outcome.calls), expected, "{workload}");
        }
    }
    assert!(held.inserted() > 0);
    assert_eq!(engine.map.read().len() as u64, held.count());
}

/// The device's counters cannot tell a warm-up's traffic from what is measured.
#[test]
fn bytes_of_the_warm_up_count_and_its_calls_do_not() {
    let (held, engine) = (Held::new(RECORDS.count, 0), Memory::default());
    drive(Workload::SortedLoad, &engine, &RECORDS, &held, &LIMITS, 1, &mut |_| ()).unwrap();
    let record = (RECORDS.key_len + RECORDS.value_len) as u64;
    let read = |warm_up| {
        let limits = Limits { warm_up, ..LIMITS };
        let outcome = drive(Workload::Get1, &engine, &RECORDS, &held, &limits, 1, &mut |_| ()).unwrap();
        assert_eq!(outcome.calls, outcome.operations);
        let warm_up = outcome.warm_up_operations.unwrap();
        assert_eq!(outcome.bytes_read, (outcome.operations + warm_up) * record, "each has its bytes");
        (outcome.bytes_read, outcome.operations * record)
    };
    let (all, measured) = read(Duration::ZERO);
    assert_eq!(all, measured);
    let (all, measured) = read(LIMITS.steady);
    assert!(all > measured, "{all}, {measured} measured");
    let transactions = drive(Workload::Tx1, &engine, &RECORDS, &held, &LIMITS, 1, &mut |_| ()).unwrap();
    assert_eq!(transactions.warm_up_operations, None, "the check reads all records besides");
}

#[test]
fn a_store_that_is_wrong_gets_no_figures() {
    for (fault, workloads) in [
        (Fault::Forgets, &[Workload::ScanAll, Workload::Get1, Workload::MultiGet][..]),
        (Fault::Mixes, &[Workload::Get4, Workload::MultiGet, Workload::YcsbF]),
        (Fault::Reverses, &[Workload::Scan100, Workload::ScanAll, Workload::YcsbE]),
    ] {
        for workload in workloads {
            let engine = Memory { fault, ..Memory::default() };
            let held = Held::new(RECORDS.count, 0);
            drive(Workload::RandomLoad, &engine, &RECORDS, &held, &LIMITS, 1, &mut |_| ()).unwrap();
            let limits = Limits { steady: Duration::from_secs(5), ..LIMITS };
            drive(*workload, &engine, &RECORDS, &held, &limits, 1, &mut |_| ()).unwrap_err();
        }
    }
}

/// Found out at the end, when the numbers in the records are added up.
#[test]
fn a_store_that_loses_updates_gets_no_figures() {
    for workload in [Workload::TxZipf4, Workload::DurableTxZipf16] {
        let held = Held::new(RECORDS.count, 0);
        let engine = Memory { fault: Fault::Races, ..Memory::default() };
        drive(Workload::RandomLoad, &engine, &RECORDS, &held, &LIMITS, 1, &mut |_| ()).unwrap();
        let limits = Limits { steady: Duration::from_millis(300), ..LIMITS };
        let began = Instant::now();
        // Threads that do not meet lose nothing.
        let error = loop {
            match drive(workload, &engine, &RECORDS, &held, &limits, 1, &mut |_| ()) {
                Ok(_) => assert!(began.elapsed() < Duration::from_secs(60), "{workload}: nothing is found"),
                Err(error) => break error,
            }
        };
        assert!(error.to_string().contains("updates are lost"), "{error}");
    }
}

#[test]
fn transactions_need_room_for_a_number_in_each_value() {
    let records = Records { value_len: 15, ..RECORDS };
    let held = Held::new(records.count, 0);
    let engine = Memory::default();
    let error = drive(Workload::Tx1, &engine, &records, &held, &LIMITS, 1, &mut |_| ()).unwrap_err();
    assert!(error.to_string().contains("16 bytes"), "{error}");
}

#[test]
fn a_cap_ends_a_load_and_tells_how_far_it_came() {
    struct Slow(Memory);
    impl Engine for Slow {
        fn session(&self) -> Result<Box<dyn Session + '_>> {
            std::thread::sleep(Duration::from_millis(30));
            self.0.session()
        }
        fn sync(&self) -> Result<()> {
            Ok(())
        }
        fn close(self: Box<Self>) -> Result<()> {
            Ok(())
        }
    }
    let held = Held::new(1 << 30, 0);
    let records = Records { count: 1 << 30, ..RECORDS };
    let limits = Limits { cap: Duration::from_millis(50), ..LIMITS };
    let slow = Slow(Memory::default());
    let outcome = drive(Workload::RandomLoad, &slow, &records, &held, &limits, 1, &mut |_| ()).unwrap();
    assert!(outcome.done < 0.1 && outcome.operations < 1 << 25, "{outcome:?}");
}

fn open(name: &str, _: &Settings) -> Result<Box<dyn Engine>> {
    match name {
        "memory" => Ok(Box::new(Memory::default())),
        _ => Err(Failed::new("open", "no such store")),
    }
}

fn ask(orders: &[Order]) -> Vec<Answer> {
    let input: String = orders.iter().map(|order| serde_json::to_string(order).unwrap() + "\n").collect();
    let mut output = Vec::new();
    serve(input.as_bytes(), &mut output, open).unwrap();
    String::from_utf8(output).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn opening(engine: &str) -> Order {
    Order::Open(Open {
        engine: engine.into(),
        settings: Settings {
            dir: "unused".into(),
            memory: 1 << 20,
            bytes: 1 << 20,
            key_len: RECORDS.key_len,
            value_len: RECORDS.value_len,
            level: Level::Buffered,
            values: RECORDS.kind,
            codec: arena::Codec::Lz4,
            disk: Default::default(),
            transactions: false,
        },
        records: RECORDS,
        text: None,
        loaded: false,
        inserted: 0,
    })
}

#[test]
fn a_worker_obeys_and_refuses_in_words() {
    let run = Order::Run { workload: Workload::RandomLoad, limits: LIMITS, seed: 1 };
    let get = Order::Run { workload: Workload::Get16, limits: LIMITS, seed: 1 };
    let answers = ask(&[opening("memory"), run.clone(), get, Order::Close, run.clone()]);
    let [Answer::Opened { .. }, .., Answer::Closed, Answer::Failed { reason, .. }] = &answers[..] else {
        panic!("{answers:?}")
    };
    assert_eq!(reason, "no store is open");
    assert_eq!(answers.iter().filter(|answer| matches!(answer, Answer::Ran { .. })).count(), 2);
    assert!(
        matches!(&ask(&[opening("disk")])[..], [Answer::Failed { reason, .. }] if reason == "no such store")
    );
    let mut output = Vec::new();
    serve(&b"nonsense\n"[..], &mut output, open).unwrap();
    assert!(String::from_utf8(output).unwrap().contains("read an order"));
}

#[test]
fn a_database_that_should_be_loaded_and_is_not_does_not_open() {
    let Order::Open(order) = opening("memory") else { panic!() };
    let answers = ask(&[Order::Open(Open { loaded: true, ..order })]);
    assert!(matches!(&answers[..], [Answer::Failed { .. }]), "{answers:?}");
}
