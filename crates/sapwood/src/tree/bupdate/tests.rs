//! What becomes of leaves that have no changes between leaves that have.

use crate::store::mapping_table::Address;
use crate::tree::view::TreeView;
use crate::{Database, Keyspace};
use psync::Simulated;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Records of a leaf: of 1000 bytes, in leaves of 4 KiB.
const A_LEAF: u32 = 4;
const LEAVES: u32 = 1500;

fn open(pio_max: usize) -> (Database, Keyspace) {
    let volume = Simulated::new(1).with_pio_max(pio_max);
    let options = Database::builder().memory(16 << 20).pio_max(pio_max).background_threads(0);
    let db = options.open_on(Arc::new(volume)).expect("opens");
    let keyspace = db.keyspace("main").expect("a keyspace");
    let records = (0..LEAVES * A_LEAF).map(|number| (number.to_be_bytes(), [0; 1000]));
    keyspace.ingest(records).expect("ingests");
    (db, keyspace)
}

/// Where the leaves are, block by block.
fn leaves(db: &Database, keyspace: &Keyspace) -> Vec<Vec<Address>> {
    let engine = &db.handle.engine;
    let version = Arc::clone(&engine.state.load().version);
    let view = TreeView { pager: &engine.pager, version: &version, keyspace: keyspace.id() };
    let (mut blocks, mut from) = (Vec::new(), bytes::Bytes::new());
    while let Some(block) = view.block_at(&from).expect("reads") {
        let node = view.node(block.id, 1).expect("reads");
        blocks.push(view.leaves_of(&node).map(|(_, address)| address).collect());
        let Some(fence) = block.fence else { break };
        from = fence;
    }
    blocks
}

/// Changes one record in each of these leaves, and brings the changes there.
fn change(db: &Database, keyspace: &Keyspace, leaves: impl Iterator<Item = u32>) {
    let mut batch = db.batch();
    for leaf in leaves {
        batch.insert(keyspace, (leaf * A_LEAF + 1).to_be_bytes(), [1; 1000]);
    }
    batch.commit().expect("commits");
    db.compact().expect("compacts");
}

/// How many leaves do not lie behind the one before them in their block, a little padding aside.
fn gaps(leaves: &[Vec<Address>]) -> usize {
    let is_gap = |pair: &[Address]| {
        let end = pair[0].position.0 + u64::from(pair[0].len);
        !(end..end + 512).contains(&pair[1].position.0)
    };
    leaves.iter().flat_map(|block| block.windows(2)).filter(|pair| is_gap(pair)).count()
}

#[test]
fn leaves_between_many_changed_ones_are_rewritten_with_them_and_few_are_left_alone() {
    let (db, keyspace) = open(64);
    let (ingested, blocks) = (leaves(&db, &keyspace), leaves(&db, &keyspace).len());
    assert_eq!(ingested.iter().map(Vec::len).sum::<usize>(), LEAVES as usize);
    assert!(gaps(&ingested) <= 2 * blocks, "{} gaps in {blocks} blocks", gaps(&ingested));
    change(&db, &keyspace, (0..LEAVES).step_by(2));
    let many = leaves(&db, &keyspace);
    assert!(many.len() > 10, "{} blocks", many.len());
    // A chunk of changes may end within a block, as what was ingested together may.
    assert!(gaps(&many) <= 3 * many.len(), "{} gaps in {} blocks", gaps(&many), many.len());
    let written = db.stats().writes.data_bytes;
    change(&db, &keyspace, (0..LEAVES).step_by(10));
    let few = db.stats().writes.data_bytes - written;
    assert!(few < u64::from(LEAVES / 10) * 12_000, "{few} bytes for a leaf of ten");
    db.check().expect("sound");
}

/// A run that has become short may take in its right neighbour, but not one that is on its way here itself.
#[test]
fn a_leaf_on_its_way_to_be_rewritten_is_not_joined_to_its_neighbour() {
    for pio_max in [1, 2, 3, 5] {
        let (db, keyspace) = open(pio_max);
        let mut model: BTreeMap<u32, u8> = (0..LEAVES * A_LEAF).map(|number| (number, 0)).collect();
        let mut batch = db.batch();
        let records = |leaf: u32| -> Range<u32> { leaf * A_LEAF..(leaf + 1) * A_LEAF };
        for leaf in 0..LEAVES {
            match leaf % 4 {
                // Emptied, the last one but for a record.
                0 => records(leaf).for_each(|number| {
                    batch.remove(&keyspace, number.to_be_bytes());
                    model.remove(&number);
                }),
                1 => records(leaf).skip(1).for_each(|number| {
                    batch.remove(&keyspace, number.to_be_bytes());
                    model.remove(&number);
                }),
                3 => {
                    let number = leaf * A_LEAF;
                    batch.insert(&keyspace, number.to_be_bytes(), [7; 1]);
                    model.insert(number, 7);
                }
                _ => {}
            }
        }
        batch.commit().expect("commits");
        db.compact().expect("compacts");
        db.check().unwrap_or_else(|error| panic!("pio_max {pio_max}: {error}"));
        let found: BTreeMap<u32, u8> = keyspace
            .iter()
            .map(|record| record.expect("reads"))
            .map(|(key, value)| (u32::from_be_bytes(key[..].try_into().expect("four bytes")), value[0]))
            .collect();
        assert!(found == model, "pio_max {pio_max}");
        assert_eq!(keyspace.len_estimate(), model.len() as u64, "pio_max {pio_max}");
    }
}
