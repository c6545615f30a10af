//! Commits that need no sync pass by those that wait for the device, and whoever wants a sync shares it.

use psync::{FileId, PassThrough, Simulated, Volume, Write};
use sapwood::{Database, Durability, Keyspace};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// A device whose syncs take so many milliseconds, or do not end while they are held (for [`HELD_MAX`] at most).
struct SlowSyncs {
    inner: Simulated,
    millis: AtomicU64,
    syncs: AtomicU64,
    is_held: AtomicBool,
    held: AtomicU64,
}

/// So that a test fails, and does not wait for ever, if what it does meanwhile waits for the sync.
const HELD_MAX: Duration = Duration::from_secs(60);

impl SlowSyncs {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: Simulated::new(1),
            millis: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            is_held: AtomicBool::new(false),
            held: AtomicU64::new(0),
        })
    }

    fn wait(&self) {
        self.syncs.fetch_add(1, SeqCst);
        std::thread::sleep(Duration::from_millis(self.millis.load(SeqCst)));
        let began = Instant::now();
        self.held.fetch_add(1, SeqCst);
        while self.is_held.load(SeqCst) && began.elapsed() < HELD_MAX {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.held.fetch_sub(1, SeqCst);
    }
}

impl PassThrough for SlowSyncs {
    fn inner(&self) -> &dyn Volume {
        &self.inner
    }

    fn sync(&self, file: FileId) -> psync::Result<()> {
        self.wait();
        self.inner().sync(file)
    }

    fn sync_part(&self, part: Write<'_>) -> psync::Result<()> {
        self.wait();
        self.inner().sync_part(part)
    }
}

fn open(volume: &Arc<SlowSyncs>) -> (Database, Keyspace) {
    let db =
        Database::builder().memory(16 << 20).open_on(Arc::clone(volume) as Arc<dyn Volume>).expect("opens");
    let keyspace = db.keyspace("main").expect("a keyspace");
    (db, keyspace)
}

fn put(db: &Database, keyspace: &Keyspace, key: &str, value: u64, durability: Durability) {
    let mut batch = db.batch();
    batch.insert(keyspace, key, value.to_be_bytes());
    batch.durability(durability).commit().expect("commits");
}

fn number(keyspace: &Keyspace, key: &str) -> Option<u64> {
    let value = keyspace.get(key).expect("reads")?;
    Some(u64::from_be_bytes(value[..].try_into().expect("8 bytes")))
}

/// Each waited for the device, since the leader held the log over the sync.
#[test]
fn commits_that_need_no_sync_do_not_wait_for_one() {
    let volume = SlowSyncs::new();
    let (db, keyspace) = open(&volume);
    let mut turn = 0;
    for durable in 0..10 {
        volume.is_held.store(true, SeqCst);
        std::thread::scope(|scope| {
            let commit = scope.spawn(|| put(&db, &keyspace, "durable", durable, Durability::Immediate));
            while volume.held.load(SeqCst) == 0 {
                assert!(!commit.is_finished(), "it was not synced");
                std::thread::yield_now();
            }
            for durability in [Durability::None, Durability::Buffered].into_iter().cycle().take(30) {
                turn += 1;
                put(&db, &keyspace, "other", turn, durability);
                assert_eq!(volume.held.load(SeqCst), 1, "it waited for the sync");
                assert_eq!(number(&keyspace, "other"), Some(turn), "it is seen when it returns");
                assert_eq!(
                    number(&keyspace, "durable"),
                    durable.checked_sub(1),
                    "what is not durable is not seen"
                );
            }
            volume.is_held.store(false, SeqCst);
        });
        assert_eq!(number(&keyspace, "durable"), Some(durable), "what is durable is seen");
    }
}

/// Who passes by is before the other in the queue, and behind it in the log: of the same key, both must say the same.
#[test]
fn a_commit_waits_for_one_of_the_same_key() {
    let volume = SlowSyncs::new();
    let (db, keyspace) = open(&volume);
    put(&db, &keyspace, "key", 0, Durability::Immediate);
    volume.millis.store(3, SeqCst);
    let turn = AtomicU64::new(1);
    std::thread::scope(|scope| {
        for durability in [Durability::Immediate, Durability::None, Durability::Buffered] {
            let (db, keyspace, turn) = (&db, &keyspace, &turn);
            scope.spawn(move || {
                for _ in 0..100 {
                    put(db, keyspace, "key", turn.fetch_add(1, SeqCst), durability);
                    put(db, keyspace, &format!("{durability:?}"), turn.load(SeqCst), durability);
                }
            });
        }
    });
    db.sync().expect("syncs");
    let keys = ["key", "Immediate", "None", "Buffered"];
    let before = keys.map(|key| number(&keyspace, key));
    // As the log says, and as the queue does.
    let (found, _) = open_after_power_loss(&volume, 7);
    assert_eq!(keys.map(|key| number(&found, key)), before);
    db.flush().expect("flushes");
    assert_eq!(keys.map(|key| number(&keyspace, key)), before);
}

