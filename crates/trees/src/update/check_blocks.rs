//! Verifies the invariants of trees in flash blocks (A.4.8 of the specification): what memory knows of blocks and logs is what
//! flash says; ghosts come from nodes of their own block; every node holds what it is for, and names the nodes below.

use crate::index::Checked;
use crate::page::NodeId;
use crate::page::node::Node;
use crate::store::block_directory::LogicalBlock;
use crate::store::block_scan::scan;
use crate::update::logged_nodes::{LoggedNodes, Scheme};
use crate::{Error, Result};
use std::collections::BTreeMap;

/// Reads everything.
pub(crate) fn check_blocks<S: Scheme>(nodes: &LoggedNodes<S>) -> Result<Checked> {
    check_directory(nodes)?;
    for (number, block) in nodes.directory.blocks() {
        check_block(nodes, *number, block)?;
    }
    check_nodes(nodes)
}

/// The directory is what the blocks' headers and logs say.
fn check_directory<S: Scheme>(nodes: &LoggedNodes<S>) -> Result<()> {
    let found = scan(&nodes.blocks, S::log_begins)?;
    if !found.torn.is_empty() || !found.garbage.is_empty() {
        return Err(Error::broken(format!(
            "logs of blocks {:?} are torn, and blocks {:?} are not accounted for",
            found.torn, found.garbage
        )));
    }
    let (known, said) = (&nodes.directory, &found.directory);
    if known.levels() != said.levels() {
        return Err(Error::broken("nodes and their lowest keys are not those that the blocks have"));
    }
    if known.blocks().len() != said.blocks().len() {
        let (known, said) = (known.blocks().len(), said.blocks().len());
        return Err(Error::broken(format!("{known} blocks are known, and {said} are on flash")));
    }
    for (number, block) in said.blocks() {
        let memory = known.block(*number)?;
        let same = (memory.physical, &memory.regular, &memory.slots)
            == (block.physical, &block.regular, &block.slots);
        if !same || !memory.log.says_the_same(&block.log) {
            return Err(Error::broken(format!(
                "block {number} is {memory:?} in memory and {block:?} on flash"
            )));
        }
        for id in block.slots.iter().flatten() {
            if known.member(*id)? != said.member(*id)? {
                return Err(Error::broken(format!("{id} is not where memory thinks")));
            }
        }
    }
    Ok(())
}

fn check_block<S: Scheme>(nodes: &LoggedNodes<S>, number: u32, block: &LogicalBlock) -> Result<()> {
    let layout = &nodes.blocks.layout;
    let broken = |what: String| Err(Error::broken(format!("block {number}: {what}")));
    let limit = S::members_max(layout);
    if block.members() > limit || block.regular.len() > limit {
        return broken(format!("{} nodes, at most {limit}", block.members()));
    }
    if block.log.first_page() != S::log_begins(layout, block.regular.len()) {
        return broken(format!("the log begins at page {}", block.log.first_page()));
    }
    let sources: BTreeMap<u8, u8> = block.log.sources().collect();
    let members = nodes.directory.members(number)?;
    if !S::SIBLINGS {
        return Ok(());
    }
    for slot in (0..block.slots.len()).filter(|slot| block.slots[*slot].is_some()) {
        let mut source = slot as u8;
        while usize::from(source) >= block.regular.len() {
            match sources.get(&source) {
                // Sources were there before, so this ends.
                Some(from) if *from < source => source = *from,
                _ => return broken(format!("the ghost in slot {slot} comes from nowhere")),
            }
        }
    }
    let Some(first) = members.first() else { return broken("no nodes".to_owned()) };
    let level = nodes.directory.member(*first)?.level;
    for pair in members.windows(2) {
        let [_, behind] = nodes.directory.neighbours(&pair[..1])?;
        if behind != Some(pair[1]) {
            return broken(format!("{} does not follow {}", pair[1], pair[0]));
        }
    }
    if level == nodes.root.level && members.len() > 1 {
        return broken("the root is not alone".to_owned());
    }
    Ok(())
}

/// Every node of every level: count, order, range, children.
fn check_nodes<S: Scheme>(nodes: &LoggedNodes<S>) -> Result<Checked> {
    let levels = nodes.directory.levels();
    let mut checked = Checked { height: levels.len() as u32, ..Checked::default() };
    if levels.len() != usize::from(nodes.root.level) + 1 {
        return Err(Error::broken(format!(
            "{} levels, and a root of level {}",
            levels.len(),
            nodes.root.level
        )));
    }
    if levels.last().is_none_or(|top| !top.values().eq([&nodes.root.id])) {
        return Err(Error::broken("the highest level is not the root"));
    }
    for (level, members) in levels.iter().enumerate() {
        for (low, id) in members {
            let node = nodes.peek(*id)?;
            let high = nodes.directory.high(nodes.directory.member(*id)?);
            let broken = |what: &str| Err(Error::broken(format!("{id}, from {low} to {high:?}: {what}")));
            if usize::from(node.level()) != level || nodes.shape.overflows(&node) {
                return broken("its level is another, or it holds more than fits");
            }
            match &*node {
                Node::Leaf(leaf) => {
                    checked.leaves += 1;
                    checked.records += leaf.entries.len() as u64;
                    let beyond =
                        |entry: &(u64, u64)| entry.0 < *low || high.is_some_and(|high| entry.0 >= high);
                    if !leaf.entries.is_sorted_by(|one, two| one.0 < two.0) || leaf.entries.iter().any(beyond)
                    {
                        return broken("keys out of order or range");
                    }
                }
                Node::Inner(inner) => {
                    checked.inner += 1;
                    let range = (
                        std::ops::Bound::Included(*low),
                        high.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded),
                    );
                    let below: Vec<(u64, NodeId)> =
                        levels[level - 1].range(range).map(|(low, id)| (*low, *id)).collect();
                    let named = [*low].into_iter().chain(inner.fences.iter().copied());
                    if !named.zip(inner.children.iter().copied()).eq(below.iter().copied())
                        || inner.children.len() != inner.fences.len() + 1
                    {
                        return broken("its children are not the nodes of the level below");
                    }
                }
            }
        }
    }
    Ok(checked)
}
