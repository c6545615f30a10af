//! The Node Validation Manager: how many nodes of each sub-file are the newest copies, and which file is worth recycling.
//! (AS B-tree, JISE 2014, section 3.4.)
//!
//! Invariant: `valid` of a file is the number of nodes that the mapping table has in it.

use crate::store::sub_files::Address;
use std::collections::BTreeMap;

/// One sub-file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Share {
    /// Pages that were written.
    pub pages: u32,
    /// Of them, those that are the newest copy of a node.
    pub valid: u32,
    /// The last batch in it.
    pub last_batch: u64,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct NodeValidation {
    files: BTreeMap<u32, Share>,
    /// T: a file with a smaller share of valid nodes is recycled; 0 for never.
    threshold: f64,
}

impl NodeValidation {
    pub fn new(threshold: f64) -> Self {
        Self { files: BTreeMap::new(), threshold }
    }

    /// A file that was found, with nothing valid yet.
    pub fn found(&mut self, file: u32, pages: u32, last_batch: u64) {
        self.files.insert(file, Share { pages, valid: 0, last_batch });
    }

    /// A page was written by a batch.
    pub fn written(&mut self, file: u32, batch: u64) {
        let share = self.files.entry(file).or_default();
        share.pages += 1;
        share.last_batch = batch;
    }

    pub fn gain(&mut self, place: Address) {
        self.files.entry(place.file).or_default().valid += 1;
    }

    pub fn lose(&mut self, place: Address) {
        if let Some(share) = self.files.get_mut(&place.file) {
            share.valid -= 1;
        }
    }

    /// The file with the smallest share of valid nodes, if that is below the threshold. Only files older than `newest`
    /// with no batch after `covered` are considered.
    pub fn victim(&self, newest: u32, covered: u64) -> Option<u32> {
        let closed = self.files.range(..newest).filter(|(_, share)| share.last_batch <= covered);
        let part = |share: &Share| f64::from(share.valid) / f64::from(share.pages.max(1));
        closed
            .filter(|(_, share)| part(share) < self.threshold)
            .min_by(|one, two| part(one.1).total_cmp(&part(two.1)))
            .map(|(file, _)| *file)
    }

    pub fn remove(&mut self, file: u32) {
        self.files.remove(&file);
    }

    /// All files, oldest first.
    pub fn list(&self) -> impl Iterator<Item = (u32, Share)> {
        self.files.iter().map(|(file, share)| (*file, *share))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_emptiest_closed_file_below_the_threshold_is_recycled() {
        let mut files = NodeValidation::new(0.5);
        for (file, valid) in [(1, 5), (2, 4), (3, 1), (4, 0), (5, 0)] {
            files.found(file, 10, u64::from(file) * 10);
            (0..valid).for_each(|page| files.gain(Address { file, page }));
        }
        assert_eq!(files.victim(5, 50), Some(4), "5 is being written");
        assert_eq!(files.victim(5, 39), Some(3), "4 has a batch that is not covered");
        assert_eq!(files.victim(5, 29), Some(2));
        assert_eq!(files.victim(5, 19), None, "half of 1 is valid");
        files.lose(Address { file: 1, page: 0 });
        assert_eq!(files.victim(5, 19), Some(1));
        files.remove(4);
        assert_eq!(files.victim(5, 50), Some(3));
        assert_eq!(NodeValidation { threshold: 0.0, ..files }.victim(5, 50), None, "never");
    }
}
