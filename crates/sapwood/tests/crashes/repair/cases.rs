//! Each kind of damage, and what is saved.

use super::world::{Counted, Repaired, Shape, World, open, options, repair};
use psync::{Fault, Filter, OperationKind, Repeat, Simulated, Volume};
use sapwood::merge::AddU64;
use sapwood::repair::{Loss, LossCause, Repair};
use sapwood::{Error, KeyspaceOptions};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

const SHAPE: Shape =
    Shape { keys: 2000, rounds: 2, batches: 20, has_films: true, is_closed: true, is_encrypted: false };

#[test]
fn a_sound_database_is_copied_whole() {
    for (seed, is_closed) in [(1, true), (2, false)] {
        let world = World::new(seed, Shape { is_closed, ..SHAPE });
        let made = repair(&world.image()).expect("repairs");
        assert!(!made.report.has_losses() && made.report.damage.is_empty(), "{:#?}", made.report);
        let counted = made.compare(&world.history, true, "sound");
        assert_eq!((counted.listed, counted.differ), (0, 0));
        drop(open(&made.volume).expect("opens again"));
    }
}

/// Where nodes of this kind (1 leaf, 2 inner node, 3 log piece) begin in the data, dead ones among them, and their levels and lengths.
fn nodes(image: &Simulated, kind: u8) -> Vec<(u64, u8, usize)> {
    let bytes = image.read_file("data").expect("data");
    let mut found = Vec::new();
    for at in memchr::memmem::find_iter(&bytes, b"SapN") {
        let Some(head) = bytes.get(at..at + 40) else { break };
        let len = u32::from_le_bytes(head[28..32].try_into().expect("4 bytes")) as usize;
        if head[4] == kind && len <= bytes.len() - at {
            found.push((at as u64, head[5], len));
        }
    }
    found
}

fn damaged(world: &World, offsets: impl IntoIterator<Item = u64>) -> Simulated {
    let image = world.image();
    offsets.into_iter().for_each(|at| image.flip_bit("data", at + 37, 3).expect("a bit"));
    image
}

#[test]
fn what_is_below_a_damaged_inner_node_is_found() {
    for (seed, is_closed) in [(3, true), (4, false)] {
        let world = World::new(seed, Shape { is_closed, ..SHAPE });
        let inner = nodes(&world.image(), 2);
        let (mut damage, mut levels) = (0, std::collections::BTreeSet::new());
        for (at, level, _) in inner.iter() {
            let made = repair(&damaged(&world, [*at])).expect("repairs");
            assert!(!made.report.has_losses(), "{:#?}", made.report);
            made.compare(&world.history, true, "an inner node");
            damage += made.report.damage.len();
            if !made.report.damage.is_empty() {
                levels.insert(*level);
            }
        }
        assert!(damage > 4, "{damage} of {} were alive", inner.len());
        // All of them at once.
        let made = repair(&damaged(&world, inner.iter().map(|(at, ..)| *at))).expect("repairs");
        assert!(!made.report.has_losses() && made.report.damage.len() > 4, "{:#?}", made.report);
        made.compare(&world.history, true, "all inner nodes");
        assert!(inner.iter().any(|(_, level, _)| *level > 1), "trees are high");
    }
}

/// Bytes: leaves of the other keyspaces are shorter, and chunks of the large values longer.
const CHUNKS_ARE_LONGER: usize = 8 << 10;

#[test]
fn a_damaged_leaf_costs_its_records_only() {
    let world = World::new(5, SHAPE);
    let leaves = nodes(&world.image(), 1);
    let (mut sum, mut alive) = (Counted::default(), 0);
    for (at, _, len) in leaves.iter().step_by(leaves.len() / 60) {
        let made = repair(&damaged(&world, [*at])).expect("repairs");
        let counted = made.compare(&world.history, true, "a leaf");
        let lost: usize = made.report.keyspaces.iter().map(|keyspace| keyspace.lost.len()).sum();
        // A chunk may be of a large value that was replaced, and its removal still in the log: then nothing lacks it.
        let may_be_unneeded = *len > CHUNKS_ARE_LONGER;
        let damage = made.report.damage.len();
        assert!(damage < 2 && (lost == damage || may_be_unneeded && lost < damage), "{:#?}", made.report);
        for range in made.report.keyspaces.iter().flat_map(|keyspace| &keyspace.lost) {
            assert!([LossCause::Leaf, LossCause::Chunk].contains(&range.cause));
            alive += 1;
        }
        // A leaf has some ten records, and what was removed in between is listed too.
        assert!(counted.listed <= 150, "{counted:?}");
        (sum.listed, sum.differ) = (sum.listed + counted.listed, sum.differ + counted.differ);
    }
    assert!(alive > 10 && sum.differ * 3 > sum.listed, "{alive} alive: {sum:?}");
}

