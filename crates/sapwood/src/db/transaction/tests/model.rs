//! Transactions against a model: a map and, for each transaction, a copy of it with what it has read, in one thread.

use crate::{ConflictReason, Database, Durability, Error, Keyspace, Savepoint, Transaction};
use proptest::prelude::*;
use psync::{Simulated, Volume};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

type Map = BTreeMap<u8, u8>;

/// Keys are below.
const KEYS: u8 = 24;

#[derive(Clone, Debug)]
enum Step {
    Begin,
    Get(u8),
    MultiGet(Vec<u8>),
    /// Bounds, how many steps at which end.
    Range(u8, u8, Vec<bool>),
    /// What a cursor does, and the key that it seeks.
    Cursor(Vec<(u8, u8)>),
    Write(u8, Option<u8>),
    RemoveRange(u8, u8),
    Savepoint,
    RollBack(prop::sample::Index),
    Commit(bool),
    Drop,
    /// Not in a transaction.
    Put(u8, Option<u8>),
    /// The same, a range removed.
    PutRange(u8, u8),
    Flush,
    Reopen,
}

/// A step, and in which of the open transactions.
fn step() -> impl Strategy<Value = (Step, prop::sample::Index)> {
    let key = || 0u8..KEYS;
    let step = prop_oneof![
        4 => Just(Step::Begin),
        4 => key().prop_map(Step::Get),
        1 => prop::collection::vec(key(), 0..5).prop_map(Step::MultiGet),
        4 => (key(), key(), prop::collection::vec(any::<bool>(), 0..6)).prop_map(|(a, b, ends)| Step::Range(a, b, ends)),
        3 => prop::collection::vec((0u8..10, key()), 0..8).prop_map(Step::Cursor),
        8 => (key(), any::<Option<u8>>()).prop_map(|(key, value)| Step::Write(key, value)),
        2 => (key(), key()).prop_map(|(a, b)| Step::RemoveRange(a.min(b), a.max(b))),
        2 => Just(Step::Savepoint),
        1 => any::<prop::sample::Index>().prop_map(Step::RollBack),
        4 => any::<bool>().prop_map(Step::Commit),
        1 => Just(Step::Drop),
        4 => (key(), any::<Option<u8>>()).prop_map(|(key, value)| Step::Put(key, value)),
        1 => (key(), key()).prop_map(|(a, b)| Step::PutRange(a.min(b), a.max(b))),
        1 => Just(Step::Flush),
        1 => Just(Step::Reopen),
    ];
    (step, any::<prop::sample::Index>())
}

struct Modelled {
    tx: Transaction,
    /// What it sees.
    view: Map,
    written: BTreeMap<u8, Option<u8>>,
    marks: Vec<(Savepoint, Map, BTreeMap<u8, Option<u8>>)>,
    reads: BTreeSet<u8>,
    /// With its own writes in ranges, which may count as read.
    observed: BTreeSet<u8>,
    /// Keys that others have changed since it began.
    changed: BTreeSet<u8>,
}

fn open(volume: &Arc<dyn Volume>) -> (Database, Keyspace) {
    let db = Database::builder().memory(4 << 20).background_threads(0).open_on(Arc::clone(volume)).unwrap();
    let keyspace = db.keyspace("main").unwrap();
    (db, keyspace)
}

fn apply(map: &mut Map, key: u8, value: Option<u8>) {
    match value {
        Some(value) => _ = map.insert(key, value),
        None => _ = map.remove(&key),
    }
}

impl Modelled {
    fn begin(db: &Database, map: &Map) -> Self {
        let (written, marks) = (BTreeMap::new(), Vec::new());
        let (reads, observed, changed) = Default::default();
        Self { tx: db.transaction().unwrap(), view: map.clone(), written, marks, reads, observed, changed }
    }

    fn read(&mut self, key: u8) -> Option<u8> {
        if !self.written.contains_key(&key) {
            self.reads.insert(key);
            self.observed.insert(key);
        }
        self.view.get(&key).copied()
    }

