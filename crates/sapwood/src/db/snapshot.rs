//! Snapshots: read-only views of the database as of one moment. Readers never wait for a writer, nor for a write to the
//! device; what locks they take, those of caches and buffers, are held for moments ([`crate::db::engine`]).
//!
//! A snapshot is a state (the two operation queues and a version of the trees) plus a sequence number. The
//! state is loaded first: everything in it was visible before the number was read. It is still the current one afterwards, so no change up to the
//! number is in a later queue. Changes added to its active queue later have higher numbers.

use crate::cache::pager::Pager;
use crate::current_state::{Queued, State, lay};
use crate::db::batch::check_key;
use crate::db::handle::Handle;
use crate::db::key_bounds::KeyBounds;
use crate::db::keyspace::Keyspace;
use crate::db::large_values::create::is_hidden;
use crate::error::{Error, Result};
use crate::expiry::Expiry;
use crate::iter::{Host, Range};
use crate::latency::Timed;
use crate::operation::{KeyspaceId, SeqNo};
use crate::tree::lookup;
use crate::tree::view::TreeView;
use crate::value::{Key, Value};
use crate::version::Tree;
use bytes::Bytes;
use std::ops::Bound;
use std::sync::Arc;

/// A consistent read-only view of all keyspaces. Made by [`Database::snapshot`](crate::Database::snapshot).
///
/// A snapshot keeps alive whatever it can see: the memory of its operation queues, which reduces the cache and
/// later queues; the disk space of nodes that have since been replaced; and the tables that lead to them. If
/// everything is written anew meanwhile, those take as much memory as the database's own, beyond its budget. Drop it
/// when it is no longer needed.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # let ships = db.keyspace("ships")?;
/// ships.insert("fram", "1892")?;
/// let snapshot = db.snapshot();
/// ships.insert("beagle", "1820")?;
/// assert_eq!((snapshot.iter(&ships).count(), ships.iter().count()), (1, 2));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Snapshot {
    pub(super) state: Arc<State>,
    pub(super) seq: SeqNo,
    /// Dropped last: closing gives back the space of what no state has any more.
    pub(super) handle: Arc<Handle>,
}

impl Snapshot {
    pub(crate) fn new(handle: Arc<Handle>) -> Self {
        let (state, seq) = handle.engine.state.view();
        Self::of(handle, state, seq)
    }

    /// The snapshot that this state and number make.
    pub(crate) fn of(handle: Arc<Handle>, state: Arc<State>, seq: SeqNo) -> Self {
        Self { handle, state, seq }
    }

    /// How many ingestions came before it ([`State::ingested`]).
    pub(crate) fn ingested(&self) -> u64 {
        self.state.ingested
    }

    /// Returns an error unless the keyspace is one of the same database, which was there then, and this the process that opened
    /// it.
    pub(crate) fn check(&self, keyspace: &Keyspace) -> Result<()> {
        self.handle.engine.health.check_process()?;
        if !Arc::ptr_eq(keyspace.handle(), &self.handle) {
            return Err(Error::Foreign { what: "keyspace" });
        }
        self.state.version.check_there(keyspace.id()).map_err(|error| keyspace.named(error))
    }

    /// The keyspaces that there were, sorted by number. Some may have been dropped since, or have another name; this reads them all
    /// the same. Those of [large values](crate::LargeValues) are not among them.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// let snapshot = db.snapshot();
    /// db.drop_keyspace("ships")?;
    /// let keyspaces = snapshot.keyspaces();
    /// assert_eq!(keyspaces[0].name(), "ships");
    /// assert_eq!(snapshot.iter(&keyspaces[0]).count(), 1);
    /// # Ok(()) }
    /// ```
    pub fn keyspaces(&self) -> Vec<Keyspace> {
        let version = &self.state.version;
        let is_ordinary = |tree: &Tree| tree.chunks.is_none() && !is_hidden(&tree.name);
        let trees = version.trees.iter().filter(|(_, tree)| is_ordinary(tree));
        let mut trees: Vec<_> = trees.map(|(id, tree)| (id, Arc::clone(&tree.name))).collect();
        trees.sort_unstable_by_key(|(id, _)| *id);
        let keyspace = |(id, name)| Keyspace::in_version(Arc::clone(&self.handle), version, id, name);
        trees.into_iter().map(keyspace).collect()
    }

