//! E28: what opening an AS B-tree costs, and what recycling costs by its threshold (AS B-tree, sections 3.3 and 3.4; the
//! figures are ours).

use super::{Card, Cause, Device, Parameter, Scale, Study};
use crate::as_growth::{Proportion, Written, random};
use crate::chart::{Axis, Chart, Line, Scaling, bytes, number};
use crate::failure::Result;
use crate::judgement::Judgement;
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Quantity, Simulated, Wall};
use crate::row::{Missing, Row, Rows};
use crate::tree_ground::TreeGround;
use crate::wording::times;
use psync::{Access, AlignedBuffer, Read, Write};
use std::sync::Arc;
use trees::{AsRecovery, AsTree, AsTreeOptions, Index};

pub(super) struct StartAndRecycling;

static CARD: Card = Card {
    number: 28,
    name: "as-start",
    title: "Opening an AS B-tree, and recycling by threshold",
    source: "AS B-tree, Journal of Information Science and Engineering 30, 2014, sections 3.3 and 3.4; the figures are ours",
    question: "The paper's tree reads all of its nodes when it is opened, to know where they are; ours can save that table now and \
               then. And a sub-file is recycled when fewer than 5 % of its nodes are valid: earlier saves space, but more nodes \
               must be copied. What do both cost?",
    reported: "Nothing. What a scan takes follows from the file's size and the device's bandwidth; nodes written for each one that \
               was changed are 1 + v / (1 - v), if a recycled file has the valid share v.",
    absent: &[(Device::Nand, "the paper's sub-files are a file system's")],
    causes: &[Cause {
        device: Device::Disk,
        scale: None,
        key: "scan",
        text: "a disk that gives more than 1 GB/s leaves checking and decoding the nodes, and opening the sub-files, to be seen in the \
               time: what reading alone takes is the next line",
    }],
};

const OPENED: [(AsRecovery, &str); 3] = [
    (AsRecovery::AsPublished, "all nodes read, as published"),
    (AsRecovery::ReadAll, "all batches read"),
    (AsRecovery::Checkpoint, "from a checkpoint"),
];
/// Reads of the same bytes in sequence, of another file.
const SCAN: &str = "the same bytes in sequence";
/// Bytes of a read of either.
const WINDOW: usize = 512 << 10;
const THRESHOLDS: [f64; 3] = [0.05, 0.2, 0.5];
/// What part of the published size sub-files have in each sweep.
const SUB_FILES: [(u64, &str); 2] = [(1, "sub-files of 64 MB"), (8, "sub-files of 8 MB")];
/// Batches from checkpoint to checkpoint: as the tree has it by default, and often.
const CHECKPOINT_EVERY: [u64; 2] = [256, 16];
const OFTEN: &str = "from a checkpoint, taken often";

fn start<C: Clock>(
    laboratory: &Laboratory,
    size: Proportion,
    mut ground: impl FnMut() -> Result<TreeGround<C>>,
    rows: &mut Vec<Row<C>>,
) -> Result<()> {
    let (mut space, mut often) = (0, None);
    for every in CHECKPOINT_EVERY {
        let place = ground()?.with_accounts();
        let options = AsTreeOptions { checkpoint_every: every, ..size.options() };
        let mut tree: AsTree = size.build(&place, &options)?;
        let mut rng = random(0);
        size.insert(&mut tree, &mut rng, size.operations())?;
        tree.flush()?;
        let nodes: u64 = tree.details().sub_files.iter().map(|file| u64::from(file.nodes)).sum();
        space = nodes * options.node_len as u64;
        drop(tree);
        let open = |recovery, name: &str| -> Result<Row<C>> {
            laboratory.step(name)?;
            let mut pages = 0;
            let options = AsTreeOptions { recovery, ..options.clone() };
            let mut row = place.row(name, 0.0, 0, 1, || {
                let tree = AsTree::recover(Arc::clone(&place.volume), &options)?;
                pages = tree.details().recovery_reads;
                Ok(())
            })?;
            row.counts.insert("space".into(), space as f64);
            row.counts.insert("recovery_reads".into(), pages as f64);
            Ok(row)
        };
        if every == CHECKPOINT_EVERY[0] {
            // From the checkpoint first: the others remove it.
            for (recovery, name) in OPENED.into_iter().rev() {
                rows.push(open(recovery, name)?);
            }
        } else {
            often = Some(open(AsRecovery::Checkpoint, OFTEN)?);
        }
    }
    rows.extend(often);
    let place = ground()?;
    laboratory.step(SCAN)?;
    let volume = &place.volume;
    let file =
        volume.open("scan", Access { write: true, create: true, direct: true, ..Access::default() })?;
    let mut window = AlignedBuffer::new(WINDOW);
    let offsets = || (0..space.div_ceil(WINDOW as u64)).map(|index| index * WINDOW as u64);
    for offset in offsets() {
        volume.write(&[Write { file, offset, data: &window }])?;
    }
    volume.sync(file)?;
    rows.push(place.row(SCAN, 0.0, 0, 1, || {
        offsets().try_for_each(|offset| Ok(volume.read(&mut [Read { file, offset, buffer: &mut window }])?))
    })?);
    volume.close(file)?;
    Ok(volume.remove("scan")?)
}

