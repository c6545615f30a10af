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
    let Some((root, height)) = view.root() else { return Ok(()) };
    let mut search =
        Search { view, number, keys, found, in_log: vec![false; keys.len()], strangers: Vec::new() };
    mpsearch(&mut search, Place::Node(root), usize::from(height), 0..keys.len(), view.pager.pio_max())?;
    for index in std::mem::take(&mut search.strangers) {
        if let Some(value) = get(view, number, keys[index].as_ref())? {
            (search.found)(index, value);
        }
    }
    Ok(())
}

/// What is read for a key.
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
    /// Keys that a log piece should have.
    in_log: Vec<bool>,
    /// Keys that it did not have.
    strangers: Vec<usize>,
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
        if height == 1
            && let Some(area) = self.view.log(node.name().id)
        {
            for index in visit.keys.clone() {
                if let Some(piece) = area.candidates(self.keys[index].as_ref()).next() {
                    self.in_log[index] = true;
                    below.push(Visit { place: Place::Piece(piece), keys: index..index + 1 });
                }
            }
        }
        fan_out::<[u8], _, _>(
            visit.keys,
            |index| self.keys[index].as_ref(),
            |key| node.child_for(key),
            |child| (child + 1 < node.count()).then(|| node.key(child + 1)),
            |child, keys| {
                if keys.clone().any(|index| !self.in_log[index]) {
                    below.push(Visit { place: Place::Node(node.child(child)), keys });
                }
            },
        );
        Ok(())
    }

    fn deliver(&mut self, group: Vec<(Visit<Place>, Node)>) -> Result<()> {
        for (visit, node) in group {
            for index in visit.keys {
                let key = self.keys[index].as_ref();
                let value = match (visit.place, node.search(key)) {
                    (Place::Node(_), Ok(at)) if !self.in_log[index] => Some(node.payload(at)),
                    (Place::Piece(_), Ok(at)) => node.change(at),
                    (Place::Piece(_), Err(_)) => {
                        self.strangers.push(index);
                        None
                    }
                    (Place::Node(_), _) => None,
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