#[test]
fn leaves_and_inner_nodes_together_cost_what_is_between_others() {
    for seed in 6..12 {
        let world = World::new(seed, Shape { has_films: false, ..SHAPE });
        let image = world.image();
        let (leaves, inner) = (nodes(&image, 1), nodes(&image, 2));
        let some = leaves.iter().skip(seed as usize).step_by(23).chain(&inner).map(|(at, ..)| *at);
        let made = repair(&damaged(&world, some)).expect("repairs");
        let counted = made.compare(&world.history, true, "leaves and inner nodes");
        assert!(counted.listed < counted.keys / 2 && counted.differ > 0, "{counted:?}");
        // With all log pieces nothing tells where changes are lost.
        let pieces = nodes(&image, 3);
        let all = inner.iter().chain(&pieces).map(|(at, ..)| *at);
        repair(&damaged(&world, all)).expect("repairs").compare(&world.history, true, "all but leaves");
    }
}

#[test]
fn a_damaged_log_piece_leaves_older_values() {
    let mut older = 0;
    for seed in 13..16 {
        let world = World::new(seed, Shape { has_films: false, ..SHAPE });
        let pieces = nodes(&world.image(), 3);
        for (at, ..) in pieces.iter().step_by(pieces.len() / 20 + 1) {
            let made = repair(&damaged(&world, [*at])).expect("repairs");
            made.compare(&world.history, true, "a log piece");
            for range in made.report.keyspaces.iter().flat_map(|keyspace| &keyspace.lost) {
                assert_eq!((range.cause, range.loss), (LossCause::LogPiece, Loss::Older));
                older += 1;
            }
        }
        let made = repair(&damaged(&world, pieces.iter().map(|(at, ..)| *at))).expect("repairs");
        made.compare(&world.history, true, "all log pieces");
    }
    assert!(older > 5, "{older}");
}

#[test]
fn a_damaged_log_ends_there_and_what_follows_is_counted() {
    let world = World::new(17, Shape { is_closed: false, rounds: 1, batches: 5, ..SHAPE });
    let image = world.image();
    let name = names(&image, "wal-").pop().expect("a log");
    let log = image.read_file(&name).expect("a log");
    let records: Vec<_> = memchr::memmem::find_iter(&log, &[0xf6, 0x57, 0xb1, 0x52]).collect();
    assert!(records.len() >= 5);
    let sound = repair(&image).expect("repairs").report.log;
    for (index, at) in records.iter().enumerate().take(records.len() - 1) {
        let image = world.image();
        image.flip_bit(&name, *at as u64 + 60, 1).expect("a bit");
        let made = repair(&image).expect("repairs");
        made.compare(&world.history, true, "a record of the log");
        let found = &made.report.log;
        assert_eq!((found.records, found.left_out), (index as u64, (records.len() - index - 1) as u64));
        assert!(found.operations_unreadable > 0);
        assert_eq!(
            found.operations + found.operations_left_out + found.operations_unreadable,
            sound.operations
        );
        for keyspace in &made.report.keyspaces {
            assert!(keyspace.lost.iter().any(|range| range.is_all() && range.cause == LossCause::Log));
        }
    }
    // Its last record was not promised to be durable, as far as anything tells.
    image.flip_bit(&name, *records.last().expect("a record") as u64 + 60, 1).expect("a bit");
    let made = repair(&image).expect("repairs");
    made.compare(&world.history, true, "the last record of the log");
    assert!(made.report.unfinished > 0 && made.report.has_losses());
    // A missing file.
    let image = world.image();
    image.remove_file(&name).expect("removed");
    let made = repair(&image).expect("repairs");
    made.compare(&world.history, true, "no log");
    assert!(made.report.has_losses() && made.report.log.records == 0);
}

fn names(image: &Simulated, prefix: &str) -> Vec<String> {
    let entries = image.list().expect("a list").into_iter();
    entries.map(|entry| entry.name).filter(|name| name.starts_with(prefix)).collect()
}

