//! Every system of the laboratory with the same memory, so that one can be put in another's place: the trees on a volume, the
//! trees that manage raw flash, and the engine.
//!
//! Invariants:
//! 1. Every tree has [`MEMORY`] bytes for what it gathers and caches, and logs nothing, as in the papers: it is durable when it
//!    was flushed. Those whose method has less need of memory take less.
//! 2. The engine has the least memory that it takes, 4 MiB, and always keeps its log.
//! 3. All that is done follows from the options: the engine has no thread in the background.

use crate::failure::{Failure, Result};
use clap::ValueEnum;
use flash::{Order, Profile, RawFlash};
use psync::Volume;
use sapwood::{Compression, Database, Durability, Keyspace};
use std::sync::Arc;
use trees::{
    AsTree, AsTreeOptions, BEpsilonTree, BEpsilonTreeOptions, BTree, BTreeOptions, BatchedBTree,
    BatchedBTreeOptions, Bftl, BftlOptions, BlinkOptions, BlinkTree, CbFlashOptions, CbFlashTree, CbTree,
    CbTreeOptions, Checked, DiplTree, FdTree, FdTreeOptions, Ibsf, IbsfOptions, InPageLoggingOptions, Index,
    IplTree, LaTree, LaTreeOptions, LogMode, LsbTree, LsbTreeOptions, LsmTree, LsmTreeOptions, LuTree,
    LuTreeOptions, MuLayout, MuTree, MuTreeOptions, PageUse, PioOptions, PioTree, RecordAsTree,
    RecordAsTreeOptions, Split, WanderingOptions, WanderingTree,
};

/// Bytes of a page of every tree.
const PAGE: usize = 4096;
/// Bytes of memory of every tree.
pub(crate) const MEMORY: usize = 256 << 10;
/// The same in pages.
const FRAMES: usize = MEMORY / PAGE;
/// Half of the memory in records of 16 bytes, for the trees that gather records.
const UNITS: usize = MEMORY / 2 / 16;
/// How full nodes are at first: where random insertion ends.
const FILL: f64 = 0.69;
/// Bytes of a file of the systems that write in sequence, and of a segment of the engine: the least that the engine takes.
const SPAN: u64 = 1 << 20;
/// Programs of a page in parts that in-page logging asks for.
const LOG_UNITS: u32 = 8;
/// The least memory that the engine takes, in bytes.
pub(crate) const ENGINE_MEMORY: u64 = 4 << 20;
/// Records of a batch with which the engine is loaded.
const BATCH: usize = 1000;

/// A system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum System {
    /// Nodes in place behind an LRU pool
    BTree,
    /// In place, for many threads
    Blink,
    /// In place, changed nodes written in batches
    Batched,
    /// In place, updates gathered by leaf, the oldest leaf first
    Ibsf,
    /// In place, updates gathered in groups
    Lu,
    /// In place, buffers of updates beside the tree
    La,
    /// Sorted runs, merged into each other
    Fd,
    /// The same with filters, and no fences from run to run
    Lsm,
    /// Nodes on fresh pages, updates on their way down as messages
    BEpsilon,
    /// Nodes scattered over sectors that many share
    Bftl,
    /// Out of place, one node a level in memory
    Cb,
    /// Updates gathered, leaves that only grow
    Pio,
    /// Records gathered, nodes at the end of files
    RecordAs,
    /// Changed nodes at the end of files
    As,
    /// Sapwood's own engine
    Engine,
    /// The same, each update durable
    EngineDurable,
    /// Raw flash: a log in the last pages of each block
    Ipl,
    /// Raw flash: a log right behind the nodes of each block
    Dipl,
    /// Raw flash: the path to the root is written anew
    Wandering,
    /// Raw flash: a whole path on one page
    Mu,
    /// The same, where a leaf takes what the path leaves of the page
    MuStar,
    /// Raw flash: log nodes beside leaves
    Lsb,
    /// Raw flash: one node a level in memory
    CbFlash,
}

