//! E38: what splits cost the log, and free pages that are lost (d-IPL, section 2: frequent log overflow and page evaporation).

use super::{Card, Device, Parameter, Scale, Study};
use crate::chart::{Axis, Chart, Line, Scaling, number};
use crate::failure::Result;
use crate::flash_trees::{
    Approach, DIPL, DIPL_SECTORS, EVAPORATED, FlashTree, IPL, IPL_SECTORS, SPLIT_UNITS, SPLITS, Size,
    side_by_side,
};
use crate::judgement::Judgement;
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Simulated};
use crate::row::{Missing, Row, Rows};

pub(super) struct LogOverflow;

const RAW: &str = "it is about logs inside flash blocks";

static CARD: Card = Card {
    number: 38,
    name: "log-overflow",
    title: "Log units that splits cost, and free pages lost",
    source: "Na, Lee and Moon, CIKM 2009, section 2",
    question: "The paper's two reasons against plain in-page logging: what is split off a node is logged entry by entry, which fills logs; \
               and pages below a log of fixed place cannot be programmed any more once the log has begun. How much is it of each?",
    reported: "No figures: the two problems are described.",
    absent: &[(Device::Disk, RAW), (Device::Ssdsim, RAW)],
    causes: &[],
};

const APPROACHES: [Approach; 4] =
    [Approach::IPL, Approach::DIPL, Approach::IPL_SECTORS, Approach::DIPL_SECTORS];
const NAMES: &[&str] = &["2 KiB", "512 B"];

impl Study for LogOverflow {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn parameters(&self, scale: Scale, _: Device) -> Vec<Parameter> {
        let size = Size::of(scale);
        let mut parameters = size.parameters();
        parameters
            .retain(|parameter| !["buffer", "translation layers", "log units"].contains(&&*parameter.name));
        parameters.push(Parameter::new(
            "buffer",
            "not told",
            format!("{} frames of 8 KiB", size.frames()[0]),
        ));
        parameters.push(Parameter::new("log units", "not told", "2 KiB, and 512 B"));
        parameters
    }

    fn on_nand(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        let size = Size::of(laboratory.scale);
        let frames = size.frames()[0];
        laboratory.expect(1);
        laboratory.step("four indexes")?;
        let rows = side_by_side(&APPROACHES, |approach| {
            let mut tree = FlashTree::new(*approach, size, frames)?;
            let before = tree.counted();
            tree.fill(size.records)?;
            tree.row(frames, size.records, before)
        })?;
        Ok(Rows(rows))
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, _: Device) -> std::result::Result<Judgement, Missing> {
        let mut judgement = Judgement::default();
        let count = |series: &str, what: &'static str| {
            let line = rows.line(series, |row: &Row<C>| row.count(what))?;
            Ok::<f64, Missing>(line[0].1)
        };
        for (key, ipl, dipl, len) in
            [("units", IPL, DIPL, NAMES[0]), ("units-512", IPL_SECTORS, DIPL_SECTORS, NAMES[1])]
        {
            let found = [count(ipl, SPLIT_UNITS)?, count(dipl, SPLIT_UNITS)?];
            let splits = [count(ipl, SPLITS)?, count(dipl, SPLITS)?];
            judgement.check(
                key,
                &format!(
                    "log units of {len} written because of splits: IPL at least 4 times as many as d-IPL"
                ),
                "as many as entries, against a few records",
                format!(
                    "{}: {} for {} splits, {} for {}",
                    number(found[0] / found[1]),
                    number(found[0]),
                    number(splits[0]),
                    number(found[1]),
                    number(splits[1])
                ),
                found[0] / found[1] >= 4.0,
            );
        }
        let lost = [IPL, IPL_SECTORS].map(|series| count(series, EVAPORATED));
        let lost = lost.into_iter().collect::<std::result::Result<Vec<_>, _>>()?;
        judgement.check(
            "ipl-evaporates",
            "IPL loses free pages below its logs",
            "some",
            format!("{} (512 B: {})", number(lost[0]), number(lost[1])),
            lost.iter().all(|pages| *pages > 0.0),
        );
        let lost = [DIPL, DIPL_SECTORS].map(|series| count(series, EVAPORATED));
        let lost = lost.into_iter().collect::<std::result::Result<Vec<_>, _>>()?;
        judgement.check(
            "dipl-does-not",
            "d-IPL loses none",
            "none",
            format!("{} (512 B: {})", number(lost[0]), number(lost[1])),
            lost.iter().all(|pages| *pages == 0.0),
        );
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        let mut lines = Vec::new();
        for (name, paired) in [("IPL", [IPL, IPL_SECTORS]), ("d-IPL", [DIPL, DIPL_SECTORS])] {
            let mut points = Vec::new();
            for (at, series) in paired.into_iter().enumerate() {
                let each = |row: &Row<C>| row.count(SPLIT_UNITS) / row.count(SPLITS);
                let place = rows.points(series).first().copied().unwrap_or(f64::NAN);
                points.push((at as f64, rows.spread(series, place, each)?));
            }
            lines.push(Line { name: name.to_owned(), paired: false, points });
        }
        Ok(Chart {
            title: CARD.title.into(),
            x: Axis { label: "log unit".into(), scale: Scaling::Names(NAMES) },
            y: Axis { label: "log units written for a split".into(), scale: Scaling::Even },
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
    fn the_published_shape_holds_and_others_do_not() {
        let judge = |units: f64, [ipl, dipl]: [f64; 2]| {
            let rows = [
                (IPL, units, ipl),
                (DIPL, 10.0, dipl),
                (IPL_SECTORS, 100.0, ipl),
                (DIPL_SECTORS, 10.0, dipl),
            ];
            let rows = rows.map(|(series, units, lost)| {
                let mut row: Row<Simulated> = row(series, 100.0, 0, 1.0);
                for (name, count) in [(SPLIT_UNITS, units), (SPLITS, 10.0), (EVAPORATED, lost)] {
                    row.counts.insert(name.to_owned(), count);
                }
                row
            });
            Study::judge(&LogOverflow, &Rows(rows.to_vec()), Device::Nand).unwrap()
        };
        assert_eq!(judge(40.0, [5.0, 0.0]).verdict(), Verdict::Holds);
        assert_eq!(judge(39.0, [5.0, 0.0]).outcome("units"), Some(Outcome::Fails));
        assert_eq!(judge(40.0, [0.0, 0.0]).outcome("ipl-evaporates"), Some(Outcome::Fails));
        assert_eq!(judge(40.0, [5.0, 1.0]).outcome("dipl-does-not"), Some(Outcome::Fails));
    }
}
