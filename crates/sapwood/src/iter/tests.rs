//! Iterators over a database with records in its queues, log areas and leaves.

use crate::cache::pager::Keep;
use crate::cache::scan_lengths::Kind;
use crate::opq::map::pages_of;
use crate::tree::range::{Direction, Leaves};
use crate::tree::view::TreeView;
use crate::{Database, Keyspace};
use bytes::Bytes;
use psync::{AlignedBuffer, Simulated, Volume};
use std::ops::Bound::Unbounded;
use std::sync::Arc;

#[test]
fn a_standing_iterator_holds_what_is_in_flight_and_nothing_else() {
    let options = Database::builder().memory(8 << 20).leaf_len(2048).background_threads(0);
    let db = options.open_on(Arc::new(Simulated::new(1))).unwrap();
    let keyspace = db.keyspace("main").unwrap();
    // More than the cache has room for.
    keyspace.ingest((0..160_000u32).map(|number| (number.to_be_bytes(), [0; 80]))).unwrap();
    let pager = &db.handle.engine.pager;
    let version = db.handle.engine.state.version();
    let mut walk =
        Leaves::new(Arc::clone(pager), version, keyspace.id(), (Unbounded, Unbounded), Direction::Up);
    let mut flights = 0;
    while walk.next().unwrap().is_some() {
        assert!(walk.spare() == 0);
        assert!(
            pager.reader.bytes_in_flight().is_multiple_of(AlignedBuffer::ALIGNMENT),
            "{} bytes",
            pager.reader.bytes_in_flight()
        );
        flights += usize::from(pager.reader.bytes_in_flight() > 0);
    }
    assert!(flights > 10_000 && pager.reader.bytes_in_flight() == 0, "{flights}");
}

/// Each held the leaf of the record that it had shown last, beyond the budget and whatever iterators had to leave.
#[test]
fn standing_cursors_and_ranges_of_transactions_hold_no_leaves() {
    /// Frames are counted in pages of so many bytes.
    const PAGE: usize = 4096;
    const BUDGET: usize = 4 << 20;
    let options = Database::builder().memory(BUDGET as u64).background_threads(0);
    let db = options.open_on(Arc::new(Simulated::new(1))).unwrap();
    let keyspace = db.keyspace("main").unwrap();
    keyspace.ingest((0..80_000).map(|number| (key(number), [0; 100]))).unwrap();
    let places = || (0..2000).map(|number| number * 40);
    let frames = db.handle.engine.pager.reader.frames();
    let check = |what: &str| {
        let (used, _) = frames.pages();
        assert!(used * PAGE <= BUDGET, "{used} pages are held beside {what}");
    };
    let cursors: Vec<_> = places()
        .map(|place| {
            let mut cursor = keyspace.cursor();
            assert_eq!(cursor.seek(key(place)).unwrap().unwrap().0, key(place));
            assert_eq!(cursor.next().unwrap().unwrap().0, key(place + 1));
            cursor
        })
        .collect();
    check("cursors");
    for (mut cursor, place) in cursors.into_iter().zip(places()) {
        assert_eq!(cursor.record(), Some((&key(place + 1)[..], &[0; 100][..])));
        assert_eq!(cursor.prev().unwrap().unwrap().0, key(place));
    }
    let mut tx = db.transaction().unwrap();
    let own = |place: u32| [&key(place)[..], b"own"].concat();
    for has_own in [false, true] {
        if has_own {
            // What is taken from the snapshot waits behind these.
            places().for_each(|place| tx.insert(&keyspace, own(place), "own").unwrap());
        }
        let ranges: Vec<_> = places()
            .map(|place| {
                let mut range = tx.range(&keyspace, key(place)..);
                assert_eq!(range.next().unwrap().unwrap().0, key(place));
                if has_own {
                    assert_eq!(range.next().unwrap().unwrap().0, own(place));
                }
                range
            })
            .collect();
        check("ranges of a transaction");
        for (mut range, place) in ranges.into_iter().zip(places()) {
            assert_eq!(range.next().unwrap().unwrap(), (key(place + 1).into(), [0; 100].into()));
        }
    }
}

