//! E30: the retrieval time of buffered B-trees under block traces, and how often a node is in memory.

use super::{Card, Cause, Device, Parameter, Scale, Study};
use crate::block_ground::{
    BUFFER, NAMES, Round, System, divisor, draw, options, parameters, replay, replay_each, runs,
};
use crate::chart::{Chart, number};
use crate::failure::Result;
use crate::judgement::Judgement;
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Quantity, Simulated, Wall};
use crate::row::{Missing, Row, Rows};
use crate::trace::Op;
use crate::trace::block_synthesis::{BlockOptions, Like, REUSED};
use crate::trace::replay::Replayed;
use crate::tree_ground::TreeGround;
use std::ops::RangeInclusive;

pub(super) struct Retrieval;

static CARD: Card = Card {
    number: 30,
    name: "retrieval",
    title: "Retrieval under a block trace: CB-tree and buffered B-trees",
    source: "Kim, Kim and Lee, Applied Sciences 10, 2020, figure 14",
    question: "The nodes that a CB-tree keeps for its next insertion also serve searches. How much faster do they make those than a \
               B-tree without any buffer, and than one with as many pages of ordinary cache?",
    reported: "The CB-tree finds data 64.8 % faster than the B-tree under the trace of TPC-E, and about 50 % faster in every case.",
    absent: &[(Device::Nand, "the buffered B-trees write in place, over a translation layer")],
    causes: CAUSES,
};

const IN_THE_BUFFER: &str = "a 40th of the trace like TPC-E writes 3,089 records, of which the buffers of the others hold up to a third: a search for one of these \
                             reads nothing, and LU-tree and IBSF read 0.74 nodes a search where the CB-tree reads 0.77. At std the buffers are a smaller share, and \
                             the CB-tree is ahead in every trace: that run could have refuted this";

const BY_READS: &str = "a search costs its reads of nodes, 81 us each in every tree, so the times are those reads: like TPC-C at std 1.39 for a search of the \
                        CB-tree, 1.60 to 1.76 for the others, and 2.91 for the B-tree. The others find 40 to 45 % of the records in their buffers without \
                        any read. How soon a trace reads what it has written decides it, and the traces are synthetic: at ci, like TPC-C, \
                        0.28 are saved as the traces are, and 0.32, 0.38, 0.42 and 0.46 if 0.6, 0.4, 0.2 or none of the reads go back to late writes, \
                        not 0.7, which could have refuted this; with 4 pages of buffer for the others 0.34. The published 0.35 lies among them";

const SMALL_TREE: &str = "the CB-tree's advantage is the levels it has in memory, and a 40th of the published requests makes a tree of hardly three: a search costs the \
                          B-tree 2.78 (MSR) and 2.67 (TPC-C) reads, the CB-tree 1.2 and 1.1. At std, with a tenth of them, which could have refuted this, \
                          2.95 and 2.92 to 1.44 and 1.39: 0.51 and 0.52 are saved, inside the band";
const TWO_LEVELS: &str = "3,089 insertions make a tree of two levels, so that the B-tree reads 1.96 nodes a search: the root in memory saves half, and the leaf is in \
                          memory for some searches more: the CB-tree reads 0.77. The published 123,562 make three levels, of which more can be saved; \
                          that scale was not run. At std, with 12,356 insertions, there are still two levels, and 0.58 is saved";
const TWO_LEVELS_STD: &str = "12,356 insertions make a tree of two levels, so that the B-tree reads 1.99 nodes a search: the root in memory saves half, and the leaf \
                              is in memory for some searches more: the CB-tree reads 0.84. The published 123,562 make three levels, of which more can \
                              be saved; that scale was not run";

