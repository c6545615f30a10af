//! How an LSM-tree is read: the memtable, then run by run the filter page of the part, and the block if the filter does not deny
//! the key.
//!
//! `search_many` takes many keys through all levels and filters at once, with MPSearch (Roh, Park, Shin and Lee, IEEE Data
//! Engineering Bulletin 2014, section 3): the runs are children of one root, a filter page is an inner node, a block a leaf. So two
//! parallel reads are enough, however many runs there are; a single search needs up to two for each run, one after the other. A
//! block is not read for a key that a newer run is known to have.

use super::LsmTree;
use super::merge::{Merge, Source};
use super::run::RunReader;
use crate::page::filter_page::FilterPage;
use crate::page::run_page::RunPage;
use crate::page::{Change, Key, Value};
use crate::{Error, Result};
use mpsearch::{ReadAhead, Tree, Visit};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

impl LsmTree {
    /// Filter pages, by level and part; what is not in the pool with one parallel read.
    fn filters(&self, places: &[(usize, u64)]) -> Result<Vec<Arc<FilterPage>>> {
        let key = |place: &(usize, u64)| (self.levels[place.0].run.number, place.1);
        let mut pool = self.pool.lock();
        let mut found: Vec<_> = places.iter().map(|place| pool.frames.get(&key(place)).cloned()).collect();
        pool.hits += found.iter().flatten().count() as u64;
        drop(pool);
        let missing: Vec<usize> = (0..places.len()).filter(|index| found[*index].is_none()).collect();
        let page = |index: &usize| self.levels[places[*index].0].run.filter_of(places[*index].1);
        let pages: Vec<u64> = missing.iter().map(page).collect();
        if pages.is_empty() {
            return Ok(found.into_iter().flatten().collect());
        }
        self.file.read_each(&pages, &mut |at, bytes| {
            let (level, part) = places[missing[at]];
            let filter = self.levels[level].run.filter(&self.file, part, bytes)?;
            found[missing[at]] = Some(Arc::new(filter));
            Ok(())
        })?;
        let mut pool = self.pool.lock();
        for index in missing {
            // Of the upper levels there are few, and every search passes them.
            let height = (self.levels.len() - places[index].0) as u8;
            if let Some(read) = &found[index]
                && pool.frames.admits(height, 1)
            {
                pool.frames.put(key(&places[index]), height, 1, Arc::clone(read));
            }
        }
        while let Some((lowest, _)) = pool.frames.excess() {
            pool.frames.pop(&lowest);
        }
        drop(pool);
        Ok(found.into_iter().flatten().collect())
    }

    /// The page of the block where a key would be; none if the filter denies it.
    fn block_of(&self, (level, part): (usize, u64), filter: &FilterPage, key: Key) -> Option<u64> {
        match filter.block_of(key) {
            Some(block) => Some(self.levels[level].run.blocks_of(part).start + block as u64),
            None => {
                self.denied.fetch_add(1, Relaxed);
                None
            }
        }
    }

    pub(super) fn find(&self, key: Key) -> Result<Option<Value>> {
        if let Some(change) = self.memtable.get(&key) {
            return Ok(change.value());
        }
        for (at, level) in self.levels.iter().enumerate() {
            let Some(part) = level.part_of(key) else { continue };
            let filters = self.filters(&[(at, part)])?;
            let block = filters.first().and_then(|filter| self.block_of((at, part), filter, key));
            let Some(page) = block else { continue };
            let read = level.run.block(&self.file, page, &self.file.read(page..page + 1)?)?;
            if let Some(change) = read.find(key).0 {
                return Ok(change.value());
            }
            self.false_positives.fetch_add(1, Relaxed);
        }
        Ok(None)
    }

    pub(super) fn find_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>> {
        let mut sorted = keys.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let found = sorted.iter().map(|key| self.memtable.get(key).map(|change| (None, *change))).collect();
        let mut search = Many { tree: self, keys: &sorted, found };
        mpsearch::mpsearch(&mut search, Place::Root, 2, 0..sorted.len(), self.pio_max)?;
        let found = search.found;
        let value = |key| {
            let index = sorted.binary_search(key).ok()?;
            found[index].and_then(|(_, change)| change.value())
        };
        Ok(keys.iter().map(value).collect())
    }

