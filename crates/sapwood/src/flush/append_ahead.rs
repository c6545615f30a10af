//! Appending ahead: while what the flush before has found due is still cleansed, and the device is busy, the next frozen queue is routed to
//! its blocks on another thread, with a writer of its own. What only gets log pieces, which is nearly all, is written then; what is
//! claimed by the cleansing, or goes to leaves, follows when that has stopped, in the same attempt.
//!
//! ```text
//! flush N     … portion │ portion │ portion │ over
//! queue N+1      ╰ appended to blocks that are not due ╯╰ the rest, sync, publish │ portion …
//!                                                        flush N+1
//! ```
//! Published edits and this attempt do not touch one another, because (1) ids, slots and numbers of segments come from one place
//! ([`crate::store::data_file`]); (2) a block keeps its range at least as long as nobody writes it anew, and who cleanses writes only the blocks that
//! are due anew, and perhaps a neighbour. So it is enough to look, before anything else is done, whether all blocks that have got log pieces still add up
//! to what they did, and none of them has become the place of what was passed by. If not, the attempt comes to nothing, and the flush begins anew.
//!
//! Invariants:
//! 1. What goes ahead is not visible, and nothing of what it writes is in the way of others, until the flush of its queue publishes it.
//! 2. One at a time, and only of a queue of which nothing is in the trees.

use crate::budget::Work;
use crate::engine::{Engine, Frozen, Panicked};
use crate::error::Result;
use crate::operation::OperationRef;
use crate::queue::opq::Opq;
use crate::store::attempt::Attempt;
use crate::store::version::Version;
use crate::store::writer::Writer;
use crate::tree::route::aside::{Aside, Part};
use crate::tree::route::{Budget, Grounds, Routed, route};
use crate::tree::sample::Sample;
use crate::tree::sweep::{Due, Place, Sweep};
use crate::tree::view::{Block, TreeView};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Chunks of changes that go to the blocks of one version (count). What others replace meanwhile, a good part of the mapping table with each portion, would
/// be in memory as long as it is not let go.
const CHUNKS: usize = 1;

/// Changes after which it looks whether it is to give up.
const LOOKS: u64 = 1024;

/// See the module.
pub(crate) struct Ahead<'e> {
    pub frozen: Arc<Frozen>,
    pub attempt: Attempt<'e>,
    /// Where the changes are that are still to be routed.
    pub passed: Vec<Part>,
    pub sample: Sample,
    /// Changes that are in log pieces, bytes of their keys and values, and blocks that have got some.
    pub changes: u64,
    pub bytes: u64,
    pub appended: u64,
    /// Where the sweep was before.
    pub place: Place,
    /// Its memory.
    pub work: Work<'e>,
}

