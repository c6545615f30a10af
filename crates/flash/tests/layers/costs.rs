//! Merges, folds and misses cost what they should, to the operation.

use crate::harness::{Kind, PAGE, SMALL, content, event, options, read, trim, write};
use flash::{Flash, FlashCounters, Ftl, FtlOptions, Geometry, Rules};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

struct Drive {
    flash: Flash,
    layer: Box<dyn Ftl>,
    version: u64,
}

impl Drive {
    fn new(kind: Kind, geometry: Geometry, options: FtlOptions) -> Self {
        let flash = Flash::new(geometry, Rules::default(), 0).unwrap();
        Self { layer: kind.make(&flash, options).unwrap(), flash, version: 0 }
    }

    /// All its pages written in order.
    fn filled(kind: Kind, geometry: Geometry, options: FtlOptions) -> Self {
        let mut drive = Self::new(kind, geometry, options);
        let pages = drive.layer.logical_pages();
        drive.write(0..pages);
        drive
    }

    fn small(kind: Kind) -> Self {
        Self::filled(kind, SMALL, options())
    }

    /// Writes pages, and says what that cost.
    fn write(&mut self, pages: impl IntoIterator<Item = u32>) -> FlashCounters {
        let before = self.flash.counters();
        for page in pages {
            self.version += 1;
            write(&mut *self.layer, &mut self.flash, page, &content(page, self.version)).unwrap();
            self.flash.settle();
        }
        self.flash.counters() - before
    }

    fn event(&self, name: &str) -> u64 {
        event(&*self.layer, name)
    }
}

fn cost(host_programs: u64, internal_programs: u64, erases: u64) -> FlashCounters {
    // Each page that is copied is read once.
    FlashCounters {
        host_programs,
        internal_programs,
        internal_reads: internal_programs,
        erases,
        ..Default::default()
    }
}

#[test]
fn a_sequential_fill_writes_each_page_once() {
    for kind in [Kind::PageMap, Kind::BlockMap, Kind::Fmax(1), Kind::Fmax(2), Kind::Fast(0.08)] {
        let mut drive = Drive::new(kind, SMALL, options());
        let pages = drive.layer.logical_pages();
        let found = drive.write(0..pages);
        assert_eq!(found, cost(u64::from(pages), 0, 0), "{kind:?}");
        assert_eq!(found.write_amplification(), 1.0);
        assert_eq!(read(&mut *drive.layer, &mut drive.flash, 9).unwrap(), content(9, 10));
    }
}

#[test]
fn a_second_pass_in_order_copies_nothing_where_log_blocks_can_be_switched() {
    for (kind, switches) in [(Kind::Fmax(1), "switches"), (Kind::Fast(0.08), "switch_merges")] {
        let mut drive = Drive::small(kind);
        // Whole logical blocks.
        let pages = u64::from(drive.layer.logical_pages() / 8 * 8);
        assert_eq!(drive.write(0..pages as u32), cost(pages, 0, pages / 8), "{kind:?}");
        assert_eq!(drive.event(switches), pages / 8);
    }
}

#[test]
fn block_mapping_rewrites_the_block_for_each_page() {
    let mut drive = Drive::small(Kind::BlockMap);
    for offset in 0..8 {
        assert_eq!(drive.write([40 + offset]), cost(1, 7, 1), "page {offset}");
    }
    assert_eq!(drive.event("rewrites"), 8);
    // A page that is left out takes a filler, which is read from nowhere.
    let mut drive = Drive::new(Kind::BlockMap, SMALL, options());
    assert_eq!(drive.write([2]), FlashCounters { internal_reads: 0, ..cost(1, 2, 0) });
    assert_eq!(drive.write([4]), FlashCounters { internal_reads: 0, ..cost(1, 1, 0) });
    assert_eq!((drive.event("fillers"), drive.event("appends")), (3, 1));
}

