//! E39: power loss at device operations, for every tree (ours).

use super::{Card, Device, Parameter, Scale, Study};
use crate::chart::{Axis, Chart, Line, Scaling};
use crate::failure::{Failure, Result};
use crate::judgement::Judgement;
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Lapse, Simulated};
use crate::row::{Missing, Row, Rows};
use psync::Volume;
use std::sync::Arc;
use trees::crash_matrix::{Cuts, Found, Recover, at_every, workload};
use trees::{
    AsRecovery, AsTree, AsTreeOptions, BTree, BTreeOptions, Bftl, BftlOptions, CbPersistence, CbPlacement,
    CbTree, CbTreeOptions, Contract, Eviction, FdTree, FdTreeOptions, HeadLog, Index, LaTree, LaTreeOptions,
    LogMode, PioOptions, PioTree, Sequential,
};

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
    absent: &[
        (Device::Disk, "nobody cuts a real disk's power a thousand times"),
        (Device::Nand, "these trees work on a block device; flash itself loses power in its own tests"),
    ],
    causes: &[],
};

const STEPS: usize = 2000;
const KEYS: u64 = 150;
const SEED: u64 = 1;

/// Each how many-th operation of the device is tried. No power of two, with which what repeats would hide.
fn stride(scale: Scale) -> u64 {
    if scale == Scale::Trial { 997 } else { scale.pick(7, 3, 1) }
}

/// A tree and the rules it is recovered by.
type Trial = (&'static str, fn(&Cuts) -> Result<Tally>);

/// The first ones promise something.
const TRIALS: [Trial; 14] = [
    ("PIO, log each", |cuts| pio(LogMode::Each, cuts)),
    ("PIO, log flush", |cuts| pio(LogMode::Buffered, cuts)),
    ("AS, checkpoint", |cuts| always_sequential(AsRecovery::Checkpoint, cuts)),
    ("AS, read all", |cuts| always_sequential(AsRecovery::ReadAll, cuts)),
    ("CB, log page", |cuts| cascade(CbPersistence::LogPage, CbPlacement::OutOfPlace, cuts)),
    ("CB, commits", |cuts| cascade(CbPersistence::RootGrowth, CbPlacement::OutOfPlace, cuts)),
    ("FD, log each", |cuts| fd(HeadLog::EachOperation, cuts)),
    ("FD, no log", |cuts| fd(HeadLog::Off, cuts)),
    ("BFTL", bftl),
    ("PIO, published redo", published_redo),
    ("AS, as published", |cuts| always_sequential(AsRecovery::AsPublished, cuts)),
    ("CB, in place", |cuts| cascade(CbPersistence::LogPage, CbPlacement::InPlace, cuts)),
    ("B+-tree", btree),
    ("LA-tree", la),
];
/// How many of them promise something.
const PROMISING: usize = 9;
/// Rules as published, which are said to keep the data; after them, trees that promise nothing between two flushes.
const PUBLISHED: usize = 3;
const NAMES: [&str; 14] = {
    let mut names = [""; 14];
    let mut at = 0;
    while at < names.len() {
        names[at] = TRIALS[at].0;
        at += 1;
    }
    names
};
/// The same in the picture.
const SHORT: [&str; 14] = [
    "PIO each",
    "PIO flush",
    "AS ckpt",
    "AS all",
    "CB log",
    "CB comm",
    "FD log",
    "FD",
    "BFTL",
    "PIO pub",
    "AS pub",
    "CB pub",
    "B+",
    "LA",
];
const SERIES: &str = "images";

/// What was found in how many images.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    right: u64,
    broken: u64,
    wrong: u64,
}

fn tally<T: Index<Ground = Arc<dyn Volume>>>(
    options: &T::Options,
    cuts: &Cuts,
    recover: Recover<'_, T>,
) -> Result<Tally> {
    let mut tally = Tally::default();
    at_every::<T>(options, recover, SEED, &workload(SEED, STEPS, KEYS), cuts, &mut |found| match found {
        Found::Right => tally.right += 1,
        Found::Broken(_) => tally.broken += 1,
        Found::Wrong(_) => tally.wrong += 1,
    })
    .map_err(Failure::from)?;
    Ok(tally)
}