/// `first` looked at each tombstone in the queues, again and again; also after opening again.
#[test]
fn a_look_for_the_end_does_not_walk_along_what_was_removed() {
    const COUNT: u32 = 40_000;
    let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
    let open = || {
        let options = Database::builder().memory(64 << 20).background_threads(0);
        options.open_on(Arc::clone(&volume)).unwrap()
    };
    let mut db = open();
    let mut keyspace = db.keyspace("main").unwrap();
    let change = |db: &Database, keyspace: &Keyspace, numbers: std::ops::Range<u32>, is_there: bool| {
        let mut batch = db.batch();
        for number in numbers {
            match is_there {
                true => batch.insert(keyspace, key(number), [1; 40]),
                false => batch.remove(keyspace, key(number)),
            };
        }
        batch.commit().unwrap();
    };
    // Two prefixes and two suffixes that are gone, with a record between.
    change(&db, &keyspace, 0..COUNT, true);
    for gone in
        [0..COUNT / 4, COUNT / 4 + 1..COUNT / 2, COUNT / 2 + 1..3 * COUNT / 4, 3 * COUNT / 4 + 1..COUNT]
    {
        change(&db, &keyspace, gone, false);
    }
    for is_again in [false, true] {
        if is_again {
            drop(keyspace);
            db.close().unwrap();
            db = open();
            keyspace = db.keyspace("main").unwrap();
        }
        let middle = || keyspace.range(key(COUNT / 2 + 1)..key(3 * COUNT / 4)).count();
        let asked = [
            pages_of(|| assert_eq!(keyspace.first().unwrap().unwrap().0[..], key(COUNT / 4))),
            pages_of(|| assert_eq!(keyspace.last().unwrap().unwrap().0[..], key(3 * COUNT / 4))),
            pages_of(|| assert_eq!(middle(), 0)),
            pages_of(|| assert_eq!(keyspace.iter().count(), 3)),
        ];
        assert!(asked.iter().all(|pages| *pages <= 60), "{asked:?} leaves of {COUNT} tombstones");
    }
    // What lies in leaves and was removed is passed over once, by the first that comes.
    db.compact().unwrap();
    change(&db, &keyspace, 0..COUNT, true);
    db.compact().unwrap();
    change(&db, &keyspace, 0..COUNT - 10, false);
    for is_logged in [false, true] {
        if is_logged {
            db.flush().unwrap();
        }
        for is_known in [false, true] {
            let before = db.stats().device.reads;
            let pages = pages_of(|| assert_eq!(keyspace.first().unwrap().unwrap().0[..], key(COUNT - 10)));
            let reads = db.stats().device.reads - before;
            assert!(!is_known || (pages < 60 && reads < 4), "{pages} leaves of the queue, {reads} reads");
        }
    }
}

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

/// A database with these records, few in a leaf.
fn of_short_leaves(records: u32) -> (Database, Keyspace) {
    let options = Database::builder().memory(8 << 20).leaf_len(256).background_threads(0);
    let db = options.open_on(Arc::new(Simulated::new(1))).unwrap();
    let keyspace = db.keyspace("main").unwrap();
    keyspace.ingest((0..records).map(|number| (key(number), [0; 40]))).unwrap();
    (db, keyspace)
}

/// A log piece that the mapping table has lost is told where the walk comes to its block, however groups are cut.
#[test]
fn what_lies_before_a_damaged_block_is_given_out() {
    let (db, keyspace) = of_short_leaves(3000);
    let mut batch = db.batch();
    (0..3000).step_by(20).for_each(|number| _ = batch.insert(&keyspace, key(number), [1; 40]));
    batch.commit().unwrap();
    db.flush().unwrap();
    let engine = &db.handle.engine;
    let version = engine.state.version();
    let view = TreeView { pager: &engine.pager, version: &version, keyspace: keyspace.id() };
    let walk = |version, direction| {
        Leaves::new(Arc::clone(&engine.pager), version, keyspace.id(), (Unbounded, Unbounded), direction)
    };
    let nodes = version
        .table
        .iter()
        .map(|(id, address)| (view.pager.fetch_one(&version.segments, id, address, Keep::Long), address));
    let leaves: Vec<_> = nodes
        .filter(|(node, _)| node.as_ref().unwrap().name().level == 0)
        .map(|(_, address)| address)
        .collect();
    let kind = Kind::new(keyspace.id(), false);
    let (mut low, mut damaged, mut more) = (Bytes::new(), 0, 0);
    while let Some(block) = view.block_at(&low).unwrap() {
        if let Some(area) = view.log(block.id) {
            damaged += 1;
            let mut version = (*version).clone();
            version.table.remove(area.pieces().next().unwrap());
            let version = Arc::new(version);
            let walks = [Direction::Up, Direction::Down]
                .map(|direction| [5, 30, 60, 2000].map(|len| (direction, len)));
            for (direction, len) in walks.into_iter().flatten() {
                (0..300).for_each(|_| engine.pager.lengths.note(kind, len));
                // Blocks stay in the cache, so that groups go on in the next one; leaves have to be read.
                leaves.iter().for_each(|leaf| _ = engine.pager.forget(leaf.position));
                let mut walk = walk(Arc::clone(&version), direction);
                let mut given = Vec::new();
                let error = loop {
                    match walk.next() {
                        Ok(Some((key, _))) => given.push(key),
                        Ok(None) => panic!("no error named the damage"),
                        Err(error) => break error,
                    }
                };
                assert!(error.to_string().contains("the mapping table has no"), "{error}");
                let is_before = |key: &[u8]| match (direction, &block.fence) {
                    (Direction::Up, _) => key < &low[..],
                    (Direction::Down, fence) => fence.as_ref().is_some_and(|fence| key >= &fence[..]),
                };
                let expected = (0..3000).filter(|number| is_before(&key(*number))).count();
                assert_eq!(
                    given.len(),
                    expected,
                    "{direction:?}, walks of {len} leaves, block from {low:?} on"
                );
                assert!(given.iter().all(|key| is_before(key)));
                more += usize::from(expected > 0);
            }
        }
        let Some(fence) = block.fence else { break };
        low = fence;
    }
    assert!(damaged > 3 && more > 20, "{damaged} blocks, {more} walks");
}

