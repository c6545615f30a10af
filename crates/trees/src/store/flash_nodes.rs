//! Nodes by id on raw flash: a node's id stays, its page is another one each time it is written, and a table in memory says
//! which. What was written since the last commit is taken back by power loss as a whole.
//!
//! A commit is a page that is marked as the last of what it belongs to: a node's, written as the last of its group, or a
//! record of its own:
//! ```text
//! commit record: header of a page (kind 1, id = 0), no body; all is in its tag (`store/flash_tag.rs`): root, its level, digest
//! ```
//! Invariants:
//! 1. Of each node the newest page before the newest commit counts. The tag of a commit has a digest of ids and sequence
//!    numbers of all nodes, so that a node that is lost, or of which an old page is found, is noticed.
//! 2. Pages that the last commit speaks of and that are not needed any more are kept until the next one.
//! 3. After a recovery, no page is left that was written after the commit which was found: the blocks that have such pages are
//!    emptied and erased before anything else is written. A later commit would take them for its own.
//! 4. A page of operations counts if it names the commit that was found as the one that it follows; the newest does.

use crate::page::NodeId;
use crate::page::header::{HEADER, Header, Kind, open as open_page, seal};
use crate::page::log_node::LogNode;
use crate::page::node::Node;
use crate::store::Root;
use crate::store::flash_log::{FlashLog, Found, NewPage};
use crate::store::flash_tag::{Tag, TagKind};
use crate::store::mapping_table::mixed;
use crate::{Counters, Error, Result};
use flash::RawFlash;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

const LIVE: u16 = 1;

/// What is written for a node.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Body<'a> {
    Node(&'a Node),
    Log(&'a LogNode),
}

/// What was read of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    Node(Node),
    Log(LogNode),
}

#[derive(Clone, Copy, Debug)]
struct Place {
    page: u64,
    sequence: u64,
}

/// See the module.
pub(crate) struct FlashNodes {
    log: FlashLog,
    table: HashMap<NodeId, Place>,
    /// In order, so that blocks become free in the same order in every run.
    kept: BTreeSet<u64>,
    /// Pages with lower sequence numbers are of the last commit.
    committed: u64,
    commits: u64,
    root: Root,
    digest: u64,
    /// The digest that the last commit found by recovery has.
    expected: u64,
    record: Option<u64>,
    operations: Option<u64>,
    next_id: u64,
    free_ids: Vec<u64>,
    /// Between opening and [`Self::keep`]: pages that belong to no commit.
    stale: Vec<u64>,
}

impl FlashNodes {
    pub fn create(flash: Arc<RawFlash>, page_len: usize) -> Result<Self> {
        Ok(Self::over(FlashLog::create(flash, page_len)?))
    }

    fn over(log: FlashLog) -> Self {
        Self {
            log,
            table: HashMap::new(),
            kept: BTreeSet::new(),
            committed: 0,
            commits: 0,
            root: Root { id: NodeId(0), level: 0 },
            digest: 0,
            expected: 0,
            record: None,
            operations: None,
            next_id: 1,
            free_ids: Vec::new(),
            stale: Vec::new(),
        }
    }

    /// As of the last commit. Nodes can be read, also such that were freed; who is of the tree, [`Self::keep`] is to be told
    /// before anything is written.
    pub fn open(flash: Arc<RawFlash>, page_len: usize) -> Result<Self> {
        let (log, mut found) = FlashLog::open(flash, page_len)?;
        // The newest copy of a page comes last.
        found.sort_unstable_by_key(|found| found.tag.serial);
        let newest = found.iter().filter(|found| found.tag.last).max_by_key(|found| found.tag.sequence);
        let Some(Found { page, tag }) = newest.copied() else {
            return Err(Error::corrupt("flash", 0, "commit of a tree", "one", "none on all of the flash"));
        };
        let mut store = Self::over(log);
        store.root = Root { id: NodeId(tag.root), level: tag.root_level };
        (store.committed, store.expected) = (tag.sequence + 1, tag.digest);
        store.record = (tag.kind == TagKind::Commit).then_some(page);
        let mut operations: Option<Found> = None;
        for found in found {
            match found.tag.kind {
                TagKind::OperationLog => {
                    let newer = operations.is_none_or(|other| other.tag.sequence <= found.tag.sequence);
                    if found.tag.root == store.committed && newer {
                        operations = Some(found);
                    }
                }
                _ if found.tag.sequence >= store.committed => store.stale.push(found.page),
                TagKind::Commit => {}
                TagKind::Node => {
                    let place = Place { page: found.page, sequence: found.tag.sequence };
                    let known = store.table.entry(NodeId(found.tag.id)).or_insert(place);
                    if known.sequence <= place.sequence {
                        *known = place;
                    }
                }
            }
        }
        store.operations = operations.map(|found| found.page);
        Ok(store)
    }

