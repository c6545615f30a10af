//! E47: what the AS B-tree's paper says besides its figures: skewed keys (section 3.4), a write buffer that need not grow, cleaning by
//! the translation layer (section 1), and the physical size (section 4.1).

use super::{Card, Cause, Device, Parameter, Scale, Study};
use crate::as_suite::{SPACING, bftl, node_len};
use crate::chart::{Axis, Chart, Line, Scaling, number};
use crate::failure::{Failure, Result};
use crate::judgement::Judgement;
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Lapse, Quantity, Simulated};
use crate::row::{Missing, Row, Rows};
use crate::tree_ground::{FILL, TreeGround, drive};
use crate::wear_ground::{Mapping, fill, used_drive};
use flash::{Geometry, Profile, Ssd};
use psync::Volume;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Normal, Zipf};
use std::sync::Arc;
use trees::{AsTree, AsTreeOptions, BatchedBTree, BatchedBTreeOptions, Bftl, Index};

pub(super) struct AsSpace;

static CARD: Card = Card {
    number: 47,
    name: "as-space",
    title: "AS B-tree: skewed keys, fixed buffers, cleaning and physical size",
    source: "AS B-tree, Journal of Information Science and Engineering 30, 2014, sections 1, 3.4 and 4.1",
    question: "Four sentences of the paper have no figure. Keys that are not uniform scatter valid nodes over a larger area. A write \
               buffer of fixed size serves as well when records become more, where a cache must grow. Sequential writes let the \
               translation layer clean with less. And if nothing is recycled, the file takes no more flash than a B+-tree that \
               overwrites in place.",
    reported: "All four as sentences, without figures.",
    absent: &[
        (Device::Disk, "what flash does for it no disk tells; the rest depends on counts alone"),
        (Device::Nand, "it is about trees over a translation layer"),
    ],
    causes: CAUSES,
};

const CAUSES: &[Cause] = &[Cause {
    device: Device::Ssdsim,
    scale: None,
    key: "cleaning, ",
    text: "with page mapping a drive with room has nothing to clean for either tree: blocks are dead as a whole when they are erased. Only \
           where blocks are mapped (FAST) random writes cost the layer copies on it. That it is the \
           room shows the drive whose files take nine tenths of it: there the B+-tree costs 1.20 (page map), 1.31 (DFTL) and 5.8 (FAST) \
           pages for each, the AS B-tree 1.00 to 1.01",
}];

/// Sizes: a quarter of the published ones, a 32nd for a trial.
#[derive(Clone, Copy, Debug)]
struct Size {
    records: u64,
    operations: u64,
    sub_file_len: u64,
    slots: usize,
}

impl Size {
    fn of(scale: Scale) -> Self {
        let divisor = if scale == Scale::Trial { 40 } else { scale.pick(4, 1, 1) };
        Self {
            records: 400_000 / divisor,
            operations: 500_000 / divisor,
            sub_file_len: (64 << 20) / divisor,
            slots: (32 / divisor as usize).max(1),
        }
    }
}

/// Which keys are inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keys {
    Uniform,
    /// Around the middle: a sixteenth of the range is the standard deviation.
    Normal,
    /// By Zipf's law over the records, which are not neighbours.
    Zipf,
}

impl Keys {
    const ALL: [Keys; 3] = [Keys::Uniform, Keys::Normal, Keys::Zipf];

    fn name(self) -> &'static str {
        match self {
            Keys::Uniform => "uniform keys",
            Keys::Normal => "normal keys",
            Keys::Zipf => "zipfian keys",
        }
    }

    /// The record behind which a key is inserted.
    fn draw(self, records: u64, laws: &Laws, rng: &mut StdRng) -> u64 {
        match self {
            Keys::Uniform => rng.random_range(0..records),
            Keys::Normal => (laws.normal.sample(rng).clamp(0.0, 1.0) * (records - 1) as f64) as u64,
            Keys::Zipf => (laws.zipf.sample(rng) as u64 - 1).wrapping_mul(STIR) % records,
        }
    }
}

/// An odd prime larger than any number of records, for which ranks are told apart after it.
const STIR: u64 = 2_147_483_647;

struct Laws {
    normal: Normal<f64>,
    zipf: Zipf<f64>,
}

