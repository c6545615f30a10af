//! E39: power loss at device operations, for every tree (ours).

mod flash_trees;
mod volume_trees;

use super::{Card, Device, Parameter, Scale, Study};
use crate::chart::{Axis, Chart, Line, Scaling};
use crate::failure::Result;
use crate::judgement::Judgement;
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Lapse, Simulated};
use crate::row::{Missing, Row, Rows};
use trees::Contract;
use trees::crash_matrix::Found;

pub(super) struct PowerLoss;

static CARD: Card = Card {
    number: 39,
    name: "power-loss",
    title: "Power loss: what is found, by tree and rule",
    source: "ours; rules of the papers where they lose data: PIO B-tree (PVLDB 2011, section 3.4), AS B-tree (JISE 2014, section \
             3.3), CB-tree (Applied Sciences 2020, section 4)",
    question: "The power fails at an operation of the device; what was not synced is lost, torn, or there without what was written \
               before it. Does the tree open, is it sound, and has it the state after some operation, no earlier than the last that \
               it had promised to keep? Nodes are tiny, so that 2,000 operations split, join, recycle and merge all there is.",
    reported: "Nothing: the papers argue that their recovery is right, or have none.",
    absent: &[(Device::Disk, "nobody cuts a real disk's power a thousand times")],
    causes: &[],
};

const STEPS: usize = 2000;
const KEYS: u64 = 150;
const SEED: u64 = 1;

/// Each how many-th operation of the device is tried. No power of two, with which what repeats would hide.
fn stride(scale: Scale) -> u64 {
    if scale == Scale::Trial { 997 } else { scale.pick(7, 3, 1) }
}

/// What of a tree's data is said to survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    /// What the tree promises.
    AsPromised,
    /// What a paper promises, whose rules lose it.
    AsPublished,
    /// Nothing between two flushes.
    Nothing,
}

/// A tree and the rules it is recovered by.
#[derive(Debug)]
struct Trial {
    name: &'static str,
    kept: Kept,
    /// Cuts the power at each so many-th change of the device.
    run: fn(u64) -> Result<Tally>,
}

const fn promising(name: &'static str, run: fn(u64) -> Result<Tally>) -> Trial {
    Trial { name, kept: Kept::AsPromised, run }
}

/// Rows of trees on a volume.
const ON_VOLUME: &str = "images of a volume";
/// Rows of trees on raw flash.
const ON_FLASH: &str = "images of raw flash";

/// What was found in how many images.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    right: u64,
    broken: u64,
    wrong: u64,
}

impl Tally {
    fn add(&mut self, found: &Found) {
        match found {
            Found::Right => self.right += 1,
            Found::Broken(_) => self.broken += 1,
            Found::Wrong(_) => self.wrong += 1,
        }
    }
}

fn measure<C: Clock>(laboratory: &Laboratory, series: &str, trials: &[Trial]) -> Result<Rows<C>> {
    laboratory.expect(trials.len());
    let mut rows = Vec::new();
    for (at, trial) in trials.iter().enumerate() {
        laboratory.step(trial.name)?;
        let tally = (trial.run)(stride(laboratory.scale))?;
        let counts = [("right", tally.right), ("broken", tally.broken), ("wrong", tally.wrong)];
        rows.push(Row {
            series: series.to_owned(),
            at: at as f64,
            run: 0,
            requests: tally.right + tally.broken + tally.wrong,
            bytes: 0,
            // An image has no clock.
            elapsed_us: Lapse::micros(0.0),
            counts: counts.map(|(name, count)| (name.to_owned(), count as f64)).into(),
        });
    }
    Ok(Rows(rows))
}

impl Study for PowerLoss {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn parameters(&self, scale: Scale, device: Device) -> Vec<Parameter> {
        let promise = |contract| match contract {
            Contract::EachOperation => "each operation",
            Contract::Flush => "up to the last flush",
            Contract::EachKey => "up to the last flush, key by key",
            Contract::Never => "nothing",
        };
        let (each, flush, keys, nothing) = (
            promise(Contract::EachOperation),
            promise(Contract::Flush),
            promise(Contract::EachKey),
            promise(Contract::Never),
        );
        let (promised, under) = if device == Device::Nand {
            (
                format!("{flush}: \"commits\"; {keys}: \"rules\"; {each}: the rest"),
                "raw flash of blocks of 8 pages of 512 bytes, which tears the page that it programs, and erases half of a block",
            )
        } else {
            (
                format!(
                    "{each}: \"log each\" and \"log page\"; {flush}: \"log flush\", \"no log\", \"commits\", AS, BFTL; \
                     {nothing}: the rest"
                ),
                "a volume in memory that tears, reorders and loses what is not synced",
            )
        };
        vec![
            Parameter::new("operations", "not told", format!("{STEPS}, keys 0 to {KEYS}, 2 % flushes")),
            Parameter::new(
                "power fails",
                "not told",
                format!("at each {}th change of the device", stride(scale)),
            ),
            Parameter::new("nodes", "not told", "of 4 or 5 keys"),
            Parameter::new("promised", "not told", promised),
            Parameter::new("device", "not told", under),
        ]
    }

