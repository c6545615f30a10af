//! The logarithmic merge: the head tree goes into the first run, and every run that grows beyond its share into the next,
//! until one has room. All runs above that one hold nothing but fences then.
//!
//! Invariants:
//! 1. Nothing that the durable anchor names is overwritten: new runs go to fresh extents, and the anchor of the end of the
//!    cascade replaces all of them at once.
//! 2. Of one key the newer entry wins; a filter lives until it reaches the lowest run.

use super::FdTree;
use super::run::{Run, RunReader, RunShape, RunWriter};
use crate::Result;
use crate::page::run_page::{Entry, EntryKind};
use crate::page::{Change, Key};

/// What comes from above, in order of key.
enum Source<'a> {
    Head(std::collections::btree_map::Iter<'a, Key, Change>),
    Run(RunReader<'a>),
}

impl Source<'_> {
    fn next(&mut self) -> Result<Option<(Key, Change)>> {
        match self {
            Self::Head(head) => Ok(head.next().map(|(key, change)| (*key, *change))),
            Self::Run(run) => run.next_change(),
        }
    }
}

impl FdTree {
    /// Brings the head tree to the device.
    pub(super) fn cascade(&mut self) -> Result<()> {
        let done = self.cascade_all();
        self.sound.after(done)
    }

    /// Runs and fences do not belong together until it is done.
    fn cascade_all(&mut self) -> Result<()> {
        let before = self.file.counters();
        let mut upper: Option<Run> = None;
        let mut target = 0;
        let mut firsts = loop {
            let below = self.runs.get(target).copied();
            let (merged, firsts) = self.merge(upper, below, target + 1 >= self.runs.len())?;
            if let Some(upper) = upper {
                // It was written in this cascade, and no anchor knows it.
                self.file.give(upper.extent());
            }
            match below {
                Some(below) => {
                    self.file.retire(below.extent());
                    self.runs[target] = merged;
                }
                None => self.runs.push(merged),
            }
            if merged.entries <= self.entries_max(target) {
                break firsts;
            }
            if target + 1 < self.runs.len() {
                upper = Some(merged);
                target += 1;
            } else if self.runs.len() < self.levels_max() {
                // The lowest run has neither fences nor filters: it can become the next level as it is.
                self.details.levels_added += 1;
                self.runs.push(merged);
                target += 1;
                break firsts;
            } else {
                break firsts;
            }
        };
        if self.runs[target].pages == 0 {
            // Only the lowest run can be empty, and then all above it are.
            self.runs.clear();
            firsts.clear();
        }
        let covered = target.min(self.runs.len());
        self.fence_above(covered, firsts)?;
        self.head.clear();
        self.save()?;
        self.forget_old_runs();
        let after = self.file.counters();
        self.details.cascades += 1;
        self.details.merge_pages_read += after.pages_read - before.pages_read;
        self.details.merge_pages_written += after.pages_written - before.pages_written;
        Ok(())
    }

    /// Makes the runs above `target` hold the fences to the one below each, and nothing else.
    pub(super) fn fence_above(&mut self, target: usize, mut firsts: Vec<Key>) -> Result<()> {
        for level in (0..target).rev() {
            let shape = self.next_run(true);
            let mut writer = RunWriter::new(&mut self.file, shape, Some(firsts.len() as u64));
            for (page, first) in (0..).zip(&firsts) {
                writer.push(&self.file, Entry::fence(*first, page))?;
            }
            (self.runs[level], firsts) = writer.finish(&mut self.file)?;
        }
        self.fences = firsts;
        Ok(())
    }

    pub(super) fn next_run(&mut self, fenced: bool) -> RunShape {
        self.next_number += 1;
        let (per_page, pages_max) = (self.per_page, self.merge_pages);
        RunShape { number: self.next_number, per_page, fenced, pages_max }
    }

    /// Merges what is above (the head tree, if `upper` is none) with the run below it.
    fn merge(&mut self, upper: Option<Run>, below: Option<Run>, is_lowest: bool) -> Result<(Run, Vec<Key>)> {
        let above = upper.map_or(self.head.len() as u64, |upper| upper.entries);
        let shape = self.next_run(!is_lowest);
        let entries_max = above + below.map_or(0, |below| below.entries);
        let mut writer = RunWriter::new(&mut self.file, shape, Some(entries_max));
        let file = &self.file;
        let reader = |run| RunReader::new(file, run, 0, self.merge_pages);
        let mut upper = upper.map_or_else(|| Source::Head(self.head.iter()), |run| Source::Run(reader(run)));
        let mut below = below.map(reader);
        let mut next_below = || loop {
            match below.as_mut().map_or(Ok(None), RunReader::next)? {
                Some(entry) if entry.kind == EntryKind::Internal => {}
                entry => return Ok::<_, crate::Error>(entry),
            }
        };
        let (mut new, mut old) = (upper.next()?, next_below()?);
        loop {
            match (new, old) {
                (None, None) => break,
                (Some((key, change)), old_entry)
                    if old_entry.is_none_or(|old| key < old.key || (key == old.key && !old.is_fence())) =>
                {
                    if old_entry.is_some_and(|old| old.key == key) {
                        self.details.superseded += 1;
                        old = next_below()?;
                    }
                    if is_lowest && change == Change::Remove {
                        self.details.filters_dropped += 1;
                    } else {
                        writer.push(file, Entry::of(key, change))?;
                    }
                    new = upper.next()?;
                }
                (_, Some(entry)) => {
                    writer.push(file, entry)?;
                    old = next_below()?;
                }
                (Some(_), None) => {}
            }
        }
        self.details.merges += 1;
        self.details.lowest_merges += u64::from(is_lowest);
        writer.finish(&mut self.file)
    }
}
