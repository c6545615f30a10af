//! What a target has: its blobs by name, and which backups and attempts these are of.

use super::called;
use super::name::{BlobName, marked};
use super::target::Target;
use crate::error::Result;
use std::collections::{BTreeMap, BTreeSet};

/// What a target has, by name.
#[derive(Debug, Default)]
pub(super) struct Listing {
    pub blobs: BTreeMap<BlobName, u64>,
    /// The highest number that a mark tells of, or 0: it was given, and is not given again.
    pub marked: u64,
}

impl Listing {
    pub fn read(target: &dyn Target) -> Result<Self> {
        let listed = called(target, "list", "blobs", target.list())?;
        let blobs = listed.iter().filter_map(|(name, len)| Some((BlobName::parse(name)?, *len))).collect();
        let marked = listed.iter().filter_map(|(name, _)| marked(name)).max().unwrap_or(0);
        Ok(Self { blobs, marked })
    }

    /// The numbers of the backups.
    pub fn backups(&self) -> BTreeSet<u64> {
        self.numbers(|name| matches!(name, BlobName::Manifest(_))).collect()
    }

    /// A number above all that were ever used, as far as there is anything left of them or a mark.
    pub fn next_number(&self) -> u64 {
        self.blobs.keys().map(|name| name.backup()).max().unwrap_or(0).max(self.marked) + 1
    }

    /// The numbers of attempts that came to no end and have something that a later one can take over: segments, and the version that tells
    /// of them.
    pub fn attempts(&self) -> BTreeSet<u64> {
        let mut numbers: BTreeSet<_> =
            self.numbers(|name| matches!(name, BlobName::Segment { .. })).collect();
        numbers.retain(|number| {
            let has = |name| self.blobs.contains_key(&name);
            has(BlobName::Version(*number)) && !has(BlobName::Manifest(*number))
        });
        numbers
    }

    fn numbers(&self, is_meant: impl Fn(&BlobName) -> bool) -> impl Iterator<Item = u64> {
        self.blobs.keys().filter(move |name| is_meant(name)).map(|name| name.backup())
    }

    /// Whether there is a blob of this name and length.
    pub fn has(&self, name: BlobName, len: u64) -> bool {
        self.blobs.get(&name) == Some(&len)
    }
}
