//! What the experiments with synthetic block traces share: their size by scale, and the buffered B-trees of the CB-tree's paper with
//! nodes and buffers as there.

use crate::chart::{Axis, Chart, Line, Scaling};
use crate::experiment::{Device, Parameter, Scale};
use crate::failure::{Failure, Result};
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Quantity};
use crate::row::{Missing, Row, Rows};
use crate::trace::account::Account;
use crate::trace::block_synthesis::{BlockOptions, Like, REUSED};
use crate::trace::replay::{Forest, Replayed, plant};
use crate::tree_ground::TreeGround;
use psync::Volume;
use std::sync::Arc;
use trees::{
    BTree, BTreeOptions, CbPlacement, CbTree, CbTreeOptions, Ibsf, IbsfOptions, Index, LuTree, LuTreeOptions,
    RecordAsTree, RecordAsTreeOptions, Sequential,
};

/// Entries of a node.
const NODE: usize = 128;
/// Pages of buffer, of a node's entries each, with which the paper's rivals were fastest.
pub(crate) const BUFFER: usize = 8;

/// The traces, as figures name them.
pub(crate) const NAMES: [&str; 4] = ["like MSR", "like Exchange", "like TPC-C", "like TPC-E"];

/// A tree of the paper's figures 13 and 14, or one that is needed beside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum System {
    /// Without any buffer.
    BTree,
    /// With as many pages as the CB-tree has at most.
    BTreeLru,
    Lu,
    Ibsf,
    AsTree,
    Cb,
    /// Those whose insertions go down to their leaf before they wait.
    LuDescends,
    IbsfDescends,
    AsTreeDescends,
    /// With other meanings of "sequential".
    CbRelaxed,
    CbLast,
}

impl System {
    pub const PUBLISHED: [System; 5] = [System::BTree, System::Lu, System::Ibsf, System::AsTree, System::Cb];

    /// Readings of what the paper does not tell.
    pub const VARIANTS: [System; 5] =
        [System::LuDescends, System::IbsfDescends, System::AsTreeDescends, System::CbRelaxed, System::CbLast];

    pub fn name(self) -> &'static str {
        match self {
            System::BTree => "B-tree",
            System::BTreeLru => "B-tree, 4 pages of LRU",
            System::Lu => "LU-tree",
            System::Ibsf => "IBSF",
            System::AsTree => "AS-tree",
            System::Cb => "CB-tree",
            System::LuDescends => "by variant: LU-tree that descends",
            System::IbsfDescends => "by variant: IBSF that descends",
            System::AsTreeDescends => "by variant: AS-tree that descends",
            System::CbRelaxed => "by variant: CB-tree, leaves filled in order",
            System::CbLast => "by variant: CB-tree, every last key",
        }
    }
}

/// By how much the published numbers of requests are divided.
pub(crate) fn divisor(scale: Scale, device: Device) -> u64 {
    match scale {
        Scale::Trial => 4000,
        Scale::Ci if device == Device::Disk => 400,
        Scale::Ci => 40,
        Scale::Std => 10,
        Scale::Full => 1,
    }
}

/// As often as anything else: one run of a disk cannot tell trees apart whose times differ by less than its runs do.
pub(crate) fn runs<C: Clock>(scale: Scale) -> u32 {
    if C::IS_WALL && scale == Scale::Trial { 1 } else { C::RUNS }
}

/// The trace of a run.
pub(crate) fn options(like: Like, sequential: f64, divisor: u64, run: u32) -> BlockOptions {
    BlockOptions { like, sequential, divisor, seed: Laboratory::seed(run, 29), reused: REUSED }
}

/// Replays a trace on an empty tree of a system, with a buffer of so many pages where it has one.
pub(crate) fn replay<C: Clock>(
    ground: &TreeGround<C>,
    system: System,
    buffer: usize,
    trace: &BlockOptions,
    watched: bool,
) -> Result<Replayed> {
    let keys_max = Some(NODE);
    let units = buffer * NODE;
    let descends = matches!(system, System::LuDescends | System::IbsfDescends | System::AsTreeDescends);
    match system {
        System::BTree => run::<BTree, C>(
            ground,
            trace,
            watched,
            BTreeOptions { frames: 0, keys_max, ..BTreeOptions::default() },
        ),
        System::BTreeLru => run::<BTree, C>(
            ground,
            trace,
            watched,
            BTreeOptions { frames: 4, keys_max, ..BTreeOptions::default() },
        ),
        System::Lu | System::LuDescends => run::<LuTree, C>(
            ground,
            trace,
            watched,
            LuTreeOptions { units, keys_max, descends, ..LuTreeOptions::default() },
        ),
        System::Ibsf | System::IbsfDescends => {
            let options = IbsfOptions { units, keys_max, descends, ..IbsfOptions::default() };
            run::<Ibsf, C>(ground, trace, watched, options)
        }
        System::AsTree | System::AsTreeDescends => {
            let options =
                RecordAsTreeOptions { records: units, keys_max, descends, ..RecordAsTreeOptions::default() };
            run::<RecordAsTree, C>(ground, trace, watched, options)
        }
        System::Cb | System::CbRelaxed | System::CbLast => {
            let placement = CbPlacement::InPlace;
            let sequential = match system {
                System::CbRelaxed => Sequential::Relaxed,
                System::CbLast => Sequential::Last,
                _ => Sequential::Strict,
            };
            run::<CbTree, C>(
                ground,
                trace,
                watched,
                CbTreeOptions { placement, keys_max, sequential, ..CbTreeOptions::default() },
            )
        }
    }
}

