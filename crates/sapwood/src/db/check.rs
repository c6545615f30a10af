//! Check: reads the whole database from the device, bypassing the cache, and verifies it: bytes against
//! checksums, nodes against their place in the tree, trees against the mapping table, and segments against
//! their counts. Tests, the command-line program and users run the same check.
//!
//! The check works on one version, so it can run while other threads write.

use crate::cache::pager::{FILE, ReadMode};
use crate::db::engine::Engine;
use crate::db::replay::check_record;
use crate::error::{Error, Findings, Result};
use crate::operation::KeyspaceId;
use crate::storage::compressed::fill;
use crate::storage::node::{Node, NodeId, PIECE};
use crate::version::current::Current;
use crate::version::manifest::{self, Manifest};
use crate::version::{Tree, Version};
use crate::wal::{Generations, LogFiles, Record};
use bytes::Bytes;
use serde::Serialize;
use std::collections::HashMap;
use std::sync::Arc;

/// What a check read and found to be sound.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # let ships = db.keyspace("ships")?;
/// ships.insert("fram", "1892")?;
/// db.flush()?;
/// let checked = db.check()?;
/// assert_eq!((checked.records, checked.leaves), (1, 1));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Checked {
    /// Keyspaces (count).
    pub keyspaces: u64,
    /// Records in the leaves (count).
    pub records: u64,
    /// Log pieces of blocks (count).
    pub log_pieces: u64,
    /// Changes in the log pieces that are not yet in the leaves (count).
    pub logged_changes: u64,
    /// Leaves (count).
    pub leaves: u64,
    /// Inner nodes (count).
    pub inner_nodes: u64,
    /// Bytes of nodes read, log pieces included.
    pub bytes: u64,
    /// Average fill of the leaves, in percent of the target leaf size: stored, or in memory if they compress so well that this is what
    /// limits them. Can exceed 100 when values are large.
    pub leaf_fill_percent: f64,
    /// Records of the log's files that are still needed (count). Each is a commit, or several.
    pub log_records: u64,
    /// Changes in them that are not yet in the trees (count).
    pub log_changes: u64,
}

impl std::fmt::Display for Checked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "sound: {} records of {} keyspace(s) in {} leaves ({:.1} % full) and {} inner nodes, {} changes in {} log pieces, {:.1} MiB; {} log records with {} changes that are not in the trees yet",
            self.records,
            self.keyspaces,
            self.leaves,
            self.leaf_fill_percent,
            self.inner_nodes,
            self.logged_changes,
            self.log_pieces,
            self.bytes as f64 / (1 << 20) as f64,
            self.log_records,
            self.log_changes
        )
    }
}

/// At most this many places of damage (count) are listed of each part of the database: those of a file of zeros would fill the memory, and
/// those of one part are no reason to say nothing of the others.
pub(in crate::db) const DAMAGE_MAX: usize = 1000;

struct Check<'a> {
    engine: &'a Engine,
    version: &'a Version,
    /// With so much more room with each part that is checked.
    found: Findings,
    seen: Vec<u64>,
    live: HashMap<u64, u64>,
    /// Log areas found.
    areas: u64,
    /// Bytes of the leaves found.
    leaf_bytes: u64,
    checked: Checked,
}

impl Engine {
    /// Checks the database; with its manifest and log if it `has_files` for itself.
    pub fn check(&self, has_files: bool) -> Result<Checked> {
        if self.is_closed() {
            return Err(Error::Closed);
        }
        let (state, _) = self.state.view();
        let version = Arc::clone(&state.version);
        let mut check = Check {
            engine: self,
            version: &version,
            found: Findings::new(DAMAGE_MAX),
            seen: Vec::new(),
            live: HashMap::new(),
            areas: 0,
            leaf_bytes: 0,
            checked: Checked {
                keyspaces: version.trees.len() as u64,
                records: 0,
                log_pieces: 0,
                logged_changes: 0,
                leaves: 0,
                inner_nodes: 0,
                bytes: 0,
                leaf_fill_percent: 0.0,
                log_records: 0,
                log_changes: 0,
            },
        };
        check.trees();
        check.mapping_table();
        check.segments();
        if has_files {
            for part in [Check::keys, Check::manifest, Check::log] {
                check.found.make_room(DAMAGE_MAX);
                if !check.found.is_over()
                    && let Err(error) = part(&mut check)
                {
                    check.found.note(error);
                }
            }
        }
        let Check { found, mut checked, .. } = check;
        found.into_result()?;
        if checked.leaves > 0 {
            checked.leaf_fill_percent /= checked.leaves as f64;
        }
        Ok(checked)
    }
}

