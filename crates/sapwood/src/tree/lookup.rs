//! Search for one key, and for many at once by MPSearch. (PIO B-tree, VLDB 2011, section 3.1.)
//!
//! Inner nodes come from the cache, so one read answers: if a log piece has the key the piece is read,
//! otherwise the leaf. A second read is needed only if a maplet gives a false positive, once in thousands of
//! searches. A record that was found is remembered in the cache of single records. In keyspaces with a merge operator a search is
//! [another](merging).

mod merging;

use crate::cache::pager::ReadMode;
use crate::error::{Error, Result};
use crate::log_area::LogArea;
use crate::opq::Change;
use crate::storage::node::{Node, NodeId};
use crate::tree::view::TreeView;
use bytes::Bytes;
use mpsearch::{Visit, fan_out, mpsearch};
use std::ops::Range;

/// The value of a key. `number`: the reader's state, if the record is to be remembered.
pub(crate) fn get(view: TreeView<'_>, number: Option<u64>, key: &[u8]) -> Result<Option<Bytes>> {
    if view.merging().is_some() {
        let mut value = None;
        multi_get(view, number, &[key], &mut |_, found| value = Some(found))?;
        return Ok(value);
    }
    let Some((mut id, height)) = view.root() else { return Ok(None) };
    for level in (1..=height).rev() {
        let node = view.glance(id, level)?;
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
    let leaf = view.glance(id, 0)?;
    let Ok(index) = leaf.search(key) else { return Ok(None) };
    let value = leaf.lasting(leaf.record(index).1);
    view.remember(number, key, &value, &leaf);
    Ok(Some(value))
}

/// A log area's newest change to a key, if it has one.
fn logged(view: TreeView<'_>, number: Option<u64>, area: &LogArea, key: &[u8]) -> Result<Option<Change>> {
    for id in area.candidates(key) {
        let piece = view.glance(id, crate::storage::node::PIECE)?;
        if let Ok(at) = piece.search(key) {
            let change = piece.logged_value(at).map(|value| piece.lasting(value));
            if let Some(value) = &change {
                view.remember(number, key, value, &piece);
            }
            return Ok(Some(change));
        }
    }
    Ok(None)
}

/// How to read for a reader of the state with this number; without one the request is not a reader's.
fn mode(number: Option<u64>) -> ReadMode {
    if number.is_some() { ReadMode::Single } else { ReadMode::Inner }
}

/// Looks up `keys`, which ascend strictly, and calls `found(i, value)` for each that exists. `number`: the
/// reader's state, if the records are to be remembered.
pub(crate) fn multi_get<K: AsRef<[u8]>>(
    view: TreeView<'_>,
    number: Option<u64>,
    keys: &[K],
    found: &mut dyn FnMut(usize, Bytes),
) -> Result<()> {
    if let Some(merging) = view.merging() {
        return merging::multi_get(view, (merging, mode(number)), keys, found);
    }
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

/// Like [`multi_get`], of the records in leaves, whatever log areas say about their keys.
pub(crate) fn multi_get_in_leaves<K: AsRef<[u8]>>(
    view: TreeView<'_>,
    keys: &[K],
    found: &mut dyn FnMut(usize, Bytes),
) -> Result<()> {
    // No area has so many pieces that should have a key.
    descend_with(view, None, keys, usize::MAX, found).map(drop)
}

/// One descent with all keys. The first `tried` log pieces that should have a key are known not to have it.
/// Returns the keys that the next piece did not have either.
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
    mpsearch(&mut search, NodeOrPiece::Node(root), usize::from(height), 0..keys.len(), view.pager.pio_max())?;
    let mut strangers = search.strangers;
    strangers.sort_unstable();
    Ok(strangers)
}

/// What is visited for some keys. The key range of a piece's visit may include keys that [`Search::in_log`]
/// does not send to the piece.
#[derive(Clone, Copy)]
pub(super) enum NodeOrPiece {
    Node(NodeId),
    Piece(NodeId),
}

/// Reads what is visited.
fn read(
    view: TreeView<'_>,
    mode: ReadMode,
    height: usize,
    group: &[Visit<NodeOrPiece>],
) -> Result<Vec<Node>> {
    let wanted = group.iter().map(|visit| match visit.place {
        NodeOrPiece::Node(id) => (id, height as u8),
        NodeOrPiece::Piece(id) => (id, crate::storage::node::PIECE),
    });
    view.mixed(wanted, mode)
}

/// How many of these fit into the memory for reads.
fn fits(view: TreeView<'_>, visits: &[Visit<NodeOrPiece>]) -> usize {
    view.fits(visits.iter().map(|visit| match visit.place {
        NodeOrPiece::Node(id) | NodeOrPiece::Piece(id) => id,
    }))
}

/// Adds a visit for each of these log pieces, one for all keys that it is wanted for.
fn visit_each_piece(mut wanted: Vec<(NodeId, usize)>, below: &mut Vec<Visit<NodeOrPiece>>) {
    wanted.sort_unstable();
    for of_piece in wanted.chunk_by(|a, b| a.0 == b.0) {
        let (piece, first) = of_piece[0];
        let (_, last) = of_piece[of_piece.len() - 1];
        below.push(Visit { place: NodeOrPiece::Piece(piece), keys: first..last + 1 });
    }
}

/// Adds a visit for each child that may have one of the keys that are sought there. A lone leaf is visited if it has one of them;
/// then others that it lacks come along.
fn visit_children<K: AsRef<[u8]>>(
    node: &Node,
    (keys, visited): (&[K], Range<usize>),
    is_sought: impl Fn(usize) -> bool,
    below: &mut Vec<Visit<NodeOrPiece>>,
) {
    fan_out::<[u8], _, _>(
        visited,
        |index| keys[index].as_ref(),
        |key| node.child_for(key),
        |child| (child + 1 < node.count()).then(|| node.key(child + 1)),
        |child, of_child| {
            let has = |index: usize| is_sought(index) && !node.lacks(child, keys[index].as_ref());
            if of_child.clone().any(has) {
                below.push(Visit { place: NodeOrPiece::Node(node.child(child)), keys: of_child });
            }
        },
    );
}

struct Search<'a, K> {
    view: TreeView<'a>,
    number: Option<u64>,
    keys: &'a [K],
    found: &'a mut dyn FnMut(usize, Bytes),
    /// How many log pieces, newest first, are known not to have the keys.
    tried: usize,
    /// For each key the log piece that should have it.
    in_log: Vec<Option<NodeId>>,
    /// Keys that their piece did not have.
    strangers: Vec<usize>,
}

