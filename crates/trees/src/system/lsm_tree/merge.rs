//! Merges: the memtable goes into the first run, and if that would be too large, with it into the second, and so on.
//!
//! Invariant: the levels above the one that a merge ends in are empty then.

use super::LsmTree;
use super::run::{Level, RunReader, RunShape, RunWriter};
use crate::Result;
use crate::page::filter_page::blocks_max;
use crate::page::{Change, Key};
use std::collections::btree_map;

/// A sorted source of a merge.
pub(super) enum Source<'a> {
    Memtable(btree_map::Range<'a, Key, Change>),
    Run(RunReader<'a>),
}

impl Source<'_> {
    fn next(&mut self) -> Result<Option<(Key, Change)>> {
        match self {
            Self::Memtable(entries) => Ok(entries.next().map(|(key, change)| (*key, *change))),
            Self::Run(reader) => reader.next(),
        }
    }
}

/// Many sources as one, in order of key. Of one key the first source's entry wins.
pub(super) struct Merge<'a> {
    sources: Vec<Source<'a>>,
    next: Vec<Option<(Key, Change)>>,
}

impl<'a> Merge<'a> {
    /// The newest source first.
    pub fn new(mut sources: Vec<Source<'a>>) -> Result<Self> {
        let next = sources.iter_mut().map(Source::next).collect::<Result<_>>()?;
        Ok(Self { sources, next })
    }

    pub fn next(&mut self) -> Result<Option<(Key, Change)>> {
        let Some(least) = self.next.iter().flatten().map(|(key, _)| *key).min() else { return Ok(None) };
        let mut newest = None;
        for (source, next) in self.sources.iter_mut().zip(&mut self.next) {
            if let Some((key, change)) = *next
                && key == least
            {
                newest = newest.or(Some((key, change)));
                *next = source.next()?;
            }
        }
        Ok(newest)
    }
}

impl LsmTree {
    /// The level in which a merge of the memtable ends: the first that has room for all above it and itself.
    fn target(&self) -> usize {
        let mut entries = self.memtable.len() as u64;
        for (at, level) in self.levels.iter().enumerate() {
            entries += level.run.entries;
            if entries <= self.entries_max(at) {
                return at;
            }
        }
        self.levels.len().min(self.levels_max() - 1)
    }

    pub(super) fn next_run(&mut self) -> RunShape {
        self.next_number += 1;
        let blocks = blocks_max(self.file.page_len(), self.per_block, self.bits_per_key);
        RunShape {
            number: self.next_number,
            per_block: self.per_block,
            blocks,
            bits_per_key: self.bits_per_key,
        }
    }

    /// Brings the memtable to the device.
    pub(super) fn spill(&mut self) -> Result<()> {
        let done = self.spill_all();
        self.sound.after(done)
    }

    fn spill_all(&mut self) -> Result<()> {
        let target = self.target();
        let merged: Vec<_> = self.levels.iter().take(target + 1).map(|level| level.run).collect();
        let is_last = self.levels.len() <= target + 1;
        let entries = self.memtable.len() as u64 + merged.iter().map(|run| run.entries).sum::<u64>();
        let shape = self.next_run();
        let mut writer = RunWriter::new(&mut self.file, shape, Some(entries));
        let runs = merged.iter().filter(|run| run.pages > 0);
        let runs = runs.map(|run| Source::Run(RunReader::of(&self.file, *run)));
        let sources = std::iter::once(Source::Memtable(self.memtable.range(..))).chain(runs).collect();
        let mut merge = Merge::new(sources)?;
        while let Some((key, change)) = merge.next()? {
            if !is_last || change != Change::Remove {
                writer.push(&self.file, key, change)?;
            }
        }
        let level = writer.finish(&mut self.file)?;
        if self.levels.len() <= target {
            self.levels.resize_with(target + 1, Level::default);
        }
        for old in &mut self.levels[..target] {
            *old = Level::default();
        }
        self.levels[target] = level;
        while self.levels.last().is_some_and(|last| last.run.pages == 0) {
            self.levels.pop();
        }
        for run in merged.iter().filter(|run| run.pages > 0) {
            self.file.retire(run.extent());
        }
        self.memtable.clear();
        self.save()?;
        self.forget_old_runs();
        self.flushes += 1;
        self.merges += u64::from(merged.iter().any(|run| run.pages > 0));
        Ok(())
    }

    /// Lets go what the pool has of runs that are gone.
    fn forget_old_runs(&mut self) {
        let numbers: Vec<u64> = self.levels.iter().map(|level| level.run.number).collect();
        let frames = &mut self.pool.get_mut().frames;
        let gone: Vec<_> =
            frames.iter().map(|(key, _)| *key).filter(|key| !numbers.contains(&key.0)).collect();
        for key in &gone {
            frames.pop(key);
        }
    }
}
