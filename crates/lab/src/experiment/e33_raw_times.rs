//! E33: how long trees on raw flash take to insert and to search (CB-tree, figures 17 and 18).

use super::e32_flash_operations::{RIVALS, SIMILAR, settings};
use super::{Card, Cause, Device, Parameter, Scale, Study};
use crate::chart::{Axis, Chart, Line, Scaling, number};
use crate::failure::Result;
use crate::judgement::Judgement;
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Quantity, Simulated};
use crate::raw_trees::{RATIOS, Rival, board_of_free_programs, inserts, keys};
use crate::row::{Missing, Row, Rows};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

pub(super) struct RawTimes;

/// 22.6 to 41.8 % better, as a ratio of times.
const LOG_FASTER: std::ops::RangeInclusive<f64> = 1.29..=1.72;
const RAW: &str = "these trees manage raw flash; the CB-tree on a block device is in E29 and E34";

static CARD: Card = Card {
    number: 33,
    name: "raw-times",
    title: "Insertion and search on raw flash, by the share of random keys",
    source: "Kim, Kim, Lee, Applied Sciences 10(3), 2020, figures 17 and 18",
    question: "Which of the trees that manage raw flash is the fastest to fill with 50,000 records, and which answers searches \
               fastest, on the simulated OpenSSD board?",
    reported: "The CB-tree is always the fastest to fill, and with a log still 22.6 to 41.8 % faster than the others; the wandering tree \
               the slowest, and faster at random than in order; d-IPL, µ*-tree and LSB-tree take about the same. Searches: CB-tree \
               fastest, µ*-tree slowest, d-IPL and LSB-tree like the wandering tree in order and worse at random.",
    absent: &[(Device::Disk, RAW), (Device::Ssdsim, RAW)],
    causes: &CAUSES,
};

static CAUSES: [Cause; 5] = [
    Cause {
        device: Device::Nand,
        scale: None,
        key: "alike",
        text: "d-IPL reads the log pages of a node with the node, and with 4 frames hardly a node is in memory: 39,500, 219,000 and 1,020,000 reads \
               (E32), where the µ*-tree makes 54,000 to 152,000. How many frames the paper's had is not told. With 64, which could have refuted it, \
               d-IPL takes 1.24 to 1.40 times the fastest of the three, and 4.4 with 4",
    },
    Cause {
        device: Device::Nand,
        scale: None,
        key: "log-faster",
        text: "a write takes 1.24 ms on this board, a read 0.36. At random the CB-tree with a log writes two pages a record, the log's and the \
               leaf's that leaves memory (101 k for 50,000), and reads 1.5 (76 k); the LSB-tree and the µ*-tree write one (51 k) and read \
               2.5 and 3 (126 k and 152 k): the reads that are spared do not pay for a write. If programs took no time, which could have refuted it, \
               the ratios would be 2.19, 1.38 and 1.02: at 50 % the claim would hold, and at random nearly, where both make 177 k requests and a write \
               still takes four fifths of a read. The paper's own model says so, too: its (4), \
               (CR + CW) (H - 1), is more than CR H + CW as soon as CW (H - 2) is more than CR",
    },
    Cause {
        device: Device::Nand,
        scale: None,
        key: "wandering-slowest",
        text: "in order and at 50 % it is; at random d-IPL is slower, because a block of 64 pages logs its nodes in common, and \
               a node that is not among the 4 frames is read with all log pages that speak of it: 20 pages an insertion at random (1.02 M \
               reads), 4.4 at 50 %, 0.8 in order; it writes less than two pages a record everywhere (89 k). Against all others the wandering \
               tree is the slowest by more than two times at 0 and 50 %, by 1.5 at 100 %. With 64 frames, which could have refuted it, d-IPL takes \
               two thirds of the wandering tree's time at random, and the claim holds",
    },
    Cause {
        device: Device::Nand,
        scale: None,
        key: "like-wandering-dipl",
        text: "the same reads of log pages: in order d-IPL reads 4.8 pages a search, the wandering tree its 3 levels. The paper says that in order records are rarely in the log; \
               here each block of 64 pages has some, of the nodes that were written last, and a node that is not in one of 4 frames is read with all of them. With 64 \
               frames, which could have refuted it, d-IPL takes 369 us to the wandering tree's 1074",
    },
    Cause {
        device: Device::Nand,
        scale: None,
        key: "mu-star-search",
        text: "again d-IPL alone, which reads 4.8, 22 and 46 to 49 pages a search, nearly all of them log pages of blocks of 64 pages; of the \
               others the µ*-tree is slowest at 0 and 50 %; at 100 % it and the LSB-tree are within 2 % (3.6 to 3.7 reads each, of 4 levels, \
               and of 3 levels and a log node). With 64 frames, which could have refuted it, d-IPL's searches take 0.28, 0.6 and 0.8 of the \
               µ*-tree's time",
    },
];

