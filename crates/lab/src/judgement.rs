//! Whether what was measured has the shape that the paper claims: single checks with their figures, and the verdict.
//!
//! Invariants:
//! 1. One check that fails is enough for "does not hold"; "holds" needs at least one that holds; figures that are only
//!    reported count for neither.
//! 2. Comparisons with something that is not a number fail.

use serde::{Deserialize, Serialize};

/// What came of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The claim holds.
    Holds,
    /// It does not.
    Fails,
    /// It cannot be asked here.
    NotApplicable,
    /// A figure beside the claims, judged by nobody.
    Reported,
}

/// One claim beside what was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Short name, to find the cause by.
    pub key: String,
    /// What is claimed.
    pub claim: String,
    /// The figure in the paper.
    pub paper: String,
    /// Ours.
    pub ours: String,
    /// What came of it.
    pub outcome: Outcome,
}

/// The last word on an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Everything that is claimed was found.
    Holds,
    /// Something that is claimed was not.
    DoesNotHold,
    /// Nothing of it can be asked on this device.
    NotApplicable,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Verdict::Holds => "holds",
            Verdict::DoesNotHold => "does not hold",
            Verdict::NotApplicable => "not applicable",
        })
    }
}

/// All checks of an experiment on one device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judgement {
    /// In the order of the claims.
    pub checks: Vec<Check>,
}

impl Judgement {
    /// Adds a claim that must hold.
    pub fn check(&mut self, key: &str, claim: &str, paper: &str, ours: String, holds: bool) {
        let outcome = if holds { Outcome::Holds } else { Outcome::Fails };
        self.add(key, claim, paper, ours, outcome);
    }

    /// Adds a figure that is not judged.
    pub fn report(&mut self, key: &str, claim: &str, paper: &str, ours: String) {
        self.add(key, claim, paper, ours, Outcome::Reported);
    }

    /// Adds a claim that cannot be asked here.
    pub fn not_applicable(&mut self, key: &str, claim: &str, paper: &str, ours: String) {
        self.add(key, claim, paper, ours, Outcome::NotApplicable);
    }

    fn add(&mut self, key: &str, claim: &str, paper: &str, ours: String, outcome: Outcome) {
        let (key, claim, paper) = (key.to_owned(), claim.to_owned(), paper.to_owned());
        self.checks.push(Check { key, claim, paper, ours, outcome });
    }

    /// The verdict on all of them.
    pub fn verdict(&self) -> Verdict {
        let any = |outcome| self.checks.iter().any(|check| check.outcome == outcome);
        if any(Outcome::Fails) {
            Verdict::DoesNotHold
        } else if any(Outcome::Holds) {
            Verdict::Holds
        } else {
            Verdict::NotApplicable
        }
    }

    /// What came of the check `key`.
    pub fn outcome(&self, key: &str) -> Option<Outcome> {
        self.checks.iter().find(|check| check.key == key).map(|check| check.outcome)
    }
}

/// The first step from one value to the next where it falls by more than the share `slack`: the two positions.
/// A value that is not a number is a fall.
pub fn first_fall(line: &[(f64, f64)], slack: f64) -> Option<(f64, f64)> {
    let falls = |pair: &&[(f64, f64)]| {
        pair[1].1.partial_cmp(&(pair[0].1 * (1.0 - slack))).is_none_or(|order| order.is_lt())
    };
    line.windows(2).find(falls).map(|pair| (pair[0].0, pair[1].0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(outcomes: &[Outcome]) -> Verdict {
        let mut judgement = Judgement::default();
        for outcome in outcomes {
            judgement.add("a", "claim", "paper", "ours".into(), *outcome);
        }
        judgement.verdict()
    }

    #[test]
    fn one_failure_decides_and_reports_do_not_count() {
        use Outcome::{Fails, Holds, NotApplicable, Reported};
        assert_eq!(judged(&[Holds, Reported, NotApplicable]), Verdict::Holds);
        assert_eq!(judged(&[Holds, Fails, Holds]), Verdict::DoesNotHold);
        assert_eq!(judged(&[Reported, NotApplicable]), Verdict::NotApplicable);
        assert_eq!(judged(&[]), Verdict::NotApplicable);
    }

    #[test]
    fn falls_are_found_beyond_the_slack() {
        assert_eq!(first_fall(&[(1.0, 10.0), (2.0, 9.6), (4.0, 12.0)], 0.05), None);
        assert_eq!(first_fall(&[(1.0, 10.0), (2.0, 9.4), (4.0, 12.0)], 0.05), Some((1.0, 2.0)));
        assert_eq!(first_fall(&[(1.0, 10.0), (2.0, f64::NAN)], 0.05), Some((1.0, 2.0)));
        assert_eq!(first_fall(&[(1.0, 10.0)], 0.0), None);
    }
}
