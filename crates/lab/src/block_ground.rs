//! What the experiments with synthetic block traces share: their size by scale, and the buffered B-trees of the CB-tree's paper with
//! nodes and buffers as there.

use crate::experiment::{Device, Scale};
use crate::failure::{Failure, Result};
use crate::laboratory::Laboratory;
use crate::quantity::Clock;
use crate::trace::account::Account;
use crate::trace::block_synthesis::{BlockOptions, Like};
use crate::trace::replay::{Forest, Replayed, plant};
use crate::tree_ground::TreeGround;
use psync::Volume;
use std::sync::Arc;
use trees::{
    BTree, BTreeOptions, CbPlacement, CbTree, CbTreeOptions, Ibsf, IbsfOptions, Index, LuTree, LuTreeOptions,
    RecordAsTree, RecordAsTreeOptions,
};

/// Entries of a node.
const NODE: usize = 128;
/// Pages of buffer, of a node's entries each, with which the paper's rivals were fastest.
pub(crate) const BUFFER: usize = 8;

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
}

impl System {
    pub const PUBLISHED: [System; 5] = [System::BTree, System::Lu, System::Ibsf, System::AsTree, System::Cb];

    pub fn name(self) -> &'static str {
        match self {
            System::BTree => "B-tree",
            System::BTreeLru => "B-tree, 4 pages of LRU",
            System::Lu => "LU-tree",
            System::Ibsf => "IBSF",
            System::AsTree => "AS-tree",
            System::Cb => "CB-tree",
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

/// A disk is measured once at scale ci, where each request takes its time.
pub(crate) fn runs<C: Clock>(scale: Scale) -> u32 {
    if C::IS_WALL && scale <= Scale::Ci { 1 } else { C::RUNS }
}

/// The trace of a run.
pub(crate) fn options(like: Like, sequential: f64, divisor: u64, run: u32) -> BlockOptions {
    BlockOptions { like, sequential, divisor, seed: Laboratory::seed(run, 29) }
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
        System::Lu => run::<LuTree, C>(
            ground,
            trace,
            watched,
            LuTreeOptions { units, keys_max, ..LuTreeOptions::default() },
        ),
        System::Ibsf => {
            run::<Ibsf, C>(ground, trace, watched, IbsfOptions { units, keys_max, ..IbsfOptions::default() })
        }
        System::AsTree => {
            let options = RecordAsTreeOptions { records: units, keys_max, ..RecordAsTreeOptions::default() };
            run::<RecordAsTree, C>(ground, trace, watched, options)
        }
        System::Cb => {
            let placement = CbPlacement::InPlace;
            run::<CbTree, C>(
                ground,
                trace,
                watched,
                CbTreeOptions { placement, keys_max, ..CbTreeOptions::default() },
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

/// Writes into the record what the trace of a run is.
pub(crate) fn publish(laboratory: &Laboratory, trace: &BlockOptions, run: u32) -> Result<()> {
    let mut account = Account::default();
    trace.steps().map_err(Failure::CannotRun)?.for_each(|step| account.add(step));
    laboratory.note(match run {
        0 => format!("{}: {}, SHA-256 {}", trace.describe(), account.told(&[]), account.sha256()),
        _ => format!("the same with seed {}: SHA-256 {}", trace.seed, account.sha256()),
    });
    Ok(())
}