impl System {
    /// Those that stand on a volume.
    pub const ON_A_VOLUME: [System; 16] = [
        System::BTree,
        System::Blink,
        System::Batched,
        System::Ibsf,
        System::Lu,
        System::La,
        System::Fd,
        System::Lsm,
        System::BEpsilon,
        System::Bftl,
        System::Cb,
        System::Pio,
        System::RecordAs,
        System::As,
        System::Engine,
        System::EngineDurable,
    ];
    /// Those that manage raw flash.
    pub const ON_RAW_FLASH: [System; 7] = [
        System::Ipl,
        System::Dipl,
        System::Wandering,
        System::Mu,
        System::MuStar,
        System::Lsb,
        System::CbFlash,
    ];
    /// Those that only ever write at the end of what they have.
    pub const SEQUENTIAL: [System; 4] = [System::RecordAs, System::As, System::Engine, System::EngineDurable];

    /// As reports have it.
    pub fn name(self) -> &'static str {
        match self {
            System::BTree => "B+-tree",
            System::Blink => "B-link tree",
            System::Batched => "B-tree in batches",
            System::Ibsf => "IBSF",
            System::Lu => "LU-tree",
            System::La => "LA-tree",
            System::Fd => "FD-tree",
            System::Lsm => "LSM-tree",
            System::BEpsilon => "Bε-tree",
            System::Bftl => "BFTL",
            System::Cb => "CB-tree",
            System::Pio => "PIO B-tree",
            System::RecordAs => "AS-tree",
            System::As => "AS B-tree",
            System::Engine => "Sapwood",
            System::EngineDurable => "Sapwood, each durable",
            System::Ipl => "IPL",
            System::Dipl => "d-IPL",
            System::Wandering => "wandering tree",
            System::Mu => "µ-tree",
            System::MuStar => "µ*-tree",
            System::Lsb => "LSB-tree",
            System::CbFlash => "CB-tree on flash",
        }
    }

    /// The profile with what this demands of raw flash.
    pub fn rules(self, mut profile: Profile) -> Profile {
        if matches!(self, System::Ipl | System::Dipl) {
            profile.rules.order = Order::Ascending;
            profile.rules.programs_max = LOG_UNITS as u8;
        }
        profile
    }

    /// On a volume, with the records `0..count` under keys twice as large, and durable.
    pub fn on_volume(self, volume: &Arc<dyn Volume>, count: u64) -> Result<Store> {
        match self {
            System::BTree => {
                let options = BTreeOptions { page_len: PAGE, frames: FRAMES, ..BTreeOptions::default() };
                load::<BTree>(volume, &options, count)
            }
            System::Blink => {
                let options = BlinkOptions { page_len: PAGE, frames: FRAMES, ..BlinkOptions::default() };
                load::<BlinkTree>(volume, &options, count)
            }
            System::Batched => {
                let (slots, cached) = (FRAMES / 2, FRAMES / 2);
                let options =
                    BatchedBTreeOptions { page_len: PAGE, keys_max: None, slots, cached, parallel: true };
                load::<BatchedBTree>(volume, &options, count)
            }
            System::Ibsf => {
                let options = IbsfOptions {
                    page_len: PAGE,
                    units: UNITS,
                    frames: FRAMES / 2,
                    ..IbsfOptions::default()
                };
                load::<Ibsf>(volume, &options, count)
            }
            System::Lu => {
                let options = LuTreeOptions {
                    page_len: PAGE,
                    units: UNITS,
                    frames: FRAMES / 2,
                    ..LuTreeOptions::default()
                };
                load::<LuTree>(volume, &options, count)
            }
            System::La => {
                let options = LaTreeOptions {
                    page_len: PAGE,
                    staged: UNITS,
                    frames: FRAMES / 2,
                    ..LaTreeOptions::default()
                };
                load::<LaTree>(volume, &options, count)
            }
            System::Fd => {
                let options = FdTreeOptions {
                    page_len: PAGE,
                    head_pages: FRAMES,
                    pio_max: 64,
                    ..FdTreeOptions::default()
                };
                load::<FdTree>(volume, &options, count)
            }
            System::Lsm => {
                let options = LsmTreeOptions {
                    page_len: PAGE,
                    memtable_pages: FRAMES / 2,
                    frames: FRAMES / 2,
                    pio_max: 64,
                    ..LsmTreeOptions::default()
                };
                load::<LsmTree>(volume, &options, count)
            }
            System::BEpsilon => {
                let options = BEpsilonTreeOptions {
                    page_len: PAGE,
                    frames: FRAMES,
                    pio_max: 64,
                    ..BEpsilonTreeOptions::default()
                };
                load::<BEpsilonTree>(volume, &options, count)
            }
            System::Bftl => {
                let options = BftlOptions {
                    sector_len: PAGE,
                    units: UNITS,
                    reclaim: true,
                    parallel: true,
                    frames: FRAMES / 2,
                    pio_max: 64,
                    ..BftlOptions::default()
                };
                load::<Bftl>(volume, &options, count)
            }
            System::Cb => load::<CbTree>(
                volume,
                &CbTreeOptions { page_len: PAGE, keys_max: None, ..CbTreeOptions::default() },
                count,
            ),
            System::Pio => {
                let options = PioOptions {
                    page_len: PAGE,
                    queue_pages: FRAMES / 2,
                    frames: FRAMES / 2,
                    log: LogMode::Off,
                    ..PioOptions::default()
                };
                load::<PioTree>(volume, &options, count)
            }
            System::RecordAs => {
                let options = RecordAsTreeOptions {
                    node_len: PAGE,
                    keys_max: None,
                    records: UNITS,
                    sub_file_len: SPAN,
                    pio_max: 64,
                    ..RecordAsTreeOptions::default()
                };
                load::<RecordAsTree>(volume, &options, count)
            }
            System::As => {
                let options = AsTreeOptions {
                    node_len: PAGE,
                    keys_max: None,
                    slots: FRAMES / 2,
                    cached: FRAMES / 2,
                    sub_file_len: SPAN,
                    pio_max: 64,
                    ..AsTreeOptions::default()
                };
                load::<AsTree>(volume, &options, count)
            }
            System::Engine => engine(volume, count, Durability::None),
            System::EngineDurable => engine(volume, count, Durability::Immediate),
            _ => Err(Failure::CannotRun(format!("{} stands on raw flash", self.name()))),
        }
    }

    /// On raw flash, with the same records.
    pub fn on_raw_flash(self, flash: &Arc<RawFlash>, count: u64) -> Result<Store> {
        let logging = InPageLoggingOptions {
            node_len: PAGE,
            fanout_max: 200,
            records_max: 200,
            frames: FRAMES,
            units_per_page: LOG_UNITS,
            ..InPageLoggingOptions::default()
        };
        let mu = |layout| MuTreeOptions { page_len: PAGE, entries_max: None, layout, split: Split::Halve };
        match self {
            System::Ipl => load::<IplTree>(flash, &logging, count),
            System::Dipl => load::<DiplTree>(flash, &logging, count),
            System::Wandering => load::<WanderingTree>(
                flash,
                &WanderingOptions { page_len: PAGE, keys_max: None, split: Split::Halve },
                count,
            ),
            System::Mu => load::<MuTree>(flash, &mu(MuLayout::Fixed), count),
            System::MuStar => load::<MuTree>(flash, &mu(MuLayout::Adaptive), count),
            System::Lsb => load::<LsbTree>(
                flash,
                &LsbTreeOptions { page_len: PAGE, keys_max: None, split: Split::Halve },
                count,
            ),
            System::CbFlash => load::<CbFlashTree>(
                flash,
                &CbFlashOptions { page_len: PAGE, ..CbFlashOptions::default() },
                count,
            ),
            _ => Err(Failure::CannotRun(format!("{} stands on a volume", self.name()))),
        }
    }
}

