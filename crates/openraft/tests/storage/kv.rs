//! The ready-made machine against a model, by random commands in random groups.

use crate::ground::{self, command};
use bytes::Bytes;
use openraft::storage::RaftStateMachine;
use proptest::prelude::*;
use sapwood::psync::Simulated;
use sapwood_openraft::{KvAnswer, KvCommand, KvCondition, KvValue, KvWrite};
use std::collections::BTreeMap;

type Model = BTreeMap<Bytes, KvValue>;

/// What a command does, in the plainest way.
fn apply(model: &mut Model, index: u64, command: &KvCommand) -> KvAnswer {
    for (number, condition) in command.conditions.iter().enumerate() {
        let outdated = |found: Option<&KvValue>| {
            let version = found.map_or(0, |found| found.version);
            KvAnswer::Outdated { condition: number, version }
        };
        match condition {
            KvCondition::Version { key, version } => {
                let found = model.get(key);
                if found.map_or(0, |found| found.version) != *version {
                    return outdated(found);
                }
            }
            KvCondition::Value { key, value } => {
                let found = model.get(key);
                if found.map(|found| &found.value) != value.as_ref() {
                    return match found {
                        Some(long) if long.value.len() > 4096 => outdated(found),
                        _ => KvAnswer::Refused { condition: number, found: found.cloned() },
                    };
                }
            }
        }
    }
    for write in command.writes.clone() {
        match write {
            KvWrite::Put { key, value } => _ = model.insert(key, KvValue { version: index, value }),
            KvWrite::Delete { key } => _ = model.remove(&key),
            KvWrite::DeleteRange { from, to } => {
                model.retain(|key, _| *key < from || to.as_ref().is_some_and(|to| key >= to));
            }
        }
    }
    KvAnswer::Done { version: index }
}

fn key() -> impl Strategy<Value = Bytes> {
    "[a-d]{1,2}".prop_map(Bytes::from)
}

fn value() -> impl Strategy<Value = Bytes> {
    // So long now and then that a transaction of several commands is too large, and is divided.
    prop_oneof![
        10 => "[xy]{0,2}".prop_map(Bytes::from),
        1 => (1..250_000usize).prop_map(|len| Bytes::from(vec![b'z'; len])),
    ]
}

fn write() -> impl Strategy<Value = KvWrite> {
    prop_oneof![
        4 => (key(), value()).prop_map(|(key, value)| KvWrite::Put { key, value }),
        2 => key().prop_map(|key| KvWrite::Delete { key }),
        1 => (key(), prop::option::of(key())).prop_map(|(from, to)| KvWrite::DeleteRange { from, to }),
    ]
}

/// Conditions that often hold: values of few kinds, and versions that are found when the command is run.
#[derive(Clone, Debug)]
enum Condition {
    Value(Bytes, Option<Bytes>),
    /// What the model has when the group of commands begins, or another number.
    Version(Bytes, bool),
}

fn condition() -> impl Strategy<Value = Condition> {
    prop_oneof![
        (key(), prop::option::of("[xy]{0,1}".prop_map(Bytes::from)))
            .prop_map(|(key, value)| Condition::Value(key, value)),
        (key(), prop::bool::weighted(0.9)).prop_map(|(key, is_right)| Condition::Version(key, is_right)),
    ]
}

fn a_command() -> impl Strategy<Value = (Vec<Condition>, Vec<KvWrite>)> {
    let conditions = prop_oneof![Just(Vec::new()), prop::collection::vec(condition(), 1..3),];
    (conditions, prop::collection::vec(write(), 0..4))
}

fn same(groups: Vec<Vec<(Vec<Condition>, Vec<KvWrite>)>>) -> (u64, u64) {
    let (volume, directory) = (Simulated::new(1), ground::directory());
    let (_log, mut machine) = ground::open(&volume, &directory).expect("opens");
    let (mut model, mut index, mut done, mut refused) = (Model::new(), 0, 0, 0);
    for group in groups {
        let seen = model.clone();
        let resolved = group.into_iter().map(|(conditions, writes)| {
            let condition = |condition| match condition {
                Condition::Value(key, value) => KvCondition::Value { key, value },
                Condition::Version(key, is_right) => {
                    let version = seen.get(&key).map_or(0, |found: &KvValue| found.version);
                    KvCondition::Version { key, version: version + u64::from(!is_right) }
                }
            };
            KvCommand { conditions: conditions.into_iter().map(condition).collect(), writes }
        });
        let commands: Vec<_> = resolved.collect();
        let first = index + 1;
        let entries: Vec<_> =
            (first..).zip(&commands).map(|(index, entry)| command(1, index, entry.clone())).collect();
        index += entries.len() as u64;
        let answers = ground::run(machine.apply(entries)).expect("applies");
        assert_eq!(answers.len(), commands.len());
        for ((index, command), answer) in (first..).zip(&commands).zip(answers) {
            let expected = apply(&mut model, index, command);
            match expected {
                KvAnswer::Done { .. } => done += 1,
                _ => refused += 1,
            }
            assert!(answer == expected, "command {index}: {command:?}");
        }
        let found = machine.reader().scan([], None::<&[u8]>, usize::MAX).expect("reads");
        assert!(found.into_iter().eq(model.clone()), "after command {index}");
    }
    for key in ["a", "ab", "dd"] {
        assert_eq!(machine.reader().get(key).expect("reads"), model.get(key.as_bytes()).cloned());
    }
    (done, refused)
}