    /// Returns the value of `key`.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// let before = db.snapshot();
    /// ships.insert("fram", "1892")?;
    /// assert!(before.get(&ships, "fram")?.is_none());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        let key = key.as_ref();
        keyspace.values().read_found(key, self.get_stored(keyspace, key)?)
    }

    /// When the record of `key` expires, as [`Keyspace::expiry`]; `None` if there is no such record in the snapshot, or it has expired by
    /// now.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood::{Expiry, KeyspaceOptions};
    /// # let berths = db.keyspace_with("berths", KeyspaceOptions::new().expiring())?;
    /// berths.insert_expiring("fram", "berth 7", Expiry::Never)?;
    /// let snapshot = db.snapshot();
    /// berths.remove("fram")?;
    /// assert_eq!(snapshot.expiry(&berths, "fram")?, Some(Expiry::Never));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn expiry(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Expiry>> {
        let stored = self.get_stored(keyspace, key.as_ref())?;
        stored.map_or(Ok(None), |stored| keyspace.values().expiry(&stored))
    }

    /// The value as it is stored.
    pub(super) fn get_stored(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Value>> {
        self.check(keyspace)?;
        check_key(key)?;
        let pager = &self.handle.engine.pager;
        pager.latencies.timed(Timed::Get, || self.state.get(pager, keyspace.id(), key, self.seq))
    }

    /// Returns the values of many keys, in the order of `keys`. See [`Keyspace::multi_get`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// let found = db.snapshot().multi_get(&ships, ["titanic", "fram"])?;
    /// assert!(found[0].is_none() && found[1].is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Value>>> {
        self.check(keyspace)?;
        let keys: Vec<K> = keys.into_iter().collect();
        keys.iter().try_for_each(|key| check_key(key.as_ref()))?;
        let pager = &self.handle.engine.pager;
        let found = || multi_get(pager, (&self.state, self.seq), keyspace.id(), &keys);
        let mut values = pager.latencies.timed(Timed::MultiGet, found)?;
        if !keyspace.values().are_plain() {
            for (key, value) in keys.iter().zip(&mut values) {
                *value = keyspace.values().read_found(key.as_ref(), value.take())?;
            }
        }
        Ok(values)
    }

    /// The records whose keys lie within `bounds`, in key order. See [`Keyspace::range`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// let snapshot = db.snapshot();
    /// assert_eq!(snapshot.range(&ships, "a".."m").count(), 1);
    /// # Ok(()) }
    /// ```
    pub fn range(&self, keyspace: &Keyspace, bounds: impl KeyBounds) -> Range {
        let own = |bound: Bound<&[u8]>| bound.map(Bytes::copy_from_slice);
        self.between(keyspace, own(bounds.start()), own(bounds.end()))
    }

    /// The records whose keys start with `prefix`, in key order.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// assert_eq!(db.snapshot().prefix(&ships, "fr").count(), 1);
    /// # Ok(()) }
    /// ```
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Range {
        let (low, high) = bounds_of_prefix(prefix.as_ref());
        self.between(keyspace, low, high)
    }

    /// All records, in key order.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// let harbours = db.keyspace("harbours")?;
    /// ships.insert("fram", "1892")?;
    /// let snapshot = db.snapshot(); // one moment of all keyspaces
    /// assert_eq!((snapshot.iter(&ships).count(), snapshot.iter(&harbours).count()), (1, 0));
    /// # Ok(()) }
    /// ```
    pub fn iter(&self, keyspace: &Keyspace) -> Range {
        self.between(keyspace, Bound::Unbounded, Bound::Unbounded)
    }

    /// Whether `key` has a value.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// assert!(db.snapshot().contains(&ships, "fram")?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn contains(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        self.get(keyspace, key).map(|value| value.is_some())
    }

    /// The record with the smallest key, or `None` if the keyspace is empty.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// let snapshot = db.snapshot();
    /// ships.insert("beagle", "1820")?;
    /// assert!(snapshot.first(&ships)?.is_some_and(|(name, _)| name == "fram"));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn first(&self, keyspace: &Keyspace) -> Result<Option<(Key, Value)>> {
        self.iter(keyspace).next().transpose()
    }

    /// The record with the largest key, or `None` if the keyspace is empty.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// let snapshot = db.snapshot();
    /// ships.insert("fram", "1892")?;
    /// assert!(snapshot.last(&ships)?.is_none());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn last(&self, keyspace: &Keyspace) -> Result<Option<(Key, Value)>> {
        self.iter(keyspace).next_back().transpose()
    }

    /// Its view of a keyspace's tree.
    pub(super) fn view_of(&self, keyspace: &Keyspace) -> TreeView<'_> {
        TreeView { pager: &self.handle.engine.pager, version: &self.state.version, keyspace: keyspace.id() }
    }

    pub(super) fn between(&self, keyspace: &Keyspace, low: Bound<Bytes>, high: Bound<Bytes>) -> Range {
        let refused = self.check(keyspace).err();
        Range::new(
            Arc::clone(&self.handle) as Arc<dyn Host>,
            Arc::clone(&self.handle.engine.state),
            Arc::clone(&self.state),
            self.seq,
            (keyspace.id(), keyspace.values().clone()),
            (low, high),
            refused,
        )
    }
}

