//! For each predicate a mutation of what was measured that makes it fail: `mutations.csv` has them, and this tries them.
//!
//! The records are those of docs/reproduction. A check that holds in one of them is in the list with that record, and with the
//! change of its rows that turns it: times, bytes or a count of a line, or of one point of it, times a factor or plus a
//! number. A check that holds in no record was seen failing there.
//!
//! Invariants:
//! 1. No line is set to zero as a whole: quotients of it are no numbers, and no predicate holds of those, whatever it asks.
//! 2. A check counts as turned only if the figures that it fails with are numbers.
//!
//! `cargo test -p lab --lib -- --ignored mutations_are_found` writes the list anew.

use super::Measured;
use crate::judgement::{Check, Kind, Outcome, Place};
use crate::quantity::{Clock, Lapse, Quantity};
use crate::record::Record;
use crate::row::{Row, Rows};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A change of rows.
#[derive(Clone, Debug, PartialEq)]
struct Mutation {
    /// Of which line.
    series: String,
    /// At which point, if not at all.
    at: Option<f64>,
    /// `time`, `bytes`, or a count.
    what: String,
    factor: f64,
    plus: f64,
}

/// A line of the list.
#[derive(Clone, Debug, PartialEq)]
struct Listed {
    record: String,
    key: String,
    mutation: Mutation,
}

impl Mutation {
    fn apply<C: Clock>(&self, rows: &Rows<C>) -> Rows<C> {
        let meant = |row: &Row<C>| row.series == self.series && self.at.is_none_or(|at| row.at == at);
        let change = |number: f64| number * self.factor + self.plus;
        let mut rows = rows.clone();
        for row in rows.0.iter_mut().filter(|row| meant(row)) {
            match self.what.as_str() {
                "time" => row.elapsed_us = Lapse::micros(change(row.elapsed_us.number())),
                "bytes" => row.bytes = change(row.bytes as f64) as u64,
                count => {
                    let number = row.counts.entry(count.to_owned()).or_insert(0.0);
                    *number = change(*number);
                }
            }
        }
        rows
    }
}

fn mutated(measured: &Measured, mutation: &Mutation) -> Measured {
    match measured {
        Measured::Wall(rows) => Measured::Wall(mutation.apply(rows)),
        Measured::Simulated(rows) => Measured::Simulated(mutation.apply(rows)),
    }
}

/// All that are tried: whole lines first, then single points, which alone are set to zero as well.
fn catalogue(measured: &Measured) -> Vec<Mutation> {
    fn of<C: Clock>(rows: &Rows<C>) -> Vec<Mutation> {
        let mut places: Vec<(String, Option<f64>)> =
            rows.series().into_iter().map(|series| (series.to_owned(), None)).collect();
        for series in rows.series() {
            places.extend(rows.points(series).into_iter().map(|at| (series.to_owned(), Some(at))));
        }
        let mut all = Vec::new();
        for (series, at) in places {
            let here = rows.0.iter().filter(|row| row.series == series && at.is_none_or(|at| row.at == at));
            let counts: BTreeSet<&String> = here.flat_map(|row| row.counts.keys()).collect();
            let whats = ["time", "bytes"].into_iter().chain(counts.iter().map(|name| name.as_str()));
            for what in whats {
                for (factor, plus) in [
                    (4.0, 0.0),
                    (0.25, 0.0),
                    (100.0, 0.0),
                    (0.01, 0.0),
                    (1.0, 1000.0),
                    (1.0, 1e6),
                    (1.25, 0.0),
                    (0.8, 0.0),
                    (0.0, 0.0),
                ] {
                    if at.is_none() && (factor, plus) == (0.0, 0.0) {
                        continue;
                    }
                    let (series, what) = (series.clone(), what.to_owned());
                    all.push(Mutation { series, at, what, factor, plus });
                }
            }
        }
        all
    }
    match measured {
        Measured::Wall(rows) => of(rows),
        Measured::Simulated(rows) => of(rows),
    }
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reproduction")
}

fn list_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/experiment/mutations.csv")
}

fn list() -> Vec<Listed> {
    let text = std::fs::read_to_string(list_path()).unwrap();
    let mut lines = Vec::new();
    for line in csv::Reader::from_reader(text.as_bytes()).records() {
        let line = line.unwrap();
        let [record, key, series, at, what, factor, plus] =
            [0, 1, 2, 3, 4, 5, 6].map(|field| line[field].to_owned());
        let at = (!at.is_empty()).then(|| at.parse().unwrap());
        let (factor, plus) = (factor.parse().unwrap(), plus.parse().unwrap());
        lines.push(Listed { record, key, mutation: Mutation { series, at, what, factor, plus } });
    }
    lines
}

/// What comes of each check of a record whose rows were changed. A predicate that misses something says so, which is no answer.
fn outcomes(record: &Record, measured: &Measured) -> BTreeMap<String, Check> {
    let judged = record.of().unwrap().judge(measured, record.device, record.scale);
    let checks = judged.map(|judgement| judgement.checks).unwrap_or_default();
    checks.into_iter().map(|check| (check.key.clone(), check)).collect()
}

/// Whether the change has turned a check that held, `before`.
fn is_turned(before: &Check, after: Option<&Check>) -> bool {
    after.is_some_and(|after| {
        let has_place = before.place.is_none() || after.place.is_some();
        before.outcome == Outcome::Holds
            && after.outcome == Outcome::Fails
            && has_place
            && has_numbers(&after.ours)
    })
}

