//! Replays the part of the log that is not in the trees into the queues, as it was when it was written.
//!
//! ```text
//! log ──read, checked (`wal/reader.rs`)──▶ portions ──▶ active OPQ ──the next generation, or full──▶ frozen OPQ
//!              one thread                               another
//! ```
//! A process that was killed during a flush leaves the log of two queues. Both fit into memory again, so
//! opening need not wait for the flush of the first: it begins when the database is open.
//!
//! Invariants:
//! 1. Records enter the queues in log order, each wholly in one queue.
//! 2. A frozen queue needs the log below the generation of the first record that is not in it, and no more.
//! 3. Memory: two queues, each at most an eighth over its limit, and [`ON_THE_WAY`] portions. Records without
//!    room are checked like all others, and applied by a second replay, which flushes; it runs only when
//!    everything has been found sound and is durable.
//! 4. The log continues what is in the trees: its first record that is not there is the next one, and it reaches at
//!    least as far. Otherwise files of several times, or of a disk that lied about a sync, have come together.

use crate::clock::Clock;
use crate::current_state::CurrentState;
use crate::database_id::DatabaseId;
use crate::db::engine::Engine;
use crate::db::options::REPLAYED_MAX;
use crate::error::{Error, Result};
use crate::operation::{Operations, SeqNo};
use crate::pool::Task;
use crate::version::Version;
use crate::wal::{self, Generations, LogFiles, Record, Tail};
use bytes::Bytes;
use psync::Volume;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Bytes of records that are inserted together, unless a single one is longer: some hundred short ones, whose
/// positions are searched together.
const PORTION: usize = 128 << 10;
/// Portions that may wait for the inserting thread (count): one being filled and one complete are enough to keep both
/// threads busy.
const ON_THE_WAY: usize = 2;

/// What happens to records that have no room in two queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overflow {
    /// They are left for a second replay.
    Left,
    /// The first queue is flushed to make room.
    Flushed,
}

/// The result of a replay.
pub(crate) struct Replay {
    /// Where the log ends.
    pub tail: Tail,
    /// Whether everything in the log is in queues or trees.
    pub is_whole: bool,
}

/// Replays the records of the log from generation `low` on that are not visible yet into the queues.
pub(crate) fn replay(
    engine: &Arc<Engine>,
    volume: &dyn Volume,
    database: DatabaseId,
    [low, high]: [u64; 2],
    overflow: Overflow,
) -> Result<Replay> {
    let queues = Queues { engine: Arc::clone(engine), overflow, generation: 0 };
    // If everything must happen in one order, there is only one thread; and a flush has threads of its own.
    let may_deliver_beside = engine.pool.has_threads() && overflow == Overflow::Left;
    let mut feed = Feed {
        state: &engine.state,
        clock: &engine.clock,
        from: engine.state.visible(),
        has_begun: false,
        gathered: Gathered::default(),
        way: Delivery::Here(queues),
        may_deliver_beside,
    };
    let tail = LogFiles::new(volume, database).replay(
        &engine.encryption,
        Generations { low, high },
        &mut |record| feed.take(&record),
    )?;
    let next = feed.from + 1;
    if !feed.has_begun && tail.next_seq != next {
        return Err(not_continued(tail.ends_in, "the end of the log", next, tail.next_seq));
    }
    Ok(Replay { tail, is_whole: feed.end()? })
}

/// The log does not continue what is in the trees.
fn not_continued(generation: u64, what: &str, expected: SeqNo, found: SeqNo) -> Error {
    let what = format!("{what}, which continues what is in the trees");
    let expected = format!("sequence number {expected}");
    Error::corrupt(wal::file_name(generation), 0, what, expected, found)
}

/// Checks that a record is what a commit wrote. Its checksum only proves that it is unchanged, not that it was
/// right.
pub(crate) fn check_record(version: &Version, record: &Record) -> Result<()> {
    let wrong = |what: &str| {
        let file = wal::file_name(record.generation);
        Error::corrupt(file, 0, "a record of the log", "whole operations", what)
    };
    let mut count = 0;
    for operation in Operations::new(&record.body) {
        let keyspace = operation.map_err(wrong)?.keyspace();
        // It may have been dropped since.
        if !version.trees.contains(&keyspace) && !(1..=version.last_keyspace).contains(&keyspace.0) {
            return Err(wrong("a keyspace that does not exist"));
        }
        count += 1;
    }
    if count == record.count { Ok(()) } else { Err(wrong("another number of operations than it says")) }
}

/// Consecutive complete records of one generation.
struct Portion {
    generation: u64,
    first_seq: SeqNo,
    count: u64,
    body: Bytes,
}

/// Turns portions into entries of queues.
struct Queues {
    engine: Arc<Engine>,
    overflow: Overflow,
    /// The generation of the last portion.
    generation: u64,
}

