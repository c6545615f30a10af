//! Reads the leaves of the next small trees that a flush comes to: a hundred thousand keyspaces of one leaf each are read PioMax at a time, and not
//! one by one.
//!
//! Invariants:
//! 1. A group is read only when the one before is used up, or passed: at most one is in memory, as long as the reader lets it be in one read.
//! 2. A leaf whose read fails is read by the flush itself, which tells.

use crate::cache::pager::{Pager, ReadMode};
use crate::cache::prefetch_buffer::{OpenBuffer, WantedNodes};
use crate::operation::KeyspaceId;
use crate::opq::Opq;
use crate::version::Version;
use bytes::Bytes;

/// See the module.
pub(super) struct LeavesAhead<'a> {
    pager: &'a Pager,
    queue: &'a Opq,
    /// The last keyspace of the group, ...
    last: Option<KeyspaceId>,
    /// ... whose leaves are here.
    open: Option<OpenBuffer<'a>>,
}

impl<'a> LeavesAhead<'a> {
    pub fn new(pager: &'a Pager, queue: &'a Opq) -> Self {
        Self { pager, queue, last: None, open: None }
    }

    /// The flush comes to a keyspace whose tree has one leaf.
    pub fn reach(&mut self, version: &Version, keyspace: KeyspaceId) {
        if self.last.is_some_and(|last| keyspace <= last) {
            return;
        }
        self.open = None;
        let (mut leaves, mut next) = (Vec::new(), Some(keyspace));
        // Each of these steps is one search in the queue.
        for _ in 0..self.pager.pio_max() {
            let Some(keyspace) = next.and_then(|from| self.queue.next_keyspace(from)) else { break };
            let tree = version.trees.get(&keyspace).filter(|tree| tree.height == 0);
            if let Some(root) = tree.and_then(|tree| tree.root)
                && let Some(address) = version.table.address(root)
            {
                leaves.push((keyspace, root, address));
            }
            self.last = Some(keyspace);
            next = keyspace.0.checked_add(1).map(KeyspaceId);
        }
        let fits = self.pager.reader.fits(leaves.iter().map(|(.., address)| address.len() as usize));
        if fits < leaves.len() {
            leaves.truncate(fits);
            self.last = leaves.last().map(|(keyspace, ..)| *keyspace);
        }
        if leaves.len() < 2 {
            return;
        }
        let bytes = leaves.iter().map(|(.., address)| address.memory_len() as u64).sum();
        let open = self.pager.prefetch.open(bytes);
        let wanted = leaves.into_iter().map(|(keyspace, root, address)| {
            let end = (KeyspaceId(keyspace.0.saturating_add(1)), Bytes::new());
            WantedNodes { end, nodes: vec![(root, address)] }
        });
        let coming = self.pager.prefetch.begin(wanted.collect());
        if let Ok(read) = self.pager.fetch(&version.segments, &coming.nodes, ReadMode::Ahead) {
            coming.arrived(read);
        }
        self.open = Some(open);
    }
}

#[cfg(test)]
mod tests {
    use crate::Database;
    use psync::Simulated;
    use std::sync::Arc;

    /// Each tree of one leaf was a read of its own.
    #[test]
    fn a_flush_reads_the_leaves_of_many_small_trees_together() {
        const COUNT: usize = 1000;
        let volume = Simulated::new(1);
        let options = Database::builder().memory(32 << 20).background_threads(0);
        let open = || options.clone().open_on(Arc::new(volume.clone())).unwrap();
        let names: Vec<_> = (0..COUNT).map(|number| format!("keyspace {number}")).collect();
        // Every seventh is larger, every fifth is not changed later, and every eleventh is empty before.
        let records = |number: usize| match number {
            number if number.is_multiple_of(11) => 0..0,
            number if number.is_multiple_of(7) => 0..200u32,
            _ => 0..3,
        };
        let put = |db: &Database, value: [u8; 40], of: &dyn Fn(usize) -> bool| {
            let mut batch = db.batch();
            for (number, keyspace) in db.create_keyspaces(&names).unwrap().iter().enumerate() {
                let of = records(number).filter(|_| of(number));
                of.for_each(|record| _ = batch.insert(keyspace, record.to_be_bytes(), value));
                if value[0] > 1 && records(number).is_empty() {
                    batch.insert(keyspace, "key", value);
                }
            }
            batch.commit().unwrap();
            let counters = &db.handle.engine.pager.reader.counters;
            let before = counters.total(|counters| &counters.sets);
            db.flush().unwrap();
            counters.total(|counters| &counters.sets) - before
        };
        let is_changed = |number: usize| !number.is_multiple_of(5);
        put(&open(), [1; 40], &|_| true);
        let db = open();
        let sets = put(&db, [2; 40], &is_changed);
        let large = COUNT as u64 / 7;
        assert!(sets < 3 * large + 50, "{sets} sets of reads");
        let keyspaces = db.create_keyspaces(&names).unwrap();
        for (number, keyspace) in
            keyspaces.iter().enumerate().filter(|(number, _)| !number.is_multiple_of(11))
        {
            let value = [1 + u8::from(is_changed(number)); 40];
            let found = keyspace.iter().map(|record| record.unwrap());
            let expected = records(number).map(|record| record.to_be_bytes());
            assert!(
                found
                    .map(|(key, found)| (key.to_vec(), found == value))
                    .eq(expected.map(|key| (key.to_vec(), true)))
            );
        }
        db.check().unwrap();
        assert_eq!(db.handle.engine.pager.prefetch.bytes(), 0);
    }
}
