//! Drives of every kind that lose power again and again while they are written to, also while they come back.
//! `LAYER_LIVES` for more.

use crate::harness::{KINDS, Kind, SMALL, content, options, read, trim, version_of, write};
use flash::{Error, Faults, Flash, Ftl, Geometry, Rules};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;

/// Power losses of a drive.
const LOSSES: u64 = 100;

/// What the host knows of a page.
#[derive(Clone, Default)]
struct Known {
    /// The version that is settled, and those written since.
    versions: Vec<u64>,
    /// Trimmed and not written and settled since: a power loss may bring back any version.
    trimmed: bool,
}

struct Drive {
    flash: Flash,
    layer: Box<dyn Ftl>,
    known: Vec<Known>,
    next: u64,
    in_flight: Vec<u32>,
    rng: SmallRng,
    story: String,
    events: BTreeMap<&'static str, u64>,
    losses_in_recovery: u64,
    /// No blocks are left.
    ended: bool,
}

impl Drive {
    fn new(kind: Kind, seed: u64, faults: Faults) -> Self {
        // As many blocks in two units, in one, in six, and larger ones.
        let (channels, planes, pages_per_block) = [(2, 1, 8), (1, 1, 16), (2, 3, 8)][seed as usize % 3];
        let blocks_per_plane = SMALL.blocks() / channels / planes;
        let geometry = Geometry { channels, planes, blocks_per_plane, pages_per_block, ..SMALL };
        let mut flash = Flash::new(geometry, Rules::default(), seed).unwrap();
        flash.nand_mut().set_faults(faults);
        let layer = kind.make(&flash, options()).unwrap();
        let known = Known { versions: vec![0], trimmed: false };
        Self {
            known: vec![known; layer.logical_pages() as usize],
            flash,
            layer,
            next: 1,
            in_flight: Vec::new(),
            rng: SmallRng::seed_from_u64(seed),
            story: String::new(),
            events: BTreeMap::new(),
            losses_in_recovery: 0,
            ended: false,
        }
    }

    /// `None` if the power has gone, or the drive is at its end.
    fn went_on<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(done) => Some(done),
            Err(Error::PowerOff) => None,
            Err(Error::NoBlocks { .. }) => {
                self.ended = true;
                None
            }
            Err(error) => panic!("{}: {error}", self.story),
        }
    }

    fn write(&mut self, page: u32) -> Option<()> {
        let version = self.next;
        self.next += 1;
        self.known[page as usize].versions.push(version);
        self.in_flight.push(page);
        let result = write(&mut *self.layer, &mut self.flash, page, &content(page, version));
        self.went_on(result)
    }

    fn trim(&mut self, page: u32) -> Option<()> {
        let result = trim(&mut *self.layer, &mut self.flash, page);
        self.known[page as usize] = Known { versions: vec![0], trimmed: true };
        self.went_on(result)
    }

    fn read(&mut self, page: u32) -> Option<()> {
        let result = read(&mut *self.layer, &mut self.flash, page);
        let found = self.went_on(result)?;
        let expected = self.known[page as usize].versions.last().copied();
        assert_eq!(version_of(page, &found), expected, "{}: page {page}", self.story);
        Some(())
    }

    /// Writes until the power goes.
    fn work(&mut self) -> Option<()> {
        let pages = self.known.len() as u32;
        let block = self.flash.geometry().pages_per_block;
        let hot = self.rng.random_range(1..=pages);
        loop {
            for _ in 0..self.rng.random_range(1..6) {
                let range = if self.rng.random_bool(0.8) { hot } else { pages };
                let page = self.rng.random_range(0..range);
                match self.rng.random_range(0..100) {
                    0..4 => self.trim(page)?,
                    4..6 => {
                        // A whole logical block.
                        let first = page / block * block;
                        for page in first..(first + block).min(pages) {
                            self.trim(page)?;
                        }
                    }
                    6..20 => self.read(page)?,
                    20..30 => {
                        let first = page / block * block;
                        for page in first..(first + self.rng.random_range(1..block * 3 / 2)).min(pages) {
                            self.write(page)?;
                        }
                    }
                    _ => self.write(page)?,
                }
            }
            self.settle();
        }
    }

    fn settle(&mut self) {
        self.flash.settle();
        for page in self.in_flight.drain(..) {
            let known = &mut self.known[page as usize];
            let last = known.versions.len().saturating_sub(1);
            // Trimmed after it was written: not settled by it.
            known.trimmed &= last == 0;
            known.versions.drain(..last);
        }
    }

    /// The power comes back, perhaps after it has gone again meanwhile; everything is there.
    fn come_back(&mut self) {
        for (name, count) in self.layer.events() {
            *self.events.entry(name).or_default() += count;
        }
        while self.rng.random_bool(0.2) {
            self.flash.nand_mut().power_loss(self.rng.random());
            self.flash.nand_mut().cut_power_at(self.rng.random_range(1..600));
            match self.layer.recovered(&mut self.flash) {
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error, Error::PowerOff, "{}", self.story);
                    self.losses_in_recovery += 1;
                }
            }
        }
        self.flash.nand_mut().power_loss(self.rng.random());
        let recovered = self.layer.recovered(&mut self.flash);
        self.layer = recovered.unwrap_or_else(|error| panic!("{}: {error}", self.story));
        self.in_flight.clear();
        for page in 0..self.known.len() as u32 {
            let found = read(&mut *self.layer, &mut self.flash, page);
            let found = found.unwrap_or_else(|error| panic!("{}: page {page}: {error}", self.story));
            let known = &mut self.known[page as usize];
            let version = version_of(page, &found);
            let right =
                |version: &u64| known.versions.contains(version) || (known.trimmed && *version < self.next);
            let Some(version) = version.filter(right) else {
                panic!("{}: page {page} is {version:?} and none of {:?}", self.story, known.versions);
            };
            known.versions = vec![version];
        }
        self.flash.settle();
    }
}

