//! E35: random insertion with in-page logging and over translation layers, by buffer size (d-IPL, figure 2).

use super::{Card, Cause, Device, Parameter, Scale, Study};
use crate::chart::{Axis, Chart, Line, Scaling, number};
use crate::failure::Result;
use crate::flash_trees::{
    Approach, DIPL, DIPL_SECTORS, ERASES, FAST, FMAX, FMAX_TIGHT, FlashTree, IPL, IPL_SECTORS, READS, Size,
    WRITES, side_by_side,
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
        Cause {
            device: Device::Nand,
            key: "order",
            text: "FMAX erases fewer blocks than FAST, and fewer than IPL: see the checks of translation layers",
        },
    ],
};

/// Those that the claims are about, and those that are shown beside them.
const APPROACHES: [Approach; 7] = [
    Approach::Fast,
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
        for (key, what) in [("ipl-writes", WRITES), ("ipl-erases", ERASES)] {
            let found = ratios(IPL, DIPL, what)?;
            let claim = format!("{what}: IPL at least twice as many as d-IPL, at every buffer size");
            judgement.check(key, &claim, "more than two", told(&found), least(&found) >= 2.0);
        }
        let layers = |what| {
            let (fast, fmax) = (ratios(FAST, DIPL, what)?, ratios(FMAX, DIPL, what)?);
            Ok::<Vec<f64>, Missing>(fast.iter().zip(&fmax).map(|(fast, fmax)| fast.min(*fmax)).collect())
        };
        let erases = layers(ERASES)?;
        judgement.check(
            "layer-erases",
            "blocks erased: the better translation layer at least 4 times as many as d-IPL, at every buffer size",
            "up to an order of magnitude",
            told(&erases),
            least(&erases) >= 4.0,
        );
        judgement.check(
            "layer-erases-most",
            "and at least 8 times as many at some",
            "up to an order of magnitude",
            number(most(&erases)),
            most(&erases) >= 8.0,
        );
        let writes = layers(WRITES)?;
        judgement.check(
            "layer-writes",
            "pages written: the better translation layer at least 4 times as many as d-IPL, at every buffer size",
            "up to an order of magnitude",
            told(&writes),
            least(&writes) >= 4.0,
        );
        for (key, series) in [("dipl-reads", DIPL), ("ipl-reads", IPL)] {
            let found = ratios(series, FAST, READS)?;
            let claim =
                format!("pages read: {series} no more than the B+-tree over FAST, at every buffer size");
            judgement.check(key, &claim, "fewer", told(&found), most(&found) <= 1.0);
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
            let all = [FAST, FMAX, FMAX_TIGHT, IPL, DIPL, IPL_SECTORS, DIPL_SECTORS].map(|series| {
                line(series, what).map(|line| {
                    format!("{series} {}", told(&line.iter().map(|point| point.1).collect::<Vec<_>>()))
                })
            });
            let all = all.into_iter().collect::<std::result::Result<Vec<_>, _>>()?;
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
            let all = [FAST, FMAX, IPL, DIPL, IPL_SECTORS, DIPL_SECTORS, FMAX_TIGHT]
                .into_iter()
                .zip(counts.iter().chain(&counts[1..]));
            for (series, counts) in all {
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
            (0, 2, 39.0, "layer-erases"),
            (0, 2, 79.0, "layer-erases-most"),
            (1, 1, 39.0, "layer-writes"),
            (3, 0, 91.0, "dipl-reads"),
            (2, 0, 91.0, "ipl-reads"),
            (1, 2, 89.0, "order"),
        ] {
            let mut counts = good;
            counts[of][what] = value;
            assert_eq!(judge(counts, 0.9).outcome(key), Some(Outcome::Fails), "{key}");
        }
    }
}
