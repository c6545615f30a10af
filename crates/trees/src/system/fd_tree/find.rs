//! How an FD-tree is read: the head tree, then one page of every run, to which the fence in the page above leads.
//!
//! `search_many` goes down all runs with MPSearch, as its authors suggest for trees like this (Roh, Park, Shin and Lee, IEEE Data
//! Engineering Bulletin 2014, section 3).

use super::FdTree;
use super::run::RunReader;
use crate::page::run_page::RunPage;
use crate::page::{Change, Key, Value};
use crate::{Error, Result};
use mpsearch::{Tree, Visit};
use std::ops::Range;
use std::sync::Arc;

impl FdTree {
    /// The page of the first run where a key belongs.
    fn first_page(&self, key: Key) -> u64 {
        self.fences.partition_point(|fence| *fence <= key).saturating_sub(1) as u64
    }

    fn read_page(&self, level: usize, page: u64) -> Result<Arc<RunPage>> {
        let run = self.runs[level];
        let mut pool = self.pool.lock();
        if let Some(held) = pool.frames.get(&(run.number, page)).cloned() {
            pool.hits += 1;
            return Ok(held);
        }
        let at = run.expect_page(&self.file, page)?;
        let read = Arc::new(run.decode(&self.file, page, &self.file.read(at..at + 1)?)?);
        pool.frames.put((run.number, page), 0, 1, Arc::clone(&read));
        while let Some((oldest, _)) = pool.frames.excess() {
            pool.frames.pop(&oldest);
        }
        Ok(read)
    }

    /// Lets go what the pool has of runs that are gone.
    pub(super) fn forget_old_runs(&mut self) {
        let runs: Vec<u64> = self.runs.iter().map(|run| run.number).collect();
        let frames = &mut self.pool.get_mut().frames;
        let gone: Vec<_> = frames.iter().map(|(key, _)| *key).filter(|key| !runs.contains(&key.0)).collect();
        for key in &gone {
            frames.pop(key);
        }
    }

    /// Where a key goes on from a page.
    fn fence(&self, level: usize, page: &RunPage, key: Key) -> Result<u64> {
        page.find(key).1.ok_or_else(|| Error::broken(format!("level {level} has no fence for key {key}")))
    }

    pub(super) fn find(&self, key: Key) -> Result<Option<Value>> {
        if let Some(change) = self.head.get(&key) {
            return Ok(change.value());
        }
        let mut page = self.first_page(key);
        for level in 0..self.runs.len() {
            let read = self.read_page(level, page)?;
            if let (Some(change), _) = read.find(key) {
                return Ok(change.value());
            }
            if level + 1 < self.runs.len() {
                page = self.fence(level, &read, key)?;
            }
        }
        Ok(None)
    }

    /// All records with keys in `range`: one page of every run, then all of them merged.
    pub(super) fn merged(&self, range: Range<Key>) -> Result<Vec<(Key, Value)>> {
        let mut found = Vec::new();
        if range.is_empty() {
            return Ok(found);
        }
        let mut head = self.head.range(range.clone()).map(|(key, change)| (*key, *change));
        let mut runs = Vec::with_capacity(self.runs.len());
        let mut page = self.first_page(range.start);
        for (level, run) in self.runs.iter().enumerate() {
            let read = self.read_page(level, page)?;
            let next = if level + 1 < self.runs.len() { self.fence(level, &read, range.start)? } else { 0 };
            runs.push(RunReader::behind(&self.file, *run, page, RunPage::clone(&read), self.pio_max));
            page = next;
        }
        // Of every source the next change, the newest source first.
        let mut next = vec![head.next()];
        for run in &mut runs {
            next.push(advance(run, &range)?);
        }
        while let Some(least) = next.iter().flatten().map(|(key, _)| *key).min() {
            let mut newest = None;
            for (source, slot) in next.iter_mut().enumerate() {
                if let Some((key, change)) = *slot
                    && key == least
                {
                    newest = newest.or(Some(change));
                    *slot = match source.checked_sub(1) {
                        None => head.next(),
                        Some(run) => advance(&mut runs[run], &range)?,
                    };
                }
            }
            found.extend(newest.and_then(Change::value).map(|value| (least, value)));
        }
        Ok(found)
    }

