//! `sapwood-lab trace run`: replays a trace on trees, and prints a table of what it took.

use crate::arguments::trace::{Replay, Tree};
use crate::chart::number;
use crate::experiment::Device;
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::progress::{print, tell};
use crate::quantity::{Clock, Quantity};
use crate::record::write_whole;
use crate::row::Rows;
use crate::trace::account::Account;
use crate::trace::replay::{Forest, Replayed, plant};
use crate::trace::source::Source;
use crate::trace::{Op, Step};
use crate::tree_ground::TreeGround;
use clap::ValueEnum;
use psync::Volume;
use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use trees::{
    AsTree, AsTreeOptions, BTree, BTreeOptions, Bftl, BftlOptions, BlinkOptions, BlinkTree, CbPlacement,
    CbTree, CbTreeOptions, FdTree, FdTreeOptions, Ibsf, IbsfOptions, Index, LaTree, LaTreeOptions, LogMode,
    LuTree, LuTreeOptions, PioOptions, PioTree, RecordAsTree, RecordAsTreeOptions,
};

pub(super) fn replay(arguments: &Replay) -> Result<()> {
    interrupt::watch();
    let trees = chosen(&arguments.tree);
    if arguments.file == Path::new("-") && trees.len() > 1 {
        let what = "standard input can be read once: name one --tree, or put the trace into a file";
        return Err(Failure::Usage(what.to_owned()));
    }
    match arguments.device {
        Device::Ssdsim => on(arguments, &trees, || TreeGround::on_ssdsim(0)),
        Device::Disk => on(arguments, &trees, || TreeGround::on_disk(&arguments.dir)),
        Device::Nand => Err(Failure::Usage("traces are replayed on ssdsim or disk".to_owned())),
    }
}

fn chosen(named: &[Tree]) -> Vec<Tree> {
    let all = Tree::value_variants().iter().filter(|tree| **tree != Tree::All);
    let mut trees: Vec<Tree> = Vec::new();
    for tree in named {
        match tree {
            Tree::All => trees.extend(all.clone()),
            tree => trees.push(*tree),
        }
    }
    let mut seen = Vec::new();
    trees.retain(|tree| {
        !seen.contains(tree) && {
            seen.push(*tree);
            true
        }
    });
    trees
}

/// Bytes of a page of memory, and of a record in it.
const PAGE: usize = 4096;
const RECORD: usize = 16;

fn on<C: Clock>(
    arguments: &Replay,
    trees: &[Tree],
    ground: impl Fn() -> Result<TreeGround<C>>,
) -> Result<()> {
    let mut rows = Vec::new();
    for (at, tree) in trees.iter().enumerate() {
        let name = tree.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        tell(format_args!("{name}: {} of {}", at + 1, trees.len()));
        let account = RefCell::new(Account::default());
        let steps = Source::open(&arguments.file, arguments.format)?;
        let steps = steps.inspect(|step| {
            if let Ok(step) = step {
                account.borrow_mut().add(*step);
            }
        });
        let replayed = one(&ground()?, *tree, arguments.memory as usize, steps)?;
        let account = account.into_inner();
        if at == 0 {
            let (operations, hash) = (account.operations(), account.sha256());
            print(format_args!(
                "{operations} operations: {}; SHA-256 {hash}\n{} pages of memory an index; {} time on {}\n{}",
                account.told(&[]),
                arguments.memory,
                C::NAME,
                arguments.device,
                head()
            ))?;
        }
        print(table::<C>(&name, &replayed))?;
        rows.extend(replayed.rows::<C>(&name, f64::from(arguments.memory), 0));
    }
    arguments.csv.as_ref().map_or(Ok(()), |path| write_whole(path, &Rows(rows).to_csv()))
}

