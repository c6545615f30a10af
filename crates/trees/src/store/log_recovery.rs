//! Finds out from the sub-files where each node's newest copy is.
//!
//! Invariants:
//! 1. Batches count whole or not at all, in the order of their numbers. What follows the first one that is not whole was
//!    never promised to last, and is cut off.
//! 2. A batch that is not whole is damage, not a loss of power, where something later says that it was durable: a later
//!    file, or a later batch that knew it as durable.
//! 3. Only nodes that the root leads to live on: the batch that freed a node may be gone with its file while an old
//!    copy of that node is still there.
//! 4. The table that comes out is the one that the last whole batch knew, to the last entry: its digest says so. So no file
//!    is missing, and no old copy was taken for a new one.
//!
//! As published there is nothing but pages in the order in which they were written, and the last copy of a node counts
//! ([`Rule::AsPublished`]): half of a batch is taken for the whole. That is here to measure and to show it.

use crate::page::NodeId;
use crate::page::node::Node;
use crate::store::Root;
use crate::store::batch::{Tail, member};
use crate::store::mapping_table::{Checkpoint, MappingTable};
use crate::store::sub_files::{Address, SubFiles};
use crate::{Error, Result};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Pages that are read at a time.
const WINDOW: u32 = 64;

/// How pages are read that no checkpoint speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    Batches,
    AsPublished,
}

/// What was found.
pub(crate) struct Recovered {
    pub table: MappingTable,
    pub root: Root,
    /// The last whole batch.
    pub batch: u64,
    /// The last batch of each file.
    pub last_of: BTreeMap<u32, u64>,
    pub pages_read: u64,
}

/// A member of a batch that is not complete yet.
struct Member {
    id: NodeId,
    place: Address,
    tail: Tail,
    children: Vec<NodeId>,
}

/// Is shown a page and its number; whether it wants more.
type See<'a, 'b> = &'a mut dyn FnMut(&mut Scan<'b>, u32, &[u8]) -> Result<bool>;

struct Scan<'a> {
    files: &'a mut SubFiles,
    rule: Rule,
    table: MappingTable,
    root: Option<Root>,
    batch: u64,
    /// The table's after that batch.
    digest: u64,
    last_of: BTreeMap<u32, u64>,
    /// Of inner nodes, when all are read: what they lead to.
    children: Option<HashMap<NodeId, Vec<NodeId>>>,
    pages_read: u64,
}

/// Reads what is there, from a checkpoint on or all of it, and cuts off what is not whole.
pub(crate) fn recover(files: &mut SubFiles, from: Option<Checkpoint>, rule: Rule) -> Result<Recovered> {
    let mut scan = Scan {
        files,
        rule,
        table: MappingTable::new(),
        root: None,
        batch: 0,
        digest: 0,
        last_of: BTreeMap::new(),
        children: from.is_none().then(HashMap::new),
        pages_read: 0,
    };
    let mut start = Address { file: 0, page: 0 };
    let from_checkpoint = from.is_some();
    if let Some(checkpoint) = from {
        (scan.table, scan.root, scan.batch) = (checkpoint.table, Some(checkpoint.root), checkpoint.batch);
        scan.digest = scan.table.digest();
        start = checkpoint.end;
    }
    let list: Vec<_> = scan.files.list().collect();
    let Some((newest, _)) = list.last().copied() else {
        return Err(Error::Device(psync::Error::NotFound { file: scan.files.name(1) }));
    };
    // A file before that of the checkpoint holds no batch after it.
    let mut before = from_checkpoint.then_some(start.file);
    for (file, pages) in list {
        scan.last_of.insert(file, scan.batch);
        if file < start.file {
            continue;
        }
        let first = if file == start.file { start.page } else { 0 };
        if first > pages {
            let (name, expected) = (scan.files.name(file), format!("{first} pages or more"));
            return Err(Error::corrupt(&name, 0, "length of a sub-file", expected, pages));
        }
        // Only where a file is missing may batches be missing.
        let gap_allowed = !from_checkpoint && before.is_none_or(|before| before + 1 < file);
        match rule {
            Rule::Batches => scan.batches(file, first..pages, file == newest, gap_allowed)?,
            Rule::AsPublished => scan.newest_copies(file, pages)?,
        }
        scan.last_of.insert(file, scan.batch);
        before = Some(file);
    }
    scan.files.sync()?;
    scan.finish()
}

