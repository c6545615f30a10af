//! What E41 plays on: a small drive under each translation layer, used before and filled to a share, or raw flash of the same
//! geometry; and what its flash did for a system.
//!
//! Invariants:
//! 1. Every page of a drive was written once before, so that no layer has more free blocks than it keeps in reserve: page map
//!    and DFTL erase for what is written from the beginning, the others when their log or replacement blocks are full.
//!    Raw flash has erased as many blocks as it has since the index was loaded, for uniform updates of it, and nothing of them
//!    waits in memory.
//! 2. What is counted are operations of the flash, whoever asked for them, from the first update to the end of the flush.
//! 3. A system that does not fit is told so in its row, without figures: it is never left out.

use crate::every_system::{Store, System};
use crate::experiment::Scale;
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::quantity::{Lapse, Simulated};
use crate::row::Row;
use flash::ftl::block_map::BlockMap;
use flash::ftl::dftl::{CACHED, Dftl};
use flash::ftl::fast::{Fast, LOG_BLOCKS};
use flash::ftl::fmax::Fmax;
use flash::{FlashCounters, Ftl, FtlOptions, Geometry, Profile, RawFlash, Ssd};
use psync::{Access, AlignedBuffer, Device as _, Volume, Write};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Zipf};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How a drive maps pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mapping {
    Page,
    Dftl,
    Fast,
    Fmax,
    Block,
}

impl Mapping {
    pub const ALL: [Mapping; 5] =
        [Mapping::Page, Mapping::Dftl, Mapping::Fast, Mapping::Fmax, Mapping::Block];

    pub fn name(self) -> &'static str {
        match self {
            Mapping::Page => "page map",
            Mapping::Dftl => "DFTL",
            Mapping::Fast => "FAST",
            Mapping::Fmax => "FMAX",
            Mapping::Block => "block map",
        }
    }
}

/// Which keys are updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    Uniform,
    Zipfian,
    Sequential,
}

impl Keys {
    pub const ALL: [Keys; 3] = [Keys::Uniform, Keys::Zipfian, Keys::Sequential];

    pub fn name(self) -> &'static str {
        match self {
            Keys::Uniform => "uniform",
            Keys::Zipfian => "zipfian",
            Keys::Sequential => "sequential",
        }
    }

    /// So many keys, of which the first `records` even ones are there. Another seed draws others.
    pub fn draw(self, records: u64, count: u64, seed: u64) -> Result<Vec<u64>> {
        let mut random = StdRng::seed_from_u64(seed);
        let wrong = |error| Failure::CannotRun(format!("Zipf's law over {records}: {error}"));
        let law = Zipf::new(records as f64, EXPONENT).map_err(wrong)?;
        let key = |step: u64| match self {
            Keys::Uniform => random.random_range(0..records),
            // Those that are asked often are not neighbours: multiplying by an odd number stirs them.
            Keys::Zipfian => (law.sample(&mut random) as u64 - 1).wrapping_mul(STIR) % records,
            Keys::Sequential => step % records,
        };
        Ok((0..count).map(key).map(|index| 2 * index).collect())
    }
}

/// Seeds of keys: of what is updated, of what is searched then, and of what raw flash is used with before.
pub(crate) const UPDATES: u64 = 0xe41;
pub(crate) const SEARCHES: u64 = 0x5ea;
const BEFORE: u64 = 0xbef;
/// How often as many keys as there are updates are enough to use all of raw flash: d-IPL, which erases least, a block for some
/// 200 of them, takes 3 times at scale ci.
const ENOUGH: usize = 10_000;
/// Of Zipf's law.
const EXPONENT: f64 = 0.99;
/// An odd prime larger than any number of records, for which ranks are told apart after it.
const STIR: u64 = 2_147_483_647;
/// Physical pages beyond the logical ones.
pub(crate) const OVER_PROVISION: f64 = 0.12;
/// Operations of the flash, by who asked, and wear.
pub(crate) const READS: &str = "flash_reads";
pub(crate) const PROGRAMS: &str = "flash_programs";
pub(crate) const COPIES: &str = "flash_copies";
pub(crate) const ERASES: &str = "flash_erases";
pub(crate) const ERASES_MOST: &str = "block_erases_most";
pub(crate) const ERASES_MEAN: &str = "block_erases_mean";
/// In a row without figures.
pub(crate) const NO_ROOM: &str = "no_room";