const CAUSES: &[Cause] = &[
    Cause { device: Device::Ssdsim, scale: Some(Scale::Ci), key: "btree-tpce", text: TWO_LEVELS },
    Cause { device: Device::Ssdsim, scale: Some(Scale::Ci), key: "S470, btree-tpce", text: TWO_LEVELS },
    Cause { device: Device::Ssdsim, scale: Some(Scale::Std), key: "btree-tpce", text: TWO_LEVELS_STD },
    Cause { device: Device::Ssdsim, scale: Some(Scale::Std), key: "S470, btree-tpce", text: TWO_LEVELS_STD },
    Cause { device: Device::Ssdsim, scale: Some(Scale::Ci), key: "btree-", text: SMALL_TREE },
    Cause { device: Device::Ssdsim, scale: Some(Scale::Ci), key: "S470, btree-", text: SMALL_TREE },
    Cause {
        device: Device::Disk,
        scale: None,
        key: "btree-",
        text: "a 400th of the published requests makes trees of two levels: a search costs the B-tree 1.98 (Exchange) and 1.96 (TPC-C) reads, the CB-tree, \
               which has the root and some leaves in memory, 0.78 and 0.68. On the simulated drive at std, with forty times as many, which could have \
               refuted this, 0.47 and 0.52 are saved (E30 there)",
    },
    Cause { device: Device::Ssdsim, scale: None, key: "others", text: IN_THE_BUFFER },
    Cause { device: Device::Ssdsim, scale: None, key: "S470, others", text: IN_THE_BUFFER },
    Cause { device: Device::Ssdsim, scale: None, key: "up-to", text: BY_READS },
    Cause { device: Device::Ssdsim, scale: None, key: "S470, up-to", text: BY_READS },
    Cause { device: Device::Disk, scale: None, key: "up-to", text: "as on the simulated drive" },
    Cause {
        device: Device::Disk,
        scale: None,
        key: "others",
        text: "how the disk changes its pace: like MSR a search of the CB-tree reads 0.72 nodes and one of IBSF 0.91, so that it would be 1.27 times as fast if a read took as long \
               for both, but the reads took 65 and 50 us. Each tree was measured once; more runs, which could refute this, are outstanding",
    },
];

/// "About 50 %" of the B-tree's time that is saved, and 64.8 % of it under the trace of TPC-E, a twentieth more or less.
const ABOUT_HALF: RangeInclusive<f64> = 0.45..=0.55;
const OF_TPCE: RangeInclusive<f64> = 0.62..=0.68;
/// "By up to about 35 %": of their times, the largest share that the CB-tree saves (section 6).
const UP_TO: RangeInclusive<f64> = 0.3..=0.4;

const SYSTEMS: [System; 6] =
    [System::BTree, System::BTreeLru, System::Lu, System::Ibsf, System::AsTree, System::Cb];

/// Lines on the fitted S470 begin so; charts leave them out.
const S470: &str = "by S470: ";
/// Lines of sweeps begin so: by the pages of the others' buffers, and by the share of reads that go back to late writes.
const BY_BUFFER: &str = "by buffer: ";
const BY_REUSE: &str = "by reuse: ";
const OTHERS: [System; 3] = [System::Lu, System::Ibsf, System::AsTree];
/// Pages of the others' buffers, on both sides of the published 8.
const PAGES: [usize; 5] = [1, 2, 4, BUFFER, 16];
/// Shares of reads that go back, from none to the traces' own.
const SHARES: [f64; 5] = [0.0, 0.2, 0.4, 0.6, REUSED];
/// The trace that is swept, by its place: its writes are as many as its reads, and it is asked for the figure of section 6.
const SWEPT: Like = Like::Tpcc;

fn measure<C: Clock>(
    laboratory: &Laboratory,
    device: Device,
    drive: &str,
    mut ground: impl FnMut(u32) -> Result<TreeGround<C>>,
) -> Result<Rows<C>> {
    let (runs, divisor) = (runs::<C>(laboratory.scale), divisor(laboratory.scale, device));
    laboratory.expect(Like::ALL.len() * SYSTEMS.len() * runs as usize);
    let mut rows = Vec::new();
    for run in 0..runs {
        let round = Round { laboratory, divisor, run };
        let searches = |replayed: &Replayed, series: &str, at, run| {
            replayed.of(Op::Search).row(&format!("{drive}{series}"), at, run)
        };
        rows.extend(replay_each(round, &SYSTEMS, true, &mut ground, searches)?);
    }
    Ok(Rows(rows))
}