fn usual<T: Index<Ground = Arc<dyn Volume>>>(options: &T::Options, cuts: &Cuts) -> Result<Tally> {
    tally::<T>(options, cuts, &|volume: Arc<dyn Volume>| T::recover(volume, options))
}

fn pio_options(log: LogMode) -> PioOptions {
    PioOptions {
        page_len: 128,
        segments: 4,
        pio_max: 4,
        queue_pages: 6,
        frames: 8,
        speriod: 10,
        bcnt: 25,
        fanout_max: Some(4),
        eviction: Eviction::Lru,
        last_segment_map: true,
        log,
    }
}

fn pio(log: LogMode, cuts: &Cuts) -> Result<Tally> {
    usual::<PioTree>(&pio_options(log), cuts)
}

fn published_redo(cuts: &Cuts) -> Result<Tally> {
    let options = pio_options(LogMode::Each);
    tally::<PioTree>(&options, cuts, &|volume| PioTree::recover_as_published(volume, &options))
}

fn always_sequential(recovery: AsRecovery, cuts: &Cuts) -> Result<Tally> {
    let options = AsTreeOptions {
        node_len: 512,
        keys_max: Some(4),
        slots: 4,
        cached: 500,
        sub_file_len: 512 * 24,
        threshold: 0.3,
        checkpoint_every: if recovery == AsRecovery::Checkpoint { 5 } else { 0 },
        recovery,
        pio_max: 1,
    };
    usual::<AsTree>(&options, cuts)
}

fn cascade(persistence: CbPersistence, placement: CbPlacement, cuts: &Cuts) -> Result<Tally> {
    let options = CbTreeOptions {
        page_len: 1024,
        keys_max: Some(4),
        sequential: Sequential::Last,
        placement,
        persistence,
        log_max: (persistence == CbPersistence::LogPage).then_some(20),
        search_loads: false,
    };
    usual::<CbTree>(&options, cuts)
}

fn fd(log: HeadLog, cuts: &Cuts) -> Result<Tally> {
    let options =
        FdTreeOptions { page_len: 512, head_pages: 3, ratio: 2, entries_max: Some(5), pio_max: 4, log };
    usual::<FdTree>(&options, cuts)
}

fn bftl(cuts: &Cuts) -> Result<Tally> {
    let options = BftlOptions {
        sector_len: 512,
        units: 10,
        chain_max: 2,
        keys_max: Some(5),
        reclaim: true,
        ..BftlOptions::default()
    };
    usual::<Bftl>(&options, cuts)
}

fn btree(cuts: &Cuts) -> Result<Tally> {
    let options = BTreeOptions { page_len: 256, frames: 8, keys_max: Some(4), ..BTreeOptions::default() };
    usual::<BTree>(&options, cuts)
}

fn la(cuts: &Cuts) -> Result<Tally> {
    let options = LaTreeOptions {
        page_len: 512,
        buffer_pages: 2,
        staged: 30,
        frames: 8,
        keys_max: Some(4),
        ..LaTreeOptions::default()
    };
    usual::<LaTree>(&options, cuts)
}

