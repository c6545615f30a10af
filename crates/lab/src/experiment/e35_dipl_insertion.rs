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
    source: "Na, Moon and Lee, CIKM 2009, figure 2",
    question: "Flash cannot overwrite. A translation layer hides that, and moves whole blocks for every node that is written. \
               In-page logging writes only what changed, into the block where the node is; d-IPL gives that log all the room that a \
               block has left. What do a million insertions in random order cost each in flash pages and erased blocks?",
    reported: "d-IPL writes and erases less than half of what IPL does, and up to an order of magnitude less than a B+-tree over \
               FAST or FMAX; both kinds of in-page logging even read fewer pages, since merging blocks reads much.",
    absent: &[(Device::Disk, RAW), (Device::Ssdsim, RAW)],
    causes: &[
        Cause {
            device: Device::Nand,
            key: "layer-",
            text: "it is FMAX that costs less than FAST here. The index takes half of the flash, so that nearly every block has a replacement \
                   block of its own under FMAX, and is folded once for 16 nodes written; a log block of FAST holds nodes of many blocks, and is \
                   merged with each of them: 51,700 erases against 10,500 with the smallest buffer at ci scale. FAST alone erases 9.4 to 12 \
                   times as many blocks as d-IPL, and writes 8.6 to 11 times as many pages. Where the index fills the flash, FMAX erases 31,000, 5.6 times as many as d-IPL. On a full drive it is FMAX that erases more: \
                   1771 blocks against 360 for 1000 writes (docs/flash.md)",
        },
        Cause { device: Device::Nand, key: "dipl-reads-fmax", text: READS_OF_FMAX },
        Cause { device: Device::Nand, key: "ipl-reads-fmax", text: READS_OF_FMAX },
        Cause {
            device: Device::Nand,
            key: "order",
            text: "FMAX erases fewer blocks than FAST, and fewer than IPL: see the checks of translation layers",
        },
    ],
};

const READS_OF_FMAX: &str = "FMAX has a replacement block for nearly every block where the index takes half of the flash, so that it merges seldom, and merges \
                   are what translation layers read for. Where the index fills the flash, as a run beside it has it, FMAX reads twice as many \
                   pages (1,281,000 for 655,000 with 10 frames at ci), more than IPL's 1,130,000 and d-IPL's 730,000, as published";

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
        // FAST with the share of log blocks that serves it best, or FMAX, whichever costs less.
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
            let layers = |what| {
                let mut best = ratios(FMAX, dipl, what)?;
                for fast in &fasts {
                    let fast = ratios(fast, dipl, what)?;
                    best.iter_mut().zip(fast).for_each(|(best, fast)| *best = best.min(fast));
                }
                Ok::<Vec<f64>, Missing>(best)
            };
            for (key, what) in [("layer-erases", ERASES), ("layer-writes", WRITES)] {
                let found = layers(what)?;
                let claim =
                    format!("{of}, {what}: every translation layer more than d-IPL, at every buffer size");
                judgement.check(
                    &format!("{key}{mark}"),
                    &claim,
                    "considerably more",
                    told(&found),
                    least(&found) > 1.0,
                );
                let claim = format!(
                    "{of}, {what}: the best translation layer 8 times as many as d-IPL or more, at some size"
                );
                let key = format!("{key}-most{mark}");
                judgement.check(
                    &key,
                    &claim,
                    "up to an order of magnitude",
                    number(most(&found)),
                    most(&found) >= 8.0,
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
    use crate::judgement::{Outcome, Verdict};
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
            (0, 2, 79.0, "layer-erases-most"),
            (1, 1, 9.0, "layer-writes-512"),
            (1, 1, 79.0, "layer-writes-most-512"),
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
    }
}
