//! `sapwood dump`: all records, in a form that `load` reads.

use crate::arguments::Dump;
use crate::command::Opening;
use crate::failure::Result;
use crate::format::Format;
use crate::output::buffered;

pub(crate) fn run(options: &Dump, opening: Opening) -> Result<()> {
    let db = opening.to_read(&options.db)?;
    let names = match (&options.keyspace, options.format) {
        (Some(name), _) => vec![name.clone()],
        (None, Format::Mdb) => db.keyspaces(),
        (None, _) => vec!["default".to_owned()],
    };
    let snapshot = db.snapshot();
    // What the log holds and the trees do not is in the queues.
    let stats = db.stats();
    let bytes = stats.space.live + stats.memory.queues;
    let mut writer = options.format.writer(buffered());
    for name in names {
        let keyspace = super::existing(&db, &name)?;
        writer.begin(&name, bytes)?;
        for item in snapshot.iter(&keyspace) {
            let (key, value) = item?;
            writer.record(&key, &value)?;
        }
        writer.end()?;
    }
    Ok(())
}
