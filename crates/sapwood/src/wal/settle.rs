//! Makes what was found in the log durable, before anything is built upon it.
//!
//! A sync is not enough: if an earlier process got an error from its sync, the kernel counts the pages as clean although
//! they never reached the medium, shows them to every reader, and no later sync writes them. So what nobody testifies to
//! be durable is written again, with the bytes that it has, and then synced.

use super::file_name;
use super::reader::Tail;
use crate::error::{Error, Result};
use psync::{Access, AlignedBuffer, FileId, Read, Volume, Write};

/// Bytes that are written again at a time.
const WINDOW_LEN: u64 = 1 << 20;

/// Writes everything at and above `tail.durable` again, syncs it, and notes that all of the log is durable. Says how many
/// syncs it took. Does nothing a second time.
pub(crate) fn settle(volume: &dyn Volume, tail: &mut Tail) -> Result<u64> {
    let mut syncs = 0;
    for span in &tail.spans {
        let from = tail.durable.0.saturating_sub(span.base.0);
        if from >= span.len {
            continue;
        }
        let file = volume.open(&file_name(span.generation), Access { write: true, ..Access::default() })?;
        let result = rewrite(volume, file, from, span.len);
        let _ = volume.close(file);
        result?;
        syncs += 1;
    }
    if syncs > 0 {
        volume.sync_directory().map_err(Error::undecided)?;
        syncs += 1;
    }
    tail.durable = tail.end;
    Ok(syncs)
}

fn rewrite(volume: &dyn Volume, file: FileId, mut from: u64, to: u64) -> Result<()> {
    let mut bytes = AlignedBuffer::new(to.saturating_sub(from).min(WINDOW_LEN) as usize);
    while from < to {
        bytes.set_len((to - from).min(WINDOW_LEN) as usize);
        volume.read(&mut [Read { file, offset: from, buffer: &mut bytes }])?;
        volume.write(&[Write { file, offset: from, data: &bytes }])?;
        from += bytes.len() as u64;
    }
    volume.sync(file).map_err(Error::undecided)
}
