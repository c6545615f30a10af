//! E31: pages that each tree holds after 50,000 insertions (CB-tree, table 6).

use super::{Card, Cause, Device, Parameter, Scale, Study};
use crate::chart::{Axis, Chart, Line, Scaling, number};
use crate::failure::Result;
use crate::judgement::Judgement;
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Simulated, Wall};
use crate::raw_trees::{ENTRIES, LOG_PAGES, RATIOS, Rival, inserts, keys};
use crate::row::{Missing, Row, Rows};
use crate::tree_ground::TreeGround;
use trees::{BTree, BTreeOptions, CbPlacement, CbTree, CbTreeOptions, Index};

pub(super) struct LivePages;

static CARD: Card = Card {
    number: 31,
    name: "live-pages",
    title: "Pages of the tree after 50,000 insertions, by the share of random keys",
    source: "Kim, Kim, Lee, Applied Sciences 10(3), 2020, table 6",
    question: "A tree that divides a full leaf in halves leaves half-full leaves behind when keys come in order; one that does \
               not, or that has a log beside each leaf, has other numbers of pages. How many pages does each tree hold \
               when 50,000 records have come in order, half of them at random, and all of them at random? These are counts, \
               without any clock, and the most exact figures of the paper.",
    reported: "Pages at 0, 50, 100 %: wandering tree 794, 691, 563; d-IPL 1574, 1720, 1834; µ*-tree 1665, 2054, 2219; LSB-tree \
               400, 469, 563; CB-tree 398, 493, 566.",
    absent: &[],
    causes: &CAUSES,
};

static CAUSES: [Cause; 2] = [
    Cause {
        device: Device::Nand,
        key: "dipl-rises",
        text: "d-IPL's pages are those of its blocks, which are divided in halves as its nodes are: they follow the wandering tree's (2.10, 2.07 \
               and 1.92 times as many), which fall, since keys in sequence leave halves behind. What rises with random keys are log pages: \
               29, 106, 254, and 32, 131, 192 if each log unit is a page; but nodes fall by as much, so that counting without free pages, \
               which could have explained it, gives 823, 786, 821. The paper's pages less its wandering tree's are 780, 1029, 1271: a log page for \
               each leaf in order, 1.5 and 2.3 at random, as a tree would have that gives each leaf a log of its own. That is inferred: d-IPL's \
               paper has no such tree, and none was run",
    },
    Cause {
        device: Device::Nand,
        key: "mu-star",
        text: "leaves halved in order hold 32 of 64 records: 50,000 / 32 = 1562 pages of the µ-tree (we count 1561), and fewer in the \
           µ*-tree, whose leaves are larger. At random leaves become two thirds full, so that pages must fall with the share of random \
           keys, as the wandering tree's do; the paper's µ*-tree rises to 2219 pages, which is 22 records a page. It counts something \
           else than live pages, and does not say what",
    },
];

const BTREE: &str = "B+-tree";
const RIVALS: [Rival; 6] = [Rival::Wandering, Rival::Dipl, Rival::MuStar, Rival::Mu, Rival::Lsb, Rival::Cb];
/// The paper's pages, by ratio.
const PAPER: [(Rival, [f64; 3]); 5] = [
    (Rival::Wandering, [794.0, 691.0, 563.0]),
    (Rival::Dipl, [1574.0, 1720.0, 1834.0]),
    (Rival::MuStar, [1665.0, 2054.0, 2219.0]),
    (Rival::Lsb, [400.0, 469.0, 563.0]),
    (Rival::Cb, [398.0, 493.0, 566.0]),
];

fn paper(rival: Rival) -> [f64; 3] {
    PAPER.iter().find(|row| row.0 == rival).map_or([f64::NAN; 3], |row| row.1)
}

