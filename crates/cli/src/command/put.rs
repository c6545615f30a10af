//! `sapwood put`: one record, durable when the command returns.

use crate::arguments::Put;
use crate::failure::Result;

pub(crate) fn run(options: &Put, memory: u64) -> Result<()> {
    let (key, value) = (super::bytes(&options.key)?, super::bytes(&options.value)?);
    let db = super::open_to_write(&options.db, memory, true)?;
    db.keyspace(&options.keyspace)?.insert(key, value)?;
    Ok(db.close()?)
}
