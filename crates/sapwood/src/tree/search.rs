//! Search for one key, and for many at once by MPSearch. (PIO B-tree, VLDB 2011, section 3.1.)
//!
//! Below the inner nodes one read answers: a key that a log piece has is read from there, one that none has from its leaf.
//! Only when a maplet takes a stranger for a key that it knows, once in thousands of searches, a second one is needed. What
//! was found by reading is remembered as a single record.

use crate::error::{Error, Result};
use crate::node::{Node, NodeId};
use crate::queue::opq::Change;
use crate::store::log_area::LogArea;
use crate::store::pager::Gather;
use crate::tree::view::TreeView;
use bytes::Bytes;
use mpsearch::{Visit, fan_out, mpsearch};
use std::ops::Range;

/// The value of a key, for a reader of a state with this number, if it is to be remembered.
pub(crate) fn get(view: TreeView<'_>, number: Option<u64>, key: &[u8]) -> Result<Option<Bytes>> {
    let Some((mut id, height)) = view.root() else { return Ok(None) };
    for level in (1..=height).rev() {
        let node = view.node(id, level)?;
        if level == 1
            && let Some(area) = view.log(id)
            && let Some(change) = logged(view, number, area, key)?
        {
            return Ok(change);
        }
        id = node.child(node.child_for(key));
    }
    let leaf = view.node(id, 0)?;
    let Ok(index) = leaf.search(key) else { return Ok(None) };
    let value = leaf.payload(index);
    view.remember(number, key, &value, &leaf);
    Ok(Some(value))
}

/// What a log area says about a key: the newest change, or nothing.
fn logged(view: TreeView<'_>, number: Option<u64>, area: &LogArea, key: &[u8]) -> Result<Option<Change>> {
    for id in area.candidates(key) {
        let piece = view.node(id, crate::node::PIECE)?;
        if let Ok(at) = piece.search(key) {
            let change = piece.change(at);
            if let Some(value) = &change {
                view.remember(number, key, value, &piece);
            }
            return Ok(Some(change));
        }
    }
    Ok(None)
}

/// The values of `keys`, which ascend strictly, for a reader of a state with this number, if what is found is to be remembered: `found(i, value)` is called
/// for each that exists.
pub(crate) fn multi_get<K: AsRef<[u8]>>(
    view: TreeView<'_>,
    number: Option<u64>,
    keys: &[K],
    found: &mut dyn FnMut(usize, Bytes),
) -> Result<()> {
    let mut strangers = descend_with(view, number, keys, 0, found)?;
    for tried in 1.. {
        if strangers.is_empty() {
            break;
        }
        let rest: Vec<_> = strangers.iter().map(|index| keys[*index].as_ref()).collect();
        let again =
            descend_with(view, number, &rest, tried, &mut |index, value| found(strangers[index], value))?;
        strangers = again.into_iter().map(|index| strangers[index]).collect();
    }
    Ok(())
}

/// One way down for all keys, of which so many log pieces are known not to have them. Returns those that the next piece did not have either.
fn descend_with<K: AsRef<[u8]>>(
    view: TreeView<'_>,
    number: Option<u64>,
    keys: &[K],
    tried: usize,
    found: &mut dyn FnMut(usize, Bytes),
) -> Result<Vec<usize>> {
    let Some((root, height)) = view.root() else { return Ok(Vec::new()) };
    let mut search =
        Search { view, number, keys, found, tried, in_log: vec![None; keys.len()], strangers: Vec::new() };
    mpsearch(&mut search, Place::Node(root), usize::from(height), 0..keys.len(), view.pager.pio_max())?;
    let mut strangers = search.strangers;
    strangers.sort_unstable();
    Ok(strangers)
}

/// What is read for some keys. The keys of a piece's visit are those of its range that [`Search::in_log`] sends there: others may lie between them.
#[derive(Clone, Copy)]
enum Place {
    Node(NodeId),
    Piece(NodeId),
}

struct Search<'a, K> {
    view: TreeView<'a>,
    number: Option<u64>,
    keys: &'a [K],
    found: &'a mut dyn FnMut(usize, Bytes),
    /// Log pieces, newest first, that are known not to have the keys.
    tried: usize,
    /// The log piece that should have a key.
    in_log: Vec<Option<NodeId>>,
    /// Keys that it did not have.
    strangers: Vec<usize>,
}

