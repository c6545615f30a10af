//! Followers in processes of their own beside a writer that flushes and collects, with SIGKILLs of either side: what each sees are whole
//! commits in their order, all that were acknowledged as durable, and what its snapshots see stays.

#![cfg(unix)]

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Builder, Database, Durability, Snapshot};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Longer than some hundred commits and a few kills take on a slow disk.
const ENDS_WITHIN: Duration = Duration::from_secs(600);
const SLOTS: u64 = 400;
const KEYS: u64 = 5;
const COUNTER: &str = "counter";

fn builder() -> Builder {
    Database::builder().memory(4 << 20).leaf_len(1024).segment_span(1 << 20)
}

fn slot_key(slot: u64, key: u64) -> Vec<u8> {
    format!("{slot:04}-{key}").into_bytes()
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"))
}

/// Which commit a snapshot sees last, after a look at whether it sees all of each one and of those before.
fn seen(db: &Database, snapshot: &Snapshot) -> u64 {
    let Ok(main) = db.keyspace("main") else { return 0 };
    let last = snapshot.get(&main, COUNTER).expect("sound").map_or(0, |value| number(&value));
    for slot in 0..SLOTS {
        // The newest commit of this slot.
        let expected = (last + SLOTS - slot) / SLOTS * SLOTS + slot;
        let expected = if expected > last { expected.saturating_sub(SLOTS) } else { expected };
        let keys: Vec<_> = (0..KEYS).map(|key| slot_key(slot, key)).collect();
        for value in snapshot.multi_get(&main, &keys).expect("sound") {
            assert_eq!(value.map_or(0, |value| number(&value)), expected, "slot {slot} after commit {last}");
        }
    }
    last
}

/// A child: writes until it is killed. Does nothing in an ordinary run of the tests.
#[test]
fn writes_until_killed() {
    let Ok(path) = std::env::var("SAPWOOD_FOLLOWED_PATH") else { return };
    let db = builder().open(path).expect("opens");
    let main = db.keyspace("main").expect("a keyspace");
    let mut at = main.get(COUNTER).expect("sound").map_or(0, |value| number(&value));
    println!("ready");
    loop {
        at += 1;
        let mut value = at.to_le_bytes().to_vec();
        value.resize(300, at as u8);
        let mut batch = db.batch();
        for key in 0..KEYS {
            batch.insert(&main, slot_key(at % SLOTS, key), &value);
        }
        batch.insert(&main, COUNTER, at.to_le_bytes());
        let is_durable = at.is_multiple_of(16);
        let durability = if is_durable { Durability::Immediate } else { Durability::Buffered };
        batch.durability(durability).commit().expect("commits");
        if at.is_multiple_of(3000) {
            db.compact().expect("compacts");
        }
        if is_durable {
            let line = format!("ack {at}\n");
            std::io::stdout().lock().write_all(line.as_bytes()).expect("a pipe");
        }
    }
}

/// A child: follows until it is killed.
#[test]
fn follows_until_killed() {
    let Ok(path) = std::env::var("SAPWOOD_FOLLOWING_PATH") else { return };
    let db = builder().follow(true).open(path).expect("it can be followed");
    println!("ready");
    let (mut last, mut held): (u64, Vec<(u64, Snapshot)>) = (0, Vec::new());
    for round in 0u64.. {
        db.refresh().expect("it can be followed");
        let snapshot = db.snapshot();
        let now = seen(&db, &snapshot);
        assert!(now >= last, "{now} after {last}");
        last = now;
        if round.is_multiple_of(5) {
            held.push((now, snapshot));
        }
        if held.len() > 4 {
            let (then, snapshot) = held.remove(0);
            assert_eq!(seen(&db, &snapshot), then);
        }
        println!("ack {now}");
    }
}

/// A process, and what it has acknowledged.
struct Process {
    child: Child,
    acknowledged: Arc<AtomicU64>,
}