impl Check<'_> {
    fn wrong(&mut self, what: String, expected: impl ToString, found: impl ToString) {
        self.found.note(Error::corrupt(FILE, 0, what, expected, found));
    }

    fn trees(&mut self) {
        let version = self.version;
        let most = self.engine.pager.pio_max();
        // Those of one leaf are read together: there may be a hundred thousand.
        let mut small = Vec::new();
        for (keyspace, tree) in version.trees.iter().chain(version.dropped.iter()) {
            match tree.root {
                Some(root) if tree.height == 0 => small.push((keyspace, tree, root)),
                Some(root) => {
                    let node = self.read(&[root], true).into_iter().flatten().next();
                    self.tree(keyspace, tree, node);
                }
                None => self.tree(keyspace, tree, None),
            }
            if small.len() == most {
                self.small_trees(&small);
                small.clear();
            }
        }
        self.small_trees(&small);
    }

    /// Trees of one leaf.
    fn small_trees(&mut self, mut trees: &[(KeyspaceId, &Tree, NodeId)]) {
        while !trees.is_empty() {
            let len = |id| self.version.table.address(id).map_or(0, |at| at.len() as usize);
            let (group, later) =
                trees.split_at(self.engine.pager.reader.fits(trees.iter().map(|it| len(it.2))));
            trees = later;
            let roots: Vec<_> = group.iter().map(|(_, _, root)| *root).collect();
            let nodes = self.read(&roots, false);
            for ((keyspace, tree, _), node) in group.iter().zip(nodes) {
                self.tree(*keyspace, tree, node);
            }
        }
    }

    /// `root`: its root, if it has one that can be read.
    fn tree(&mut self, keyspace: KeyspaceId, tree: &Tree, root: Option<Node>) {
        const RECORDS: &str = "number of records";
        if tree.root.is_some() && root.is_none() {
            return;
        }
        let before = (self.checked.records, self.leaf_bytes, self.found.count());
        if let Some(root) = root {
            self.subtree(keyspace, tree.height, root, (None, None));
        }
        let totals = [
            (RECORDS, tree.len, self.checked.records - before.0),
            ("bytes of the leaves", tree.bytes, self.leaf_bytes - before.1),
        ];
        let is_whole = self.found.count() == before.2;
        for (what, expected, found) in totals {
            let is_exact = what != RECORDS || !tree.is_estimated;
            if found != expected && is_exact && is_whole {
                self.wrong(format!("{what} in keyspace {:?}", tree.name), expected, found);
            }
        }
    }

    /// Reads nodes from the device, in this order. Returns `None` for each damaged node, for each that cannot be read, and for each that
    /// the mapping table does not have. `has_more`: there are nodes below them, which are not found then.
    fn read(&mut self, ids: &[NodeId], has_more: bool) -> Vec<Option<Node>> {
        if self.found.is_over() {
            return Vec::new();
        }
        let (mut wanted, mut places) = (Vec::with_capacity(ids.len()), Vec::with_capacity(ids.len()));
        for (place, id) in ids.iter().enumerate() {
            match self.version.table.address(*id) {
                Some(address) => {
                    wanted.push((*id, address));
                    places.push(place);
                }
                None => self.wrong(
                    above(format!("the mapping table has no {id}"), has_more),
                    "an address",
                    "none",
                ),
            }
        }
        let (pager, segments) = (&self.engine.pager, &self.version.segments);
        let mut nodes = vec![None; ids.len()];
        if let Ok(all) = pager.fetch(segments, &wanted, ReadMode::Verify) {
            places.into_iter().zip(all).for_each(|(place, node)| nodes[place] = Some(node));
            return nodes;
        }
        // At least one node is damaged: read them one by one to find out which.
        for (place, one) in places.into_iter().zip(&wanted) {
            if self.found.is_over() {
                break;
            }
            match pager.fetch(segments, std::slice::from_ref(one), ReadMode::Verify) {
                Ok(mut node) => nodes[place] = node.pop(),
                Err(error) => {
                    self.found.note(if has_more { hiding_more(error) } else { error });
                    self.mark(one.0);
                }
            }
        }
        nodes
    }

    /// Records that a tree refers to this node. Returns whether this is the first reference.
    fn mark(&mut self, id: NodeId) -> bool {
        let (word, bit) = (id.0 as usize / 64, 1u64 << (id.0 % 64));
        if self.seen.len() <= word {
            self.seen.resize(word + 1, 0);
        }
        let first = self.seen[word] & bit == 0;
        self.seen[word] |= bit;
        if first && let Some(address) = self.version.table.address(id) {
            *self.live.entry(address.position.0 / self.version.span).or_default() += u64::from(address.len());
        }
        first
    }

    /// Checks a node, whose keys must lie in `low..high`, and its whole subtree.
    fn subtree(
        &mut self,
        keyspace: KeyspaceId,
        level: u8,
        node: Node,
        (low, high): (Option<Bytes>, Option<Bytes>),
    ) {
        let name = node.name();
        if !self.mark(name.id) {
            self.wrong(format!("{} hangs in the trees", name.id), "once", "twice");
            return;
        }
        self.checked.bytes += node.stored_len() as u64;
        if name.level != level || name.keyspace != keyspace {
            let expected = format!("level {level}, keyspace {}", keyspace.0);
            self.wrong(
                above(format!("place of {}", name.id), level > 0),
                expected,
                format!("level {}, keyspace {}", name.level, name.keyspace.0),
            );
            return;
        }
        let first = usize::from(level > 0);
        let below = low.as_ref().is_some_and(|low| node.count() > first && node.key(first) < &low[..]);
        let above = high.as_ref().is_some_and(|high| node.key(node.count() - 1) >= &high[..]);
        if below || above {
            self.wrong(
                format!("keys of {}", name.id),
                "keys within the parent's separators",
                "keys outside of them",
            );
        }
        if level == 0 {
            self.checked.leaves += 1;
            self.checked.records += node.count() as u64;
            self.leaf_bytes += node.stored_len() as u64;
            let leaf_len = self.engine.shares.node_len.leaf;
            self.checked.leaf_fill_percent += 100.0 * fill(node.bytes().len(), node.stored_len(), leaf_len);
            return;
        }
        self.checked.inner_nodes += 1;
        if level == 1 {
            self.log_area(keyspace, name.id, (low.as_ref(), high.as_ref()));
        }
        let mut next = 0;
        while next < node.count() {
            let children = next..next + self.group(&node, next);
            next = children.end;
            let ids: Vec<_> = children.clone().map(|index| node.child(index)).collect();
            let nodes = self.read(&ids, level > 1);
            for (index, child) in children.zip(nodes) {
                let fence = |index: usize| (index < node.count()).then(|| node.key_bytes(index));
                let child_low = if index == 0 { low.clone() } else { fence(index) };
                let child_high = fence(index + 1).or_else(|| high.clone());
                if let Some(child) = child {
                    if node.is_lone(index) && (child.count() != 1 || child.key(0) != node.key(index)) {
                        let what = format!("what {} says of {}", node.name().id, child.name().id);
                        self.wrong(what, "one record, with the key of the separator", "others");
                    }
                    self.subtree(keyspace, level - 1, child, (child_low, child_high));
                }
            }
        }
    }

    /// How many children of a node, from this one on, are read together: as many as may be in memory.
    fn group(&self, node: &Node, from: usize) -> usize {
        let most = (node.count() - from).min(self.engine.pager.pio_max());
        let len = |index| self.version.table.address(node.child(index)).map_or(0, |at| at.len() as usize);
        self.engine.pager.reader.fits((from..from + most).map(len))
    }

    /// Checks the log pieces of a block, whose keys must lie in `low..high`.
    fn log_area(
        &mut self,
        keyspace: KeyspaceId,
        block: NodeId,
        (low, high): (Option<&Bytes>, Option<&Bytes>),
    ) {
        let version = self.version;
        let Some(area) = version.logs.get(block) else { return };
        let ids: Vec<_> = area.pieces().collect();
        let pieces = self.read(&ids, false);
        self.areas += 1;
        let pieces: Vec<_> = pieces.into_iter().flatten().collect();
        if pieces.len() == ids.len() {
            let what = || format!("what the manifest says about the keys in the log area of {block}");
            if !area.agrees_with(&pieces) {
                self.wrong(what(), "their hashes", "others");
            }
            let mut rest = &pieces[..];
            let holds = area.runs().all(|run| {
                let (of_run, others) = rest.split_at(run.pieces.len());
                rest = others;
                run.holds(of_run)
            });
            if !holds {
                self.wrong(what(), "keys of log pieces between their fences", "keys outside of them");
            }
        }
        for piece in pieces {
            let name = piece.name();
            if !self.mark(name.id) {
                self.wrong(format!("log piece {} belongs to the trees", name.id), "once", "twice");
            }
            self.checked.bytes += piece.stored_len() as u64;
            self.checked.log_pieces += 1;
            self.checked.logged_changes += piece.count() as u64;
            if name.level != PIECE || name.keyspace != keyspace {
                self.wrong(
                    format!("{} in the log area of {block}", name.id),
                    format!("a log piece of keyspace {}", keyspace.0),
                    format!("level {}, keyspace {}", name.level, name.keyspace.0),
                );
            }
            let below = low.is_some_and(|low| piece.key(0) < &low[..]);
            let above = high.is_some_and(|high| piece.key(piece.count() - 1) >= &high[..]);
            if below || above {
                let what = format!("keys of {} in the log area of {block}", name.id);
                self.wrong(what, "keys within the block's separators", "keys outside of them");
            }
        }
    }

    /// Checks that every address in the mapping table belongs to a node of a tree. Skipped after damage, which
    /// may hide nodes.
    fn mapping_table(&mut self) {
        if self.found.count() > 0 {
            return;
        }
        let version = self.version;
        let lost = version.table.iter().filter(|(id, _)| {
            let word = self.seen.get(id.0 as usize / 64).copied().unwrap_or(0);
            word & (1 << (id.0 % 64)) == 0
        });
        let lost = lost.count();
        if lost > 0 {
            self.wrong("nodes that no tree needs".into(), 0, lost);
        }
        let (areas, found) = (version.logs.totals().areas, self.areas);
        if areas != found {
            self.wrong("log areas of blocks in the trees".into(), areas, found);
        }
    }

    fn segments(&mut self) {
        if self.found.count() > 0 {
            return;
        }
        let version = self.version;
        for entry in version.segments.iter() {
            let live = self.live.get(&entry.segment.number).copied().unwrap_or(0);
            if live != entry.live {
                self.wrong(format!("live bytes of segment {}", entry.segment.number), entry.live, live);
            }
        }
    }

    /// Checks that the manifest on disk replays to the engine's current version, which is at least as new as
    /// the one checked.
    fn manifest(&mut self) -> Result<()> {
        let engine = self.engine;
        let volume = &*engine.volume;
        let read = {
            let read = |manifest: Option<&Manifest>| {
                let on_disk = Current::read(volume);
                // No other process writes to a database that is open read-only.
                let content = manifest.map(|manifest| manifest.content(volume)).unwrap_or_else(|| {
                    let current = on_disk.clone()?;
                    Ok((current, manifest::source_direct(volume, &current)?))
                });
                on_disk.and(content).map(|content| (content, engine.state.load().version.epoch))
            };
            engine.publisher.with_manifest(read)
        };
        let ((current, source), epoch) = read?;
        // Read without the lock, since flushes wait for that.
        let data_len = volume.len(engine.data)?;
        let replayed =
            manifest::decode(source, (&current, &self.engine.encryption), data_len, &Arc::default())?;
        if replayed.version.epoch != epoch {
            self.wrong("epoch that the manifest leads to".into(), epoch, replayed.version.epoch);
        }
        Ok(())
    }

    /// Checks the data keys, as far as that needs no key of the user's: nothing else reads the file before the next opening.
    fn keys(&mut self) -> Result<()> {
        let (volume, encryption) = (&*self.engine.volume, &self.engine.encryption);
        // Of `CURRENT` the manifest's check tells.
        let Ok(current) = Current::read(volume) else { return Ok(()) };
        encryption.sound_content(volume, current.database).map(drop)
    }

    fn log(&mut self) -> Result<()> {
        let engine = self.engine;
        let kept = engine.commits.keep_log();
        // After `kept`, so that it has the keyspaces of all that is kept.
        let version = engine.state.version();
        let (mut records, mut changes) = (0, 0);
        let mut each = |record: &Record| {
            records += 1;
            let last = record.first_seq + u64::from(record.count) - 1;
            changes += last.saturating_sub(version.flushed_seq.max(record.first_seq - 1));
            check_record(&version, record)
        };
        // Read without the lock, since commits wait for that.
        let verified = match &kept {
            Some(kept) => kept.log.verify(&mut each),
            // Open read-only: no process writes to the log, which is read as it is for opening.
            None => Current::read(&*engine.volume).and_then(|current| {
                let generations = Generations { low: version.wal_low, high: version.wal_high };
                let files = LogFiles::new(&*engine.volume, current.database).direct();
                files.replay(&engine.encryption, generations, &mut |record| each(&record)).map(drop)
            }),
        };
        (self.checked.log_records, self.checked.log_changes) = (records, changes);
        verified
    }
}

