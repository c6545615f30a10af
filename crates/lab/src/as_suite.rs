//! The trees of the AS B-tree paper (JISE 30, 2014, section 4), built as there, and what its experiments do to them: figures
//! 9 to 12 are one run each of the same shape, which is here.
//!
//! Invariants:
//! 1. All trees of a run hold the same records, filled alike, and are asked the same keys in the same order.
//! 2. The B+-tree has the AS B-tree's write buffer and cache: they differ in where a full buffer goes.

use crate::chart::{Axis, Chart, Line, Scaling, number};
use crate::experiment::{Device, Parameter, Scale};
use crate::failure::Result;
use crate::judgement::Judgement;
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Lapse, Quantity, Simulated};
use crate::row::{Missing, Row, Rows};
use crate::tree_ground::{FILL, Past, TreeGround};
use crate::wording::times;
use flash::ReadPriority;
use psync::{Access, AlignedBuffer, Read, Write};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use trees::{AsTree, AsTreeOptions, BatchedBTree, BatchedBTreeOptions, Bftl, BftlOptions, Index};

/// Keys are so far apart that one inserted at random is a new one.
pub(crate) const SPACING: u64 = 1 << 24;
/// F, as published.
pub(crate) const FANOUTS: [usize; 3] = [64, 128, 256];

/// Records and operations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub records: u64,
    pub operations: u64,
}

impl Size {
    /// The published records at every scale, since time depends on levels and on nodes that are in memory; of the
    /// operations, as many as there is time for.
    pub fn of(scale: Scale, device: Device) -> Self {
        let operations = match (scale, device) {
            (Scale::Trial, _) => return Self { records: 20_000, operations: 600 },
            (Scale::Ci, Device::Disk) => 2_000,
            (Scale::Ci, _) => 8_000,
            (Scale::Std, Device::Disk) => 5_000,
            _ => 100_000,
        };
        Self { records: 400_000, operations }
    }

    pub fn parameters(self) -> Vec<Parameter> {
        vec![
            Parameter::new("records at first", "400,000", self.records.to_string()),
            Parameter::new("operations of a kind", "100,000", self.operations.to_string()),
        ]
    }
}

/// How often a point is measured: what is long has little to gain from repetition.
pub(crate) fn runs<C: Clock>(scale: Scale) -> u32 {
    match scale {
        Scale::Trial => C::RUNS,
        Scale::Ci if C::NAME == Simulated::NAME => C::RUNS,
        Scale::Ci | Scale::Std => 1,
        Scale::Full => 3,
    }
}

/// Bytes of a node of F keys: 8 KiB for 256, as published, and in proportion, but no less than drives take.
pub(crate) fn node_len(keys: usize) -> usize {
    (32 * keys).max(4096)
}

/// As the paper's comparison: a reservation buffer of F units, no reuse of space, C = 3. Two things are said of C: that a list
/// is compacted when it is longer than that (so lists of 3 are read), and that a node is read from 1.49 sectors, which is what
/// a leaf has if a list of 3 is compacted at once (so lists of 2 are read).
pub(crate) fn bftl(keys: usize, chain_max: usize, frames: usize) -> BftlOptions {
    BftlOptions {
        sector_len: node_len(keys),
        units: keys,
        chain_max,
        keys_max: Some(keys),
        frames,
        ..BftlOptions::default()
    }
}

