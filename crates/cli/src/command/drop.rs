//! `sapwood drop`: drops a keyspace.

use crate::arguments::Drop;
use crate::command::Opening;
use crate::failure::{Failure, Result};

pub(crate) fn run(options: &Drop, opening: Opening) -> Result<()> {
    let db = opening.to_write(&options.db, false)?;
    let was_there = db.drop_keyspace(&options.keyspace)?;
    let names = db.keyspaces();
    if was_there {
        let compacted = db.compact().and_then(|()| db.close());
        return compacted.map_err(|error| {
            let (name, why) = (&options.keyspace, Failure::from(error));
            Failure::Other(format!(
                "{name:?} is dropped, durably, but its space is not all given back: {why}"
            ))
        });
    }
    db.close()?;
    Err(Failure::NotFound(if names.is_empty() {
        "the database is empty: it has no keyspaces".to_owned()
    } else {
        format!("there is no keyspace {:?}; there are: {}", options.keyspace, names.join(", "))
    }))
}