#[test]
fn what_lies_before_a_damaged_leaf_is_given_out_though_it_was_cached() {
    let (db, keyspace) = of_short_leaves(1000);
    let engine = &db.handle.engine;
    let version = engine.state.version();
    let mut leaves = Vec::new();
    for (id, address) in version.table.iter() {
        let node = engine.pager.fetch_one(&version.segments, id, address, Keep::Long).unwrap();
        engine.pager.admit(address.position, node.clone());
        if node.name().level == 0 {
            leaves.push((id, node.key_bytes(0)));
        }
    }
    for (id, first) in leaves.iter().step_by(7) {
        let mut version = (*version).clone();
        version.table.remove(*id);
        let (pager, unbounded) = (Arc::clone(&engine.pager), (Unbounded, Unbounded));
        let mut walk = Leaves::new(pager, Arc::new(version), keyspace.id(), unbounded, Direction::Up);
        let mut given = 0;
        while let Ok(Some(_)) = walk.next() {
            given += 1;
        }
        let expected = (0..1000).filter(|number| key(*number)[..] < first[..]).count();
        assert_eq!(given, expected, "{id} begins with {first:?}");
    }
}

#[test]
fn a_clone_goes_on_where_the_iterator_stands() {
    let (db, keyspace) = of_short_leaves(3000);
    let mut batch = db.batch();
    (0..3000).step_by(7).for_each(|number| _ = batch.remove(&keyspace, key(number)));
    (1..3000).step_by(50).for_each(|number| _ = batch.insert(&keyspace, key(number), "new"));
    batch.commit().unwrap();
    let mut range = keyspace.range(key(10)..=key(2990));
    for step in 0.. {
        if step % 300 < 2 {
            let clone: Vec<_> = range.clone().map(|record| record.unwrap()).collect();
            let mut other = range.clone();
            let back: Vec<_> =
                std::iter::from_fn(|| other.next_back()).map(|record| record.unwrap()).collect();
            assert!(clone.iter().eq(back.iter().rev()), "step {step}");
            keyspace.insert("later", "is not seen").unwrap();
            assert_eq!(range.clone().count(), clone.len());
            let Some(next) = clone.first() else { break };
            let next_back = clone.last().unwrap();
            if step % 2 == 0 {
                assert_eq!(range.next().unwrap().unwrap(), *next);
            } else {
                assert_eq!(range.next_back().unwrap().unwrap(), *next_back);
            }
            continue;
        }
        let end = if step % 3 == 0 { range.next_back() } else { range.next() };
        if end.is_none() {
            assert!(range.clone().next().is_none() && range.clone().next_back().is_none());
            break;
        }
        end.unwrap().unwrap();
    }
    let foreign = crate::Database::builder().memory(4 << 20).open_on(Arc::new(Simulated::new(2))).unwrap();
    let refused = foreign.snapshot().iter(&keyspace);
    assert!(matches!(refused.clone().next(), Some(Err(crate::Error::Foreign { .. }))));
}