impl<K: AsRef<[u8]>> Search<'_, K> {
    /// Has each log piece of the area that should have some of the keys visited, once for all of them.
    fn visit_pieces(&mut self, area: &LogArea, keys: Range<usize>, below: &mut Vec<Visit<Place>>) {
        let mut wanted: Vec<(NodeId, usize)> = Vec::new();
        for index in keys {
            let piece = area.candidates(self.keys[index].as_ref()).nth(self.tried);
            self.in_log[index] = piece;
            wanted.extend(piece.map(|piece| (piece, index)));
        }
        wanted.sort_unstable();
        for of_piece in wanted.chunk_by(|a, b| a.0 == b.0) {
            let (piece, first) = of_piece[0];
            let (_, last) = of_piece[of_piece.len() - 1];
            below.push(Visit { place: Place::Piece(piece), keys: first..last + 1 });
        }
    }
}

impl<K: AsRef<[u8]>> mpsearch::Tree for Search<'_, K> {
    type Place = Place;
    type Node = Node;
    type Error = Error;

    fn read(&mut self, height: usize, group: &[Visit<Place>]) -> Result<Vec<Node>> {
        let wanted = group.iter().map(|visit| match visit.place {
            Place::Node(id) => (id, height as u8),
            Place::Piece(id) => (id, crate::node::PIECE),
        });
        self.view.mixed(wanted, Gather::Single)
    }

    fn descend(
        &mut self,
        height: usize,
        node: Node,
        visit: Visit<Place>,
        below: &mut Vec<Visit<Place>>,
    ) -> Result<()> {
        let view = self.view;
        if height == 1
            && let Some(area) = view.log(node.name().id)
        {
            self.visit_pieces(area, visit.keys.clone(), below);
        }
        fan_out::<[u8], _, _>(
            visit.keys,
            |index| self.keys[index].as_ref(),
            |key| node.child_for(key),
            |child| (child + 1 < node.count()).then(|| node.key(child + 1)),
            |child, keys| {
                if self.in_log[keys.clone()].iter().any(Option::is_none) {
                    below.push(Visit { place: Place::Node(node.child(child)), keys });
                }
            },
        );
        Ok(())
    }

    fn deliver(&mut self, group: Vec<(Visit<Place>, Node)>) -> Result<()> {
        for (visit, node) in group {
            let piece = match visit.place {
                Place::Node(_) => None,
                Place::Piece(id) => Some(id),
            };
            for index in visit.keys {
                if self.in_log[index] != piece {
                    continue;
                }
                let key = self.keys[index].as_ref();
                let value = match (piece, node.search(key)) {
                    (None, at) => at.ok().map(|at| node.payload(at)),
                    (Some(_), Ok(at)) => node.change(at),
                    (Some(_), Err(_)) => {
                        self.strangers.push(index);
                        None
                    }
                };
                if let Some(value) = value {
                    self.view.remember(self.number, key, &value, &node);
                    (self.found)(index, value);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::node::{NodeId, PIECE};
    use crate::tree::view::TreeView;
    use crate::{Database, Keyspace};
    use psync::{Simulated, Volume};
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::sync::atomic::Ordering::Relaxed;

    fn open(volume: &Arc<dyn Volume>) -> (Database, Keyspace) {
        let builder = Database::builder().memory(4 << 20).leaf_len(4096).background_threads(0);
        let db = builder.open_on(Arc::clone(volume)).unwrap();
        let keyspace = db.keyspace("main").unwrap();
        (db, keyspace)
    }

    /// A database with log areas of several layers of several pieces, and with these keys in its leaves; nothing of it is in memory.
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
        let version = Arc::clone(&engine.state.load().version);
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
        let counters = &db.handle.engine.pager.counters;
        let counts = || (counters.reads.load(Relaxed) as usize, counters.read_sets.load(Relaxed) as usize);
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
            let version = Arc::clone(&engine.state.load().version);
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
        let most = usize::from(db.handle.engine.state.load().version.trees[&keyspace.id()].height) + 6;
        assert!(sets <= most, "{sets} sets for {} strangers", sought.strangers);
    }
}