fn open_after_power_loss(volume: &SlowSyncs, seed: u64) -> (Keyspace, Database) {
    let volume: Arc<dyn Volume> = Arc::new(volume.inner.power_loss(seed));
    let db = Database::builder().memory(16 << 20).open_on(volume).expect("opens");
    (db.keyspace("main").expect("a keyspace"), db)
}

/// Each had a sync of its own, and held the log meanwhile.
#[test]
fn syncs_are_shared_and_cover_what_was_committed_before() {
    const THREADS: u64 = 8;
    const TURNS: u64 = 25;
    let volume = SlowSyncs::new();
    let (db, keyspace) = open(&volume);
    put(&db, &keyspace, "key", 0, Durability::Immediate);
    volume.millis.store(4, SeqCst);
    let before = volume.syncs.load(SeqCst);
    let promised: [AtomicU64; THREADS as usize] = Default::default();
    std::thread::scope(|scope| {
        for (thread, promised) in promised.iter().enumerate() {
            let (db, keyspace) = (&db, &keyspace);
            scope.spawn(move || {
                for turn in 1..=TURNS {
                    let durability = if turn % 2 == 0 { Durability::None } else { Durability::Buffered };
                    put(db, keyspace, &format!("thread {thread}"), turn, durability);
                    db.sync().expect("syncs");
                    promised.store(turn, SeqCst);
                }
            });
        }
        scope.spawn(|| {
            for seed in 0..10 {
                std::thread::sleep(Duration::from_millis(12));
                let least: Vec<_> = promised.iter().map(|promised| promised.load(SeqCst)).collect();
                let (found, _db) = open_after_power_loss(&volume, seed);
                for (thread, least) in least.into_iter().enumerate() {
                    let there = number(&found, &format!("thread {thread}"));
                    assert!(
                        there.unwrap_or(0) >= least,
                        "{there:?} of thread {thread}, which was promised {least}"
                    );
                }
            }
        });
    });
    let syncs = volume.syncs.load(SeqCst) - before;
    assert!(syncs <= THREADS * TURNS / 2, "{syncs} syncs for {} that were asked for", THREADS * TURNS);
}

/// A queue is frozen only when no commit waits for the device: flushes and closing get their turn among durable commits.
/// The lock is not fair, and one thread that commits durably wants it again at once.
#[test]
fn whoever_waits_for_the_log_gets_it_beside_one_durable_thread() {
    let volume = SlowSyncs::new();
    let (db, keyspace) = open(&volume);
    volume.millis.store(3, SeqCst);
    let (over, durable) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut passed_by = [const { Vec::new() }; 2];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(SeqCst) {
                put(&db, &keyspace, "same", durable.load(SeqCst), Durability::Immediate);
                durable.fetch_add(1, SeqCst);
            }
        });
        for turn in 0..40 {
            let before = durable.load(SeqCst);
            put(&db, &keyspace, "same", turn, Durability::Buffered);
            passed_by[0].push(durable.load(SeqCst) - before);
            let before = durable.load(SeqCst);
            db.flush().expect("flushes");
            passed_by[1].push(durable.load(SeqCst) - before);
        }
        over.store(true, SeqCst);
    });
    for passed_by in &mut passed_by {
        passed_by.sort_unstable();
        // The thread may sleep before it waits, and before it counts: but not each time.
        assert!(passed_by[37] < 100, "{passed_by:?} durable commits went before");
    }
}

#[test]
fn flushes_get_their_turn_among_durable_commits() {
    let volume = SlowSyncs::new();
    let (db, keyspace) = open(&volume);
    volume.millis.store(1, SeqCst);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (db, keyspace, over) = (&db, &keyspace, &over);
            scope.spawn(move || {
                for turn in 0.. {
                    let durability = if thread < 2 { Durability::Immediate } else { Durability::None };
                    put(db, keyspace, &format!("{thread}-{}", turn % 1000), turn, durability);
                    if over.load(SeqCst) {
                        break;
                    }
                }
            });
        }
        for _ in 0..20 {
            let began = Instant::now();
            db.flush().expect("flushes");
            assert!(began.elapsed() < Duration::from_secs(20));
        }
        over.store(true, SeqCst);
    });
    let count = keyspace.iter().count();
    drop(keyspace);
    db.close().expect("closes");
    let (_db, keyspace) = open(&volume);
    assert_eq!(keyspace.iter().count(), count);
}
