//! E36: random searches in an index that random insertion has made, with the logs that it has left (d-IPL, section 4.2).

use super::{Card, Cause, Device, Parameter, Scale, Study};
use crate::chart::{Axis, Chart, Line, Scaling, number};
use crate::failure::Result;
use crate::flash_trees::{
    Approach, DIPL, DIPL_ALL, DIPL_PAGES, DIPL_SECTORS, DIPL_SECTORS_ALL, DIPL_SECTORS_PAGES, FAST, FMAX,
    FlashTree, IPL, IPL_ALL, IPL_PAGES, IPL_SECTORS, IPL_SECTORS_ALL, IPL_SECTORS_PAGES, READS, Size,
    side_by_side,
};
use crate::judgement::Judgement;
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Simulated};
use crate::row::{Missing, Row, Rows};
use trees::LogReads;

pub(super) struct DiplSearch;

const RAW: &str = "two of the four trees manage flash themselves";

static CARD: Card = Card {
    number: 36,
    name: "dipl-search",
    title: "Random searches, with the logs that insertion has left",
    source: "Na, Lee and Moon, CIKM 2009, section 4.2",
    question: "A node with a log is read together with its log. How much more do searches read than in a B+-tree over a translation \
               layer, where a node is one node?",
    reported: "IPL reads almost 50 % more than the B+-tree over FAST or FMAX, d-IPL almost 100 % more.",
    absent: &[(Device::Disk, RAW), (Device::Ssdsim, RAW)],
    causes: CAUSES,
};

const CAUSES: &[Cause] = &[
    Cause {
        device: Device::Nand,
        scale: Some(Scale::Ci),
        key: "ipl-",
        text: "a log of 8 KiB has four units of 2 KiB for 15 nodes, which are written with whatever waits, so that few nodes have anything in it: 1.06. \
               With sectors of 512 B, which are IPL's own, it has records of more nodes: 1.25",
    },
    Cause {
        device: Device::Nand,
        scale: Some(Scale::Std),
        key: "ipl-",
        text: "a log of 8 KiB has four units of 2 KiB for 15 nodes, which are written with whatever waits, so that few nodes have anything in it: 1.08. \
               With sectors of 512 B, which are IPL's own, it has records of more nodes: 1.27 to 1.28",
    },
    Cause {
        device: Device::Nand,
        scale: Some(Scale::Ci),
        key: "sectors-ipl-",
        text: "16 sectors of a log speak of fewer than the 15 nodes beside it, so that a search often needs no log page. If it were read with each node, which could have refuted this, \
               IPL would read 1.53 times as many, a little more than is published",
    },
    Cause {
        device: Device::Nand,
        scale: Some(Scale::Std),
        key: "sectors-ipl-",
        text: "16 sectors of a log speak of fewer than the 15 nodes beside it, so that a search often needs no log page. If it were read with each node, which could have refuted this, \
               IPL would read 1.53 times as many, a little more than is published",
    },
    Cause {
        device: Device::Nand,
        scale: Some(Scale::Ci),
        key: "dipl-",
        text: "units of 2 KiB of one node lie in several log pages of 8 KiB, each of which is read whole; the paper's rule is told for IPL, whose log is one such page. If d-IPL reads no more than \
               the flash pages that speak of the node, which could have refuted this, it is 1.4 to 1.41 times: the published 2 lies between the two",
    },
    Cause {
        device: Device::Nand,
        scale: Some(Scale::Ci),
        key: "sectors-dipl-",
        text: "sectors of 512 B of one node lie in several log pages of 8 KiB, each of which is read whole; the paper's rule is told for IPL, whose log is one such page. If d-IPL reads no more than \
               the flash pages that speak of the node, which could have refuted this, it is 2.17 to 2.18 times",
    },
    Cause {
        device: Device::Nand,
        scale: Some(Scale::Std),
        key: "sectors-dipl-",
        text: "sectors of 512 B of one node lie in more than one log page of 8 KiB, each of which is read whole. If d-IPL reads no more than the flash pages that speak of the node, which could \
               have refuted this, it is 1.95 to 1.96 times: the published figure",
    },
];

/// How each index is made; those with logs are searched in two ways.
const APPROACHES: [Approach; 6] = [
    Approach::FAST,
    Approach::Fmax,
    Approach::IPL,
    Approach::DIPL,
    Approach::IPL_SECTORS,
    Approach::DIPL_SECTORS,
];

/// One in so many of the published searches is done: each reads two or three nodes, so that the mean needs no more.
const SEARCHED: u64 = 10;

/// Frames that the indexes are made with: the third of five sizes.
fn made_with(size: Size) -> usize {
    size.frames()[2]
}

impl Study for DiplSearch {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn parameters(&self, scale: Scale, _: Device) -> Vec<Parameter> {
        let size = Size::of(scale);
        let mut parameters = size.parameters();
        let made = format!("by the insertion of E35 with {} frames", made_with(size));
        parameters.push(Parameter::new("index", "that of the insertion experiment", made));
        parameters.push(Parameter::new(
            "log read with a node",
            "not told",
            "of the log, counted in pages of 8 KiB, each that has a record of the node, as the text has it for IPL; besides, the \
             flash pages that speak of it, and all of its block's log",
        ));
        let searches = format!("{}, of all keys", size.records / SEARCHED);
        parameters.push(Parameter::new("searches", "1,000,000", searches));
        parameters
    }