impl Engine {
    /// Routes the next frozen queue, beside a flush that has left these blocks to be cleansed. `None` if it is better done later. If that is for want of space, the flush will
    /// find out itself.
    pub fn append_ahead<'e>(
        &'e self,
        sweep: &mut Sweep,
        left: &[Due],
        writer: Writer,
    ) -> Result<Option<Ahead<'e>>> {
        let state = self.state.load();
        let (frozen, base) = (state.frozen.clone(), Arc::clone(&state.version));
        drop(state);
        let is_short = self.flush.shortage.limit() != u64::MAX || self.flush.shortage.is_careful();
        let Some(frozen) = frozen.filter(|frozen| frozen.resume.lock().is_none() && !is_short) else {
            return Ok(None);
        };
        // A queue of several portions is none that a part of may come before the rest.
        if self.flush.in_portions.load(Relaxed) {
            return Ok(None);
        }
        let _panicked = Panicked::watch(self, "who appends ahead");
        let before = sweep.place();
        self.begin_sweep(sweep, &frozen);
        let place = sweep.place();
        match self.route_ahead(sweep, left, writer, base, frozen, place) {
            Ok(Some(ahead)) => Ok(Some(ahead)),
            failed => {
                sweep.back_to(before);
                match failed {
                    Err(error) if !error.is_disk_full() => Err(error),
                    _ => Ok(None),
                }
            }
        }
    }

    fn route_ahead<'e>(
        &'e self,
        sweep: &mut Sweep,
        left: &[Due],
        writer: Writer,
        base: Arc<Version>,
        frozen: Arc<Frozen>,
        place: Place,
    ) -> Result<Option<Ahead<'e>>> {
        let mut aside = Aside::default();
        for Due { keyspace, low, .. } in left {
            let view = TreeView { pager: &self.pager, version: &base, keyspace: *keyspace };
            aside.claimed.extend(view.block_at(low)?.map(|Block { id, .. }| id));
        }
        // It holds nothing back.
        let work = self.work(self.shares.work(0, 10 * frozen.queue.bytes()));
        let mut sample = Sample::default();
        let mut attempt = Attempt::begin(base, &self.pager, Box::new(writer));
        let (mut changes, mut bytes, mut appended) = (0, 0, 0);
        let (mut seen, is_given_up) = (0, Cell::new(false));
        let goes_on = |_: &OperationRef<'_>| {
            seen += 1;
            let looks = seen % LOOKS == 0;
            is_given_up.set(looks && (self.flush.stops() || self.check_writable().is_err()));
            !is_given_up.get()
        };
        let mut rest = frozen.queue.newest(None).take_while(goes_on).peekable();
        while let Some(keyspace) = rest.peek().map(|next| next.keyspace) {
            let limits = Budget {
                rewrite: u64::MAX,
                write: u64::MAX,
                hold: self.shares.hold,
                nodes: self.nodes_max() as usize,
            };
            aside.chunks = CHUNKS;
            let grounds = Grounds {
                sweep,
                sample: &mut sample,
                fresh: self.flush.advisor.lock().fresh_of(keyspace),
                leaf_len: self.shares.node_len.leaf,
                ahead: Some(&mut aside),
            };
            let Routed { left, changes: count, bytes: len, appended: blocks, is_tail, .. } =
                route(&mut attempt, keyspace, &mut rest, grounds, limits)?;
            changes += count;
            bytes += len;
            appended += blocks;
            if is_tail {
                while rest.next_if(|next| next.keyspace == keyspace).is_some() {}
            }
            let has_more = rest.peek().is_some_and(|next| next.keyspace == keyspace);
            // It does not fit into one attempt.
            if left.is_some() || (has_more && aside.chunks > 0) {
                return Ok(None);
            }
            attempt.go_on_at(Arc::clone(&self.state.load().version));
        }
        drop(rest);
        if is_given_up.get() {
            return Ok(None);
        }
        // So that nobody has to wait for it when all is ready.
        self.begin_log(frozen.wal_low)?;
        let passed = aside.passed;
        Ok(Some(Ahead { frozen, attempt, passed, sample, changes, bytes, appended, place, work }))
    }
}

impl Ahead<'_> {
    /// Whether what was appended may come to this version, and what was passed by go to other blocks.
    pub fn still_fits(&self, version: &Version) -> Result<bool> {
        Ok(self.attempt.still_fits(version) && goes_elsewhere(&self.attempt, &self.passed, version)?)
    }
}

/// Whether what was passed by goes to blocks that an attempt has not appended to.
pub(crate) fn goes_elsewhere(attempt: &Attempt<'_>, passed: &[Part], version: &Version) -> Result<bool> {
    for Part { from: (keyspace, from), to } in passed {
        let view = TreeView { pager: attempt.pager(), version, keyspace: *keyspace };
        let mut next = Some(from.clone());
        while let Some(low) = next.take()
            && let Some(Block { id, fence }) = view.block_at(&low)?
        {
            if attempt.has_appended_to(id) {
                return Ok(false);
            }
            next = fence.filter(|fence| to.as_ref().is_none_or(|to| (*keyspace, fence) < (to.0, &to.1)));
        }
    }
    Ok(true)
}

/// The newest version of each key of a queue in these parts.
pub(super) fn changes_in<'q>(queue: &'q Opq, parts: Vec<Part>) -> impl Iterator<Item = OperationRef<'q>> {
    let follow = |parts: &[Part]| parts[0].to.as_ref().is_some_and(|to| *to <= parts[1].from);
    debug_assert!(parts.windows(2).all(follow), "no key comes twice: {parts:?}");
    let mut parts = parts.into_iter().map(|Part { from, to }| (queue.newest(Some(from)), to));
    let mut part = parts.next();
    std::iter::from_fn(move || {
        loop {
            let (changes, to) = part.as_mut()?;
            let is_within = |next: &OperationRef<'_>| {
                to.as_ref().is_none_or(|to| (next.keyspace, next.key) < (to.0, &to.1[..]))
            };
            if let Some(next) = changes.next().filter(is_within) {
                return Some(next);
            }
            part = parts.next();
        }
    })
}
