//! A drive as one sees it from above: every block with its live, dead and free pages and its wear, while the drive fills
//! up and collects its garbage.
//!
//! Invariants:
//! 1. a frame is what the drive itself says of its blocks at that moment; nothing is guessed between frames;
//! 2. the workload is decided by its seed.

mod age;
mod holds;
mod of_tree;
mod page;
mod picture;
mod tree_page;
mod tree_picture;

pub(crate) use of_tree::{TreePlay, play as play_tree};
pub(crate) use page::page;
pub(crate) use picture::picture;
pub(crate) use tree_page::tree_page;
pub(crate) use tree_picture::tree_picture;

use crate::failure::{Failure, Result};
use crate::progress::Progress;
use crate::stage::{SsdStage, Stage};
use clap::ValueEnum;
use flash::{BlockState, Content, FtlOptions, Geometry, Profile, Ssd};
use psync::{Access, AlignedBuffer, Device as _, Volume, Write};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Where the host overwrites when the drive is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Overwrites {
    /// Everywhere alike
    Random,
    /// Nine writes of ten to a tenth of the pages
    Hot,
    /// In sequence, round and round
    Sequential,
}

/// What to play.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Play {
    pub overwrites: Overwrites,
    /// Physical pages beyond the logical ones, as a share of these: 0.03 to 0.28.
    pub over_provision: f64,
    /// How often the drive's size is overwritten after it was filled.
    pub rounds: u32,
    pub frames: usize,
}

/// The drive at a moment.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub blocks: Vec<BlockState>,
    /// Virtual time since the first write.
    pub seconds: f64,
    /// Bytes that the host has written.
    pub written: u64,
    /// Pages programmed for each that the host wrote, since the frame before.
    pub amplification: f64,
}

/// A whole play.
#[derive(Debug)]
pub(crate) struct Played {
    pub play: Play,
    pub geometry: Geometry,
    pub frames: Vec<Frame>,
}

/// Small enough that every block can be seen.
const GEOMETRY: Geometry = Geometry {
    channels: 8,
    dies_per_channel: 4,
    planes: 1,
    blocks_per_plane: 32,
    pages_per_block: 64,
    page_bytes: 4096,
    spare_bytes: 128,
};
const SET: usize = 32;

/// Fills a drive in sequence, and overwrites it as the play says.
pub(crate) fn play(play: Play) -> Result<Played> {
    let mut profile = Profile { geometry: GEOMETRY, ..Profile::ssdsim() };
    profile.rules.content = Content::Tags;
    let options = FtlOptions { over_provision: play.over_provision, ..FtlOptions::default() };
    let wrong = |error| Failure::Usage(format!("there is no such drive: {error}"));
    let stage = SsdStage::new(Ssd::new(profile, options, 1).map_err(wrong)?);
    let ssd = stage.volume();
    let page = u64::from(GEOMETRY.page_bytes);
    let pages = ssd.capacity() / page;
    let file = ssd.open("data", Access { write: true, create: true, ..Access::default() })?;
    let data = AlignedBuffer::new(page as usize);
    let mut rng = StdRng::seed_from_u64(1);
    let total = pages * u64::from(play.rounds + 1);
    let every = total.div_ceil(play.frames as u64).max(SET as u64);
    let progress = Progress::new("flash-map");
    progress.expect(play.frames);
    let began = stage.now();
    let mut frames = Vec::with_capacity(play.frames + 1);
    let (mut done, mut counted) = (0, ssd.flash_counters());
    let mut look = |done: u64| {
        progress.step("playing");
        let since = ssd.flash_counters() - counted;
        counted = ssd.flash_counters();
        frames.push(Frame {
            blocks: ssd.blocks(),
            seconds: (stage.now() - began).as_secs_f64(),
            written: done * page,
            amplification: since.write_amplification(),
        });
    };
    look(0);
    let mut next_look = every;
    let mut places: Vec<u64> = Vec::with_capacity(SET);
    while done < total {
        places.clear();
        while places.len() < SET.min((total - done) as usize) {
            let place = match play.overwrites {
                _ if done < pages => (done + places.len() as u64) % pages,
                Overwrites::Sequential => (done + places.len() as u64) % pages,
                Overwrites::Random => rng.random_range(0..pages),
                Overwrites::Hot if rng.random_bool(0.9) => rng.random_range(0..pages / 10),
                Overwrites::Hot => rng.random_range(pages / 10..pages),
            };
            if !places.contains(&place) {
                places.push(place);
            }
        }
        let set: Vec<_> =
            places.iter().map(|place| Write { file, offset: place * page, data: &data }).collect();
        ssd.write(&set)?;
        done += places.len() as u64;
        if done >= next_look || done == total {
            look(done);
            next_look += every;
        }
    }
    Ok(Played { play, geometry: GEOMETRY, frames })
}

impl Played {
    /// What it is, in words.
    pub fn title(&self) -> String {
        let what = match self.play.overwrites {
            Overwrites::Random => "random overwrites",
            Overwrites::Hot => "overwrites, nine of ten to a tenth of the pages",
            Overwrites::Sequential => "sequential overwrites",
        };
        format!("A full drive under {what}, {:.0} % over-provision", self.play.over_provision * 100.0)
    }

    /// Blocks in the order of a picture: a row for each unit, a column for each block of it.
    fn place(&self, block: usize) -> (usize, usize) {
        let units = self.geometry.units() as usize;
        (block % units, block / units)
    }

    /// The most erases of any block in any frame, at least 1.
    fn erases_max(&self) -> u32 {
        let last = self.frames.last().into_iter().flat_map(|frame| &frame.blocks);
        last.map(|block| block.erases).max().unwrap_or(0).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(overwrites: Overwrites) -> Played {
        play(Play { overwrites, over_provision: 0.2, rounds: 1, frames: 10 }).unwrap()
    }

    #[test]
    fn a_drive_fills_and_then_collects() {
        let played = small(Overwrites::Random);
        let live = |frame: &Frame| frame.blocks.iter().filter_map(|block| block.live).sum::<u32>();
        let (first, last) = (&played.frames[0], &played.frames[played.frames.len() - 1]);
        assert_eq!((first.written, first.seconds), (0, 0.0));
        assert!(first.blocks.iter().all(|block| block.erases == 0));
        let full = GEOMETRY.pages() as f64 / 1.2;
        assert!(f64::from(live(last)) > 0.95 * full, "{} of {full} pages live", live(last));
        assert!(last.amplification > 1.5, "{}", last.amplification);
        assert!(played.erases_max() > 1);
        assert!(played.frames.windows(2).all(|pair| pair[0].written < pair[1].written));
        assert!((10..=12).contains(&played.frames.len()), "{}", played.frames.len());
    }

    #[test]
    fn sequential_overwrites_collect_for_nothing() {
        let played = small(Overwrites::Sequential);
        let last = &played.frames[played.frames.len() - 1];
        assert!(last.amplification < 1.2, "{}", last.amplification);
        assert!(small(Overwrites::Hot).frames.last().unwrap().amplification > last.amplification);
    }

    #[test]
    fn drives_that_cannot_be_are_a_usage_error() {
        let wrong = Play { overwrites: Overwrites::Random, over_provision: 0.9, rounds: 1, frames: 10 };
        assert!(matches!(play(wrong), Err(Failure::Usage(_))));
    }
}
