//! What readers see: the operation queues and a version, as one state that is replaced as a whole, and up to which
//! operation they may see it.
//!
//! Invariants:
//! 1. Newest wins: active OPQ, then frozen OPQ, then tree. Operands are laid over what is older ([`crate::merging`]).
//! 2. A state is immutable, except that its active queue grows.
//! 3. `visible` never exceeds what the queues and trees of the current state contain.
//! 4. A reader's view is a state, and a number up to which that state contains everything. So both are loaded while the state stays: a
//!    number that was loaded later would be of commits that are only in the next.
//! 5. Readers take no lock here.

use crate::cache::pager::Pager;
use crate::error::Result;
use crate::lock_order::{RankedMutex, rank};
use crate::log_area::Lengths;
use crate::merging::{Merging, is_operands};
use crate::operation::{KeyspaceId, SeqNo};
use crate::opq::empty_ranges::{EmptyRanges, Keys};
use crate::opq::{Change, Opq};
use crate::tree::lookup;
use crate::tree::view::TreeView;
use crate::value::Value;
use crate::version::Version;
use arc_swap::{ArcSwap, Guard};
use bytes::Bytes;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// What readers see. Loaded as a whole.
#[derive(Clone)]
pub(crate) struct State {
    /// Incremented when a queue is frozen, when it is in the trees, and when records are ingested. All states
    /// with the same number give a reader that has already searched the queues the same answers from the trees
    /// ([`crate::cache::records`]).
    pub number: u64,
    /// Incremented when records are ingested.
    pub ingested: u64,
    pub active: Arc<Opq>,
    pub frozen: Option<Arc<Frozen>>,
    pub version: Arc<Version>,
}

/// A frozen queue, which a flush applies to the trees.
pub(crate) struct Frozen {
    pub queue: Arc<Opq>,
    /// The oldest log generation that is still needed once the queue is in the trees.
    pub wal_low: u64,
    /// The sequence number of the newest operation in the queue.
    pub last_seq: SeqNo,
    /// Where an interrupted flush resumes: everything below is already in the trees.
    resume: RankedMutex<rank::Resume, Option<(KeyspaceId, Bytes)>>,
    /// Whether the blocks in the queue's removed ranges have been dropped: not again, since newer changes of the queue may be in
    /// the trees by then.
    pub has_dropped_blocks: AtomicBool,
    /// The target lengths of log areas, as the first attempt to flush it has found them: another attempt is no
    /// other flush.
    pub lengths: OnceLock<Lengths>,
}

impl Frozen {
    /// A queue of which nothing is in the trees yet.
    pub fn new(queue: Arc<Opq>, wal_low: u64, last_seq: SeqNo) -> Self {
        Self {
            queue,
            wal_low,
            last_seq,
            resume: RankedMutex::default(),
            has_dropped_blocks: AtomicBool::new(false),
            lengths: OnceLock::new(),
        }
    }

    /// Whether nothing of it is in the trees yet.
    pub fn is_whole(&self) -> bool {
        self.resume.lock().is_none()
    }

    /// The first key that is not in the trees yet; `None` while the queue is whole.
    pub fn resumes_at(&self) -> Option<(KeyspaceId, Bytes)> {
        self.resume.lock().clone()
    }

    /// Everything below this key is in the trees.
    pub fn set_resume(&self, key: (KeyspaceId, Bytes)) {
        *self.resume.lock() = Some(key);
    }
}

impl State {
    /// The queues, newest first.
    pub fn queues(&self) -> impl Iterator<Item = &Arc<Opq>> {
        std::iter::once(&self.active).chain(self.frozen.iter().map(|frozen| &frozen.queue))
    }

    /// What the queues know about a key, whose keyspace merges values like this.
    pub fn queued(
        &self,
        (keyspace, merging): (KeyspaceId, Option<&Merging>),
        key: &[u8],
        seq: SeqNo,
    ) -> Queued {
        let Some(merging) = merging else {
            let change = self.queues().find_map(|queue| queue.get(keyspace, key, seq, None));
            return change.map_or(Queued::Nothing, Queued::Is);
        };
        let mut operands: Vec<Bytes> = Vec::new();
        for queue in self.queues() {
            match queue.get(keyspace, key, seq, Some(merging)) {
                None => {}
                Some(Some(stored)) if is_operands(&stored) => operands.push(stored),
                Some(base) => {
                    let newest_first = operands.iter().map(|operands| Some(&operands[..]));
                    let all = merging.lay_all(newest_first.chain([base.as_deref()]));
                    return Queued::Is(all.map(Bytes::from));
                }
            }
        }
        if operands.is_empty() { Queued::Nothing } else { Queued::Operands(operands) }
    }

    /// The value of a key, as far as queues and cached records know it.
    #[inline]
    pub fn known(
        &self,
        pager: &Pager,
        (keyspace, merging): (KeyspaceId, Option<&Merging>),
        key: &[u8],
        seq: SeqNo,
    ) -> Queued {
        match self.queued((keyspace, merging), key, seq) {
            Queued::Nothing => match pager.record(self.number, keyspace, key) {
                Some(value) => Queued::Is(Some(value)),
                None => Queued::Nothing,
            },
            known => known,
        }
    }

    pub fn get(&self, pager: &Pager, keyspace: KeyspaceId, key: &[u8], seq: SeqNo) -> Result<Option<Value>> {
        let view = TreeView { pager, version: &self.version, keyspace };
        match self.known(pager, (keyspace, view.merging()), key, seq) {
            Queued::Is(known) => Ok(known.map(Value)),
            Queued::Nothing => Ok(lookup::get(view, Some(self.number), key)?.map(Value)),
            Queued::Operands(operands) => {
                let leaf = lookup::get(view, Some(self.number), key)?;
                Ok(lay(view.merging(), &operands, leaf.as_deref()).map(Value))
            }
        }
    }
}