#[test]
fn a_fold_costs_a_block_of_copies_and_an_erase_for_each_block_of_the_chain() {
    for replacements in 1..=3 {
        let mut drive = Drive::small(Kind::Fmax(replacements));
        // Not in order, or they would be switched.
        let page = |number: u32| 41 + number % 3;
        let full = 8 * replacements;
        assert_eq!(drive.write((0..full).map(page)), cost(u64::from(full), 0, 0));
        assert_eq!(drive.event("folds"), 0);
        assert_eq!(drive.write([42]), cost(1, 7, u64::from(replacements) + 1), "{replacements}");
        assert_eq!((drive.event("folds"), drive.event("folds_short")), (1, 0));
    }
}

#[test]
fn a_full_merge_erases_a_block_for_each_logical_block_in_the_log_and_the_log_block() {
    // One random log block, of 8 pages.
    for a in 1..=8 {
        let mut drive = Drive::small(Kind::Fast(0.0));
        // Never a first page: that would begin a sequential log block.
        let in_log = (0..8).map(|number| number % a * 8 + 1 + number / a % 7);
        assert_eq!(drive.write(in_log), cost(8, 0, 0), "a = {a}");
        assert_eq!(drive.event("full_merges"), 0);
        let found = drive.write([203]);
        assert_eq!(found, cost(1, u64::from(a) * 8, u64::from(a) + 1), "a = {a}");
        assert_eq!((drive.event("full_merges"), drive.event("log_merges")), (u64::from(a), 1), "a = {a}");
    }
    // Nothing in it is needed any more: a = 0.
    let mut drive = Drive::small(Kind::Fast(0.0));
    drive.write([9; 8]);
    trim(&mut *drive.layer, &mut drive.flash, 9).unwrap();
    assert_eq!(drive.write([203]), cost(1, 0, 1));
}

#[test]
fn the_sequential_log_block_is_switched_merged_in_part_or_taken_along() {
    let mut drive = Drive::small(Kind::Fast(0.0));
    // Full: switched. One erase, no copy.
    assert_eq!(drive.write(40..48), cost(8, 0, 1));
    assert_eq!((drive.event("switch_merges"), drive.event("partial_merges")), (1, 0));
    // A part of it: the rest is copied when the next one begins.
    for begun in 1..8 {
        let before = drive.event("partial_merges");
        assert_eq!(drive.write(64..64 + begun), cost(u64::from(begun), 0, 0), "{begun}");
        assert_eq!(drive.write([80]), cost(1, 8 - u64::from(begun), 1), "{begun}");
        assert_eq!(drive.event("partial_merges"), before + 1);
        // And that one likewise, before the next round.
        assert_eq!(drive.write([96]), cost(1, 7, 1));
        assert_eq!(drive.write(97..104), cost(7, 0, 1));
    }
    // The logical block of the sequential log block is in the oldest random log block too: both are erased with it.
    drive.write(120..123);
    drive.write([121; 8]);
    assert_eq!(drive.write([203]), cost(1, 8, 3));
    assert_eq!((drive.event("taken_along"), drive.event("full_merges")), (1, 1));
}

/// Many translation pages: 128 entries each.
const LARGE: Geometry =
    Geometry { channels: 2, dies_per_channel: 2, blocks_per_plane: 128, pages_per_block: 16, ..SMALL };

