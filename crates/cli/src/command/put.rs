//! `sapwood put`: one record, durable when the command returns.

use crate::arguments::Put;
use crate::command::Opening;
use crate::failure::Result;

pub(crate) fn run(options: &Put, opening: Opening) -> Result<()> {
    let (key, value) = (super::bytes(&options.key)?, super::bytes(&options.value)?);
    let db = opening.to_write(&options.db, true)?;
    db.keyspace(&options.keyspace)?.insert(key, value)?;
    Ok(db.close()?)
}
