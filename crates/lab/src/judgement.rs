//! Whether what was measured has the shape that the paper claims: single checks with their figures, and the verdict.
//!
//! Invariants:
//! 1. The verdict is about claims of the paper alone. One that fails is enough for "does not hold"; "holds" needs at least one
//!    that holds. What was fitted, what follows from construction, what is asked beside the paper and what is only reported
//!    count for neither; an invariant that is broken makes "does not hold", since nothing else can be believed then.
//! 2. Comparisons with something that is not a number fail.

use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// What came of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// What is said is so.
    Holds,
    /// It is not.
    Fails,
    /// It cannot be asked here.
    NotApplicable,
    /// A figure beside the claims, not judged.
    Reported,
}

/// What a check is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A claim of the paper.
    #[default]
    Claim,
    /// A question that the paper does not answer.
    Own,
    /// Something to which the simulation was fitted.
    Calibration,
    /// Something that follows from how the systems are built: whether they are what they should be.
    Invariant,
}

/// Where a figure lies, by the band that the paper gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// In it.
    Inside,
    /// All or part of it is above: the effect is larger than published.
    Above,
    /// All or part of it is below: the effect is smaller than published.
    Below,
    /// It reaches beyond both ends.
    Around,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Place::Inside => "inside the published band",
            Place::Above => "above the published band",
            Place::Below => "below the published band",
            Place::Around => "below and above the published band",
        })
    }
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
    /// What it is about.
    #[serde(default)]
    pub kind: Kind,
    /// Where ours lies, if the paper gives a band.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<Place>,
}

impl Check {
    /// The label that pages give it.
    pub fn label(&self) -> String {
        let word = match (self.outcome, self.kind) {
            (Outcome::NotApplicable, _) => "not applicable",
            (Outcome::Reported, _) => "not judged",
            (Outcome::Holds, Kind::Claim) => "holds",
            (Outcome::Fails, Kind::Claim) => "does not hold",
            (Outcome::Holds, Kind::Own) => "not published: so",
            (Outcome::Fails, Kind::Own) => "not published: not so",
            (Outcome::Holds, Kind::Calibration) => "calibration: met",
            (Outcome::Fails, Kind::Calibration) => "calibration: missed",
            (Outcome::Holds, Kind::Invariant) => "invariant: kept",
            (Outcome::Fails, Kind::Invariant) => "invariant: broken",
        };
        self.place.map_or_else(|| word.to_owned(), |place| format!("{word}, {place}"))
    }

    /// Whether anything was asked of it.
    pub fn is_judged(&self) -> bool {
        matches!(self.outcome, Outcome::Holds | Outcome::Fails)
    }

    /// Whether the reader needs a reason: it is not so, or the effect is larger than published.
    pub fn needs_a_cause(&self) -> bool {
        self.outcome == Outcome::Fails || matches!(self.place, Some(Place::Above | Place::Around))
    }
}

/// The last word on an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every claim that is judged was found.
    Holds,
    /// Something that is claimed was not.
    DoesNotHold,
    /// No claim of a paper is judged: calibrations, invariants, questions of our own, figures.
    NotJudged,
    /// Nothing of it can be asked on this device.
    NotApplicable,
}

impl Verdict {
    /// All of them.
    pub const ALL: [Verdict; 4] =
        [Verdict::Holds, Verdict::DoesNotHold, Verdict::NotJudged, Verdict::NotApplicable];
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Verdict::Holds => "holds",
            Verdict::DoesNotHold => "does not hold",
            Verdict::NotJudged => "not judged",
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
    /// Adds a claim of the paper.
    pub fn check(&mut self, key: &str, claim: &str, paper: &str, ours: String, holds: bool) {
        self.judge(Kind::Claim, key, claim, paper, ours, holds);
    }

    /// Adds a claim for which the paper gives a band: it holds if no value is below. Larger values are larger effects.
    pub fn band(
        &mut self,
        key: &str,
        claim: &str,
        ours: String,
        values: impl IntoIterator<Item = f64>,
        band: RangeInclusive<f64>,
    ) {
        let place = place(values, &band);
        let paper = format!("{} to {}", band.start(), band.end());
        let holds = matches!(place, Some(Place::Inside | Place::Above));
        self.judge(Kind::Claim, key, claim, &paper, ours, holds);
        if let Some(check) = self.checks.last_mut() {
            check.place = place;
        }
    }

