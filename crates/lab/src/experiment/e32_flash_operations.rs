//! E32: reads, writes and erases of trees on raw flash while 50,000 records are inserted (CB-tree, figure 16).

use super::{Card, Cause, Device, Parameter, Scale, Study};
use crate::chart::{Axis, Chart, Line, Scaling, number};
use crate::failure::Result;
use crate::judgement::Judgement;
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Simulated};
use crate::raw_trees::{ENTRIES, RATIOS, Rival, board, inserts, keys};
use crate::row::{Missing, Rows};

pub(super) struct FlashOperations;

const RAW: &str = "a translation layer below would do operations of its own; the trees with a buffer, on a block device, are E29";

static CARD: Card = Card {
    number: 32,
    name: "flash-operations",
    title: "Flash operations of 50,000 insertions, by the share of random keys",
    source: "Kim, Kim, Lee, Applied Sciences 10(3), 2020, figure 16 (figure 15, of trees with buffers, is with E29)",
    question: "Trees that manage raw flash avoid overwriting each in its own way. How many pages does each read and write, and \
               how many blocks does it erase, while 50,000 records are inserted in order, half of them at random, or all of \
               them at random?",
    reported: "In order, the CB-tree reads and erases nothing and writes each full leaf once; with a log, one page more for each \
               record. The others read about the same numbers of pages. At random, both CB-trees come near each other; the µ*-tree \
               reads more, and writes and erases less, than in order; all others rise with the share of random keys, the wandering tree \
               from 50 % on.",
    absent: &[(Device::Disk, RAW), (Device::Ssdsim, RAW)],
    causes: &CAUSES,
};

static CAUSES: [Cause; 5] = [
    Cause {
        device: Device::Nand,
        scale: None,
        key: "dipl-rises",
        text: "each update is in the log before it returns, a page each, whatever its key: 87 to 90 thousand writes at every share. Reads rise as \
               published. If updates wait in memory, as d-IPL's own paper has it, every count rises: 988, 203 k and 1.03 M reads, 3840, 41.7 k and 86.9 k \
               writes, 23, 304 and 681 erases. That run could have refuted it",
    },
    Cause {
        device: Device::Nand,
        scale: None,
        key: "lsb-rises",
        text: "a log node is written for each record, whatever its key (50.6 to 50.8 thousand writes, 536 to 538 erases). Reads rise as published",
    },
    Cause {
        device: Device::Nand,
        scale: None,
        key: "reads-similar",
        text: "how many pages stand for a level is what differs. In order d-IPL finds the nodes of the right edge in its 4 frames (39.5 k reads), the µ*-tree reads one page \
               for its whole path (54 k), the LSB-tree finds a log node beside the leaf (84.5 k), the wandering tree reads three levels for each record (151 k). At \
               random d-IPL reads the log pages of a block of 64 pages with a node that is not in a frame (1.02 M). Blocks of 16 pages, which could \
               have made it like the others, are 21.6 k, 138 k, 349 k",
    },
    Cause {
        device: Device::Nand,
        scale: None,
        key: "cb-log-becomes-similar",
        text: "reads are the same (76.4 k), but the log costs a write for each record at every ratio (50.3 k more here, 50.9 k in order), since each update is durable when \
               it returns, and at random the CB-tree itself writes a page a record: 50.3 k and 101 k, which are 530 and 1316 erases. They come nearer \
               than in order, where the CB-tree writes 402, no more. A log of a write a record, and a CB-tree that writes less than trees \
               of a write a record, cannot have similar counts",
    },
    Cause {
        device: Device::Nand,
        scale: None,
        key: "wandering-rises",
        text: "a wandering tree writes and reads its path for each record, whatever its key, and what is left are splits: 791, 676, 558. The paper says so itself where it \
               explains why that tree is faster at random (figure 17: \"less node splits\")",
    },
];

/// Those of the figure, in its order.
pub(super) const RIVALS: [Rival; 6] =
    [Rival::Wandering, Rival::Dipl, Rival::MuStar, Rival::Lsb, Rival::Cb, Rival::CbLog];

/// How many times as many are still similar; E33 asks the same of times.
pub(super) const SIMILAR: f64 = 1.25;

