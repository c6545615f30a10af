//! What of the experiments' checks is no claim of a paper, and why: what the simulation was fitted to, what follows from how the
//! systems are built, and what only we ask. And which claims of a paper a run does not ask, since it has not their setting.
//!
//! Invariant: every check that no line here names, and that its experiment does not label itself, is a claim of the paper that
//! its card names, and counts for the verdict.

use super::{Device, Scale};
use crate::judgement::{Judgement, Kind, Outcome};

/// Checks of an experiment whose key begins so.
struct Label {
    experiment: u32,
    /// On this device only, if one is named.
    device: Option<Device>,
    key: &'static str,
    kind: Kind,
    why: &'static str,
}

const fn label(experiment: u32, key: &'static str, kind: Kind, why: &'static str) -> Label {
    Label { experiment, device: None, key, kind, why }
}

/// What the simulated drive was fitted to.
const fn fitted(experiment: u32, why: &'static str) -> Label {
    Label { experiment, device: Some(Device::Ssdsim), key: "", kind: Kind::Calibration, why }
}

const fn built(experiment: u32, key: &'static str, why: &'static str) -> Label {
    label(experiment, key, Kind::Invariant, why)
}

const fn ours(experiment: u32, key: &'static str, why: &'static str) -> Label {
    label(experiment, key, Kind::Own, why)
}

/// Claims of an experiment whose key begins so, at scales that do not have the published setting.
struct Unpublished {
    experiment: u32,
    device: Option<Device>,
    scales: &'static [Scale],
    keys: &'static [&'static str],
    why: &'static str,
}

const UNPUBLISHED: &[Unpublished] = &[
    Unpublished {
        experiment: 15,
        device: None,
        scales: &[Scale::Trial, Scale::Ci],
        keys: &["total-all", "insert-all", "range-all", "delete-all"],
        why: QUEUE_TOO_LARGE,
    },
    Unpublished {
        experiment: 16,
        device: None,
        scales: &[Scale::Trial, Scale::Ci],
        keys: &["faster"],
        why: QUEUE_TOO_LARGE,
    },
    Unpublished {
        experiment: 29,
        device: Some(Device::Disk),
        scales: &[Scale::Trial, Scale::Ci],
        keys: &["ibsf-tpce", "pair-tpce"],
        why: TOO_FEW,
    },
    Unpublished {
        experiment: 30,
        device: Some(Device::Disk),
        scales: &[Scale::Trial, Scale::Ci],
        keys: &["btree-tpce", "others-tpce"],
        why: TOO_FEW,
    },
];

const TOO_FEW: &str = "not the published setting: 309 insertions, where 123,562 are published";
const QUEUE_TOO_LARGE: &str =
    "not the published setting: a page of queue an index is four times the published share";

const FORETOLD: &str = "the paper foretells no times";

const SPLIT: &str = "the rule of splits was chosen by this figure: the other gives 781 pages for 794";
const READING: &str = "the reading of \"50 %\" was chosen of eleven by this figure";

const LABELS: &[Label] = &[
    fitted(1, "the drive's geometry was chosen so"),
    fitted(2, "the drive's channels, and its controller's time for a request, were chosen so"),
    fitted(3, "what mingling costs the drive was chosen so"),
    label(9, "", Kind::Calibration, "the board's and the drive's times were chosen so"),
    Label {
        experiment: 8,
        device: Some(Device::Disk),
        key: "random-read",
        kind: Kind::Own,
        why: "the point of table 1 is writes, which are not judged here",
    },
    ours(4, "ordered", "the order of writes is emulated; the paper's is the file system's"),
    ours(6, "psync-once", "the paper gives no figure for it"),
    built(10, "found", "a search finds what is there"),
    built(10, "leaves", "MPSearch visits what single searches visit"),
    built(10, "frames", "groups are cut at PioMax"),
    built(10, "groups", "groups are cut at PioMax, level by level"),
    built(
        10,
        "calls",
        "three levels, the root in memory, and PioMax as large as a level: a call for each of two",
    ),
    ours(16, "rises", "the paper says that threads were added, not that each adds operations"),
    built(
        17,
        "LRU-published-leaf",
        "(9) as rebuilt lets no leaf pay that is longer than the page, and that has 4 KiB",
    ),
    ours(20, "foretold", FORETOLD),
    ours(21, "foretold", FORETOLD),
    ours(21, "same-reads", "the paper gives times alone"),
    ours(22, "same-reads", "the paper gives times alone"),
    ours(23, "foretold", FORETOLD),
    ours(24, "foretold", FORETOLD),
    built(26, "bound", "a sub-file is recycled when its valid share is below the threshold"),
    ours(27, "foretold", FORETOLD),
    built(
        28,
        "sub-files",
        "v is what was copied of what was recycled, which is the same figure if files do not become more",
    ),
    ours(28, "", "the paper measures neither"),
    label(31, "cb-0", Kind::Calibration, SPLIT),
    label(31, "wandering-0", Kind::Calibration, SPLIT),
    label(31, "wandering-50", Kind::Calibration, READING),
    label(31, "difference-50", Kind::Calibration, READING),
    ours(30, "hits", "the paper does not count them"),
    built(32, "cb-reads-100", "one node of the path at least is in memory"),
    built(32, "wandering-writes", "all parents are written"),
    built(32, "mu-star-writes", "a path is a page"),
    built(32, "log-writes", "each record is logged"),
    built(34, "formula-1", "a search without a buffer reads each level"),
    built(34, "formula-2", "one node of the path at least is in memory"),
    built(34, "formula-3", "an insertion without a buffer reads each level and writes the leaf"),
    built(34, "formula-4", "one node of the path at least is in memory"),
    built(34, "formula-5", "an insertion without a buffer reads each level and writes the leaf"),
    built(37, "erases", "cleansing a block erases it once"),
    built(38, "ipl-evaporates", "IPL's logs lie behind pages that are still free"),
    built(38, "dipl-does-not", "d-IPL's logs lie right behind its nodes"),
    ours(39, "", "no paper cuts the power"),
    ours(40, "", "no paper varies the channels"),
    ours(41, "", "no paper counts this"),
    ours(42, "", "no paper varies the channels"),
    ours(43, "", "the paper gives no figure"),
    ours(44, "", "the paper gives no figure"),
    built(
        47,
        "physical",
        "a new drive of a million pages erases nothing for these few, and both trees write a node a change",
    ),
];