fn recycling<C: Clock>(
    size: Proportion,
    place: &TreeGround<C>,
    (divisor, name): (u64, &str),
    threshold: f64,
) -> Result<Row<C>> {
    let options = AsTreeOptions { threshold, sub_file_len: size.sub_file_len() / divisor, ..size.options() };
    let mut tree: AsTree = size.build(place, &options)?;
    let mut rng = random(0);
    // Long enough for the files of the bulk load to go.
    size.update(&mut tree, &mut rng, size.operations() / 2)?;
    let before = Written::of(&tree);
    let count = size.operations();
    let mut row = place.row(name, threshold, 0, count, || size.update(&mut tree, &mut rng, count))?;
    let after = Written::of(&tree);
    let (nodes, copies) = (after.nodes - before.nodes, after.copies - before.copies);
    let recycled = before.held + nodes - after.held;
    for (name, count) in
        [("nodes", nodes), ("copies", copies), ("recycled", recycled), ("space", tree.stats().space)]
    {
        row.counts.insert(name.into(), count as f64);
    }
    Ok(row)
}

fn measure<C: Clock>(
    laboratory: &Laboratory,
    device: Device,
    mut ground: impl FnMut(u32) -> Result<TreeGround<C>>,
) -> Result<Rows<C>> {
    let size = Proportion::of(laboratory.scale, device);
    laboratory.expect(OPENED.len() + 2 + SUB_FILES.len() * THRESHOLDS.len());
    let mut rows = Vec::new();
    start(laboratory, size, || ground(0), &mut rows)?;
    for sub_files in SUB_FILES {
        for threshold in THRESHOLDS {
            laboratory.step(&format!("{}, T = {threshold}", sub_files.1))?;
            rows.push(recycling(size, &ground(0)?, sub_files, threshold)?);
        }
    }
    Ok(Rows(rows))
}

/// Nodes written for each that was changed.
fn amplification<C: Clock>(row: &Row<C>) -> f64 {
    row.count("nodes") / (row.count("nodes") - row.count("copies"))
}