    /// All records with keys in `range`.
    pub(super) fn merged(&self, range: Range<Key>) -> Result<Vec<(Key, Value)>> {
        let mut found = Vec::new();
        if range.is_empty() {
            return Ok(found);
        }
        let mut sources = vec![Source::Memtable(self.memtable.range(range.clone()))];
        for (at, level) in self.levels.iter().enumerate().filter(|(_, level)| level.run.pages > 0) {
            let part = level.part_of(range.start).unwrap_or(0);
            let filters = self.filters(&[(at, part)])?;
            let block = filters.first().map_or(0, |filter| {
                filter.firsts.partition_point(|first| *first <= range.start).saturating_sub(1)
            });
            let page = level.run.blocks_of(part).start + block as u64;
            let ahead = ReadAhead::new(self.pio_max);
            sources.push(Source::Run(RunReader::from_page(&self.file, level.run, page, ahead)));
        }
        let mut merge = Merge::new(sources)?;
        while let Some((key, change)) = merge.next()? {
            if key >= range.end {
                break;
            }
            if key >= range.start {
                found.extend(change.value().map(|value| (key, value)));
            }
        }
        Ok(found)
    }
}

/// Where MPSearch is.
enum Place {
    /// Above all runs; in memory.
    Root,
    Part {
        level: usize,
        part: u64,
    },
    Block {
        level: usize,
        page: u64,
    },
}

enum Read {
    Root,
    Filter(Arc<FilterPage>),
    Block(RunPage),
}

struct Many<'a> {
    tree: &'a LsmTree,
    keys: &'a [Key],
    /// What is known of each key, and of which level; none is the memtable.
    found: Vec<Option<(Option<usize>, Change)>>,
}

impl Many<'_> {
    /// Whether something newer than a level has the key.
    fn is_settled(&self, index: usize, level: usize) -> bool {
        self.found[index].is_some_and(|(at, _)| at < Some(level))
    }
}

/// Appends a visit, or lets the one before take the key too.
fn send<P>(below: &mut Vec<Visit<P>>, index: usize, place: P, is_same: impl Fn(&P) -> bool) {
    match below.last_mut().filter(|last| is_same(&last.place)) {
        Some(last) => last.keys.end = index + 1,
        None => below.push(Visit { place, keys: index..index + 1 }),
    }
}

impl Tree for Many<'_> {
    type Place = Place;
    type Node = Read;
    type Error = Error;

    fn read(&mut self, height: usize, group: &[Visit<Place>]) -> Result<Vec<Read>> {
        let (mut parts, mut blocks) = (Vec::new(), Vec::new());
        for visit in group {
            match visit.place {
                Place::Root => return Ok(vec![Read::Root]),
                Place::Part { level, part } => parts.push((level, part)),
                Place::Block { level, page } => blocks.push((level, page)),
            }
        }
        debug_assert_eq!(if height == 0 { blocks.len() } else { parts.len() }, group.len());
        if height > 0 {
            return Ok(self.tree.filters(&parts)?.into_iter().map(Read::Filter).collect());
        }
        let (file, mut read) = (&self.tree.file, Vec::with_capacity(group.len()));
        let pages: Vec<u64> = blocks.iter().map(|(_, page)| *page).collect();
        file.read_each(&pages, &mut |index, bytes| {
            let (level, page) = blocks[index];
            read.push(Read::Block(self.tree.levels[level].run.block(file, page, bytes)?));
            Ok(())
        })?;
        Ok(read)
    }

    fn descend(
        &mut self,
        _: usize,
        node: Read,
        visit: Visit<Place>,
        below: &mut Vec<Visit<Place>>,
    ) -> Result<()> {
        match (visit.place, node) {
            (Place::Root, _) => {
                for (at, level) in self.tree.levels.iter().enumerate() {
                    for index in visit.keys.clone().filter(|index| !self.is_settled(*index, at)) {
                        let Some(part) = level.part_of(self.keys[index]) else { continue };
                        let place = Place::Part { level: at, part };
                        send(
                            below,
                            index,
                            place,
                            |last| matches!(last, Place::Part { level, part: other } if (*level, *other) == (at, part)),
                        );
                    }
                }
            }
            (Place::Part { level, part }, Read::Filter(filter)) => {
                for index in visit.keys.filter(|index| !self.is_settled(*index, level)) {
                    let Some(page) = self.tree.block_of((level, part), &filter, self.keys[index]) else {
                        continue;
                    };
                    let place = Place::Block { level, page };
                    send(
                        below,
                        index,
                        place,
                        |last| matches!(last, Place::Block { page: other, .. } if *other == page),
                    );
                }
            }
            _ => return Err(Error::broken("a block for a filter page")),
        }
        Ok(())
    }

    fn deliver(&mut self, group: Vec<(Visit<Place>, Read)>) -> Result<()> {
        for (visit, node) in group {
            let (Place::Block { level, .. }, Read::Block(block)) = (visit.place, node) else {
                return Err(Error::broken("a filter page for a block"));
            };
            for index in visit.keys {
                if let Some(change) = block.find(self.keys[index]).0
                    && !self.is_settled(index, level)
                {
                    self.found[index] = Some((Some(level), change));
                }
            }
        }
        Ok(())
    }
}