/// What could show that it is not the others' buffers that decide: the same trace with smaller and larger ones, and traces
/// whose reads go back less. Once: the drive's time follows from the seed.
fn sweep<C: Clock>(
    laboratory: &Laboratory,
    divisor: u64,
    mut ground: impl FnMut(u32) -> Result<TreeGround<C>>,
) -> Result<Vec<Row<C>>> {
    let own = options(SWEPT, SWEPT.sequential(), divisor, 0);
    let by_buffer = PAGES
        .into_iter()
        .flat_map(|pages| OTHERS.map(|system| (BY_BUFFER, system, pages, pages as f64, own)));
    let by_reuse = SHARES.into_iter().flat_map(|reused| {
        [System::BTree, System::Lu, System::Ibsf, System::AsTree, System::Cb]
            .map(|system| (BY_REUSE, system, BUFFER, reused, BlockOptions { reused, ..own }))
    });
    laboratory.expect(PAGES.len() * OTHERS.len() + SHARES.len() * (OTHERS.len() + 2));
    let mut rows = Vec::new();
    for (line, system, pages, at, trace) in by_buffer.chain(by_reuse) {
        let series = format!("{line}{}", system.name());
        laboratory.step(&format!("{series}, {at}"))?;
        let replayed = replay(&ground(0)?, system, pages, &trace, true)?;
        rows.push(replayed.of(Op::Search).row(&series, at, 0));
    }
    Ok(rows)
}

/// The share of the nodes on the way of searches that were in memory.
fn hit_rate<C: Clock>(row: &Row<C>) -> f64 {
    let hits = row.count("node_hits");
    hits / (hits + row.count("node_reads"))
}

/// Figure 14 on a drive.
fn judge_times<C: Clock>(
    rows: &Rows<C>,
    judgement: &mut Judgement,
    (drive, told): (&str, &str),
) -> std::result::Result<(), Missing> {
    let keys = ["msr", "exchange", "tpcc", "tpce"];
    let time = |system: System, at: usize| {
        rows.median(&format!("{drive}{}", system.name()), at as f64, |row| row.elapsed_us)
    };
    for (at, key) in keys.into_iter().enumerate() {
        let saved = 1.0 - time(System::Cb, at)?.over(time(System::BTree, at)?);
        judgement.band(
            &format!("{told}btree-{key}"),
            &format!("{told}{}: of the B-tree's time the CB-tree saves", NAMES[at]),
            number(saved),
            [saved],
            if at == 3 { OF_TPCE } else { ABOUT_HALF },
        );
    }
    let mut most = f64::MIN;
    for (at, key) in keys.into_iter().enumerate() {
        let cb = time(System::Cb, at)?;
        let others =
            [System::Lu, System::Ibsf, System::AsTree].map(|system| Ok((system.name(), time(system, at)?)));
        let others = others.into_iter().collect::<std::result::Result<Vec<_>, Missing>>()?;
        most = others.iter().map(|(_, time)| 1.0 - cb.over(*time)).fold(most, f64::max);
        let ratios = others.iter().map(|(name, time)| format!("{name} {}", number(time.over(cb))));
        judgement.check(
            &format!("{told}others-{key}"),
            &format!(
                "{told}{}: the CB-tree is faster than the other buffered trees: their times by its",
                NAMES[at]
            ),
            "much faster",
            ratios.collect::<Vec<_>>().join(", "),
            others.iter().all(|(_, time)| time.over(cb) > 1.0),
        );
    }
    judgement.band(
        &format!("{told}up-to"),
        &format!("{told}of the time of the other buffered trees the CB-tree saves, at most"),
        number(most),
        [most],
        UP_TO,
    );
    Ok(())
}

