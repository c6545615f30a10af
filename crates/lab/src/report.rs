//! Reports of records: a page for people, and the same for the documentation.

mod html;
mod markdown;

pub(crate) use html::html;
pub(crate) use markdown::markdown;

use crate::experiment::Experiment;
use crate::failure::Result;
use crate::judgement::{Check, Outcome, Verdict};
use crate::record::Record;
use std::borrow::Cow;

/// The records of one experiment, on all its devices.
struct Chapter<'a> {
    experiment: &'static dyn Experiment,
    records: Vec<&'a Record>,
}

fn chapters(records: &[Record]) -> Result<Vec<Chapter<'_>>> {
    let mut chapters: Vec<Chapter<'_>> = Vec::new();
    for record in records {
        let experiment = record.of()?;
        match chapters.last_mut() {
            Some(last) if last.experiment.card().number == experiment.card().number => {
                last.records.push(record)
            }
            _ => chapters.push(Chapter { experiment, records: vec![record] }),
        }
    }
    Ok(chapters)
}

/// Why a check is not a plain "holds", if it needs a why.
fn cause(record: &Record, check: &Check) -> Option<Cow<'static, str>> {
    // That others were at work is a cause where something failed, and nowhere else.
    let of_card = || record.known_cause(&check.key);
    match check.outcome {
        _ if check.needs_a_cause() => Some(record.cause(&check.key).unwrap_or("not known yet".into())),
        Outcome::NotApplicable => of_card(),
        Outcome::Holds | Outcome::Fails => None,
        // Where nothing at all was judged, the reader wants to know why not.
        Outcome::Reported => {
            of_card().filter(|_| matches!(record.verdict(), Verdict::NotApplicable | Verdict::NotJudged))
        }
    }
}

/// Records with each verdict, in the order of [`Verdict::ALL`].
fn tally(records: &[Record]) -> [usize; Verdict::ALL.len()] {
    Verdict::ALL.map(|verdict| records.iter().filter(|record| record.verdict() == verdict).count())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;

    #[test]
    fn a_busy_machine_is_a_cause_only_where_something_failed() {
        let mut busy = record(2.0);
        busy.experiment = "E1".into();
        busy.notes.push("the machine was not idle: load 9.0 on 2 processors at the beginning".into());
        let mut check = busy.judgement.checks[0].clone();
        (check.key, check.outcome) = ("no such key".into(), Outcome::Fails);
        busy.judgement.checks = vec![check.clone()];
        assert!(cause(&busy, &check).is_some_and(|cause| cause.contains("others were at work")), "{check:?}");
        for outcome in [Outcome::Reported, Outcome::NotApplicable] {
            check.outcome = outcome;
            busy.judgement.checks = vec![check.clone()];
            assert_eq!(cause(&busy, &check), None, "{outcome:?}");
        }
    }
}