/// The bars of figures 9 to 12, and three more.
pub(crate) const NAMES: [&str; 9] = [
    "B+-tree",
    "BFTL",
    "AS, WB 1",
    "AS, WB 8",
    "AS, WB 16",
    "AS, WB 32",
    "B+ by sets",
    "BFTL, 3 long",
    "AS, singly",
];
/// The B+-tree, whose write buffer has 32 nodes as well.
pub(crate) const IN_PLACE: f64 = 0.0;
/// BFTL with lists of 2 sectors at most.
pub(crate) const BFTL: f64 = 1.0;
/// The AS B-tree with the largest write buffer.
pub(crate) const AS: f64 = 5.0;
/// The B+-tree that writes a full buffer as one set.
pub(crate) const IN_PLACE_SETS: f64 = 6.0;
/// BFTL with lists of 3.
pub(crate) const BFTL_LONG: f64 = 7.0;
/// The AS B-tree with the largest write buffer, which writes it node by node, as algorithm 2 is printed.
pub(crate) const AS_SINGLY: f64 = 8.0;
/// Where the AS B-trees stand, and their write buffers.
pub(crate) const WRITE_BUFFERS: [(f64, usize); 4] = [(2.0, 1), (3.0, 8), (4.0, 16), (AS, 32)];

/// A tree to build.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recipe {
    /// Which: a place in [`NAMES`].
    pub which: f64,
    /// F.
    pub keys: usize,
    /// Nodes in its cache.
    pub cached: usize,
}

/// One that was built.
pub(crate) enum Grown {
    InPlace(BatchedBTree),
    Bftl(Bftl),
    As(AsTree),
}

impl Recipe {
    /// All of a figure.
    pub fn grid(fanouts: &[usize]) -> Vec<Self> {
        let places = (0..NAMES.len()).map(|place| place as f64);
        let all = fanouts
            .iter()
            .flat_map(|keys| places.clone().map(|which| Recipe { which, keys: *keys, cached: 0 }));
        all.filter(|recipe| recipe.which < IN_PLACE_SETS || recipe.keys == 256).collect()
    }

    fn slots(self) -> usize {
        WRITE_BUFFERS.iter().find(|(at, _)| *at == self.which).map_or(32, |(_, slots)| *slots)
    }

    /// Builds it with the records `0..records`, [`SPACING`] apart.
    pub fn build<C: Clock>(self, place: &TreeGround<C>, records: u64) -> Result<Grown> {
        let (volume, keys_max, page_len) = (Arc::clone(&place.volume), Some(self.keys), node_len(self.keys));
        let mut records = (0..records).map(|index| (index * SPACING, index));
        let (slots, cached) = (self.slots(), self.cached);
        Ok(if self.which == IN_PLACE || self.which == IN_PLACE_SETS {
            let parallel = self.which == IN_PLACE_SETS;
            let options = BatchedBTreeOptions { page_len, keys_max, slots, cached, parallel };
            Grown::InPlace(BatchedBTree::bulk_load(volume, &options, FILL, &mut records)?)
        } else if self.which == BFTL || self.which == BFTL_LONG {
            let options = bftl(self.keys, if self.which == BFTL { 2 } else { 3 }, cached);
            Grown::Bftl(Bftl::bulk_load(volume, &options, FILL, &mut records)?)
        } else {
            let options = AsTreeOptions {
                node_len: page_len,
                keys_max,
                slots,
                cached,
                // The paper's has none.
                checkpoint_every: 0,
                ..AsTreeOptions::default()
            };
            let mut tree = AsTree::bulk_load(volume, &options, FILL, &mut records)?;
            if self.which == AS_SINGLY {
                tree.write_singly();
            }
            Grown::As(tree)
        })
    }
}

impl Grown {
    pub fn index(&mut self) -> &mut dyn Index {
        match self {
            Grown::InPlace(tree) => tree,
            Grown::Bftl(tree) => tree,
            Grown::As(tree) => tree,
        }
    }

