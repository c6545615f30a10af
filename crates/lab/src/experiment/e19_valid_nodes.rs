//! E19: valid nodes of each sub-file (AS B-tree, figures 7 and 8).

use super::{Card, Device, Parameter, Scale, Study};
use crate::as_growth::{Proportion, random};
use crate::chart::{Axis, Chart, Line, Scaling, number};
use crate::failure::Result;
use crate::judgement::Judgement;
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Simulated, Wall};
use crate::row::{Missing, Row, Rows};
use crate::statistics::{median, spearman};
use crate::tree_ground::TreeGround;
use trees::{AsTree, AsTreeOptions};

pub(super) struct ValidNodes;

static CARD: Card = Card {
    number: 19,
    name: "as-valid-nodes",
    title: "Valid nodes by sub-file",
    source: "AS B-tree, Journal of Information Science and Engineering 30, 2014, figures 7 and 8",
    question: "An AS B-tree writes every changed node to its end, and the copy before is worth nothing. How much of a file is still \
               valid when newer ones have been written? If old files are nearly empty, to recycle them costs little.",
    reported: "After 100,000 and 500,000 insertions of uniform keys, most valid nodes are in the newest files; of ten files shown \
               (25 to 34) the older half has few. (500,000 insertions that write 8 KB each fill 61 files of 64 MB, 100,000 fill 12: neither \
               ends with file 34.)",
    absent: &[(
        Device::Nand,
        "the paper's sub-files are a file system's; how blocks lose their valid pages shows E9",
    )],
    causes: &[],
};

/// Files shown, as published.
const SHOWN: u32 = 10;
/// Insertions, as published, and what they are called.
const AFTER: [(u64, &str); 2] =
    [(100_000, "after 100,000 insertions"), (500_000, "after 500,000 insertions")];

fn measure<C: Clock>(
    laboratory: &Laboratory,
    device: Device,
    mut ground: impl FnMut(u32) -> Result<TreeGround<C>>,
) -> Result<Rows<C>> {
    let size = Proportion::of(laboratory.scale, device);
    laboratory.expect(AFTER.len());
    let (run, place) = (0, ground(0)?);
    // Only files without any valid node go: nothing is copied, and what is gone is known to have been empty.
    let options = AsTreeOptions { threshold: 1e-9, ..size.options() };
    let nodes_max = size.sub_file_len() / options.node_len as u64;
    let mut tree: AsTree = size.build(&place, &options)?;
    let (mut rng, mut done) = (random(run), 0);
    let mut rows = Vec::new();
    for (after, name) in AFTER {
        laboratory.step(name)?;
        let count = after / size.0 - done;
        let inserted = place.row(name, 0.0, run, count, || size.insert(&mut tree, &mut rng, count))?;
        done += count;
        let details = tree.details();
        debug_assert_eq!(details.copies, 0);
        let newest = details.sub_files.last().map_or(0, |file| file.number);
        for number in newest.saturating_sub(SHOWN - 1).max(1)..=newest {
            let file = details.sub_files.iter().find(|file| file.number == number);
            let (nodes, valid) =
                file.map_or((nodes_max, 0), |file| (u64::from(file.nodes), u64::from(file.valid)));
            let mut row = Row { at: f64::from(number), ..inserted.clone() };
            row.counts = [("nodes", nodes), ("valid", valid)]
                .map(|(name, count)| (name.to_owned(), count as f64))
                .into();
            rows.push(row);
        }
    }
    Ok(Rows(rows))
}

fn share<C: Clock>(row: &Row<C>) -> f64 {
    row.count("valid") / row.count("nodes")
}

