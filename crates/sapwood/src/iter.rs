//! Iteration: merges the operation queues with the tree, from either end.
//!
//! Invariants:
//! 1. Each key is returned at most once, with the newest change that the snapshot sees. Removed keys are not
//!    returned.
//! 2. Front and back never cross: a record returned from one end is not returned from the other.
//! 3. After an error the iterator is exhausted.
//! 4. Iterators that are not at work hold little ([`HELD_SHARE`]): if all together hold too much, one keeps its place
//!    and its bounds only, and its next step begins with a search for that place.

use crate::database::Handle;
use crate::engine::State;
use crate::error::{Error, Result};
use crate::operation::{KeyspaceId, SeqNo};
use crate::queue::opq::{Change, Opq};
use crate::store::pager::Holding;
use crate::tree::range::{Direction, Leaves};
use crate::value::{Key, Value};
use bytes::Bytes;
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

/// All iterators together hold at most this fraction (1/32) of the budget between two steps, besides [`BARE`] bytes each.
/// Those that have had to leave what they held so many times ([`LEFT_MAX`]) are at work, and may hold more (1/8).
const HELD_SHARE: usize = 32;
const HELD_AT_WORK: usize = 8;
const LEFT_MAX: u8 = 3;

/// Memory of an iterator that holds nothing, but for the longest keys of its bounds.
const BARE: usize = size_of::<Range>() + 512;

/// A record of this length is lent from its leaf; a shorter one is copied, so that it does not hold the leaf.
const LENT_FROM: usize = 2048;

/// An iterator over records in key order, all as of the same moment. Made by
/// [`Keyspace::range`](crate::Keyspace::range) and similar methods.
///
/// There may be many. Each takes about a kilobyte, and what it holds of the tree for its next steps counts in the memory
/// budget. If all together hold more than a 32nd of the budget, one that has hardly been used keeps only its place, and
/// its next step begins with a search; beyond an eighth all do. The two ends of an iterator that is used from both
/// are excepted.
#[must_use = "iterators do nothing until they are used"]
pub struct Range {
    handle: Arc<Handle>,
    state: Arc<State>,
    seq: SeqNo,
    keyspace: KeyspaceId,
    low: Bound<Bytes>,
    high: Bound<Bytes>,
    front: Option<Box<Merge>>,
    back: Option<Box<Merge>>,
    refused: Option<Error>,
    over: bool,
    /// How many times it left what it held.
    left: u8,
    /// Counts the iterator itself.
    _bare: Holding,
    /// The record lent last, if the tree walk does not hold it.
    lent: (Bytes, Bytes),
}

impl Range {
    pub(crate) fn new(
        handle: Arc<Handle>,
        state: Arc<State>,
        seq: SeqNo,
        keyspace: KeyspaceId,
        (low, high): (Bound<Bytes>, Bound<Bytes>),
        refused: Option<Error>,
    ) -> Self {
        let over = refused.is_none() && is_empty(&low, &high);
        let lent = Default::default();
        let mut bare = Holding::new(Arc::clone(&handle.engine.pager));
        bare.set(BARE);
        let (front, back, left) = (None, None, 0);
        Self { handle, state, seq, keyspace, low, high, front, back, refused, over, left, _bare: bare, lent }
    }

    fn step(&mut self, direction: Direction) -> Result<Option<(Bytes, Bytes)>> {
        if let Some(error) = self.refused.take() {
            return Err(error);
        }
        let end = match direction {
            Direction::Up => &mut self.front,
            Direction::Down => &mut self.back,
        };
        let merge = match end {
            Some(merge) => merge,
            None => {
                let bounds = (self.low.clone(), self.high.clone());
                let pager = Arc::clone(&self.handle.engine.pager);
                let merge = Merge::new(pager, &self.state, self.seq, self.keyspace, bounds, direction);
                end.insert(Box::new(merge))
            }
        };
        let Some((key, value)) = merge.next()? else { return Ok(None) };
        let has_changed = merge.note_held();
        let met = match direction {
            Direction::Up => {
                self.back.as_deref().and_then(Merge::last_key).is_some_and(|last| key[..] >= *last)
            }
            Direction::Down => {
                self.front.as_deref().and_then(Merge::last_key).is_some_and(|last| key[..] <= *last)
            }
        };
        if has_changed {
            self.handle.engine.note_held();
        }
        self.leave_if_too_much(direction, &key);
        Ok((!met).then_some((key, value)))
    }

