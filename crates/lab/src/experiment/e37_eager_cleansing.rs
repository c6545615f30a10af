//! E37: random searches after all blocks were cleansed (d-IPL, section 4.2).

use super::{Card, Cause, Device, Parameter, Scale, Study};
use crate::chart::{Axis, Chart, Line, Scaling, number};
use crate::failure::Result;
use crate::flash_trees::{
    Approach, BLOCKS, DIPL, ERASES, FAST, FMAX, FlashTree, READS, Size, WRITES, side_by_side,
};
use crate::judgement::Judgement;
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Simulated};
use crate::row::{Missing, Row, Rows};

pub(super) struct EagerCleansing;

const RAW: &str = "one of the two trees manages flash itself";
const PASS: &str = "the pass";
const CLEAN: &str = "d-IPL, cleansed";

static CARD: Card = Card {
    number: 37,
    name: "eager-cleansing",
    title: "Random searches before and after all blocks are cleansed",
    source: "Na, Lee and Moon, CIKM 2009, section 4.2",
    question: "When updates give way to searches, a d-IPL tree can write all of its blocks anew, so that no node has a log any more. What \
               does the pass cost, and do searches then read what they read over a translation layer?",
    reported: "Searches then read slightly less than over FAST or FMAX; the cost of the pass is nominal.",
    absent: &[(Device::Disk, RAW), (Device::Ssdsim, RAW)],
    causes: &[Cause {
        device: Device::Nand,
        scale: Some(Scale::Ci),
        key: "reads",
        text: "without logs a node is one node, here as over a translation layer, and both trees split alike: with 258 leaves below one root each search reads the same nodes but for what is \
               in a frame by chance, 20 pages of 322,696 at most. At the published size (std), which could have refuted this, it is 0.2 % fewer at every buffer size",
    }],
};

impl Study for EagerCleansing {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn parameters(&self, scale: Scale, _: Device) -> Vec<Parameter> {
        let size = Size::of(scale);
        let mut parameters = size.parameters();
        let made = format!("by the insertion of E35 with {} frames", size.frames()[2]);
        parameters.push(Parameter::new("index", "that of the insertion experiment", made));
        parameters
    }

    fn on_nand(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        let size = Size::of(laboratory.scale);
        laboratory.expect(1);
        laboratory.step("four indexes")?;
        // A tree that was opened again does not know which free blocks are erased: the pass is done by the one that inserted.
        let jobs = [
            (Approach::FAST, false),
            (Approach::Fmax, false),
            (Approach::DIPL, false),
            (Approach::DIPL, true),
        ];
        let rows = side_by_side(&jobs, |(approach, cleanse)| {
            let mut tree = FlashTree::new(*approach, size, size.frames()[2])?;
            tree.fill(size.records)?;
            let mut rows = Vec::new();
            if *cleanse {
                let before = tree.counted();
                tree.cleanse()?;
                let row = tree.row(0, 1, before)?;
                rows.push(Row { series: PASS.to_owned(), ..row });
            }
            for frames in size.frames() {
                tree = tree.reopened(*approach, frames)?;
                let before = tree.counted();
                tree.search(size.records, size.records)?;
                let row = tree.row(frames, size.records, before)?;
                rows.push(if *cleanse { Row { series: CLEAN.to_owned(), ..row } } else { row });
            }
            Ok(rows)
        })?;
        Ok(Rows(rows.into_iter().flatten().collect()))
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, _: Device) -> std::result::Result<Judgement, Missing> {
        let mut judgement = Judgement::default();
        let line = |series: &str| rows.line(series, |row: &Row<C>| row.count(READS));
        let (fast, clean, logged) = (line(FAST)?, line(CLEAN)?, line(DIPL)?);
        let over = |line: &[(f64, f64)]| -> Vec<f64> {
            line.iter().zip(&fast).map(|(of, fast)| of.1 / fast.1).collect()
        };
        let told = |ratios: &[f64]| ratios.iter().map(|ratio| number(*ratio)).collect::<Vec<_>>().join(", ");
        let layers = [FAST, FMAX].map(|layer| line(layer).map(|line| (layer, line)));
        for (layer, over) in layers.into_iter().collect::<std::result::Result<Vec<_>, _>>()? {
            let pairs = clean.iter().zip(&over).map(|(clean, over)| (clean.1, over.1));
            let told = pairs.clone().map(|(clean, over)| format!("{clean} and {over}"));
            judgement.check(
                &format!("reads-{}", if layer == FAST { "fast" } else { "fmax" }),
                &format!("a cleansed d-IPL tree reads fewer pages than the {layer}, at every buffer size"),
                "slightly fewer: 0.9 to 1, and not 1",
                told.collect::<Vec<_>>().join(", "),
                pairs.clone().all(|(clean, over)| clean < over && clean >= 0.9 * over),
            );
        }
        let pass = |what: &'static str| rows.median(PASS, 0.0, |row: &Row<C>| row.count(what));
        let (erases, blocks) = (pass(ERASES)?, pass(BLOCKS)?);
        judgement.check(
            "erases",
            "the pass erases each block once",
            "a nominal cost",
            format!("{} erases, {} blocks", number(erases), number(blocks)),
            erases == blocks,
        );
        let moved = format!("{} pages read, {} written", number(pass(READS)?), number(pass(WRITES)?));
        judgement.report("pages", "pages of the pass", "not told", moved);
        judgement.report(
            "before",
            "pages read before the pass, times those over FAST",
            "almost 2",
            told(&over(&logged)),
        );
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        let mut lines = Line::all(rows, 1.0, |row| row.count(READS) / row.requests as f64)?;
        lines.retain(|line| line.name != PASS);
        Ok(Chart {
            title: CARD.title.into(),
            x: Axis { label: "frames of 8 KiB".into(), scale: Scaling::Even },
            y: Axis { label: "pages read for a search".into(), scale: Scaling::Even },
            lines,
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
        let judge = |clean: f64, fmax: f64, erases: f64| {
            let counted = |series: &str, at: f64, counts: &[(&str, f64)]| {
                let mut row: Row<Simulated> = row(series, at, 0, 1.0);
                row.counts.extend(counts.iter().map(|(name, count)| ((*name).to_owned(), *count)));
                row
            };
            let rows = vec![
                counted(FAST, 100.0, &[(READS, 4.0)]),
                counted(FMAX, 100.0, &[(READS, fmax)]),
                counted(DIPL, 100.0, &[(READS, 8.0)]),
                counted(CLEAN, 100.0, &[(READS, clean)]),
                counted(PASS, 0.0, &[(READS, 1.0), (WRITES, 1.0), (ERASES, erases), (BLOCKS, 7.0)]),
            ];
            Study::judge(&EagerCleansing, &Rows(rows), Device::Nand).unwrap()
        };
        assert_eq!(judge(3.9, 4.0, 7.0).verdict(), Verdict::Holds);
        assert_eq!(judge(4.0, 4.1, 7.0).outcome("reads-fast"), Some(Outcome::Fails), "a tie is not less");
        assert_eq!(judge(3.5, 4.0, 7.0).outcome("reads-fast"), Some(Outcome::Fails), "that is not slightly");
        assert_eq!(judge(3.9, 3.9, 7.0).outcome("reads-fmax"), Some(Outcome::Fails));
        assert_eq!(judge(3.9, 4.0, 8.0).outcome("erases"), Some(Outcome::Fails));
    }
}