    pub(super) fn find_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>> {
        let mut sorted = keys.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let mut found: Vec<Option<Change>> = sorted.iter().map(|key| self.head.get(key).copied()).collect();
        if !self.runs.is_empty() {
            let mut search = Many { tree: self, keys: &sorted, found: &mut found };
            let mut below = Vec::new();
            let fences = &self.fences;
            search.send(0..sorted.len(), &mut below, |key| {
                Ok(fences.partition_point(|fence| *fence <= key).saturating_sub(1) as u64)
            })?;
            // One subtree after the other would read page by page: they go down together, as children of one root.
            let whole = 0..sorted.len();
            mpsearch::mpsearch(&mut search, Place::Head(below), self.runs.len(), whole, self.pio_max)?;
        }
        let value = |key| {
            let index = sorted.binary_search(key).ok()?;
            found[index].and_then(Change::value)
        };
        Ok(keys.iter().map(value).collect())
    }
}

/// The next change in the range.
fn advance(run: &mut RunReader<'_>, range: &Range<Key>) -> Result<Option<(Key, Change)>> {
    while let Some((key, change)) = run.next_change()? {
        if key >= range.end {
            return Ok(None);
        }
        if key >= range.start {
            return Ok(Some((key, change)));
        }
    }
    Ok(None)
}

/// Where MPSearch is.
enum Place {
    /// In the head tree, which knows the pages of the first run.
    Head(Vec<Visit<Place>>),
    Page(u64),
}

struct Many<'a> {
    tree: &'a FdTree,
    keys: &'a [Key],
    /// What is known already.
    found: &'a mut Vec<Option<Change>>,
}

impl Many<'_> {
    /// Sends the keys that are not found yet to pages of the next run; neighbours may go to the same one.
    fn send(
        &self,
        keys: Range<usize>,
        below: &mut Vec<Visit<Place>>,
        page_of: impl Fn(Key) -> Result<u64>,
    ) -> Result<()> {
        for index in keys.filter(|index| self.found[*index].is_none()) {
            let page = page_of(self.keys[index])?;
            match below.last_mut() {
                Some(Visit { place: Place::Page(last), keys }) if *last == page => keys.end = index + 1,
                _ => below.push(Visit { place: Place::Page(page), keys: index..index + 1 }),
            }
        }
        Ok(())
    }

    fn look(&mut self, page: &RunPage, keys: Range<usize>) {
        for index in keys {
            if self.found[index].is_none() {
                self.found[index] = page.find(self.keys[index]).0;
            }
        }
    }
}

impl Tree for Many<'_> {
    type Place = Place;
    type Node = Option<RunPage>;
    type Error = Error;

    fn read(&mut self, height: usize, group: &[Visit<Place>]) -> Result<Vec<Option<RunPage>>> {
        let Some(level) = self.tree.runs.len().checked_sub(height + 1) else { return Ok(vec![None]) };
        let run = self.tree.runs[level];
        let mut pages = Vec::with_capacity(group.len());
        for visit in group {
            let Place::Page(page) = visit.place else {
                return Err(Error::broken("the head tree below itself"));
            };
            pages.push(run.expect_page(&self.tree.file, page)?);
        }
        let mut read = Vec::with_capacity(group.len());
        self.tree.file.read_each(&pages, &mut |index, bytes| {
            read.push(Some(run.decode(&self.tree.file, pages[index] - run.first, bytes)?));
            Ok(())
        })?;
        Ok(read)
    }

    fn descend(
        &mut self,
        height: usize,
        node: Option<RunPage>,
        visit: Visit<Place>,
        below: &mut Vec<Visit<Place>>,
    ) -> Result<()> {
        match (visit.place, node) {
            (Place::Head(pages), _) => below.extend(pages),
            (Place::Page(_), Some(page)) => {
                self.look(&page, visit.keys.clone());
                let level = self.tree.runs.len() - height - 1;
                self.send(visit.keys, below, |key| self.tree.fence(level, &page, key))?;
            }
            (Place::Page(_), None) => {}
        }
        Ok(())
    }

    fn deliver(&mut self, group: Vec<(Visit<Place>, Option<RunPage>)>) -> Result<()> {
        for (visit, page) in group {
            page.iter().for_each(|page| self.look(page, visit.keys.clone()));
        }
        Ok(())
    }
}
