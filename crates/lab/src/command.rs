//! The commands, one file each.

mod arena;
mod flash_map;
mod list;
mod report;
mod run;
mod trace;

use crate::arguments::Command;
use crate::failure::Result;

/// Does what the arguments say.
pub(crate) fn run(command: Command) -> Result<()> {
    match command {
        Command::List => list::list(),
        Command::Run(arguments) => run::run(&arguments),
        Command::Report(arguments) => report::report(&arguments),
        Command::Trace(arguments) => trace::trace(&arguments),
        Command::FlashMap(arguments) => flash_map::flash_map(&arguments),
        Command::Arena(arguments) => arena::arena(&arguments),
        Command::Worker => crate::rival::serve(),
    }
}
