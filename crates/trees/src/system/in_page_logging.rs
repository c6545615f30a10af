//! What the two trees with in-page logging share as systems: options, contract, and the way from an [`Index`] to the parts.
//!
//! Invariant: after an error nothing is written any more, since what memory holds may be ahead of flash or behind it.

use crate::index::{Checked, Contract, Index};
use crate::page::node::{Leaf, Node};
use crate::page::{Key, NodeId, Value};
use crate::sound::Sound;
use crate::store::collected::Collected;
use crate::update::bulk_load::{bulk_load, for_each_chunk, share};
use crate::update::check_blocks::check_blocks;
pub use crate::update::logged_nodes::{LogDetails, LogReads};
use crate::update::logged_nodes::{LoggedNodes, LoggedOptions, Scheme};
use crate::update::logged_tree;
use crate::update::rejoin::rejoin;
use crate::update::single::Events;
use crate::{Counters, PageUse, Result};
use flash::RawFlash;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;

/// When an update is on flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogCommit {
    /// With its frame's eviction, when its log sector is full, or at a flush: rules 1 and 2.
    Rules,
    /// Before it returns: a log unit each.
    EachOperation,
}

/// What a tree with in-page logging is built with.
#[derive(Clone, Debug)]
pub struct InPageLoggingOptions {
    /// Bytes of a node: whole flash pages, and 4 to 64 nodes a block.
    pub node_len: usize,
    /// Most children of an inner node; less if a node of wide keys holds less.
    pub fanout_max: usize,
    /// Most records of a leaf.
    pub records_max: usize,
    /// Frames for nodes, each with a log sector in memory; at least 1.
    pub frames: usize,
    /// Log units in a flash page, a power of two: more than 1 takes flash that programs pages in parts.
    pub units_per_page: u32,
    /// What is read of a log.
    pub log_reads: LogReads,
    /// When an update is on flash.
    pub commit: LogCommit,
}

impl Default for InPageLoggingOptions {
    /// The experiment of the d-IPL paper.
    fn default() -> Self {
        Self {
            node_len: 8192,
            fanout_max: 840,
            records_max: 510,
            frames: 100,
            units_per_page: 1,
            log_reads: LogReads::Relevant,
            commit: LogCommit::Rules,
        }
    }
}

/// Blocks, nodes and free pages, as they are now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockDetails {
    /// Blocks that hold nodes.
    pub blocks: u64,
    /// Nodes in data areas.
    pub regular: u64,
    /// Nodes that are in logs alone.
    pub ghosts: u64,
    /// Blocks that hold less than half of the nodes that they may, but for the root's and those of its children.
    pub underfull: u64,
    /// Free pages below programmed ones.
    pub evaporated: u64,
    /// Pages of logs that hold units.
    pub log_pages: u64,
}

/// A B+-tree that logs changes of nodes in the flash block of the node. `S` says how; see [`IplTree`](crate::IplTree) and
/// [`DiplTree`](crate::DiplTree).
#[expect(private_bounds, reason = "which schemes there are is this crate's own affair")]
pub struct InPageLogging<S: Scheme> {
    state: Mutex<State<S>>,
    commit: LogCommit,
}

struct State<S> {
    nodes: LoggedNodes<S>,
    events: Events,
    flushes: u64,
    sound: Sound,
}

impl<S: Scheme> State<S> {
    /// Does something that may write.
    fn work<T>(&mut self, work: impl FnOnce(&mut LoggedNodes<S>, &mut Events) -> Result<T>) -> Result<T> {
        self.sound.work(|| work(&mut self.nodes, &mut self.events))
    }
}

#[expect(private_bounds, reason = "which schemes there are is this crate's own affair")]
impl<S: Scheme> InPageLogging<S> {
    fn over(flash: Arc<RawFlash>, options: &InPageLoggingOptions) -> Result<Self> {
        let logged = LoggedOptions {
            node_len: options.node_len,
            fanout: options.fanout_max,
            records: options.records_max,
            frames: options.frames,
            parts: options.units_per_page,
            log_reads: options.log_reads,
        };
        let nodes = LoggedNodes::new(flash, &logged)?;
        let state = State { nodes, events: Events::default(), flushes: 0, sound: Sound::default() };
        Ok(Self { state: Mutex::new(state), commit: options.commit })
    }

    /// Writes every block anew, so that no node has a log: for the time when reads begin to prevail (section 4.2 of the d-IPL
    /// paper). One erase a block.
    ///
    /// # Errors
    /// [`Error::Flash`](crate::Error::Flash); [`Error::Invalid`](crate::Error::Invalid) if no block is free.
    pub fn cleanse(&mut self) -> Result<()> {
        self.state.get_mut().work(|nodes, _| {
            for block in nodes.directory.blocks().keys().copied().collect::<Vec<_>>() {
                let members = nodes.directory.members(block)?;
                nodes.rewrite(&[(block, members)], &[block])?;
                nodes.details.cleansings += 1;
            }
            Ok(())
        })
    }

    /// How often what happened.
    pub fn details(&self) -> LogDetails {
        self.state.lock().nodes.details
    }

