//! Walks a Bε-tree: to find its pages when it is opened, and to verify it.

use super::BEpsilonTree;
use super::find::inner;
use crate::page::buffered_node::BufferedNode;
use crate::page::{Key, KeyRange};
use crate::{Checked, Error, Result};
use std::collections::HashSet;
use std::sync::Arc;

impl BEpsilonTree {
    /// After opening: all nodes that the root leads to are in use.
    pub(super) fn occupy(&mut self) -> Result<()> {
        let mut nodes = vec![Arc::clone(&self.root)];
        for level in (0..self.level).rev() {
            let mut pages: Vec<u64> = Vec::new();
            for node in nodes.drain(..) {
                pages.extend(&inner(&node)?.children);
            }
            pages.iter().try_for_each(|page| self.nodes.occupy(*page))?;
            // Leaves lead to nothing.
            for pages in pages.chunks(self.pio_max).filter(|_| level > 0) {
                nodes.extend(self.nodes.read_many(pages, level)?);
            }
        }
        Ok(())
    }

    pub(super) fn verify(&self) -> Result<Checked> {
        let mut checked = Checked { height: u32::from(self.level) + 1, ..Checked::default() };
        let mut pages = HashSet::new();
        self.verify_node(&self.root, (self.level, KeyRange::ALL), &mut checked, &mut pages)?;
        let (all, others) = self.nodes.all();
        if pages.len() as u64 + others != all {
            let nodes = pages.len();
            return Err(Error::broken(format!("{nodes} nodes and {others} other pages, of {all} pages")));
        }
        checked.records = self.scan(0..u64::MAX)?.len() as u64 + u64::from(self.find(u64::MAX)?.is_some());
        Ok(checked)
    }

    fn verify_node(
        &self,
        node: &BufferedNode,
        (level, range): (u8, KeyRange),
        checked: &mut Checked,
        pages: &mut HashSet<u64>,
    ) -> Result<()> {
        let broken = |what: String| Err(Error::broken(format!("node of level {level}: {what}")));
        let outside = |key: &Key| !range.contains(*key);
        match node {
            BufferedNode::Leaf(records) => {
                checked.leaves += 1;
                if level != 0 || records.len() > self.shape.records {
                    return broken(format!("a leaf of {} records", records.len()));
                }
                match records.iter().map(|record| record.0).find(outside) {
                    Some(key) => broken(format!("key {key} is not one of {range:?}")),
                    None => Ok(()),
                }
            }
            BufferedNode::Inner(inner) => {
                checked.inner += 1;
                let (fanout, messages) = (inner.children.len(), inner.messages.len());
                if level == 0 || fanout == 0 || fanout > self.shape.fanout || messages > self.shape.messages {
                    return broken(format!("{fanout} children, {messages} messages"));
                }
                let keys = inner.messages.iter().map(|message| message.0).chain(inner.fences.iter().copied());
                if let Some(key) = keys.clone().find(outside) {
                    return broken(format!("key {key} is not one of {range:?}"));
                }
                for (at, page) in inner.children.iter().enumerate() {
                    if !pages.insert(*page) {
                        return broken(format!("page {page} has two parents"));
                    }
                    let low = at.checked_sub(1).map_or(range.low, |before| inner.fences[before]);
                    let high = inner.fences.get(at).copied().or(range.high);
                    let child = self.nodes.read(*page, level - 1)?;
                    self.verify_node(&child, (level - 1, KeyRange { low, high }), checked, pages)?;
                }
                Ok(())
            }
        }
    }
}