/// Other d-IPL trees, which are not judged.
const VARIANTS: [(Rival, &str, &str, &str); 2] = [
    (Rival::Dipl16, "dipl-16", "with blocks of 16 pages", "blocks not told"),
    (Rival::DiplRules, "dipl-rules", "whose updates wait in memory", "when an update is durable is not told"),
];

/// What E32 and E33 say of their settings.
pub(super) fn settings(scale: Scale) -> Vec<Parameter> {
    let geometry = board().geometry;
    vec![
        Parameter::new("insertions", "50,000", inserts(scale).to_string()),
        Parameter::new("entries of a node", "128", ENTRIES.to_string()),
        Parameter::new(
            "50 % random",
            "not told",
            "half at random, then half ascending above them: one of eleven readings, chosen by table 6 (E31)",
        ),
        Parameter::new(
            "flash",
            "OpenSSD",
            format!(
                "open_ssd profile; {} blocks of {} pages, of each 4 KiB (of 32) used",
                geometry.blocks(),
                geometry.pages_per_block
            ),
        ),
        Parameter::new(
            "d-IPL",
            "not told",
            "as in CIKM 2009 (the paper cites the authors' TKDE 2012, which is not at hand); 4 frames, each update in the log before it returns, a page each",
        ),
        Parameter::new(
            "durable",
            "not told",
            "each operation; the CB-tree without log: when the root grows, and at the end",
        ),
        Parameter::new(
            "blocks erased",
            "not told",
            "those with the least that lives, when two blocks are left",
        ),
    ]
}

impl Study for FlashOperations {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn parameters(&self, scale: Scale, _: Device) -> Vec<Parameter> {
        settings(scale)
    }