/// The CB-tree and the B+-tree on a block device: nodes, whatever lies below.
fn on_blocks<C: Clock>(
    laboratory: &Laboratory,
    mut ground: impl FnMut(u32) -> Result<TreeGround<C>>,
) -> Result<Rows<C>> {
    let count = inserts(laboratory.scale);
    laboratory.expect(2 * RATIOS.len() * C::RUNS as usize);
    let mut rows = Vec::new();
    for run in 0..C::RUNS {
        for ratio in RATIOS {
            let keys = keys(ratio, run, count);
            let place = ground(run)?;
            let options = CbTreeOptions { placement: CbPlacement::InPlace, ..CbTreeOptions::default() };
            let mut cb = CbTree::create(place.volume.clone(), &options)?;
            rows.push(grown(laboratory, &place, &mut cb, Rival::Cb.name(), (ratio, run), &keys)?);
            let options = BTreeOptions { keys_max: Some(ENTRIES), frames: 1000, ..BTreeOptions::default() };
            let mut btree = BTree::create(place.volume.clone(), &options)?;
            rows.push(grown(laboratory, &place, &mut btree, BTREE, (ratio, run), &keys)?);
        }
    }
    Ok(Rows(rows))
}

fn grown<C: Clock>(
    laboratory: &Laboratory,
    place: &TreeGround<C>,
    tree: &mut impl Index,
    series: &str,
    (ratio, run): (u64, u32),
    keys: &[u64],
) -> Result<Row<C>> {
    laboratory.step(&format!("{series}, {ratio} % random"))?;
    let mut row = place.row(series, ratio as f64, run, keys.len() as u64, || {
        (0..).zip(keys).try_for_each(|(value, key)| tree.insert(*key, value))?;
        Ok(tree.flush()?)
    })?;
    let checked = tree.check()?;
    row.counts.insert("pages".to_owned(), (checked.leaves + checked.inner) as f64);
    Ok(row)
}

impl Study for LivePages {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn parameters(&self, scale: Scale, device: Device) -> Vec<Parameter> {
        let mut all = vec![
            Parameter::new("insertions", "50,000", inserts(scale).to_string()),
            Parameter::new("entries of a node", "128", ENTRIES.to_string()),
            Parameter::new(
                "50 % random",
                "not told",
                "half at random, then half ascending above them: the one of eleven readings that gives the paper's figures",
            ),
            Parameter::new(
                "split",
                "not told",
                "halves of 64, then the insertion: the paper's 794 and 398 follow from it",
            ),
            Parameter::new(
                "sequence",
                "continuous key values",
                "all keys of the leaf consecutive, and the new one next",
            ),
        ];
        if device == Device::Nand {
            all.push(Parameter::new("pages of d-IPL", "not told", "all pages of its blocks, of 64"));
            all.push(Parameter::new("a µ page", "not told", "128 entries, all levels together"));
        }
        all
    }

    fn on_nand(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        let count = inserts(laboratory.scale);
        laboratory.expect((RIVALS.len() + 2) * (1 + 2 * Simulated::RUNS as usize));
        let mut rows = Vec::new();
        for run in 0..Simulated::RUNS {
            // Ascending keys are the same in every run.
            for ratio in RATIOS.into_iter().filter(|ratio| *ratio > 0 || run == 0) {
                let keys = keys(ratio, run, count);
                for rival in RIVALS.into_iter().chain([Rival::Dipl16, Rival::DiplWhole]) {
                    laboratory.step(&format!("{}, {ratio} % random", rival.name()))?;
                    rows.push(rival.plant(run)?.grow(rival.name(), ratio as f64, run, &keys)?);
                }
            }
        }
        Ok(Rows(rows))
    }

    fn on_ssdsim(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        on_blocks(laboratory, TreeGround::on_ssdsim)
    }

