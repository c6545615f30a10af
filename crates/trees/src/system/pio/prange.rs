//! prange, the parallel range search (VLDB 2011, section 3.1.2): the nodes whose range overlaps the one asked for are read level by
//! level, at most PioMax of them in one psync.

use super::PioTree;
use crate::page::NodeId;
use crate::page::leaf_segments::{Op, replay};
use crate::{Key, Result, Value};
use std::ops::Range;

impl PioTree {
    /// All records with keys in `range`, in order.
    pub(super) fn prange(&self, range: Range<Key>) -> Result<Vec<(Key, Value)>> {
        let mut found = Vec::new();
        if range.is_empty() {
            return Ok(found);
        }
        self.visit(vec![self.root.id], self.root.level, &range, &mut found)?;
        Ok(self.with_queued(found, range))
    }

    /// Goes through the nodes of one level that overlap the range, group by group, each with all that is below it.
    fn visit(
        &self,
        ids: Vec<NodeId>,
        level: u8,
        range: &Range<Key>,
        found: &mut Vec<(Key, Value)>,
    ) -> Result<()> {
        for group in ids.chunks(self.options.pio_max) {
            if level == 0 {
                for leaf in self.pages.read_leaves(group)? {
                    let inside = leaf.entries.iter().filter(|entry| range.contains(&entry.key)).copied();
                    found.extend(replay(inside));
                }
                continue;
            }
            let mut below = Vec::new();
            for node in self.pages.read_inner(group)? {
                let inner = node.as_inner()?;
                let (first, last) = (inner.child_of(range.start), inner.child_of(range.end - 1));
                below.extend_from_slice(&inner.children[first..=last]);
            }
            self.visit(below, level - 1, range, found)?;
        }
        Ok(())
    }

    /// Records from the leaves, in order, with what the queue says about them.
    fn with_queued(&self, records: Vec<(Key, Value)>, range: Range<Key>) -> Vec<(Key, Value)> {
        let queued = self.queue.read().newest_in(range);
        if queued.is_empty() {
            return records;
        }
        let mut merged = Vec::with_capacity(records.len() + queued.len());
        let mut records = records.into_iter().peekable();
        for entry in queued {
            while let Some(record) = records.next_if(|record| record.0 < entry.key) {
                merged.push(record);
            }
            let _ = records.next_if(|record| record.0 == entry.key);
            if entry.op != Op::Delete {
                merged.push((entry.key, entry.value));
            }
        }
        merged.extend(records);
        merged
    }
}