impl Laws {
    fn of(records: u64) -> Result<Self> {
        let wrong = |what: String| Failure::CannotRun(what);
        Ok(Self {
            normal: Normal::new(0.5, 1.0 / 16.0).map_err(|error| wrong(error.to_string()))?,
            zipf: Zipf::new(records as f64, 0.99).map_err(|error| wrong(error.to_string()))?,
        })
    }
}

fn insert(tree: &mut dyn Index, keys: Keys, records: u64, count: u64, seed: u64) -> Result<()> {
    let (laws, mut rng) = (Laws::of(records)?, StdRng::seed_from_u64(seed));
    (0..count).try_for_each(|value| {
        let behind = keys.draw(records, &laws, &mut rng) * SPACING;
        Ok(tree.insert(behind + rng.random_range(1..SPACING), value)?)
    })
}

fn load<T: Index<Ground = Arc<dyn Volume>>>(
    volume: &Arc<dyn Volume>,
    options: &T::Options,
    records: u64,
) -> Result<T> {
    let mut records = (0..records).map(|index| (index * SPACING, index));
    Ok(T::bulk_load(Arc::clone(volume), options, FILL, &mut records)?)
}

fn as_options(size: Size) -> AsTreeOptions {
    AsTreeOptions {
        node_len: node_len(256),
        slots: size.slots,
        sub_file_len: size.sub_file_len,
        checkpoint_every: 0,
        ..AsTreeOptions::default()
    }
}

fn in_place_options(slots: usize) -> BatchedBTreeOptions {
    BatchedBTreeOptions { page_len: node_len(256), keys_max: Some(256), slots, cached: 0, parallel: false }
}

const SKEW: &str = "skew";
const BUFFER: &str = "by records: write buffer alone";
const CACHE: &str = "by records: cache of 512 nodes";
const CLEANING: &str = "cleaning";
const PHYSICAL: &str = "physical size";

/// The share of all sub-files ever written, newest first, in which nine of ten valid nodes are.
fn spread(tree: &AsTree) -> f64 {
    let files = tree.details().sub_files;
    let valid: u64 = files.iter().map(|file| u64::from(file.valid)).sum();
    let newest = files.iter().map(|file| file.number).max().unwrap_or(0);
    let mut seen = 0;
    for file in files.iter().rev() {
        seen += u64::from(file.valid);
        if seen * 10 >= valid * 9 {
            return f64::from(newest - file.number + 1) / f64::from(newest.max(1));
        }
    }
    f64::NAN
}

/// Section 3.4: where valid nodes are, by keys; and what recycling at 5 % copies then.
fn skew(laboratory: &Laboratory, rows: &mut Vec<Row<Simulated>>) -> Result<()> {
    let size = Size::of(laboratory.scale);
    for (at, keys) in Keys::ALL.into_iter().enumerate() {
        laboratory.step(keys.name())?;
        let mut counts = Vec::new();
        let mut last = None;
        for (threshold, what) in [(1e-9, "none"), (0.05, "5 %")] {
            let place = TreeGround::on_ssdsim(0)?;
            let options = AsTreeOptions { threshold, ..as_options(size) };
            let mut tree: AsTree = load(&place.volume, &options, size.records)?;
            let row = place.row(SKEW, at as f64, 0, size.operations, || {
                insert(&mut tree, keys, size.records, size.operations, 1)
            })?;
            let details = tree.details();
            let held: u64 = details.sub_files.iter().map(|file| u64::from(file.nodes)).sum();
            let valid: u64 = details.sub_files.iter().map(|file| u64::from(file.valid)).sum();
            if what == "none" {
                counts.push(("spread".to_owned(), spread(&tree)));
            } else {
                counts.push(("copies".to_owned(), details.copies as f64));
                counts.push(("held_by_valid".to_owned(), held as f64 / valid as f64));
            }
            last = Some(row);
        }
        if let Some(mut row) = last {
            row.counts.extend(counts);
            rows.push(row);
        }
    }
    Ok(())
}

