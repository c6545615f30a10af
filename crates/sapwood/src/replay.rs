//! What the log holds, and the trees do not, comes to the queues, as it did when it was written.
//!
//! ```text
//! log ──read, checked (`wal/reader.rs`)──▶ portions ──▶ active OPQ ──the next generation, or full──▶ frozen OPQ
//!              one thread                               another
//! ```
//! A process that was killed while a flush was under way leaves the log of two queues. Both fit into memory again, so nobody waits for the flush of
//! the first: it begins when the database is open.
//!
//! Invariants:
//! 1. Records come to the queues in the order of the log, each wholly to one of them.
//! 2. A frozen queue needs the log below the generation of the first record that is not in it, and no more.
//! 3. Memory: two queues, each by an eighth longer than it may be at most, and [`ON_THE_WAY`] portions. What has no room is checked
//!    like everything else, and comes with another replay, which flushes: only when all is found sound, and durable.

use crate::database_id::DatabaseId;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::operation::{Operations, SeqNo};
use crate::options::REPLAYED_MAX;
use crate::store::version::Version;
use crate::wal::{self, Record, Tail};
use bytes::Bytes;
use psync::Volume;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, Scope, ScopedJoinHandle};

/// Bytes of records that come to a queue together, a single longer one aside: some hundred short ones, whose places are sought together.
const PORTION: usize = 128 << 10;
/// Portions that wait for the thread that inserts them.
const ON_THE_WAY: usize = 2;

/// What becomes of records that have no room in two queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overflow {
    /// They are for another time.
    Left,
    /// The first queue is flushed for them.
    Flushed,
}

/// What a replay has come to.
pub(crate) struct Replay {
    /// Where the log ends.
    pub tail: Tail,
    /// Whether all that it holds is in queues or trees.
    pub is_whole: bool,
}

/// Brings what the log holds from generation `low` on, and is not visible yet, to the queues.
pub(crate) fn replay(
    engine: &Engine,
    volume: &dyn Volume,
    database: DatabaseId,
    [low, high]: [u64; 2],
    overflow: Overflow,
) -> Result<Replay> {
    let version = Arc::clone(&engine.state.load().version);
    let queues = Queues { engine, overflow, generation: 0 };
    std::thread::scope(|scope| {
        // Where everything is to happen in one order there is one thread, and a flush has others of its own.
        let is_beside = engine.flush.in_background() && overflow == Overflow::Left;
        let mut feed = Feed {
            version: &version,
            from: engine.visible(),
            gathered: Gathered::default(),
            way: Way::Here(queues),
            scope: is_beside.then_some(scope),
        };
        let tail = wal::replay(volume, database, low, high, &mut |record| feed.take(&record))?;
        Ok(Replay { tail, is_whole: feed.end()? })
    })
}

/// Whole records of one generation, one behind the other.
struct Portion {
    generation: u64,
    first_seq: SeqNo,
    count: u64,
    body: Bytes,
}

/// Where portions become entries of queues.
struct Queues<'e> {
    engine: &'e Engine,
    overflow: Overflow,
    /// That of the last portion.
    generation: u64,
}

