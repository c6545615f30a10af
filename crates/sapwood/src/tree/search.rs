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
        let child = node.child_for(key);
        if node.lacks(child, key) {
            return Ok(None);
        }
        id = node.child(child);
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
                // Of those that a lone leaf does not have one may come to it with one that it has.
                let mut sought = keys.clone().filter(|index| self.in_log[*index].is_none());
                if sought.any(|index| !node.lacks(child, self.keys[index].as_ref())) {
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
