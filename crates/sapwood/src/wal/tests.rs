//! The log through all that can happen to it.

mod damage;
mod faults;
mod lives;
mod reserved;
mod stored;
mod unbegun;

use crate::database_id::DatabaseId;
use crate::encryption::Encryption;
use crate::error::Result;
use crate::wal::{Generations, LogFiles, Record, Tail, WalWriter};
use psync::Simulated;
use std::sync::Arc;

const DATABASE: DatabaseId = DatabaseId(*b"the right forest");

fn begin(volume: &Simulated) -> WalWriter {
    WalWriter::create(Arc::new(volume.clone()), DATABASE, &Tail::none()).unwrap()
}

/// All records from generation `low` on, where the manifest knows of those up to `high`.
fn read(volume: &Simulated, low: u64, high: u64) -> Result<(Vec<Record>, Tail)> {
    let mut records = Vec::new();
    let tail = LogFiles::new(volume, DATABASE).replay(
        &Encryption::NONE,
        Generations { low, high },
        &mut |record| {
            records.push(record);
            Ok(())
        },
    )?;
    assert_eq!(tail.records, records.len() as u64);
    Ok((records, tail))
}

/// Changes the bytes of a file behind the log's back.
fn edit_file(volume: &Simulated, name: &str, edit: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = volume.read_file(name).unwrap_or_default();
    edit(&mut bytes);
    volume.write_file(name, &bytes).unwrap();
}