impl Process {
    fn start(test: &str, variable: &str, path: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", test, "--nocapture"])
            .env(variable, path)
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("a child");
        let acknowledged = Arc::new(AtomicU64::new(0));
        let (mut lines, ack) =
            (BufReader::new(child.stdout.take().expect("a pipe")), Arc::clone(&acknowledged));
        let mut line = String::new();
        while !line.starts_with("ready") {
            line.clear();
            assert!(lines.read_line(&mut line).expect("a line") > 0, "the child never got ready");
        }
        std::thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                if let Some(number) = line.strip_prefix("ack ").and_then(|number| number.parse().ok()) {
                    ack.fetch_max(number, SeqCst);
                }
            }
        });
        Self { child, acknowledged }
    }

    fn writer(path: &Path) -> Self {
        Self::start("followers::writes_until_killed", "SAPWOOD_FOLLOWED_PATH", path)
    }

    fn follower(path: &Path) -> Self {
        Self::start("followers::follows_until_killed", "SAPWOOD_FOLLOWING_PATH", path)
    }

    fn acknowledged(&self) -> u64 {
        self.acknowledged.load(SeqCst)
    }

    /// Kills it. One that has ended by itself has found something wrong.
    fn kill(&mut self) {
        let ended = self.child.try_wait().expect("a state");
        assert!(ended.is_none(), "a child has ended by itself: {ended:?}");
        self.child.kill().expect("killed");
        self.child.wait().expect("dead");
    }
}

/// This process follows as well, through all lives of the writer, until it has followed so many commits and killed so many processes of each
/// kind. Returns how many commits it has seen.
fn follow(time: Duration, commits: u64, kills: u32, seed: u64) -> u64 {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("db");
    let mut rng = StdRng::seed_from_u64(seed);
    let mut writer = Process::writer(&path);
    let mut follower = Process::follower(&path);
    let db = builder().follow(true).open(&path).expect("it can be followed");
    let (mut last, mut held) = (0, None);
    let (mut writers, mut followers) = (0, 0);
    let began = Instant::now();
    while began.elapsed() < time || last <= commits || writers < kills || followers < kills {
        assert!(
            began.elapsed() < time + ENDS_WITHIN,
            "{last} commits, {writers} writers and {followers} followers killed"
        );
        let until = Instant::now() + Duration::from_millis(rng.random_range(50..400));
        while Instant::now() < until {
            let least = writer.acknowledged();
            db.refresh().expect("it can be followed");
            let snapshot = db.snapshot();
            let now = seen(&db, &snapshot);
            assert!(now >= least.max(last), "{now} seen, {least} acknowledged, {last} seen before");
            last = now;
            held = held.or(Some((now, snapshot)));
        }
        if rng.random_bool(0.5)
            && let Some((then, snapshot)) = held.take()
        {
            assert_eq!(seen(&db, &snapshot), then);
        }
        if rng.random_bool(0.5) {
            writer.kill();
            writers += 1;
            // Also while there is no writer.
            db.refresh().expect("it can be followed");
            let now = seen(&db, &db.snapshot());
            assert!(now >= writer.acknowledged().max(last), "the last that the killed writer has said");
            last = now;
            writer = Process::writer(&path);
        } else {
            follower.kill();
            followers += 1;
            follower = Process::follower(&path);
        }
    }
    writer.kill();
    follower.kill();
    drop((held, db));
    let db = builder().open(&path).expect("opens");
    assert!(seen(&db, &db.snapshot()) >= last, "what was seen was durable");
    db.check().expect("sound");
    last
}

#[test]
fn beside_a_writer_under_kills() {
    follow(Duration::from_millis(2500), 200, 2, 1);
}

/// `cargo test -p sapwood --release --test crashes followers::for_ten_minutes -- --ignored --nocapture`
#[test]
#[ignore = "takes ten minutes"]
fn for_ten_minutes() {
    println!("{} commits were followed", follow(Duration::from_secs(600), 200, 2, 2));
}
