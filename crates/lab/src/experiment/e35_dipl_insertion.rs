//! E35: random insertion with in-page logging and over translation layers, by buffer size (d-IPL, figure 2).

use super::{Card, Cause, Device, Parameter, Scale, Study};
use crate::chart::{Axis, Chart, Line, Scaling, number};
use crate::failure::Result;
use crate::flash_trees::{
    Approach, DIPL, DIPL_SECTORS, ERASES, FAST, FAST_5, FAST_10, FMAX, FMAX_TIGHT, FlashTree, IPL,
    IPL_SECTORS, READS, Size, WRITES, side_by_side,
};
use crate::judgement::Judgement;
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Simulated};
use crate::row::{Missing, Row, Rows};

pub(super) struct DiplInsertion;

const RAW: &str = "two of the four trees manage flash themselves, and the other two are counted by what their translation layer does to it";

static CARD: Card = Card {
    number: 35,
    name: "dipl-insertion",
    title: "Random insertion: in-page logging and translation layers",
    source: "Na, Lee and Moon, CIKM 2009, figure 2",
    question: "Flash cannot overwrite. A translation layer hides that, and moves whole blocks for every node that is written. \
               In-page logging writes only what changed, into the block where the node is; d-IPL gives that log all the room that a \
               block has left. What do a million insertions in random order cost each in flash pages and erased blocks?",
    reported: "d-IPL writes and erases less than half of what IPL does, and up to an order of magnitude less than a B+-tree over \
               FAST or FMAX; both kinds of in-page logging even read fewer pages, since merging blocks reads much.",
    absent: &[(Device::Disk, RAW), (Device::Ssdsim, RAW)],
    causes: &[
        Cause { device: Device::Nand, scale: None, key: "layer-erases-most", text: SECTORS },
        Cause { device: Device::Nand, scale: None, key: "layer-writes-most", text: SECTORS },
        Cause { device: Device::Nand, scale: Some(Scale::Ci), key: "dipl-reads-fmax", text: READS_OF_FMAX },
        Cause { device: Device::Nand, scale: Some(Scale::Ci), key: "ipl-reads-fmax", text: READS_OF_FMAX },
        Cause {
            device: Device::Nand,
            scale: Some(Scale::Std),
            key: "dipl-reads-fmax",
            text: READS_OF_FMAX_STD,
        },
        Cause {
            device: Device::Nand,
            scale: Some(Scale::Std),
            key: "ipl-reads-fmax",
            text: READS_OF_FMAX_STD,
        },
        Cause {
            device: Device::Nand,
            scale: Some(Scale::Ci),
            key: "order",
            text: "it is FMAX that erases less than FAST here, and less than IPL. The index takes half of the flash, so that nearly every block has a replacement \
                   block of its own under FMAX, and is folded once for 16 nodes written; a log block of FAST holds nodes of many blocks, and is \
                   merged with each of them: 51.7 k erases against FMAX's 10.5 k with the smallest buffer, and IPL's 14.7 k. Where the index fills the flash, the run that could have \
                   refuted this, FMAX erases 31 k, more than IPL and 5.6 times what d-IPL erases, and with the largest buffer 23.5 k, 8.1 times. FAST was not run there",
        },
        Cause {
            device: Device::Nand,
            scale: Some(Scale::Std),
            key: "order",
            text: "it is FMAX that erases less than FAST here, and less than IPL. The index takes half of the flash, so that nearly every block has a replacement \
                   block of its own under FMAX, and is folded once for 16 nodes written; a log block of FAST holds nodes of many blocks, and is \
                   merged with each of them: 366 k erases against FMAX's 104 k with the smallest buffer, and IPL's 141 k. Where the index fills the flash, the run that could have \
                   refuted this, FMAX erases 541 k to 414 k, more than FAST on half of the flash, as drawn, and 10.3 to 15 times what d-IPL erases. FAST was not run there",
        },
    ],
};