    /// What it has counted so far, by name.
    fn ever(&mut self) -> Vec<(&'static str, f64)> {
        let stats = self.index().stats();
        let special = match self {
            Grown::InPlace(tree) => {
                let details = tree.details();
                vec![
                    ("node_reads", details.reads),
                    ("node_read_hits", details.read_hits),
                    ("node_writes", details.writes),
                    ("node_write_hits", details.write_hits),
                ]
            }
            Grown::As(tree) => {
                let details = tree.details();
                vec![
                    ("node_reads", details.reads),
                    ("node_read_hits", details.read_hits),
                    ("node_writes", details.writes),
                    ("node_write_hits", details.write_hits),
                    ("node_copies", details.copies),
                ]
            }
            Grown::Bftl(tree) => {
                let details = tree.details();
                vec![
                    ("nodes_read", details.nodes_read),
                    ("sectors_visited", details.sectors_visited),
                    ("sectors_committed", details.sectors_committed),
                    ("compactions", details.compactions),
                ]
            }
        };
        let common = [
            ("pages_read", stats.pages_read),
            ("pages_written", stats.pages_written),
            ("hits", stats.hits),
            ("splits", stats.splits),
        ];
        common.into_iter().chain(special).map(|(name, count)| (name, count as f64)).collect()
    }

    /// What it takes, by name.
    fn now(&mut self) -> Vec<(&'static str, f64)> {
        let stats = self.index().stats();
        vec![
            ("height", f64::from(stats.height)),
            ("space", stats.space as f64),
            ("memory", stats.memory as f64),
        ]
    }

    /// Does `count` operations, and writes down what they took and what the tree counted.
    pub fn row<C: Clock>(
        &mut self,
        place: &TreeGround<C>,
        (series, at, run): (&str, f64, u32),
        count: u64,
        work: impl FnOnce(&mut dyn Index) -> Result<()>,
    ) -> Result<Row<C>> {
        let before = self.ever();
        let mut row = place.row(series, at, run, count, || work(self.index()))?;
        let did = self.ever().into_iter().zip(before).map(|((name, now), (_, then))| (name, now - then));
        row.counts.extend(did.chain(self.now()).map(|(name, count)| (name.to_owned(), count)));
        Ok(row)
    }
}

/// What is done to a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Insert,
    Search,
    Update,
    Delete,
}

impl Act {
    pub fn name(self) -> &'static str {
        match self {
            Act::Insert => "insert",
            Act::Search => "search",
            Act::Update => "update",
            Act::Delete => "delete",
        }
    }

    /// Does it `count` times: new keys are inserted, keys of the first records found, changed, or removed, each once.
    pub fn perform(self, tree: &mut dyn Index, size: Size, seed: u64, count: u64) -> Result<()> {
        let mut rng = StdRng::seed_from_u64(seed);
        if self == Act::Delete {
            let chosen = rand::seq::index::sample(&mut rng, size.records as usize, count as usize);
            return chosen.iter().try_for_each(|index| Ok(tree.delete(index as u64 * SPACING)?));
        }
        for index in 0..count {
            match self {
                Act::Insert => tree.insert(rng.random_range(0..size.records * SPACING), index)?,
                Act::Update => tree.update(rng.random_range(0..size.records) * SPACING, index)?,
                _ => drop(tree.search(rng.random_range(0..size.records) * SPACING)?),
            }
        }
        Ok(())
    }
}

/// The name of a line: one F.
pub(crate) fn series(drive: &str, act: Act, keys: usize) -> String {
    let act = act.name();
    if drive.is_empty() { format!("{act}, F = {keys}") } else { format!("{drive}, {act}, F = {keys}") }
}

/// What single requests take on a device, by which a tree's time can be foretold from its counts.
pub(crate) struct Foretold<C: Clock> {
    read: Lapse<C>,
    write: Lapse<C>,
    batch: Lapse<C>,
}

const FORETOLD_FILE: &str = "foretold";
const FORETOLD_REQUESTS: u64 = 200;