/// How large it all is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WearSize {
    pub records: u64,
    pub updates: u64,
    pub blocks_per_plane: u32,
    pub pages_per_block: u32,
}

impl WearSize {
    pub fn of(scale: Scale) -> Self {
        match scale {
            Scale::Trial => Self { records: 20_000, updates: 200, blocks_per_plane: 16, pages_per_block: 16 },
            Scale::Ci => {
                Self { records: 300_000, updates: 10_000, blocks_per_plane: 16, pages_per_block: 64 }
            }
            Scale::Std => {
                Self { records: 3_000_000, updates: 200_000, blocks_per_plane: 160, pages_per_block: 64 }
            }
            Scale::Full => {
                Self { records: 10_000_000, updates: 2_000_000, blocks_per_plane: 512, pages_per_block: 64 }
            }
        }
    }

    /// 8 dies, each a unit.
    pub fn profile(self) -> Profile {
        let default = Profile::ssdsim();
        let geometry = Geometry {
            channels: 4,
            dies_per_channel: 2,
            planes: 1,
            blocks_per_plane: self.blocks_per_plane,
            pages_per_block: self.pages_per_block,
            ..default.geometry
        };
        Profile { geometry, ..default }
    }
}

/// A drive under a translation layer, all of whose pages were written before, and are free.
pub(crate) fn used_drive(profile: Profile, mapping: Mapping) -> Result<Ssd> {
    let options = FtlOptions { over_provision: OVER_PROVISION, ..FtlOptions::default() };
    let drive = match mapping {
        Mapping::Page => Ssd::new(profile, options, 1),
        _ => Ssd::with_ftl(profile, 1, |flash| {
            Ok(match mapping {
                Mapping::Dftl => Box::new(Dftl::new(flash, options, CACHED)?) as Box<dyn Ftl>,
                Mapping::Fast => Box::new(Fast::new(flash, options, LOG_BLOCKS)?),
                Mapping::Fmax => Box::new(Fmax::new(flash, options, 1)?),
                Mapping::Page | Mapping::Block => Box::new(BlockMap::new(flash, options)?),
            })
        }),
    };
    let drive = drive.map_err(|error| Failure::CannotRun(format!("the simulated drive: {error}")))?;
    let drive = drive.with_pio_max(64);
    fill(&drive, "before", drive.capacity() / CHUNK * CHUNK)?;
    drive.remove("before")?;
    drive.sync_directory()?;
    Ok(drive)
}

const CHUNK: u64 = 256 << 10;

/// Writes a file of `len` bytes in sequence.
pub(crate) fn fill(drive: &Ssd, name: &str, len: u64) -> Result<()> {
    let file = drive.open(name, Access { write: true, create: true, direct: true, ..Access::default() })?;
    let data = AlignedBuffer::new(CHUNK as usize);
    let mut offset = 0;
    while offset < len {
        let some = CHUNK.min(len - offset) as usize;
        drive.write(&[Write { file, offset, data: &data[..some] }])?;
        offset += some as u64;
    }
    drive.sync(file)?;
    Ok(drive.close(file)?)
}

/// What a system's ground has done so far.
struct Counted {
    flash: FlashCounters,
    erases: Vec<u32>,
    now: Duration,
}

enum Ground {
    Drive(Ssd),
    Raw(Arc<RawFlash>),
}

impl Ground {
    fn counted(&self) -> Counted {
        match self {
            Ground::Drive(drive) => {
                drive.drain();
                let erases = drive.blocks().iter().map(|block| block.erases).collect();
                Counted { flash: drive.flash_counters(), erases, now: drive.now() }
            }
            Ground::Raw(flash) => {
                let counted = flash.counters();
                let flash_counters = FlashCounters {
                    host_reads: counted.reads,
                    host_programs: counted.programs,
                    erases: counted.erases,
                    ..FlashCounters::default()
                };
                Counted { flash: flash_counters, erases: flash.erases(), now: flash.now() }
            }
        }
    }
}

/// One field of the table: a system, where it stands, and which keys are updated. A fill of 0 is raw flash.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    pub system: System,
    pub mapping: Option<Mapping>,
    pub keys: Keys,
    /// Per cent of the drive that hold something when the updates begin.
    pub full: u32,
}

impl Field {
    /// The line that it belongs to.
    pub fn series(self) -> String {
        series(self.system, self.mapping, self.keys)
    }