    fn on_nand(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        let size = Size::of(laboratory.scale);
        laboratory.expect(1);
        laboratory.step("six indexes")?;
        let rows = side_by_side(&APPROACHES, |approach| {
            let mut tree = FlashTree::new(*approach, size, made_with(size))?;
            tree.fill(size.records)?;
            let mut rows = Vec::new();
            let rules = [LogReads::LogPages, LogReads::Relevant, LogReads::All];
            let mut searched = rules.map(|reads| approach.reading(reads)).to_vec();
            searched.dedup();
            for approach in searched {
                for frames in size.frames() {
                    tree = tree.reopened(approach, frames)?;
                    let before = tree.counted();
                    tree.search(size.records, size.records / SEARCHED)?;
                    rows.push(tree.row(frames, size.records / SEARCHED, before)?);
                }
            }
            Ok(rows)
        })?;
        Ok(Rows(rows.into_iter().flatten().collect()))
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, _: Device) -> std::result::Result<Judgement, Missing> {
        let mut judgement = Judgement::default();
        let line = |series: &str| rows.line(series, |row: &Row<C>| row.count(READS));
        let told = |ratios: &[f64]| ratios.iter().map(|ratio| number(*ratio)).collect::<Vec<_>>().join(", ");
        let over = |series: &str, layer: &str| {
            let (line, layer) = (line(series)?, line(layer)?);
            Ok::<Vec<f64>, Missing>(line.iter().zip(&layer).map(|(of, layer)| of.1 / layer.1).collect())
        };
        rows.line(IPL_PAGES, |row: &Row<C>| row.count(READS))?;
        for (key, ipl, dipl) in
            [("", IPL_PAGES, DIPL_PAGES), ("sectors-", IPL_SECTORS_PAGES, DIPL_SECTORS_PAGES)]
        {
            for (layer_key, layer) in [("fast", FAST), ("fmax", FMAX)] {
                for (tree, name, near, paper) in
                    [("ipl", ipl, 1.4..=1.5, "almost 1.5"), ("dipl", dipl, 1.8..=2.0, "almost 2")]
                {
                    let found = over(name, layer)?;
                    judgement.figure(
                        (
                            &format!("{key}{tree}-{layer_key}"),
                            &format!("{name}: pages by those of the {layer}, at every buffer size"),
                            paper,
                        ),
                        told(&found),
                        found,
                        near,
                    );
                }
            }
            let found = over(dipl, ipl)?;
            judgement.check(
                &format!("{key}order"),
                &format!("{dipl}: at least the pages of {ipl}, at every buffer size"),
                "more",
                told(&found),
                found.iter().all(|ratio| *ratio >= 1.0),
            );
        }
        for series in
            [IPL, DIPL, IPL_ALL, DIPL_ALL, IPL_SECTORS, DIPL_SECTORS, IPL_SECTORS_ALL, DIPL_SECTORS_ALL]
        {
            let claim = format!("{series}: pages read, times those of the B+-tree over FAST");
            judgement.report(series, &claim, "almost 1.5 and 2", told(&over(series, FAST)?));
        }
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        Ok(Chart {
            title: CARD.title.into(),
            x: Axis { label: "frames of 8 KiB".into(), scale: Scaling::Even },
            y: Axis { label: "pages read for a search".into(), scale: Scaling::Even },
            lines: Line::all(rows, 1.0, |row| row.count(READS) / row.requests as f64)?,
            bars: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judgement::{Outcome, Verdict};
    use crate::row::tests::row;

    #[test]
    fn the_published_shape_holds_and_others_do_not() {
        let judge = |reads: [f64; 4], sectors: [f64; 2]| {
            let mut rows: Vec<Row<Simulated>> = Vec::new();
            let others =
                [IPL, DIPL, IPL_ALL, DIPL_ALL, IPL_SECTORS, IPL_SECTORS_ALL, DIPL_SECTORS, DIPL_SECTORS_ALL];
            let others = others.map(|series| (series, 9.0));
            let by_sectors = [IPL_SECTORS_PAGES, DIPL_SECTORS_PAGES].into_iter().zip(sectors);
            let all =
                [FAST, FMAX, IPL_PAGES, DIPL_PAGES].into_iter().zip(reads).chain(by_sectors).chain(others);
            for (series, reads) in all {
                let mut row = row(series, 100.0, 0, 1.0);
                row.counts.insert(READS.to_owned(), reads);
                rows.push(row);
            }
            Study::judge(&DiplSearch, &Rows(rows), Device::Nand).unwrap()
        };
        let all = [6.0, 8.0];
        let good = [4.1, 4.1, 6.0, 8.0];
        assert_eq!(judge(good, all).verdict(), Verdict::Holds);
        for (reads, all, key) in [
            ([4.1, 4.1, 5.6, 8.0], all, "ipl-fast"),
            ([4.1, 3.9, 6.0, 8.0], all, "ipl-fmax"),
            ([4.1, 4.1, 6.0, 8.4], all, "dipl-fast"),
            ([4.1, 4.6, 6.0, 8.0], all, "dipl-fmax"),
            ([4.1, 4.1, 7.0, 6.0], all, "order"),
            (good, [5.6, 8.0], "sectors-ipl-fast"),
            (good, [6.4, 8.0], "sectors-ipl-fast"),
            (good, [6.0, 8.4], "sectors-dipl-fmax"),
            (good, [6.0, 7.2], "sectors-dipl-fmax"),
            (good, [7.0, 6.0], "sectors-order"),
        ] {
            assert_eq!(judge(reads, all).outcome(key), Some(Outcome::Fails), "{key}");
        }
    }
}
