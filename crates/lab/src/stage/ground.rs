//! A file to measure on: of full length, and every byte of it written once, so that no request is the first to touch
//! its place.

use super::Stage;
use super::disk::DATA;
use crate::failure::{Failure, Result};
use crate::interrupt;
use psync::{Access, AlignedBuffer, Device, FileId, Volume, Write};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// See the module.
#[derive(Clone, Debug)]
pub struct Ground {
    /// The open file.
    pub file: FileId,
    /// Its name on the volume.
    pub name: String,
    /// Its length in bytes.
    pub len: u64,
}

/// Bytes of one write, and writes of one set, while laying ground.
const CHUNK: usize = 1 << 20;
const SET: usize = 8;

impl Ground {
    /// Lays ground number `number` of `len` bytes, or takes it as it is if it was laid before.
    ///
    /// # Errors
    /// The volume's; [`Failure::Interrupted`] after Ctrl-C.
    pub fn lay<S: Stage>(stage: &S, number: usize, len: u64) -> Result<Self> {
        let name = format!("{DATA}-{number}-{len}");
        let there = stage.volume().list()?.iter().any(|entry| entry.name == name && entry.len == len);
        let access = Access { write: true, create: true, direct: true, ..Access::default() };
        let file = stage.volume().open(&name, access)?;
        if !there {
            let mut noise = AlignedBuffer::new(CHUNK);
            StdRng::seed_from_u64(number as u64).fill(&mut noise[..]);
            let mut offset = 0;
            while offset < len {
                if interrupt::pressed() {
                    return Err(Failure::Interrupted);
                }
                let places = (0..SET as u64).map(|index| offset + index * CHUNK as u64);
                let set: Vec<_> = places
                    .take_while(|place| *place < len)
                    .map(|place| {
                        let data = &noise[..CHUNK.min((len - place) as usize)];
                        Write { file, offset: place, data }
                    })
                    .collect();
                stage.volume().write(&set)?;
                offset += (set.len() * CHUNK) as u64;
            }
            stage.volume().sync(file)?;
        }
        Ok(Self { file, name, len })
    }

    /// Closes the file and removes it, for space.
    ///
    /// # Errors
    /// The volume's.
    pub fn clear<S: Stage>(self, stage: &S) -> psync::Result<()> {
        stage.volume().close(self.file)?;
        stage.volume().remove(&self.name)
    }
}