impl<K: AsRef<[u8]>> Search<'_, K> {
    /// Adds a visit for each log piece of the area that should have some of the keys, one for all of them.
    fn visit_pieces(&mut self, area: &LogArea, keys: Range<usize>, below: &mut Vec<Visit<NodeOrPiece>>) {
        let mut wanted: Vec<(NodeId, usize)> = Vec::new();
        for index in keys {
            let piece = area.candidates(self.keys[index].as_ref()).nth(self.tried);
            self.in_log[index] = piece;
            wanted.extend(piece.map(|piece| (piece, index)));
        }
        visit_each_piece(wanted, below);
    }
}

impl<K: AsRef<[u8]>> mpsearch::Tree for Search<'_, K> {
    type Place = NodeOrPiece;
    type Node = Node;
    type Error = Error;

    fn read(&mut self, height: usize, group: &[Visit<NodeOrPiece>]) -> Result<Vec<Node>> {
        read(self.view, mode(self.number), height, group)
    }

    fn fits(&self, _: usize, visits: &[Visit<NodeOrPiece>]) -> usize {
        fits(self.view, visits)
    }

    fn descend(
        &mut self,
        height: usize,
        node: Node,
        visit: Visit<NodeOrPiece>,
        below: &mut Vec<Visit<NodeOrPiece>>,
    ) -> Result<()> {
        let view = self.view;
        if height == 1
            && let Some(area) = view.log(node.name().id)
        {
            self.visit_pieces(area, visit.keys.clone(), below);
        }
        visit_children(&node, (self.keys, visit.keys), |index| self.in_log[index].is_none(), below);
        Ok(())
    }

    fn deliver(&mut self, group: Vec<(Visit<NodeOrPiece>, Node)>) -> Result<()> {
        for (visit, node) in group {
            let piece = match visit.place {
                NodeOrPiece::Node(_) => None,
                NodeOrPiece::Piece(id) => Some(id),
            };
            for index in visit.keys {
                if self.in_log[index] != piece {
                    continue;
                }
                let key = self.keys[index].as_ref();
                let value = match (piece, node.search(key)) {
                    (None, at) => at.ok().map(|at| node.lasting(node.record(at).1)),
                    (Some(_), Ok(at)) => node.logged_value(at).map(|value| node.lasting(value)),
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
