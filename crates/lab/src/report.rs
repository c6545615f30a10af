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

/// Why a check is not a plain "holds", if it needs a why.
fn cause(record: &Record, check: &Check) -> Option<&'static str> {
    let known = record.cause(&check.key);
    match check.outcome {
        _ if check.needs_a_cause() => Some(known.unwrap_or("not known yet")),
        Outcome::NotApplicable => known,
        Outcome::Holds | Outcome::Fails => None,
        // Where nothing at all was judged, the reader wants to know why not.
        Outcome::Reported => {
            known.filter(|_| matches!(record.verdict(), Verdict::NotApplicable | Verdict::NotJudged))
        }
    }
}

/// Records with each verdict, in the order of [`Verdict::ALL`].
fn tally(records: &[Record]) -> [usize; Verdict::ALL.len()] {
    Verdict::ALL.map(|verdict| records.iter().filter(|record| record.verdict() == verdict).count())
}