fn one<C: Clock>(
    ground: &TreeGround<C>,
    tree: Tree,
    memory: usize,
    steps: impl Iterator<Item = Result<Step>>,
) -> Result<Replayed> {
    fn run<T: Index<Ground = Arc<dyn Volume>> + 'static, C: Clock>(
        ground: &TreeGround<C>,
        steps: impl Iterator<Item = Result<Step>>,
        options: T::Options,
    ) -> Result<Replayed>
    where
        T::Options: 'static,
    {
        let plant = plant::<T>(move |_| options.clone());
        let mut steps = steps.peekable();
        Forest::grow(ground, &plant, &mut steps)?.replay(ground, &plant, steps, false)
    }
    let records = memory * PAGE / RECORD;
    let half = memory / 2;
    match tree {
        Tree::Btree | Tree::All => {
            run::<BTree, C>(ground, steps, BTreeOptions { frames: memory, ..BTreeOptions::default() })
        }
        Tree::Blink => {
            run::<BlinkTree, C>(ground, steps, BlinkOptions { frames: memory, ..BlinkOptions::default() })
        }
        Tree::Pio => {
            let queue_pages = (memory / 8).max(1);
            let frames = memory - queue_pages;
            let options = PioOptions { queue_pages, frames, log: LogMode::Off, ..PioOptions::default() };
            run::<PioTree, C>(ground, steps, options)
        }
        Tree::As => {
            let options = AsTreeOptions {
                node_len: PAGE,
                keys_max: None,
                slots: half,
                cached: memory - half,
                ..AsTreeOptions::default()
            };
            run::<AsTree, C>(ground, steps, options)
        }
        Tree::AsRecords => run::<RecordAsTree, C>(
            ground,
            steps,
            RecordAsTreeOptions { records, ..RecordAsTreeOptions::default() },
        ),
        Tree::Cb => {
            let placement = CbPlacement::InPlace;
            run::<CbTree, C>(ground, steps, CbTreeOptions { placement, ..CbTreeOptions::default() })
        }
        Tree::Fd => {
            run::<FdTree, C>(ground, steps, FdTreeOptions { head_pages: memory, ..FdTreeOptions::default() })
        }
        Tree::Bftl => run::<Bftl, C>(ground, steps, BftlOptions { units: records, ..BftlOptions::default() }),
        Tree::Ibsf => run::<Ibsf, C>(ground, steps, IbsfOptions { units: records, ..IbsfOptions::default() }),
        Tree::La => {
            run::<LaTree, C>(ground, steps, LaTreeOptions { frames: memory, ..LaTreeOptions::default() })
        }
        Tree::Lu => {
            run::<LuTree, C>(ground, steps, LuTreeOptions { units: records, ..LuTreeOptions::default() })
        }
    }
}

fn head() -> String {
    line(["tree", "operation", "count", "us each", "seconds", "found", "reads", "writes"].map(str::to_owned))
}

fn line(fields: [String; 8]) -> String {
    let [tree, operation, rest @ ..] = fields;
    let rest: String = rest.iter().map(|field| format!("{field:>12}")).collect();
    format!("{tree:<11}{operation:<9}{rest}")
}

fn table<C: Clock>(name: &str, replayed: &Replayed) -> String {
    let kinds = Op::ALL.iter().map(|op| (op.name(), replayed.of(*op)));
    let ends = [("flush", replayed.flush), ("total", replayed.total())];
    let kinds = kinds.filter(|(_, taken)| taken.operations > 0).chain(ends);
    let lines = kinds.map(|(kind, taken)| {
        let micros = taken.elapsed::<C>().number();
        let each =
            if taken.operations > 0 { number(micros / taken.operations as f64) } else { "-".to_owned() };
        let (reads, writes) = taken.requests();
        line([
            name.to_owned(),
            kind.to_owned(),
            taken.operations.to_string(),
            each,
            format!("{:.3}", micros / 1e6),
            taken.found.to_string(),
            reads.to_string(),
            writes.to_string(),
        ])
    });
    lines.collect::<Vec<_>>().join("\n")
}