#[test]
fn the_machine_does_what_the_model_does() {
    let config = ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() };
    let (done, refused) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    proptest!(config, |(groups in prop::collection::vec(prop::collection::vec(a_command(), 0..30), 1..8))| {
        let (more_done, more_refused) = same(groups);
        done.set(done.get() + more_done);
        refused.set(refused.get() + more_refused);
    });
    let (done, refused) = (done.get(), refused.get());
    assert!(done > 500 && refused > 100, "{done} done, {refused} refused");
}

/// All answers of an apply are in memory until the last of its commands is applied, on every node.
#[test]
fn refusals_do_not_have_long_values() {
    let (volume, directory) = (Simulated::new(1), ground::directory());
    let (_log, mut machine) = ground::open(&volume, &directory).expect("opens");
    ground::run(machine.apply([command(1, 1, KvCommand::put("key", vec![b'v'; 200_000]))])).expect("applies");
    let stale = |index: u64| {
        let refused = if index.is_multiple_of(2) {
            let conditions = vec![KvCondition::Version { key: "key".into(), version: 7 }];
            KvCommand { conditions, writes: vec![KvWrite::delete("key")] }
        } else {
            KvCommand::compare_and_swap("key", Some("v"), Some("w"))
        };
        command(1, index, refused)
    };
    let answers = ground::run(machine.apply((2..1002).map(stale))).expect("applies");
    let bytes = postcard::to_allocvec(&answers).expect("encodes").len();
    assert!(bytes < 20_000, "{bytes} bytes of answers");
    assert!(answers.iter().all(|answer| !matches!(answer, KvAnswer::Done { .. })));
}

/// A group of commands that is larger than a transaction may be is divided; one alone that is larger is an error.
#[test]
fn commands_are_divided_among_as_many_transactions_as_they_need() {
    let (volume, directory) = (Simulated::new(1), ground::directory());
    let (_log, mut machine) = ground::open(&volume, &directory).expect("opens");
    // What was taken back to be done again must not be seen then.
    let large = |index: u64| {
        let small = format!("small {index}");
        let absent = KvCondition::Version { key: small.clone().into(), version: 0 };
        let writes = vec![KvWrite::put(small, "1"), KvWrite::put(format!("key {index}"), vec![1; 200_000])];
        command(1, index, KvCommand { conditions: vec![absent], writes })
    };
    let answers = ground::run(machine.apply((1..=20).map(large))).expect("applies");
    assert!(answers.into_iter().eq((1..=20).map(|version| KvAnswer::Done { version })));
    let found = machine.reader().scan([], None::<&[u8]>, usize::MAX).expect("reads");
    assert_eq!(found.len(), 40);
    assert!(found.iter().all(|(key, found)| key.ends_with(format!(" {}", found.version).as_bytes())));

    let writes =
        (0..20u32).map(|number| KvWrite::put(format!("too many {number}"), vec![1; 200_000])).collect();
    let too_large = command(1, 21, KvCommand { conditions: Vec::new(), writes });
    let error = ground::run(machine.apply([too_large])).expect_err("it does not fit");
    assert!(error.to_string().contains("batch"), "{error}");
    assert_eq!(
        machine.reader().scan("too", None::<&[u8]>, 9).expect("reads").len(),
        0,
        "nothing of it happened"
    );
}

/// A condition in the wrong place was none, and the write was made without one.
#[test]
fn a_field_that_is_not_known_is_refused() {
    let read = |text: &str| serde_json::from_str::<KvCommand>(text).map_err(|error| error.to_string());
    let (condition, put) = (r#""Version":{"key":[97],"version":7"#, r#""Put":{"key":[97],"value":[]"#);
    let known = KvCommand {
        conditions: vec![KvCondition::Version { key: "a".into(), version: 7 }],
        writes: vec![KvWrite::put("a", "")],
    };
    assert_eq!(read(&format!(r#"{{"conditions":[{{{condition}}}}}],"writes":[{{{put}}}}}]}}"#)), Ok(known));
    let more = r#","if-version":7"#;
    for wrong in [
        format!(r#"{{"conditions":[{{{condition}}}}}],"writes":[{{{put}}}}}]{more}}}"#),
        format!(r#"{{"conditions":[{{{condition}{more}}}}}],"writes":[{{{put}}}}}]}}"#),
        format!(r#"{{"conditions":[{{{condition}}}}}],"writes":[{{{put}{more}}}}}]}}"#),
    ] {
        let refused = read(&wrong).expect_err(&wrong);
        assert!(refused.contains("unknown field `if-version`"), "{wrong}: {refused}");
    }
}