impl Queues {
    /// Inserts a portion into the active queue. Returns false if there is no room.
    fn bring(&mut self, portion: &Portion) -> Result<bool> {
        let engine = &*self.engine;
        let state = engine.state.load_full();
        let (fill, is_behind_another) = (state.active.fill(), state.frozen.is_some());
        if engine.health.is_read_only() && fill as u64 >= REPLAYED_MAX {
            let range = format!(
                "the log holds more than {REPLAYED_MAX} bytes that are not in the trees; open the database for writing once, which takes \
                 them there"
            );
            return Err(Error::BadOption { option: "read_only", value: 1, range });
        }
        let most = engine.memory.queue_max(&state);
        // Memory is taken in portions here, so a queue that was just full when it was frozen may now be full a
        // little earlier.
        let is_full = fill >= most + most / 8;
        let is_over = portion.generation != self.generation && !is_behind_another && fill >= most / 2;
        // Otherwise a queue that is flushed would count as held by a reader.
        drop(state);
        if !engine.health.is_read_only() && (is_full || is_over) {
            if is_behind_another {
                if self.overflow == Overflow::Left {
                    return Ok(false);
                }
                engine.flush.flush_now()?;
            }
            engine.commits.freeze_queue(portion.generation, portion.first_seq - 1);
        }
        self.generation = portion.generation;
        let active = Arc::clone(&engine.state.load().active);
        let version = engine.state.version();
        active.insert_all(
            Operations::new(&portion.body).map_while(|operation| operation.ok()),
            portion.first_seq,
            &|keyspace| version.merging(keyspace),
        );
        engine.state.set_visible(portion.first_seq + portion.count - 1);
        Ok(true)
    }

    /// Inserts all portions that arrive. Returns false if there was no room for all.
    fn bring_all(mut self, portions: &Receiver<Portion>) -> Result<bool> {
        for portion in portions {
            if !self.bring(&portion)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// How portions reach the queues.
enum Delivery {
    Here(Queues),
    Beside(SyncSender<Portion>, Task<bool>),
    /// Not at all: there is no room.
    Nowhere,
}

/// Records that are being gathered into a portion.
#[derive(Default)]
struct Gathered {
    generation: u64,
    first_seq: SeqNo,
    count: u64,
    body: Vec<u8>,
}

/// Takes records from the log.
struct Feed<'e> {
    /// A version would keep all space that flushes make free meanwhile.
    state: &'e CurrentState,
    /// It goes on with the latest time that the log has.
    clock: &'e Clock,
    /// Operations up to this one are already visible.
    from: SeqNo,
    has_begun: bool,
    gathered: Gathered,
    way: Delivery,
    /// Whether another thread may insert; it starts with the second portion.
    may_deliver_beside: bool,
}

impl Feed<'_> {
    fn take(&mut self, record: &Record) -> Result<()> {
        let (generation, first_seq, count) = (record.generation, record.first_seq, u64::from(record.count));
        self.clock.not_before(record.time.unwrap_or(0));
        if first_seq + count - 1 <= self.from {
            return Ok(());
        }
        if !std::mem::replace(&mut self.has_begun, true) && first_seq != self.from + 1 {
            return Err(not_continued(generation, "a record of the log", self.from + 1, first_seq));
        }
        check_record(&self.state.load().version, record)?;
        let Gathered { generation: last, body, .. } = &self.gathered;
        if !body.is_empty() && (generation != *last || body.len() + record.body.len() > PORTION) {
            self.send_gathered()?;
        }
        if record.body.len() > PORTION {
            return self.send(Portion { generation, first_seq, count, body: record.body.clone() });
        }
        let gathered = &mut self.gathered;
        if gathered.body.is_empty() {
            *gathered = Gathered { generation, first_seq, count: 0, body: Vec::with_capacity(PORTION) };
        }
        gathered.count += count;
        gathered.body.extend_from_slice(&record.body);
        Ok(())
    }

    fn send_gathered(&mut self) -> Result<()> {
        let Gathered { generation, first_seq, count, body } = std::mem::take(&mut self.gathered);
        self.send(Portion { generation, first_seq, count, body: body.into() })
    }

    fn send(&mut self, portion: Portion) -> Result<()> {
        match std::mem::replace(&mut self.way, Delivery::Nowhere) {
            Delivery::Here(mut queues) => {
                if queues.bring(&portion)? {
                    self.way = self.begin_beside(queues);
                }
            }
            Delivery::Beside(sender, task) => match sender.send(portion) {
                Ok(()) => self.way = Delivery::Beside(sender, task),
                // The thread has ended early: there was no room, or it failed.
                Err(_) => drop(task.wait()?),
            },
            Delivery::Nowhere => {}
        }
        Ok(())
    }

    fn begin_beside(&mut self, queues: Queues) -> Delivery {
        if !std::mem::take(&mut self.may_deliver_beside) {
            return Delivery::Here(queues);
        }
        let Queues { engine, overflow, generation } = queues;
        let beside = Queues { engine: Arc::clone(&engine), overflow, generation };
        let (sender, receiver) = sync_channel(ON_THE_WAY);
        match engine.pool.try_submit("the replay of the log", move || beside.bring_all(&receiver)) {
            Some(task) => Delivery::Beside(sender, task),
            None => Delivery::Here(Queues { engine, overflow, generation }),
        }
    }

    /// Ends the replay at the end of the log. Returns whether all of it went into the queues.
    fn end(mut self) -> Result<bool> {
        if !self.gathered.body.is_empty() {
            self.send_gathered()?;
        }
        match self.way {
            Delivery::Here(_) => Ok(true),
            Delivery::Beside(sender, task) => {
                drop(sender);
                task.wait()
            }
            Delivery::Nowhere => Ok(false),
        }
    }
}