const SECTORS: &str = "d-IPL with sectors of 512 B writes a quarter of a page where it writes one of 2 KiB, and fills its logs so much later; which of them the paper had is not told. With units of \
                   2 KiB the most is inside the band";
const READS_OF_FMAX: &str = "FMAX has a replacement block for nearly every block where the index takes half of the flash, so that it merges seldom, and merges \
                   are what translation layers read for. Where the index fills the flash, as a run beside it has it, FMAX reads twice as many \
                   pages (1.28 M for 655 k with 10 frames), more than IPL's 1.13 M and d-IPL's 730 k, as published";
const READS_OF_FMAX_STD: &str = "FMAX has a replacement block for nearly every block where the index takes half of the flash, so that it merges seldom, and merges \
                   are what translation layers read for. Where the index fills the flash, as a run beside it has it, FMAX reads three times as many \
                   pages (20.7 M for 6.65 M with 100 frames), more than IPL's 11.1 M and d-IPL's 7.08 M, as published";

/// "Up to an order of magnitude": of all layers and buffers the most is as near to 10 as a tenth of its logarithm.
const ORDER_OF_MAGNITUDE: std::ops::RangeInclusive<f64> = 7.9..=12.6;

/// Those that the claims are about, and those that are shown beside them.
const APPROACHES: [Approach; 9] = [
    Approach::FAST,
    Approach::Fast { log: 5 },
    Approach::Fast { log: 10 },
    Approach::Fmax,
    Approach::IPL,
    Approach::DIPL,
    Approach::IPL_SECTORS,
    Approach::DIPL_SECTORS,
    Approach::FmaxTight,
];

impl Study for DiplInsertion {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn parameters(&self, scale: Scale, _: Device) -> Vec<Parameter> {
        Size::of(scale).parameters()
    }