    /// Loads the system, and counts what the updates and the flush at their end take.
    pub fn measure(self, size: WearSize) -> Result<Row<Simulated>> {
        match self.figures(size) {
            Err(Failure::NoRoom(_)) => {
                Ok(self.row(size, Duration::ZERO, BTreeMap::from([(NO_ROOM.to_owned(), 1.0)])))
            }
            other => other,
        }
    }

    fn row(self, size: WearSize, elapsed: Duration, counts: BTreeMap<String, f64>) -> Row<Simulated> {
        Row {
            series: self.series(),
            at: f64::from(self.full),
            run: 0,
            requests: size.updates,
            bytes: size.updates * 16,
            elapsed_us: Lapse::from(elapsed),
            counts,
        }
    }

    fn figures(self, size: WearSize) -> Result<Row<Simulated>> {
        let (ground, mut store) = self.loaded(size)?;
        let before = ground.counted();
        for (step, key) in (0..).zip(self.keys.draw(size.records, size.updates, UPDATES)?) {
            if step % 1024 == 0 && interrupt::pressed() {
                return Err(Failure::Interrupted);
            }
            // Never the value that is there: some systems would write nothing.
            store.update(key, size.records + step)?;
        }
        store.flush()?;
        let after = ground.counted();
        let did = after.flash - before.flash;
        let erases: Vec<u32> =
            after.erases.iter().zip(&before.erases).map(|(now, then)| now - then).collect();
        let mean = erases.iter().map(|count| f64::from(*count)).sum::<f64>() / erases.len() as f64;
        let most = erases.iter().copied().max().unwrap_or_default();
        let counts = [
            (READS, (did.host_reads + did.internal_reads) as f64),
            (PROGRAMS, (did.host_programs + did.internal_programs) as f64),
            (COPIES, did.internal_programs as f64),
            (ERASES, did.erases as f64),
            (ERASES_MOST, f64::from(most)),
            (ERASES_MEAN, mean),
        ];
        let counts = counts.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
        Ok(self.row(size, after.now - before.now, counts))
    }

    fn loaded(self, size: WearSize) -> Result<(Ground, Store)> {
        let profile = size.profile();
        let Some(mapping) = self.mapping else {
            let flash = RawFlash::new(self.system.rules(profile), 1)
                .map_err(|error| Failure::CannotRun(format!("the simulated flash: {error}")))?;
            let flash = Arc::new(flash);
            let mut store = self.system.on_raw_flash(&flash, size.records)?;
            use_up(&flash, &mut store, size)?;
            return Ok((Ground::Raw(flash), store));
        };
        let drive = used_drive(profile, mapping)?;
        let volume: Arc<dyn Volume> = Arc::new(drive.clone());
        let store = self.system.on_volume(&volume, size.records)?;
        let held: u64 = drive.list()?.iter().map(|entry| entry.len).sum();
        let wanted = drive.capacity() * u64::from(self.full) / 100;
        if wanted < held {
            return Err(Failure::NoRoom(format!(
                "{} takes {held} bytes, more than the {wanted}",
                self.system.name()
            )));
        }
        fill(&drive, "filler", (wanted - held) / 4096 * 4096)?;
        Ok((Ground::Drive(drive), store))
    }
}

/// Updates what is on raw flash until as many blocks were erased as there are, those of the load not counted, and flushes. New
/// flash has blocks to begin that cost no erase, and logs that are empty: what is counted on it is less than what its system needs
/// in the long run.
fn use_up(flash: &RawFlash, store: &mut Store, size: WearSize) -> Result<()> {
    let all = || flash.erases().iter().map(|count| u64::from(*count)).sum::<u64>();
    let of_the_load = all();
    let erased = || all() - of_the_load;
    let wanted = flash.erases().len() as u64;
    for turn in 0..ENOUGH {
        if erased() >= wanted {
            return store.flush();
        }
        if interrupt::pressed() {
            return Err(Failure::Interrupted);
        }
        for key in Keys::Uniform.draw(size.records, size.updates, BEFORE + turn as u64)? {
            store.update(key, turn as u64)?;
        }
    }
    let (erased, rounds) = (erased(), ENOUGH);
    Err(Failure::CannotRun(format!(
        "{rounds} times {} updates erased {erased} of {wanted} blocks",
        size.updates
    )))
}

