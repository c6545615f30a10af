//! Files on a drive of logical pages: names, lengths, and which logical page holds which page of a file.
//!
//! Changes are in memory at once, and durable when the journal has them: all that happened since the last commit
//! becomes durable together, or not at all.
//!
//! Invariants:
//! 1. a logical page belongs to one file at one place, or is free, or is in `freed`;
//! 2. a page that was freed is not used again before the commit that frees it is durable: until then power loss
//!    brings back the file that it belongs to;
//! 3. a file has no pages wholly past its length, and its last one holds zeros there, unless `tail_unknown`: power loss may have
//!    cut the length back, but not what was written behind it, and a write may have failed half way.

use super::space::Space;
use crate::LogicalPage;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A file by number, which outlives its names.
pub(super) type Number = u32;

/// One change, as the journal keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Change {
    /// The name means this file from now on; the file is new if its number is.
    Name { name: String, file: Number },
    /// The name means nothing any more.
    Unname { name: String },
    /// The file is that many bytes long.
    Length { file: Number, len: u64 },
    /// `count` pages of the file from `page` on are the logical pages from `at` on.
    Map { file: Number, page: u64, at: u32, count: u32 },
    /// `count` pages of the file from `page` on are a hole.
    Unmap { file: Number, page: u64, count: u64 },
}

/// Pages of a file that are looked up together.
const CHUNK: u64 = 1024;
const NONE: u32 = u32::MAX;

/// One file.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    pub len: u64,
    /// See invariant 3.
    pub tail_unknown: bool,
    /// By page of the file: the logical page. Chunks without any are left out.
    chunks: BTreeMap<u64, Box<[u32; CHUNK as usize]>>,
    names: u32,
    handles: u32,
}

impl Node {
    pub(super) fn at(&self, page: u64) -> Option<LogicalPage> {
        let at = self.chunks.get(&(page / CHUNK))?[(page % CHUNK) as usize];
        (at != NONE).then_some(LogicalPage(at))
    }

    fn put(&mut self, page: u64, at: u32) -> Option<LogicalPage> {
        let chunk = self.chunks.entry(page / CHUNK).or_insert_with(|| Box::new([NONE; CHUNK as usize]));
        let old = std::mem::replace(&mut chunk[(page % CHUNK) as usize], at);
        (old != NONE).then_some(LogicalPage(old))
    }