/// A system with its records.
pub(crate) enum Store {
    Tree(Box<dyn Index>),
    Engine(Database, Keyspace, Durability),
}

fn load<T: Index + 'static>(ground: &T::Ground, options: &T::Options, count: u64) -> Result<Store> {
    let mut records = (0..count).map(|index| (2 * index, index));
    let mut tree = T::bulk_load(ground.clone(), options, FILL, &mut records)?;
    tree.flush()?;
    Ok(Store::Tree(Box::new(tree)))
}

fn engine(volume: &Arc<dyn Volume>, count: u64, durability: Durability) -> Result<Store> {
    // The published trees do not compress either.
    let database = Database::builder()
        .compression(Compression::None)
        .memory(ENGINE_MEMORY)
        .background_threads(0)
        .segment_span(SPAN)
        .open_on(Arc::clone(volume))?;
    let keyspace = database.keyspace("records")?;
    let keys: Vec<u64> = (0..count).collect();
    for some in keys.chunks(BATCH) {
        let mut batch = database.batch();
        batch.durability(Durability::None);
        for index in some {
            batch.insert(&keyspace, (2 * index).to_be_bytes(), index.to_be_bytes());
        }
        batch.commit()?;
    }
    database.flush()?;
    Ok(Store::Engine(database, keyspace, durability))
}