impl Study for StartAndRecycling {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn parameters(&self, scale: Scale, device: Device) -> Vec<Parameter> {
        let size = Proportion::of(scale, device);
        let mut parameters = size.parameters(" in section 4.1");
        parameters.extend([
            Parameter::new("insertions before opening", "not told", size.operations().to_string()),
            Parameter::new("updates a threshold", "not told", size.operations().to_string()),
            Parameter::new("T", "5 %", format!("{THRESHOLDS:?}")),
            Parameter::new(
                "checkpoints",
                "none",
                format!("every {} batches; often: every {}", CHECKPOINT_EVERY[0], CHECKPOINT_EVERY[1]),
            ),
        ]);
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
        let time = |name| rows.median(name, 0.0, |row: &Row<C>| row.elapsed_us);
        let [(_, published), (_, batches), (_, checkpoint)] = OPENED;
        let space = rows.median(published, 0.0, |row| row.count("space"))?;
        let ratio = time(published)?.over(time(SCAN)?);
        judgement.check(
            "scan",
            "opening as published takes what reading so many bytes in sequence takes, within 30 %",
            "reads all nodes",
            format!("{} for {}: {}", milliseconds(time(published)?.number()), bytes(space), times(ratio)),
            (ratio - 1.0).abs() <= 0.3,
        );
        let reading = rows.median(published, 0.0, |row| row.count("read_us"))?;
        judgement.report(
            "reading",
            "of which reading takes, by that of the same bytes in sequence",
            "not asked",
            times(reading / time(SCAN)?.number()),
        );
        for (key, name) in [("batches", batches), ("checkpoint", checkpoint), ("often", OFTEN)] {
            let pages = rows.median(name, 0.0, |row| row.count("recovery_reads"))?;
            judgement.report(
                key,
                &format!("opening: {name}"),
                "not asked",
                format!(
                    "{}, {} nodes read; {} of the published way",
                    milliseconds(time(name)?.number()),
                    number(pages),
                    times(time(name)?.over(time(published)?))
                ),
            );
        }
        for (_, name) in SUB_FILES {
            for threshold in THRESHOLDS {
                let figure = |of: fn(&Row<C>) -> f64| rows.median(name, threshold, of);
                let valid = figure(|row| row.count("copies") / row.count("recycled"))?;
                let (ours, expected) = (figure(amplification)?, 1.0 + valid / (1.0 - valid));
                judgement.check(
                    &format!("{name}, T = {threshold}"),
                    &format!(
                        "{name}, T = {} %: nodes written for each one changed are 1 + v / (1 - v), within 20 %",
                        threshold * 100.0
                    ),
                    "1.05 at most, at 5 %",
                    format!(
                        "{ours:.3}, where v is {:.1} %: {expected:.3}; {} on the device",
                        valid * 100.0,
                        bytes(figure(|row| row.count("space"))?)
                    ),
                    (ours / expected - 1.0).abs() <= 0.2,
                );
            }
        }
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        let mut lines = Vec::new();
        for (_, name) in SUB_FILES {
            let points = rows.points(name).into_iter();
            let points = points.map(|at| Ok((at * 100.0, rows.spread(name, at, amplification)?)));
            let points = points.collect::<std::result::Result<Vec<_>, Missing>>()?;
            lines.push(Line { name: name.to_owned(), paired: false, points });
        }
        Ok(Chart {
            title: CARD.title.into(),
            x: Axis { label: "T, %".into(), scale: Scaling::Even },
            y: Axis { label: "nodes written for each one changed".into(), scale: Scaling::Even },
            lines,
            bars: false,
        })
    }
}

fn milliseconds(micros: f64) -> String {
    format!("{} ms", number(micros / 1000.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judgement::{Outcome, Verdict};
    use crate::row::tests::row;

    /// Times of opening as published; nodes written and copied of so many recycled.
    fn rows(opening: f64, copies: f64) -> Rows<Simulated> {
        let mut rows = vec![row(SCAN, 0.0, 0, 100.0)];
        let names = OPENED.map(|(_, name)| name).into_iter().chain([OFTEN]);
        for (name, time) in names.zip([opening, opening, 5.0, 2.0]) {
            let mut row = row(name, 0.0, 0, time);
            let counts = [("space", 7e7), ("recovery_reads", 9000.0), ("read_us", 1e5)];
            row.counts = counts.map(|(name, count)| (name.to_owned(), count)).into();
            rows.push(row);
        }
        for (_, name) in SUB_FILES {
            for at in THRESHOLDS {
                let mut row = row(name, at, 0, 100.0);
                let counts =
                    [("nodes", 1000.0 + copies), ("copies", copies), ("recycled", 1250.0), ("space", 1e8)];
                row.counts = counts.map(|(name, count)| (name.to_owned(), count)).into();
                rows.push(row);
            }
        }
        Rows(rows)
    }

    #[test]
    fn the_expected_shape_holds_and_others_do_not() {
        let judge = |opening, copies| {
            Study::judge(&StartAndRecycling, &rows(opening, copies), Device::Ssdsim).unwrap()
        };
        assert_eq!(judge(110.0, 250.0).verdict(), Verdict::Holds);
        assert_eq!(judge(140.0, 250.0).outcome("scan"), Some(Outcome::Fails));
        assert_eq!(judge(60.0, 250.0).outcome("scan"), Some(Outcome::Fails));
        assert_eq!(judge(110.0, 700.0).outcome("sub-files of 8 MB, T = 0.5"), Some(Outcome::Fails));
    }
}