    fn on_nand(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        let count = inserts(laboratory.scale);
        // A second file of random keys shows how little chance matters.
        let runs = laboratory.scale.pick(2, Simulated::RUNS, Simulated::RUNS);
        laboratory.expect((RIVALS.len() + VARIANTS.len()) * (1 + 2 * runs as usize));
        let mut rows = Vec::new();
        for run in 0..runs {
            for ratio in RATIOS.into_iter().filter(|ratio| *ratio > 0 || run == 0) {
                let keys = keys(ratio, run, count);
                for rival in RIVALS.into_iter().chain(VARIANTS.map(|(rival, ..)| rival)) {
                    laboratory.step(&format!("{}, {ratio} % random", rival.name()))?;
                    rows.push(rival.plant(run)?.grow(rival.name(), ratio as f64, run, &keys)?);
                }
            }
        }
        Ok(Rows(rows))
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, _: Device) -> std::result::Result<Judgement, Missing> {
        let count = |rival: Rival, what: &str| -> std::result::Result<[f64; 3], Missing> {
            let at = |ratio| rows.median(rival.name(), ratio, |row| row.count(what));
            Ok([at(0.0)?, at(50.0)?, at(100.0)?])
        };
        let told = |counts: [f64; 3]| counts.map(number).join(", ");
        let inserts = rows.median(Rival::Cb.name(), 0.0, |row| row.requests as f64)?;
        let mut judgement = Judgement::default();
        let (cb_reads, cb_writes) = (count(Rival::Cb, "reads")?, count(Rival::Cb, "writes")?);
        let cb_erases = count(Rival::Cb, "erases")?;
        judgement.check(
            "cb-reads-0",
            "CB-tree at 0 %: 10 reads at most",
            "0",
            number(cb_reads[0]),
            cb_reads[0] <= 10.0,
        );
        judgement.check(
            "cb-erases-0",
            "CB-tree at 0 %: no erase",
            "0",
            number(cb_erases[0]),
            cb_erases[0] == 0.0,
        );
        judgement.check(
            "cb-writes-0",
            "CB-tree at 0 %: 391 to 410 writes",
            "each full leaf once",
            number(cb_writes[0]),
            (391.0..=410.0).contains(&cb_writes[0]),
        );
        let others = [Rival::Wandering, Rival::Dipl, Rival::MuStar, Rival::Lsb];
        let mut least = [(f64::INFINITY, ""); 3];
        for rival in others {
            let reads = count(rival, "reads")?;
            for (least, reads) in least.iter_mut().zip(reads).filter(|(least, reads)| *reads < least.0) {
                *least = (reads, rival.name());
            }
        }
        judgement.check(
            "cb-reads-least",
            "CB-tree: fewer reads than every other, at every ratio",
            "fewest",
            format!(
                "{} against {}",
                told(cb_reads),
                least.map(|(reads, name)| format!("{} ({name})", number(reads))).join(", ")
            ),
            cb_reads.iter().zip(least).all(|(reads, least)| *reads < least.0),
        );
        // Of the four that the CB-tree is compared with: the most reads by the least, at each ratio.
        let all = others.map(|rival| count(rival, "reads"));
        let all = all.into_iter().collect::<std::result::Result<Vec<_>, Missing>>()?;
        let ends = [0, 1, 2].map(|index| {
            let reads = all.iter().map(|reads| reads[index]);
            (reads.clone().fold(f64::INFINITY, f64::min), reads.fold(0.0, f64::max))
        });
        judgement.check(
            "reads-similar",
            "the others read similar numbers of pages at every ratio: the most at most 1.25 times the least",
            "a similar number in every case",
            ends.map(|(least, most)| format!("{} to {}", number(least), number(most))).join(", "),
            ends.iter().all(|(least, most)| *most <= SIMILAR * least),
        );
        let mut fewest = true;
        let mut against = Vec::new();
        for (what, cb) in [("writes", cb_writes), ("erases", cb_erases)] {
            let mut least = [f64::INFINITY; 3];
            for rival in others {
                let theirs = count(rival, what)?;
                least.iter_mut().zip(theirs).for_each(|(least, theirs)| *least = least.min(theirs));
            }
            fewest &= cb.iter().zip(least).all(|(cb, least)| *cb < least);
            against.push(format!("{} against {}", told(cb), told(least)));
        }
        judgement.check(
            "cb-writes-least",
            "CB-tree: fewer writes and erases than every other, at every ratio",
            "fewest",
            against.join("; "),
            fewest,
        );
        let pairs = ["reads", "writes", "erases"]
            .map(|what| Ok::<[f64; 2], Missing>([count(Rival::Cb, what)?[2], count(Rival::CbLog, what)?[2]]));
        let pairs = pairs.into_iter().collect::<std::result::Result<Vec<_>, Missing>>()?;
        judgement.check(
            "cb-log-becomes-similar",
            "at 100 % both CB-trees have similar counts: with a log at most 1.25 times those without",
            "becomes similar",
            pairs
                .iter()
                .map(|[cb, log]| format!("{} and {}", number(*cb), number(*log)))
                .collect::<Vec<_>>()
                .join("; "),
            pairs.iter().all(|[cb, log]| *log <= SIMILAR * cb && *cb <= SIMILAR * log),
        );
        let (writes, height) = (count(Rival::Wandering, "writes")?, count(Rival::Wandering, "height")?);
        let ratios = [0, 1, 2].map(|index| writes[index] / (height[index] * inserts));
        judgement.check(
            "wandering-writes",
            "wandering tree: as many writes as levels for each record, within 15 %",
            "parents are written, too",
            format!("{}: {} of that", told(writes), ratios.map(|ratio| format!("{ratio:.2}")).join(", ")),
            ratios.iter().all(|ratio| (0.85..=1.15).contains(ratio)),
        );
        let (writes, splits) = (count(Rival::MuStar, "writes")?, count(Rival::MuStar, "splits")?);
        let ratios = [0, 1, 2].map(|index| writes[index] / (inserts + splits[index]));
        judgement.check(
            "mu-star-writes",
            "µ*-tree: one write for each record and each split, within 15 %",
            "one page an update",
            format!("{}: {} of that", told(writes), ratios.map(|ratio| format!("{ratio:.2}")).join(", ")),
            ratios.iter().all(|ratio| (0.85..=1.15).contains(ratio)),
        );
        let (log_writes, commits) = (count(Rival::CbLog, "writes")?, count(Rival::CbLog, "commits")?);
        let heights = count(Rival::CbLog, "height")?;
        let more = [0, 1, 2].map(|index| log_writes[index] - cb_writes[index]);
        judgement.check(
            "log-writes",
            "the log costs one write for each record, within 10 %; less what its flushes write that would be written anyway (all \
             memory nodes and a record at most)",
            "about one a record",
            told(more),
            (0..3).all(|index| {
                let shared = commits[index] * (heights[index] + 1.0);
                (0.9 * inserts - shared..=1.1 * inserts).contains(&more[index])
            }),
        );
        let rises = |counts: [f64; 3]| counts.is_sorted_by(|one, two| one <= two) && counts[2] > counts[0];
        let all = ["reads", "writes", "erases"].map(|what| count(Rival::Wandering, what));
        let all = all.into_iter().collect::<std::result::Result<Vec<_>, Missing>>()?;
        judgement.check(
            "wandering-rises",
            "wandering tree: more reads, writes and erases at 100 % than at 50 %",
            "every count rises in every tree but the µ*-tree",
            all.iter().map(|counts| told(*counts)).collect::<Vec<_>>().join("; "),
            all.iter().all(|counts| counts[2] > counts[1]),
        );
        for (key, rival) in [("dipl", Rival::Dipl), ("lsb", Rival::Lsb), ("cb", Rival::Cb)] {
            let all = ["reads", "writes", "erases"].map(|what| count(rival, what));
            let all = all.into_iter().collect::<std::result::Result<Vec<_>, Missing>>()?;
            judgement.check(
                &format!("{key}-rises"),
                &format!("{}: reads, writes and erases rise with the share of random keys", rival.name()),
                "every count rises",
                all.iter().map(|counts| told(*counts)).collect::<Vec<_>>().join("; "),
                all.iter().all(|counts| rises(*counts)),
            );
        }
        for (rival, key, what, paper) in VARIANTS {
            if !rows.series().contains(&rival.name()) {
                continue;
            }
            let all = ["reads", "writes", "erases"].map(|what| count(rival, what).map(told));
            let all = all.into_iter().collect::<std::result::Result<Vec<_>, Missing>>()?;
            let claim = format!("d-IPL {what}: reads; writes; erases");
            judgement.report(key, &claim, paper, all.join("; "));
        }
        let mu = ["reads", "writes", "erases"].map(|what| count(Rival::MuStar, what));
        let mu = mu.into_iter().collect::<std::result::Result<Vec<_>, Missing>>()?;
        let falls = |counts: [f64; 3]| rises([counts[2], counts[1], counts[0]]);
        judgement.check(
            "mu-star-turns",
            "µ*-tree: reads rise with the share of random keys, writes and erases fall",
            "so drawn",
            mu.iter().map(|counts| told(*counts)).collect::<Vec<_>>().join("; "),
            rises(mu[0]) && falls(mu[1]) && falls(mu[2]),
        );
        let levels = count(Rival::Cb, "height")?[2] - 1.0;
        judgement.check(
            "cb-reads-100",
            "CB-tree at 100 %: for each record at most one read less than levels",
            "node switching",
            format!("{} of {}", number(cb_reads[2]), number(levels * inserts)),
            cb_reads[2] <= levels * inserts,
        );
        for rival in RIVALS {
            judgement.report(
                "counts",
                &format!("{}: reads; writes; erases", rival.name()),
                "figure 16, not legible in numbers",
                ["reads", "writes", "erases"]
                    .iter()
                    .map(|what| Ok(told(count(rival, what)?)))
                    .collect::<std::result::Result<Vec<_>, Missing>>()?
                    .join("; "),
            );
        }
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        let mut lines = Vec::new();
        for rival in RIVALS {
            let mut points = Vec::new();
            for (kind, what) in (0..).zip(["reads", "writes", "erases"]) {
                for (index, ratio) in (0..).zip(RATIOS) {
                    let spread = rows.spread(rival.name(), ratio as f64, |row| row.count(what).max(1.0))?;
                    points.push((f64::from(3 * kind + index), spread));
                }
            }
            lines.push(Line { name: rival.name().to_owned(), paired: false, points });
        }
        Ok(Chart {
            title: CARD.title.into(),
            x: Axis {
                label: "operation and random keys".into(),
                scale: Scaling::Names(&[
                    "reads, 0 %",
                    "50 %",
                    "100 %",
                    "writes, 0 %",
                    "50 %",
                    "100 %",
                    "erases, 0 %",
                    "50 %",
                    "100 %",
                ]),
            },
            y: Axis { label: "flash operations".into(), scale: Scaling::Doubling },
            lines,
            bars: true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judgement::Outcome;
    use crate::row::tests::row;

    fn good(rival: Rival, index: usize) -> [f64; 6] {
        // Reads, writes, erases, height, splits, commits.
        let at = index as f64;
        match rival {
            Rival::Wandering => [3000.0 + at, 3100.0 + at, 50.0 + at, 3.0, 15.0, 0.0],
            Rival::Cb => [[0.0, 900.0, 1900.0][index], [400.0, 700.0, 1000.0][index], at, 3.0, 7.0, 3.0],
            Rival::CbLog => {
                [[0.0, 900.0, 1900.0][index], [1400.0, 1700.0, 2010.0][index], 9.0, 3.0, 7.0, 4.0]
            }
            Rival::MuStar => [3500.0 + at, 1060.0 - at, 20.0 - at, 4.0, 60.0, 0.0],
            _ => [2800.0 + at, 1100.0 + at, 10.0 + at, 3.0, 8.0, 0.0],
        }
    }

    fn rows(change: impl Fn(Rival, usize, &mut [f64; 6])) -> Rows<Simulated> {
        let mut rows = Vec::new();
        for rival in RIVALS {
            for (index, ratio) in RATIOS.into_iter().enumerate() {
                let mut counts = good(rival, index);
                change(rival, index, &mut counts);
                let mut row = row(rival.name(), ratio as f64, 0, 1.0);
                for (name, count) in
                    ["reads", "writes", "erases", "height", "splits", "commits"].into_iter().zip(counts)
                {
                    row.counts.insert(name.into(), count);
                }
                rows.push(row);
            }
        }
        Rows(rows)
    }

    #[test]
    fn the_published_shape_holds_and_others_do_not() {
        let judge = |rows: &Rows<Simulated>| Study::judge(&FlashOperations, rows, Device::Nand).unwrap();
        let published = judge(&rows(|_, _, _| ()));
        let failed: Vec<_> =
            published.checks.iter().filter(|check| check.outcome == Outcome::Fails).collect();
        // A log costs a write for each record, so that this one cannot hold beside the others.
        assert!(failed.len() == 1 && failed[0].key == "cb-log-becomes-similar", "{failed:?}");
        let alike = judge(&rows(|rival, index, counts| {
            if rival == Rival::CbLog && index == 2 {
                counts[..3].copy_from_slice(&good(Rival::Cb, 2)[..3]);
            }
        }));
        assert_eq!(alike.outcome("cb-log-becomes-similar"), Some(Outcome::Holds));
        let fails = |rival: Rival, at: usize, which: usize, count: f64, key: &str| {
            let changed = rows(|other, index, counts| {
                if (other, index) == (rival, at) {
                    counts[which] = count;
                }
            });
            assert_eq!(judge(&changed).outcome(key), Some(Outcome::Fails), "{key}");
        };
        fails(Rival::Cb, 0, 0, 11.0, "cb-reads-0");
        fails(Rival::Cb, 0, 2, 1.0, "cb-erases-0");
        fails(Rival::Cb, 0, 1, 411.0, "cb-writes-0");
        fails(Rival::Lsb, 1, 0, 800.0, "cb-reads-least");
        fails(Rival::MuStar, 0, 0, 3600.0, "reads-similar");
        fails(Rival::Dipl, 2, 0, 2700.0, "reads-similar");
        fails(Rival::Lsb, 2, 1, 900.0, "cb-writes-least");
        fails(Rival::MuStar, 1, 2, 0.5, "cb-writes-least");
        fails(Rival::Wandering, 2, 2, 40.0, "wandering-rises");
        fails(Rival::Wandering, 2, 1, 3600.0, "wandering-writes");
        fails(Rival::MuStar, 1, 1, 1300.0, "mu-star-writes");
        fails(Rival::CbLog, 1, 1, 1850.0, "log-writes");
        fails(Rival::CbLog, 0, 1, 1250.0, "log-writes");
        fails(Rival::Cb, 2, 0, 2100.0, "cb-reads-100");
        fails(Rival::Cb, 2, 2, 0.0, "cb-rises");
        fails(Rival::Dipl, 2, 1, 1000.0, "dipl-rises");
        fails(Rival::Lsb, 0, 0, 2900.0, "lsb-rises");
        fails(Rival::MuStar, 2, 2, 30.0, "mu-star-turns");
        assert!(
            Study::draw(&FlashOperations, &rows(|_, _, _| ()))
                .unwrap()
                .to_svg()
                .unwrap()
                .contains("erases, 0 %")
        );
    }
}