    /// Adds a claim of one figure, `paper`: it holds if all values are within what is near enough to it, neither below nor
    /// above.
    pub fn figure(
        &mut self,
        (key, claim, paper): (&str, &str, &str),
        ours: String,
        values: impl IntoIterator<Item = f64>,
        near: RangeInclusive<f64>,
    ) {
        let place = place(values, &near);
        let holds = place == Some(Place::Inside);
        let paper = format!("{paper}: {} to {}", near.start(), near.end());
        self.judge(Kind::Claim, key, claim, &paper, ours, holds);
        if let Some(check) = self.checks.last_mut() {
            check.place = place;
        }
    }

    /// Adds a question that the paper does not answer.
    pub fn own(&mut self, key: &str, claim: &str, ours: String, holds: bool) {
        self.judge(Kind::Own, key, claim, "not told", ours, holds);
    }

    /// Adds something to which the simulation was fitted.
    pub fn calibration(&mut self, key: &str, claim: &str, paper: &str, ours: String, holds: bool) {
        self.judge(Kind::Calibration, key, claim, paper, ours, holds);
    }

    /// Adds something that follows from construction.
    pub fn invariant(&mut self, key: &str, claim: &str, paper: &str, ours: String, holds: bool) {
        self.judge(Kind::Invariant, key, claim, paper, ours, holds);
    }

    /// Adds a figure that is not judged.
    pub fn report(&mut self, key: &str, claim: &str, paper: &str, ours: String) {
        self.add(Kind::Claim, key, claim, paper, ours, Outcome::Reported);
    }

    /// Adds a claim that cannot be asked here.
    pub fn not_applicable(&mut self, key: &str, claim: &str, paper: &str, ours: String) {
        self.add(Kind::Claim, key, claim, paper, ours, Outcome::NotApplicable);
    }

    fn judge(&mut self, kind: Kind, key: &str, claim: &str, paper: &str, ours: String, holds: bool) {
        let outcome = if holds { Outcome::Holds } else { Outcome::Fails };
        self.add(kind, key, claim, paper, ours, outcome);
    }

    fn add(&mut self, kind: Kind, key: &str, claim: &str, paper: &str, ours: String, outcome: Outcome) {
        let (key, claim, paper) = (key.to_owned(), claim.to_owned(), paper.to_owned());
        self.checks.push(Check { key, claim, paper, ours, outcome, kind, place: None });
    }

    /// The verdict on all of them.
    pub fn verdict(&self) -> Verdict {
        let any =
            |kind, outcome| self.checks.iter().any(|check| check.kind == kind && check.outcome == outcome);
        if any(Kind::Claim, Outcome::Fails) || any(Kind::Invariant, Outcome::Fails) {
            Verdict::DoesNotHold
        } else if any(Kind::Claim, Outcome::Holds) {
            Verdict::Holds
        } else if any(Kind::Claim, Outcome::NotApplicable)
            && self.checks.iter().all(|check| check.kind == Kind::Claim)
        {
            Verdict::NotApplicable
        } else {
            Verdict::NotJudged
        }
    }

    /// What came of the check `key`.
    pub fn outcome(&self, key: &str) -> Option<Outcome> {
        self.checks.iter().find(|check| check.key == key).map(|check| check.outcome)
    }
}