    /// Keeps no more than the place behind `key`, the last one returned, if iterators hold too much.
    #[inline]
    fn leave_if_too_much(&mut self, direction: Direction, key: &Bytes) {
        let engine = &self.handle.engine;
        let end = if direction == Direction::Up { &self.front } else { &self.back };
        let own = end.as_ref().map_or(0, |merge| merge.held.bytes());
        // One alone may hold what it likes: it reads groups that fit the memory.
        let others = engine.pager.held().saturating_sub(own);
        let share = if self.left < LEFT_MAX { HELD_SHARE } else { HELD_AT_WORK };
        if others <= engine.shares.memory as usize / share {
            return;
        }
        let place = Bound::Excluded(Bytes::copy_from_slice(key));
        // The other end, if there is one, has its own idea of the bounds.
        match direction {
            Direction::Up if self.back.is_none() => (self.front, self.low) = (None, place),
            Direction::Down if self.front.is_none() => (self.back, self.high) = (None, place),
            _ => return,
        }
        self.left = self.left.saturating_add(1);
    }

    #[inline]
    fn advance(&mut self, direction: Direction) -> Option<Result<(Key, Value)>> {
        let (end, other) = match direction {
            Direction::Up => (&mut self.front, &self.back),
            Direction::Down => (&mut self.back, &self.front),
        };
        // The common case, short enough to be inlined into the caller's loop.
        if let (Some(merge), None) = (end, other)
            && let Some((key, value)) = merge.next_free()
        {
            return Some(Ok((Value(key), Value(value))));
        }
        self.advance_far(direction)
    }

    /// Like [`Iterator::next`], but lends the record until the next call instead of sharing its ownership.
    ///
    /// Use it for long scans: the reference counting for each key and value would cost as much as everything
    /// else.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let db = sapwood::Database::open(directory.path())?;
    /// # let numbers = db.keyspace("numbers")?;
    /// # numbers.insert("one", "1")?;
    /// let mut range = numbers.range("a"..);
    /// let mut bytes = 0;
    /// while let Some(record) = range.next_ref() {
    ///     let (key, value) = record?;
    ///     bytes += key.len() + value.len();
    /// }
    /// assert_eq!(bytes, 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn next_ref(&mut self) -> Option<Result<(&[u8], &[u8])>> {
        self.lend(Direction::Up)
    }

    /// Like [`DoubleEndedIterator::next_back`], but lends the record until the next call.
    #[inline]
    pub fn next_back_ref(&mut self) -> Option<Result<(&[u8], &[u8])>> {
        self.lend(Direction::Down)
    }

    #[inline]
    fn lend(&mut self, direction: Direction) -> Option<Result<(&[u8], &[u8])>> {
        let (end, other) = match direction {
            Direction::Up => (&mut self.front, &self.back),
            Direction::Down => (&mut self.back, &self.front),
        };
        if let (Some(merge), None) = (end, other)
            && merge.step_free()
        {
            let end = if direction == Direction::Up { &self.front } else { &self.back };
            return end.as_ref()?.leaves.record().map(Ok);
        }
        match self.advance_far(direction)? {
            Ok((Value(key), Value(value))) => {
                let is_short = key.len() + value.len() < LENT_FROM;
                let own = |part: Bytes| if is_short { Bytes::copy_from_slice(&part) } else { part };
                self.lent = if self.left > 0 { (own(key), own(value)) } else { (key, value) };
                Some(Ok((&self.lent.0, &self.lent.1)))
            }
            Err(error) => Some(Err(error)),
        }
    }

    #[inline(never)]
    fn advance_far(&mut self, direction: Direction) -> Option<Result<(Key, Value)>> {
        if self.over {
            return None;
        }
        let end = match self.step(direction) {
            Ok(Some((key, value))) => return Some(Ok((Value(key), Value(value)))),
            Ok(None) => None,
            Err(error) => Some(Err(error)),
        };
        self.over = true;
        self.lent = Default::default();
        self.front = None;
        self.back = None;
        end
    }
}

