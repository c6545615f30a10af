//! Iteration: merges the operation queues with the tree, from either end.
//!
//! Invariants:
//! 1. Each key is returned at most once, with the newest change that the snapshot sees. Removed keys are not
//!    returned.
//! 2. Front and back never cross: a record returned from one end is not returned from the other.
//! 3. After an error the iterator is exhausted.
//! 4. Iterators that are not at work hold little ([`HELD_SHARE`]): if all together hold too much, one keeps its place
//!    and its bounds only, and its next step begins with a search for that place.
//! 5. What is passed over without a look holds no record for this snapshot.

mod merge;
mod queued;

use crate::cache::pager::Holding;
use crate::db::database::Handle;
use crate::db::engine::State;
use crate::error::{Error, Result};
use crate::operation::{KeyspaceId, SeqNo};
use crate::tree::range::Direction;
use crate::value::{Key, Value};
use bytes::Bytes;
use merge::{Merge, MergeSpec};
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
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # let ships = db.keyspace("ships")?;
/// for number in 0..10u8 {
///     ships.insert([number], "afloat")?;
/// }
/// let mut range = ships.range([2]..[8]);
/// let (first, last) = (range.next().expect("there are some")?, range.next_back().expect("there are some")?);
/// assert_eq!((&first.0[..], &last.0[..]), (&[2][..], &[7][..])); // both ends of one range
/// assert_eq!(range.count(), 4);
/// # Ok(()) }
/// ```
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
                let (state, bounds) = (Arc::clone(&self.state), (self.low.clone(), self.high.clone()));
                let course = MergeSpec { state, seq: self.seq, keyspace: self.keyspace, bounds, direction };
                match Merge::new(&self.handle.engine, course) {
                    Some(merge) => end.insert(Box::new(merge)),
                    None => return Ok(None),
                }
            }
        };
        let Some((key, value)) = merge.next(&self.handle.engine)? else { return Ok(None) };
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
        let own = end.as_ref().map_or(0, |merge| merge.held());
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
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// let mut range = ships.iter();
    /// while let Some(record) = range.next_back_ref() {
    ///     let (name, year) = record?;
    ///     assert_eq!((name, year), (&b"fram"[..], &b"1892"[..]));
    /// }
    /// # Ok(()) }
    /// ```
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
            return end.as_ref()?.record().map(Ok);
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

#[cfg(test)]
mod tests {
    use crate::cache::pager::Keep;
    use crate::cache::scan_lengths::Kind;
    use crate::opq::map::pages_of;
    use crate::tree::range::{Direction, Leaves};
    use crate::tree::view::TreeView;
    use crate::{Database, Keyspace};
    use bytes::Bytes;
    use psync::{AlignedBuffer, Simulated, Volume};
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

    /// `first` looked at each tombstone in the queues, again and again; also after opening again.
    #[test]
    fn who_asks_for_an_end_does_not_walk_along_what_was_removed() {
        const COUNT: u32 = 40_000;
        let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
        let open = || {
            let options = Database::builder().memory(64 << 20).background_threads(0);
            options.open_on(Arc::clone(&volume)).unwrap()
        };
        let mut db = open();
        let mut keyspace = db.keyspace("main").unwrap();
        let change = |db: &Database, keyspace: &Keyspace, numbers: std::ops::Range<u32>, is_there: bool| {
            let mut batch = db.batch();
            for number in numbers {
                match is_there {
                    true => batch.insert(keyspace, key(number), [1; 40]),
                    false => batch.remove(keyspace, key(number)),
                };
            }
            batch.commit().unwrap();
        };
        // Two prefixes and two suffixes that are gone, with a record between.
        change(&db, &keyspace, 0..COUNT, true);
        for gone in
            [0..COUNT / 4, COUNT / 4 + 1..COUNT / 2, COUNT / 2 + 1..3 * COUNT / 4, 3 * COUNT / 4 + 1..COUNT]
        {
            change(&db, &keyspace, gone, false);
        }
        for is_again in [false, true] {
            if is_again {
                drop(keyspace);
                db.close().unwrap();
                db = open();
                keyspace = db.keyspace("main").unwrap();
            }
            let middle = || keyspace.range(key(COUNT / 2 + 1)..key(3 * COUNT / 4)).count();
            let asked = [
                pages_of(|| assert_eq!(keyspace.first().unwrap().unwrap().0[..], key(COUNT / 4))),
                pages_of(|| assert_eq!(keyspace.last().unwrap().unwrap().0[..], key(3 * COUNT / 4))),
                pages_of(|| assert_eq!(middle(), 0)),
                pages_of(|| assert_eq!(keyspace.iter().count(), 3)),
            ];
            assert!(asked.iter().all(|pages| *pages <= 60), "{asked:?} leaves of {COUNT} tombstones");
        }
        // What lies in leaves and was removed is passed over once, by whoever comes first.
        db.compact().unwrap();
        change(&db, &keyspace, 0..COUNT, true);
        db.compact().unwrap();
        change(&db, &keyspace, 0..COUNT - 10, false);
        for is_logged in [false, true] {
            if is_logged {
                db.flush().unwrap();
            }
            for is_known in [false, true] {
                let before = db.stats().device.reads;
                let pages =
                    pages_of(|| assert_eq!(keyspace.first().unwrap().unwrap().0[..], key(COUNT - 10)));
                let reads = db.stats().device.reads - before;
                assert!(!is_known || (pages < 60 && reads < 4), "{pages} leaves of the queue, {reads} reads");
            }
        }
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