impl<C: Clock> Foretold<C> {
    /// Measures requests of a node at random places and whole write buffers in sequence, in a file that goes again.
    pub fn measure(place: &TreeGround<C>, node_len: usize, slots: usize) -> Result<Self> {
        let (volume, nodes) = (&place.volume, 2048);
        let access = Access { write: true, create: true, direct: true, ..Access::default() };
        let file = volume.open(FORETOLD_FILE, access)?;
        let mut node = AlignedBuffer::new(node_len);
        let batch = AlignedBuffer::new(node_len * slots);
        let batches = (nodes / slots) as u64;
        let sequential = || -> Result<()> {
            (0..batches).try_for_each(|index| {
                Ok(volume.write(&[Write { file, offset: index * batch.len() as u64, data: &batch }])?)
            })
        };
        sequential()?;
        volume.sync(file)?;
        let ((), written) = place.time(sequential)?;
        let mut rng = StdRng::seed_from_u64(11);
        let mut offset = || rng.random_range(0..nodes as u64) * node_len as u64;
        let ((), read) = place.time(|| {
            (0..FORETOLD_REQUESTS).try_for_each(|_| {
                Ok(volume.read(&mut [Read { file, offset: offset(), buffer: &mut node }])?)
            })
        })?;
        let ((), write) = place.time(|| {
            (0..FORETOLD_REQUESTS)
                .try_for_each(|_| Ok(volume.write(&[Write { file, offset: offset(), data: &node }])?))
        })?;
        volume.close(file)?;
        volume.remove(FORETOLD_FILE)?;
        Ok(Self {
            read: read.each(FORETOLD_REQUESTS),
            write: write.each(FORETOLD_REQUESTS),
            batch: written.each(batches),
        })
    }

    /// Microseconds for what a row counts; nothing else is asked of the device.
    pub fn micros(&self, row: &Row<C>, which: f64) -> f64 {
        let (reads, writes) = (row.count("reads"), row.count("writes"));
        let one =
            if [IN_PLACE, BFTL, BFTL_LONG, AS_SINGLY].contains(&which) { self.write } else { self.batch };
        reads * self.read.number() + writes * one.number()
    }
}

/// Builds the trees of `recipes` one after the other, and does `acts` to each. Where `foretells`, rows have the time that
/// the device's latencies foretell.
pub(crate) fn measure<C: Clock>(
    laboratory: &Laboratory,
    device: Device,
    (drive, foretells): (&str, bool),
    recipes: &[Recipe],
    acts: &[Act],
    mut ground: impl FnMut(u32) -> Result<TreeGround<C>>,
) -> Result<Rows<C>> {
    let size = Size::of(laboratory.scale, device);
    let runs = runs::<C>(laboratory.scale);
    laboratory.expect(recipes.len() * acts.len() * runs as usize);
    let mut rows = Vec::new();
    for run in 0..runs {
        let mut times = HashMap::new();
        for recipe in recipes {
            let kind = (recipe.keys, recipe.slots());
            if foretells && !times.contains_key(&kind) {
                times.insert(kind, Foretold::measure(&ground(run)?, node_len(recipe.keys), recipe.slots())?);
            }
            let place = ground(run)?.with_accounts();
            let mut tree = recipe.build(&place, size.records)?;
            for (number, act) in acts.iter().enumerate() {
                let name = series(drive, *act, recipe.keys);
                laboratory.step(&format!("{name}, {}", NAMES[recipe.which as usize]))?;
                let seed = Laboratory::seed(run, number);
                let mut row = tree.row(&place, (&name, recipe.which, run), size.operations, |tree| {
                    act.perform(tree, size, seed, size.operations)
                })?;
                if let Some(times) = times.get(&kind) {
                    row.counts.insert("foretold_us".into(), times.micros(&row, recipe.which));
                }
                rows.push(row);
            }
        }
    }
    Ok(Rows(rows))
}

/// The fitted X25-E by what it has gone through: a used one, as table 1's must have been, whose random writes were a ninth as fast
/// as sequential ones; a new one; and, to see what the cache does, a new one without.
pub(crate) const X25_E: [(Past, &str); 3] = [
    (Past::Used, "X25-E, used"),
    (Past::New, "X25-E, new"),
    (Past::Uncached, "X25-E, new and without write cache"),
];