/// Drives of a kind, that lose power after fewer than `soon` operations. Returns how often which path was taken.
fn lives(kind: Kind, lives: u64, faults: Faults, soon: u64) -> BTreeMap<&'static str, u64> {
    let mut events = BTreeMap::new();
    let (mut erases, mut again, mut losses, mut ended) = (0, 0, 0, 0);
    for seed in 0..lives {
        let mut drive = Drive::new(kind, seed, faults);
        if soon < LATE {
            // There is no time to fill it later.
            let pages = drive.known.len() as u32;
            for number in 0..3 * pages {
                let page = if number < pages { number } else { drive.rng.random_range(0..pages) };
                assert_eq!(drive.write(page), Some(()));
            }
            drive.settle();
        }
        for loss in 0..LOSSES {
            if drive.ended {
                break;
            }
            losses += 1;
            drive.story = format!("{kind:?}, seed {seed}, loss {loss}");
            let after = drive.rng.random_range(1..soon);
            drive.flash.nand_mut().cut_power_at(after);
            assert_eq!(drive.work(), None);
            drive.come_back();
        }
        ended += u64::from(drive.ended);
        erases += drive.flash.counters().erases;
        again += drive.losses_in_recovery;
        for (name, count) in drive.events {
            *events.entry(name).or_default() += count;
        }
    }
    println!("{kind:?}: {losses} losses, {again} in recovery, {ended} ends, {erases} erases, {events:?}");
    let no_faults = faults.program == 0.0;
    assert_eq!((losses == lives * LOSSES, ended == 0), (no_faults, no_faults), "{kind:?}: {losses} losses");
    assert!(erases > losses * soon / 150, "{kind:?}: {erases} erases are too few to be interrupted");
    assert!(again > losses / 50, "{kind:?}: {again} losses in recovery");
    events
}

fn count() -> u64 {
    std::env::var("LAYER_LIVES").map_or(50, |lives| lives.parse().unwrap())
}

#[track_caller]
fn all_taken(events: &BTreeMap<&'static str, u64>, names: &[&str]) {
    for name in names {
        assert!(events.get(name).is_some_and(|count| *count >= 20), "{name} in {events:?}");
    }
}

/// Operations of flash until the power goes, at most: so that a merge or a collection is under way, after many others.
const LATE: u64 = 400;

const NO_FAULTS: Faults = Faults { program: 0.0, erase: 0.0, bits: 0.0 };

#[test]
fn page_map() {
    lives(Kind::PageMap, count(), NO_FAULTS, LATE);
}

#[test]
fn block_map() {
    let events = lives(Kind::BlockMap, count(), NO_FAULTS, LATE);
    all_taken(&events, &["appends", "rewrites", "drops", "fillers"]);
}

#[test]
fn fmax() {
    let paths = ["appends", "replaced", "folds", "folds_short", "switches", "drops", "fillers"];
    for replacements in [1, 2] {
        let events = lives(Kind::Fmax(replacements), count() / 2, NO_FAULTS, LATE);
        all_taken(&events, &paths);
    }
}

#[test]
fn fast() {
    let paths = [
        "appends",
        "sequential",
        "random",
        "switch_merges",
        "partial_merges",
        "full_merges",
        "log_merges",
        "taken_along",
        "drops",
        "fillers",
    ];
    for log_blocks in [0.04, 0.08] {
        let events = lives(Kind::Fast(log_blocks), count() / 2, NO_FAULTS, LATE);
        all_taken(&events, &paths);
    }
}

#[test]
fn dftl() {
    let paths = [
        "hits",
        "misses",
        "dirty_evictions",
        "batched",
        "data_collections",
        "table_collections",
        "collection_updates",
        "lazy_updates",
    ];
    let events = lives(Kind::Dftl(0.05), count(), NO_FAULTS, LATE);
    all_taken(&events, &paths);
}

#[test]
fn power_loss_while_blocks_fail() {
    // So many that each drive comes to its end.
    let faults = Faults { program: 0.001, erase: 0.01, ..NO_FAULTS };
    for kind in [Kind::PageMap, Kind::BlockMap, Kind::Fmax(1), Kind::Fast(0.08), Kind::Dftl(0.05)] {
        lives(kind, count(), faults, LATE);
    }
}

/// A drive that hardly gets through with one merge, because the power goes before, uses up no block by trying.
#[test]
fn power_loss_again_and_again_soon() {
    for kind in KINDS {
        lives(kind, count() / 5, NO_FAULTS, 12);
    }
}