impl Iterator for Range {
    type Item = Result<(Key, Value)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.advance(Direction::Up)
    }
}

impl DoubleEndedIterator for Range {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.advance(Direction::Down)
    }
}

impl std::iter::FusedIterator for Range {}

impl std::fmt::Debug for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Range({:?}, {:?})", self.low, self.high)
    }
}

fn is_empty(low: &Bound<Bytes>, high: &Bound<Bytes>) -> bool {
    match (low, high) {
        (Bound::Included(low), Bound::Included(high)) => low > high,
        (Bound::Included(low) | Bound::Excluded(low), Bound::Included(high) | Bound::Excluded(high)) => {
            low >= high
        }
        _ => false,
    }
}

/// The merge of all sources in one direction.
struct Merge {
    direction: Direction,
    /// Newest first: on equal keys the first queue wins.
    queues: Vec<Queued>,
    /// The next key in the queues. Valid once `is_peeked`.
    queued: Option<Bytes>,
    is_peeked: bool,
    /// At least this many of the tree's next records come before that key, and need no comparison with it.
    free: usize,
    leaves: Leaves,
    held: Holding,
    /// The tree's next record, if it has been taken out already.
    leaf_next: Option<(Bytes, Bytes)>,
    is_leaf_taken: bool,
    last: Last,
}

/// The last key returned.
enum Last {
    Nothing,
    /// The key that the tree returned last.
    OfTree,
    Key(Bytes),
}

impl Merge {
    fn new(
        pager: Arc<crate::store::pager::Pager>,
        state: &State,
        seq: SeqNo,
        keyspace: KeyspaceId,
        bounds: (Bound<Bytes>, Bound<Bytes>),
        direction: Direction,
    ) -> Self {
        let queues = state
            .queues()
            .map(|queue| Queued::new(Arc::clone(queue), keyspace, seq, bounds.clone(), direction))
            .collect();
        let held = Holding::new(Arc::clone(&pager));
        let leaves = Leaves::new(pager, Arc::clone(&state.version), keyspace, bounds, direction);
        Self {
            direction,
            queues,
            queued: None,
            is_peeked: false,
            free: 0,
            leaves,
            held,
            leaf_next: None,
            is_leaf_taken: false,
            last: Last::Nothing,
        }
    }

    /// Counts what it holds. Returns whether that has changed.
    #[inline]
    fn note_held(&mut self) -> bool {
        let queued: usize = self.queues.iter().map(|queue| queue.held).sum();
        self.held.set(size_of::<Self>() + queued + self.leaves.held())
    }

    fn last_key(&self) -> Option<&[u8]> {
        match &self.last {
            Last::Nothing => None,
            Last::OfTree => self.leaves.last_key(),
            Last::Key(key) => Some(key),
        }
    }

    /// Steps to the next record if it is the tree's and needs no comparison. Returns whether it did.
    #[inline]
    fn step_free(&mut self) -> bool {
        let is_free = self.is_tree_next() && self.leaves.step_free();
        if is_free {
            self.last = Last::OfTree;
        }
        is_free
    }

    /// Returns the next record if it is the tree's and needs no comparison.
    #[inline]
    fn next_free(&mut self) -> Option<(Bytes, Bytes)> {
        if !self.step_free() {
            return None;
        }
        self.leaves.shared_record()
    }

