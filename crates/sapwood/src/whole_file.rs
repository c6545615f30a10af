//! Small files that are replaced as a whole, and read as a whole: `CURRENT`, `KEYS`.

use crate::error::{Error, Result};
use psync::{Access, Read, Volume, Write};

/// Makes this the content of the file `name`, atomically and durably: written to the file `temporary`, synced, renamed, directory synced.
/// [`Error::Poisoned`]: it may or may not have happened.
pub(crate) fn replace(volume: &dyn Volume, (temporary, name): (&str, &str), content: &[u8]) -> Result<()> {
    let access = Access { write: true, create: true, ..Access::default() };
    let file = volume.open(temporary, access)?;
    let written = volume
        .resize(file, 0)
        .and_then(|()| volume.write(&[Write { file, offset: 0, data: content }]))
        .and_then(|()| volume.sync(file));
    volume.close(file)?;
    written?;
    match volume.rename(temporary, name) {
        Err(full) if full.is_full() => Err(full.into()),
        // If something else fails from here on, it is unknown which file is valid.
        renamed => renamed.and_then(|()| volume.sync_directory()).map_err(Error::undecided),
    }
}

/// The first bytes of a file, at most so many; `None` if there is no such file.
pub(crate) fn read(volume: &dyn Volume, name: &str, most: usize) -> Result<Option<Vec<u8>>> {
    let file = match volume.open(name, Access::default()) {
        Err(psync::Error::NotFound { .. }) => return Ok(None),
        opened => opened?,
    };
    let read = volume.len(file).and_then(|len| {
        let mut bytes = vec![0; len.min(most as u64) as usize];
        if !bytes.is_empty() {
            volume.read(&mut [Read { file, offset: 0, buffer: &mut bytes }])?;
        }
        Ok(bytes)
    });
    volume.close(file)?;
    Ok(Some(read?))
}
