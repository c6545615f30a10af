//! Whether the counts that causes name are those of the record that they stand under, so that they do not go stale.
//!
//! A count is a number of thousands: 1,623 or 51.7 k or 1.28 M. It must be in the record, in words or as a median of its rows,
//! unless its sentence names where else it is from. That a count is found is no proof that it is meant; that it is nowhere is a
//! finding. Ratios and times are not asked: they are quotients of too many things.

use super::Measured;
use crate::quantity::{Clock, Quantity};
use crate::record::Record;
use crate::row::{Row, Rows};
use std::collections::BTreeSet;
use std::path::Path;

/// What a sentence has that names another run, or what was published.
const ELSEWHERE: [&str; 16] = [
    "E1", "E2", "E3", "E4", "E5", "E6", "E7", "E8", "E9", "at ci", "At ci", "at std", "At std", "publish",
    "paper", "docs/",
];

/// Counts that are sums or quotients, with what they are of.
const DERIVED: [(u32, f64, &str); 4] = [
    (27, 28_672.0, "896 KiB in entries of 32 bytes"),
    (33, 177_000.0, "76 k reads and 101 k writes, and 126 k and 51 k"),
    (42, 5_617.0, "a second by 178 us"),
    (42, 6_668.0, "a second by 150 us"),
];

/// Numbers of thousands in a text, each with half of its last digit.
fn counts(text: &str) -> Vec<(f64, f64)> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        if !bytes[at].is_ascii_digit() || (at > 0 && bytes[at - 1].is_ascii_alphanumeric()) {
            at += 1;
            continue;
        }
        let len =
            text[at..].find(|c: char| !c.is_ascii_digit() && c != '.' && c != ',').unwrap_or(text.len() - at);
        let token = text[at..at + len].trim_end_matches(['.', ',']);
        let rest = &text[at + token.len()..];
        let word = |unit: &str| {
            rest.strip_prefix(unit).is_some_and(|next| !next.starts_with(|c: char| c.is_alphanumeric()))
        };
        let times = if word(" k") {
            1e3
        } else if word(" M") {
            1e6
        } else {
            1.0
        };
        let grouped = token.contains(',');
        if let Ok(number) = token.replace(',', "").parse::<f64>()
            && (times > 1.0 || grouped)
        {
            let decimals = token.split_once('.').map_or(0, |(_, decimals)| decimals.len());
            // 118,000 is told to thousands.
            let unit = if token.ends_with(",000") { 1e3 } else { 10f64.powi(-(decimals as i32)) };
            found.push((number * times, 0.5 * times * unit));
        }
        at += len.max(1);
    }
    found
}

/// All that the record tells: what was measured, as medians, and what is printed of it.
fn told(record: &Record) -> Vec<f64> {
    fn of<C: Clock>(rows: &Rows<C>) -> Vec<f64> {
        let mut values = Vec::new();
        for series in rows.series() {
            for at in rows.points(series) {
                values.push(at);
                let median = |figure: &dyn Fn(&Row<C>) -> f64| rows.median(series, at, figure);
                let row = rows.0.iter().find(|row| row.series == series && row.at == at);
                values.extend(median(&|row| row.requests as f64));
                values.extend(median(&|row| row.latency().number()));
                for name in row.into_iter().flat_map(|row| row.counts.keys()) {
                    values.extend(median(&|row| row.count(name)));
                }
            }
        }
        values
    }
    let mut values = match &record.measured {
        Measured::Wall(rows) => of(rows),
        Measured::Simulated(rows) => of(rows),
    };
    let checks = record.judgement.checks.iter().flat_map(|check| [&check.claim, &check.paper, &check.ours]);
    let settings = record.parameters.iter().flat_map(|setting| [&setting.published, &setting.used]);
    for text in checks.chain(settings).chain(&record.notes) {
        values.extend(counts(text).into_iter().map(|(number, _)| number));
        values
            .extend(text.split(|c: char| !c.is_ascii_digit()).filter_map(|token| token.parse::<f64>().ok()));
    }
    values
}

fn is_elsewhere(sentence: &str) -> bool {
    ELSEWHERE.iter().any(|mark| sentence.contains(mark))
}

#[test]
fn counts_are_numbers_of_thousands() {
    assert_eq!(counts("51.7 k of 1,623, at 3 kinds, 64 pages, E20"), [(51_700.0, 50.0), (1623.0, 0.5)]);
    assert_eq!(counts("1.28 M and 118,000"), [(1.28e6, 5000.0), (118_000.0, 500.0)]);
}

#[test]
fn counts_in_causes_are_in_their_record() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reproduction");
    let mut strange = BTreeSet::new();
    for record in Record::load_all(&directory).unwrap() {
        let card = record.of().unwrap().card();
        let told = told(&record);
        for check in record.judgement.checks.iter().filter(|check| check.needs_a_cause()) {
            let Some(text) = card.cause(record.device, record.scale, &check.key) else { continue };
            for sentence in text.split(". ").filter(|sentence| !is_elsewhere(sentence)) {
                for (count, off) in counts(sentence) {
                    let derived =
                        DERIVED.iter().any(|(number, of, _)| (*number, *of) == (card.number, count));
                    if !derived && !told.iter().any(|value| (value - count).abs() <= off * 1.01) {
                        strange.insert(format!("{}: {count}: {sentence}", record.name()));
                    }
                }
            }
        }
    }
    assert!(strange.is_empty(), "not in the record that they stand under: {strange:#?}");
}