    /// Whether the tree's next record, if it has one loaded, is the next of the merge.
    #[inline]
    fn is_tree_next(&mut self) -> bool {
        if !self.is_peeked || self.is_leaf_taken {
            return false;
        }
        if self.queued.is_some() {
            if self.free == 0 {
                return false;
            }
            self.free -= 1;
        }
        true
    }

    fn next(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        loop {
            if !self.is_peeked {
                self.queued = self.first_queued();
                self.is_peeked = true;
            }
            // If one tree record came before the queued key, more may follow.
            if let (Some(queued), Last::OfTree, false) = (&self.queued, &self.last, self.is_leaf_taken) {
                self.free = self.leaves.free_steps_before(queued);
                if let Some(record) = self.next_free() {
                    return Ok(Some(record));
                }
            }
            if !self.is_leaf_taken {
                let record = self.leaves.next()?;
                if self.queued.is_none() {
                    self.last = Last::OfTree;
                    return Ok(record);
                }
                (self.leaf_next, self.is_leaf_taken) = (record, true);
            }
            let order = match (&self.queued, &self.leaf_next) {
                (Some(queued), Some((key, _))) if self.direction == Direction::Up => queued.cmp(key),
                (Some(queued), Some((key, _))) => key.cmp(queued),
                (Some(_), None) => Ordering::Less,
                (None, _) => Ordering::Greater,
            };
            if order == Ordering::Greater {
                self.is_leaf_taken = false;
                self.last = Last::OfTree;
                return Ok(self.leaf_next.take());
            }
            if order == Ordering::Equal {
                self.leaf_next = None;
                self.is_leaf_taken = false;
            }
            if let Some((key, Some(value))) = self.pop_queued() {
                self.last = Last::Key(key.clone());
                return Ok(Some((key, value)));
            }
        }
    }

    /// The first key in the queues.
    fn first_queued(&mut self) -> Option<Bytes> {
        let direction = self.direction;
        let keys = self.queues.iter_mut().filter_map(|queue| queue.peek().map(|(key, _)| key));
        let first = if direction == Direction::Up { keys.min() } else { keys.max() };
        first.cloned()
    }

    /// Takes the first key out of all queues, with its newest change.
    fn pop_queued(&mut self) -> Option<(Bytes, Change)> {
        let first = self.queued.take()?;
        self.is_peeked = false;
        let mut change: Option<Change> = None;
        for queue in &mut self.queues {
            if queue.peek().is_some_and(|(key, _)| *key == first)
                && let Some((_, newest)) = queue.pop()
            {
                change = change.or(Some(newest));
            }
        }
        change.map(|change| (first, change))
    }
}

/// One operation queue, read in growing chunks so that a short scan costs little.
struct Queued {
    queue: Arc<Opq>,
    keyspace: KeyspaceId,
    seq: SeqNo,
    from: Bound<Bytes>,
    to: Bound<Bytes>,
    direction: Direction,
    chunk: VecDeque<(Bytes, Change)>,
    chunk_len: usize,
    /// Bytes of the chunk.
    held: usize,
    more: bool,
}

const CHUNK: std::ops::RangeInclusive<usize> = 8..=512;

impl Queued {
    fn new(
        queue: Arc<Opq>,
        keyspace: KeyspaceId,
        seq: SeqNo,
        (low, high): (Bound<Bytes>, Bound<Bytes>),
        direction: Direction,
    ) -> Self {
        let (from, to) = if direction == Direction::Up { (low, high) } else { (high, low) };
        let more = !queue.is_empty();
        Self {
            queue,
            keyspace,
            seq,
            from,
            to,
            direction,
            chunk: VecDeque::new(),
            chunk_len: *CHUNK.start(),
            held: 0,
            more,
        }
    }

    fn peek(&mut self) -> Option<&(Bytes, Change)> {
        if self.chunk.is_empty() && self.more {
            self.fill();
        }
        self.chunk.front()
    }

    fn pop(&mut self) -> Option<(Bytes, Change)> {
        self.chunk.pop_front()
    }

