//! `sapwood dump`: all records, in a form that `load` reads.

use crate::arguments::Dump;
use crate::command::Opening;
use crate::failure::{Failure, Result};
use crate::format::Format;
use crate::output::{buffered, tell};

pub(crate) fn run(options: &Dump, opening: Opening) -> Result<()> {
    let db = opening.to_read(&options.db)?;
    let names = match (&options.keyspace, options.format) {
        (Some(name), _) => vec![name.clone()],
        // Of none, `load` would take nothing: it is told as in the other forms.
        (None, Format::Mdb) if !db.keyspaces().is_empty() => db.keyspaces(),
        (None, _) => vec!["default".to_owned()],
    };
    let snapshot = db.snapshot();
    // What the log holds and the trees do not is in the queues.
    let stats = db.stats();
    let bytes = stats.space.live + stats.memory.queues;
    let mut writer = options.format.writer(buffered());
    let mut left_out = Vec::new();
    for name in names {
        if options.keyspace.is_none() && super::large_values(&db, &name)?.is_some() {
            left_out.push(name);
            continue;
        }
        let keyspace = super::existing(&db, &name)?;
        if options.keyspace.is_none() && !keyspace.metadata()?.is_empty() {
            tell(format_args!(
                "sapwood: keyspace {name:?} has metadata, as those with types have, which a dump has not: let its program create it before you load"
            ));
        }
        writer.begin(&name, bytes)?;
        for item in snapshot.iter(&keyspace) {
            let (key, value) = item?;
            writer.record(&key, &value)?;
        }
        writer.end()?;
    }
    if left_out.is_empty() {
        return Ok(());
    }
    Err(Failure::Other(format!(
        "all else is written, but for the large values of {}: `sapwood get DB KEY -k KEYSPACE --to FILE` writes one to a file",
        left_out.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
    )))
}
