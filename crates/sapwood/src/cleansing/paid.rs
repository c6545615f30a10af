//! Cleansing of blocks that scans have paid for, and merging of their layers: a portion of those that are listed. When, is in [`crate::idle`]; what is paid, in
//! [`crate::store::rent`].

use crate::engine::Engine;
use crate::error::Result;
use crate::node::NodeId;
use crate::publish::Trees;
use crate::store::attempt::Attempt;
use crate::store::mapping_table::Position;
use crate::store::writer::Writer;
use crate::tree::cleanse::to_leaves;
use crate::tree::logged::{self, PaidBlocks};
use crate::tree::merge::to_one_layer;
use crate::tree::view::TreeView;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

impl Engine {
    /// Cleanses or merges the first of the listed blocks, one portion of them, as far as they have paid for it. After an error other than a
    /// full disk writes are refused.
    pub fn cleanse_listed_or_poison(
        &self,
        writer: &mut Writer,
        listed: &mut impl Iterator<Item = (Position, NodeId)>,
    ) -> Result<()> {
        self.or_poison(|| self.cleanse_listed(writer, listed))
    }

    fn cleanse_listed(
        &self,
        writer: &mut Writer,
        listed: &mut impl Iterator<Item = (Position, NodeId)>,
    ) -> Result<()> {
        let base = Arc::clone(&self.state.load().version);
        let write = self.cleansing_portion(base.live_bytes());
        let listed = &mut listed.map(|(_, block)| block);
        let chosen = logged::paid(&self.pager, &base, listed, write, self.shares.hold)?;
        let mut attempt = Attempt::begin(Arc::clone(&base), &self.pager, writer);
        let (mut paid, mut merged) = (Vec::new(), Vec::new());
        for (keyspace, PaidBlocks { cleansed, merged: of_tree }) in chosen {
            let view = TreeView { pager: &self.pager, version: &base, keyspace };
            to_leaves(view, &mut attempt, cleansed.blocks, self.shares.node_len)?;
            to_one_layer(view, &mut attempt, &of_tree.blocks)?;
            paid.extend(cleansed.paid);
            merged.extend(of_tree.paid);
        }
        if !paid.is_empty() || !merged.is_empty() {
            self.commit_attempt(attempt, Trees::Same)?;
            let counters = &self.flush.counters;
            counters.blocks_cleansed.fetch_add(paid.len() as u64, Relaxed);
            counters.cleansed_for_scans(&self.pager.rents, &paid);
            counters.merged_for_scans(&self.pager.rents, &merged);
            self.tidy_up(writer)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Need;
    use crate::{Database, Keyspace};
    use psync::{Simulated, Volume};
    use std::collections::BTreeMap;

    const RECORDS: u32 = 16_000;

    /// Scans everywhere until blocks have paid, and gives them what they have paid for. Says how many were merged until now, and how many cleansed.
    fn scan_until_paid(db: &Database, keyspace: &Keyspace) -> (u64, u64) {
        let engine = &db.handle.engine;
        while !engine.pager.rents.has_listed() {
            for from in (0..RECORDS).step_by(100) {
                assert_eq!(keyspace.range(from.to_be_bytes()..).take(20).count(), 20);
            }
        }
        let mut listed = engine.pager.rents.take_listed().into_iter().peekable();
        while listed.peek().is_some() {
            let mut guard = engine.writer(Need::default()).unwrap();
            engine.cleanse_listed_or_poison(guard.get().unwrap(), &mut listed).unwrap();
        }
        let writes = db.stats().writes;
        (writes.blocks_merged_for_scans, writes.blocks_cleansed_for_scans)
    }

    fn assert_holds(keyspace: &Keyspace, records: &BTreeMap<u32, u8>) {
        let found = keyspace.iter().map(|item| {
            let (key, value) = item.unwrap();
            assert!(value.iter().all(|byte| *byte == value[0]));
            (u32::from_be_bytes(key[..].try_into().unwrap()), value[0])
        });
        assert_eq!(found.collect::<BTreeMap<_, _>>(), *records);
        for number in (0..RECORDS).step_by(7) {
            let found = keyspace.get(number.to_be_bytes()).unwrap();
            assert_eq!(found.map(|value| value[0]), records.get(&number).copied(), "{number}");
        }
    }

    /// The layers say the same when they are one, to those who open it again too; and what scans go on to pay buys the cleansing.
    #[test]
    fn layers_that_scans_have_paid_for_are_merged_first_and_cleansed_later() {
        let volume = Simulated::new(1);
        let shared: Arc<dyn Volume> = Arc::new(volume);
        let open = || {
            let options = Database::builder().memory(16 << 20).background_threads(0);
            let db = options.open_on(Arc::clone(&shared)).unwrap();
            let keyspace = db.keyspace("main").unwrap();
            (db, keyspace)
        };
        let (db, keyspace) = open();
        let mut records = BTreeMap::new();
        let mut change = |numbers: &mut dyn Iterator<Item = u32>, layer: u8| {
            for number in numbers {
                if (number + u32::from(layer)).is_multiple_of(9) {
                    keyspace.remove(number.to_be_bytes()).unwrap();
                    records.remove(&number);
                } else {
                    keyspace.insert(number.to_be_bytes(), [layer; 200]).unwrap();
                    records.insert(number, layer);
                }
            }
            db.flush().unwrap();
        };
        change(&mut (0..RECORDS), 0);
        // Some have the same keys.
        (1..=6).for_each(|layer| change(&mut (u32::from(layer) / 2..RECORDS).step_by(91), layer));
        let snapshot = db.snapshot();
        let before = db.stats();
        let live = |db: &Database| Arc::clone(&db.handle.engine.state.load().version).logs.totals();
        assert!(live(&db).areas > 1 && live(&db).layers >= 4 * live(&db).areas, "{before}");
        let (merged, cleansed) = scan_until_paid(&db, &keyspace);
        let after = db.stats();
        assert!(merged > cleansed, "{cleansed}: {after}");
        assert!(before.space.log_layers - after.space.log_layers >= 3 * merged, "{before}\n{after}");
        assert!(after.space.logged_changes < before.space.logged_changes, "each key once");
        let written = after.writes.data_bytes - before.writes.data_bytes;
        assert!(written <= 2 * before.space.logged, "hardly a leaf is written: {written} bytes");
        assert_holds(&keyspace, &records);
        db.check().unwrap();
        drop((snapshot, keyspace, db));
        let (db, keyspace) = open();
        assert_holds(&keyspace, &records);
        let areas = live(&db).areas;
        while scan_until_paid(&db, &keyspace).1 == 0 {}
        assert!(live(&db).areas < areas, "what is cleansed has no log area");
        assert_holds(&keyspace, &records);
        db.check().unwrap();
    }
}