    fn fill(&mut self) {
        let mut chunk = Vec::new();
        let from = match &self.from {
            Bound::Included(key) => Bound::Included(&key[..]),
            Bound::Excluded(key) => Bound::Excluded(&key[..]),
            Bound::Unbounded => Bound::Unbounded,
        };
        self.more = match self.direction {
            Direction::Up => self.queue.chunk(self.keyspace, from, self.seq, self.chunk_len, &mut chunk),
            Direction::Down => {
                self.queue.chunk_back(self.keyspace, from, self.seq, self.chunk_len, &mut chunk)
            }
        };
        self.chunk_len = (self.chunk_len * 4).min(*CHUNK.end());
        if let Some((last, _)) = chunk.last() {
            self.from = Bound::Excluded(last.clone());
        }
        let within = chunk.partition_point(|(key, _)| match (&self.to, self.direction) {
            (Bound::Unbounded, _) => true,
            (Bound::Included(to), Direction::Up) => key <= to,
            (Bound::Excluded(to), Direction::Up) => key < to,
            (Bound::Included(to), Direction::Down) => key >= to,
            (Bound::Excluded(to), Direction::Down) => key > to,
        });
        if within < chunk.len() {
            chunk.truncate(within);
            self.more = false;
        }
        let len = |(key, change): &(Bytes, Change)| key.len() + change.as_ref().map_or(0, Bytes::len);
        self.held = chunk.iter().map(len).sum::<usize>() + size_of_val(&chunk[..]);
        self.chunk = chunk.into();
    }
}

#[cfg(test)]
mod tests {
    use crate::store::pager::Keep;
    use crate::store::scan_lengths::Kind;
    use crate::tree::range::{Direction, Leaves};
    use crate::tree::view::TreeView;
    use crate::{Database, Keyspace};
    use bytes::Bytes;
    use psync::{AlignedBuffer, Simulated};
    use std::ops::Bound::Unbounded;
    use std::sync::Arc;

    #[test]
    fn who_stands_still_holds_what_is_in_flight_and_nothing_else() {
        let options = Database::builder().memory(8 << 20).leaf_len(2048).background_threads(0);
        let db = options.open_on(Arc::new(Simulated::new(1))).unwrap();
        let keyspace = db.keyspace("main").unwrap();
        // More than the cache has room for.
        keyspace.ingest((0..160_000u32).map(|number| (number.to_be_bytes(), [0; 80]))).unwrap();
        let pager = &db.handle.engine.pager;
        let version = Arc::clone(&db.handle.engine.state.load().version);
        let mut walk =
            Leaves::new(Arc::clone(pager), version, keyspace.id(), (Unbounded, Unbounded), Direction::Up);
        let mut flights = 0;
        while walk.next().unwrap().is_some() {
            assert!(walk.spare() == 0);
            assert!(
                pager.reader.aloft().is_multiple_of(AlignedBuffer::ALIGNMENT),
                "{} bytes",
                pager.reader.aloft()
            );
            flights += usize::from(pager.reader.aloft() > 0);
        }
        assert!(flights > 10_000 && pager.reader.aloft() == 0, "{flights}");
    }

    fn key(number: u32) -> [u8; 4] {
        number.to_be_bytes()
    }

    /// A database with these records, few in a leaf.
    fn of_short_leaves(records: u32) -> (Database, Keyspace) {
        let options = Database::builder().memory(8 << 20).leaf_len(256).background_threads(0);
        let db = options.open_on(Arc::new(Simulated::new(1))).unwrap();
        let keyspace = db.keyspace("main").unwrap();
        keyspace.ingest((0..records).map(|number| (key(number), [0; 40]))).unwrap();
        (db, keyspace)
    }