/// What queues know about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Queued {
    /// Nothing: only the trees do.
    Nothing,
    /// Its value, or that there is none.
    Is(Change),
    /// Operands, newest first, whose value lies in the trees.
    Operands(Vec<Bytes>),
}

/// What operands of the queues make of what the tree has.
pub(crate) fn lay(merging: Option<&Merging>, operands: &[Bytes], tree: Option<&[u8]>) -> Change {
    let newest_first = operands.iter().map(|operands| Some(&operands[..]));
    merging?.lay_all(newest_first.chain([tree])).map(Bytes::from)
}

/// The current state of an open database.
pub(crate) struct CurrentState {
    state: ArcSwap<State>,
    visible: AtomicU64,
    /// Odd while the state and `visible` are replaced together.
    replacements: AtomicU64,
    pub pager: Arc<Pager>,
    /// Where scans need not look.
    pub empty_ranges: EmptyRanges,
}

impl CurrentState {
    /// The state of a database that has just been opened, before its log is replayed.
    pub fn new(pager: Arc<Pager>, active: Arc<Opq>, version: Arc<Version>, visible: SeqNo) -> Self {
        let state = State { number: 0, ingested: 0, active, frozen: None, version };
        Self {
            state: ArcSwap::from_pointee(state),
            visible: AtomicU64::new(visible),
            replacements: AtomicU64::new(0),
            pager,
            empty_ranges: EmptyRanges::default(),
        }
    }

    /// The current state, for a moment.
    pub fn load(&self) -> Guard<Arc<State>> {
        self.state.load()
    }

    /// The current state, for as long as the caller likes.
    pub fn load_full(&self) -> Arc<State> {
        self.state.load_full()
    }

    /// The current version, for as long as the caller likes.
    pub fn version(&self) -> Arc<Version> {
        Arc::clone(&self.load().version)
    }

    /// Replaces the state by what `next` makes of it. `next` is called again if another thread has replaced it meanwhile.
    pub fn replace(&self, next: impl FnMut(&Arc<State>) -> State) {
        _ = self.state.rcu(next);
    }

    /// Replaces the state, and the newest operation that readers may see: none sees the one without the other. For one thread at a
    /// time, and short: readers wait.
    pub fn replace_up_to(&self, seq: SeqNo, next: impl FnMut(&Arc<State>) -> State) {
        self.replacements.fetch_add(1, Ordering::AcqRel);
        self.set_visible(seq);
        self.replace(next);
        self.replacements.fetch_add(1, Ordering::Release);
    }

    /// Begins to load what must belong together.
    #[inline]
    fn begin(&self) -> u64 {
        loop {
            let replacements = self.replacements.load(Ordering::Acquire);
            if replacements.is_multiple_of(2) {
                return replacements;
            }
            std::thread::yield_now();
        }
    }

    /// Whether what was loaded since belongs together.
    #[inline]
    fn is_still(&self, begun: u64) -> bool {
        self.replacements.load(Ordering::Acquire) == begun
    }

    /// The newest operation that readers may see.
    pub fn visible(&self) -> SeqNo {
        self.visible.load(Ordering::Acquire)
    }

    pub fn set_visible(&self, seq: SeqNo) {
        self.visible.store(seq, Ordering::Release);
    }

    /// The view of a reader that begins now.
    pub fn view(&self) -> (Arc<State>, SeqNo) {
        self.view_while(|| ())
    }

    /// The same; `between` runs between the loads of the state and of the number. A commit that came behind an ingestion must not be
    /// seen in a state without the ingested records; one to a keyspace not in a state without it; and of one in the next queue this
    /// state has nothing.
    pub fn view_while(&self, mut between: impl FnMut()) -> (Arc<State>, SeqNo) {
        loop {
            let begun = self.begin();
            let state = self.load_full();
            between();
            let seq = self.visible();
            if Arc::ptr_eq(&self.load(), &state) && self.is_still(begun) {
                return (state, seq);
            }
        }
    }

    /// The newest value of a key.
    pub fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Value>> {
        self.get_while(keyspace, key, || ())
    }

    /// The same; `between` runs between the loads of the state and of the number. A value or a removal that came behind an ingestion needs
    /// nothing of what was ingested; operands do: see [`Self::view_while`].
    pub fn get_while(
        &self,
        keyspace: KeyspaceId,
        key: &[u8],
        mut between: impl FnMut(),
    ) -> Result<Option<Value>> {
        loop {
            let begun = self.begin();
            let state = self.load();
            between();
            let seq = self.visible();
            let is_whole = || self.load().ingested == state.ingested;
            if (!state.version.has_merging || is_whole()) && self.is_still(begun) {
                state.version.check_there(keyspace)?;
                return state.get(&self.pager, keyspace, key, seq);
            }
        }
    }

    /// Notes that a reader of this state found no record between these keys.
    pub fn note_empty(&self, keyspace: KeyspaceId, keys: Keys<'_>, state: &State, seq: SeqNo) {
        self.empty_ranges.note(keyspace, keys, seq, |ingested| {
            let now = self.load();
            let may_have_newer = |queue: &Opq| queue.may_have_newer(keyspace, keys, seq);
            // What has come since is in the queue that was active, and in the one that is. If that queue is in the trees
            // already, this cannot be told any more.
            let is_there = now.queues().any(|queue| Arc::ptr_eq(queue, &state.active));
            let is_one = Arc::ptr_eq(&now.active, &state.active);
            ingested <= state.ingested
                && is_there
                && !may_have_newer(&state.active)
                && (is_one || !may_have_newer(&now.active))
        });
    }
}
