//! E31: pages that each tree holds after 50,000 insertions (CB-tree, table 6).

use super::{Card, Cause, Device, Parameter, Scale, Study};
use crate::chart::{Axis, Chart, Line, Scaling, number};
use crate::failure::Result;
use crate::judgement::Judgement;
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Lapse, Simulated, Wall};
use crate::raw_trees::{ENTRIES, LOG_PAGES, RATIOS, Rival, inserts, keys};
use crate::row::{Missing, Row, Rows};
use crate::tree_ground::TreeGround;
use std::collections::BTreeMap;
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
        scale: None,
        key: "dipl",
        text: "d-IPL's pages are those of its blocks, which are divided in halves as its nodes are: they follow the wandering tree's (2.10, 2.07 \
               and 1.92 times as many), which fall, since keys in sequence leave halves behind. In order that is 6 % more than published; with blocks of 16 \
               pages, which differ in nothing else, 1584. What rises with random keys are log pages: \
               29, 106, 254, and 32, 131, 192 if each log unit is a page; but nodes fall by as much, so that counting without free pages, \
               which could have explained it, gives 823, 786, 821, and updates that wait in memory 807, 763, 819. The paper's figures are near what a count gives that \
               takes no page back: if each leaf has a log of its own, a page for 32 insertions, 1563, 1712 and 1860 log pages are begun, within 2 %; \
               with 64 to a page, and the nodes, 1576, 1624 and 1671. That the paper counts pages that were ever allocated (it says \"allocated\") fits; it is the \
               best of six such counts that were tried, and no proof",
    },
    Cause {
        device: Device::Nand,
        scale: None,
        key: "mu-star",
        text: "leaves halved in order hold 32 of 64 records: 50,000 / 32 = 1562 pages of the µ-tree (we count 1561), and fewer in the \
           µ*-tree, whose leaves are larger. At random leaves become two thirds full, so that pages must fall with the share of random \
           keys, as the wandering tree's do; the paper's µ*-tree rises to 2219 pages, which is 22 records a page. Nodes in the place of pages, which could have \
           explained it, are 1669, 1429, 1173 in the µ-tree and 1538, 1300, 1120 in the µ*-tree: they fall as well. What rises as in the paper is a count that \
           takes no page back: leaves of 64 entries that begin a page whenever they have been divided make 1563, 1885 and 2219, the µ-tree's inner nodes \
           108, 82, 54 more; at 50 % it is 4 to 8 % too few. So the paper seems to count pages that were ever allocated, not live ones",
    },
];

const BTREE: &str = "B+-tree";
/// Pages that leaves begin, counted without a tree; no line of the chart. A leaf of so many entries is divided in halves, and a
/// page takes so many insertions.
const BEGUN: [(&str, usize, usize); 3] = [
    ("by count: pages of 64 insertions into leaves of 128", 128, 64),
    ("by count: pages of 32 insertions into leaves of 128", 128, 32),
    ("by count: pages of 32 insertions into leaves of 64", 64, 32),
];
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