/// The same used one, if its reads have priority. That drives of that time had that is known of none, so nothing is judged by it.
pub(crate) const X25_E_READS_FIRST: [(Past, &str); 2] = [
    (Past::UsedReadsFirst(ReadPriority::Queued), "X25-E, used, reads pass what waits"),
    (Past::UsedReadsFirst(ReadPriority::Suspending), "X25-E, used, reads interrupt"),
];

/// The same of other trees there, and of times by misses.
pub(crate) const X25_E_UNKNOWN: &str = "not known. The fitted drive answers writes from its cache, and reads wait for what it programs meanwhile (E20), so that \
    insertions that write little pay less; no experiment has asked whether that is what makes the difference here";

/// Why the AS B-tree does not win on it.
pub(crate) const X25_E_CACHE: &str = "the fitted drive has a write cache, as large as the trees' full buffers. Writes of either tree are answered from it, \
    in sequence or not (47 and 32 us a node), and what remains of their price is paid by reads, which wait for what the drive programs and \
    collects meanwhile: on the used drive 455 us a read, on the new one 154, where table 2 has 187 and 227. That it is the cache asks \
    the line without one: there the B+-tree takes 1.7 times the AS B-tree's time and more. That reads wait asks E20 with \
    reads that have priority on the used drive: if they pass what has not begun, the B+-tree takes 1.10 times the AS B-tree's time (it \
    reads a node in 305 us, the AS B-tree in 215), if they interrupt programs as well 1.06. The order of these two is the published one \
    then, the band and BFTL's place are not; that the drive did so no source says. Of table 2's 17 s of difference 12 are reads, which \
    the paper puts down to simpler code, and which are the same reads here";

/// Does `acts` to the trees of figures 9 to 12 with F = 256 on the fitted drive, at all scales but the largest: it has no room for that.
pub(crate) fn measure_on_x25_e(
    laboratory: &Laboratory,
    acts: &[Act],
    drives: &[(Past, &str)],
) -> Result<Rows<Simulated>> {
    let mut rows = Rows(Vec::new());
    if laboratory.scale > Scale::Std {
        return Ok(rows);
    }
    let recipes = [IN_PLACE, BFTL, AS, IN_PLACE_SETS, BFTL_LONG, AS_SINGLY].map(|which| Recipe {
        which,
        keys: 256,
        cached: 0,
    });
    for &(past, drive) in drives {
        let scale = laboratory.scale;
        let ground = |run| TreeGround::on_small_x25_e(past, scale, run);
        rows.0.extend(measure(laboratory, Device::Ssdsim, (drive, false), &recipes, acts, ground)?.0);
    }
    Ok(rows)
}

/// What a figure says of the AS B-tree with F = 256 and 32 nodes of buffer.
#[derive(Clone, Debug)]
pub(crate) struct Published {
    pub act: Act,
    /// The B+-tree's time by its, as "21 % better" can be read.
    pub in_place: RangeInclusive<f64>,
    /// BFTL's time by its.
    pub bftl: RangeInclusive<f64>,
}