/// What a check found, and what one of large values finds besides, whatever else is damaged or cannot be read.
pub(in crate::db) fn joined(
    engine: &Engine,
    found: Result<Checked>,
    large: impl FnOnce() -> Result<()>,
) -> Result<Checked> {
    let mut both = Findings::new(usize::MAX);
    let large = if found.as_ref().is_err_and(Error::ends_reading) { Ok(()) } else { large() };
    // What was read of files after that may be another process's.
    if engine.is_closed() {
        return Err(Error::Closed);
    }
    let errors = [found.as_ref().err(), large.as_ref().err()];
    errors.into_iter().flatten().for_each(|error| both.note(error.clone()));
    both.into_result().and(found)
}

/// What is wrong, of an inner node if there are nodes below it.
fn above(what: String, has_more: bool) -> String {
    if has_more { format!("{what}, in an inner node, so that nothing below it was checked") } else { what }
}

/// The error of an inner node, which says that there may be more.
fn hiding_more(error: Error) -> Error {
    match error {
        Error::Corrupt { file, offset, what, expected, found } => {
            Error::Corrupt { file, offset, what: above(what, true), expected, found }
        }
        Error::Io(error) => match &*error {
            psync::Error::Io { operation, file, offset, source } => {
                let source = std::io::Error::new(source.kind(), above(source.to_string(), true));
                let (operation, file, offset) = (*operation, file.clone(), *offset);
                Error::Io(Arc::new(psync::Error::Io { operation, file, offset, source }))
            }
            _ => Error::Io(error),
        },
        other => other,
    }
}

#[cfg(test)]
mod tests;