/// The stored values of many keys, as a reader of this state up to this operation sees them.
pub(crate) fn multi_get<K: AsRef<[u8]>>(
    pager: &Pager,
    (state, seq): (&State, SeqNo),
    keyspace: KeyspaceId,
    keys: &[K],
) -> Result<Vec<Option<Value>>> {
    let mut order: Vec<usize> = (0..keys.len()).collect();
    order.sort_by(|a, b| keys[*a].as_ref().cmp(keys[*b].as_ref()));
    let mut values: Vec<Option<Value>> = vec![None; keys.len()];
    // Keys found neither in the queues nor in the record cache are searched in the tree: each distinct key
    // once, for all its positions in `keys`.
    let mut sorted: Vec<&[u8]> = Vec::with_capacity(keys.len());
    let mut askers: Vec<usize> = Vec::with_capacity(keys.len());
    let view = TreeView { pager, version: &state.version, keyspace };
    // Of a key whose newest changes are operands: its index among those searched, and the operands.
    let mut merges: Vec<(usize, Vec<Bytes>)> = Vec::new();
    for same in order.chunk_by(|a, b| keys[*a].as_ref() == keys[*b].as_ref()) {
        let key = keys[same[0]].as_ref();
        match state.known(pager, (keyspace, view.merging()), key, seq) {
            Queued::Is(change) => {
                let value = change.map(Value);
                same.iter().for_each(|index| values[*index] = value.clone());
                continue;
            }
            Queued::Operands(operands) => merges.push((sorted.len(), operands)),
            Queued::Nothing => {}
        }
        sorted.push(key);
        askers.push(same[0]);
    }
    lookup::multi_get(view, Some(state.number), &sorted, &mut |index, value| {
        values[askers[index]] = Some(Value(value))
    })?;
    for (index, operands) in merges {
        let value = &mut values[askers[index]];
        *value = lay(view.merging(), &operands, value.as_deref()).map(Value);
    }
    for same in order.chunk_by(|a, b| keys[*a].as_ref() == keys[*b].as_ref()) {
        for index in &same[1..] {
            values[*index] = values[same[0]].clone();
        }
    }
    Ok(values)
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Snapshot(after operation {})", self.seq)
    }
}

/// The bounds of all keys that start with `prefix`.
pub(crate) fn bounds_of_prefix(prefix: &[u8]) -> (Bound<Bytes>, Bound<Bytes>) {
    let low = match prefix {
        [] => Bound::Unbounded,
        prefix => Bound::Included(Bytes::copy_from_slice(prefix)),
    };
    (low, end_of_prefix(prefix))
}

