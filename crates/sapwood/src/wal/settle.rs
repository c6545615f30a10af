//! Makes what was found in the log durable, before anything is built upon it.
//!
//! A sync is not enough: if an earlier process got an error from its sync, the kernel counts the pages as clean although
//! they never reached the medium, shows them to every reader, and no later sync writes them. So what nobody claims to be
//! durable is written again, with the bytes that it has, and then synced.

use crate::error::Result;
use crate::wal::reader::Tail;
use crate::wal::record::{FILE_HEADER, file_name};
use psync::{Access, FileId, Read, Volume, Write};

/// Bytes that are written again at a time.
const WINDOW: u64 = 1 << 20;

/// Writes everything at and above `tail.claimed` again, and the header of the last generation, and syncs it.
pub(crate) fn settle(volume: &dyn Volume, tail: &Tail) -> Result<()> {
    for (generation, base, len) in &tail.files {
        let is_last = *generation == tail.generation;
        let doubtful = tail.claimed.saturating_sub(*base);
        if doubtful >= *len && !is_last {
            continue;
        }
        let file = volume.open(&file_name(*generation), Access { write: true, ..Access::default() })?;
        let mut settled = if is_last { rewrite(volume, file, 0, FILE_HEADER as u64) } else { Ok(()) };
        let mut at = doubtful;
        while settled.is_ok() && at < *len {
            let end = (at + WINDOW).min(*len);
            settled = rewrite(volume, file, at, end);
            at = end;
        }
        let settled = settled.and_then(|()| volume.sync(file));
        volume.close(file)?;
        settled?;
    }
    volume.sync_directory()?;
    Ok(())
}

fn rewrite(volume: &dyn Volume, file: FileId, start: u64, end: u64) -> psync::Result<()> {
    let mut bytes = vec![0; (end - start) as usize];
    volume.read(&mut [Read { file, offset: start, buffer: &mut bytes }])?;
    volume.write(&[Write { file, offset: start, data: &bytes }])
}