fn measure<C: Clock>(laboratory: &Laboratory) -> Result<Rows<C>> {
    laboratory.expect(TRIALS.len());
    // A read leaves nothing behind that the next change does not.
    let cuts = Cuts { stride: stride(laboratory.scale), ..Cuts::changes(1) };
    let mut rows = Vec::new();
    for (at, (name, trial)) in TRIALS.iter().enumerate() {
        laboratory.step(name)?;
        let tally = trial(&cuts)?;
        let counts = [("right", tally.right), ("broken", tally.broken), ("wrong", tally.wrong)];
        rows.push(Row {
            series: SERIES.to_owned(),
            at: at as f64,
            run: 0,
            requests: tally.right + tally.broken + tally.wrong,
            bytes: 0,
            // The volume that loses power has no clock.
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

    fn parameters(&self, scale: Scale, _: Device) -> Vec<Parameter> {
        let promise = |contract| match contract {
            Contract::EachOperation => "each operation",
            Contract::Flush => "up to the last flush",
            Contract::EachKey => "up to the last flush, key by key",
            Contract::Never => "nothing",
        };
        vec![
            Parameter::new("operations", "not told", format!("{STEPS}, keys 0 to {KEYS}, 2 % flushes")),
            Parameter::new(
                "power fails",
                "not told",
                format!("at each {}th change of the device", stride(scale)),
            ),
            Parameter::new("nodes", "not told", "of 4 or 5 keys"),
            Parameter::new(
                "promised",
                "not told",
                format!(
                    "{}: \"log each\" and \"log page\"; {}: \"log flush\", \"no log\", \"commits\", AS, BFTL; {}: the rest",
                    promise(Contract::EachOperation),
                    promise(Contract::Flush),
                    promise(Contract::Never)
                ),
            ),
            Parameter::new(
                "device",
                "not told",
                "a volume in memory that tears, reorders and loses what is not synced",
            ),
        ]
    }

    fn on_ssdsim(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        measure(laboratory)
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, _: Device) -> std::result::Result<Judgement, Missing> {
        let mut judgement = Judgement::default();
        for (at, name) in NAMES.into_iter().enumerate() {
            let count = |what: &'static str| rows.median(SERIES, at as f64, move |row| row.count(what));
            let (right, broken, wrong) = (count("right")?, count("broken")?, count("wrong")?);
            let ours = format!(
                "of {} images {right} are right, {broken} broken, {wrong} sound but wrong",
                right + broken + wrong
            );
            if at < PROMISING {
                judgement.check(
                    name,
                    &format!("{name}: all that was promised is there, and the tree is sound"),
                    "not told",
                    ours,
                    right > 0.0 && broken + wrong == 0.0,
                );
            } else {
                let why = if at < PROMISING + PUBLISHED {
                    "as published, which loses data"
                } else {
                    "promises nothing between two flushes"
                };
                judgement.report(name, &format!("{name}: {why}"), "not told", ours);
            }
        }
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        let mut lines = Vec::new();
        for (name, what) in [("right", "right"), ("broken", "broken"), ("sound but wrong", "wrong")] {
            let share = |row: &Row<C>| 100.0 * row.count(what) / row.requests as f64;
            let points = rows.points(SERIES).into_iter().map(|at| Ok((at, rows.spread(SERIES, at, share)?)));
            let points = points.collect::<std::result::Result<Vec<_>, Missing>>()?;
            lines.push(Line { name: name.to_owned(), paired: false, points });
        }
        Ok(Chart {
            title: CARD.title.into(),
            x: Axis { label: "tree and rule".into(), scale: Scaling::Names(&SHORT) },
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

    #[test]
    fn one_image_that_is_not_right_fails_a_tree_that_promised_and_no_other() {
        let judge = |bad: usize, what: &str| {
            let rows = (0..NAMES.len()).map(|at| {
                let mut row = row::<Simulated>(SERIES, at as f64, 0, 1.0);
                row.counts = [("right", 99.0), ("broken", 0.0), ("wrong", 0.0)]
                    .map(|(name, count)| (name.to_owned(), count))
                    .into();
                if at == bad {
                    row.counts.insert(what.to_owned(), 1.0);
                }
                row
            });
            Study::judge(&PowerLoss, &Rows(rows.collect()), Device::Ssdsim).unwrap()
        };
        assert_eq!(judge(PROMISING, "broken").verdict(), Verdict::Holds);
        for what in ["broken", "wrong"] {
            let judged = judge(2, what);
            assert_eq!(judged.outcome("AS, checkpoint"), Some(Outcome::Fails), "{what}");
            assert_eq!(judged.outcome("BFTL"), Some(Outcome::Holds), "{what}");
        }
    }

    #[test]
    fn published_rules_lose_data_and_ours_do_not() {
        let cuts = Cuts { stride: 211, ..Cuts::changes(1) };
        for (at, (name, trial)) in TRIALS.iter().enumerate() {
            let tally = trial(&cuts).unwrap();
            assert!(tally.right + tally.broken + tally.wrong > 3, "{name}: {tally:?}");
            let lost = tally.broken + tally.wrong;
            assert!(if at < PROMISING { lost == 0 } else { lost > 0 }, "{name}: {tally:?}");
        }
    }
}
