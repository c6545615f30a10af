//! What E23 and E24 have in common: a change after as many insertions, which must cost what those cost, and leave the trees
//! in the same order.

use super::Device;
use crate::as_suite::{AS, Act, BFTL, IN_PLACE, NAMES, WRITE_BUFFERS, as_foretold, claim, series};
use crate::judgement::Judgement;
use crate::quantity::{Clock, Quantity};
use crate::row::{Missing, Row, Rows};
use crate::wording::times;

/// One of the two.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figure {
    pub act: Act,
    /// How many times as long BFTL takes, as published.
    pub bftl: &'static str,
}

/// Insertions first, to compare with.
pub(super) fn acts(figure: Figure) -> [Act; 2] {
    [Act::Insert, figure.act]
}

pub(super) fn judge_alike<C: Clock>(
    rows: &Rows<C>,
    device: Device,
    figure: Figure,
) -> Result<Judgement, Missing> {
    let mut judgement = Judgement::default();
    let (inserts, changes) = (series("", Act::Insert, 256), series("", figure.act, 256));
    let order = |series: &str| -> Result<Vec<(f64, f64)>, Missing> {
        let time = |at| Ok((at, rows.median(series, at, Row::latency)?.number()));
        let mut trees = [AS, IN_PLACE, BFTL].map(time).into_iter().collect::<Result<Vec<_>, Missing>>()?;
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
    for at in [IN_PLACE, BFTL].into_iter().chain(WRITE_BUFFERS.map(|(at, _)| at)) {
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
    judgement.report(
        "in-place",
        "the AS B-tree's time by the B+-tree's",
        "0.79",
        format!("{:.2}", time(AS)?.over(time(IN_PLACE)?)),
    );
    judgement.report(
        "bftl",
        "BFTL's time by the AS B-tree's",
        figure.bftl,
        format!("{:.2}", time(BFTL)?.over(time(AS)?)),
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
            judge_alike(&Rows(rows), Device::Ssdsim, Figure { act: Act::Update, bftl: "" }).unwrap()
        };
        assert_eq!(judge(inserts.map(|time| time * 0.9)).verdict(), Verdict::Holds);
        let mut swapped = inserts;
        (swapped[0], swapped[1]) = (1400.0, 800.0);
        let judged = judge(swapped);
        assert_eq!(judged.outcome("order"), Some(Outcome::Fails));
        assert_eq!(judged.outcome("insert, BFTL"), Some(Outcome::Fails));
        assert_eq!(judged.outcome("insert, AS, WB 32"), Some(Outcome::Holds));
    }
}