/// The name of a line.
pub(crate) fn series(system: System, mapping: Option<Mapping>, keys: Keys) -> String {
    format!("{}, {}, {}", system.name(), mapping.map_or("raw flash", Mapping::name), keys.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_there_and_follow_their_law() {
        for keys in Keys::ALL {
            let drawn = keys.draw(1000, 5000, UPDATES).unwrap();
            assert!(drawn.len() == 5000 && drawn.iter().all(|key| key % 2 == 0 && *key < 2000), "{keys:?}");
        }
        assert_eq!(Keys::Sequential.draw(3, 5, UPDATES).unwrap(), [0, 2, 4, 0, 2]);
        let most = |keys: Keys| {
            let mut counts = BTreeMap::new();
            for key in keys.draw(1000, 5000, UPDATES).unwrap() {
                *counts.entry(key).or_insert(0) += 1;
            }
            counts.into_values().max().unwrap()
        };
        assert!(most(Keys::Zipfian) > 5 * most(Keys::Uniform));
        let of = |seed| Keys::Uniform.draw(1_000_000, 100, seed).unwrap();
        let both = of(UPDATES).iter().filter(|key| of(SEARCHES).contains(key)).count();
        assert_eq!(both, 0, "what is searched is not what was just updated");
    }

    #[test]
    fn writing_a_used_drive_in_order_erases_and_hardly_copies() {
        let profile = WearSize::of(Scale::Trial).profile();
        for mapping in Mapping::ALL {
            let drive = used_drive(profile.clone(), mapping).unwrap();
            let before = drive.flash_counters();
            fill(&drive, "after", drive.capacity() / 2).unwrap();
            let did = drive.flash_counters() - before;
            assert!(did.write_amplification() < 1.2, "{mapping:?}: {did:?}");
            let erases_at_once = matches!(mapping, Mapping::Page | Mapping::Dftl);
            assert!(did.erases > 0 || !erases_at_once, "{mapping:?}: {did:?}");
        }
    }

    #[test]
    fn fields_count_the_flash_and_say_when_there_is_no_room() {
        let size = WearSize::of(Scale::Trial);
        let field =
            Field { system: System::BTree, mapping: Some(Mapping::Page), keys: Keys::Uniform, full: 50 };
        let row = field.measure(size).unwrap();
        assert_eq!(row, field.measure(size).unwrap(), "the same in every run");
        assert!(row.count(PROGRAMS) > 0.0 && row.count(ERASES_MOST) >= row.count(ERASES_MEAN), "{row:?}");
        let worse = Field { mapping: Some(Mapping::Block), ..field }.measure(size).unwrap();
        assert!(worse.count(COPIES) > 10.0 * row.count(PROGRAMS), "{worse:?}");
        let none = Field { full: 1, ..field }.measure(size).unwrap();
        assert!(none.count(NO_ROOM) == 1.0 && none.count(PROGRAMS).is_nan());
        for system in System::ON_A_VOLUME {
            let in_order = Field { system, keys: Keys::Sequential, ..field }.measure(size).unwrap();
            assert!(in_order.count(PROGRAMS) >= 1.0, "{system:?} wrote nothing: {in_order:?}");
        }
        let raw = Field { system: System::Wandering, mapping: None, full: 0, ..field }.measure(size).unwrap();
        assert!(raw.count(PROGRAMS) >= 200.0 && raw.count(COPIES) == 0.0, "{raw:?}");
        // It was used before: blocks are erased as fast as they are begun.
        let begun = raw.count(PROGRAMS) / f64::from(size.pages_per_block);
        assert!((raw.count(ERASES) / begun - 1.0).abs() < 0.1, "{raw:?}");
    }

    #[test]
    fn raw_flash_is_used_by_updates_and_nothing_of_them_waits() {
        let size = WearSize::of(Scale::Trial);
        for system in System::ON_RAW_FLASH {
            let flash = Arc::new(RawFlash::new(system.rules(size.profile()), 1).unwrap());
            let mut store = system.on_raw_flash(&flash, size.records).unwrap();
            let of_the_load = flash.counters();
            use_up(&flash, &mut store, size).unwrap();
            let did = flash.counters();
            let erased = did.erases - of_the_load.erases;
            assert!(erased >= flash.erases().len() as u64, "{system:?}: {erased} erases");
            // Some write that they were flushed.
            let mut flushed = || {
                let before = flash.counters().programs;
                store.flush().unwrap();
                flash.counters().programs - before
            };
            assert_eq!(flushed(), flushed(), "{system:?}: updates of before wait");
        }
    }
}
