//! Nodes that the mapping table has and that nothing leads to, because an inner node is damaged: what was below that.
//!
//! Every address of a version belongs to a node of a tree. So what the readable inner nodes do not lead to was below a damaged
//! one, and its keys tell where. If all such nodes can be read, nothing is lost with the inner node.
//!
//! Invariants:
//! 1. A node is a head if no readable inner node leads to it; the nodes below it come with it.
//! 2. Memory: a bit for each node of the version, and the heads: few, unless much is damaged.

use crate::db::repair::old_nodes::{Found, OldNodes};
use crate::db::repair::trees::Bounds;
use crate::error::Result;
use crate::operation::KeyspaceId;
use crate::storage::node::{NodeId, PIECE};
use crate::version::Tree;
use std::collections::{BTreeMap, BTreeSet};

/// A node that nothing leads to, or a log area whose block cannot be read.
#[derive(Clone, Debug)]
pub(super) struct Head {
    /// The smallest key that is known of it, ...
    pub low: Vec<u8>,
    /// ... and the greatest.
    pub last: Vec<u8>,
    /// The node, or the block of the log area.
    pub id: NodeId,
    /// That of the node; `PIECE`: a log area.
    pub level: u8,
    /// Whether it is a log area of which a piece cannot be read.
    pub lacks_piece: bool,
}

/// A bit for each id.
#[derive(Default)]
struct Ids(Vec<u64>);

impl Ids {
    /// Returns whether it is new.
    fn insert(&mut self, id: NodeId) -> bool {
        let (word, bit) = (id.0 as usize / 64, 1u64 << (id.0 % 64));
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        let is_new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        is_new
    }