impl Study for ValidNodes {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn parameters(&self, scale: Scale, device: Device) -> Vec<Parameter> {
        let size = Proportion::of(scale, device);
        let mut parameters = size.parameters(" in section 4.1; not told for figure 7");
        let inserted = AFTER.map(|(after, _)| (after / size.0).to_string()).join(" and ");
        parameters.push(Parameter::new("insertions", "100,000 and 500,000", inserted));
        parameters.push(Parameter::new(
            "files shown",
            "25 to 34, of both counts of insertions",
            "the last ten: 4 to 13, and 53 to 62",
        ));
        parameters.push(Parameter::new("recycling", "not told here; 5 % later", "of empty files only"));
        parameters
    }

    fn on_disk(&self, laboratory: &Laboratory) -> Result<Rows<Wall>> {
        measure(laboratory, Device::Disk, |_| laboratory.trees_on_disk())
    }

    fn on_ssdsim(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        measure(laboratory, Device::Ssdsim, TreeGround::on_ssdsim)
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, _: Device) -> std::result::Result<Judgement, Missing> {
        let mut judgement = Judgement::default();
        for (_, name) in AFTER {
            let files = rows.line(name, share)?;
            let newest = files.last().map_or(f64::NAN, |file| file.0);
            let ages: Vec<_> = files.iter().map(|(number, share)| (newest - number, *share)).collect();
            let told: Vec<_> = files
                .iter()
                .map(|(number_of_file, share)| {
                    format!("{} % in {}", number(share * 100.0), number(*number_of_file))
                })
                .collect();
            let rank = spearman(&ages);
            judgement.check(
                &format!("{name}, age"),
                &format!("{name}, valid shares fall with age: Spearman's correlation of their ranks is at most -0.8"),
                "old files have few",
                format!("{rank:.3}: {}", told.join(", ")),
                rank <= -0.8,
            );
            let shares: Vec<_> = files.iter().map(|file| file.1).collect();
            let (last, middle) = (shares.last().copied().unwrap_or(f64::NAN), median(&shares));
            judgement.check(
                &format!("{name}, newest"),
                &format!("{name}, the newest file's share is at least twice the median"),
                "new files have most",
                format!("{} % and {} %", number(last * 100.0), number(middle * 100.0)),
                last > 0.0 && last >= 2.0 * middle,
            );
        }
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        let mut lines = Line::all(rows, 100.0, share)?;
        // Beside each other: the newest is 0 in both.
        for line in &mut lines {
            let newest = line.points.last().map_or(0.0, |point| point.0);
            line.points.iter_mut().for_each(|point| point.0 = newest - point.0);
        }
        Ok(Chart {
            title: CARD.title.into(),
            x: Axis { label: "sub-files written since".into(), scale: Scaling::Even },
            y: Axis { label: "valid nodes, % of those written".into(), scale: Scaling::Even },
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

    fn rows(valid: [f64; 10]) -> Rows<Simulated> {
        let files = AFTER.iter().flat_map(|(_, name)| {
            valid.into_iter().zip(25..).map(|(valid, number)| {
                let mut row = row(name, f64::from(number), 0, 100.0);
                row.counts = [("nodes".to_owned(), 8192.0), ("valid".to_owned(), valid)].into();
                row
            })
        });
        Rows(files.collect())
    }

    #[test]
    fn the_published_shape_holds_and_others_do_not() {
        let judge = |valid| Study::judge(&ValidNodes, &rows(valid), Device::Ssdsim).unwrap();
        let good = [0.0, 0.0, 1.0, 2.0, 4.0, 9.0, 20.0, 90.0, 500.0, 2000.0];
        assert_eq!(judge(good).verdict(), Verdict::Holds);
        let fails = |valid, key| assert_eq!(judge(valid).outcome(key), Some(Outcome::Fails), "{key}");
        let mut turned = good;
        turned.reverse();
        fails(turned, "after 100,000 insertions, age");
        fails([5.0, 6.0, 7.0, 7.5, 8.0, 8.5, 9.0, 9.5, 10.0, 11.0], "after 500,000 insertions, newest");
        fails([0.0; 10], "after 100,000 insertions, newest");
    }
}
