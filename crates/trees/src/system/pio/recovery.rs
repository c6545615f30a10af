//! Recovery of a PIO B-tree (VLDB 2011, section 3.4): analysis, undo of the batch update that was cut off, redo into the OPQ.
//!
//! 1. Analysis: the superblock names the log, and says whether there is one; its records say which batch updates ended, and which one did not.
//! 2. Undo comes before redo: pages of the unfinished batch become what they were, by sets: see [`super::undo`].
//! 3. Redo: every logged operation that no finished batch has taken, by itself or of a transaction that has committed, goes
//!    into the queue again. The published rule looks at
//!    the key range only and would lose operations that were logged after a batch of the same range; this one compares
//!    sequence numbers too.
//! 4. A checkpoint ends it: the log begins anew with what waits, so nothing of the old log is ever seen again.
//!
//! The LSMap starts out unknown; versions of the leaves tell stale segments.

use super::flush_log::{FlushLog, LogRecord, Written, entry};
use super::{INNER, LEAVES, Log, LogMode, PioOptions, PioTree, Standing};
use crate::Result;
use crate::buffer::write_through::WriteThrough;
use crate::page::NodeId;
use crate::queue::opq::COMMITTED;
use crate::store::Root;
use crate::store::in_place::InPlaceStore;
use crate::store::leaf_extents::LeafExtents;
use crate::update::single::Events;
use parking_lot::{Mutex, RwLock};
use psync::Volume;
use std::collections::HashSet;
use std::sync::Arc;

/// A batch update in the log.
struct Flush {
    flush: u32,
    ranges: Vec<(u64, u64)>,
    sequence_max: u64,
    ended: bool,
}

/// What the log says.
struct Analysis {
    flushes: Vec<Flush>,
    /// Where the tree stands after all finished batches, if there were any.
    standing: Option<Standing>,
    /// Of the unfinished batch, oldest first.
    undo: Vec<LogRecord>,
    flush: u32,
    committed: HashSet<u64>,
}

/// Which logged operations a finished batch has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// Those of its key range that are no younger than its youngest.
    NoYounger,
    /// All of its key range, as published: those that were logged after it are lost.
    #[cfg(feature = "crash-matrix")]
    AsPublished,
}

pub(super) fn recover(volume: Arc<dyn Volume>, options: &PioOptions, rule: Taken) -> Result<PioTree> {
    options.validate()?;
    let mut inner = InPlaceStore::open(Arc::clone(&volume), INNER, options.page_len)?;
    let mut leaves =
        LeafExtents::open(Arc::clone(&volume), LEAVES, options.page_len, options.segments, false)?;
    let [generation, leaf_next, flush] = inner.durable_words();
    let root = inner.durable_root();
    let (flush, written) = Written::decode(flush)?;
    let durable = Standing { root: root.id.0, level: root.level, inner_next: inner.next(), leaf_next };
    let records = FlushLog::read(&*volume, written, generation)?;
    let analysis = analyse(&records, flush);
    let standing = analysis.standing.unwrap_or(durable);
    inner.set_next(standing.inner_next);
    leaves.set_next(standing.leaf_next);
    super::undo::undo(&inner, &leaves, &analysis.undo, options)?;
    let mut tree = PioTree {
        pages: WriteThrough::new(inner, leaves, options.frames, options.eviction),
        last: options.last_segments(),
        queue: RwLock::new(options.queue()),
        log: Mutex::new(Log::new(FlushLog::none(generation))),
        root: Root { id: NodeId(standing.root), level: standing.level },
        flush: analysis.flush,
        segment_sequence: 0,
        events: Events::default(),
        flushes: 0,
        brought: Default::default(),
        failed: Mutex::new(None),
        options: options.clone(),
        volume,
    };
    // Without a log from now on, what waits is in the old one alone, until it has come to the tree: by batches that a power loss undoes.
    let is_without_log = options.log == LogMode::Off;
    if is_without_log {
        tree.options.log = LogMode::Buffered;
    }
    redo(&mut tree, &records, &analysis, rule)?;
    let (inner, leaves) = tree.used()?;
    tree.pages.inner.keep_only(&inner);
    tree.pages.leaves.keep_only(standing.leaf_next, &leaves);
    tree.checkpoint()?;
    // Left by a power loss between a checkpoint and its removal.
    FlushLog::remove(&tree.volume, generation.saturating_sub(1))?;
    // The queue may be smaller than it was.
    while tree.queue.get_mut().is_full() {
        tree.bupdate()?;
    }
    if is_without_log {
        tree.bring_all()?;
        tree.options.log = LogMode::Off;
        tree.checkpoint()?;
    }
    Ok(tree)
}

fn analyse(records: &[LogRecord], flush: u32) -> Analysis {
    let mut analysis = Analysis {
        flushes: Vec::new(),
        standing: None,
        undo: Vec::new(),
        flush,
        committed: HashSet::from([COMMITTED]),
    };
    for record in records {
        match record {
            LogRecord::Redo { .. } | LogRecord::Abort { .. } => {}
            LogRecord::Commit { transaction } => {
                analysis.committed.insert(*transaction);
            }
            LogRecord::FlushStart { flush, ranges, sequence_max, before } => {
                let (flush, sequence_max, ranges) = (*flush, *sequence_max, ranges.clone());
                analysis.flushes.push(Flush { flush, ranges, sequence_max, ended: false });
                analysis.flush = flush;
                analysis.standing = Some(*before);
                analysis.undo.clear();
            }
            LogRecord::FlushEnd { flush, after } => {
                if let Some(last) = analysis.flushes.last_mut().filter(|last| last.flush == *flush) {
                    last.ended = true;
                }
                analysis.standing = Some(*after);
                analysis.undo.clear();
            }
            undo => analysis.undo.push(undo.clone()),
        }
    }
    analysis
}

/// Queues the operations that count, and that no finished batch has taken.
fn redo(tree: &mut PioTree, records: &[LogRecord], analysis: &Analysis, rule: Taken) -> Result<()> {
    for record in records {
        let LogRecord::Redo { transaction, sequence, key, value, op } = record else { continue };
        let newest = &mut tree.log.get_mut().sequence;
        *newest = (*newest).max(*sequence);
        let no_younger = |flush: &Flush| rule != Taken::NoYounger || *sequence <= flush.sequence_max;
        let took = |flush: &Flush| {
            let within = flush.ranges.iter().any(|(first, last)| (first..=last).contains(&key));
            flush.ended && within && no_younger(flush)
        };
        if analysis.committed.contains(transaction) && !analysis.flushes.iter().any(took) {
            tree.queue.get_mut().append(entry(*key, *value, *op)?, *sequence);
        }
    }
    Ok(())
}