/// "Uniform", said of one tree at three ratios, is less than "similar".
const UNIFORM: f64 = 1.1;

/// Other d-IPL trees, which are not judged.
const VARIANTS: [(Rival, &str, &str, &str); 3] = [
    (Rival::Dipl16, "dipl-16", "blocks of 16 pages", "blocks not told"),
    (Rival::DiplFrames, "dipl-frames", "64 frames", "frames not told"),
    (Rival::DiplRules, "dipl-rules", "updates that wait in memory", "when an update is durable is not told"),
];

/// Those that the CB-tree with a log is compared with, on a board whose programs take no time.
const CHEAP: [Rival; 3] = [Rival::MuStar, Rival::Lsb, Rival::CbLog];

fn cheap(rival: Rival) -> String {
    format!("by price: {}", rival.name())
}

fn search(rival: Rival) -> String {
    format!("{}, search", rival.name())
}

fn searches(scale: Scale) -> u64 {
    scale.requests(5_000, 20_000, 50_000)
}

impl Study for RawTimes {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn parameters(&self, scale: Scale, _: Device) -> Vec<Parameter> {
        let mut all = settings(scale);
        all.push(Parameter::new(
            "searches",
            "not told",
            format!("{} of keys that are there", searches(scale)),
        ));
        all
    }