/// Pages that are begun, if each leaf writes what is inserted into it to pages of its own, `page` insertions to each, and begins
/// a new one when it has been divided in halves: none is taken back.
fn begun(keys: &[u64], (leaf, page): (usize, usize)) -> u64 {
    let pages = |inserted: usize| inserted.div_ceil(page) as u64;
    // By lowest key: the leaf's keys in order, and how many were inserted into it since it is there.
    let mut leaves: BTreeMap<u64, (Vec<u64>, usize)> = BTreeMap::from([(0, (Vec::new(), 0))]);
    let mut before = 0;
    for key in keys {
        let Some((_, (entries, inserted))) = leaves.range_mut(..=*key).next_back() else { continue };
        let Err(at) = entries.binary_search(key) else { continue };
        if entries.len() < leaf {
            entries.insert(at, *key);
            *inserted += 1;
            continue;
        }
        before += pages(*inserted);
        let mut right = entries.split_off(leaf / 2);
        let low = right[0];
        let goes_right = *key >= low;
        if goes_right {
            right.insert(at - leaf / 2, *key);
        } else {
            entries.insert(at, *key);
        }
        *inserted = usize::from(!goes_right);
        leaves.insert(low, (right, usize::from(goes_right)));
    }
    before + leaves.values().map(|(_, inserted)| pages(*inserted)).sum::<u64>()
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

/// What the paper may have counted in the place of live pages.
fn judge_begun<C: Clock>(
    rows: &Rows<C>,
    wandering: [f64; 3],
    judgement: &mut Judgement,
) -> std::result::Result<(), Missing> {
    let of = |series: &str, what: &'static str| -> std::result::Result<[f64; 3], Missing> {
        let at = |ratio| rows.median(series, ratio, move |row| row.count(what));
        Ok([at(0.0)?, at(50.0)?, at(100.0)?])
    };
    let told = |pages: [f64; 3]| pages.map(number).join(", ");
    let both = |one: [f64; 3], two: [f64; 3]| [0, 1, 2].map(|index| one[index] + two[index]);
    let nodes = |rival: Rival| of(rival.name(), "nodes");
    let (mu, star) = (nodes(Rival::Mu)?, nodes(Rival::MuStar)?);
    judgement.report(
        "mu-nodes",
        "µ-tree; µ*-tree: nodes, as if each had a page",
        &told(paper(Rival::MuStar)),
        format!("{}; {}", told(mu), told(star)),
    );
    let leaves = of(Rival::Mu.name(), "pages")?;
    let inner = [0, 1, 2].map(|index| mu[index] - leaves[index]);
    let [halves, quarters, small] = BEGUN.map(|(series, ..)| of(series, "pages"));
    let (halves, quarters, small) = (halves?, quarters?, small?);
    judgement.report(
        "mu-begun",
        "leaves of 64 entries, a page for the 32 insertions before one is divided, none taken back, and the µ-tree's inner nodes",
        &told(paper(Rival::MuStar)),
        format!("{} and {}: {}", told(small), told(inner), told(both(small, inner))),
    );
    judgement.report(
        "dipl-begun",
        "the wandering tree's pages, and for each leaf a log page for 64 insertions, none taken back; log pages for 32 alone",
        &told(paper(Rival::Dipl)),
        format!("{} and {}: {}; {}", told(wandering), told(halves), told(both(wandering, halves)), told(quarters)),
    );
    Ok(())
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
            all.push(Parameter::new(
                "pages of d-IPL",
                "not told",
                "all pages of its blocks, of 64; the tree of CIKM 2009 (the paper cites the authors' TKDE 2012, which is not at hand)",
            ));
            all.push(Parameter::new("a µ page", "not told", "128 entries, all levels together"));
        }
        all
    }

    fn on_nand(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        let count = inserts(laboratory.scale);
        laboratory.expect((RIVALS.len() + 3) * (1 + 2 * Simulated::RUNS as usize));
        let mut rows = Vec::new();
        for run in 0..Simulated::RUNS {
            // Ascending keys are the same in every run.
            for ratio in RATIOS.into_iter().filter(|ratio| *ratio > 0 || run == 0) {
                let keys = keys(ratio, run, count);
                for rival in RIVALS.into_iter().chain([Rival::Dipl16, Rival::DiplWhole, Rival::DiplRules]) {
                    laboratory.step(&format!("{}, {ratio} % random", rival.name()))?;
                    let mut tree = rival.plant(run)?;
                    let mut row = tree.grow(rival.name(), ratio as f64, run, &keys)?;
                    if matches!(rival, Rival::Mu | Rival::MuStar) {
                        let checked = tree.index().check()?;
                        row.counts.insert("nodes".to_owned(), (checked.leaves + checked.inner) as f64);
                    }
                    rows.push(row);
                }
                rows.extend(BEGUN.map(|(series, leaf, page)| Row {
                    series: series.to_owned(),
                    at: ratio as f64,
                    run,
                    requests: count,
                    bytes: 0,
                    elapsed_us: Lapse::micros(0.0),
                    counts: BTreeMap::from([("pages".to_owned(), begun(&keys, (leaf, page)) as f64)]),
                }));
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
            ("dipl-rules", Rival::DiplRules, "d-IPL whose updates wait in memory"),
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
        for (key, rival, found) in [("mu-star", Rival::MuStar, mu), ("dipl", Rival::Dipl, dipl)] {
            for (index, ratio) in RATIOS.into_iter().enumerate() {
                let published = paper(rival)[index];
                let near = (0.95 * published).ceil()..=(1.05 * published).floor();
                judgement.figure(
                    (
                        &format!("{key}-{ratio}"),
                        &format!("{} at {ratio} %: pages, 5 % more or less", rival.name()),
                        &number(published),
                    ),
                    format!(
                        "{}, {:.2} times the wandering tree's",
                        number(found[index]),
                        found[index] / wandering[index]
                    ),
                    [found[index]],
                    near,
                );
            }
        }
        judgement.check(
            "lsb-50",
            "LSB-tree at 50 %: 469 pages, within 5 %",
            "469",
            number(lsb[1]),
            near(lsb[1], 469.0, 23.0),
        );
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
        if rows.series().contains(&BEGUN[0].0) {
            judge_begun(rows, wandering, &mut judgement)?;
        }
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        let mut lines = Line::all(rows, 1.0, |row| row.count("pages"))?;
        lines.retain(|line| BEGUN.iter().all(|(series, ..)| line.name != *series));
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
        fails(Rival::MuStar, 2, 2100.0, "mu-star-100");
        fails(Rival::MuStar, 1, 2200.0, "mu-star-50");
        fails(Rival::Dipl, 0, 1490.0, "dipl-0");
        fails(Rival::Dipl, 2, 1088.0, "dipl-100");
        fails(Rival::Lsb, 1, 500.0, "lsb-50");
    }

    #[test]
    fn leaves_begin_pages_for_what_is_inserted_into_them() {
        let ascending = |count: u64, sizes| begun(&(0..count).collect::<Vec<_>>(), sizes);
        // The first leaf takes 128 before it is divided, each other one 64.
        assert_eq!([1, 128, 129, 193].map(|count| ascending(count, (128, 64))), [1, 2, 3, 4]);
        assert_eq!([1, 128, 129, 193].map(|count| ascending(count, (128, 32))), [1, 4, 5, 7]);
        assert_eq!(begun(&[5, 5, 5], (128, 64)), 1, "a key that is there is not inserted");
        // Into the left half of a divided leaf: both have a page.
        let keys: Vec<u64> = (0..129).map(|key| 2 * key).chain([1]).collect();
        assert_eq!(begun(&keys, (128, 64)), 4);
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