/// Judges a figure on the fitted drive that was used, and reports it on the new one. Nothing if the record has none of it.
pub(crate) fn judge_on_x25_e<C: Clock>(
    judgement: &mut Judgement,
    rows: &Rows<C>,
    published: &Published,
) -> std::result::Result<(), Missing> {
    let Published { act, in_place, bftl } = published;
    for (past, drive) in X25_E.into_iter().chain(X25_E_READS_FIRST) {
        let line = series(drive, *act, 256);
        if !rows.series().contains(&line.as_str()) {
            continue;
        }
        let time = |at| rows.median(&line, at, Row::latency);
        let (ours, theirs, long) = (time(AS)?, time(IN_PLACE)?, time(BFTL_LONG)?);
        let told = format!(
            "{}, {} and {} us",
            number(ours.number()),
            number(theirs.number()),
            number(long.number())
        );
        let key = |key: &str| format!("{drive}, {key}");
        let claim = format!(
            "{drive}: the AS B-tree takes less time than the B+-tree, and that less than BFTL (C = 3)"
        );
        if past == Past::Used {
            judgement.check(&key("order"), &claim, "in this order", told, ours < theirs && theirs < long);
        } else {
            judgement.report(&key("order"), &claim, "in this order", told);
        }
        for (name, what, time, band) in [
            ("in-place", "the B+-tree's time by the AS B-tree's", theirs, in_place),
            ("bftl", "BFTL's time (C = 3) by the AS B-tree's", long, bftl),
        ] {
            let (claim, ratio) = (format!("{drive}: {what}"), time.over(ours));
            if past == Past::Used {
                judgement.band(&key(name), &claim, times(ratio), [ratio], band.clone());
            } else {
                let paper = format!("{} to {}", band.start(), band.end());
                judgement.report(&key(name), &claim, &paper, times(ratio));
            }
        }
        judgement.report(
            &key("others"),
            &format!("{drive}: written one by one, in place as a set, BFTL with lists of 2: times by the AS B-tree's"),
            "not told",
            [AS_SINGLY, IN_PLACE_SETS, BFTL]
                .into_iter()
                .map(|at| Ok(times(time(at)?.over(ours))))
                .collect::<std::result::Result<Vec<_>, Missing>>()?
                .join(", "),
        );
        if rows.0.iter().any(|row| row.series == line && row.counts.contains_key("read_us")) {
            let takes = |at| -> std::result::Result<String, Missing> {
                let read = rows.median(&line, at, |row| row.count("read_us") / row.count("reads"))?;
                let writes = rows.median(&line, at, |row| row.count("write_us") / row.requests as f64)?;
                Ok(format!("{} and {}", number(read), number(writes)))
            };
            judgement.report(
                &key("takes"),
                &format!("{drive}: a read, and the writes of an operation, in us: B+-tree; AS B-tree"),
                "inserting (table 2): 227 and 100; 187 and 50",
                format!("{}; {}", takes(IN_PLACE)?, takes(AS)?),
            );
        }
    }
    Ok(())
}

/// Settings that all of figures 9 to 12 share.
pub(crate) fn parameters(scale: Scale, device: Device, fanouts: &[usize]) -> Vec<Parameter> {
    let mut parameters = Size::of(scale, device).parameters();
    parameters.extend([
        Parameter::new("F", "64, 128, 256", format!("{fanouts:?}")),
        Parameter::new("node", "8 KB at F = 256", "32 bytes for each of F keys, but 4 KiB at least"),
        Parameter::new("WB", "1, 8, 16, 32 nodes; 32 for the B+-tree", "the same"),
        Parameter::new(
            "BFTL",
            "buffer F, C = 3, 1.49 sectors a node",
            "buffer F, lists of 2 sectors at most, and of 3",
        ),
        Parameter::new("cache", "none", "none"),
        Parameter::new(
            "first records",
            "not told",
            "loaded in bulk, nodes 69 % full alike: hardly any of them is split (of the paper's insertions about one in 130 splits one)",
        ),
    ]);
    parameters
}

/// Operations a second of the whole grid, as the paper draws it.
pub(crate) fn draw<C: Clock>(
    rows: &Rows<C>,
    title: &str,
    shown: &str,
) -> std::result::Result<Chart, Missing> {
    let mut lines = Line::all(rows, 1.0, Row::latency)?;
    lines.retain(|line| line.name.contains(shown) && !line.name.starts_with("X25-E"));
    Ok(Chart {
        title: title.into(),
        x: Axis { label: "tree, and nodes in its write buffer".into(), scale: Scaling::Names(&NAMES) },
        y: Axis { label: "time of an operation, us".into(), scale: Scaling::Even },
        lines,
        bars: true,
    })
}

