//! A PIO B-tree on a simulated drive that loses power: what recovery takes, and what is lost.

use super::{recovered_queue, room};
use crate::failure::{Failure, Result};
use crate::laboratory::Laboratory;
use crate::quantity::Simulated;
use crate::row::Row;
use crate::tree_ground::{FILL, TreeGround, TreeSize, UniformKeys, larger_drive};
use flash::Ssd;
use psync::Volume;
use std::collections::BTreeMap;
use std::sync::Arc;
use trees::{Choice, Index, Load, LogMode, PioOptions, PioTree};

/// A tree on a drive of its own whose crash is to come, and what it has acknowledged since the last checkpoint.
pub(super) struct Victim {
    pub ssd: Ssd,
    tree: PioTree,
    options: PioOptions,
    keys: UniformKeys,
    acknowledged: BTreeMap<u64, u64>,
    /// Operations with which the queue is full.
    pub capacity: usize,
}

impl Victim {
    pub fn grow(laboratory: &Laboratory, load: &Load, choice: &Choice) -> Result<Self> {
        let size = TreeSize::of(laboratory.scale);
        let ssd = larger_drive(0, room(laboratory.scale))?;
        let choice = Choice { queue_pages: recovered_queue(size), ..*choice };
        let options = PioOptions { log: LogMode::Each, ..PioOptions::chosen(&choice, load)? };
        let mut records = (0..size.records).map(|index| (2 * index, index));
        let volume: Arc<dyn Volume> = Arc::new(ssd.clone());
        let tree = PioTree::bulk_load(volume, &options, FILL, &mut records)?;
        let keys = UniformKeys::new(Laboratory::seed(0, 45), size.records);
        let mut victim = Self { ssd, tree, options, keys, acknowledged: BTreeMap::new(), capacity: 0 };
        victim.capacity = victim.fill()?;
        victim.begin_anew()?;
        Ok(victim)
    }

    /// Inserts until the next insertion starts a batch update; how many wait then, with that one.
    pub fn fill(&mut self) -> Result<usize> {
        if self.capacity == 0 {
            let flushes = self.tree.stats().flushes;
            let mut waited = 0;
            while self.tree.stats().flushes == flushes {
                waited = self.tree.waiting() + 1;
                self.insert()?;
            }
            return Ok(waited);
        }
        while self.tree.waiting() + 1 < self.capacity {
            self.insert()?;
        }
        Ok(self.capacity)
    }

    /// The log begins anew, with nothing in the queue.
    pub fn begin_anew(&mut self) -> Result<()> {
        self.tree.flush()?;
        self.acknowledged.clear();
        Ok(())
    }

    /// The next insertion starts a batch update of many operations. Of a queue that is larger than a batch the first batch takes
    /// what little lies behind the end of the last one; the next begins anew.
    pub fn make_ready(&mut self) -> Result<()> {
        self.begin_anew()?;
        self.fill()?;
        self.insert()?;
        self.fill()?;
        Ok(())
    }

    /// An insertion; its key is noted once it has returned.
    pub fn insert(&mut self) -> Result<()> {
        let (key, value) = (self.keys.next(), self.acknowledged.len() as u64 + (1 << 40));
        self.tree.insert(key, value)?;
        self.acknowledged.insert(key, value);
        Ok(())
    }

    /// The power goes, and comes back: what recovery takes, and what it has lost, by our rule and by the published one taken
    /// literally.
    pub fn crash(&self, series: &str, at: f64, checked: bool) -> Result<Row<Simulated>> {
        let image = self.ssd.power_loss(45)?;
        // With room for more, so that a full queue is not brought to the tree by recovery.
        let options = PioOptions { queue_pages: self.options.queue_pages + 1, ..self.options.clone() };
        let log: u64 = image
            .list()?
            .iter()
            .filter(|entry| entry.name.starts_with("pio-wal"))
            .map(|entry| entry.len)
            .sum();
        let place = TreeGround::over(image);
        let mut tree = None;
        let mut row = place.row(series, at, 0, 1, || {
            tree = Some(PioTree::recover(Arc::clone(&place.volume), &options)?);
            Ok(())
        })?;
        let Some(tree) = tree else { return Err(Failure::CannotRun("recovery gave no tree".into())) };
        if checked {
            tree.check()?;
        }
        let literal: Arc<dyn Volume> = Arc::new(self.ssd.power_loss(45)?);
        let literal = PioTree::recover_as_published(literal, &options)?;
        for (name, count) in [
            ("log_bytes", log as f64),
            ("acknowledged", self.acknowledged.len() as f64),
            ("redone", tree.waiting() as f64),
            ("lost", self.lost_in(&tree)? as f64),
            ("lost_literally", self.lost_in(&literal)? as f64),
        ] {
            row.counts.insert(name.into(), count);
        }
        Ok(row)
    }

    /// Goes on with what a crash has left.
    pub fn revived(self) -> Result<Self> {
        let Self { ssd, tree, options, keys, acknowledged, capacity } = self;
        drop(tree);
        let ssd = ssd.power_loss(45)?;
        let tree = PioTree::recover(Arc::new(ssd.clone()), &options)?;
        Ok(Self { ssd, tree, options, keys, acknowledged, capacity })
    }

    fn lost_in(&self, tree: &PioTree) -> Result<usize> {
        let mut lost = 0;
        let acknowledged: Vec<(u64, u64)> =
            self.acknowledged.iter().map(|(key, value)| (*key, *value)).collect();
        for some in acknowledged.chunks(4096) {
            let keys: Vec<u64> = some.iter().map(|(key, _)| *key).collect();
            let found = tree.search_many(&keys)?;
            lost += found.iter().zip(some).filter(|(found, (_, value))| **found != Some(*value)).count();
        }
        Ok(lost)
    }

    /// Flash operations so far.
    pub fn flash_operations(&self) -> u64 {
        let counters = self.ssd.nand_counters();
        counters.reads + counters.programs + counters.erases
    }
}