    fn on_ssdsim(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        measure(laboratory, ON_VOLUME, &volume_trees::TRIALS)
    }

    fn on_nand(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        measure(laboratory, ON_FLASH, &flash_trees::TRIALS)
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, device: Device) -> std::result::Result<Judgement, Missing> {
        let (series, trials) = match device {
            Device::Nand => (ON_FLASH, &flash_trees::TRIALS[..]),
            Device::Disk | Device::Ssdsim => (ON_VOLUME, &volume_trees::TRIALS[..]),
        };
        let mut judgement = Judgement::default();
        for (at, Trial { name, kept, .. }) in trials.iter().enumerate() {
            let count = |what: &'static str| rows.median(series, at as f64, move |row| row.count(what));
            let (right, broken, wrong) = (count("right")?, count("broken")?, count("wrong")?);
            let ours = format!(
                "of {} images {right} are right, {broken} broken, {wrong} sound but wrong",
                right + broken + wrong
            );
            let why = match kept {
                Kept::AsPromised => {
                    let holds = right > 0.0 && broken + wrong == 0.0;
                    let what = format!("{name}: all that was promised is there, and the tree is sound");
                    judgement.check(name, &what, "not told", ours, holds);
                    continue;
                }
                Kept::AsPublished => "as published, which loses data",
                Kept::Nothing => "promises nothing between two flushes",
            };
            judgement.report(name, &format!("{name}: {why}"), "not told", ours);
        }
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        let on_flash = !rows.points(ON_FLASH).is_empty();
        let (series, names): (_, &'static [&'static str]) =
            if on_flash { (ON_FLASH, &flash_trees::SHORT) } else { (ON_VOLUME, &volume_trees::SHORT) };
        let mut lines = Vec::new();
        for (name, what) in [("right", "right"), ("broken", "broken"), ("sound but wrong", "wrong")] {
            let share = |row: &Row<C>| 100.0 * row.count(what) / row.requests as f64;
            let points = rows.points(series).into_iter().map(|at| Ok((at, rows.spread(series, at, share)?)));
            let points = points.collect::<std::result::Result<Vec<_>, Missing>>()?;
            lines.push(Line { name: name.to_owned(), paired: false, points });
        }
        Ok(Chart {
            title: CARD.title.into(),
            x: Axis { label: "tree and rule".into(), scale: Scaling::Names(names) },
            y: Axis { label: "images, %".into(), scale: Scaling::Even },
            lines,
            bars: true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judgement::{Outcome, Verdict};
    use crate::row::tests::row;

    const PLACES: [(Device, &str, &[Trial]); 2] =
        [(Device::Ssdsim, ON_VOLUME, &volume_trees::TRIALS), (Device::Nand, ON_FLASH, &flash_trees::TRIALS)];

    #[test]
    fn one_image_that_is_not_right_fails_a_tree_that_promised_and_no_other() {
        for (device, series, trials) in PLACES {
            let judge = |bad: usize, what: &str| {
                let rows = (0..trials.len()).map(|at| {
                    let mut row = row::<Simulated>(series, at as f64, 0, 1.0);
                    row.counts = [("right", 99.0), ("broken", 0.0), ("wrong", 0.0)]
                        .map(|(name, count)| (name.to_owned(), count))
                        .into();
                    if at == bad {
                        row.counts.insert(what.to_owned(), 1.0);
                    }
                    row
                });
                Study::judge(&PowerLoss, &Rows(rows.collect()), device).unwrap()
            };
            for (bad, trial) in trials.iter().enumerate() {
                for what in ["broken", "wrong"] {
                    let judged = judge(bad, what);
                    let promised = trial.kept == Kept::AsPromised;
                    assert_eq!(judged.verdict() == Verdict::Holds, !promised, "{trial:?} {what}");
                    if promised {
                        assert_eq!(judged.outcome(trial.name), Some(Outcome::Fails), "{what}");
                        let other = trials[usize::from(bad == 0)].name;
                        assert_eq!(judged.outcome(other), Some(Outcome::Holds), "{what}");
                    }
                }
            }
        }
    }

    #[test]
    fn published_rules_lose_data_and_ours_do_not() {
        for Trial { name, kept, run } in PLACES.iter().flat_map(|(_, _, trials)| *trials) {
            let tally = run(149).unwrap();
            assert!(tally.right + tally.broken + tally.wrong > 3, "{name}: {tally:?}");
            let lost = tally.broken + tally.wrong;
            assert!(if *kept == Kept::AsPromised { lost == 0 } else { lost > 0 }, "{name}: {tally:?}");
        }
    }
}
