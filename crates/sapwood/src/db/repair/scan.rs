//! Finds nodes in the bytes of the data file, where no manifest tells where they are.
//!
//! Invariants:
//! 1. A node counts with its checksum. Of each id the newest epoch counts: that of the version that it was written for.
//! 2. What was in the file when the manifest was last known is counted only if that says so: the rest was dead already.
//! 3. Memory: one window, one node, and the newest epoch of each id.

use crate::encryption::Encryption;
use crate::error::Result;
use crate::operation::NUMBER_MAX;
use crate::source::{FileSource, Source, Window};
use crate::storage::compressed::StoredNode;
use crate::storage::node::{HEADER, MAGIC, Name, stored_len};
use crate::version::Version;

/// Newest epoch of each id; 0: none.
#[derive(Default)]
pub(super) struct Newest {
    epochs: Vec<u64>,
    /// The greatest of all.
    pub epoch: u64,
}

impl Newest {
    fn see(&mut self, Name { id, epoch, .. }: Name, most: u64) {
        let (index, epoch) = (id.0 as usize, epoch + 1);
        if id.0 >= most {
            return;
        }
        if self.epochs.len() <= index {
            self.epochs.resize(index + 1, 0);
        }
        self.epochs[index] = self.epochs[index].max(epoch);
        self.epoch = self.epoch.max(epoch - 1);
    }

    fn is_newest(&self, Name { id, epoch, .. }: Name) -> bool {
        self.epochs.get(id.0 as usize).is_some_and(|newest| *newest == epoch + 1)
    }
}

/// What is known of the nodes in the file.
pub(super) struct Known<'v> {
    pub version: &'v Version,
    pub encryption: &'v Encryption,
    /// The epoch up to which the version is whole.
    pub whole_to: Option<u64>,
}

impl Known<'_> {
    /// Whether a node may belong to the newest version.
    fn may_count(&self, node: &StoredNode) -> bool {
        let name = node.name();
        self.whole_to.is_none_or(|whole_to| name.epoch > whole_to)
            || self.version.table.address(name.id).is_some_and(|address| address.crc == node.crc())
    }
}

/// Passes every sound node of the file, and where it lies, to `take`.
fn each(
    source: &mut Window<FileSource<'_>>,
    take: &mut dyn FnMut(StoredNode, u64) -> Result<()>,
) -> Result<()> {
    let len = source.source.len();
    let mut at = 0;
    while at + HEADER as u64 <= len {
        let Some(found) = source.find(&MAGIC, at)? else { return Ok(()) };
        at = found + 1;
        let Some(node_len) = source.get(found, HEADER).ok().and_then(stored_len) else { continue };
        let node_len = node_len as u64;
        if node_len > len - found {
            continue;
        }
        let Ok(bytes) = source.copy(found, node_len as usize) else { continue };
        // No sound program has written a greater epoch.
        if let Ok(node) = StoredNode::decode(bytes)
            && node.name().epoch < NUMBER_MAX - 1
        {
            at = found + node_len;
            take(node, found)?;
        }
    }
    Ok(())
}

/// The newest epoch of each id in the file.
pub(super) fn newest(source: &mut Window<FileSource<'_>>, known: &Known<'_>) -> Result<Newest> {
    let mut newest = Newest::default();
    // An id takes at least as many bytes of the file as a header has.
    let most = source.source.len().max(1 << 20) / HEADER as u64;
    each(source, &mut |node, _| {
        if known.may_count(&node) {
            newest.see(node.name(), most);
        }
        Ok(())
    })?;
    Ok(newest)
}

/// Passes the newest node of each id, and where it lies, to `take`; copies of the same node perhaps more than once.
pub(super) fn each_newest(
    source: &mut Window<FileSource<'_>>,
    known: &Known<'_>,
    newest: &Newest,
    take: &mut dyn FnMut(StoredNode, u64) -> Result<()>,
) -> Result<()> {
    each(source, &mut |node, at| {
        if known.may_count(&node) && newest.is_newest(node.name()) { take(node, at) } else { Ok(()) }
    })
}
