//! Explanations against gets and the device's own counts.

use super::*;
use crate::merge::Append;
use crate::{Compression, Database, KeyspaceOptions};
use psync::{Simulated, Volume};
use std::collections::BTreeSet;
use std::sync::Arc;

const COUNT: u32 = 60_000;

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

fn open(volume: &Simulated) -> Database {
    let shared: Arc<dyn Volume> = Arc::new(volume.clone());
    Database::builder().memory(4 << 20).background_threads(0).open_on(shared).unwrap()
}

/// More data than cache, log areas with changed and removed keys, and some changes in the queue.
fn filled(volume: &Simulated, compression: Compression) -> Database {
    let db = open(volume);
    let keyspace = db.keyspace_with("main", KeyspaceOptions::new().compression(compression)).unwrap();
    let value = |number: u32| [&number.wrapping_mul(0x9e37_79b9).to_le_bytes()[..], &[1; 96]].concat();
    keyspace.ingest((0..COUNT).map(|number| (key(number), value(number)))).unwrap();
    for (step, value) in [(64, Some([2; 90])), (96, None)] {
        let mut batch = db.batch();
        for number in (0..COUNT).step_by(step) {
            match value {
                Some(value) => _ = batch.insert(&keyspace, key(number), value),
                None => _ = batch.remove(&keyspace, key(number)),
            }
        }
        batch.commit().unwrap();
        db.flush().unwrap();
    }
    assert!(db.stats().space.log_runs > 1);
    keyspace.insert(key(5), "queued").unwrap();
    keyspace.remove(key(6)).unwrap();
    drop((keyspace, db));
    open(volume)
}

#[test]
fn steps_are_those_of_a_get_and_requests_those_of_the_device() {
    for compression in [Compression::None, Compression::Lz4] {
        steps_are_those_of_a_get(compression);
    }
}

fn steps_are_those_of_a_get(compression: Compression) {
    let volume = Simulated::new(1);
    let db = filled(&volume, compression);
    let (keyspace, engine) = (db.keyspace("main").unwrap(), &db.handle.engine);
    let mut seen = BTreeSet::new();
    for number in [5, 6, COUNT].into_iter().chain((0..COUNT).step_by(32)).chain([0, 64, 7]) {
        let key = key(number);
        let (state, seq) = engine.state.view();
        let view = TreeView { pager: &engine.pager, version: &state.version, keyspace: keyspace.id() };
        let mut walk = Walk { engine, view, key: &key, steps: Vec::new(), requests: 0, bytes: 0 };
        let before = engine.volume.counters();
        walk.go(&state, seq).unwrap();
        let read = engine.volume.counters() - before;
        assert_eq!((walk.requests, walk.bytes), (read.reads, read.bytes_read), "{:?}", walk.steps);

        let found = keyspace.get(key).unwrap();
        let last = match walk.steps.last().expect("a step") {
            ExplainStep::Queue { finding, .. }
            | ExplainStep::CachedRecord { finding }
            | ExplainStep::Piece { finding, .. }
            | ExplainStep::Leaf { finding, .. } => *finding,
            _ => Finding::Nothing,
        };
        match (found, last) {
            (Some(value), Finding::Value { bytes }) => assert_eq!(value.len() as u64, bytes),
            (None, Finding::Removed | Finding::Nothing) => {}
            other => panic!("{other:?}: {:?}", walk.steps),
        }
        seen.extend(
            walk.steps.iter().map(|step| step.to_string().split([' ', ',']).next().unwrap().to_owned()),
        );
        if walk.steps.len() == 1 {
            assert!([5, 6].contains(&number), "{number}");
        }
    }
    let all = ["active", "block", "cached", "inner", "leaf", "log"];
    assert!(all.iter().all(|step| seen.contains(*step)), "{seen:?}");
}

#[test]
fn what_is_read_again_comes_from_the_cache() {
    let volume = Simulated::new(1);
    let db = filled(&volume, Compression::None);
    let keyspace = db.keyspace("main").unwrap();
    let first = keyspace.explain(key(64)).unwrap();
    assert!(first.requests > 0 && first.bytes >= 512 * first.requests, "{first}");
    assert!(first.to_string().contains("read from the device, "), "{first}");
    let again = keyspace.explain(key(64)).unwrap();
    assert_eq!((again.requests, again.bytes, again.value_bytes), (0, 0, first.value_bytes), "{again}");
}

#[test]
fn operands_are_followed_to_the_value_below_them() {
    let db = open(&Simulated::new(1));
    let words = db.keyspace_with("words", KeyspaceOptions::new().merge(Append)).unwrap();
    words.insert("k", "base").unwrap();
    db.flush().unwrap();
    words.merge("k", "ment").unwrap();
    let explanation = words.explain("k").unwrap();
    let [ExplainStep::Queue { finding: Finding::Operands { .. }, .. }, .., ExplainStep::Leaf { finding, .. }] =
        &explanation.steps[..]
    else {
        panic!("{explanation}")
    };
    assert!(matches!(finding, Finding::Value { .. }) && explanation.value_bytes == Some(8), "{explanation}");
}

#[test]
fn keys_that_no_keyspace_can_have_are_refused() {
    let db = open(&Simulated::new(1));
    let keyspace = db.keyspace("main").unwrap();
    assert!(matches!(keyspace.explain(""), Err(crate::Error::KeyEmpty)));
    assert_eq!(keyspace.explain("k").unwrap().value_bytes, None);
}