/// Section 4.1: insertions by how many records there are, with a write buffer alone, and with a cache.
fn fixed_buffers(laboratory: &Laboratory, rows: &mut Vec<Row<Simulated>>) -> Result<()> {
    let operations = if laboratory.scale == Scale::Trial { 300 } else { 8_000 };
    for (series, cached) in [(BUFFER, 0), (CACHE, 512)] {
        for records in sizes(laboratory.scale) {
            laboratory.step(&format!("{series}, {records} records"))?;
            let place = TreeGround::on_ssdsim(0)?;
            let options = AsTreeOptions { cached, ..as_options(Size { slots: 32, ..Size::of(Scale::Full) }) };
            let mut tree: AsTree = load(&place.volume, &options, records)?;
            // The cache fills.
            insert(&mut tree, Keys::Uniform, records, 4 * cached as u64, 2)?;
            let before = tree.stats();
            let mut row = place.row(series, records as f64, 0, operations, || {
                insert(&mut tree, Keys::Uniform, records, operations, 3)
            })?;
            let after = tree.stats();
            row.counts.insert("hits".into(), (after.hits - before.hits) as f64);
            row.counts.insert("height".into(), f64::from(after.height));
            rows.push(row);
        }
    }
    Ok(())
}

fn sizes(scale: Scale) -> Vec<u64> {
    let largest = if scale == Scale::Trial { 40_000 } else { 800_000 };
    vec![largest / 8, largest / 4, largest / 2, largest]
}

/// The translation layers whose cleaning is looked at.
const MAPPINGS: [Mapping; 3] = [Mapping::Page, Mapping::Dftl, Mapping::Fast];
/// The trees, by place.
const TREES: [&str; 2] = ["B+-tree", "AS B-tree"];
const IN_PLACE: f64 = 0.0;
const IN_SEQUENCE: f64 = 1.0;

/// How much of the drive files take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    /// What the tree takes.
    Roomy,
    /// Nine tenths.
    Full,
}

fn cleaning_series(mapping: Mapping, room: Room) -> String {
    let full = if room == Room::Full { ", 90 % full" } else { "" };
    format!("{CLEANING}, {}{full}", mapping.name())
}

/// A drive that is roomy for its tree: eight dies, 128 MiB, of which the tree's nodes take a seventh.
fn roomy(scale: Scale) -> Profile {
    let default = Profile::ssdsim();
    let blocks_per_plane = if scale == Scale::Trial { 32 } else { 64 };
    let geometry = Geometry {
        channels: 4,
        dies_per_channel: 2,
        planes: 1,
        blocks_per_plane,
        pages_per_block: 64,
        ..default.geometry
    };
    Profile { geometry, ..default }
}

/// Section 1: what updates cost the flash under several translation layers.
fn cleaning(laboratory: &Laboratory, rows: &mut Vec<Row<Simulated>>) -> Result<()> {
    let trial = laboratory.scale == Scale::Trial;
    let (records, operations) = if trial { (20_000, 500) } else { (400_000, 40_000) };
    for (mapping, room) in
        MAPPINGS.into_iter().flat_map(|mapping| [(mapping, Room::Roomy), (mapping, Room::Full)])
    {
        for (at, name) in TREES.into_iter().enumerate() {
            laboratory.step(&format!("{}, {name}", cleaning_series(mapping, room)))?;
            let ssd = used_drive(roomy(laboratory.scale), mapping)?;
            let volume: Arc<dyn Volume> = Arc::new(ssd.clone());
            let mut tree: Box<dyn Index> = if at as f64 == IN_PLACE {
                Box::new(load::<BatchedBTree>(&volume, &in_place_options(32), records)?)
            } else {
                let size = Size { records, operations, sub_file_len: 4 << 20, slots: 32 };
                Box::new(load::<AsTree>(&volume, &as_options(size), records)?)
            };
            // First the drive gets into its stride, and the AS B-tree to its size.
            insert_updates(&mut *tree, records, operations / 2, 4)?;
            if room == Room::Full {
                let held: u64 = ssd.list()?.iter().map(|entry| entry.len).sum();
                let wanted = (ssd.capacity() / 10 * 9).saturating_sub(held);
                fill(&ssd, "filler", wanted / 4096 * 4096)?;
                insert_updates(&mut *tree, records, operations / 2, 7)?;
            }
            ssd.drain();
            let (flash, began, host) = (ssd.flash_counters(), ssd.now(), volume.counters());
            insert_updates(&mut *tree, records, operations, 5)?;
            ssd.drain();
            let did = ssd.flash_counters() - flash;
            let counts = [
                ("host_programs", did.host_programs as f64),
                ("copies", did.internal_programs as f64),
                ("erases", did.erases as f64),
            ];
            rows.push(Row {
                series: cleaning_series(mapping, room),
                at: at as f64,
                run: 0,
                requests: operations,
                bytes: (volume.counters() - host).bytes_written,
                elapsed_us: Lapse::from(ssd.now() - began),
                counts: counts.map(|(name, count)| (name.to_owned(), count)).into(),
            });
        }
    }
    Ok(())
}

