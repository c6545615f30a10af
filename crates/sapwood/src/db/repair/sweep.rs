//! Makes trees of nodes that were found in the data file ([`super::scan`]), where no manifest tells which of them count.
//!
//! Leaves and log pieces are sorted runs of statements about keys: a leaf says for each key from its first to its last which value
//! it has, or that there is none; a log piece which keys were put and removed. The newest statement counts. Runs are merged in key
//! order, and the records become new leaves.
//!
//! Invariants:
//! 1. Keys of a keyspace come once, in order.
//! 2. Memory: an index of at most `room` bytes at a time (the file is read once more for each), and the nodes that overlap in one
//!    place.

use crate::db::repair::output::Output;
use crate::db::repair::scan::{Known, Newest, each_newest};
use crate::db::repair::tree_builder::TreeBuilder;
use crate::error::Result;
use crate::merging::{self, Stored};
use crate::operation::KeyspaceId;
use crate::source::{FileSource, Source, Window};
use crate::storage::compressed::StoredNode;
use crate::storage::entries::Entries;
use crate::storage::frames::Frames;
use crate::storage::node::{HEADER, Node, entry_len, stored_len};
use crate::version::Tree;
use std::cmp::Ordering;
use std::collections::{BTreeSet, BinaryHeap};
use std::sync::Arc;

/// A leaf is made when its records have so many bytes.
const LEAF_LEN: usize = 4000;

/// Where a run begins: its keyspace, first key, and place in the file.
type Start = (KeyspaceId, Vec<u8>, u64);

/// A run that is being read.
struct Run {
    node: Node,
    next: usize,
}

impl Run {
    fn key(&self) -> &[u8] {
        self.node.key(self.next)
    }

    fn keyspace(&self) -> KeyspaceId {
        self.node.name().keyspace
    }

    fn is_leaf(&self) -> bool {
        self.node.level() == 0
    }

    /// Newer statements first; of one version log pieces, which lie over leaves.
    fn age(&self) -> (u64, bool) {
        (self.node.name().epoch, !self.is_leaf())
    }

    /// The stored value; `None`: it was removed.
    fn statement(&self) -> Option<&[u8]> {
        if self.is_leaf() { Some(self.node.record(self.next).1) } else { self.node.logged_value(self.next) }
    }
}

/// The heap has the smallest key at the top, and of the same key the newest statement.
impl Ord for Run {
    fn cmp(&self, other: &Self) -> Ordering {
        other
            .keyspace()
            .cmp(&self.keyspace())
            .then_with(|| other.key().cmp(self.key()))
            .then_with(|| self.age().cmp(&other.age()))
    }
}

impl PartialOrd for Run {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Run {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Run {}

/// What a sweep needs.
pub(super) struct Sweep<'a, 'v> {
    pub source: &'a mut Window<FileSource<'v>>,
    pub known: &'a Known<'a>,
    pub newest: &'a Newest,
    pub frames: Arc<Frames>,
    /// Bytes of an index.
    pub room: usize,
    pub advance: &'a mut dyn FnMut(u64) -> Result<()>,
}

/// Nodes that could not be unpacked (count), by keyspace: their dictionary is lost.
pub(super) type Unpacked = std::collections::BTreeMap<KeyspaceId, u64>;

impl Sweep<'_, '_> {
    /// Makes the trees. `tree_of` tells what is known of a keyspace. Returns what was found of each.
    pub fn run(
        &mut self,
        out: &mut Output,
        tree_of: &dyn Fn(KeyspaceId) -> Tree,
    ) -> Result<(Vec<(KeyspaceId, Tree)>, Unpacked)> {
        let (mut trees, mut unpacked) = (Vec::new(), Unpacked::new());
        let mut making: Option<Making> = None;
        let mut runs: BinaryHeap<Run> = BinaryHeap::new();
        // Leaves whose keys are being passed, each up to its last key.
        let mut spans: Vec<Run> = Vec::new();
        let mut done: Option<Start> = None;
        loop {
            let (starts, is_last) = self.index(done.as_ref())?;
            for start in starts {
                // All statements before the next run's first key are known.
                while let Some(top) = runs.peek()
                    && (top.keyspace(), top.key()) < (start.0, &start.1)
                {
                    step(&mut runs, &mut spans, &mut making, (out, tree_of), &mut trees)?;
                }
                match self.open(start.2) {
                    Some(Ok(node)) => runs.push(Run { node, next: 0 }),
                    Some(Err(keyspace)) => *unpacked.entry(keyspace).or_default() += 1,
                    None => {}
                }
                done = Some(start);
            }
            if is_last {
                break;
            }
        }
        while !runs.is_empty() {
            step(&mut runs, &mut spans, &mut making, (out, tree_of), &mut trees)?;
        }
        trees.extend(making.map(|making| making.finish(out)).transpose()?);
        Ok((trees, unpacked))
    }