/// A claim about time: asked on the simulated drive; on a disk, whose writes are not the paper's, it is reported.
pub(crate) fn claim(
    judgement: &mut Judgement,
    device: Device,
    (key, claim, paper): (&str, &str, &str),
    ours: String,
    holds: bool,
) {
    if device == Device::Ssdsim {
        judgement.check(key, claim, paper, ours, holds);
    } else {
        judgement.report(key, claim, paper, ours);
    }
}

/// A claim with a band, asked where [`claim`] asks.
pub(crate) fn claim_band(
    judgement: &mut Judgement,
    device: Device,
    (key, claim): (&str, &str),
    ratio: f64,
    band: RangeInclusive<f64>,
) {
    if device == Device::Ssdsim {
        judgement.band(key, claim, times(ratio), [ratio], band);
    } else {
        judgement.report(key, claim, &format!("{} to {}", band.start(), band.end()), times(ratio));
    }
}

/// On any device: how the AS B-tree's time stands to the B+-tree's is what their counts and the device's latencies foretell.
pub(crate) fn as_foretold<C: Clock>(
    judgement: &mut Judgement,
    rows: &Rows<C>,
    series: &str,
) -> std::result::Result<(), Missing> {
    let time = |at| rows.median(series, at, |row| row.elapsed_us);
    let foretold = |at| rows.median(series, at, |row| row.count("foretold_us"));
    let (measured, expected) = (time(AS)?.over(time(IN_PLACE)?), foretold(AS)? / foretold(IN_PLACE)?);
    judgement.check(
        "foretold",
        "the AS B-tree's time by the B+-tree's is what their counts and the device's latencies foretell (25 %)",
        "not told",
        format!("{measured:.2} against {expected:.2}"),
        (measured / expected - 1.0).abs() <= 0.25,
    );
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::row::tests::row;

    /// Rows of a figure: times of the B+-tree, BFTL, and the AS B-tree by write buffer; what is foretold is what was found.
    pub(crate) fn figure<C: Clock>(series: &str, times: [f64; 6]) -> Vec<Row<C>> {
        let times = times.into_iter().chain([times[0], times[1], times[5]]).enumerate();
        let rows = times.map(|(at, time)| {
            let mut row = row(series, at as f64, 0, time);
            row.counts.insert("foretold_us".into(), time * 1000.0);
            row
        });
        rows.collect()
    }

    #[test]
    fn a_foretold_time_is_that_of_the_counts() {
        let place = TreeGround::on_ssdsim(0).unwrap();
        let times = Foretold::measure(&place, 8192, 32).unwrap();
        assert!(times.read < times.write && times.write < times.batch, "a batch is 32 nodes");
        assert!(times.batch.number() < 8.0 * times.write.number());
        let mut row = row("x", 0.0, 0, 1.0);
        row.counts.extend([("reads".into(), 3.0), ("writes".into(), 2.0)]);
        let expected = 3.0 * times.read.number() + 2.0 * times.write.number();
        assert_eq!(times.micros(&row, IN_PLACE), expected);
        assert!(times.micros(&row, AS) > expected);
    }

    #[test]
    fn acts_do_what_they_say() {
        let place = TreeGround::on_ssdsim(0).unwrap();
        let size = Size { records: 1000, operations: 100 };
        for recipe in Recipe::grid(&[256]) {
            let place = TreeGround::on_ssdsim(0).unwrap();
            let mut tree = recipe.build(&place, size.records).unwrap();
            let index = tree.index();
            let mut count = |act: Act| {
                act.perform(index, size, 1, size.operations).unwrap();
                index.check().unwrap().records
            };
            let after = [Act::Insert, Act::Search, Act::Update, Act::Delete].map(&mut count);
            assert_eq!(after, [1100, 1100, 1100, 1000], "{}", NAMES[recipe.which as usize]);
        }
        drop(place);
        assert_eq!(Recipe::grid(&FANOUTS).len(), 3 * 6 + 3);
    }
}
