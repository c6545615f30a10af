//! A write or a sync that fails once, anywhere, in reads that evict too: no tree on a volume says after it that something is
//! durable which is not, vouches for itself, or gives another answer than before. In trees that find their way before anything
//! changes, a read that fails there harms no update but its own, and that one not by half. On raw flash: `full_flash_is_told_until_the_tree_is_recovered` and its like.

#![allow(clippy::unwrap_used, reason = "a test fails with what it was told")]

use psync::{Fault, OperationKind, Repeat, Simulated, Volume};
use std::collections::BTreeMap;
use std::sync::Arc;
use trees::{
    AsTree, AsTreeOptions, BEpsilonTree, BEpsilonTreeOptions, BTree, BTreeOptions, BatchedBTree,
    BatchedBTreeOptions, Bftl, BftlOptions, BlinkOptions, BlinkTree, CbPersistence, CbPlacement, CbTree,
    CbTreeOptions, Contract, Error, FdTree, FdTreeOptions, HeadLog, Ibsf, IbsfOptions, Index, LaTree,
    LaTreeOptions, LsmTree, LsmTreeOptions, LuTree, LuTreeOptions, PioOptions, PioTree, RecordAsTree,
    RecordAsTreeOptions,
};

/// Insertions before all of them have been brought to the device.
const FLUSH_EVERY: u64 = 70;

/// Bytes by which memory may differ while reads fail: two of the nodes that wait or are kept, of 256 bytes and their overhead.
/// A buffer that kept what failed would take 20 bytes and more for each of more than 500.
const MEMORY_PLAY: u64 = 1024;

/// Makes one operation of the device fail, each time another one, and says how often something was inserted before.
fn fails_once<T: Index<Ground = Arc<dyn Volume>>>(options: &T::Options) {
    let (mut held_max, mut lost, mut forgot) = (0, Vec::new(), Vec::new());
    for kind in [OperationKind::Write, OperationKind::Sync] {
        // Close to each other at first, then ever further apart: late ones meet trees of several levels.
        for nth in (1..60).chain((60..900).step_by(31)) {
            let story = format!("{kind:?} {nth}");
            let volume = Simulated::new(nth).with_alignment(128);
            let mut tree = T::create(Arc::new(volume.clone()), options).unwrap();
            volume.fail_nth(kind, nth, Fault::Error, Repeat::Once);
            let mut held = Vec::new();
            // An odd factor: each key once.
            for (at, key) in (1..4000_u64).map(|at| (at, at * 6_007 % 16_384)) {
                if tree.insert(key, at).is_err() {
                    break;
                }
                held.push((key, at));
                // A read evicts what was written before, and writes it.
                if tree.search(at.div_ceil(2) * 6_007 % 16_384).is_err() {
                    break;
                }
                if at % FLUSH_EVERY == 0 && tree.flush().is_err() {
                    break;
                }
            }
            // Some are done less often than others.
            if volume.fired() == 0 {
                break;
            }
            held_max = held.len().max(held_max);
            for (key, value) in &held {
                if let Ok(found) = tree.search(*key)
                    && found != Some(*value)
                {
                    lost.push(format!("{story}: {key} is {found:?} before the tree was recovered"));
                }
            }
            match (tree.check(), tree.flush()) {
                (Err(Error::Invalid(_)), Err(Error::Invalid(_))) => (),
                (checked, flushed) => forgot.push(format!("{story}: {checked:?}, {flushed:?}")),
            }
            let is_promised = tree.flush().is_ok() || tree.contract() == Contract::EachOperation;
            drop(tree);
            if is_promised {
                let tree = T::recover(Arc::new(volume.power_loss(nth)), options)
                    .unwrap_or_else(|error| panic!("{story}: {error}"));
                for (key, value) in &held {
                    let found = tree.search(*key).unwrap_or_else(|error| panic!("{story}: {error}"));
                    if found != Some(*value) {
                        lost.push(format!("{story}: {key} is {found:?} once the tree was recovered"));
                    }
                }
            }
        }
    }
    assert!(held_max > 100, "{held_max}: it failed before there was something to lose");
    assert!(lost.is_empty(), "{} lost: {:#?}", lost.len(), &lost[..lost.len().min(10)]);
    assert!(forgot.is_empty(), "{} forgot: {:#?}", forgot.len(), &forgot[..forgot.len().min(10)]);
}