impl Queues<'_> {
    /// Brings a portion to the active queue. False: there is no room.
    fn bring(&mut self, portion: &Portion) -> Result<bool> {
        let engine = self.engine;
        let state = engine.state.load_full();
        let (fill, is_behind_another) = (state.active.fill(), state.frozen.is_some());
        if engine.read_only && fill as u64 >= REPLAYED_MAX {
            let range = format!(
                "the log holds more than {REPLAYED_MAX} bytes that are not in the trees; open the database for writing once, which takes \
                 them there"
            );
            return Err(Error::BadOption { option: "read_only", value: 1, range });
        }
        let most = engine.queue_max(&state);
        // Memory comes by portions, so a queue that was just full when it was frozen may be so a little earlier now.
        let is_full = fill >= most + most / 8;
        let is_over = portion.generation != self.generation && !is_behind_another && fill >= most / 2;
        // Or the queue that is flushed would be taken for one that somebody holds.
        drop(state);
        if !engine.read_only && (is_full || is_over) {
            if is_behind_another {
                if self.overflow == Overflow::Left {
                    return Ok(false);
                }
                engine.flush_now()?;
            }
            engine.freeze_queue(portion.generation, portion.first_seq - 1);
        }
        self.generation = portion.generation;
        let active = Arc::clone(&engine.state.load().active);
        active.insert_all(
            Operations::new(&portion.body).map_while(|operation| operation.ok()),
            portion.first_seq,
        );
        engine.set_visible(portion.first_seq + portion.count - 1);
        Ok(true)
    }

    /// Brings all that come. False: there was no room for all.
    fn bring_all(mut self, portions: &Receiver<Portion>) -> Result<bool> {
        for portion in portions {
            if !self.bring(&portion)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// How portions come to the queues.
enum Way<'scope, 'e> {
    Here(Queues<'e>),
    Beside(SyncSender<Portion>, ScopedJoinHandle<'scope, Result<bool>>),
    /// They do not: there is no room.
    Nowhere,
}

/// Records on their way to a portion.
#[derive(Default)]
struct Gathered {
    generation: u64,
    first_seq: SeqNo,
    count: u64,
    body: Vec<u8>,
}

/// Takes records from the log.
struct Feed<'v, 'scope, 'env, 'e> {
    version: &'v Version,
    /// Up to here they are where they belong.
    from: SeqNo,
    gathered: Gathered,
    way: Way<'scope, 'e>,
    /// Where another thread may insert; it begins with the second portion.
    scope: Option<&'scope Scope<'scope, 'env>>,
}

impl<'scope, 'e: 'scope> Feed<'_, 'scope, '_, 'e> {
    fn take(&mut self, record: &Record) -> Result<()> {
        let (generation, first_seq, count) = (record.generation, record.first_seq, u64::from(record.count));
        if first_seq + count - 1 <= self.from {
            return Ok(());
        }
        self.check(record)?;
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

    /// Whether a record is what a commit wrote: its checksum says so, but not that we were right then.
    fn check(&self, record: &Record) -> Result<()> {
        let wrong = |what: &str| {
            let file = wal::file_name(record.generation);
            Error::corrupt(file, 0, "a record of the log", "whole operations", what)
        };
        let mut count = 0;
        for operation in Operations::new(&record.body) {
            if !self.version.trees.contains_key(&operation.map_err(wrong)?.keyspace) {
                return Err(wrong("a keyspace that does not exist"));
            }
            count += 1;
        }
        if count == record.count { Ok(()) } else { Err(wrong("another number of operations than it says")) }
    }

    fn send_gathered(&mut self) -> Result<()> {
        let Gathered { generation, first_seq, count, body } = std::mem::take(&mut self.gathered);
        self.send(Portion { generation, first_seq, count, body: body.into() })
    }

    fn send(&mut self, portion: Portion) -> Result<()> {
        match std::mem::replace(&mut self.way, Way::Nowhere) {
            Way::Here(mut queues) => {
                if queues.bring(&portion)? {
                    self.way = self.begin_beside(queues);
                }
            }
            Way::Beside(sender, thread) => match sender.send(portion) {
                Ok(()) => self.way = Way::Beside(sender, thread),
                // It has ended before its time: there was no room, or it failed.
                Err(_) => drop(joined(thread)?),
            },
            Way::Nowhere => {}
        }
        Ok(())
    }

    fn begin_beside(&mut self, queues: Queues<'e>) -> Way<'scope, 'e> {
        let Some(scope) = self.scope.take() else { return Way::Here(queues) };
        let Queues { engine, overflow, generation } = queues;
        let (sender, receiver) = sync_channel(ON_THE_WAY);
        let builder = Builder::new().name("sapwood-replay".into());
        match builder.spawn_scoped(scope, move || queues.bring_all(&receiver)) {
            Ok(thread) => Way::Beside(sender, thread),
            Err(_) => Way::Here(Queues { engine, overflow, generation }),
        }
    }

    /// The log is at its end. Says whether all of it came to the queues.
    fn end(mut self) -> Result<bool> {
        if !self.gathered.body.is_empty() {
            self.send_gathered()?;
        }
        match self.way {
            Way::Here(_) => Ok(true),
            Way::Beside(sender, thread) => {
                drop(sender);
                joined(thread)
            }
            Way::Nowhere => Ok(false),
        }
    }
}

fn joined(thread: ScopedJoinHandle<'_, Result<bool>>) -> Result<bool> {
    thread.join().unwrap_or(Err(Error::Closed))
}