fn run<T: Index<Ground = Arc<dyn Volume>> + 'static, C: Clock>(
    ground: &TreeGround<C>,
    trace: &BlockOptions,
    watched: bool,
    options: T::Options,
) -> Result<Replayed>
where
    T::Options: 'static,
{
    let plant = plant::<T>(move |_| options.clone());
    let steps = trace.steps().map_err(Failure::CannotRun)?;
    Forest::bare().replay(ground, &plant, steps.map(Ok), watched)
}

/// What is done to the trees.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round<'a> {
    pub laboratory: &'a Laboratory,
    /// See [`divisor`].
    pub divisor: u64,
    pub run: u32,
}

/// Replays each trace on each of `systems`, one after the other; `row` makes a row of a series and a place of what was found.
/// `watched`: hits of nodes are counted.
pub(crate) fn replay_each<C: Clock>(
    round: Round<'_>,
    systems: &[System],
    watched: bool,
    ground: &mut impl FnMut(u32) -> Result<TreeGround<C>>,
    row: impl Fn(&Replayed, &str, f64, u32) -> Row<C>,
) -> Result<Vec<Row<C>>> {
    let Round { laboratory, divisor, run } = round;
    let mut rows = Vec::new();
    for (at, like) in Like::ALL.into_iter().enumerate() {
        let trace = options(like, like.sequential(), divisor, run);
        publish(laboratory, &trace, run)?;
        for system in systems {
            laboratory.step(&format!("{}, {}", system.name(), like.name()))?;
            let place = ground(run)?;
            let before = place.flash_counts();
            let replayed = replay(&place, *system, BUFFER, &trace, watched)?;
            let mut row = row(&replayed, system.name(), at as f64, run);
            let did = place.flash_counts().into_iter().zip(before);
            row.counts.extend(did.map(|((name, now), (_, then))| (name.to_owned(), (now - then) as f64)));
            rows.push(row);
        }
    }
    Ok(rows)
}

/// Settings that the experiments share: the traces first.
pub(crate) fn parameters(scale: Scale, device: Device, published_traces: &str) -> Vec<Parameter> {
    let divisor = divisor(scale, device);
    let trace = |like: Like| {
        let (writes, reads) = options(like, like.sequential(), divisor, 0).requests();
        format!("{}: {writes} writes, {reads} reads, s = {}", like.name(), like.sequential())
    };
    vec![
        Parameter::new("traces", published_traces, Like::ALL.map(trace).join("; ")),
        Parameter::new("node", "128 entries", "128 entries, a page of 4 KiB"),
        Parameter::new(
            "buffer",
            "8 pages; CB-tree: a node a level, at most 4",
            "8 × 128 updates; CB-tree: a node a level",
        ),
    ]
}

/// A bar for each trace and system; of other series nothing.
pub(crate) fn draw<C: Clock, Q: Quantity>(
    rows: &Rows<C>,
    (title, label): (&str, &str),
    scale: f64,
    figure: impl Fn(&Row<C>) -> Q,
) -> std::result::Result<Chart, Missing> {
    let mut lines = Line::all(rows, scale, figure)?;
    lines.retain(|line| !line.name.starts_with("by "));
    Ok(Chart {
        title: title.into(),
        x: Axis { label: "synthetic trace".into(), scale: Scaling::Names(&NAMES) },
        y: Axis { label: label.into(), scale: Scaling::Even },
        lines,
        bars: true,
    })
}

/// Writes into the record what the trace of a run is.
fn publish(laboratory: &Laboratory, trace: &BlockOptions, run: u32) -> Result<()> {
    let mut account = Account::default();
    trace.steps().map_err(Failure::CannotRun)?.for_each(|step| account.add(step));
    laboratory.note(match run {
        0 => format!("{}: {}, SHA-256 {}", trace.describe(), account.told(&[]), account.sha256()),
        _ => format!("the same with seed {}: SHA-256 {}", trace.seed, account.sha256()),
    });
    Ok(())
}