/// What the CB-tree saves by what the others find in their buffers.
fn judge_sweeps<C: Clock>(rows: &Rows<C>, judgement: &mut Judgement) -> std::result::Result<(), Missing> {
    let named = |line: &str, system: System| format!("{line}{}", system.name());
    if !rows.series().contains(&named(BY_REUSE, System::Cb).as_str()) {
        return Ok(());
    }
    let point = |line: &str, at: f64, own: f64| -> std::result::Result<String, Missing> {
        let reads = |row: &Row<C>| row.count("node_reads") / row.requests as f64;
        let cb = rows.median(&named(BY_REUSE, System::Cb), own, |row| row.elapsed_us)?;
        let all = rows.median(&named(BY_REUSE, System::BTree), own, reads)?;
        let (mut saved, mut answered) = (f64::MIN, Vec::new());
        for system in OTHERS {
            let other = rows.median(&named(line, system), at, |row| row.elapsed_us)?;
            saved = saved.max(1.0 - cb.over(other));
            answered.push(100.0 * (1.0 - rows.median(&named(line, system), at, reads)? / all));
        }
        let (least, most) = (answered.iter().copied(), answered.iter().copied());
        let (least, most) = (least.fold(f64::INFINITY, f64::min), most.fold(f64::NEG_INFINITY, f64::max));
        Ok(format!("{} at {at} ({least:.0} to {most:.0} %)", number(saved)))
    };
    let line = |line: &str, points: &mut dyn Iterator<Item = (f64, f64)>| {
        let told = points.map(|(at, own)| point(line, at, own));
        Ok(told.collect::<std::result::Result<Vec<_>, Missing>>()?.join(", "))
    };
    let what = "of the time of the other buffered trees the CB-tree saves, at most (and of a B-tree's reads their buffers spare them)";
    judgement.report(
        "by-buffer",
        &format!("{}, by pages of the others' buffers: {what}", NAMES[2]),
        "0.35; 8 pages",
        line(BY_BUFFER, &mut PAGES.into_iter().map(|pages| (pages as f64, REUSED)))?,
    );
    judgement.report(
        "by-reuse",
        &format!("{}, by the share of reads that go back to late writes: {what}", NAMES[2]),
        "0.35; not told",
        line(BY_REUSE, &mut SHARES.into_iter().map(|share| (share, share)))?,
    );
    Ok(())
}

impl Study for Retrieval {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn parameters(&self, scale: Scale, device: Device) -> Vec<Parameter> {
        let mut parameters = parameters(scale, device, "MSR Cambridge, Exchange, TPC-C, TPC-E");
        let reads = "among the writes, as the trace has them";
        parameters.insert(1, Parameter::new("reads", "not told whether among the writes", reads));
        parameters
    }

    fn on_disk(&self, laboratory: &Laboratory) -> Result<Rows<Wall>> {
        measure(laboratory, Device::Disk, "", |_| laboratory.trees_on_disk())
    }