    /// All pages that are there, in order, within a range of pages of the file.
    fn pages(&self, range: Range<u64>) -> impl Iterator<Item = (u64, LogicalPage)> {
        let chunks = self.chunks.range(range.start / CHUNK..range.end.div_ceil(CHUNK));
        let all = chunks.flat_map(|(number, chunk)| {
            chunk.iter().zip(number * CHUNK..).map(|(at, page)| (page, LogicalPage(*at)))
        });
        all.filter(move |(page, at)| at.0 != NONE && range.contains(page))
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Files {
    names: BTreeMap<String, Number>,
    nodes: BTreeMap<Number, Node>,
    next_number: Number,
    space: Space,
    freed: Vec<LogicalPage>,
    /// Since the last commit; lengths apart.
    changes: Vec<Change>,
    resized: BTreeSet<Number>,
}

impl Files {
    /// No files; these logical pages are for data.
    pub(super) fn new(data: Range<u32>) -> Self {
        Self {
            names: BTreeMap::new(),
            nodes: BTreeMap::new(),
            next_number: 0,
            space: Space::new(data),
            freed: Vec::new(),
            changes: Vec::new(),
            resized: BTreeSet::new(),
        }
    }

    pub(super) fn named(&self, name: &str) -> Option<Number> {
        self.names.get(name).copied()
    }

    pub(super) fn list(&self) -> impl Iterator<Item = (&str, u64)> {
        self.names.iter().map(|(name, number)| (name.as_str(), self.node(*number).map_or(0, |node| node.len)))
    }

    /// All pages of all files that have a name.
    pub(super) fn pages(&self) -> impl Iterator<Item = (&str, u64, LogicalPage)> {
        let files = self.names.iter().filter_map(|(name, number)| Some((name.as_str(), self.node(*number)?)));
        files.flat_map(|(name, node)| node.pages(0..u64::MAX).map(move |(page, at)| (name, page, at)))
    }

    pub(super) fn node(&self, file: Number) -> Option<&Node> {
        self.nodes.get(&file)
    }

    /// Logical pages that are free now; those that are free after a commit not counted.
    pub(super) fn free_pages(&self) -> u32 {
        self.space.count()
    }

    /// Whether a commit would free pages.
    pub(super) fn has_freed(&self) -> bool {
        !self.freed.is_empty()
    }

    pub(super) fn create(&mut self, name: &str) -> Number {
        let file = self.next_number;
        self.next_number += 1;
        self.nodes.insert(file, Node { names: 1, ..Node::default() });
        self.names.insert(name.to_owned(), file);
        self.changes.push(Change::Name { name: name.to_owned(), file });
        file
    }

    pub(super) fn opened(&mut self, file: Number) {
        if let Some(node) = self.nodes.get_mut(&file) {
            node.handles += 1;
        }
    }

    pub(super) fn closed(&mut self, file: Number) {
        if let Some(node) = self.nodes.get_mut(&file) {
            node.handles -= 1;
        }
        self.reap(file);
    }

    /// Whether there was such a file.
    pub(super) fn remove(&mut self, name: &str) -> bool {
        let Some(file) = self.names.remove(name) else { return false };
        self.changes.push(Change::Unname { name: name.to_owned() });
        self.unname(file);
        true
    }

    /// Whether there was such a file.
    pub(super) fn rename(&mut self, from: &str, to: &str) -> bool {
        let Some(file) = self.named(from) else { return false };
        if from == to {
            return true;
        }
        self.names.remove(from);
        self.changes.push(Change::Unname { name: from.to_owned() });
        let replaced = self.names.insert(to.to_owned(), file);
        self.changes.push(Change::Name { name: to.to_owned(), file });
        if let Some(replaced) = replaced {
            self.unname(replaced);
        }
        true
    }

    fn unname(&mut self, file: Number) {
        if let Some(node) = self.nodes.get_mut(&file) {
            node.names -= 1;
        }
        self.reap(file);
    }

    /// Lets go of a file that nobody can reach any more.
    fn reap(&mut self, file: Number) {
        if self.nodes.get(&file).is_some_and(|node| node.names == 0 && node.handles == 0)
            && let Some(node) = self.nodes.remove(&file)
        {
            self.freed.extend(node.pages(0..u64::MAX / CHUNK * CHUNK).map(|(_, at)| at));
            self.resized.remove(&file);
        }
    }

    /// A logical page that holds nothing: for [`map`](Self::map), or to be given [back](Self::give_back). `None` if there is none left.
    pub(super) fn take_free(&mut self) -> Option<LogicalPage> {
        self.space.take()
    }

    /// What was taken was not written, and no file has it.
    pub(super) fn give_back(&mut self, at: LogicalPage) {
        self.space.give(at);
    }

    /// The page of the file is in `at` from now on, which was taken and has been written.
    pub(super) fn map(&mut self, file: Number, page: u64, at: LogicalPage) {
        let Some(node) = self.nodes.get_mut(&file) else { return };
        self.freed.extend(node.put(page, at.0));
        match self.changes.last_mut() {
            Some(Change::Map { file: same, page: first, at: first_at, count })
                if *same == file && *first + u64::from(*count) == page && *first_at + *count == at.0 =>
            {
                *count += 1;
            }
            _ => self.changes.push(Change::Map { file, page, at: at.0, count: 1 }),
        }
    }

    /// Makes a hole of whole pages.
    pub(super) fn unmap(&mut self, file: Number, pages: Range<u64>) {
        let Some(node) = self.nodes.get_mut(&file) else { return };
        let gone: Vec<(u64, LogicalPage)> = node.pages(pages.clone()).collect();
        if gone.is_empty() {
            return;
        }
        for (page, at) in gone {
            node.put(page, NONE);
            self.freed.push(at);
        }
        let inside = pages.start.div_ceil(CHUNK)..pages.end / CHUNK;
        node.chunks.retain(|number, _| !inside.contains(number));
        self.changes.push(Change::Unmap { file, page: pages.start, count: pages.end - pages.start });
    }

    pub(super) fn set_len(&mut self, file: Number, len: u64) {
        if let Some(node) = self.nodes.get_mut(&file)
            && node.len != len
        {
            node.len = len;
            self.resized.insert(file);
        }
    }

    /// A write that would have made the file longer has failed: what it left in whole pages behind the length is given up, and
    /// what it left in the last page is not known.
    pub(super) fn forget_tail(&mut self, file: Number, page_bytes: u64) {
        let Some(node) = self.nodes.get_mut(&file) else { return };
        node.tail_unknown |= node.len % page_bytes != 0;
        let behind = node.len.div_ceil(page_bytes)..u64::MAX / CHUNK * CHUNK;
        self.unmap(file, behind);
    }

    /// What is behind the file's length is zeros now.
    pub(super) fn tail_known(&mut self, file: Number) {
        if let Some(node) = self.nodes.get_mut(&file) {
            node.tail_unknown = false;
        }
    }

    /// How many changes wait for a commit.
    pub(super) fn pending(&self) -> usize {
        self.changes.len() + self.resized.len()
    }

    /// All changes since the last commit. They count as committed from now on.
    pub(super) fn take_changes(&mut self) -> Vec<Change> {
        let mut changes = std::mem::take(&mut self.changes);
        for file in std::mem::take(&mut self.resized) {
            if let Some(node) = self.nodes.get(&file) {
                changes.push(Change::Length { file, len: node.len });
            }
        }
        changes
    }

    /// The commit is durable: what was freed before it may be used again.
    pub(super) fn release_freed(&mut self) -> Vec<LogicalPage> {
        let freed = std::mem::take(&mut self.freed);
        freed.iter().for_each(|page| self.space.give(*page));
        freed
    }

    /// Changes that make these files out of nothing. Files without a name are left out.
    pub(super) fn everything(&self) -> Vec<Change> {
        let mut changes = Vec::new();
        for (name, file) in &self.names {
            let Some(node) = self.nodes.get(file) else { continue };
            let file = *file;
            changes.push(Change::Name { name: name.clone(), file });
            changes.push(Change::Length { file, len: node.len });
            for (page, at) in node.pages(0..u64::MAX / CHUNK * CHUNK) {
                match changes.last_mut() {
                    Some(Change::Map { page: first, at: first_at, count, .. })
                        if *first + u64::from(*count) == page && *first_at + *count == at.0 =>
                    {
                        *count += 1;
                    }
                    _ => changes.push(Change::Map { file, page, at: at.0, count: 1 }),
                }
            }
        }
        changes
    }

    /// Does what the journal says, for recovery. Call [`Files::recovered`] afterwards.
    pub(super) fn apply(&mut self, change: Change) {
        match change {
            Change::Name { name, file } => {
                self.nodes.entry(file).or_default();
                self.names.insert(name, file);
            }
            Change::Unname { name } => {
                self.names.remove(&name);
            }
            Change::Length { file, len } => self.nodes.entry(file).or_default().len = len,
            Change::Map { file, page, at, count } => {
                let node = self.nodes.entry(file).or_default();
                for number in 0..count {
                    node.put(page + u64::from(number), at + number);
                }
            }
            Change::Unmap { file, page, count } => {
                let node = self.nodes.entry(file).or_default();
                let gone: Vec<u64> = node.pages(page..page + count).map(|(page, _)| page).collect();
                for page in gone {
                    node.put(page, NONE);
                }
            }
        }
    }

    /// All of the journal was applied: drops files without a name, and finds out what is free.
    pub(super) fn recovered(&mut self, page_bytes: u64) {
        let named: BTreeSet<Number> = self.names.values().copied().collect();
        self.nodes.retain(|number, _| named.contains(number));
        self.next_number = named.last().map_or(0, |last| last + 1);
        for (number, node) in &mut self.nodes {
            node.names = self.names.values().filter(|file| *file == number).count() as u32;
            node.tail_unknown = node.len % page_bytes != 0;
            // A commit in the midst of a write has the pages, and not the length.
            let behind = node.len.div_ceil(page_bytes)..u64::MAX / CHUNK * CHUNK;
            let gone: Vec<u64> = node.pages(behind.clone()).map(|(page, _)| page).collect();
            if !gone.is_empty() {
                for page in gone {
                    node.put(page, NONE);
                }
                let count = behind.end - behind.start;
                self.changes.push(Change::Unmap { file: *number, page: behind.start, count });
            }
            for (_, at) in node.pages(0..u64::MAX / CHUNK * CHUNK) {
                let free = self.space.claim(at);
                debug_assert!(free, "logical page {} belongs to two files", at.0);
            }
        }
    }
}