#[test]
fn without_current_the_newest_manifest_counts() {
    for (seed, is_closed) in [(20, true), (21, false)] {
        let world = World::new(seed, Shape { is_closed, ..SHAPE });
        let magic = |image: &Simulated| image.flip_bit("CURRENT", 2, 2).expect("a bit");
        let checksum = |image: &Simulated| image.flip_bit("CURRENT", 30, 2).expect("a bit");
        let removed = |image: &Simulated| image.remove_file("CURRENT").expect("removed");
        let emptied = |image: &Simulated| image.truncate_file("CURRENT", 0).expect("cut");
        for damage in [&magic as &dyn Fn(&Simulated), &checksum, &removed, &emptied] {
            let image = world.image();
            damage(&image);
            let made = repair(&image).expect("repairs");
            assert!(!made.report.has_losses() && made.report.damage.len() == 1, "{:#?}", made.report);
            made.compare(&world.history, true, "CURRENT");
        }
    }
}

#[test]
fn without_a_manifest_the_nodes_tell_what_they_are() {
    let world = World::new(22, Shape { has_films: false, ..SHAPE });
    // The catalog is known, or a part of it; then nothing at all.
    let manifest = names(&world.image(), "manifest-").pop().expect("a manifest");
    let len = world.image().read_file(&manifest).expect("a manifest").len() as u64;
    for at in (0..600).step_by(50).chain((0..len).step_by(len as usize / 15)) {
        let image = world.image();
        image.flip_bit(&manifest, at, 4).expect("a bit");
        let made = repair(&image).expect("repairs");
        let counted = made.compare(&world.history, true, &format!("byte {at} of the manifest"));
        // Most is right all the same, but for operands without a value.
        assert!(counted.differ < counted.keys / 2, "byte {at}: {counted:?}\n{:#?}", made.report);
    }
    let image = world.image();
    image.remove_file(&manifest).expect("removed");
    image.remove_file("CURRENT").expect("removed");
    let made = repair(&image).expect("repairs");
    assert!(made.report.may_lack_keyspaces && made.report.has_losses());
    let db = open(&made.volume).expect("opens");
    db.check().expect("sound");
    let plain = db.keyspace("recovered-1").expect("it has lost its name");
    let of_plain: Vec<_> = world.history.iter().filter(|((name, _), _)| *name == "plain").collect();
    let right = of_plain.iter().filter(|((_, key), values)| {
        plain.get(key).expect("a read").as_deref() == values.last().and_then(|value| value.as_deref())
    });
    assert!(right.count() * 10 > of_plain.len() * 9, "of {}", of_plain.len());
}

#[test]
fn without_data_what_the_log_has_is_saved() {
    let world = World::new(23, Shape { is_closed: false, ..SHAPE });
    let image = world.image();
    image.remove_file("data").expect("removed");
    let made = repair(&image).expect("repairs");
    let counted = made.compare(&world.history, true, "no data");
    assert!(counted.differ > 0 && made.report.log.operations > 0);
    for cut in [0, 4096, 100_000] {
        let image = world.image();
        image.truncate_file("data", cut).expect("cut");
        repair(&image).expect("repairs").compare(&world.history, true, "cut data");
    }
}

#[test]
fn what_a_database_does_not_need_may_be_damaged() {
    let volume = Simulated::new(24);
    let keeping = || options().keep_changes(1 << 20).open_on(Arc::new(volume.clone()) as Arc<dyn Volume>);
    let db = keeping().expect("opens");
    let keyspace = db.keyspace("plain").expect("a keyspace");
    for number in 0..200u32 {
        keyspace.insert(number.to_be_bytes(), [7; 100]).expect("inserts");
        if number % 50 == 0 {
            db.flush().expect("flushes");
        }
    }
    db.close().expect("closes");
    let kept = names(&volume, "wal-");
    assert!(kept.len() > 2);
    volume.flip_bit(&kept[0], 100, 1).expect("a bit");
    volume.remove_file(&kept[1]).expect("removed");
    volume.write_file("follower-00000000000000a1", b"nonsense").expect("written");
    volume.write_file("DURABLE", b"nonsense").expect("written");
    let made = repair(&volume).expect("repairs");
    assert!(!made.report.has_losses() && made.report.damage.is_empty(), "{:#?}", made.report);
    let db = open(&made.volume).expect("opens");
    assert_eq!(db.keyspace("plain").expect("a keyspace").count(..).expect("a count"), 200);
}

