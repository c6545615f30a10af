//! `sapwood dump`: all records, in a form that `load` reads.

use crate::arguments::Dump;
use crate::failure::Result;
use crate::format::Format;
use std::io::{BufWriter, stdout};

pub(crate) fn run(options: &Dump, memory: u64) -> Result<()> {
    let db = super::open_to_read(&options.db, memory)?;
    let names = match (&options.keyspace, options.format) {
        (Some(name), _) => vec![name.clone()],
        (None, Format::Mdb) => db.keyspaces(),
        (None, _) => vec!["default".to_owned()],
    };
    let snapshot = db.snapshot();
    let bytes = db.stats().space.live;
    let mut writer = options.format.writer(BufWriter::with_capacity(1 << 20, stdout().lock()));
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