    /// The first runs behind `done`, as many as there is room for, and whether these are all.
    fn index(&mut self, done: Option<&Start>) -> Result<(BTreeSet<Start>, bool)> {
        let (mut starts, mut bytes, mut is_last) = (BTreeSet::new(), 0, true);
        let (room, frames) = (self.room, Arc::clone(&self.frames));
        let Known { version, encryption, .. } = self.known;
        let dictionaries = &version.segments.dictionaries;
        let len = |start: &Start| start.1.len() + 96;
        let mut take = |stored: StoredNode, at: u64| {
            if stored.name().is_inner() {
                return Ok(());
            }
            // One that cannot be unpacked comes first, with no key: it is only counted.
            let key = stored
                .open(encryption, &frames, dictionaries)
                .map_or(Vec::new(), |node| node.key(0).to_vec());
            let start = (stored.name().keyspace, key, at);
            if done.is_some_and(|done| start <= *done) {
                return Ok(());
            }
            bytes += len(&start);
            starts.insert(start);
            while bytes > room
                && starts.len() > 1
                && let Some(last) = starts.pop_last()
            {
                bytes -= len(&last);
                is_last = false;
            }
            Ok(())
        };
        each_newest(self.source, self.known, self.newest, &mut take)?;
        (self.advance)(crate::source::Source::len(&self.source.source))?;
        Ok((starts, is_last))
    }

    /// The run at this place; an error with its keyspace if it cannot be unpacked.
    fn open(&mut self, at: u64) -> Option<std::result::Result<Node, KeyspaceId>> {
        // Not by the window: the places are anywhere.
        let read = |len| {
            let mut bytes = vec![0; len];
            self.source.source.read_at(at, &mut bytes).ok()?;
            Some(bytes)
        };
        let len = stored_len(&read(HEADER)?)?;
        let stored = StoredNode::decode(read(len)?.into()).ok()?;
        let keyspace = stored.name().keyspace;
        let opened =
            stored.open(self.known.encryption, &self.frames, &self.known.version.segments.dictionaries);
        Some(opened.map_err(|_| keyspace))
    }
}

/// Takes all statements about the smallest key.
fn step(
    runs: &mut BinaryHeap<Run>,
    spans: &mut Vec<Run>,
    making: &mut Option<Making>,
    (out, tree_of): (&mut Output, &dyn Fn(KeyspaceId) -> Tree),
    trees: &mut Vec<(KeyspaceId, Tree)>,
) -> Result<()> {
    let Some(first) = runs.pop() else { return Ok(()) };
    let (keyspace, key, age) = (first.keyspace(), first.key().to_vec(), first.age());
    let stored = first.statement().map(<[u8]>::to_vec);
    let again = |run: Run, runs: &mut BinaryHeap<Run>, spans: &mut Vec<Run>| {
        if run.next + 1 < run.node.count() {
            if run.is_leaf() && run.next == 0 {
                spans.push(Run { node: run.node.clone(), next: run.node.count() - 1 });
            }
            runs.push(Run { next: run.next + 1, ..run });
        }
    };
    again(first, runs, spans);
    while runs.peek().is_some_and(|run| run.keyspace() == keyspace && run.key() == key) {
        if let Some(run) = runs.pop() {
            again(run, runs, spans);
        }
    }
    spans.retain(|span| span.keyspace() == keyspace && span.key() >= &key[..]);
    // A newer leaf that reaches over the key without having it says that there is none.
    let is_gone =
        spans.iter().any(|span| span.age() > age && span.node.key(0) < &key[..] && !has(&span.node, &key));
    if making.as_ref().is_some_and(|making| making.keyspace != keyspace)
        && let Some(making) = making.take()
    {
        trees.push(making.finish(out)?);
    }
    let making = making.get_or_insert_with(|| Making::new(keyspace, tree_of(keyspace)));
    match stored {
        Some(stored) if !is_gone => making.put(out, &key, &stored),
        _ => Ok(()),
    }
}

fn has(node: &Node, key: &[u8]) -> bool {
    node.search(key).is_ok()
}

/// A tree that is being made.
struct Making {
    keyspace: KeyspaceId,
    tree: Tree,
    entries: Entries,
    /// Leaves that were made: first keys and ids.
    builder: TreeBuilder,
}

impl Making {
    fn new(keyspace: KeyspaceId, tree: Tree) -> Self {
        let builder = TreeBuilder::new(keyspace, &tree, 0);
        let tree = Tree { root: None, height: 0, len: 0, bytes: 0, is_estimated: false, ..tree };
        Self { keyspace, tree, entries: Entries::default(), builder }
    }

    fn put(&mut self, out: &mut Output, key: &[u8], stored: &[u8]) -> Result<()> {
        let stored = match self.tree.merging.as_ref().map(|_| Stored::decode(stored)) {
            None => stored.into(),
            // The numbers of operations begin anew.
            Some(Some(Stored::Value { value, .. })) => std::borrow::Cow::Owned(merging::whole(value)),
            // What lies beneath operands may be another value than they were put over.
            _ => return Ok(()),
        };
        let len = self.entries.node_bytes(0, self.entries.len()) + entry_len(key.len(), stored.len());
        if len > LEAF_LEN && !self.entries.is_empty() {
            self.cut(out)?;
        }
        self.entries.push(key, &[&stored]);
        self.tree.len += 1;
        Ok(())
    }

    fn cut(&mut self, out: &mut Output) -> Result<()> {
        if self.entries.is_empty() {
            return Ok(());
        }
        let id = out.new_id();
        self.tree.bytes += out.make(id, 0, (self.keyspace, &self.tree), &self.entries)?;
        self.builder.push(out, self.entries.key(0), id)?;
        self.entries.clear();
        Ok(())
    }

    fn finish(mut self, out: &mut Output) -> Result<(KeyspaceId, Tree)> {
        self.cut(out)?;
        let built = self.builder.finish(out)?;
        let (root, height) = built.map_or((None, 0), |(root, height)| (Some(root), height));
        Ok((self.keyspace, Tree { root, height, ..self.tree }))
    }
}