/// The smallest key greater than all keys that start with `prefix`, as an excluded bound.
fn end_of_prefix(prefix: &[u8]) -> Bound<Bytes> {
    match prefix.iter().rposition(|byte| *byte != 0xff) {
        None => Bound::Unbounded,
        Some(last) => {
            let mut end = prefix[..=last].to_vec();
            end[last] += 1;
            Bound::Excluded(end.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Database;
    use crate::flow::memory::Need;
    use crate::storage::node::{NodeId, PIECE};
    use psync::{Simulated, Volume};
    use std::collections::BTreeSet;

    #[test]
    fn a_prefix_ends_where_the_next_begins() {
        assert_eq!(end_of_prefix(b"ab"), Bound::Excluded(Bytes::from("ac")));
        assert_eq!(end_of_prefix(b"a\xff\xff"), Bound::Excluded(Bytes::from("b")));
        assert_eq!(end_of_prefix(b"\xff"), Bound::Unbounded);
        assert_eq!(end_of_prefix(b""), Bound::Unbounded);
    }

    fn open(volume: &Arc<dyn Volume>) -> (Database, Keyspace) {
        let builder = Database::builder().memory(4 << 20).leaf_len(4096).background_threads(0);
        let db = builder.open_on(Arc::clone(volume)).unwrap();
        let keyspace = db.keyspace("main").unwrap();
        (db, keyspace)
    }

    /// A database with log areas of several runs of several pieces, and with these keys in its leaves; nothing of it is in memory.
    fn logged(others: &[Vec<u8>]) -> (Database, Keyspace) {
        let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
        let (db, keyspace) = open(&volume);
        for step in [1, 40, 41, 20] {
            let mut batch = db.batch();
            (0..9000u64).step_by(step).for_each(|number| {
                batch.insert(&keyspace, number.to_be_bytes(), [step as u8; 50]);
            });
            if step == 1 {
                others.iter().for_each(|key| {
                    batch.insert(&keyspace, key, key);
                });
            }
            batch.commit().unwrap();
            db.flush().unwrap();
        }
        drop(keyspace);
        db.close().unwrap();
        open(&volume)
    }

    /// The nodes where some keys are sought.
    #[derive(Default)]
    struct Sought {
        inner: BTreeSet<NodeId>,
        pieces: BTreeSet<NodeId>,
        leaves: BTreeSet<NodeId>,
        /// Keys that a piece was taken to have.
        strangers: usize,
    }

    impl Sought {
        fn count(&self) -> usize {
            self.inner.len() + self.pieces.len() + self.leaves.len()
        }
    }

    fn sought(db: &Database, keyspace: &Keyspace, keys: &[Vec<u8>]) -> Sought {
        let engine = &db.handle.engine;
        let version = engine.state.version();
        let view = TreeView { pager: &engine.pager, version: &version, keyspace: keyspace.id() };
        let mut sought = Sought::default();
        for key in keys {
            let (mut id, height) = view.root().unwrap();
            let mut is_logged = false;
            for level in (1..=height).rev() {
                sought.inner.insert(id);
                let area = view.log(id).filter(|_| level == 1);
                for piece in area.iter().flat_map(|area| area.candidates(key)) {
                    sought.pieces.insert(piece);
                    is_logged = view.node(piece, PIECE).unwrap().search(key).is_ok();
                    if is_logged {
                        break;
                    }
                    sought.strangers += 1;
                }
                let node = view.node(id, level).unwrap();
                id = node.child(node.child_for(key));
            }
            if !is_logged {
                sought.leaves.insert(id);
            }
        }
        sought
    }

    /// What one `multi_get` of these keys finds, and how many requests in how many sets it takes.
    fn found_with(
        db: &Database,
        keyspace: &Keyspace,
        keys: &[Vec<u8>],
    ) -> (Vec<Option<Vec<u8>>>, usize, usize) {
        let counters = &db.handle.engine.pager.reader.counters;
        let counts = || {
            let (requests, sets) = (counters.total(|c| &c.requests), counters.total(|c| &c.sets));
            (requests as usize, sets as usize)
        };
        let (reads, sets) = counts();
        let values = keyspace.multi_get(keys).unwrap();
        let (reads, sets) = (counts().0 - reads, counts().1 - sets);
        (values.into_iter().map(|value| value.map(|value| value.to_vec())).collect(), reads, sets)
    }

    #[test]
    fn neighbours_share_the_read_of_a_piece_and_of_a_leaf() {
        let (db, keyspace) = logged(&[]);
        let mut shared = 0;
        for (from, to) in [(0u64, 60), (2000, 2600), (5000, 6800)] {
            let keys: Vec<_> =
                (from..to).filter(|n| n % 7 == 0 || n % 20 == 0).map(|n| n.to_be_bytes().to_vec()).collect();
            let (values, requests, _) = found_with(&db, &keyspace, &keys);
            for (key, value) in keys.iter().zip(values) {
                let number = u64::from_be_bytes(key[..].try_into().unwrap());
                let newest = [20, 41, 40, 1].into_iter().find(|step| number % step == 0).unwrap();
                assert_eq!(value, Some(vec![newest as u8; 50]), "{number}");
            }
            let sought = sought(&db, &keyspace, &keys);
            assert!(requests <= sought.count(), "{requests} for {} nodes", sought.count());
            assert!(requests >= sought.pieces.len() + sought.leaves.len());
            shared += keys.len() - sought.pieces.len() - sought.leaves.len();
        }
        assert!(shared > 200, "{shared} keys lie in a node of another");
    }

    /// The hash of a stranger is in a maplet, and the key is not in the piece: it is sought in an older one, and then in its leaf.
    #[test]
    fn strangers_go_on_together() {
        let strangers = {
            let (db, keyspace) = logged(&[]);
            let engine = &db.handle.engine;
            let version = engine.state.version();
            let view = TreeView { pager: &engine.pager, version: &version, keyspace: keyspace.id() };
            let areas = (0u64..9000).step_by(13).filter_map(|number| {
                let block = view.block_at(&number.to_be_bytes()).unwrap().unwrap();
                Some((number, view.log(block.id)?))
            });
            let candidates = areas.flat_map(|(number, area)| {
                (0..10_000u32)
                    .map(move |more| [&number.to_be_bytes()[..], &more.to_be_bytes()].concat())
                    .filter(|key| area.candidates(key).next().is_some())
            });
            candidates.take(60).collect::<Vec<_>>()
        };
        let (db, keyspace) = logged(&strangers);
        let (values, requests, sets) = found_with(&db, &keyspace, &strangers);
        for (key, value) in strangers.iter().zip(values) {
            assert_eq!(value.as_ref(), Some(key));
        }
        let sought = sought(&db, &keyspace, &strangers);
        assert!(sought.strangers > 30, "{} of {}", sought.strangers, strangers.len());
        assert!(requests <= sought.count(), "{requests} for {} nodes", sought.count());
        let most =
            usize::from(db.handle.engine.state.load().version.trees.get(&keyspace.id()).unwrap().height) + 6;
        assert!(sets <= most, "{sets} sets for {} strangers", sought.strangers);
    }

    /// The commit was seen, and the records that were ingested before it were not.
    #[test]
    fn a_view_that_sees_a_commit_sees_what_was_ingested_before_it() {
        let db = Database::builder().memory(4 << 20).background_threads(0);
        let db = db.open_on(Arc::new(Simulated::new(1))).unwrap();
        let (records, done) = (db.keyspace("records").unwrap(), db.keyspace("done").unwrap());
        let mut times = 0;
        let (state, seq) = db.handle.engine.state.view_while(|| {
            if times == 0 {
                records.ingest([("one", "1")]).unwrap();
                done.insert("one", "yes").unwrap();
            }
            times += 1;
        });
        let snapshot = Snapshot::of(Arc::clone(&db.handle), state, seq);
        let found = [&done, &records].map(|keyspace| snapshot.contains(keyspace, "one").unwrap());
        assert!(found == [true, true] && times == 2, "{found:?}, looked {times} times");
    }

    /// The queue was frozen and a record committed to the next one between the loads: a scan noted a range as empty where that record was.
    #[test]
    fn a_view_has_the_queue_of_the_newest_commit_that_it_sees() {
        let db = Database::builder().memory(4 << 20);
        let db = db.open_on(Arc::new(Simulated::new(1))).unwrap();
        let (engine, keyspace) = (&db.handle.engine, db.keyspace("main").unwrap());
        // The frozen queue stays.
        let guard = engine.writer().lock(Need::default()).unwrap();
        for number in 0..10u8 {
            keyspace.insert([number], "v").unwrap();
            keyspace.remove([number]).unwrap();
        }
        let mut times = 0;
        let (state, seq) = engine.state.view_while(|| {
            if times == 0 {
                engine.commits.freeze(engine.commits.log.lock_for_test().as_mut().unwrap()).unwrap();
                keyspace.insert([20], "v").unwrap();
            }
            times += 1;
        });
        let snapshot = Snapshot::of(Arc::clone(&db.handle), state, seq);
        let seen = snapshot.iter(&keyspace).count();
        assert_eq!((seen, keyspace.iter().count(), times), (1, 1, 2));
        drop(guard);
    }

    /// A follower showed the number first, and a reader had that with the state before.
    #[test]
    fn a_state_and_its_number_are_seen_together() {
        let db = Database::builder().memory(4 << 20).background_threads(0);
        let db = db.open_on(Arc::new(Simulated::new(1))).unwrap();
        let keyspace = db.keyspace("main").unwrap();
        keyspace.insert("k", "v").unwrap();
        let state = &db.handle.engine.state;
        let (next, (sender, receiver)) = (state.visible() + 1, std::sync::mpsc::channel());
        let number = state.load().number + 1;
        std::thread::scope(|scope| {
            state.replace_up_to(next, |old| {
                let sender = sender.clone();
                scope.spawn(move || {
                    let (state, seq) = state.view();
                    sender.send((state.number, seq)).unwrap();
                });
                let early = receiver.recv_timeout(std::time::Duration::from_millis(100));
                assert!(early.is_err(), "{early:?}");
                State { number, ..State::clone(old) }
            });
            assert_eq!(receiver.recv().unwrap(), (number, next));
        });
    }
}
