//! `sapwood-lab flash-map`.

use crate::arguments::FlashMap;
use crate::failure::{Failure, Result};
use crate::flash_map::{self, Play, TreePlay};
use crate::progress::print;
use crate::record::write_whole;

pub(super) fn flash_map(arguments: &FlashMap) -> Result<()> {
    if let Some(tree) = arguments.tree {
        let frames = arguments.frames as usize;
        let (records, operations) = (arguments.records, arguments.operations);
        let played = flash_map::play_tree(TreePlay { tree, records, operations, frames })?;
        write_whole(&arguments.svg, &flash_map::tree_picture(&played))?;
        write_whole(&arguments.html, &flash_map::tree_page(&played))?;
        print(played.title())?;
        print(played.told())?;
        return print(format_args!("{}\n{}", arguments.svg.display(), arguments.html.display()));
    }
    let played = flash_map::play(Play {
        overwrites: arguments.overwrites,
        over_provision: arguments.over_provision,
        rounds: arguments.rounds,
        frames: arguments.frames as usize,
    })?;
    let Some(last) = played.frames.last() else {
        return Err(Failure::CannotRun("the play has no frame".into()));
    };
    write_whole(&arguments.svg, &flash_map::picture(&played, last).map_err(Failure::CannotRun)?)?;
    write_whole(&arguments.html, &flash_map::page(&played))?;
    print(format_args!(
        "{}: {:.2} pages programmed for each of the host's at the end",
        played.title(),
        last.amplification
    ))?;
    print(format_args!("{}\n{}", arguments.svg.display(), arguments.html.display()))
}