impl<'b> Scan<'b> {
    /// Applies the whole batches of a file.
    fn batches(
        &mut self,
        file: u32,
        pages: std::ops::Range<u32>,
        is_newest: bool,
        gap_allowed: bool,
    ) -> Result<()> {
        let end = pages.end;
        let mut whole = pages.start;
        let mut open: Vec<Member> = Vec::new();
        let mut may_jump = gap_allowed;
        self.for_each_page(file, pages, &mut |scan, page, bytes| {
            let Some((id, node, tail)) = member(bytes) else { return Ok(false) };
            let fits = match open.first() {
                None => tail.batch == scan.batch + 1 || (may_jump && tail.batch > scan.batch),
                Some(first) => (tail.batch, tail.size) == (first.tail.batch, first.tail.size),
            };
            if !fits || usize::from(tail.index) != open.len() || tail.index >= tail.size {
                return Ok(false);
            }
            let children = match node {
                Node::Inner(inner) if scan.children.is_some() => inner.children,
                _ => Vec::new(),
            };
            let complete = tail.index + 1 == tail.size;
            open.push(Member { id, place: Address { file, page }, tail, children });
            if complete {
                scan.apply(std::mem::take(&mut open));
                whole = page + 1;
                may_jump = false;
            }
            Ok(true)
        })?;
        if whole < end || is_newest {
            self.cut(file, whole..end, is_newest)?;
        }
        Ok(())
    }

    /// Cuts off what follows the last whole batch, if that can be a loss of power.
    fn cut(&mut self, file: u32, rest: std::ops::Range<u32>, is_newest: bool) -> Result<()> {
        let (name, missing) = (self.files.name(file), self.batch + 1);
        let damage = |known: String| {
            let expected = format!("batch {missing}, which {known}");
            Error::corrupt(
                &name,
                u64::from(rest.start),
                "batch of nodes, after that many pages",
                expected,
                "none",
            )
        };
        if !is_newest {
            return Err(damage("a later file says was durable".into()));
        }
        let mut witness = None;
        self.for_each_page(file, rest.clone(), &mut |_, _, bytes| {
            let tail = Tail::decode(bytes).filter(|tail| tail.durable >= missing);
            witness = witness.or(tail.map(|tail| tail.batch));
            Ok(true)
        })?;
        match witness {
            Some(batch) => Err(damage(format!("batch {batch} says was durable"))),
            None => self.files.truncate(file, rest.start),
        }
    }

    fn apply(&mut self, members: Vec<Member>) {
        for Member { id, place, tail, children } in members {
            (self.batch, self.digest) = (tail.batch, tail.digest);
            self.root = tail.root.or(self.root);
            self.table.set(id, place);
            for id in tail.freed {
                self.table.remove(id);
            }
            if let Some(all) = &mut self.children {
                all.insert(id, children);
            }
        }
    }

    /// As published: the last copy of a node counts.
    fn newest_copies(&mut self, file: u32, pages: u32) -> Result<()> {
        self.for_each_page(file, 0..pages, &mut |scan, page, bytes| {
            if let Some((id, _, tail)) = member(bytes) {
                scan.table.set(id, Address { file, page });
                scan.batch = scan.batch.max(tail.batch);
                scan.root = tail.root.or(scan.root);
            }
            Ok(true)
        })?;
        self.files.truncate(file, pages)
    }

    /// Shows pages in order, until `see` does not want more.
    fn for_each_page(&mut self, file: u32, pages: std::ops::Range<u32>, see: See<'_, 'b>) -> Result<()> {
        let mut first = pages.start;
        while first < pages.end {
            let count = WINDOW.min(pages.end - first);
            let run = self.files.read_run(Address { file, page: first }, count as usize)?;
            self.pages_read += u64::from(count);
            let page_len = run.len() / count as usize;
            for (page, bytes) in (first..).zip(run.chunks_exact(page_len)) {
                if !see(self, page, bytes)? {
                    return Ok(());
                }
            }
            first += count;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Recovered> {
        let Some(root) = self.root else {
            return Err(Error::corrupt(
                &self.files.name(1),
                0,
                "root of the tree",
                "one",
                "none: it was never finished",
            ));
        };
        if let Some(children) = self.children.filter(|_| self.rule == Rule::Batches) {
            let mut reached = HashSet::new();
            let mut next = vec![root.id];
            while let Some(id) = next.pop() {
                if reached.insert(id) {
                    next.extend(children.get(&id).into_iter().flatten().copied());
                }
            }
            self.table.retain(|id| reached.contains(&id));
        }
        if self.rule == Rule::Batches && self.table.digest() != self.digest {
            let what = format!("digest of the nodes after batch {}: some are missing or old", self.batch);
            let (expected, found) = (self.digest, self.table.digest());
            let file = self.files.newest().map_or(1, |(file, _)| file);
            return Err(Error::corrupt(&self.files.name(file), 0, what, expected, found));
        }
        let pages: HashMap<u32, u32> = self.files.list().collect();
        for (id, place) in self.table.iter() {
            if pages.get(&place.file).is_none_or(|pages| place.page >= *pages) {
                let name = self.files.name(place.file);
                return Err(Error::corrupt(
                    &name,
                    self.files.offset(place.page),
                    "page of a node",
                    id,
                    "none",
                ));
            }
        }
        self.table.find_free();
        let Self { table, batch, last_of, pages_read, .. } = self;
        Ok(Recovered { table, root, batch, last_of, pages_read })
    }
}