    fn on_nand(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        let size = Size::of(laboratory.scale);
        let sizes = size.frames();
        laboratory.expect(sizes.len());
        let mut rows = Vec::new();
        for frames in sizes {
            laboratory.step(&format!("{frames} frames"))?;
            rows.extend(side_by_side(&APPROACHES, |approach| {
                let mut tree = FlashTree::new(*approach, size, frames)?;
                let before = tree.counted();
                tree.fill(size.records)?;
                tree.row(frames, size.records, before)
            })?);
        }
        Ok(Rows(rows))
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, _: Device) -> std::result::Result<Judgement, Missing> {
        let mut judgement = Judgement::default();
        let line = |series: &str, what: &'static str| rows.line(series, |row: &Row<C>| row.count(what));
        // By buffer size: `of` over `over`.
        let ratios = |of: &str, over: &str, what: &'static str| {
            let (of, over) = (line(of, what)?, line(over, what)?);
            Ok::<Vec<f64>, Missing>(of.iter().zip(&over).map(|(of, over)| of.1 / over.1).collect())
        };
        let least = |ratios: &[f64]| ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let most = |ratios: &[f64]| ratios.iter().copied().fold(0.0, f64::max);
        let told = |ratios: &[f64]| ratios.iter().map(|ratio| number(*ratio)).collect::<Vec<_>>().join(", ");
        let measured = rows.series();
        // FAST with several shares of log blocks.
        let fasts: Vec<&str> =
            [FAST, FAST_5, FAST_10].into_iter().filter(|name| measured.contains(name)).collect();
        for (mark, of, ipl, dipl) in [
            ("", "log units of 2 KiB", IPL, DIPL),
            ("-512", "log sectors of 512 B", IPL_SECTORS, DIPL_SECTORS),
        ] {
            for (key, what) in [("ipl-writes", WRITES), ("ipl-erases", ERASES)] {
                let found = ratios(ipl, dipl, what)?;
                let claim =
                    format!("{of}, {what}: IPL more than twice as many as d-IPL, at every buffer size");
                judgement.check(
                    &format!("{key}{mark}"),
                    &claim,
                    "more than two",
                    told(&found),
                    least(&found) > 2.0,
                );
            }
            // By buffer: what the layer costs that costs least there, and the one that costs most.
            let layers = |what| {
                let mut cheapest = ratios(FMAX, dipl, what)?;
                let mut dearest = cheapest.clone();
                for fast in &fasts {
                    let fast = ratios(fast, dipl, what)?;
                    cheapest.iter_mut().zip(&fast).for_each(|(best, fast)| *best = best.min(*fast));
                    dearest.iter_mut().zip(&fast).for_each(|(worst, fast)| *worst = worst.max(*fast));
                }
                Ok::<(Vec<f64>, Vec<f64>), Missing>((cheapest, dearest))
            };
            for (key, what) in [("layer-erases", ERASES), ("layer-writes", WRITES)] {
                let (cheapest, dearest) = layers(what)?;
                let claim =
                    format!("{of}, {what}: every translation layer more than d-IPL, at every buffer size");
                judgement.check(
                    &format!("{key}{mark}"),
                    &claim,
                    "considerably more",
                    told(&cheapest),
                    least(&cheapest) > 1.0,
                );
                judgement.band(
                    &format!("{key}-most{mark}"),
                    &format!(
                        "{of}, {what}: how many times as many as d-IPL a translation layer has at most, of all \
                         layers and sizes (\"up to an order of magnitude\")"
                    ),
                    format!("{} (the dearest, by size: {})", number(most(&dearest)), told(&dearest)),
                    [most(&dearest)],
                    ORDER_OF_MAGNITUDE,
                );
            }
            for (key, series) in [("dipl-reads", dipl), ("ipl-reads", ipl)] {
                for (layer_mark, layer) in [("", FAST), ("-fmax", FMAX)] {
                    let found = ratios(series, layer, READS)?;
                    let claim =
                        format!("{of}, pages read: {series} fewer than {layer}, at every buffer size");
                    let key = format!("{key}{layer_mark}{mark}");
                    judgement.check(&key, &claim, "fewer", told(&found), most(&found) < 1.0);
                }
            }
        }
        for series in [FAST, FMAX, IPL, DIPL] {
            let mut rising = Vec::new();
            for what in [READS, WRITES, ERASES] {
                let line = line(series, what)?;
                let rises = line.windows(2).filter(|pair| pair[1].1 > pair[0].1);
                rising.extend(rises.map(|pair| {
                    format!("{what}: {} at {}, {} at {}", pair[0].1, pair[0].0, pair[1].1, pair[1].0)
                }));
            }
            judgement.check(
                &format!("frames-{series}"),
                &format!("{series}: no count rises with the buffer"),
                "all fall",
                if rising.is_empty() { "none does".to_owned() } else { rising.join("; ") },
                rising.is_empty(),
            );
        }
        let order = [DIPL, IPL, FAST, FMAX]
            .map(|series| line(series, ERASES))
            .into_iter()
            .collect::<std::result::Result<Vec<_>, _>>()?;
        let wrong = (0..order[0].len()).filter(|at| {
            let [dipl, ipl, fast, fmax] = [0, 1, 2, 3].map(|of| order[of][*at].1);
            !(dipl < ipl && ipl < fast && fast <= fmax)
        });
        let wrong: Vec<String> = wrong.map(|at| number(order[0][at].0)).collect();
        judgement.check(
            "order",
            "blocks erased: d-IPL < IPL < FAST <= FMAX, at every buffer size",
            "in this order",
            if wrong.is_empty() {
                "in this order".to_owned()
            } else {
                format!("not at {} frames", wrong.join(", "))
            },
            wrong.is_empty(),
        );
        for what in [READS, WRITES, ERASES] {
            let shown = [FAST, FAST_5, FAST_10, FMAX, FMAX_TIGHT, IPL, DIPL, IPL_SECTORS, DIPL_SECTORS];
            let all = shown.into_iter().filter(|series| measured.contains(series)).map(|series| {
                line(series, what).map(|line| {
                    format!("{series} {}", told(&line.iter().map(|point| point.1).collect::<Vec<_>>()))
                })
            });
            let all = all.collect::<std::result::Result<Vec<_>, _>>()?;
            judgement.report(
                what,
                &format!("{what}, from the smallest buffer to the largest"),
                "figure 2",
                all.join("; "),
            );
        }
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        Ok(Chart {
            title: CARD.title.into(),
            x: Axis { label: "frames of 8 KiB".into(), scale: Scaling::Even },
            y: Axis { label: "blocks erased".into(), scale: Scaling::Doubling },
            lines: Line::all(rows, 1.0, |row| row.count(ERASES))?,
            bars: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judgement::{Outcome, Place, Verdict};
    use crate::row::tests::row;

    /// Reads, writes and erases of FAST, FMAX, IPL and d-IPL at two sizes; twice the frames make everything less by `less`.
    fn rows(counts: [[f64; 3]; 4], less: f64) -> Rows<Simulated> {
        let mut rows = Vec::new();
        for (at, share) in [(100.0, 1.0), (200.0, less)] {
            let [fast, fmax, ipl, dipl] = counts;
            for (series, counts) in [
                (FAST, fast),
                (FMAX, fmax),
                (FMAX_TIGHT, fmax),
                (IPL, ipl),
                (IPL_SECTORS, ipl),
                (DIPL, dipl),
                (DIPL_SECTORS, dipl),
            ] {
                let mut row = row(series, at, 0, 1.0);
                for (name, count) in [READS, WRITES, ERASES].into_iter().zip(counts) {
                    row.counts.insert(name.to_owned(), count * share);
                }
                rows.push(row);
            }
        }
        Rows(rows)
    }

    #[test]
    fn the_published_shape_holds_and_others_do_not() {
        let good = [[90.0, 90.0, 90.0], [95.0, 95.0, 95.0], [50.0, 30.0, 30.0], [60.0, 10.0, 10.0]];
        let judge = |counts, less| Study::judge(&DiplInsertion, &rows(counts, less), Device::Nand).unwrap();
        assert_eq!(judge(good, 0.9).verdict(), Verdict::Holds);
        assert_eq!(judge(good, 1.1).outcome("frames-d-IPL"), Some(Outcome::Fails));
        for (of, what, value, key) in [
            (2, 1, 19.0, "ipl-writes"),
            (2, 2, 19.0, "ipl-erases"),
            (0, 2, 9.0, "layer-erases"),
            (1, 1, 9.0, "layer-writes-512"),
            (3, 0, 91.0, "dipl-reads"),
            (2, 0, 91.0, "ipl-reads"),
            (3, 0, 96.0, "dipl-reads-fmax-512"),
            (2, 0, 96.0, "ipl-reads-fmax"),
            (1, 2, 89.0, "order"),
        ] {
            let mut counts = good;
            counts[of][what] = value;
            assert_eq!(judge(counts, 0.9).outcome(key), Some(Outcome::Fails), "{key}");
        }
        // The dearest layer decides what is "up to".
        let most = |fast: f64, fmax: f64| {
            let mut counts = good;
            counts[0][1..].fill(fast);
            counts[1][1..].fill(fmax);
            let judged = judge(counts, 0.9);
            ["layer-erases-most", "layer-writes-most-512"].map(|key| {
                let found = judged.checks.iter().find(|check| check.key == key);
                found.and_then(|check| check.place)
            })
        };
        assert_eq!(most(40.0, 95.0), [Some(Place::Inside); 2]);
        assert_eq!(most(40.0, 75.0), [Some(Place::Below); 2]);
        assert_eq!(most(130.0, 95.0), [Some(Place::Above); 2]);
    }
}
