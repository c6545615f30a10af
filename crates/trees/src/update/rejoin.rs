//! Makes a tree of what was found in flash blocks after power loss. Nodes are whole, each with as much of its log as reached
//! flash; but a parent may not know yet of a child that was split off, or still name one that was merged away. Which nodes
//! there are, and where each begins, is known from the blocks alone; inner nodes are corrected by that, from the root down.
//!
//! Invariant: what is corrected is logged like any change, so that a second power loss finds the same, or less to do.

use crate::page::node::{Inner, Node};
use crate::page::node_change::Change;
use crate::page::{Key, NodeId};
use crate::store::Root;
use crate::store::block_scan::scan;
use crate::store::flash_block::FlashBlocks;
use crate::update::logged_nodes::{LoggedNodes, Scheme};
use crate::update::logged_tree::{lower, put, reach};
use crate::update::single::Events;
use crate::{Error, Result};
use flash::BlockId;
use std::collections::BTreeMap;

/// Opens what is on flash. `trims`: a node may still hold what another one has taken from it.
pub(crate) fn rejoin<S: Scheme>(nodes: &mut LoggedNodes<S>, trims: bool) -> Result<()> {
    let found = scan(&nodes.blocks, S::log_begins)?;
    nodes.epoch = found.epoch;
    nodes.sequence = found.sequence + 1;
    nodes.next_id = found.id + 1;
    nodes.directory = found.directory;
    for block in found.garbage {
        nodes.erased.erase(&nodes.blocks.flash, block)?;
    }
    found.free.into_iter().for_each(|block| nodes.erased.add_used(block));
    for block in found.torn {
        let members = nodes.directory.members(block)?;
        nodes.rewrite(&[(block, members)], &[block])?;
    }
    check_levels(nodes)?;
    if trims {
        trim(nodes)?;
    }
    crown(nodes)?;
    let mut events = Events::default();
    for level in (1..=nodes.root.level).rev() {
        correct(nodes, level, &mut events)?;
    }
    lower(nodes)
}

/// Every level begins with the smallest key.
fn check_levels<S: Scheme>(nodes: &LoggedNodes<S>) -> Result<()> {
    let levels = nodes.directory.levels();
    if levels.is_empty() {
        return Err(Error::corrupt("the flash", 0, "a tree", "some blocks of nodes", "none"));
    }
    for (level, members) in levels.iter().enumerate() {
        let first = members.first_key_value().map(|(low, _)| *low);
        if first != Some(0) {
            let what = format!("first node of level {level}");
            let found = first.map_or("none".to_owned(), |low| format!("one from key {low} on"));
            return Err(Error::corrupt("the flash", 0, what, "one from key 0 on", found));
        }
    }
    Ok(())
}

/// Cuts off what is not a node's any more.
fn trim<S: Scheme>(nodes: &mut LoggedNodes<S>) -> Result<()> {
    let all: Vec<NodeId> =
        nodes.directory.levels().iter().flat_map(|level| level.values().copied()).collect();
    for id in all {
        let Some(high) = nodes.directory.high(nodes.directory.member(id)?) else { continue };
        let beyond = match &*nodes.node(id)? {
            Node::Leaf(leaf) => leaf.entries.last().is_some_and(|last| last.0 >= high),
            Node::Inner(inner) => inner.fences.last().is_some_and(|last| *last >= high),
        };
        if beyond {
            nodes.change(id, Change::Cut(high))?;
        }
    }
    Ok(())
}

/// The highest level must have one node.
fn crown<S: Scheme>(nodes: &mut LoggedNodes<S>) -> Result<()> {
    loop {
        let level = nodes.directory.levels().len() - 1;
        let top: Vec<(Key, NodeId)> =
            nodes.directory.levels()[level].iter().map(|(low, id)| (*low, *id)).collect();
        if let [(_, id)] = top[..] {
            nodes.root = Root { id, level: level as u8 };
            return Ok(());
        }
        let id = nodes.allocate()?;
        let level = u8::try_from(level + 1).map_err(|_| Error::broken("a tree of 256 levels"))?;
        // More than two only if a page with several splits was lost; those behind are put in one by one.
        let (fences, children) = (vec![top[1].0], vec![top[0].1, top[1].1]);
        S::plant(nodes, id, 0, Node::Inner(Inner { level, fences, children }))?;
    }
}

/// Makes the inner nodes of a level name the nodes below that are there. All levels above are right.
fn correct<S: Scheme>(nodes: &mut LoggedNodes<S>, level: u8, events: &mut Events) -> Result<()> {
    let levels = nodes.directory.levels();
    let inner: Vec<(Key, NodeId)> = levels[usize::from(level)].iter().map(|(low, id)| (*low, *id)).collect();
    let below = levels[usize::from(level) - 1].clone();
    for (at, (low, id)) in inner.iter().enumerate() {
        let high = inner.get(at + 1).map(|(low, _)| *low);
        let range = (
            std::ops::Bound::Included(*low),
            high.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded),
        );
        let mut missing: BTreeMap<Key, NodeId> = below.range(range).map(|(low, id)| (*low, *id)).collect();
        let node = nodes.node(*id)?;
        let named = node.as_inner()?;
        let first = missing.remove(low);
        if first != Some(named.children[0]) || named.level != level {
            let block = BlockId(nodes.directory.block(nodes.directory.member(*id)?.block)?.physical.0);
            let expected = first.map_or("none".to_owned(), |id| id.to_string());
            let what = format!("first child of {id}");
            return Err(FlashBlocks::corrupt(block, &what, expected, named.children[0]));
        }
        for (fence, child) in named.fences.iter().zip(&named.children[1..]) {
            if missing.get(fence) == Some(child) {
                missing.remove(fence);
            } else {
                nodes.change(*id, Change::Remove(*fence))?;
            }
        }
        for (fence, child) in missing {
            let (mut path, parent) = reach(nodes, fence, level)?;
            put(nodes, &mut path, parent, fence, child.0, events)?;
        }
    }
    Ok(())
}