    /// A log piece that the mapping table has lost is told where the walk comes to its block, however groups are cut.
    #[test]
    fn what_lies_before_a_damaged_block_is_given_out() {
        let (db, keyspace) = of_short_leaves(3000);
        let mut batch = db.batch();
        (0..3000).step_by(20).for_each(|number| _ = batch.insert(&keyspace, key(number), [1; 40]));
        batch.commit().unwrap();
        db.flush().unwrap();
        let engine = &db.handle.engine;
        let version = Arc::clone(&engine.state.load().version);
        let view = TreeView { pager: &engine.pager, version: &version, keyspace: keyspace.id() };
        let walk = |version, direction| {
            Leaves::new(Arc::clone(&engine.pager), version, keyspace.id(), (Unbounded, Unbounded), direction)
        };
        let nodes = version
            .table
            .iter()
            .map(|(id, address)| (view.pager.fetch_one(&version.segments, id, address, Keep::Long), address));
        let leaves: Vec<_> = nodes
            .filter(|(node, _)| node.as_ref().unwrap().name().level == 0)
            .map(|(_, address)| address)
            .collect();
        let kind = Kind::new(keyspace.id(), false);
        let (mut low, mut damaged, mut more) = (Bytes::new(), 0, 0);
        while let Some(block) = view.block_at(&low).unwrap() {
            if let Some(area) = view.log(block.id) {
                damaged += 1;
                let mut version = (*version).clone();
                version.table.remove(area.pieces().next().unwrap());
                let version = Arc::new(version);
                let walks = [Direction::Up, Direction::Down]
                    .map(|direction| [5, 30, 60, 2000].map(|len| (direction, len)));
                for (direction, len) in walks.into_iter().flatten() {
                    (0..300).for_each(|_| engine.pager.lengths.note(kind, len));
                    // Blocks stay in the cache, so that groups go on in the next one; leaves have to be read.
                    leaves.iter().for_each(|leaf| _ = engine.pager.forget(leaf.position));
                    let mut walk = walk(Arc::clone(&version), direction);
                    let mut given = Vec::new();
                    let error = loop {
                        match walk.next() {
                            Ok(Some((key, _))) => given.push(key),
                            Ok(None) => panic!("nobody has told of the damage"),
                            Err(error) => break error,
                        }
                    };
                    assert!(error.to_string().contains("the mapping table has no"), "{error}");
                    let is_before = |key: &[u8]| match (direction, &block.fence) {
                        (Direction::Up, _) => key < &low[..],
                        (Direction::Down, fence) => fence.as_ref().is_some_and(|fence| key >= &fence[..]),
                    };
                    let expected = (0..3000).filter(|number| is_before(&key(*number))).count();
                    assert_eq!(
                        given.len(),
                        expected,
                        "{direction:?}, walks of {len} leaves, block from {low:?} on"
                    );
                    assert!(given.iter().all(|key| is_before(key)));
                    more += usize::from(expected > 0);
                }
            }
            let Some(fence) = block.fence else { break };
            low = fence;
        }
        assert!(damaged > 3 && more > 20, "{damaged} blocks, {more} walks");
    }

    #[test]
    fn what_lies_before_a_damaged_leaf_is_given_out_though_it_was_cached() {
        let (db, keyspace) = of_short_leaves(1000);
        let engine = &db.handle.engine;
        let version = Arc::clone(&engine.state.load().version);
        let mut leaves = Vec::new();
        for (id, address) in version.table.iter() {
            let node = engine.pager.fetch_one(&version.segments, id, address, Keep::Long).unwrap();
            engine.pager.admit(address.position, node.clone());
            if node.name().level == 0 {
                leaves.push((id, node.key_bytes(0)));
            }
        }
        for (id, first) in leaves.iter().step_by(7) {
            let mut version = (*version).clone();
            version.table.remove(*id);
            let (pager, unbounded) = (Arc::clone(&engine.pager), (Unbounded, Unbounded));
            let mut walk = Leaves::new(pager, Arc::new(version), keyspace.id(), unbounded, Direction::Up);
            let mut given = 0;
            while let Ok(Some(_)) = walk.next() {
                given += 1;
            }
            let expected = (0..1000).filter(|number| key(*number)[..] < first[..]).count();
            assert_eq!(given, expected, "{id} begins with {first:?}");
        }
    }
}