    /// After opening: the tree has these nodes, and no others.
    pub fn keep(&mut self, nodes: &HashSet<NodeId>) -> Result<()> {
        self.table.retain(|id, _| nodes.contains(id));
        self.digest =
            self.table.iter().fold(0, |digest, (id, place)| digest ^ digest_of(*id, place.sequence));
        if self.digest != self.expected {
            let what = "digest of all nodes: some are missing or old";
            return Err(Error::corrupt("flash", 0, what, self.expected, self.digest));
        }
        let pages = self.table.values().map(|place| place.page);
        pages.chain(self.record).chain(self.operations).for_each(|page| self.log.mark(page, LIVE));
        self.log.settle();
        let stale: HashSet<u32> = self.stale.drain(..).map(|page| self.log.block(page)).collect();
        let mut stale: Vec<u32> = stale.into_iter().collect();
        stale.sort_unstable_by_key(|block| (self.log.live_in(*block).len(), *block));
        for block in stale {
            let pages = self.log.live_in(block);
            self.relocate(&pages)?;
            self.log.erase_dead(&[block])?;
        }
        let mut used: Vec<u64> = self.table.keys().map(|id| id.0).collect();
        used.sort_unstable();
        self.next_id = 1;
        for id in used {
            // As many as there are nodes will do, if an id is absurd.
            let room = (self.table.len() + 64).saturating_sub(self.free_ids.len());
            self.free_ids.extend((self.next_id..id).take(room));
            self.next_id = id.saturating_add(1);
        }
        self.free_ids.reverse();
        Ok(())
    }

    /// Where the tree began at the last commit.
    pub fn durable_root(&self) -> Root {
        self.root
    }

    /// Names the last commit, for pages of operations that follow it.
    pub fn version(&self) -> u64 {
        self.committed
    }

