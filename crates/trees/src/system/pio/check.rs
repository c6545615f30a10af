//! Verifies a PIO B-tree's invariants, reading everything.

use super::PioTree;
use crate::page::NodeId;
use crate::queue::opq::COMMITTED;
use crate::{Checked, Error, Key, Result};
use std::collections::HashSet;
use std::ops::{Bound, RangeBounds};

impl PioTree {
    /// I1 to I6 of the tree; what it holds is counted with the queue.
    pub(super) fn check_all(&self) -> Result<Checked> {
        let mut walk =
            Walk { tree: self, checked: Checked::default(), inner: HashSet::new(), leaves: HashSet::new() };
        walk.node(self.root.id, self.root.level, true, Bound::Unbounded, Bound::Unbounded)?;
        let mut checked = walk.checked;
        if !self.queue.read().is_sound() {
            return Err(Error::broken("the OPQ is out of order"));
        }
        checked.height = u32::from(self.root.level) + 1;
        checked.records = self.prange(0..Key::MAX)?.len() as u64
            + u64::from(self.search_one(Key::MAX, COMMITTED)?.is_some());
        Ok(checked)
    }

    /// The inner nodes and the leaves in use: level by level, without reading a leaf, by sets of PioMax.
    pub(super) fn used(&self) -> Result<(HashSet<NodeId>, HashSet<NodeId>)> {
        let (mut inner, mut leaves) = (HashSet::new(), HashSet::new());
        let mut ids = vec![self.root.id];
        for level in (0..=self.root.level).rev() {
            let used = if level == 0 { &mut leaves } else { &mut inner };
            if let Some(id) = ids.iter().find(|id| !used.insert(**id)) {
                return Err(Error::broken(format!("{id} of level {level} has two parents")));
            }
            if level > 0 {
                let mut below = Vec::new();
                for set in ids.chunks(self.options.pio_max) {
                    for node in self.pages.read_inner(set)? {
                        below.extend(&node.as_inner()?.children);
                    }
                }
                ids = below;
            }
        }
        Ok((inner, leaves))
    }
}

struct Walk<'a> {
    tree: &'a PioTree,
    checked: Checked,
    inner: HashSet<NodeId>,
    leaves: HashSet<NodeId>,
}

impl Walk<'_> {
    fn node(
        &mut self,
        id: NodeId,
        level: u8,
        is_root: bool,
        low: Bound<Key>,
        high: Bound<Key>,
    ) -> Result<()> {
        let broken = |what: String| Err(Error::broken(format!("{id} of level {level}: {what}")));
        let inside = |key: Key| (low, high).contains(&key);
        if level == 0 {
            let leaf = self.tree.pages.leaves.read_leaves(&[id])?.remove(0);
            if !leaf.entries.iter().all(|entry| inside(entry.key)) {
                return broken(format!("keys outside {low:?} to {high:?}"));
            }
            if let Some(last) = self.tree.last.get(id.0)
                && last != leaf.last
            {
                return broken(format!("the LSMap says segment {last} is the last, it is {}", leaf.last));
            }
            if !self.leaves.insert(id) {
                return broken("it has two parents".into());
            }
            self.checked.leaves += 1;
            return Ok(());
        }
        let node = self.tree.pages.read_inner(&[id])?.remove(0);
        let inner = node.as_inner()?;
        if inner.level != level {
            return broken(format!("it says level {}", inner.level));
        }
        if inner.children.len() > self.tree.options.fanout() || (is_root && inner.children.len() < 2) {
            return broken(format!("{} children", inner.children.len()));
        }
        if !inner.fences.iter().all(|fence| inside(*fence)) {
            return broken(format!("fences outside {low:?} to {high:?}"));
        }
        if !self.inner.insert(id) {
            return broken("it has two parents".into());
        }
        self.checked.inner += 1;
        for (index, child) in inner.children.iter().enumerate() {
            let from = index.checked_sub(1).map_or(low, |before| Bound::Included(inner.fences[before]));
            let to = inner.fence_above(index).map_or(high, Bound::Excluded);
            self.node(*child, level - 1, false, from, to)?;
        }
        Ok(())
    }
}
