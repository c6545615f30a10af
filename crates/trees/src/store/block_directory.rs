//! Which node is where, for trees that put several nodes into a flash block: node id → logical block and slot, logical block
//! → physical block, and the order of the nodes of a level. In memory; recovery makes it from what the blocks say.
//!
//! Invariants:
//! 1. Every node is in one slot of one block, and that block knows it.
//! 2. Nodes of a level are ordered by their lowest keys; each is for the keys up to the lowest one of the next.

use crate::page::{Key, NodeId};
use crate::store::log_area::LogArea;
use crate::{Error, Result};
use flash::BlockId;
use std::collections::{BTreeMap, HashMap};

/// Where a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub level: u8,
    pub low: Key,
    pub block: u32,
    pub slot: u8,
}

/// A logical block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogicalBlock {
    pub physical: BlockId,
    /// Nodes that were written to the data area, by slot, those included that are gone since: they may be sources of others.
    /// Nodes in slots behind these are in the log alone.
    pub regular: Vec<NodeId>,
    /// Nodes, by slot. None for one that is gone.
    pub slots: Vec<Option<NodeId>>,
    pub log: LogArea,
}

impl LogicalBlock {
    /// Nodes that live in it.
    pub fn members(&self) -> usize {
        self.slots.iter().flatten().count()
    }
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Directory {
    nodes: HashMap<NodeId, Member>,
    levels: Vec<BTreeMap<Key, NodeId>>,
    blocks: BTreeMap<u32, LogicalBlock>,
}

impl Directory {
    pub fn member(&self, id: NodeId) -> Result<Member> {
        self.nodes.get(&id).copied().ok_or_else(|| Error::broken(format!("{id} is in no block")))
    }

    pub fn contains(&self, id: NodeId) -> bool {
        self.nodes.contains_key(&id)
    }

    pub fn block(&self, block: u32) -> Result<&LogicalBlock> {
        self.blocks.get(&block).ok_or_else(|| Error::broken(format!("there is no logical block {block}")))
    }

    pub fn block_mut(&mut self, block: u32) -> Result<&mut LogicalBlock> {
        self.blocks.get_mut(&block).ok_or_else(|| Error::broken(format!("there is no logical block {block}")))
    }

    pub fn blocks(&self) -> &BTreeMap<u32, LogicalBlock> {
        &self.blocks
    }

    /// A number that no block has.
    pub fn next_block(&self) -> u32 {
        self.blocks.last_key_value().map_or(0, |(last, _)| last + 1)
    }

    /// Nodes of each level in order, from the leaves up.
    pub fn levels(&self) -> &[BTreeMap<Key, NodeId>] {
        &self.levels
    }

    pub fn set_block(&mut self, number: u32, block: LogicalBlock) -> Option<LogicalBlock> {
        self.blocks.insert(number, block)
    }

    pub fn remove_block(&mut self, number: u32) -> Option<LogicalBlock> {
        self.blocks.remove(&number)
    }

    /// A node is here now, wherever it was before. Its level and lowest key never change.
    pub fn set_member(&mut self, id: NodeId, member: Member) -> Result<()> {
        let level = usize::from(member.level);
        if self.levels.len() <= level {
            self.levels.resize_with(level + 1, BTreeMap::new);
        }
        match self.levels[level].insert(member.low, id) {
            Some(other) if other != id => {
                return Err(Error::broken(format!(
                    "{id} and {other} of level {level} both begin at key {}",
                    member.low
                )));
            }
            _ => {}
        }
        match self.nodes.insert(id, member) {
            Some(old) if (old.level, old.low) != (member.level, member.low) => {
                Err(Error::broken(format!("{id} is in two places")))
            }
            _ => Ok(()),
        }
    }

    /// A new node in the next slot of a block.
    pub fn add_to_block(&mut self, id: NodeId, level: u8, low: Key, block: u32) -> Result<u8> {
        let slots = &mut self.block_mut(block)?.slots;
        let slot = slots.len() as u8;
        slots.push(Some(id));
        self.set_member(id, Member { level, low, block, slot })?;
        Ok(slot)
    }

    /// The node is gone.
    pub fn remove(&mut self, id: NodeId) -> Result<Member> {
        let member = self.member(id)?;
        self.nodes.remove(&id);
        self.levels[usize::from(member.level)].remove(&member.low);
        while self.levels.last().is_some_and(BTreeMap::is_empty) {
            self.levels.pop();
        }
        if let Some(slot) =
            self.blocks.get_mut(&member.block).and_then(|block| block.slots.get_mut(usize::from(member.slot)))
        {
            *slot = None;
        }
        Ok(member)
    }

    /// The nodes of a block, in order of key.
    pub fn members(&self, block: u32) -> Result<Vec<NodeId>> {
        let mut members = self
            .block(block)?
            .slots
            .iter()
            .flatten()
            .map(|id| Ok((self.member(*id)?, *id)))
            .collect::<Result<Vec<_>>>()?;
        members.sort_unstable_by_key(|(member, _)| (member.level, member.low));
        Ok(members.into_iter().map(|(_, id)| id).collect())
    }

    /// The smallest key beyond those that a node is for.
    pub fn high(&self, member: Member) -> Option<Key> {
        let level = self.levels.get(usize::from(member.level))?;
        let beyond = member.low.checked_add(1)?;
        level.range(beyond..).next().map(|(low, _)| *low)
    }

    /// The nodes right before and right behind these, which follow one another in their level.
    pub fn neighbours(&self, nodes: &[NodeId]) -> Result<[Option<NodeId>; 2]> {
        let (Some(first), Some(last)) = (nodes.first(), nodes.last()) else { return Ok([None, None]) };
        let (first, last) = (self.member(*first)?, self.member(*last)?);
        let level = &self.levels[usize::from(first.level)];
        let before = level.range(..first.low).next_back().map(|(_, id)| *id);
        let behind = self.high(last).and_then(|low| level.get(&low).copied());
        Ok([before, behind])
    }

    /// Bytes of memory, about.
    pub fn memory(&self) -> u64 {
        (self.nodes.len() * (24 + 16) + self.blocks.len() * 96) as u64
    }
}