    fn on_ssdsim(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        let mut rows = measure(laboratory, Device::Ssdsim, "", TreeGround::on_ssdsim)?;
        rows.0.extend(measure(laboratory, Device::Ssdsim, S470, TreeGround::on_s470)?.0);
        let divisor = divisor(laboratory.scale, Device::Ssdsim);
        rows.0.extend(sweep(laboratory, divisor, TreeGround::on_ssdsim)?);
        Ok(rows)
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, _: Device) -> std::result::Result<Judgement, Missing> {
        let mut judgement = Judgement::default();
        judge_times(rows, &mut judgement, ("", ""))?;
        if rows.series().contains(&format!("{S470}{}", System::Cb.name()).as_str()) {
            judge_times(rows, &mut judgement, (S470, "S470, "))?;
        }
        for (at, key, judged) in
            [(0, "msr", true), (2, "tpcc", true), (1, "exchange", false), (3, "tpce", false)]
        {
            let rate = rows.median(System::Cb.name(), at as f64, hit_rate)?;
            let claim =
                format!("{}: of the nodes on the way of a search so many are memory nodes", NAMES[at]);
            let key = format!("hits-{key}");
            if judged {
                let claim = format!("{claim}: 0.4 at least");
                judgement.check(&key, &claim, "needed for half the time", number(rate), rate >= 0.4);
            } else {
                judgement.report(&key, &claim, "needed for half the time", number(rate));
            }
        }
        judge_sweeps(rows, &mut judgement)?;
        let mut least = f64::INFINITY;
        for at in 0..NAMES.len() {
            let hits = rows.median(System::Cb.name(), at as f64, |row| row.count("node_hits"))?;
            least = least.min(hits / rows.median(System::Cb.name(), at as f64, |row| row.requests as f64)?);
        }
        judgement.invariant(
            "root",
            "of the nodes on the way of a search at least one is in memory: of H levels H - 1 are read at most",
            "(H - 1) / H of the B-tree's reads",
            format!("{} at least", number(least)),
            least >= 1.0,
        );
        for (at, key) in ["msr", "exchange", "tpcc", "tpce"].into_iter().enumerate() {
            let each = |system: System| {
                let reads = |row: &Row<C>| row.count("node_reads") / row.requests as f64;
                Ok(format!("{} {}", system.name(), number(rows.median(system.name(), at as f64, reads)?)))
            };
            let told = [System::Cb, System::Lu, System::Ibsf, System::AsTree].map(each);
            let told = told.into_iter().collect::<std::result::Result<Vec<_>, Missing>>()?.join(", ");
            let claim = format!("{}: nodes read for a search", NAMES[at]);
            judgement.report(&format!("reads-{key}"), &claim, "not told", told);
            let time = |system: System| rows.median(system.name(), at as f64, |row| row.elapsed_us);
            let fair = time(System::Cb)?.over(time(System::BTreeLru)?);
            let claim = format!("{}: the CB-tree's time by that of a B-tree with 4 pages of LRU", NAMES[at]);
            judgement.report(&format!("fair-{key}"), &claim, "not measured", number(fair));
        }
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        draw(rows, (CARD.title, "time of a search, us"), 1.0, Row::latency)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judgement::{Outcome, Place, Verdict};
    use crate::row::tests::row;

    /// The CB-tree's times, that of the trace like TPC-E last, where the B-tree's are 100 and the others' 75.
    fn rows([cb, tpce]: [f64; 2], hits: f64) -> Rows<Simulated> {
        let mut rows = Vec::new();
        for at in 0..4 {
            for system in SYSTEMS {
                let time = match system {
                    System::Cb if at == 3 => tpce,
                    System::Cb => cb,
                    System::BTree => 100.0,
                    _ if at == 3 => 50.0,
                    _ => 75.0,
                };
                let mut row = row(system.name(), f64::from(at), 0, time);
                // Of two nodes a search.
                row.counts.insert("node_hits".into(), 20.0 * hits);
                row.counts.insert("node_reads".into(), 2000.0 - 20.0 * hits);
                rows.push(row);
            }
        }
        Rows(rows)
    }

    #[test]
    fn the_published_shape_holds_and_others_do_not() {
        let judge = |cb, hits| Study::judge(&Retrieval, &rows(cb, hits), Device::Ssdsim).unwrap();
        let good = [50.0, 35.2];
        assert_eq!(judge(good, 50.0).verdict(), Verdict::Holds);
        assert_eq!(judge([56.0, 35.2], 50.0).outcome("btree-msr"), Some(Outcome::Fails));
        assert_eq!(judge([50.0, 39.0], 50.0).outcome("btree-tpce"), Some(Outcome::Fails));
        let much = judge([44.0, 35.2], 50.0);
        let saved = much.checks.iter().find(|check| check.key == "btree-msr");
        assert_eq!(saved.and_then(|check| check.place), Some(Place::Above));
        assert_eq!(judge([76.0, 35.2], 50.0).outcome("others-tpcc"), Some(Outcome::Fails));
        assert_eq!(judge(good, 30.0).outcome("hits-msr"), Some(Outcome::Fails));
        assert_eq!(judge(good, 49.0).outcome("root"), Some(Outcome::Fails));
        assert_eq!(judge(good, 30.0).outcome("hits-tpce"), Some(Outcome::Reported));
        assert_eq!(judge(good, 50.0).outcome("fair-msr"), Some(Outcome::Reported));
    }
}
