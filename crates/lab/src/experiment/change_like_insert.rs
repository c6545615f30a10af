//! E23 and E24, by what is done: a change after as many insertions, which must cost what those cost, and leave the trees in
//! the same order.

use super::e22_search::fanouts;
use super::{Card, Device, Parameter, Scale, Study};
use crate::as_suite::{
    self, AS, Act, BFTL, BFTL_LONG, IN_PLACE, NAMES, Published, Recipe, WRITE_BUFFERS, as_foretold, claim,
    claim_band, series,
};
use crate::chart::{Chart, number};
use crate::failure::Result;
use crate::judgement::Judgement;
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Quantity, Simulated, Wall};
use crate::row::{Missing, Row, Rows};
use crate::tree_ground::TreeGround;
use crate::wording::times;

/// One of the two.
pub(super) struct ChangeLikeInsert {
    pub card: &'static Card,
    pub act: Act,
    /// How many times as long BFTL takes, as published.
    pub bftl: OfBftl,
}

/// BFTL's time by the AS B-tree's, as the paper's per cent can be read: as speed, or as less time.
pub(super) struct OfBftl {
    pub least: f64,
    pub most: f64,
    pub told: &'static str,
}

/// The B+-tree's time by the AS B-tree's: "21 % better", as faster or as less time.
const IN_PLACE_BAND: std::ops::RangeInclusive<f64> = 1.21..=1.28;

impl ChangeLikeInsert {
    fn measure<C: Clock>(
        &self,
        laboratory: &Laboratory,
        device: Device,
        ground: impl FnMut(u32) -> Result<TreeGround<C>>,
    ) -> Result<Rows<C>> {
        let recipes = Recipe::grid(fanouts(laboratory.scale, device));
        // Insertions first, to compare with.
        let acts = [Act::Insert, self.act];
        as_suite::measure(laboratory, device, ("", true), &recipes, &acts, ground)
    }
}

impl Study for ChangeLikeInsert {
    fn card(&self) -> &'static Card {
        self.card
    }

    fn parameters(&self, scale: Scale, device: Device) -> Vec<Parameter> {
        as_suite::parameters(scale, device, fanouts(scale, device))
    }

    fn on_disk(&self, laboratory: &Laboratory) -> Result<Rows<Wall>> {
        self.measure(laboratory, Device::Disk, |_| laboratory.trees_on_disk())
    }

    fn on_ssdsim(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        let mut rows = self.measure(laboratory, Device::Ssdsim, TreeGround::on_ssdsim)?;
        rows.0.extend(as_suite::measure_on_x25_e(laboratory, &[Act::Insert, self.act], &as_suite::X25_E)?.0);
        Ok(rows)
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, device: Device) -> std::result::Result<Judgement, Missing> {
        let mut judgement = judge_alike(rows, device, (self.act, &self.bftl))?;
        let published =
            Published { act: self.act, in_place: IN_PLACE_BAND, bftl: self.bftl.least..=self.bftl.most };
        as_suite::judge_on_x25_e(&mut judgement, rows, &published)?;
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        as_suite::draw(rows, self.card.title, self.act.name())
    }
}