/// Makes one read of the device fail, each time another one. The update that it was for is done when it is repeated, and nothing
/// is lost; where updates read for other things than their way too, some may ask for recovery instead.
fn goes_on_after_a_read<T: Index<Ground = Arc<dyn Volume>>>(options: &T::Options, is_way_only: bool) {
    let mut went_on = 0;
    for nth in (1..60).chain((60..900).step_by(31)) {
        let volume = Simulated::new(nth).with_alignment(128);
        let mut tree = T::create(Arc::new(volume.clone()), options).unwrap();
        let mut last = 0;
        volume.fail_nth(OperationKind::Read, nth, Fault::Error, Repeat::Once);
        let failed = (1..4000_u64).find(|at| {
            last = *at;
            tree.insert(at * 6_007 % 16_384, *at).is_err()
        });
        assert!(failed.is_none() || volume.fired() == 1, "read {nth}");
        if volume.fired() == 0 {
            break;
        }
        // Where the read was for another key that waited, its own update may be done already.
        if failed.is_some() && is_way_only {
            tree.check().unwrap();
            assert_eq!(tree.search(last * 6_007 % 16_384).unwrap(), None, "read {nth}, insertion {last}");
        }
        match tree.insert(last * 6_007 % 16_384, last) {
            Ok(()) => went_on += u32::from(failed.is_some()),
            Err(Error::Invalid(_)) if !is_way_only => continue,
            Err(error) => panic!("read {nth}, insertion {last}: {error}"),
        }
        tree.flush().unwrap();
        tree.check().unwrap();
        for at in 1..=last {
            assert_eq!(tree.search(at * 6_007 % 16_384).unwrap(), Some(at), "read {nth}, insertion {last}");
        }
    }
    assert!(went_on > 10, "{went_on} reads failed");
}

/// Updates that fail at reads, now one and now all of them, beside updates that do not: those that failed have done nothing and
/// take no memory, all others are there.
fn is_as_before_after_reads<T: Index<Ground = Arc<dyn Volume>>>(options: &T::Options) {
    let volume = Simulated::new(1).with_alignment(128);
    let mut tree = T::create(Arc::new(volume.clone()), options).unwrap();
    let mut model = BTreeMap::new();
    let (mut failed, mut memory_max) = (0, [0; 2]);
    for at in 0..6000_u64 {
        // From each hundred: fifty that do not fail, twenty-five of which each fails at its first to fifth read, twenty-five
        // that can read nothing.
        let ground = at % 100 / 25;
        match ground {
            2 => volume.fail_nth(OperationKind::Read, at % 5 + 1, Fault::Error, Repeat::Once),
            3 => volume.fail_nth(OperationKind::Read, 1, Fault::Error, Repeat::Sticky),
            _ => (),
        }
        let key = at * 6_007 % 509;
        let is_done = match at % 7 {
            0 => tree.delete(key).map(|()| model.remove(&key)).is_ok(),
            _ => tree.insert(key, at).map(|()| model.insert(key, at)).is_ok(),
        };
        volume.clear_faults();
        assert!(is_done || ground > 1, "operation {at}");
        if !is_done {
            failed += 1;
            assert_eq!(tree.search(key).unwrap(), model.get(&key).copied(), "operation {at}");
            tree.check().unwrap();
        }
        let most = &mut memory_max[usize::from(ground > 1)];
        *most = tree.stats().memory.max(*most);
    }
    assert!(failed > 500, "{failed} failed");
    assert!(memory_max[1] <= memory_max[0] + MEMORY_PLAY, "{memory_max:?}");
    for (key, value) in &model {
        assert_eq!(tree.search(*key).unwrap(), Some(*value), "{key}");
    }
    tree.flush().unwrap();
    assert_eq!(tree.check().unwrap().records, model.len() as u64);
    let found = tree.range(0..u64::MAX).unwrap();
    assert!(found.into_iter().eq(model));
}

