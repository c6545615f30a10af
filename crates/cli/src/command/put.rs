//! `sapwood put`: one record, durable when the command returns.

use crate::arguments::Put;
use crate::command::Opening;
use crate::failure::Result;
use sapwood::{Expiry, KeyspaceOptions};

pub(crate) fn run(options: &Put, opening: Opening) -> Result<()> {
    let (key, value) = (super::bytes(&options.key)?, super::bytes(&options.value)?);
    let db = opening.to_write(&options.db, true)?;
    match options.expires {
        None => db.keyspace(&options.keyspace)?.insert(key, value)?,
        Some(life) => {
            let name = &options.keyspace;
            let keyspace = match db.keyspace_if_exists(name)? {
                Some(found) => found,
                None => db.keyspace_with(name, KeyspaceOptions::new().expiring())?,
            };
            keyspace.insert_expiring(key, value, Expiry::After(life))?;
        }
    }
    Ok(db.close()?)
}
