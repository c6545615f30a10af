//! How messages go down.
//!
//! Invariants:
//! 1. A node that is written has no more children, records or messages than its page holds.
//! 2. A leaf that a flush leaves less than a quarter full, and an inner node with one child, joins a neighbour or shares with
//!    it, if there is one.

use super::BEpsilonTree;
use crate::page::buffered_node::{BufferedInner, BufferedNode};
use crate::page::{Change, Key, Value};
use crate::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// Nodes that take the place of one, each but the first with its fence.
struct Pieces {
    first: BufferedNode,
    others: Vec<(Key, BufferedNode)>,
}

/// `new` wins.
fn merged<T: Copy>(old: Vec<(Key, T)>, new: impl Iterator<Item = (Key, T)>) -> Vec<(Key, T)> {
    let mut merged = Vec::with_capacity(old.len());
    let mut old = old.into_iter().peekable();
    for (key, change) in new {
        merged.extend(std::iter::from_fn(|| old.next_if(|(other, _)| *other < key)));
        old.next_if(|(other, _)| *other == key);
        merged.push((key, change));
    }
    merged.extend(old);
    merged
}

/// The n-th of `parts` equal parts of `0..len`.
fn part(len: usize, parts: usize, n: usize) -> Range<usize> {
    len * n / parts..len * (n + 1) / parts
}

impl BEpsilonTree {
    /// Takes an operation into the root.
    pub(super) fn apply(&mut self, key: Key, change: Change) -> Result<()> {
        // The root is taken out: if this fails, the tree is refused from then on.
        let root = std::mem::replace(&mut self.root, Arc::new(BufferedNode::Leaf(Vec::new())));
        let node = Arc::unwrap_or_clone(root);
        let mut pieces = self.deliver(node, self.level, vec![(key, change)])?;
        loop {
            if !pieces.others.is_empty() {
                let nodes = std::iter::once(&pieces.first).chain(pieces.others.iter().map(|other| &other.1));
                let children = self.nodes.write_new(nodes, self.level)?;
                let fences = pieces.others.iter().map(|other| other.0).collect();
                self.level += 1;
                let inner = BufferedInner { fences, children, messages: Vec::new() };
                self.root = Arc::new(BufferedNode::Inner(inner));
                return Ok(());
            }
            match pieces.first {
                BufferedNode::Inner(inner) if inner.children.len() == 1 => {
                    self.level -= 1;
                    let child = self.nodes.read(inner.children[0], self.level)?;
                    self.nodes.free(inner.children[0]);
                    pieces = self.deliver(Arc::unwrap_or_clone(child), self.level, inner.messages)?;
                }
                root => {
                    self.root = Arc::new(root);
                    return Ok(());
                }
            }
        }
    }

    /// Brings messages into a node that is in memory; what takes its place.
    fn deliver(&mut self, node: BufferedNode, level: u8, messages: Vec<(Key, Change)>) -> Result<Pieces> {
        let node = match node {
            BufferedNode::Leaf(records) => {
                let old = records.into_iter().map(|(key, value)| (key, Change::Put(value))).collect();
                let changed = merged(old, messages.into_iter()).into_iter();
                let value = |(key, change): (Key, Change)| change.value().map(|value| (key, value));
                BufferedNode::Leaf(changed.filter_map(value).collect())
            }
            BufferedNode::Inner(mut inner) => {
                inner.messages = merged(inner.messages, messages.into_iter());
                while inner.messages.len() > self.shape.messages {
                    self.flush_child(&mut inner, level)?;
                }
                BufferedNode::Inner(inner)
            }
        };
        Ok(self.split(node))
    }

    /// As many nodes as it takes, of about the same size.
    fn split(&mut self, node: BufferedNode) -> Pieces {
        let (len, max) = match &node {
            BufferedNode::Leaf(records) => (records.len(), self.shape.records),
            BufferedNode::Inner(inner) => (inner.children.len(), self.shape.fanout),
        };
        let parts = len.div_ceil(max).max(1);
        self.counted.splits += parts as u64 - 1;
        divided(node, parts)
    }

    /// Sends all messages for the child with the most of them down.
    fn flush_child(&mut self, inner: &mut BufferedInner, level: u8) -> Result<()> {
        let heaviest = (0..inner.children.len()).max_by_key(|child| inner.messages_for(*child).len());
        let at = heaviest.ok_or_else(|| Error::broken("an inner node without children"))?;
        let messages: Vec<_> = inner.messages.drain(inner.messages_for(at)).collect();
        self.counted.flushes += 1;
        let old = inner.children[at];
        let child = self.nodes.read(old, level - 1)?;
        let pieces = self.deliver(BufferedNode::clone(&child), level - 1, messages)?;
        self.nodes.free(old);
        if pieces.others.is_empty() && inner.children.len() > 1 && self.is_small(&pieces.first) {
            return self.join(inner, at, pieces.first, level - 1);
        }
        self.replace(inner, at..at + 1, pieces, level - 1)
    }