/// Where log areas remove many records in a row, the walk through the tree is ahead of what the queues have. A range that was
/// noted as empty there took the queues' records with it.
#[test]
fn records_that_come_back_among_removed_ones_are_seen() {
    let db = Database::builder().memory(4 << 20).background_threads(0).open_on(Arc::new(Simulated::new(1)));
    let db = db.unwrap();
    let keyspace = db.keyspace("main").unwrap();
    let change = |numbers: &mut dyn Iterator<Item = u32>, is_there: bool| {
        let mut batch = db.batch();
        numbers.for_each(|number| match is_there {
            true => _ = batch.insert(&keyspace, key(number), [7; 100]),
            false => _ = batch.remove(&keyspace, key(number)),
        });
        batch.commit().unwrap();
    };
    change(&mut (0..3000), true);
    db.flush().unwrap();
    // A few at a time, so that they go to log areas.
    for first in 0..8 {
        change(&mut (1000 + first..1400).step_by(8), false);
        db.flush().unwrap();
    }
    let logged: u64 =
        db.handle.engine.state.load().version.logs.iter().map(|(_, area)| area.removals()).sum();
    assert!(logged > 300, "{logged} removals are in log areas");
    let expected = |number: &u32| !(1000..1400).contains(number);
    let check = |back: &[u32]| {
        let there: Vec<_> = (0..3000).filter(|number| expected(number) || back.contains(number)).collect();
        for _ in 0..2 {
            let up: Vec<_> = keyspace.iter().map(|item| item.unwrap().0.to_vec()).collect();
            let down: Vec<_> = keyspace.iter().rev().map(|item| item.unwrap().0.to_vec()).collect();
            assert!(up.iter().eq(down.iter().rev()));
            assert_eq!(up, there.iter().map(|number| key(*number).to_vec()).collect::<Vec<_>>());
        }
    };
    check(&[]);
    let mut back = Vec::new();
    for some in [&[1010, 1190, 1395][..], &[1011, 1100], &[1000, 1399]] {
        change(&mut some.iter().copied(), true);
        back.extend(some);
        check(&back);
    }
}

/// Each ingestion, dropped keyspace and portion of a large value had all keyspaces walk along what they had removed once more.
#[test]
fn what_comes_to_other_keyspaces_leaves_known_empty_ranges_alone() {
    const COUNT: u32 = 5000;
    let options = Database::builder().memory(16 << 20).background_threads(0);
    let db = options.open_on(Arc::new(Simulated::new(1))).unwrap();
    let (queue, other) = (db.keyspace("queue").unwrap(), db.keyspace("other").unwrap());
    let large = db.large_values("large").unwrap();
    queue.ingest((0..COUNT).map(|number| (key(number), [0; 40]))).unwrap();
    let mut batch = db.batch();
    (0..COUNT - 10).for_each(|number| _ = batch.remove(&queue, key(number)));
    batch.commit().unwrap();
    let state = &db.handle.engine.state;
    let is_known = || state.empty_ranges.above(queue.id(), &key(7), state.visible()).is_some();
    let first = || queue.first().unwrap().unwrap().0;
    assert_eq!(first()[..], key(COUNT - 10));
    let names = ["temporary", "replaced", "anew"].map(|name| db.keyspace(name).unwrap());
    names.iter().for_each(|keyspace| keyspace.insert("key", "value").unwrap());
    let changes: [&dyn Fn(); 5] = [
        &|| assert_eq!(other.ingest([("key", "value")]).unwrap(), 1),
        &|| large.insert("key", [7; 100_000]).unwrap(),
        &|| assert!(db.drop_keyspace("temporary").unwrap()),
        &|| db.replace_keyspace("anew", "replaced").unwrap(),
        &|| db.flush().unwrap(),
    ];
    for (number, change) in changes.iter().enumerate() {
        assert!(is_known(), "before change {number}");
        change();
        assert!(is_known(), "change {number}");
        assert_eq!(first()[..], key(COUNT - 10));
    }
    // One that was there before notes what it finds, behind what came elsewhere, and not behind what came here.
    let again = |is_there: bool| {
        let mut batch = db.batch();
        (0..COUNT - 10).for_each(|number| match is_there {
            true => _ = batch.insert(&queue, key(number), [0; 40]),
            false => _ = batch.remove(&queue, key(number)),
        });
        batch.commit().unwrap();
    };
    again(true);
    db.flush().unwrap();
    again(false);
    assert!(!is_known());
    let snapshot = db.snapshot();
    assert!(db.drop_keyspace("other").unwrap());
    assert_eq!(snapshot.first(&queue).unwrap().unwrap().0[..], key(COUNT - 10));
    assert!(is_known());
    let between = Bytes::from([&key(7)[..], b"x"].concat());
    db.handle.engine.ingest_beside(queue.id(), vec![(between.clone(), Bytes::from("value"))]).unwrap();
    assert!(!is_known());
    assert_eq!(snapshot.first(&queue).unwrap().unwrap().0[..], key(COUNT - 10));
    assert_eq!(first()[..], between[..]);
}
