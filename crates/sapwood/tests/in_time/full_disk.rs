//! What a flush writes while the disk is full, who is told, and how soon it goes on when there is space again.

use psync::{Access, Fault, FileId, Filter, OperationKind, PassThrough, Repeat, Simulated, Volume, Write};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Database, Durability, Error, Keyspace};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A volume on which the log, the manifest and the reserve find space, and the data only so much.
struct Narrow {
    inner: Simulated,
    /// Writes of data.
    calls: AtomicU64,
    /// Bytes that all but the log may take.
    room: AtomicU64,
    /// Bytes of data that were to be written.
    tried: AtomicU64,
    data: Mutex<Option<FileId>>,
}

impl Narrow {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: Simulated::new(1),
            calls: AtomicU64::new(0),
            room: AtomicU64::new(u64::MAX),
            tried: AtomicU64::new(0),
            data: Mutex::default(),
        })
    }

    /// Bytes of the log and of the reserve, as they take space.
    fn log(&self) -> u64 {
        let entries = Volume::list(&self.inner).expect("a list");
        let logs = entries.iter().filter(|entry| entry.name.starts_with("wal-") || entry.name == "reserve");
        logs.map(|entry| entry.len.next_multiple_of(4096)).sum()
    }

    /// Leaves so much space to the data beyond what it has.
    fn leave(&self, bytes: u64) {
        self.room.store(self.inner.used() - self.log() + bytes, SeqCst);
    }
}

impl PassThrough for Narrow {
    fn inner(&self) -> &dyn Volume {
        &self.inner
    }

    fn open(&self, name: &str, access: Access) -> psync::Result<FileId> {
        let file = Volume::open(&self.inner, name, access)?;
        if name == "data" {
            *self.data.lock().expect("no poison") = Some(file);
        }
        Ok(file)
    }

    fn allocate(&self, file: FileId, range: Range<u64>) -> psync::Result<()> {
        self.inner.set_capacity(u64::MAX);
        psync::Device::allocate(&self.inner, file, range)
    }

    fn write(&self, set: &[Write<'_>]) -> psync::Result<()> {
        let data = self.data.lock().expect("no poison");
        let is_data = set.iter().any(|write| Some(write.file) == *data);
        if is_data {
            self.calls.fetch_add(1, SeqCst);
            self.tried.fetch_add(set.iter().map(|write| write.data.len() as u64).sum(), SeqCst);
        }
        let room = self.room.load(SeqCst);
        let capacity = if is_data { room.saturating_add(self.log()) } else { u64::MAX };
        self.inner.set_capacity(capacity);
        psync::Device::write(&self.inner, set)
    }
}

const VALUE: usize = 100;
const RECORDS: u32 = 40_000;

struct Writer {
    keyspace: Keyspace,
    db: Database,
    rng: StdRng,
}

impl Writer {
    fn new(volume: &Arc<Narrow>, background: usize) -> Self {
        let shared: Arc<dyn Volume> = Arc::clone(volume) as Arc<dyn Volume>;
        let options =
            Database::builder().memory(12 << 20).segment_span(1 << 20).background_threads(background);
        let db = options.open_on(shared).expect("opens");
        let keyspace = db.keyspace("main").expect("a keyspace");
        let mut writer = Self { keyspace, db, rng: StdRng::seed_from_u64(1) };
        for start in (0..RECORDS).step_by(100) {
            writer.put(start..start + 100).expect("commits");
        }
        writer.db.flush().expect("flushes");
        writer
    }

    fn put(&mut self, numbers: impl Iterator<Item = u32>) -> Result<(), Error> {
        let mut batch = self.db.batch();
        for number in numbers {
            let value: [u8; VALUE] = std::array::from_fn(|_| self.rng.random());
            batch.insert(&self.keyspace, format!("{number:08}"), value);
        }
        batch.durability(Durability::Buffered).commit()
    }

    /// Updates until somebody says that the disk is full.
    fn put_until_full(&mut self) {
        let until = Instant::now() + Duration::from_secs(120);
        loop {
            assert!(Instant::now() < until, "nobody says that the disk is full");
            let numbers: Vec<u32> = (0..20).map(|_| self.rng.random_range(0..RECORDS)).collect();
            match self.put(numbers.into_iter()) {
                Ok(()) => {}
                Err(error) if error.is_disk_full() => return,
                Err(other) => panic!("a full disk is no {other}"),
            }
        }
    }