    fn range(&mut self, keyspace: &Keyspace, (low, high): (u8, u8), ends: &[bool]) {
        let mut range = self.tx.range(keyspace, [low]..[high]);
        let mut model: std::collections::VecDeque<_> =
            self.view.range(low..high.max(low)).map(|(key, value)| (*key, *value)).collect();
        let (mut front, mut back) = (low, high);
        for end in ends {
            let (found, expected) = match end {
                false => (range.next(), model.pop_front()),
                true => (range.next_back(), model.pop_back()),
            };
            let found = found.map(|record| record.unwrap()).map(|(key, value)| (key[0], value[0]));
            assert_eq!(found, expected);
            match (expected, end) {
                (Some((key, _)), false) => front = key + 1,
                (Some((key, _)), true) => back = key,
                (None, _) => front = back.max(front),
            }
        }
        self.observe((low..front).chain(back.max(low)..high));
    }

    fn observe(&mut self, observed: impl Iterator<Item = u8> + Clone) {
        self.observed.extend(observed.clone());
        self.reads.extend(observed.filter(|key| !self.written.contains_key(key)));
    }

    fn cursor(&mut self, keyspace: &Keyspace, steps: &[(u8, u8)]) {
        const BEHIND: u8 = KEYS + 1;
        let mut cursor = self.tx.cursor(keyspace);
        // Before the first, at the key before this number, or behind the last.
        let mut place = 0;
        for (kind, key) in steps {
            // A step up from this key, or a step down from the keys below it.
            let (is_up, from) = match kind {
                0 => (true, *key),
                1 => (false, key + 1),
                2..6 => (true, place.min(KEYS)),
                6..9 => (false, place.saturating_sub(1)),
                _ => (key % 2 == 0, if key % 2 == 0 { 0 } else { KEYS }),
            };
            let found = match kind {
                0 => cursor.seek([*key]),
                1 => cursor.seek_for_prev([*key]),
                2..6 => cursor.next(),
                6..9 => cursor.prev(),
                _ if is_up => cursor.seek_to_first(),
                _ => cursor.seek_to_last(),
            };
            let found = found.unwrap().map(|(key, value)| (key[0], value[0]));
            let record = |(key, value): (&u8, &u8)| (*key, *value);
            let expected = match is_up {
                true => self.view.range(from..).next().map(record),
                false => self.view.range(..from).next_back().map(record),
            };
            assert_eq!(found, expected, "{steps:?}");
            place = match (expected, is_up) {
                (Some((key, _)), _) => key + 1,
                (None, true) => BEHIND,
                (None, false) => 0,
            };
            if is_up {
                self.observe(from..place.min(KEYS));
            } else {
                self.observe(place.saturating_sub(1)..from);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 400 }))]

    #[test]
    fn transactions_do_what_the_model_does(steps in prop::collection::vec(step(), 0..120)) {
        let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
        let (mut db, mut keyspace) = open(&volume);
        let mut map = Map::new();
        let mut open_ones: Vec<Modelled> = Vec::new();
        for (step, which) in steps {
            let which = (!open_ones.is_empty()).then(|| which.index(open_ones.len()));
            match (step, which) {
                (Step::Begin, _) => open_ones.push(Modelled::begin(&db, &map)),
                (Step::Get(key), Some(which)) => {
                    let modelled = &mut open_ones[which];
                    let found = modelled.tx.get(&keyspace, [key]).unwrap().map(|value| value[0]);
                    prop_assert_eq!(found, modelled.read(key));
                }
                (Step::MultiGet(keys), Some(which)) => {
                    let modelled = &mut open_ones[which];
                    let found = modelled.tx.multi_get(&keyspace, keys.iter().map(|key| [*key])).unwrap();
                    let found: Vec<_> = found.into_iter().map(|value| value.map(|value| value[0])).collect();
                    prop_assert_eq!(found, keys.iter().map(|key| modelled.read(*key)).collect::<Vec<_>>());
                }
                (Step::Range(low, high, ends), Some(which)) => {
                    open_ones[which].range(&keyspace, (low, high), &ends);
                }
                (Step::Cursor(steps), Some(which)) => open_ones[which].cursor(&keyspace, &steps),
                (Step::Write(key, value), Some(which)) => {
                    let modelled = &mut open_ones[which];
                    match value {
                        Some(value) => modelled.tx.insert(&keyspace, [key], [value]).unwrap(),
                        None => modelled.tx.remove(&keyspace, [key]).unwrap(),
                    }
                    apply(&mut modelled.view, key, value);
                    modelled.written.insert(key, value);
                }
                (Step::RemoveRange(low, high), Some(which)) => {
                    let modelled = &mut open_ones[which];
                    modelled.tx.remove_range(&keyspace, [low]..[high]).unwrap();
                    for key in low..high {
                        apply(&mut modelled.view, key, None);
                        modelled.written.insert(key, None);
                    }
                }
                (Step::PutRange(low, high), _) => {
                    keyspace.remove_range([low]..[high]).unwrap();
                    for key in low..high {
                        apply(&mut map, key, None);
                        open_ones.iter_mut().for_each(|other| _ = other.changed.insert(key));
                    }
                }
                (Step::Savepoint, Some(which)) => {
                    let modelled = &mut open_ones[which];
                    let mark = modelled.tx.savepoint();
                    modelled.marks.push((mark, modelled.view.clone(), modelled.written.clone()));
                }
                (Step::RollBack(index), Some(which)) if !open_ones[which].marks.is_empty() => {
                    let modelled = &mut open_ones[which];
                    modelled.marks.truncate(index.index(modelled.marks.len()) + 1);
                    let (mark, view, written) = modelled.marks.last().cloned().unwrap();
                    modelled.tx.roll_back_to(mark).unwrap();
                    (modelled.view, modelled.written) = (view, written);
                }
                (Step::Commit(is_durable), Some(which)) => {
                    let Modelled { mut tx, written, reads, observed, changed, .. } = open_ones.swap_remove(which);
                    tx.durability(if is_durable { Durability::Immediate } else { Durability::Buffered });
                    let must_conflict = !written.is_empty() && reads.intersection(&changed).next().is_some();
                    match tx.commit() {
                        Ok(()) => {
                            prop_assert!(!must_conflict, "{:?} were read, {:?} changed", reads, changed);
                            for (key, value) in written {
                                apply(&mut map, key, value);
                                open_ones.iter_mut().for_each(|other| _ = other.changed.insert(key));
                            }
                        }
                        Err(Error::Conflict { key, reason, .. }) => {
                            prop_assert_eq!(reason, ConflictReason::Changed);
                            prop_assert!(changed.contains(&key[0]) && observed.contains(&key[0]));
                        }
                        Err(error) => prop_assert!(false, "{}", error),
                    }
                }
                (Step::Drop, Some(which)) => drop(open_ones.swap_remove(which)),
                (Step::Put(key, value), _) => {
                    match value {
                        Some(value) => keyspace.insert([key], [value]).unwrap(),
                        None => keyspace.remove([key]).unwrap(),
                    }
                    apply(&mut map, key, value);
                    open_ones.iter_mut().for_each(|other| _ = other.changed.insert(key));
                }
                (Step::Flush, _) => db.flush().unwrap(),
                (Step::Reopen, _) => {
                    open_ones.clear();
                    drop(keyspace);
                    db.close().unwrap();
                    (db, keyspace) = open(&volume);
                }
                _ => {}
            }
            let found: Map = keyspace.iter().map(|record| record.unwrap()).map(|(key, value)| (key[0], value[0])).collect();
            prop_assert_eq!(&found, &map);
        }
    }
}