    fn on_disk(&self, laboratory: &Laboratory) -> Result<Rows<Wall>> {
        on_blocks(laboratory, |_| laboratory.trees_on_disk())
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, device: Device) -> std::result::Result<Judgement, Missing> {
        let pages = |rival: Rival| -> std::result::Result<[f64; 3], Missing> {
            let at = |ratio| rows.median(rival.name(), ratio, |row| row.count("pages"));
            Ok([at(0.0)?, at(50.0)?, at(100.0)?])
        };
        let told = |pages: [f64; 3]| pages.map(number).join(", ");
        let mut judgement = Judgement::default();
        let cb = pages(Rival::Cb)?;
        let near = |found: f64, wanted: f64, by: f64| (found - wanted).abs() <= by;
        judgement.check(
            "cb-0",
            "CB-tree at 0 %: 398 pages, 2 more or less",
            "398",
            number(cb[0]),
            near(cb[0], 398.0, 2.0),
        );
        judgement.check(
            "cb-rises",
            "CB-tree: more pages with more random keys",
            "398, 493, 566",
            told(cb),
            cb.is_sorted_by(|one, two| one < two),
        );
        if device != Device::Nand {
            let at = |ratio| rows.median(BTREE, ratio, |row| row.count("pages"));
            let btree = [at(0.0)?, at(50.0)?, at(100.0)?];
            judgement.report("btree", "B+-tree, its full nodes divided with the new entry", "-", told(btree));
            judgement.not_applicable(
                "rivals",
                "pages of the wandering, d-IPL, µ*- and LSB-tree",
                "see the nand record",
                "they manage raw flash".to_owned(),
            );
            return Ok(judgement);
        }
        let wandering = pages(Rival::Wandering)?;
        let (dipl, mu, lsb) = (pages(Rival::Dipl)?, pages(Rival::MuStar)?, pages(Rival::Lsb)?);
        if rows.series().contains(&Rival::Dipl16.name()) {
            judgement.report(
                "dipl-16",
                "d-IPL with blocks of 16 pages: pages at 0, 50, 100 %",
                "1574, 1720, 1834 (blocks not told)",
                pages(Rival::Dipl16)?.map(number).join(", "),
            );
        }
        for (key, rival, what) in [
            ("dipl-written", Rival::Dipl, "d-IPL"),
            ("dipl-whole", Rival::DiplWhole, "d-IPL with log units of a page"),
        ] {
            let has_logs = |row: &Row<C>| row.series == rival.name() && row.counts.contains_key(LOG_PAGES);
            if !rows.0.iter().any(has_logs) {
                continue;
            }
            let count =
                |at: f64, name: &'static str| rows.median(rival.name(), at, move |row| row.count(name));
            let each = [0.0, 50.0, 100.0].map(|at| {
                let (nodes, logs) = (count(at, "nodes")?, count(at, LOG_PAGES)?);
                Ok(format!("{} and {}: {}", number(nodes), number(logs), number(nodes + logs)))
            });
            let each = each.into_iter().collect::<std::result::Result<Vec<_>, Missing>>()?;
            judgement.report(
                key,
                &format!("{what}, without free pages: nodes, and log pages that hold something; both; and all pages of its blocks"),
                &told(paper(Rival::Dipl)),
                format!("{}; {}", each.join(", "), told(pages(rival)?)),
            );
        }
        judgement.check(
            "wandering-0",
            "wandering tree at 0 %: 794 pages, 2 more or less",
            "794",
            number(wandering[0]),
            near(wandering[0], 794.0, 2.0),
        );
        judgement.check(
            "lsb-0",
            "LSB-tree at 0 %: 400 pages, within 2 %",
            "400",
            number(lsb[0]),
            near(lsb[0], 400.0, 8.0),
        );
        judgement.check(
            "difference-50",
            "at 50 % the wandering tree has 198 pages more than the CB-tree, 6 more or less",
            "198",
            number(wandering[1] - cb[1]),
            near(wandering[1] - cb[1], 198.0, 6.0),
        );
        judgement.check(
            "wandering-50",
            "wandering tree at 50 %: 665 to 710 pages",
            "691",
            number(wandering[1]),
            (665.0..=710.0).contains(&wandering[1]),
        );
        for (key, rival, found) in [
            ("wandering-100", Rival::Wandering, wandering),
            ("lsb-100", Rival::Lsb, lsb),
            ("cb-100", Rival::Cb, cb),
        ] {
            judgement.check(
                key,
                &format!("{} at 100 %: 540 to 590 pages", rival.name()),
                &number(paper(rival)[2]),
                number(found[2]),
                (540.0..=590.0).contains(&found[2]),
            );
        }
        judgement.check(
            "difference-100",
            "at 100 % wandering tree and CB-tree differ by 8 pages at most",
            "3",
            number(cb[2] - wandering[2]),
            near(cb[2], wandering[2], 8.0),
        );
        judgement.check(
            "wandering-falls",
            "wandering tree: fewer pages with more random keys",
            "794, 691, 563",
            told(wandering),
            wandering.is_sorted_by(|one, two| one > two),
        );
        for (key, rival, found, factor) in
            [("mu-star", Rival::MuStar, mu, 2.0), ("dipl", Rival::Dipl, dipl, 1.9)]
        {
            let ratios = [0, 1, 2].map(|index| found[index] / wandering[index]);
            judgement.check(
                key,
                &format!(
                    "{}: more than {factor} times the wandering tree's pages at every ratio",
                    rival.name()
                ),
                &told(paper(rival)),
                format!("{}: {} times", told(found), ratios.map(|ratio| format!("{ratio:.2}")).join(", ")),
                ratios.iter().all(|ratio| *ratio > factor),
            );
        }
        for (key, rival, found) in [
            ("dipl-rises", Rival::Dipl, dipl),
            ("mu-star-rises", Rival::MuStar, mu),
            ("lsb-rises", Rival::Lsb, lsb),
        ] {
            judgement.check(
                key,
                &format!("{}: more pages with more random keys", rival.name()),
                &told(paper(rival)),
                told(found),
                found.is_sorted_by(|one, two| one < two),
            );
        }
        judgement.report("mu", "µ-tree", "-", told(pages(Rival::Mu)?));
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        let mut lines = Line::all(rows, 1.0, |row| row.count("pages"))?;
        for line in &mut lines {
            line.points.iter_mut().for_each(|point| point.0 /= 50.0);
        }
        Ok(Chart {
            title: CARD.title.into(),
            x: Axis { label: "random keys".into(), scale: Scaling::Names(&["0 %", "50 %", "100 %"]) },
            y: Axis { label: "pages".into(), scale: Scaling::Even },
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

    fn rows(change: impl Fn(Rival, usize, f64) -> f64) -> Rows<Simulated> {
        let mut rows = Vec::new();
        for (rival, pages) in PAPER.into_iter().chain([(Rival::Mu, [1.0; 3])]) {
            for (index, pages) in pages.into_iter().enumerate() {
                let mut row = row(rival.name(), RATIOS[index] as f64, 0, 1.0);
                row.counts.insert("pages".into(), change(rival, index, pages));
                rows.push(row);
            }
        }
        Rows(rows)
    }

    #[test]
    fn the_published_table_holds_and_others_do_not() {
        let judge = |rows: &Rows<Simulated>| Study::judge(&LivePages, rows, Device::Nand).unwrap();
        let published = judge(&rows(|_, _, pages| pages));
        let failed: Vec<_> =
            published.checks.iter().filter(|check| check.outcome == Outcome::Fails).collect();
        assert!(failed.is_empty() && published.verdict() == Verdict::Holds, "{failed:?}");
        let fails = |rival: Rival, at: usize, pages: f64, key: &str| {
            let changed = rows(|other, index, old| if (other, index) == (rival, at) { pages } else { old });
            assert_eq!(judge(&changed).outcome(key), Some(Outcome::Fails), "{key}");
        };
        fails(Rival::Cb, 0, 401.0, "cb-0");
        fails(Rival::Cb, 1, 570.0, "cb-rises");
        fails(Rival::Wandering, 0, 791.0, "wandering-0");
        fails(Rival::Lsb, 0, 409.0, "lsb-0");
        fails(Rival::Cb, 1, 500.0, "difference-50");
        fails(Rival::Wandering, 1, 711.0, "wandering-50");
        fails(Rival::Lsb, 2, 591.0, "lsb-100");
        fails(Rival::Cb, 2, 572.0, "difference-100");
        fails(Rival::Wandering, 2, 700.0, "wandering-falls");
        fails(Rival::MuStar, 2, 1100.0, "mu-star");
        fails(Rival::Dipl, 0, 1500.0, "dipl");
    }

    #[test]
    fn a_block_device_shows_the_cb_tree_alone() {
        let mut all = rows(|_, _, pages| pages);
        for ratio in RATIOS {
            let mut row = row(BTREE, ratio as f64, 0, 1.0);
            row.counts.insert("pages".into(), 781.0);
            all.0.push(row);
        }
        let judged = Study::judge(&LivePages, &all, Device::Ssdsim).unwrap();
        assert_eq!((judged.checks.len(), judged.verdict()), (4, Verdict::Holds));
    }
}
