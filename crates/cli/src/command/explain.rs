//! `sapwood explain`: what a get of a key looks at, and reads.

use crate::arguments::Explain;
use crate::command::Opening;
use crate::failure::{Failure, Result};
use crate::output::{answered, print};

pub(crate) fn run(options: &Explain, opening: Opening) -> Result<()> {
    let key = super::bytes(&options.key)?;
    let db = opening.to_read(&options.db)?;
    let explanation = super::existing(&db, &options.keyspace)?.explain(&key)?;
    let told = if options.json {
        let json = serde_json::to_string_pretty(&explanation);
        print(json.map_err(|error| Failure::Other(error.to_string()))?)
    } else {
        print(&explanation)
    };
    let missing = || Failure::NotFound(format!("not found: {}", options.key));
    answered(told, explanation.value_bytes.map(drop).ok_or_else(missing))
}