    fn is_small(&self, node: &BufferedNode) -> bool {
        match node {
            BufferedNode::Leaf(records) => 4 * records.len() < self.shape.records,
            BufferedNode::Inner(inner) => inner.children.len() == 1,
        }
    }

    /// Puts a small node and its neighbour together, or divides what they have evenly.
    fn join(&mut self, inner: &mut BufferedInner, at: usize, node: BufferedNode, level: u8) -> Result<()> {
        let left = at.saturating_sub(1);
        let neighbour = inner.children[if left == at { at + 1 } else { left }];
        let read = BufferedNode::clone(&*self.nodes.read(neighbour, level)?);
        let (one, two) = if left == at { (node, read) } else { (read, node) };
        let both = joined(one, inner.fences[left], two)?;
        let pieces = match &both {
            BufferedNode::Leaf(records) if records.len() <= self.shape.records => divided(both, 1),
            BufferedNode::Inner(inner)
                if inner.children.len() <= self.shape.fanout
                    && inner.messages.len() <= self.shape.messages =>
            {
                divided(both, 1)
            }
            _ => divided(both, 2),
        };
        *(if pieces.others.is_empty() {
            &mut self.counted.merges
        } else {
            &mut self.counted.redistributions
        }) += 1;
        self.nodes.free(neighbour);
        // Of two that share, one may have got more messages than it holds.
        let mut fit = Vec::new();
        for (fence, node) in std::iter::once((None, pieces.first))
            .chain(pieces.others.into_iter().map(|(fence, node)| (Some(fence), node)))
        {
            let pieces = self.deliver(node, level, Vec::new())?;
            fit.push((fence, pieces.first));
            fit.extend(pieces.others.into_iter().map(|(fence, node)| (Some(fence), node)));
        }
        let mut fit = fit.into_iter();
        let first = fit.next().map(|piece| piece.1).ok_or_else(|| Error::broken("nothing was joined"))?;
        let others = fit.filter_map(|(fence, node)| fence.map(|fence| (fence, node))).collect();
        self.replace(inner, left..left + 2, Pieces { first, others }, level)
    }

    /// Writes the pieces, and puts them into the place of children of an inner node, which may have too many then.
    fn replace(
        &mut self,
        inner: &mut BufferedInner,
        old: Range<usize>,
        pieces: Pieces,
        level: u8,
    ) -> Result<()> {
        let nodes = std::iter::once(&pieces.first).chain(pieces.others.iter().map(|other| &other.1));
        let pages = self.nodes.write_new(nodes, level)?;
        inner.fences.splice(old.start..old.end - 1, pieces.others.iter().map(|other| other.0));
        inner.children.splice(old, pages);
        Ok(())
    }
}

/// Two neighbours as one node, however large.
fn joined(one: BufferedNode, fence: Key, two: BufferedNode) -> Result<BufferedNode> {
    match (one, two) {
        (BufferedNode::Leaf(mut one), BufferedNode::Leaf(two)) => {
            one.extend(two);
            Ok(BufferedNode::Leaf(one))
        }
        (BufferedNode::Inner(mut one), BufferedNode::Inner(two)) => {
            one.fences.push(fence);
            one.fences.extend(two.fences);
            one.children.extend(two.children);
            one.messages.extend(two.messages);
            Ok(BufferedNode::Inner(one))
        }
        _ => Err(Error::broken("a leaf beside an inner node")),
    }
}

/// A node as so many of about the same size.
fn divided(node: BufferedNode, parts: usize) -> Pieces {
    let mut pieces: Vec<(Key, BufferedNode)> = match node {
        node if parts == 1 => vec![(0, node)],
        BufferedNode::Leaf(records) => (0..parts)
            .map(|n| {
                let records: Vec<(Key, Value)> = records[part(records.len(), parts, n)].to_vec();
                (records.first().map_or(0, |record| record.0), BufferedNode::Leaf(records))
            })
            .collect(),
        BufferedNode::Inner(inner) => (0..parts)
            .map(|n| {
                let at = part(inner.children.len(), parts, n);
                let messages = inner.messages_for(at.start).start..inner.messages_for(at.end - 1).end;
                let fence = at.start.checked_sub(1).map_or(0, |before| inner.fences[before]);
                let piece = BufferedInner {
                    fences: inner.fences[at.start..at.end - 1].to_vec(),
                    children: inner.children[at].to_vec(),
                    messages: inner.messages[messages].to_vec(),
                };
                (fence, BufferedNode::Inner(piece))
            })
            .collect(),
    };
    let others = pieces.split_off(1);
    let first = pieces.pop().map_or(BufferedNode::Leaf(Vec::new()), |piece| piece.1);
    Pieces { first, others }
}