    fn goes_on(&mut self) {
        self.put(0..100).expect("there is space");
        self.db.flush().expect("flushes");
        assert_eq!(self.db.check().expect("sound").records, u64::from(RECORDS));
    }
}

/// Bytes of data that were to be written in two seconds of which nothing was published: on a busy machine the writer may hear of the full disk
/// while the last portion that fits is still on its way.
fn tried_in_vain(volume: &Narrow, db: &Database) -> u64 {
    for _ in 0..10 {
        let published = || db.stats().writes.manifest_bytes;
        let (before, was_published, began) = (volume.tried.load(SeqCst), published(), Instant::now());
        std::thread::sleep(Duration::from_secs(2));
        let (tried, took) = (volume.tried.load(SeqCst) - before, began.elapsed());
        if published() == was_published {
            return (tried as f64 * 2.0 / took.as_secs_f64()) as u64;
        }
    }
    panic!("the disk is full, and something is published all the time");
}

#[test]
fn a_full_disk_is_not_written_to_again_and_again_and_space_is_soon_noticed() {
    let volume = Narrow::new();
    let mut writer = Writer::new(&volume, 1);
    volume.leave(1 << 20);
    writer.put_until_full();
    let tried = tried_in_vain(&volume, &writer.db);
    assert!(tried < 2 << 20, "{tried} bytes of data in two seconds that came to nothing");
    // Whoever asks is answered at once, not after what is left of a pause of 200 ms and more, which begins anew with each: some are, however busy the
    // machine is.
    let mut answers = Vec::new();
    while answers.iter().filter(|took| **took < Duration::from_millis(150)).count() < 3 {
        let began = Instant::now();
        assert!(writer.db.flush().expect_err("there is no space").is_disk_full());
        answers.push(began.elapsed());
        assert!(answers.len() < 60, "{answers:?}");
    }
    let (calls, flushes) = (volume.calls.load(SeqCst), writer.db.stats().writes.flushes);
    volume.room.store(u64::MAX, SeqCst);
    let began = Instant::now();
    while volume.calls.load(SeqCst) == calls {
        assert!(began.elapsed() < Duration::from_secs(10), "there is space, and nobody writes");
        std::thread::sleep(Duration::from_millis(1));
    }
    while writer.db.stats().writes.flushes == flushes {
        assert!(began.elapsed() < Duration::from_secs(60), "there is space, and no flush ends");
        std::thread::sleep(Duration::from_millis(1));
    }
    writer.goes_on();
}

#[test]
fn a_commit_does_not_write_the_queue_anew_on_a_full_disk() {
    let volume = Narrow::new();
    let mut writer = Writer::new(&volume, 0);
    volume.leave(1 << 20);
    let before = volume.tried.load(SeqCst);
    // A queue is frozen after some 13,000, and does not fit; another has room.
    for _ in 0..1000 {
        let numbers: Vec<u32> = (0..20).map(|_| writer.rng.random_range(0..RECORDS)).collect();
        writer.put(numbers.into_iter()).expect("there is room in the queue");
    }
    assert_eq!(writer.db.stats().writes.changes_queued, 20_000, "a flush has found space");
    let tried = volume.tried.load(SeqCst) - before;
    assert!(tried < 8 << 20, "{tried} bytes of data that came to nothing");
    volume.room.store(u64::MAX, SeqCst);
    writer.goes_on();
}

/// A file system may have no room for another file, as when it has no inodes left, and still have some for those there are: the queue, which
/// cannot be frozen without a new log, used to grow beyond all bounds.
#[test]
fn a_queue_that_cannot_be_frozen_does_not_grow_without_end() {
    for background in [0, 1] {
        let volume = Narrow::new();
        let mut writer = Writer::new(&volume, background);
        let files = Filter::kinds([OperationKind::Open]).file("wal-");
        volume.inner.fail_nth(files, 1, Fault::NoSpace, Repeat::Sticky);
        writer.put_until_full();
        let queues = writer.db.stats().memory.queues;
        assert!(queues <= 3 << 20, "{queues} bytes of queue of a budget of 8 MiB");
        volume.inner.clear_faults();
        writer.goes_on();
    }
}

/// Where there is no space for a new manifest the old one goes on, and not every edit tries to write another.
#[test]
fn a_manifest_without_space_for_a_checkpoint_does_not_try_it_with_each_edit() {
    let volume = Simulated::new(1);
    let shared: Arc<dyn Volume> = Arc::new(volume.clone());
    let options = Database::builder().memory(8 << 20).leaf_len(512).background_threads(0);
    let db = options.open_on(shared).expect("opens");
    let keyspace = db.keyspace("main").expect("a keyspace");
    let name = "manifest-000003";
    volume.fail_nth(Filter::kinds([OperationKind::Write]).file(name), 1, Fault::NoSpace, Repeat::Sticky);
    let mut rng = StdRng::seed_from_u64(1);
    let (mut edits, mut rounds) = (0, 0);
    while edits < 30 {
        let mut batch = db.batch();
        for _ in 0..4000 {
            batch.insert(&keyspace, rng.random_range(0..40_000u32).to_be_bytes(), [rounds as u8; 100]);
        }
        batch.durability(Durability::Buffered).commit().expect("commits");
        db.flush().expect("flushes");
        edits += u32::from(volume.fired() > 0);
        rounds += 1;
        assert!(rounds < 1000, "no checkpoint is ever due");
    }
    assert!(volume.fired() < 8, "{} checkpoints were tried by some {edits} edits", volume.fired());
    let names: Vec<_> = volume.list().expect("a list").into_iter().map(|entry| entry.name).collect();
    assert!(!names.iter().any(|found| found == name), "what was begun is no more: {names:?}");
    volume.clear_faults();
    db.check().expect("sound");
}