#[test]
fn large_values_that_lack_a_chunk_are_listed_by_key() {
    let world = World::new(25, Shape { batches: 2, ..SHAPE });
    let chunks = nodes(&world.image(), 1).into_iter().filter(|(.., len)| *len > 50_000).map(|(at, ..)| at);
    let mut listed = 0;
    for at in chunks {
        let made = repair(&damaged(&world, [at])).expect("repairs");
        made.compare(&world.history, true, "a chunk");
        assert!(made.report.keyspaces.iter().all(|keyspace| !keyspace.name.starts_with('\u{1}')));
        for range in made.report.keyspaces.iter().flat_map(|keyspace| &keyspace.lost) {
            assert_eq!(range.cause, LossCause::Chunk);
            assert_eq!(range.to.as_ref().map(Vec::len), Some(range.from.len() + 1));
            listed += 1;
        }
    }
    assert!(listed > 0);
}

#[test]
fn operands_are_not_merged_into_nothing() {
    let volume = Simulated::new(26);
    let db = open(&volume).expect("opens");
    let counts = db.keyspace_with("counts", KeyspaceOptions::new().merge(AddU64)).expect("a keyspace");
    let add = |keys: Range<u32>| {
        for key in keys {
            counts.merge(key.to_be_bytes(), 1u64.to_be_bytes()).expect("an operand");
        }
    };
    add(0..400);
    db.compact().expect("compacts");
    add(100..110);
    db.flush().expect("flushes");
    add(200..210);
    let image = volume.crash();
    std::mem::forget(db);
    let leaves: Vec<_> = nodes(&image, 1).into_iter().map(|(at, ..)| at).collect();
    for at in &leaves {
        image.flip_bit("data", at + 37, 3).expect("a bit");
    }
    let made = repair(&image).expect("repairs");
    let db = open(&made.volume).expect("opens");
    db.check().expect("sound");
    let counts = db.keyspace_with("counts", KeyspaceOptions::new().merge(AddU64)).expect("a keyspace");
    assert_eq!(counts.count(..).expect("a count"), 0, "{:#?}", made.report);
}