/// What DFTL says that it did comes to what was done to the flash.
fn dftl_adds_up(drive: &Drive, since: &[(&'static str, u64)], done: FlashCounters) {
    let event = |name: &str| {
        let before = since.iter().find(|(event, _)| *event == name).map_or(0, |(_, count)| *count);
        drive.event(name) - before
    };
    let copies = done.internal_programs - event("table_writes");
    assert_eq!(done.internal_reads, event("table_reads") + copies);
    let updates = event("dirty_evictions") + event("collection_updates");
    assert_eq!(event("table_writes"), updates);
    assert_eq!(event("table_reads"), event("misses") + updates);
}

#[test]
fn a_miss_costs_a_read_and_a_dirty_eviction_a_read_and_a_program() {
    for cached in [0.05, 0.2, 0.5] {
        let mut drive = Drive::filled(Kind::Dftl(cached), LARGE, options());
        let pages = drive.layer.logical_pages();
        let mut rng = SmallRng::seed_from_u64(1);
        // Clean, and in the steady state.
        for _ in 0..3 * pages {
            read(&mut *drive.layer, &mut drive.flash, rng.random_range(0..pages)).unwrap();
        }
        let (before, events) = (drive.flash.counters(), drive.layer.events());
        let hits = drive.event("hits");
        let reads = 20_000_u32;
        for _ in 0..reads {
            read(&mut *drive.layer, &mut drive.flash, rng.random_range(0..pages)).unwrap();
        }
        let done = drive.flash.counters() - before;
        let hit_ratio = (drive.event("hits") - hits) as f64 / f64::from(reads);
        println!("{cached} cached: hit ratio {hit_ratio:.3}");
        assert!((hit_ratio - cached).abs() < 0.02, "{cached} cached: hit ratio {hit_ratio}");
        // Reads alone: 1 + misses.
        let misses = (f64::from(reads) * (1.0 - hit_ratio)).round() as u64;
        assert_eq!((done.host_reads, done.internal_reads), (u64::from(reads), misses));
        assert_eq!((done.internal_programs, done.erases), (0, 0));
        dftl_adds_up(&drive, &events, done);
        // Writes, with collection of both kinds.
        let (before, events) = (drive.flash.counters(), drive.layer.events());
        let hits = drive.event("hits");
        let random: Vec<u32> = (0..2 * pages).map(|_| rng.random_range(0..pages)).collect();
        drive.write(random);
        let done = drive.flash.counters() - before;
        let hit_ratio = (drive.event("hits") - hits) as f64 / f64::from(2 * pages);
        assert!((hit_ratio - cached).abs() < 0.02, "{cached} cached: hit ratio {hit_ratio} of writes");
        dftl_adds_up(&drive, &events, done);
        for name in ["data_collections", "table_collections", "lazy_updates", "batched"] {
            assert!(drive.event(name) > 100, "{cached} cached: {name} {}", drive.event(name));
        }
    }
}

#[test]
fn dirty_entries_of_a_translation_page_are_written_together() {
    let mut drive = Drive::new(Kind::Dftl(0.05), LARGE, options());
    let pages = drive.layer.logical_pages();
    let found = drive.write(0..pages);
    // In order, the cache is full of dirty entries of few pages: each eviction cleans all of one page that are there.
    let most = u64::from(pages) / 64;
    assert!(found.internal_programs < most, "{} of {pages}", found.internal_programs);
    assert_eq!(drive.event("misses"), u64::from(pages));
    assert!(drive.event("batched") > u64::from(pages) * 8 / 10, "{}", drive.event("batched"));
    assert_eq!(read(&mut *drive.layer, &mut drive.flash, pages - 1).unwrap().len(), PAGE);
}

#[test]
fn memory_for_the_mapping_is_as_much_as_the_layer_promises() {
    let bytes = |kind| Drive::new(kind, LARGE, FtlOptions::default()).layer.mapping_bytes();
    let page_map = bytes(Kind::PageMap);
    // Blocks of 16 pages: a sixteenth, and a bit for each page.
    let logical = page_map / 4;
    assert_eq!(bytes(Kind::BlockMap), logical.div_ceil(16) * 4 + logical.div_ceil(8));
    let sizes = [Kind::BlockMap, Kind::Fast(0.03), Kind::Fmax(1)].map(bytes);
    assert!(sizes.iter().all(|size| (sizes[0]..page_map / 3).contains(size)), "{sizes:?} and {page_map}");
    // Two words for each of a twentieth of the entries, a bit for each physical page, and the directory.
    let dftl = bytes(Kind::Dftl(0.05));
    let expected = logical / 20 * 8 + LARGE.pages().div_ceil(8) as usize + logical.div_ceil(128) * 4;
    assert!(dftl.abs_diff(expected) <= 8 && dftl < page_map / 4, "{dftl} for {expected}");
}