fn insert_updates(tree: &mut dyn Index, records: u64, count: u64, seed: u64) -> Result<()> {
    let mut rng = StdRng::seed_from_u64(seed);
    (0..count).try_for_each(|value| Ok(tree.update(rng.random_range(0..records) * SPACING, records + value)?))
}

/// Section 4.1: what the file takes of the flash when nothing is recycled by anyone.
fn physical(laboratory: &Laboratory, rows: &mut Vec<Row<Simulated>>) -> Result<()> {
    let size = Size::of(laboratory.scale);
    // 100,000 insertions, as table 3.
    let operations = size.operations / 5;
    for (at, name) in ["B+-tree", "AS B-tree, none recycled", "BFTL"].into_iter().enumerate() {
        laboratory.step(&format!("{PHYSICAL}, {name}"))?;
        let ssd = drive(0)?;
        let volume: Arc<dyn Volume> = Arc::new(ssd.clone());
        let mut tree: Box<dyn Index> = match at {
            0 => Box::new(load::<BatchedBTree>(&volume, &in_place_options(size.slots), size.records)?),
            1 => {
                let options = AsTreeOptions { threshold: 0.0, ..as_options(size) };
                Box::new(load::<AsTree>(&volume, &options, size.records)?)
            }
            _ => Box::new(load::<Bftl>(&volume, &bftl(256, 3, 0), size.records)?),
        };
        insert(&mut *tree, Keys::Uniform, size.records, operations, 6)?;
        tree.flush()?;
        ssd.drain();
        rows.push(physical_row(&ssd, at as f64, operations, tree.stats().space));
    }
    Ok(())
}

fn physical_row(ssd: &Ssd, at: f64, operations: u64, space: u64) -> Row<Simulated> {
    let blocks = ssd.blocks();
    let used: u64 = blocks.iter().map(|block| u64::from(block.used)).sum();
    let begun = blocks.iter().filter(|block| block.used > 0).count();
    let counts = [("space", space as f64), ("pages", used as f64), ("blocks", begun as f64)];
    Row {
        series: PHYSICAL.to_owned(),
        at,
        run: 0,
        requests: operations,
        bytes: used * 4096,
        elapsed_us: Lapse::from(ssd.now()),
        counts: counts.map(|(name, count)| (name.to_owned(), count)).into(),
    }
}

fn amplification<C: Clock>(row: &Row<C>) -> f64 {
    1.0 + row.count("copies") / row.count("host_programs")
}

impl Study for AsSpace {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn parameters(&self, scale: Scale, _: Device) -> Vec<Parameter> {
        let size = Size::of(scale);
        vec![
            Parameter::new(
                "skew: records, insertions",
                "not told",
                format!(
                    "{}, {}; sub-files of {} MiB",
                    size.records,
                    size.operations,
                    size.sub_file_len >> 20
                ),
            ),
            Parameter::new(
                "skew: keys",
                "not uniform",
                "normal (standard deviation a 16th of the range); Zipf's law with 0.99, stirred",
            ),
            Parameter::new("fixed buffers: records", "not told", format!("{:?}", sizes(scale))),
            Parameter::new(
                "fixed buffers",
                "not told",
                "32 nodes of write buffer; with and without 512 nodes of cache",
            ),
            Parameter::new(
                "cleaning: drive",
                "not told",
                "128 MiB of which the nodes take a seventh, 12 % over-provision, written once before; sub-files of 4 MiB",
            ),
            Parameter::new(
                "physical size",
                "100,000 insertions",
                format!("{} insertions on a new drive of 4 GiB", size.operations / 5),
            ),
        ]
    }