    /// All nodes that have a page.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> {
        self.table.keys().copied()
    }

    /// When a node was written: greater is later.
    pub fn written(&self, id: NodeId) -> Option<u64> {
        self.table.get(&id).map(|place| place.sequence)
    }

    fn place(&self, id: NodeId) -> Result<Place> {
        let place = self.table.get(&id).copied();
        place.ok_or_else(|| Error::corrupt("flash", 0, "page of a node", id, "none"))
    }

    pub fn read(&self, id: NodeId) -> Result<Stored> {
        let Place { page, sequence } = self.place(id)?;
        let bytes = self.log.read(page)?;
        let offset = self.log.offset(page);
        let (stored, header) = if bytes[4] == Kind::LogNode as u8 {
            let (log, header) = LogNode::decode(&bytes, offset, id)?;
            (Stored::Log(log), header)
        } else {
            let (node, header) = Node::decode(&bytes, "flash", offset, id)?;
            (Stored::Node(node), header)
        };
        if header.sequence != sequence {
            return Err(Error::corrupt(
                "flash",
                offset,
                "sequence number of a page",
                sequence,
                header.sequence,
            ));
        }
        Ok(stored)
    }

    /// A plain node.
    pub fn read_node(&self, id: NodeId) -> Result<Node> {
        match self.read(id)? {
            Stored::Node(node) => Ok(node),
            Stored::Log(log) => Err(Error::broken(format!("{id} is a log of {}, not a node", log.leaf))),
        }
    }

    /// Writes nodes, none twice; with a root, the last page commits everything.
    pub fn write(&mut self, bodies: &[(NodeId, Body<'_>)], commit: Option<Root>) -> Result<()> {
        self.write_and_free(bodies, &[], commit)
    }

    /// The same, and lets go of other nodes, which are gone with what is written. If the flash is full, nothing has changed.
    pub fn write_and_free(
        &mut self,
        bodies: &[(NodeId, Body<'_>)],
        freed: &[NodeId],
        commit: Option<Root>,
    ) -> Result<()> {
        if bodies.is_empty() && freed.is_empty() {
            return Ok(());
        }
        self.make_room(bodies.len())?;
        let Self { log, table, digest, .. } = self;
        let without =
            |digest: u64, id: &NodeId| digest ^ table.get(id).map_or(0, |old| digest_of(*id, old.sequence));
        let kept_digest = freed.iter().fold(*digest, without);
        let page_len = log.page_len();
        let old_places: Vec<Option<Place>> = bodies.iter().map(|(id, _)| table.get(id).copied()).collect();
        let mut first_sequence = 0;
        let mut new_digest = kept_digest;
        let pages = log.append(bodies.len(), &mut |_, first| {
            (first_sequence, new_digest) = (first, kept_digest);
            for (((id, _), old), sequence) in bodies.iter().zip(&old_places).zip(first..) {
                new_digest ^= digest_of(*id, sequence) ^ old.map_or(0, |old| digest_of(*id, old.sequence));
            }
            let page = |((id, body), sequence): (&(NodeId, Body<'_>), u64)| {
                let mut data = vec![0; page_len];
                match body {
                    Body::Node(node) => node.encode(*id, sequence, &mut data),
                    Body::Log(log) => log.encode(*id, sequence, &mut data),
                }
                let is_last = sequence + 1 == first + bodies.len() as u64;
                let tag = match commit.filter(|_| is_last) {
                    Some(root) => {
                        let (root, root_level, digest) = (root.id.0, root.level, new_digest);
                        Tag { last: true, root, root_level, digest, ..Tag::node(id.0) }
                    }
                    None => Tag::node(id.0),
                };
                NewPage { data, tag, live: LIVE }
            };
            bodies.iter().zip(first..).map(page).collect()
        })?;
        freed.iter().for_each(|id| self.free(*id));
        self.digest = new_digest;
        for (((id, _), page), sequence) in bodies.iter().zip(pages).zip(first_sequence..) {
            if let Some(old) = self.table.insert(*id, Place { page, sequence }) {
                self.leave(old);
            }
        }
        if let Some(root) = commit {
            self.committed_at(first_sequence + bodies.len() as u64, root, None);
        }
        Ok(())
    }

    /// A page is not needed any more, but perhaps by the last commit.
    fn leave(&mut self, old: Place) {
        if old.sequence < self.committed {
            self.kept.insert(old.page);
        } else {
            self.log.kill(old.page, LIVE);
        }
    }

    fn committed_at(&mut self, committed: u64, root: Root, record: Option<u64>) {
        (self.committed, self.root) = (committed, root);
        self.commits += 1;
        let before = [std::mem::replace(&mut self.record, record), self.operations.take()];
        std::mem::take(&mut self.kept)
            .into_iter()
            .chain(before.into_iter().flatten())
            .for_each(|page| self.log.kill(page, LIVE));
    }

    /// Commits what was written, with a page of its own.
    pub fn commit(&mut self, root: Root) -> Result<()> {
        self.make_room(1)?;
        let (digest, page_len) = (self.digest, self.log.page_len());
        let mut at = 0;
        let pages = self.log.append(1, &mut |_, sequence| {
            at = sequence;
            let mut data = vec![0; page_len];
            let header =
                Header { kind: Kind::Superblock, level: 0, count: 0, id: NodeId(0), sequence, extra: 0 };
            seal(&mut data, &header);
            let (root, root_level) = (root.id.0, root.level);
            let tag = Tag { kind: TagKind::Commit, last: true, root, root_level, digest, ..Tag::node(0) };
            vec![NewPage { data, tag, live: LIVE }]
        })?;
        self.committed_at(at + 1, root, pages.first().copied());
        Ok(())
    }

    /// Writes a page of operations that follow the last commit, in the place of the one before.
    pub fn write_operations(&mut self, bytes: &[u8]) -> Result<()> {
        self.make_room(1)?;
        let committed = self.committed;
        let pages = self.log.append(1, &mut |_, _| {
            let tag = Tag { kind: TagKind::OperationLog, root: committed, ..Tag::node(0) };
            vec![NewPage { data: bytes.to_vec(), tag, live: LIVE }]
        })?;
        if let Some(before) = std::mem::replace(&mut self.operations, pages.first().copied()) {
            self.log.kill(before, LIVE);
        }
        Ok(())
    }

    /// The page of operations that follow the last commit, and where it was.
    pub fn read_operations(&self) -> Result<Option<(Vec<u8>, u64)>> {
        self.operations.map(|page| Ok((self.log.read(page)?, self.log.offset(page)))).transpose()
    }

    pub fn allocate(&mut self) -> NodeId {
        NodeId(self.free_ids.pop().unwrap_or_else(|| {
            self.next_id += 1;
            self.next_id - 1
        }))
    }

    pub fn free(&mut self, id: NodeId) {
        if let Some(old) = self.table.remove(&id) {
            self.digest ^= digest_of(id, old.sequence);
            self.leave(old);
        }
        self.free_ids.push(id.0);
    }

    /// Whether so many pages can be written for sure, whatever of them replaces others.
    pub fn has_room(&self, pages: usize) -> bool {
        self.log.room_at_most() >= self.log.reserve(pages)
    }

    /// Empties blocks until so many pages can be written.
    fn make_room(&mut self, pages: usize) -> Result<()> {
        let mut left = 4 * self.log.memory();
        while self.log.room() < self.log.reserve(pages) {
            let victim = self.log.victim()?;
            left = left.checked_sub(1).ok_or_else(|| self.log.full(pages))?;
            self.relocate(&victim)?;
        }
        Ok(())
    }

    /// Copies pages as they are.
    fn relocate(&mut self, pages: &[u64]) -> Result<()> {
        let mut copies = Vec::with_capacity(pages.len());
        for page in pages {
            let (data, tag) = self.log.read_tagged(*page)?;
            // A page of operations has a checksum of its own, which recovery looks at.
            if tag.kind != TagKind::OperationLog {
                open_page(&data, "flash", self.log.offset(*page), NodeId(tag.id))?;
            }
            copies.push((data, tag, LIVE));
        }
        let new = self.log.append_copies(&copies)?;
        for (((_, tag, _), old), new) in copies.iter().zip(pages).zip(new) {
            let of_table = self.table.get_mut(&NodeId(tag.id)).filter(|place| place.page == *old);
            if let Some(place) = of_table.filter(|_| tag.kind == TagKind::Node) {
                place.page = new;
            } else if self.kept.remove(old) {
                self.kept.insert(new);
            } else if let Some(page) =
                [&mut self.record, &mut self.operations].into_iter().flatten().find(|page| **page == *old)
            {
                *page = new;
            } else {
                return Err(Error::broken(format!("page {old} lives, and nobody knows it")));
            }
            self.log.kill(*old, LIVE);
        }
        Ok(())
    }

    /// Verifies that every page that lives is known once.
    pub fn check(&self) -> Result<()> {
        self.log.check()?;
        let mut seen = HashSet::new();
        let pages = self.table.values().map(|place| place.page).chain(self.kept.iter().copied());
        for page in pages.chain(self.record).chain(self.operations) {
            if !seen.insert(page) || self.log.parts(page) == 0 {
                return Err(Error::broken(format!("page {page} is known twice, or does not live")));
            }
        }
        let live = self.log.live_pages();
        if live != seen.len() as u64 {
            return Err(Error::broken(format!("{live} pages live, {} are known", seen.len())));
        }
        Ok(())
    }

    pub fn log(&self) -> &FlashLog {
        &self.log
    }

    pub fn counters(&self) -> Counters {
        let counts = self.log.counts();
        let words = 3 * self.table.len() + self.kept.len() + self.free_ids.len();
        Counters {
            pages_read: counts.reads,
            pages_written: counts.programs,
            memory: self.log.memory() + 8 * words as u64,
            space: self.log.space(),
            ..Counters::default()
        }
    }
}

fn digest_of(id: NodeId, sequence: u64) -> u64 {
    mixed(id.0, sequence)
}

const _: () = assert!(HEADER <= 128, "the smallest page has room for a commit record");