/// An AS-tree whose buffer has seven records, and which never cleans.
fn seven_records() -> RecordAsTreeOptions {
    RecordAsTreeOptions {
        node_len: 256,
        keys_max: Some(4),
        records: 7,
        slots: 5,
        threshold: 0.0,
        checkpoint_every: 0,
        ..RecordAsTreeOptions::default()
    }
}

#[test]
fn what_fails_at_a_read_has_not_come_to_the_buffer() {
    let keys_max = Some(4);
    is_as_before_after_reads::<RecordAsTree>(&seven_records());
    for frames in [0, 2] {
        let (page_len, units) = (256, 9);
        is_as_before_after_reads::<Ibsf>(&IbsfOptions {
            page_len,
            units,
            frames,
            keys_max,
            ..IbsfOptions::default()
        });
        is_as_before_after_reads::<LuTree>(&LuTreeOptions {
            page_len,
            units,
            frames,
            keys_max,
            ..LuTreeOptions::default()
        });
    }
}

/// The update that made the buffer too full came to its leaf, and what waits for another leaf could not be read: the buffer stayed too full, and
/// the next update that failed took an older one with it.
#[test]
fn what_has_come_to_its_leaf_is_done_though_another_cannot_be_read() {
    let options = RecordAsTreeOptions { records: 2, threshold: 0.3, ..seven_records() };
    let volume = Simulated::new(1).with_alignment(128);
    let mut tree = RecordAsTree::create(Arc::new(volume.clone()), &options).unwrap();
    (0..12).for_each(|key| tree.insert(100 * key, 0).unwrap());
    tree.flush().unwrap();
    for nth in 1..20 {
        tree.insert(500, nth).unwrap();
        tree.insert(1100, nth).unwrap();
        volume.fail_nth(OperationKind::Read, nth, Fault::Error, Repeat::Once);
        let is_done = tree.insert(0, nth).is_ok();
        volume.clear_faults();
        tree.check().unwrap();
        volume.fail_nth(OperationKind::Read, 1, Fault::Error, Repeat::Sticky);
        let _ = tree.insert(500, nth + 100);
        volume.clear_faults();
        let newest = tree.search(500).unwrap().unwrap();
        assert!(newest == nth || newest == nth + 100, "read {nth}: {newest}");
        tree.flush().unwrap();
        assert_eq!(tree.search(500).unwrap(), Some(newest), "read {nth}");
        assert!(!is_done || tree.search(0).unwrap() == Some(nth), "read {nth}");
    }
}

#[test]
fn a_read_that_fails_on_the_way_to_a_leaf_harms_no_other_update() {
    let (page_len, keys_max) = (256, Some(4));
    goes_on_after_a_read::<BTree>(
        &BTreeOptions { page_len, frames: 6, keys_max, ..BTreeOptions::default() },
        true,
    );
    goes_on_after_a_read::<BatchedBTree>(
        &BatchedBTreeOptions { page_len, keys_max, slots: 7, ..BatchedBTreeOptions::default() },
        true,
    );
    goes_on_after_a_read::<BlinkTree>(&BlinkOptions { page_len, frames: 20, keys_max }, true);
    let batches = AsTreeOptions {
        node_len: 256,
        keys_max,
        slots: 5,
        threshold: 0.0,
        checkpoint_every: 0,
        ..AsTreeOptions::default()
    };
    goes_on_after_a_read::<AsTree>(&batches, true);
    goes_on_after_a_read::<RecordAsTree>(&seven_records(), true);
    let units = IbsfOptions { page_len, units: 9, frames: 2, keys_max, ..IbsfOptions::default() };
    goes_on_after_a_read::<Ibsf>(&units, true);
    let sectors =
        BftlOptions { sector_len: 512, units: 30, keys_max, reclaim: true, ..BftlOptions::default() };
    goes_on_after_a_read::<Bftl>(&sectors, false);
}

