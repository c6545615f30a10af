//! Reports of records: a page for people, and the same for the documentation.

mod html;
mod markdown;

pub(crate) use html::html;
pub(crate) use markdown::markdown;

use crate::experiment::Experiment;
use crate::failure::Result;
use crate::judgement::{Check, Outcome, Verdict};
use crate::record::Record;

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

fn outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Holds => "holds",
        Outcome::Fails => "does not hold",
        Outcome::NotApplicable => "not applicable",
        Outcome::Reported => "reported",
    }
}

/// Why a check is not a plain "holds", if it needs a why.
fn cause(record: &Record, check: &Check) -> Option<&'static str> {
    let known = record.cause(&check.key);
    match check.outcome {
        Outcome::Fails => Some(known.unwrap_or("not known yet")),
        Outcome::NotApplicable => known,
        Outcome::Holds => None,
        // Where nothing at all was judged, the reader wants to know why not.
        Outcome::Reported => known.filter(|_| record.verdict() == Verdict::NotApplicable),
    }
}

/// Records with each verdict: holds, does not hold, not applicable.
fn tally(records: &[Record]) -> [usize; 3] {
    [Verdict::Holds, Verdict::DoesNotHold, Verdict::NotApplicable]
        .map(|verdict| records.iter().filter(|record| record.verdict() == verdict).count())
}