/// Labels what was judged of an experiment.
pub(super) fn apply(experiment: u32, (device, scale): (Device, Scale), judgement: &mut Judgement) {
    let unpublished = |line: &&Unpublished| {
        line.experiment == experiment
            && line.device.is_none_or(|only| only == device)
            && line.scales.contains(&scale)
    };
    for line in UNPUBLISHED.iter().filter(unpublished) {
        let meant = |key: &str| line.keys.iter().any(|begins| key.starts_with(begins));
        for check in judgement.checks.iter_mut().filter(|check| check.is_judged() && meant(&check.key)) {
            (check.outcome, check.place) = (Outcome::Reported, None);
            check.claim = format!("{} ({})", check.claim, line.why);
        }
    }
    let here =
        |label: &&Label| label.experiment == experiment && label.device.is_none_or(|only| only == device);
    for check in judgement.checks.iter_mut().filter(|check| check.is_judged() && check.kind == Kind::Claim) {
        if let Some(label) = LABELS.iter().filter(here).find(|label| check.key.starts_with(label.key)) {
            check.kind = label.kind;
            check.claim = format!("{} ({})", check.claim, label.why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judgement::Verdict;

    #[test]
    fn labels_are_by_experiment_device_and_key() {
        let judged = |experiment, device, key: &str| {
            let mut judgement = Judgement::default();
            judgement.check(key, "it is", "so", "so".into(), false);
            apply(experiment, (device, Scale::Std), &mut judgement);
            (judgement.checks[0].kind, judgement.verdict())
        };
        assert_eq!(judged(1, Device::Ssdsim, "read-8k"), (Kind::Calibration, Verdict::NotJudged));
        assert_eq!(judged(1, Device::Disk, "read-8k"), (Kind::Claim, Verdict::DoesNotHold));
        assert_eq!(judged(26, Device::Disk, "bound"), (Kind::Invariant, Verdict::DoesNotHold));
        assert_eq!(judged(26, Device::Disk, "as"), (Kind::Claim, Verdict::DoesNotHold));
        assert_eq!(judged(39, Device::Nand, "BFTL"), (Kind::Own, Verdict::NotJudged));
    }

    #[test]
    fn figures_that_are_not_judged_get_no_label() {
        let mut judgement = Judgement::default();
        judgement.report("read-8k", "it is", "so", "so".into());
        apply(1, (Device::Ssdsim, Scale::Ci), &mut judgement);
        assert_eq!(judgement.checks[0].kind, Kind::Claim);
        assert_eq!(judgement.checks[0].claim, "it is");
    }

    #[test]
    fn claims_whose_setting_was_not_run_are_not_judged() {
        let judged = |scale| {
            let mut judgement = Judgement::default();
            judgement.band("total-all", "it is", "so".into(), [1.0], 1.2..=1.4);
            judgement.check("total-each", "it is", "so", "so".into(), true);
            apply(15, (Device::Ssdsim, scale), &mut judgement);
            judgement
        };
        let small = judged(Scale::Ci);
        assert_eq!((small.checks[0].outcome, small.checks[0].place), (Outcome::Reported, None));
        assert!(small.checks[0].claim.contains("not the published setting"), "{:?}", small.checks[0]);
        assert_eq!(small.verdict(), Verdict::Holds);
        for scale in [Scale::Std, Scale::Full] {
            assert_eq!(judged(scale).verdict(), Verdict::DoesNotHold, "{scale}");
        }
    }
}
