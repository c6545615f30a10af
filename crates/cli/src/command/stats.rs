//! `sapwood stats`: what a database holds and takes.

use crate::arguments::Stats;
use crate::command::Opening;
use crate::failure::{Failure, Result};
use crate::output::print;

pub(crate) fn run(options: &Stats, opening: Opening) -> Result<()> {
    let stats = opening.to_read(&options.db)?.stats();
    if options.json {
        let json = serde_json::to_string_pretty(&stats).map_err(|error| Failure::Other(error.to_string()))?;
        print(json)
    } else if options.prometheus {
        print(stats.to_prometheus().trim_end())
    } else {
        print(stats)
    }
}
