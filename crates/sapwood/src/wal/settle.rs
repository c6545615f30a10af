//! Makes what recovery found in the log durable, before anything builds on it.
//!
//! A sync is not enough. If an earlier process got an error from its sync, the kernel treats the pages as clean
//! although they never reached the medium; it shows them to every reader, and no later sync writes them. So
//! everything that nothing testifies to be durable is rewritten with the same bytes, and then synced.

use super::file_name;
use super::reader::Tail;
use crate::error::{Error, Result};
use psync::{Access, AlignedBuffer, FileId, Read, Volume, Write};

/// Bytes rewritten at a time.
const WINDOW_LEN: u64 = 1 << 20;

/// Rewrites everything at and above `tail.durable`, syncs it, and records that the whole log is durable.
/// Returns the number of syncs. A second call does nothing.
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