#[test]
fn as_b_tree() {
    let tiny = AsTreeOptions {
        node_len: 256,
        keys_max: Some(4),
        slots: 5,
        sub_file_len: 256 * 32,
        threshold: 0.3,
        checkpoint_every: 7,
        ..AsTreeOptions::default()
    };
    fails_once::<AsTree>(&tiny);
    fails_once::<AsTree>(&AsTreeOptions { slots: 32, checkpoint_every: 0, ..tiny });
}

#[test]
fn as_tree_of_records() {
    fails_once::<RecordAsTree>(&RecordAsTreeOptions {
        node_len: 256,
        keys_max: Some(4),
        records: 7,
        slots: 5,
        sub_file_len: 256 * 32,
        checkpoint_every: 7,
        ..RecordAsTreeOptions::default()
    });
}

#[test]
fn cb_tree() {
    for placement in [CbPlacement::OutOfPlace, CbPlacement::InPlace] {
        for persistence in [CbPersistence::RootGrowth, CbPersistence::LogPage] {
            if (placement, persistence) == (CbPlacement::InPlace, CbPersistence::LogPage) {
                continue;
            }
            fails_once::<CbTree>(&CbTreeOptions {
                page_len: 256,
                keys_max: Some(4),
                placement,
                persistence,
                ..CbTreeOptions::default()
            });
        }
    }
}

#[test]
fn ibsf_and_lazy_update_tree() {
    let frames = 2;
    let ibsf = IbsfOptions { page_len: 256, units: 9, frames, keys_max: Some(4), ..IbsfOptions::default() };
    fails_once::<Ibsf>(&ibsf);
    fails_once::<LuTree>(&LuTreeOptions {
        page_len: 256,
        units: 9,
        frames,
        keys_max: Some(4),
        ..LuTreeOptions::default()
    });
}

#[test]
fn b_trees_in_place() {
    fails_once::<BTree>(&BTreeOptions {
        page_len: 256,
        frames: 20,
        keys_max: Some(4),
        ..BTreeOptions::default()
    });
    fails_once::<BatchedBTree>(&BatchedBTreeOptions {
        page_len: 256,
        keys_max: Some(4),
        slots: 7,
        ..BatchedBTreeOptions::default()
    });
    fails_once::<BlinkTree>(&BlinkOptions { page_len: 256, frames: 20, keys_max: Some(4) });
}

#[test]
fn bftl() {
    fails_once::<Bftl>(&BftlOptions {
        sector_len: 512,
        units: 30,
        keys_max: Some(4),
        reclaim: true,
        ..BftlOptions::default()
    });
}

#[test]
fn fd_tree() {
    for log in [HeadLog::Off, HeadLog::AtFlush, HeadLog::EachOperation] {
        fails_once::<FdTree>(&FdTreeOptions {
            page_len: 512,
            head_pages: 2,
            ratio: 2,
            entries_max: Some(4),
            log,
            ..FdTreeOptions::default()
        });
    }
}

#[test]
fn lsm_tree() {
    fails_once::<LsmTree>(&LsmTreeOptions {
        page_len: 512,
        memtable_pages: 3,
        ratio: 2,
        entries_max: Some(5),
        frames: 4,
        ..LsmTreeOptions::default()
    });
}

#[test]
fn la_tree() {
    fails_once::<LaTree>(&LaTreeOptions {
        page_len: 512,
        buffer_pages: 2,
        staged: 30,
        frames: 3,
        keys_max: Some(4),
        ..LaTreeOptions::default()
    });
}

#[test]
fn pio_b_tree_and_b_epsilon_tree() {
    fails_once::<PioTree>(&PioOptions {
        page_len: 256,
        queue_pages: 5,
        frames: 6,
        fanout_max: Some(4),
        ..PioOptions::default()
    });
    fails_once::<BEpsilonTree>(&BEpsilonTreeOptions {
        page_len: 512,
        fanout: Some(4),
        entries_max: Some(4),
        retired_max: 20,
        frames: 5,
        ..BEpsilonTreeOptions::default()
    });
}
