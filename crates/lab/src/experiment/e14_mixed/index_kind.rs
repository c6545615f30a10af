//! The four indexes of figure 12 and their variants: what each is to be for a load, by its own cost model, and how it is grown.

use super::{Accounts, BFTL, BTREE, BTREE_BY_LEVEL, FD_HEAD, FD_PAGED, FD_TREE};
use crate::failure::Result;
use crate::laboratory::Laboratory;
use crate::quantity::Clock;
use crate::rival_tuning::{self, Division, HEAD_ENTRY};
use crate::rounds::whole_round_of_runs;
use crate::tree_choice;
use crate::tree_ground::{TreeGround, TreeSize, UniformKeys};
use trees::{
    BTree, BTreeOptions, Bftl, BftlOptions, DeviceTimes, FdTree, FdTreeOptions, Index, Load, PioOptions,
    PioTree, level_table, tune_btree,
};

pub(super) enum Options {
    BTree(BTreeOptions),
    Bftl(BftlOptions),
    Fd(FdTreeOptions),
    Pio(PioOptions),
}

pub(super) enum Tree {
    BTree(BTree),
    Bftl(Bftl),
    Fd(FdTree),
    Pio(Box<PioTree>),
}

impl Tree {
    pub(super) fn index(&mut self) -> &mut dyn Index {
        match self {
            Tree::BTree(tree) => tree,
            Tree::Bftl(tree) => tree,
            Tree::Fd(tree) => tree,
            Tree::Pio(tree) => tree.as_mut(),
        }
    }
}

/// What an index is to be for a load, and what its model says of it, in microseconds.
pub(super) fn tuned(
    name: &str,
    times: &DeviceTimes,
    load: &Load,
    accounts: Accounts,
) -> Result<(Options, Option<f64>)> {
    Ok(match name {
        BTREE | BTREE_BY_LEVEL => {
            let choice = tune_btree(times, load).map(|choice| choice.page_len).unwrap_or(4096);
            let model = level_table::btree(times, load, choice).mixed;
            (Options::BTree(tree_choice::btree_of(choice, load)), Some(model))
        }
        BFTL => (Options::Bftl(rival_tuning::bftl(times, load)), None),
        FD_TREE | FD_HEAD | FD_PAGED => {
            let entry = if accounts == Accounts::Paper { 17 } else { HEAD_ENTRY };
            let division = if name == FD_TREE { Division::HeadAndPool } else { Division::Head };
            (Options::Fd(rival_tuning::fd_tree(times, load, entry, division)?), None)
        }
        _ => {
            let mut options = tree_choice::pio(times, load)?;
            if accounts == Accounts::Ram {
                // An entry of the queue takes 17 bytes on the device, and 40 in memory.
                let more = (options.queue_pages * 23).div_ceil(17);
                options.frames = options.frames.saturating_sub(more).max(1);
            }
            let (page_len, segments, queue) = (options.page_len, options.segments, options.queue_pages);
            let model = level_table::pio(times, load, page_len, segments, queue as f64).mixed;
            (Options::Pio(options), Some(model))
        }
    })
}

impl Options {
    /// What is the same for trees of which one can be used in the place of the other.
    pub(super) fn shape(&self) -> String {
        match self {
            Options::BTree(options) => format!("nodes of {} bytes", options.page_len),
            Options::Bftl(options) => format!("C = {}", options.chain_max),
            Options::Fd(options) => format!(
                "k = {}, pages of {} bytes, {} of head and {} of pool",
                options.ratio, options.page_len, options.head_pages, options.frames
            ),
            Options::Pio(options) => format!("L = {}, pages of {} bytes", options.segments, options.page_len),
        }
    }

    pub(super) fn grow<C: Clock>(&self, place: &TreeGround<C>, size: TreeSize) -> Result<Tree> {
        let mut tree = match self {
            Options::BTree(options) => Tree::BTree(place.grow(options, size.records)?),
            Options::Bftl(options) => Tree::Bftl(place.grow(options, size.records)?),
            Options::Fd(options) => Tree::Fd(place.grow(options, size.records)?),
            Options::Pio(options) => Tree::Pio(Box::new(place.grow(options, size.records)?)),
        };
        if let Tree::Fd(tree) = &mut tree {
            // A lowest run that was loaded has pages that are less full than those of one that was merged.
            let mut keys = UniformKeys::new(Laboratory::seed(0, 999), size.records);
            whole_round_of_runs(tree, |tree| Ok(tree.insert(keys.next(), 0)?))?;
        }
        Ok(tree)
    }

    /// The parameters, for the record.
    pub(super) fn figures(&self) -> Vec<(String, f64)> {
        let figures = match self {
            Options::BTree(options) => vec![("page", options.page_len)],
            Options::Bftl(options) => vec![("C", options.chain_max)],
            Options::Fd(options) => {
                vec![
                    ("page", options.page_len),
                    ("k", options.ratio),
                    ("head", options.head_pages),
                    ("frames", options.frames),
                ]
            }
            Options::Pio(options) => {
                vec![("page", options.page_len), ("L", options.segments), ("O", options.queue_pages)]
            }
        };
        figures.into_iter().map(|(name, figure)| (name.to_owned(), figure as f64)).collect()
    }
}