/// Where values lie by a band. `None` if there are none, or if one is not a number.
fn place(values: impl IntoIterator<Item = f64>, band: &RangeInclusive<f64>) -> Option<Place> {
    let (mut below, mut above, mut any) = (false, false, false);
    for value in values {
        if value.is_nan() {
            return None;
        }
        any = true;
        below |= value < *band.start();
        above |= value > *band.end();
    }
    any.then_some(match (below, above) {
        (false, false) => Place::Inside,
        (false, true) => Place::Above,
        (true, false) => Place::Below,
        (true, true) => Place::Around,
    })
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

    fn judged(outcomes: &[(Kind, Outcome)]) -> Verdict {
        let mut judgement = Judgement::default();
        for (kind, outcome) in outcomes {
            judgement.add(*kind, "a", "claim", "paper", "ours".into(), *outcome);
        }
        judgement.verdict()
    }

    #[test]
    fn one_failure_decides_and_reports_do_not_count() {
        use Outcome::{Fails, Holds, NotApplicable, Reported};
        let claims = |outcomes: &[Outcome]| {
            judged(&outcomes.iter().map(|outcome| (Kind::Claim, *outcome)).collect::<Vec<_>>())
        };
        assert_eq!(claims(&[Holds, Reported, NotApplicable]), Verdict::Holds);
        assert_eq!(claims(&[Holds, Fails, Holds]), Verdict::DoesNotHold);
        assert_eq!(claims(&[Reported, NotApplicable]), Verdict::NotApplicable);
        assert_eq!(claims(&[Reported]), Verdict::NotJudged);
        assert_eq!(claims(&[]), Verdict::NotJudged);
    }

    #[test]
    fn what_is_no_claim_makes_no_verdict_and_a_broken_invariant_does() {
        use Outcome::{Fails, Holds};
        for kind in [Kind::Own, Kind::Calibration] {
            assert_eq!(judged(&[(kind, Holds)]), Verdict::NotJudged, "{kind:?}");
            assert_eq!(judged(&[(kind, Fails), (Kind::Claim, Holds)]), Verdict::Holds, "{kind:?}");
        }
        assert_eq!(judged(&[(Kind::Invariant, Holds)]), Verdict::NotJudged);
        assert_eq!(judged(&[(Kind::Invariant, Fails), (Kind::Claim, Holds)]), Verdict::DoesNotHold);
    }

    #[test]
    fn a_band_has_two_sides() {
        let band = |values: &[f64]| {
            let mut judgement = Judgement::default();
            judgement.band("a", "claim", "ours".into(), values.iter().copied(), 1.23..=1.47);
            judgement.checks.remove(0)
        };
        for (values, place, outcome, label) in [
            (&[1.23, 1.47][..], Some(Place::Inside), Outcome::Holds, "holds, inside the published band"),
            (&[1.3, 1.5], Some(Place::Above), Outcome::Holds, "holds, above the published band"),
            (&[1.2, 1.4], Some(Place::Below), Outcome::Fails, "does not hold, below the published band"),
            (
                &[1.2, 1.5],
                Some(Place::Around),
                Outcome::Fails,
                "does not hold, below and above the published band",
            ),
            (&[], None, Outcome::Fails, "does not hold"),
            (&[1.3, f64::NAN], None, Outcome::Fails, "does not hold"),
        ] {
            let check = band(values);
            assert_eq!((check.place, check.outcome, check.label().as_str()), (place, outcome, label));
            assert_eq!(check.needs_a_cause(), label != "holds, inside the published band", "{label}");
        }
        assert_eq!(band(&[1.3]).paper, "1.23 to 1.47");
    }

    #[test]
    fn a_figure_is_missed_on_either_side() {
        let outcome = |values: &[f64]| {
            let mut judgement = Judgement::default();
            let told = ("a", "claim", "almost 2");
            judgement.figure(told, "ours".into(), values.iter().copied(), 1.8..=2.0);
            (judgement.checks[0].label(), judgement.checks[0].paper.clone())
        };
        for (values, label) in [
            (&[1.8, 2.0][..], "holds, inside the published band"),
            (&[1.9, 2.1], "does not hold, above the published band"),
            (&[1.7, 1.9], "does not hold, below the published band"),
            (&[1.7, 2.1], "does not hold, below and above the published band"),
            (&[], "does not hold"),
        ] {
            assert_eq!(outcome(values), (label.to_owned(), "almost 2: 1.8 to 2".to_owned()), "{values:?}");
        }
    }

    #[test]
    fn falls_are_found_beyond_the_slack() {
        assert_eq!(first_fall(&[(1.0, 10.0), (2.0, 9.6), (4.0, 12.0)], 0.05), None);
        assert_eq!(first_fall(&[(1.0, 10.0), (2.0, 9.4), (4.0, 12.0)], 0.05), Some((1.0, 2.0)));
        assert_eq!(first_fall(&[(1.0, 10.0), (2.0, f64::NAN)], 0.05), Some((1.0, 2.0)));
        assert_eq!(first_fall(&[(1.0, 10.0)], 0.0), None);
    }
}