    fn contains(&self, id: NodeId) -> bool {
        self.0.get(id.0 as usize / 64).is_some_and(|word| word & (1 << (id.0 % 64)) != 0)
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Orphans {
    heads: BTreeMap<KeyspaceId, Vec<Head>>,
    /// Nodes that nothing leads to and that cannot be read (count).
    pub unreadable: u64,
    /// Blocks that cannot be read, with log areas of which no piece can: those that something leads to ...
    lost_areas: BTreeSet<NodeId>,
    /// ... and others (count).
    unplaced_areas: u64,
}

impl Orphans {
    /// Finds them, if an inner node of these trees is damaged.
    pub fn find<'t>(old: &OldNodes<'_>, trees: impl Iterator<Item = (KeyspaceId, &'t Tree)>) -> Result<Self> {
        let mut seen = Ids::default();
        let mut is_whole = true;
        for (keyspace, tree) in trees {
            let Some(root) = tree.root else { continue };
            seen.insert(root);
            let mut level = tree.height;
            let mut nodes = vec![root];
            // One level after the other, with those of the one above in memory.
            while level > 0 {
                let mut children = Vec::new();
                is_whole &= each(old, &nodes, Some(keyspace), &mut |_, found| {
                    let Some(found) = found.filter(|found| found.node.name().level == level) else {
                        return false;
                    };
                    for index in 0..found.node.count() {
                        let child = found.node.child(index);
                        if seen.insert(child) && level > 1 {
                            children.push(child);
                        }
                    }
                    true
                });
                (nodes, level) = (children, level - 1);
            }
        }
        if is_whole {
            return Ok(Self::default());
        }
        old.version.logs.iter().flat_map(|(_, area)| area.pieces()).for_each(|piece| _ = seen.insert(piece));
        Ok(Self::beside(old, &mut seen))
    }

    fn beside(old: &OldNodes<'_>, seen: &mut Ids) -> Self {
        let ids: Vec<_> =
            old.version.table.iter().map(|(id, _)| id).filter(|id| !seen.contains(*id)).collect();
        let (mut below, mut unreadable, mut lost_blocks) = (Ids::default(), Vec::new(), Vec::new());
        each(old, &ids, None, &mut |id, found| {
            match found {
                None => unreadable.push(id),
                Some(found) if found.node.name().is_inner() => {
                    (0..found.node.count()).for_each(|index| _ = below.insert(found.node.child(index)));
                }
                Some(_) => {}
            }
            true
        });
        let unreadable = unreadable.iter().filter(|id| !below.contains(**id)).count() as u64;
        let mut orphans = Self { unreadable, ..Self::default() };
        let heads: Vec<_> = ids.into_iter().filter(|id| !below.contains(*id)).collect();
        each(old, &heads, None, &mut |id, found| {
            let Some(found) = found else { return true };
            let (keyspace, level) = (found.node.name().keyspace, found.node.name().level);
            let mut ends = Ends::default();
            ends.of_node(old, found, true, true);
            match (ends.low, ends.last) {
                (Some(low), Some(last)) if level != PIECE => {
                    orphans.heads.entry(keyspace).or_default().push(Head {
                        low,
                        last,
                        id,
                        level,
                        lacks_piece: false,
                    });
                }
                // Nothing below it can be read.
                _ => orphans.unreadable += 1,
            }
            true
        });
        // Log areas of blocks that cannot be read.
        let blocks: Vec<_> = old.version.logs.iter().map(|(block, _)| block).collect();
        each(old, &blocks, None, &mut |block, found| {
            if found.is_none() {
                lost_blocks.push(block);
            }
            true
        });
        for block in lost_blocks {
            let Some(area) = old.version.logs.get(block) else { continue };
            let (mut ends, mut keyspace) = (Ends::default(), None);
            let pieces: Vec<_> = area.pieces().collect();
            let is_whole = each(old, &pieces, None, &mut |_, found| {
                let Some(found) = found else { return false };
                keyspace = Some(found.node.name().keyspace);
                ends.keys(found);
                true
            });
            if let (Some(low), Some(last), Some(keyspace)) = (ends.low, ends.last, keyspace) {
                let head = Head { low, last, id: block, level: PIECE, lacks_piece: !is_whole };
                orphans.heads.entry(keyspace).or_default().push(head);
            } else if seen.contains(block) || below.contains(block) {
                orphans.lost_areas.insert(block);
            } else {
                orphans.unplaced_areas += 1;
            }
        }
        orphans.heads.values_mut().for_each(|heads| {
            heads.sort_by(|a, b| (&a.low, b.level).cmp(&(&b.low, a.level)));
        });
        orphans
    }

    /// Whether changes are lost below this damaged node of a level, with a log area of which nothing is left.
    pub fn lack_area(&self, level: u8, id: NodeId) -> bool {
        if level == 1 { self.lost_areas.contains(&id) } else { self.unplaced_areas > 0 }
    }

    /// Takes those of a keyspace that begin within these bounds, in key order.
    pub fn take(&mut self, keyspace: KeyspaceId, (low, high): Bounds<'_>) -> Vec<Head> {
        let Some(heads) = self.heads.get_mut(&keyspace) else { return Vec::new() };
        let from = heads.partition_point(|head| &*head.low < low);
        let to = heads.partition_point(|head| high.is_none_or(|high| &*head.low < high));
        heads.drain(from..to.max(from)).collect()
    }
}

/// Reads nodes by groups. Returns whether `take` always returned true.
fn each(
    old: &OldNodes<'_>,
    ids: &[NodeId],
    keyspace: Option<KeyspaceId>,
    take: &mut dyn FnMut(NodeId, Option<&Found>) -> bool,
) -> bool {
    let (mut next, mut all) = (0, true);
    while next < ids.len() {
        let group = old.group(ids, next);
        next = group.end;
        for (id, found) in ids[group.clone()].iter().zip(old.read(&ids[group], keyspace)) {
            all &= take(*id, found.as_ref().ok());
        }
    }
    all
}

/// The first and the last key that are known of a subtree.
#[derive(Default)]
struct Ends {
    low: Option<Vec<u8>>,
    last: Option<Vec<u8>>,
}

impl Ends {
    fn key(&mut self, key: &[u8]) {
        if self.low.as_deref().is_none_or(|low| key < low) {
            self.low = Some(key.to_vec());
        }
        if self.last.as_deref().is_none_or(|last| key > last) {
            self.last = Some(key.to_vec());
        }
    }

    /// The keys of a leaf or a log piece.
    fn keys(&mut self, found: &Found) {
        self.key(found.node.key(0));
        self.key(found.node.key(found.node.count() - 1));
    }

    /// Goes down the left and the right side.
    fn of_node(&mut self, old: &OldNodes<'_>, found: &Found, is_left: bool, is_right: bool) {
        let node = &found.node;
        if !node.name().is_inner() {
            return self.keys(found);
        }
        let last = node.count() - 1;
        if last > 0 {
            self.key(node.key(1));
            self.key(node.key(last));
        }
        if node.level() == 1
            && let Some(area) = old.version.logs.get(node.name().id)
        {
            let pieces: Vec<_> = area.pieces().collect();
            each(old, &pieces, None, &mut |_, piece| {
                piece.iter().for_each(|piece| self.keys(piece));
                true
            });
        }
        for (is_wanted, index) in [(is_left, 0), (is_right && (last > 0 || !is_left), last)] {
            if !is_wanted {
                continue;
            }
            let child = old.read(&[node.child(index)], Some(node.name().keyspace)).pop();
            if let Some(Ok(child)) = child
                // Levels descend, so this ends.
                && child.node.level() < node.level()
            {
                let (left, right) = (is_left && index == 0, is_right && index == last);
                self.of_node(old, &child, left, right);
            }
        }
    }
}
