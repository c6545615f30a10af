//! A process that writes and tells what it was promised, and what is there of it afterwards.
//!
//! Each batch has a number, and a record for each of the last [`SLOTS`] batches, so that flushes have to replace what
//! they have written.

use sapwood::{Database, Durability};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Longer than it takes to open the database on a slow disk, through the journals of one file system on another.
const DURABLE_WITHIN: Duration = Duration::from_secs(600);
const SLOTS: u64 = 5000;
const COUNTER: &str = "counter";
/// Every so many batches one is durable.
const DURABLE: u64 = 5;

pub fn open(path: &Path) -> sapwood::Result<Database> {
    let builder = Database::builder().memory(8 << 20).segment_span(1 << 20);
    builder.compression(sapwood::Compression::None).open(path)
}

fn value(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(20)
}

fn number_of(value: &[u8]) -> u64 {
    u64::from_le_bytes(*value.first_chunk().expect("8 bytes"))
}

/// The child: writes until it is killed or cannot any more. Does nothing in an ordinary run of the tests.
#[test]
fn writes_until_killed() {
    let Ok(path) = std::env::var("SAPWOOD_WRITER_PATH") else { return };
    let db = open(Path::new(&path)).expect("opens");
    let keyspace = db.keyspace("main").expect("a keyspace");
    let mut number = keyspace.get(COUNTER).expect("sound").map_or(0, |value| number_of(&value));
    loop {
        number += 1;
        let mut batch = db.batch();
        // Scattered, so that flushes meet many leaves.
        batch.insert(&keyspace, (number % SLOTS * 7919).to_be_bytes(), value(number));
        batch.insert(&keyspace, COUNTER, value(number));
        let is_durable = number.is_multiple_of(DURABLE);
        let durability = if is_durable { Durability::Immediate } else { Durability::Buffered };
        match batch.durability(durability).commit() {
            Ok(()) if is_durable => {
                // One write of less than PIPE_BUF bytes: whole or not at all.
                let line = format!("durable {number}\n");
                std::io::stdout().lock().write_all(line.as_bytes()).expect("a pipe");
                std::io::stdout().flush().expect("a pipe");
            }
            Ok(()) => {}
            Err(error) if error.is_disk_full() => {
                number -= 1;
                println!("full");
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => panic!("batch {number}: {error}"),
        }
    }
}

/// A child at work.
pub struct Writer {
    child: Child,
    durable: Arc<AtomicU64>,
    full: Arc<AtomicU64>,
    listener: Option<std::thread::JoinHandle<()>>,
}

impl Writer {
    pub fn start(path: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "writer::writes_until_killed", "--nocapture"])
            .env("SAPWOOD_WRITER_PATH", path)
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child");
        let (durable, full) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let (told, refused) = (Arc::clone(&durable), Arc::clone(&full));
        let listener = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some(number) = line.strip_prefix("durable ") {
                    told.store(number.parse().expect("a number"), SeqCst);
                } else if line == "full" {
                    refused.fetch_add(1, SeqCst);
                }
            }
        });
        Self { child, durable, full, listener: Some(listener) }
    }

    /// The last batch of which the child was told that it is durable.
    pub fn durable(&self) -> u64 {
        self.durable.load(SeqCst)
    }

    /// The last such batch, which is later than `batch`: waits for one.
    pub fn after(&mut self, batch: u64) -> u64 {
        let begun = Instant::now();
        while self.durable() <= batch {
            assert!(!self.has_ended(), "the writer ends");
            assert!(begun.elapsed() < DURABLE_WITHIN, "nothing after batch {batch} is durable");
            std::thread::sleep(Duration::from_millis(1));
        }
        self.durable()
    }

    /// How often it was refused for want of space.
    pub fn full(&self) -> u64 {
        self.full.load(SeqCst)
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_some()
    }

    /// Ends it by SIGKILL.
    pub fn kill(mut self) -> u64 {
        self.end();
        self.durable()
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(listener) = self.listener.take() {
            listener.join().expect("no panic");
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.end();
    }
}

/// Checks that what is there is what was written up to some batch that is not older than `at_least`. Says which.
pub fn verify(path: &Path, at_least: u64, story: &str) -> u64 {
    let db = open(path).unwrap_or_else(|error| panic!("{story}: {error}"));
    let keyspace = db.keyspace("main").expect("a keyspace");
    let last = keyspace.get(COUNTER).expect("sound").map_or(0, |value| number_of(&value));
    assert!(last >= at_least, "{story}: batch {at_least} was durable, but {last} is the last that is there");
    for slot in 0..SLOTS {
        let expected = (last / SLOTS * SLOTS + slot).checked_sub(if slot > last % SLOTS { SLOTS } else { 0 });
        let expected = expected.filter(|number| *number > 0);
        let found =
            keyspace.get((slot * 7919).to_be_bytes()).unwrap_or_else(|error| panic!("{story}: {error}"));
        assert_eq!(found.as_deref(), expected.map(value).as_deref(), "{story}: slot {slot} of batch {last}");
    }
    db.check().unwrap_or_else(|error| panic!("{story}: {error:?}"));
    last
}
