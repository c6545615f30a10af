//! `sapwood del`: removes keys, all at once.

use crate::arguments::Del;
use crate::command::Opening;
use crate::failure::{Failure, Result};

pub(crate) fn run(options: &Del, opening: Opening) -> Result<()> {
    let keys = options.keys.iter().map(|key| super::bytes(key)).collect::<Result<Vec<_>>>()?;
    let db = opening.to_write(&options.db, false)?;
    let keyspace = super::existing(&db, &options.keyspace)?;
    let found = keyspace.multi_get(&keys)?;
    let mut batch = db.batch();
    for key in &keys {
        batch.remove(&keyspace, key);
    }
    batch.commit()?;
    drop(keyspace);
    db.close()?;
    let missing: Vec<_> = options
        .keys
        .iter()
        .zip(&found)
        .filter(|(_, value)| value.is_none())
        .map(|(key, _)| key.as_str())
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure::NotFound(format!("not found, and so not removed: {}", missing.join(" "))))
}