fn judge_alike<C: Clock>(
    rows: &Rows<C>,
    device: Device,
    (act, bftl): (Act, &OfBftl),
) -> std::result::Result<Judgement, Missing> {
    let mut judgement = Judgement::default();
    let (inserts, changes) = (series("", Act::Insert, 256), series("", act, 256));
    let order = |series: &str| -> std::result::Result<Vec<(f64, f64)>, Missing> {
        let time = |at| Ok((at, rows.median(series, at, Row::latency)?.number()));
        let mut trees = [AS, IN_PLACE, BFTL_LONG]
            .map(time)
            .into_iter()
            .collect::<std::result::Result<Vec<_>, Missing>>()?;
        trees.sort_by(|one, two| one.1.total_cmp(&two.1));
        Ok(trees)
    };
    let told = |trees: &[(f64, f64)]| {
        trees.iter().map(|(at, _)| NAMES[*at as usize]).collect::<Vec<_>>().join(", then ")
    };
    let (by_insert, by_change) = (order(&inserts)?, order(&changes)?);
    claim(
        &mut judgement,
        device,
        ("order", "the trees are in the order in which insertion leaves them, fastest first", "the same"),
        format!("{} and {}", told(&by_insert), told(&by_change)),
        by_insert.iter().zip(&by_change).all(|(one, two)| one.0 == two.0),
    );
    for at in [IN_PLACE, BFTL_LONG].into_iter().chain(WRITE_BUFFERS.map(|(at, _)| at)) {
        let (insert, change) =
            (rows.median(&inserts, at, Row::latency)?, rows.median(&changes, at, Row::latency)?);
        let name = NAMES[at as usize];
        claim(
            &mut judgement,
            device,
            (
                &format!("insert, {name}"),
                &format!("{name}: an operation takes what an insertion takes, within 25 %"),
                "nearly the same",
            ),
            times(change.over(insert)),
            (change.over(insert) - 1.0).abs() <= 0.25,
        );
    }
    let time = |at| rows.median(&changes, at, Row::latency);
    judgement.check(
        "rank",
        "the AS B-tree takes less time than the B+-tree, and that less than BFTL (C = 3, taken literally)",
        "in this order",
        format!(
            "{}, {} and {} us",
            number(time(AS)?.number()),
            number(time(IN_PLACE)?.number()),
            number(time(BFTL_LONG)?.number())
        ),
        time(AS)? < time(IN_PLACE)? && time(IN_PLACE)? < time(BFTL_LONG)?,
    );
    judgement.report(
        "lists-of-2",
        "a BFTL that compacts lists of 3: its time by what an insertion takes it, and by the AS B-tree's time",
        "not told",
        format!(
            "{}, {}",
            times(time(BFTL)?.over(rows.median(&inserts, BFTL, Row::latency)?)),
            times(time(BFTL)?.over(time(AS)?))
        ),
    );
    claim_band(
        &mut judgement,
        device,
        ("in-place", "the B+-tree's time by the AS B-tree's (\"21 % better\", as speed or as less time)"),
        time(IN_PLACE)?.over(time(AS)?),
        IN_PLACE_BAND,
    );
    claim_band(
        &mut judgement,
        device,
        (
            "bftl",
            &format!(
                "BFTL's time (C = 3, taken literally) by the AS B-tree's ({}, as speed or as less time)",
                bftl.told
            ),
        ),
        time(BFTL_LONG)?.over(time(AS)?),
        bftl.least..=bftl.most,
    );
    as_foretold(&mut judgement, rows, &changes)?;
    Ok(judgement)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::as_suite::tests::figure;
    use crate::judgement::{Outcome, Verdict};
    use crate::quantity::Simulated;

    #[test]
    fn the_published_shape_holds_and_others_do_not() {
        let inserts = [780.0, 1420.0, 700.0, 640.0, 620.0, 610.0];
        let judge = |changes| {
            let mut rows = figure::<Simulated>(&series("", Act::Insert, 256), inserts);
            rows.extend(figure(&series("", Act::Update, 256), changes));
            let bftl = OfBftl { least: 1.57, most: 2.33, told: "" };
            judge_alike(&Rows(rows), Device::Ssdsim, (Act::Update, &bftl)).unwrap()
        };
        assert_eq!(judge(inserts.map(|time| time * 0.9)).verdict(), Verdict::Holds);
        let mut swapped = inserts;
        (swapped[0], swapped[1]) = (1400.0, 800.0);
        let judged = judge(swapped);
        assert_eq!(judged.outcome("order"), Some(Outcome::Fails));
        assert_eq!(judged.outcome("insert, BFTL, 3 long"), Some(Outcome::Fails));
        assert_eq!(judged.outcome("insert, AS, WB 32"), Some(Outcome::Holds));
        let fails = |which: usize, time, key| {
            let mut changed = inserts;
            changed[which] = time;
            assert_eq!(judge(changed).outcome(key), Some(Outcome::Fails), "{key}");
        };
        fails(0, 730.0, "in-place");
        fails(1, 950.0, "bftl");
    }
}