    fn on_ssdsim(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        let sizes = sizes(laboratory.scale).len();
        laboratory.expect(Keys::ALL.len() + 2 * sizes + 2 * MAPPINGS.len() * TREES.len() + 3);
        let mut rows = Vec::new();
        skew(laboratory, &mut rows)?;
        fixed_buffers(laboratory, &mut rows)?;
        cleaning(laboratory, &mut rows)?;
        physical(laboratory, &mut rows)?;
        Ok(Rows(rows))
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, _: Device) -> std::result::Result<Judgement, Missing> {
        let mut judgement = Judgement::default();
        let spread = |at: usize| rows.median(SKEW, at as f64, |row| row.count("spread"));
        let uniform = spread(0)?;
        for (at, keys) in Keys::ALL.into_iter().enumerate().skip(1) {
            let skewed = spread(at)?;
            judgement.check(
                &format!("skew, {}", keys.name()),
                &format!("{}: nine of ten valid nodes lie in a larger share of the newest sub-files than with uniform keys", keys.name()),
                "scattered in a larger area",
                format!("{skewed:.2} and {uniform:.2}"),
                skewed > uniform,
            );
        }
        let told = |what: &'static str| -> std::result::Result<String, Missing> {
            let each = Keys::ALL.into_iter().enumerate().map(|(at, keys)| {
                let count = rows.median(SKEW, at as f64, |row| row.count(what))?;
                Ok(format!("{} {}", number(count), keys.name()))
            });
            Ok(each.collect::<std::result::Result<Vec<_>, Missing>>()?.join(", "))
        };
        judgement.report("skew, copies", "nodes that recycling at 5 % copied", "not told", told("copies")?);
        judgement.report(
            "skew, held",
            "nodes in sub-files by valid nodes",
            "not told",
            told("held_by_valid")?,
        );
        for (key, series, claim, paper) in [
            (
                "buffer",
                BUFFER,
                "with the write buffer alone an insertion takes the same, within 10 %, whether records are few or eight times as many",
                "a similar performance",
            ),
            (
                "cache",
                CACHE,
                "with a cache of fixed size it takes at least 1.1 times as long with eight times the records",
                "the cache size needed to increase",
            ),
        ] {
            let line = rows.line(series, Row::latency)?;
            let times: Vec<f64> = line.iter().map(|(_, time)| time.number()).collect();
            let (first, last) =
                (times.first().copied().unwrap_or(f64::NAN), times.last().copied().unwrap_or(f64::NAN));
            let most = times.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let least = times.iter().copied().fold(f64::INFINITY, f64::min);
            let each = line.iter().map(|(at, time)| format!("{} us at {at}", number(time.number())));
            let told = each.collect::<Vec<_>>().join(", ");
            let holds = if key == "buffer" { most <= 1.1 * least } else { last >= 1.1 * first };
            judgement.check(key, claim, paper, told, holds);
        }
        for mapping in MAPPINGS {
            let line = cleaning_series(mapping, Room::Roomy);
            let of = |at| rows.median(&line, at, amplification);
            let erases =
                |at| rows.median(&line, at, |row| row.count("erases") / row.requests as f64 * 1000.0);
            let (in_place, in_sequence) = (of(IN_PLACE)?, of(IN_SEQUENCE)?);
            judgement.check(
                &format!("cleaning, {}", mapping.name()),
                &format!(
                    "{}: pages programmed for each that the AS B-tree writes are fewer than for the B+-tree",
                    mapping.name()
                ),
                "enhance the cleaning efficiency",
                format!("{in_sequence:.2} and {in_place:.2}"),
                in_sequence < in_place,
            );
            let full = cleaning_series(mapping, Room::Full);
            let of_full = |at| rows.median(&full, at, amplification);
            judgement.report(
                &format!("full, {}", mapping.name()),
                &format!("{}, 90 % full: the same", mapping.name()),
                "not told",
                format!("{:.2} and {:.2}", of_full(IN_SEQUENCE)?, of_full(IN_PLACE)?),
            );
            let time = |at| rows.median(&line, at, Row::latency);
            judgement.report(
                &format!("erases, {}", mapping.name()),
                &format!(
                    "{}: erases for 1000 updates, AS B-tree and B+-tree; and its time by the AS B-tree's",
                    mapping.name()
                ),
                "not told",
                format!(
                    "{:.1} and {:.1}; {:.2}",
                    erases(IN_SEQUENCE)?,
                    erases(IN_PLACE)?,
                    time(IN_PLACE)?.over(time(IN_SEQUENCE)?)
                ),
            );
        }
        let of = |at, what: &'static str| rows.median(PHYSICAL, at, |row| row.count(what));
        let (pages, space) = (of(1.0, "pages")? / of(0.0, "pages")?, of(1.0, "space")? / of(0.0, "space")?);
        judgement.check(
            "physical",
            "flash pages that are not erased: the AS B-tree without recycling has those of the B+-tree, within 10 %",
            "the difference is trivial",
            format!("{pages:.2} times, where the files differ by {space:.1} times"),
            (pages - 1.0).abs() <= 0.1,
        );
        judgement.report(
            "physical, blocks",
            "flash blocks that are not erased: B+-tree, AS B-tree without recycling, BFTL",
            "not told",
            format!("{}, {}, {}", of(0.0, "blocks")?, of(1.0, "blocks")?, of(2.0, "blocks")?),
        );
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        let mut lines = Line::all(rows, 1.0, Row::latency)?;
        lines.retain(|line| line.name.starts_with("by records"));
        Ok(Chart {
            title: CARD.title.into(),
            x: Axis { label: "records".into(), scale: Scaling::Doubling },
            y: Axis { label: "time of an insertion, us".into(), scale: Scaling::Even },
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

    fn counted(series: &str, at: f64, counts: &[(&str, f64)]) -> Row<Simulated> {
        let mut row = row(series, at, 0, 1.0);
        row.counts = counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        row
    }

    /// Spread of uniform and other keys; times of the smallest and largest tree; copies of both trees; pages of the AS B-tree.
    fn rows(
        spread: [f64; 2],
        buffer: [f64; 2],
        cache: [f64; 2],
        copies: [f64; 2],
        pages: f64,
    ) -> Rows<Simulated> {
        let mut rows = Vec::new();
        for (at, spread) in [(0.0, spread[0]), (1.0, spread[1]), (2.0, spread[1])] {
            rows.push(counted(SKEW, at, &[("spread", spread), ("copies", 1.0), ("held_by_valid", 2.0)]));
        }
        for (series, times) in [(BUFFER, buffer), (CACHE, cache)] {
            rows.extend([row(series, 1.0, 0, times[0]), row(series, 8.0, 0, times[1])]);
        }
        for mapping in MAPPINGS {
            for (at, copies) in [(IN_PLACE, copies[0]), (IN_SEQUENCE, copies[1])] {
                let counts = [("copies", copies), ("host_programs", 100.0), ("erases", 1.0)];
                rows.push(counted(&cleaning_series(mapping, Room::Roomy), at, &counts));
                rows.push(counted(&cleaning_series(mapping, Room::Full), at, &counts));
            }
        }
        for (at, pages) in [(0.0, 100.0), (1.0, pages), (2.0, 50.0)] {
            rows.push(counted(PHYSICAL, at, &[("pages", pages), ("space", 1.0), ("blocks", 1.0)]));
        }
        Rows(rows)
    }

    #[test]
    fn the_four_sentences_hold_and_others_do_not() {
        let judge = |rows: Rows<Simulated>| Study::judge(&AsSpace, &rows, Device::Ssdsim).unwrap();
        let good = || rows([0.3, 0.6], [100.0, 105.0], [50.0, 90.0], [50.0, 10.0], 105.0);
        assert_eq!(judge(good()).verdict(), Verdict::Holds);
        let fails = |rows, key| assert_eq!(judge(rows).outcome(key), Some(Outcome::Fails), "{key}");
        let (buffer, cache, copies) = ([100.0, 105.0], [50.0, 90.0], [50.0, 10.0]);
        fails(rows([0.3, 0.3], buffer, cache, copies, 105.0), "skew, zipfian keys");
        fails(rows([0.3, 0.6], [100.0, 120.0], cache, copies, 105.0), "buffer");
        fails(rows([0.3, 0.6], buffer, [50.0, 52.0], copies, 105.0), "cache");
        fails(rows([0.3, 0.6], buffer, cache, [10.0, 10.0], 105.0), "cleaning, FAST");
        fails(rows([0.3, 0.6], buffer, cache, copies, 120.0), "physical");
    }
}