impl Store {
    /// Sets the value of a key that is there.
    pub fn update(&mut self, key: u64, value: u64) -> Result<()> {
        match self {
            Store::Tree(tree) => Ok(tree.update(key, value)?),
            Store::Engine(database, keyspace, durability) => {
                let mut batch = database.batch();
                batch.durability(*durability);
                batch.insert(keyspace, key.to_be_bytes(), value.to_be_bytes());
                Ok(batch.commit()?)
            }
        }
    }

    /// The values of keys: all at once, where the system knows how.
    pub fn search_many(&self, keys: &[u64]) -> Result<Vec<Option<u64>>> {
        match self {
            Store::Tree(tree) => Ok(tree.search_many(keys)?),
            Store::Engine(_, keyspace, _) => {
                let values = keyspace.multi_get(keys.iter().map(|key| key.to_be_bytes()))?;
                let number = |value: sapwood::Value| {
                    let bytes: [u8; 8] = value[..].try_into().ok()?;
                    Some(u64::from_be_bytes(bytes))
                };
                Ok(values.into_iter().map(|value| value.and_then(number)).collect())
            }
        }
    }

    /// Which pages are needed, as far as the system has a table of them.
    pub fn page_use(&self) -> PageUse {
        match self {
            Store::Tree(tree) => tree.page_use(),
            Store::Engine(..) => PageUse::NotTold,
        }
    }

    /// Reads everything, and counts it; the engine does not.
    pub fn check(&self) -> Result<Option<Checked>> {
        match self {
            Store::Tree(tree) => Ok(Some(tree.check()?)),
            Store::Engine(..) => Ok(None),
        }
    }

    /// Brings what waits in memory to the device.
    pub fn flush(&mut self) -> Result<()> {
        match self {
            Store::Tree(tree) => Ok(tree.flush()?),
            Store::Engine(database, ..) => Ok(database.flush()?),
        }
    }
}

impl From<sapwood::Error> for Failure {
    fn from(error: sapwood::Error) -> Self {
        match error {
            sapwood::Error::DiskFull(full) => Failure::NoRoom(full.to_string()),
            other => Failure::Io(other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flash::{FtlOptions, Geometry, Ssd};

    fn profile() -> Profile {
        let default = Profile::ssdsim();
        let geometry = Geometry {
            channels: 2,
            dies_per_channel: 2,
            planes: 1,
            blocks_per_plane: 32,
            pages_per_block: 64,
            ..default.geometry
        };
        Profile { geometry, ..default }
    }

    #[test]
    fn every_system_keeps_what_it_was_given() {
        for system in System::ON_A_VOLUME.into_iter().chain(System::ON_RAW_FLASH) {
            let count = 3_000;
            let mut store = if System::ON_A_VOLUME.contains(&system) {
                let volume: Arc<dyn Volume> =
                    Arc::new(Ssd::new(profile(), FtlOptions::default(), 1).unwrap());
                system.on_volume(&volume, count).unwrap()
            } else {
                let flash = Arc::new(RawFlash::new(system.rules(profile()), 1).unwrap());
                system.on_raw_flash(&flash, count).unwrap()
            };
            for index in (0..count).step_by(7) {
                store.update(2 * index, index + 1_000_000).unwrap();
            }
            store.flush().unwrap();
            let keys: Vec<u64> = (0..40).collect();
            let expected = |key: &u64| match (key % 2, key / 2) {
                (1, _) => None,
                (_, index) if index % 7 == 0 => Some(index + 1_000_000),
                (_, index) => Some(index),
            };
            let expected: Vec<_> = keys.iter().map(expected).collect();
            assert_eq!(store.search_many(&keys).unwrap(), expected, "{system:?}");
        }
    }

    #[test]
    fn a_system_on_the_wrong_ground_is_refused() {
        let volume: Arc<dyn Volume> = Arc::new(Ssd::new(profile(), FtlOptions::default(), 1).unwrap());
        assert!(matches!(System::Mu.on_volume(&volume, 10), Err(Failure::CannotRun(_))));
        let flash = Arc::new(RawFlash::new(profile(), 1).unwrap());
        assert!(matches!(System::As.on_raw_flash(&flash, 10), Err(Failure::CannotRun(_))));
    }
}