    /// What the blocks hold now.
    ///
    /// # Errors
    /// [`Error::Broken`](crate::Error::Broken).
    pub fn block_details(&self) -> Result<BlockDetails> {
        let state = self.state.lock();
        let nodes = &state.nodes;
        let root = nodes.root.level;
        let mut found = BlockDetails::default();
        for block in nodes.directory.blocks().values() {
            found.blocks += 1;
            let regular = block.slots.iter().take(block.regular.len()).flatten().count();
            let members: Vec<NodeId> = block.slots.iter().flatten().copied().collect();
            found.regular += regular as u64;
            found.ghosts += (members.len() - regular) as u64;
            found.evaporated += nodes.evaporated(block);
            found.log_pages += block.log.pages_written();
            let level = members.first().map(|id| nodes.directory.member(*id)).transpose()?;
            let exempt = level.is_some_and(|member| member.level + 1 >= root);
            found.underfull += u64::from(!exempt && members.len() < S::members_max(&nodes.blocks.layout) / 2);
        }
        Ok(found)
    }
}

impl<S: Scheme> Index for InPageLogging<S> {
    type Options = InPageLoggingOptions;
    type Ground = Arc<RawFlash>;

    fn create(flash: Arc<RawFlash>, options: &InPageLoggingOptions) -> Result<Self> {
        let tree = Self::over(flash, options)?;
        tree.state.lock().work(|nodes, _| {
            nodes.format()?;
            let id = nodes.allocate()?;
            nodes.root.id = id;
            S::plant(nodes, id, 0, Node::Leaf(Leaf::default()))
        })?;
        Ok(tree)
    }

    fn recover(flash: Arc<RawFlash>, options: &InPageLoggingOptions) -> Result<Self> {
        let tree = Self::over(flash, options)?;
        tree.state.lock().work(|nodes, _| rejoin(nodes, S::TRIMS))?;
        Ok(tree)
    }

    /// All nodes are in memory for a while.
    fn bulk_load(
        flash: Arc<RawFlash>,
        options: &InPageLoggingOptions,
        fill: f64,
        records: &mut dyn Iterator<Item = (Key, Value)>,
    ) -> Result<Self> {
        let tree = Self::over(flash, options)?;
        tree.state.lock().work(|nodes, _| {
            let mut collected = Collected::new(nodes.shape.narrowest());
            bulk_load(&mut collected, fill, records)?;
            nodes.format()?;
            (nodes.root, nodes.next_id) = (collected.root, collected.next_id);
            let limit = S::members_max(&nodes.blocks.layout);
            let mut blocks: Vec<(u32, Vec<NodeId>)> = Vec::new();
            for (level, members) in (0..).zip(collected.levels) {
                let mut ids = Vec::with_capacity(members.len());
                for (low, id, node) in members {
                    nodes.found(id, level, low, node)?;
                    ids.push(id);
                }
                for_each_chunk(&mut ids.into_iter(), share(limit, fill), limit, &mut |chunk, _| {
                    blocks.push((blocks.len() as u32, chunk));
                    Ok(())
                })?;
            }
            nodes.rewrite(&blocks, &[])?;
            nodes.evict()
        })?;
        Ok(tree)
    }

    fn name(&self) -> &'static str {
        S::NAME
    }

    fn contract(&self) -> Contract {
        match self.commit {
            LogCommit::Rules => Contract::EachKey,
            LogCommit::EachOperation => Contract::EachOperation,
        }
    }

    fn insert(&mut self, key: Key, value: Value) -> Result<()> {
        let commit = self.commit;
        self.state.get_mut().work(|nodes, events| {
            let leaf = logged_tree::insert(nodes, key, value, events)?;
            if commit == LogCommit::EachOperation { nodes.write_sector(leaf) } else { Ok(()) }
        })
    }

    fn delete(&mut self, key: Key) -> Result<()> {
        let commit = self.commit;
        self.state.get_mut().work(|nodes, events| {
            let leaf = logged_tree::delete(nodes, key, events)?;
            match leaf.filter(|leaf| nodes.directory.contains(*leaf)) {
                Some(leaf) if commit == LogCommit::EachOperation => nodes.write_sector(leaf),
                _ => Ok(()),
            }
        })
    }

    fn search(&self, key: Key) -> Result<Option<Value>> {
        self.state.lock().work(|nodes, _| logged_tree::search(nodes, key))
    }

    fn range(&self, range: Range<Key>) -> Result<Vec<(Key, Value)>> {
        self.state.lock().work(|nodes, _| logged_tree::range(nodes, range))
    }

    fn flush(&mut self) -> Result<()> {
        let state = self.state.get_mut();
        state.work(|nodes, _| nodes.flush())?;
        state.flushes += 1;
        Ok(())
    }

    fn check(&self) -> Result<Checked> {
        let state = self.state.lock();
        state.sound.check()?;
        check_blocks(&state.nodes)
    }

    fn stats(&self) -> Counters {
        let state = self.state.lock();
        let (nodes, events) = (&state.nodes, state.events);
        let flash = nodes.blocks.flash.counters();
        Counters {
            pages_read: flash.reads,
            pages_written: flash.programs,
            hits: nodes.hits,
            splits: events.splits,
            merges: events.merges,
            redistributions: 0,
            flushes: state.flushes,
            height: u32::from(nodes.root.level) + 1,
            memory: nodes.memory(),
            space: nodes.directory.blocks().len() as u64
                * u64::from(nodes.blocks.layout.pages_per_block)
                * nodes.blocks.layout.page_len as u64,
        }
    }

    fn page_use(&self) -> PageUse {
        self.state.lock().nodes.page_use()
    }
}