#[test]
fn a_repair_that_fails_is_begun_anew() {
    let world = World::new(27, Shape { has_films: false, ..SHAPE });
    let onto = |volume: &Simulated| Repair::of_volume(Arc::new(world.image())).onto(Arc::new(volume.clone()));
    let volume = Simulated::new(1).with_capacity(64 << 10);
    let failed = onto(&volume);
    assert!(matches!(failed, Err(Error::DiskFull(_))), "{failed:?}");
    assert!(matches!(open(&volume), Err(Error::NotADatabase { .. })));
    // Half of a copy is not to be gone on with either.
    volume.set_capacity(1 << 30);
    match Repair::of_volume(Arc::new(volume.clone())).onto(Arc::new(Simulated::new(2))) {
        Err(Error::NotADatabase { reason, .. }) => assert!(reason.contains("repeat it"), "{reason}"),
        repaired => panic!("{repaired:?}"),
    }
    let stopped = Repair::of_volume(Arc::new(world.image())).on_progress(|progress| {
        assert!(progress.done <= progress.total);
        if progress.done > progress.total / 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(stopped.onto(Arc::new(volume.clone())), Err(Error::Stopped)));
    let report = onto(&volume).expect("repairs");
    Repaired { volume: volume.clone(), report }.compare(&world.history, true, "in the end");
    assert!(matches!(onto(&volume), Err(Error::NotEmpty { .. })));
    // Every write, sync and rename fails once.
    for nth in 1.. {
        let volume = Simulated::new(nth);
        volume.fail_nth(Filter::changes(), nth, Fault::Error, Repeat::Once);
        let made = onto(&volume);
        if volume.fired() == 0 {
            break;
        }
        volume.clear_faults();
        assert!(made.is_err() || open(&volume).is_ok(), "operation {nth}: it was told that all is there");
        assert!(nth < 400, "it ends");
        let is_database = names(&volume, "CURRENT").contains(&"CURRENT".to_owned());
        assert!(made.is_ok() || !is_database, "operation {nth}: it cannot be repeated");
        if nth % 3 == 0 && !is_database {
            onto(&volume).unwrap_or_else(|error| panic!("operation {nth}: {error}"));
        }
    }
}

/// The power goes at each change: the target is no database yet, and the repair is begun anew there, or it is what a repair makes.
#[test]
fn a_repair_that_loses_power_is_no_half_database() {
    let world = World::new(27, Shape { has_films: false, ..SHAPE });
    let onto = |volume: &Simulated| Repair::of_volume(Arc::new(world.image())).onto(Arc::new(volume.clone()));
    let (mut again, mut whole) = (0, 0);
    for nth in 1.. {
        let volume = Simulated::new(nth);
        volume.fail_nth(Filter::changes(), nth, Fault::PowerOff, Repeat::Once);
        let made = onto(&volume);
        for seed in 0..3 {
            let story = format!("operation {nth}, seed {seed}");
            let after = volume.power_loss(seed);
            let is_database = names(&after, "CURRENT").contains(&"CURRENT".to_owned());
            assert!(is_database || made.is_err(), "{story}: it was told that all is there");
            // The image is the same, and so is what is lost.
            let target = if is_database { Simulated::new(seed) } else { after.clone() };
            let report = onto(&target).unwrap_or_else(|error| panic!("{story}: {error}"));
            let volume = if is_database { after } else { target };
            Repaired { volume, report }.compare(&world.history, true, &story);
            *if is_database { &mut whole } else { &mut again } += 1;
        }
        if volume.fired() == 0 {
            break;
        }
    }
    assert!(again > 20 && whole > 0, "{again} begun anew, {whole} whole");
}

#[test]
fn reads_that_fail_are_damage() {
    let world = World::new(28, Shape { has_films: false, ..SHAPE });
    let image = world.image();
    image.fail_nth(Filter::kinds([OperationKind::Read]).file("data"), 3, Fault::Error, Repeat::Sticky);
    let volume = Simulated::new(1);
    let report = Repair::of_volume(Arc::new(image)).onto(Arc::new(volume.clone())).expect("repairs");
    assert!(report.has_losses() && !report.damage.is_empty());
    Repaired { volume, report }.compare(&world.history, true, "unreadable data");
    // Nobody repairs what a process writes to.
    let volume = Simulated::new(1);
    let db = open(&volume).expect("opens");
    let locked = Repair::of_volume(Arc::new(volume.clone())).onto(Arc::new(Simulated::new(2)));
    assert!(matches!(locked, Err(Error::Locked { .. })));
    drop(db);
    // What may not be opened is not lost.
    for file in ["CURRENT", "data", "manifest", "wal"] {
        let image = world.image();
        image.fail_nth(Filter::kinds([OperationKind::Open]).file(file), 1, Fault::Error, Repeat::Sticky);
        let refused = Repair::of_volume(Arc::new(image)).onto(Arc::new(Simulated::new(2)));
        assert!(matches!(refused, Err(Error::Io(_))), "{file}: {refused:?}");
    }
    let nothing = Repair::of_volume(Arc::new(Simulated::new(1))).onto(Arc::new(Simulated::new(2)));
    assert!(matches!(nothing, Err(Error::Missing { .. })));
}

#[test]
fn changes_in_log_areas_are_saved_without_any_leaf() {
    let volume = Simulated::new(29);
    let db = open(&volume).expect("opens");
    let plain = db.keyspace("plain").expect("a keyspace");
    let put = |keys: &mut dyn Iterator<Item = u32>, value: &str| {
        let mut batch = db.batch();
        keys.for_each(|key| _ = batch.insert(&plain, key.to_be_bytes(), value));
        batch.commit().expect("commits");
        db.flush().expect("flushes");
    };
    put(&mut (0..3000), "a value that is lost");
    db.compact().expect("compacts");
    put(&mut (0..3000).step_by(40), "saved");
    db.close().expect("closes");
    for (at, ..) in nodes(&volume, 1) {
        volume.flip_bit("data", at + 37, 3).expect("a bit");
    }
    let made = repair(&volume).expect("repairs");
    let db = open(&made.volume).expect("opens");
    db.check().expect("sound");
    let plain = db.keyspace("plain").expect("a keyspace");
    assert_eq!(plain.count(..).expect("a count"), 3000 / 40, "{:#?}", made.report);
    assert!(plain.iter().all(|item| item.is_ok_and(|(_, value)| &*value == b"saved")));
}