/// Whether the figures in a text are numbers, none of them infinite.
fn has_numbers(text: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric()).all(|word| !["NaN", "inf"].contains(&word))
}

#[test]
fn a_check_that_fails_by_no_number_is_not_turned() {
    let check = |ours: &str, outcome, place| Check {
        key: "a".into(),
        claim: "claim".into(),
        paper: "paper".into(),
        ours: ours.into(),
        outcome,
        kind: Kind::Claim,
        place,
    };
    let (held, banded) = (check("2", Outcome::Holds, None), check("2", Outcome::Holds, Some(Place::Inside)));
    let turned = |before, ours, place| is_turned(before, Some(&check(ours, Outcome::Fails, place)));
    assert!(turned(&held, "3 (infinite)", None) && turned(&banded, "3", Some(Place::Above)));
    assert!(!turned(&held, "1, NaN at 3", None) && !turned(&held, "inf x", None));
    assert!(!turned(&banded, "0", None), "no band places what is not a number");
    assert!(!is_turned(&held, Some(&held)) && !is_turned(&held, None));
    assert!(
        !has_numbers(&crate::chart::number(f64::NAN)) && !has_numbers(&crate::wording::times(f64::INFINITY))
    );
}

/// The checks that hold in some record, each with the first.
fn holding(records: &[Record]) -> BTreeMap<(u32, String), String> {
    let mut first = BTreeMap::new();
    for record in records {
        let number = record.of().unwrap().card().number;
        for check in record.judgement.checks.iter().filter(|check| check.outcome == Outcome::Holds) {
            first.entry((number, check.key.clone())).or_insert_with(|| record.name());
        }
    }
    first
}

#[test]
fn each_predicate_fails_under_the_mutation_that_is_listed_for_it() {
    let records = Record::load_all(&directory()).unwrap();
    let list = list();
    let number = |name: &str| name.split('-').next().and_then(|id| id[1..].parse::<u32>().ok());
    for ((experiment, key), name) in holding(&records) {
        let listed = list.iter().find(|line| number(&line.record) == Some(experiment) && line.key == key);
        let Some(Listed { record, mutation, .. }) = listed else {
            panic!("E{experiment} {key} holds in {name}, and no mutation is listed that makes it fail")
        };
        let found = records.iter().find(|found| found.name() == *record);
        let record = found.unwrap_or_else(|| panic!("E{experiment} {key}: there is no record {record}"));
        let whole_line = mutation.at.is_none();
        assert!(
            !whole_line || (mutation.factor, mutation.plus) != (0.0, 0.0),
            "E{experiment} {key} {mutation:?}"
        );
        let before = record.judgement.checks.iter().find(|check| check.key == key);
        let before = before.unwrap_or_else(|| panic!("E{experiment} {key}: not in {}", record.name()));
        let changed = outcomes(record, &mutated(&record.measured, mutation));
        let after = changed.get(&key);
        assert!(is_turned(before, after), "E{experiment} {key} under {mutation:?}: {after:?}");
    }
}

#[test]
#[ignore = "writes the list that the other test tries"]
fn mutations_are_found() {
    let records = Record::load_all(&directory()).unwrap();
    let mut writer = csv::Writer::from_path(list_path()).unwrap();
    writer.write_record(["record", "key", "series", "at", "what", "factor", "plus"]).unwrap();
    let wanted = holding(&records);
    let mut unfound = Vec::new();
    for record in &records {
        let experiment = record.of().unwrap().card().number;
        let mine =
            wanted.iter().filter(|((number, _), name)| *number == experiment && **name == record.name());
        let mut keys: BTreeSet<String> = mine.map(|((_, key), _)| key.clone()).collect();
        for mutation in catalogue(&record.measured) {
            if keys.is_empty() {
                break;
            }
            let changed = outcomes(record, &mutated(&record.measured, &mutation));
            let is_turned = |key: &&String| {
                let before = record.judgement.checks.iter().find(|check| check.key == **key);
                before.is_some_and(|before| is_turned(before, changed.get(*key)))
            };
            let turned: Vec<String> = keys.iter().filter(is_turned).cloned().collect();
            for key in turned {
                keys.remove(&key);
                let Mutation { series, at, what, factor, plus } = &mutation;
                let at = at.map(|at| at.to_string()).unwrap_or_default();
                let line = [
                    record.name(),
                    key,
                    series.clone(),
                    at,
                    what.clone(),
                    factor.to_string(),
                    plus.to_string(),
                ];
                writer.write_record(line).unwrap();
            }
        }
        unfound.extend(keys.into_iter().map(|key| format!("{} {key}", record.name())));
    }
    writer.flush().unwrap();
    assert!(unfound.is_empty(), "no mutation was found for {unfound:#?}");
}

/// Every check that is not so, or beyond the published band, says why.
#[test]
fn what_does_not_hold_has_a_cause() {
    let mut without = Vec::new();
    for record in Record::load_all(&directory()).unwrap() {
        let judged = record.judgement.checks.iter().filter(|check| check.needs_a_cause());
        let card = record.of().unwrap().card();
        let bare = judged.filter(|check| card.cause(record.device, record.scale, &check.key).is_none());
        without.extend(bare.map(|check| format!("{} {}: {}", record.name(), check.key, check.ours)));
    }
    assert!(without.is_empty(), "without a cause: {without:#?}");
}