    fn on_nand(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        let count = inserts(laboratory.scale);
        let runs = laboratory.scale.pick(2, Simulated::RUNS, Simulated::RUNS);
        laboratory
            .expect((RIVALS.len() + VARIANTS.len()) * (1 + 2 * runs as usize) + CHEAP.len() * RATIOS.len());
        let mut rows = Vec::new();
        for run in 0..runs {
            for ratio in RATIOS.into_iter().filter(|ratio| *ratio > 0 || run == 0) {
                let keys = keys(ratio, run, count);
                for rival in CHEAP.into_iter().filter(|_| run == 0) {
                    laboratory.step(&format!("{}, {ratio} % random", cheap(rival)))?;
                    let mut tree = rival.plant_on(board_of_free_programs(), run)?;
                    rows.push(tree.grow(&cheap(rival), ratio as f64, run, &keys)?);
                }
                for rival in RIVALS.into_iter().chain(VARIANTS.map(|(rival, ..)| rival)) {
                    laboratory.step(&format!("{}, {ratio} % random", rival.name()))?;
                    let mut tree = rival.plant(run)?;
                    rows.push(tree.grow(rival.name(), ratio as f64, run, &keys)?);
                    let mut chosen = StdRng::seed_from_u64(Laboratory::seed(run, 1));
                    let count = searches(laboratory.scale);
                    rows.push(tree.row(&search(rival), ratio as f64, run, count, |tree| {
                        (0..count).try_for_each(|_| {
                            let key = keys[chosen.random_range(0..keys.len())];
                            Ok(tree.index().search(key).map(drop)?)
                        })
                    })?);
                }
            }
        }
        Ok(Rows(rows))
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, _: Device) -> std::result::Result<Judgement, Missing> {
        let times = |series: &str| -> std::result::Result<[f64; 3], Missing> {
            let at = |ratio| Ok(rows.median(series, ratio, Row::latency)?.number());
            Ok([at(0.0)?, at(50.0)?, at(100.0)?])
        };
        let told = |times: [f64; 3]| times.map(number).join(", ");
        let (mut fill, mut find) = (Vec::new(), Vec::new());
        for rival in RIVALS {
            fill.push((rival, times(rival.name())?));
            find.push((rival, times(&search(rival))?));
        }
        let of = |all: &[(Rival, [f64; 3])], rival| {
            all.iter().find(|line| line.0 == rival).map_or([f64::NAN; 3], |line| line.1)
        };
        // The best or worst of some rivals at each ratio.
        let among = |all: &[(Rival, [f64; 3])], rivals: &[Rival], worst: bool| {
            [0, 1, 2].map(|index| {
                let lines = all.iter().filter(|line| rivals.contains(&line.0));
                let times = lines.map(|(rival, times)| (times[index], rival.name()));
                let order = |one: &(f64, &str), two: &(f64, &str)| one.0.total_cmp(&two.0);
                let found = if worst { times.max_by(order) } else { times.min_by(order) };
                found.unwrap_or((f64::NAN, "none"))
            })
        };
        let named = |found: [(f64, &str); 3]| {
            found.map(|(time, name)| format!("{} ({name})", number(time))).join(", ")
        };
        let mut judgement = Judgement::default();
        let cb = of(&fill, Rival::Cb);
        let rest = [Rival::Wandering, Rival::Dipl, Rival::MuStar, Rival::Lsb, Rival::CbLog];
        let best = among(&fill, &rest, false);
        judgement.check(
            "cb-fastest",
            "filling: the CB-tree is the fastest at each ratio; us a record",
            "always",
            format!("{} against {}", told(cb), named(best)),
            (0..3).all(|index| cb[index] <= best[index].0),
        );
        let log = of(&fill, Rival::CbLog);
        let best = among(&fill, &[Rival::Dipl, Rival::MuStar, Rival::Lsb], false);
        let ratios = [0, 1, 2].map(|index| best[index].0 / log[index]);
        judgement.band(
            "log-faster",
            "filling: the time of the best of d-IPL, µ*- and LSB-tree by that of the CB-tree with a log (22.6 to 41.8 % better)",
            format!("{}: {} against {}", ratios.map(|ratio| format!("{ratio:.2}")).join(", "), named(best), told(log)),
            ratios,
            LOG_FASTER,
        );
        if rows.series().contains(&cheap(Rival::CbLog).as_str()) {
            let [mu, lsb, log] = CHEAP.map(|rival| times(&cheap(rival)));
            let (mu, lsb, log) = (mu?, lsb?, log?);
            let ratios = [0, 1, 2].map(|index| mu[index].min(lsb[index]) / log[index]);
            judgement.report(
                "free-programs",
                "the same of µ*- and LSB-tree, on a board whose programs take no time",
                "not measured",
                ratios.map(|ratio| format!("{ratio:.2}")).join(", "),
            );
        }
        let three = [Rival::Dipl, Rival::MuStar, Rival::Lsb];
        let (least, most) = (among(&fill, &three, false), among(&fill, &three, true));
        judgement.check(
            "alike",
            "filling: d-IPL, µ*- and LSB-tree take about the same: the slowest at most 1.25 times the fastest",
            "almost similar",
            format!("{} to {}", named(least), named(most)),
            (0..3).all(|index| most[index].0 <= SIMILAR * least[index].0),
        );
        let wandering = of(&fill, Rival::Wandering);
        let worst = among(&fill, &[Rival::Dipl, Rival::MuStar, Rival::Lsb, Rival::Cb, Rival::CbLog], true);
        judgement.check(
            "wandering-slowest",
            "filling: the wandering tree is the slowest at each ratio",
            "always",
            format!("{} against {}", told(wandering), named(worst)),
            (0..3).all(|index| wandering[index] >= worst[index].0),
        );
        let mu = of(&find, Rival::MuStar);
        let worst = among(&find, &[Rival::Wandering, Rival::Dipl, Rival::Lsb, Rival::Cb, Rival::CbLog], true);
        judgement.check(
            "mu-star-search",
            "search: the µ*-tree is the slowest at each ratio",
            "always",
            format!("{} against {}", told(mu), named(worst)),
            (0..3).all(|index| mu[index] >= worst[index].0),
        );
        for (rival, key, what, paper) in VARIANTS {
            if rows.series().contains(&rival.name()) {
                let (fill, find) = (times(rival.name())?, times(&search(rival))?);
                judgement.report(
                    key,
                    &format!("d-IPL with {what}: filling; searches, us"),
                    paper,
                    format!("{}; {}", told(fill), told(find)),
                );
            }
        }
        for (key, rival) in [("dipl-search", Rival::Dipl), ("lsb-search", Rival::Lsb)] {
            let times = of(&find, rival);
            judgement.check(
                key,
                &format!("search: {} takes at least 1.15 times as long at 100 % as at 0 %", rival.name()),
                "worse at random",
                format!("{:.2} times: {}", times[2] / times[0], told(times)),
                times[2] / times[0] >= 1.15,
            );
        }
        let like = of(&find, Rival::Wandering)[0];
        for (key, rival) in [("like-wandering-dipl", Rival::Dipl), ("like-wandering-lsb", Rival::Lsb)] {
            let time = of(&find, rival)[0];
            judgement.check(
                key,
                &format!(
                    "search at 0 %: {} takes about what the wandering tree takes: neither 1.25 times the other",
                    rival.name()
                ),
                "similar",
                format!("{} and {}", number(time), number(like)),
                time <= SIMILAR * like && like <= SIMILAR * time,
            );
        }
        let (cb, rest) = (of(&find, Rival::Cb), [Rival::Wandering, Rival::Dipl, Rival::MuStar, Rival::Lsb]);
        let best = among(&find, &rest, false);
        judgement.check(
            "cb-search",
            "search: the CB-tree is the fastest at each ratio",
            "fastest",
            format!("{} against {}", told(cb), named(best)),
            (0..3).all(|index| cb[index] <= best[index].0),
        );
        for (key, rival, within, what) in [
            ("wandering-even", Rival::Wandering, SIMILAR, "similar in all ratios"),
            ("mu-star-even", Rival::MuStar, UNIFORM, "uniform in all ratios"),
        ] {
            let times = of(&find, rival);
            let (least, most) = (
                times.iter().copied().fold(f64::INFINITY, f64::min),
                times.iter().copied().fold(0.0, f64::max),
            );
            judgement.check(
                key,
                &format!(
                    "search: the {}'s time does not depend on the ratio: the most at most {within} times the least",
                    rival.name()
                ),
                what,
                told(times),
                times.iter().all(|time| *time > 0.0) && most <= within * least,
            );
        }
        let wandering = of(&fill, Rival::Wandering);
        judgement.check(
            "wandering-falls",
            "filling: the wandering tree is faster at 100 % than at 0 %",
            "faster",
            told(wandering),
            wandering[2] < wandering[0],
        );
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        let mut lines = Vec::new();
        for rival in RIVALS {
            let mut points = Vec::new();
            for (kind, series) in (0..).zip([rival.name().to_owned(), search(rival)]) {
                for (index, ratio) in (0..).zip(RATIOS) {
                    let spread = rows.spread(&series, ratio as f64, Row::latency)?.scaled(1.0);
                    points.push((f64::from(3 * kind + index), spread));
                }
            }
            lines.push(Line { name: rival.name().to_owned(), paired: false, points });
        }
        Ok(Chart {
            title: CARD.title.into(),
            x: Axis {
                label: "operation and random keys".into(),
                scale: Scaling::Names(&["insert, 0 %", "50 %", "100 %", "search, 0 %", "50 %", "100 %"]),
            },
            y: Axis { label: "time of an operation, us".into(), scale: Scaling::Even },
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

    fn good(rival: Rival) -> [f64; 6] {
        match rival {
            Rival::Wandering => [60.0, 55.0, 50.0, 10.0, 10.0, 10.0],
            Rival::Dipl => [30.0, 30.0, 30.0, 10.0, 11.0, 12.0],
            Rival::MuStar => [31.0, 31.0, 31.0, 16.0, 16.0, 16.0],
            Rival::Lsb => [32.0, 32.0, 32.0, 10.0, 11.0, 12.0],
            Rival::Cb => [1.0, 10.0, 18.0, 8.0, 8.0, 8.0],
            _ => [20.0, 22.0, 23.0, 8.0, 8.0, 8.0],
        }
    }

    fn rows(change: impl Fn(Rival, &mut [f64; 6])) -> Rows<Simulated> {
        let mut rows = Vec::new();
        for rival in RIVALS {
            let mut times = good(rival);
            change(rival, &mut times);
            for (index, ratio) in RATIOS.into_iter().enumerate() {
                rows.push(row(rival.name(), ratio as f64, 0, times[index]));
                rows.push(row(&search(rival), ratio as f64, 0, times[3 + index]));
            }
        }
        Rows(rows)
    }

    #[test]
    fn the_published_shape_holds_and_others_do_not() {
        let judge = |rows: &Rows<Simulated>| Study::judge(&RawTimes, rows, Device::Nand).unwrap();
        let published = judge(&rows(|_, _| ()));
        let failed: Vec<_> =
            published.checks.iter().filter(|check| check.outcome == Outcome::Fails).collect();
        assert!(failed.is_empty() && published.verdict() == Verdict::Holds, "{failed:?}");
        let fails = |rival: Rival, which: usize, time: f64, key: &str| {
            let changed = rows(|other, times| {
                if other == rival {
                    times[which] = time;
                }
            });
            assert_eq!(judge(&changed).outcome(key), Some(Outcome::Fails), "{key}");
        };
        fails(Rival::Cb, 2, 33.0, "cb-fastest");
        fails(Rival::CbLog, 2, 28.0, "log-faster");
        fails(Rival::Lsb, 1, 56.0, "wandering-slowest");
        fails(Rival::Dipl, 5, 17.0, "mu-star-search");
        fails(Rival::Dipl, 5, 11.4, "dipl-search");
        fails(Rival::Lsb, 5, 11.4, "lsb-search");
        fails(Rival::Cb, 4, 10.5, "cb-search");
        fails(Rival::MuStar, 4, 7.5, "cb-search");
        fails(Rival::Dipl, 3, 12.6, "like-wandering-dipl");
        fails(Rival::Lsb, 3, 7.9, "like-wandering-lsb");
        assert!(Study::draw(&RawTimes, &rows(|_, _| ())).unwrap().to_svg().unwrap().contains("search, 0 %"));
    }
}
