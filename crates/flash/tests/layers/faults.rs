//! Blocks that fail lose nothing, until none is left, and what was written can still be read then; and what cannot be is
//! refused.

use crate::harness::{KINDS, Kind, PAGE, SMALL, content, event, options, read, trim, write};
use flash::{BlockId, Content, Error, Faults, Flash, FtlOptions, Geometry, PageId, Rules};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

#[test]
fn failing_blocks_lose_nothing_until_none_is_left() {
    for (kind, seed) in KINDS.into_iter().flat_map(|kind| (0..12).map(move |seed| (kind, seed))) {
        let story = format!("{kind:?}, seed {seed}");
        let mut flash = Flash::new(SMALL, Rules::default(), seed).unwrap();
        flash.nand_mut().mark_bad(BlockId(5)).unwrap();
        let mut layer = kind.make(&flash, options()).unwrap();
        let pages = layer.logical_pages();
        let mut versions = vec![0; pages as usize];
        flash.nand_mut().set_faults(Faults { program: 0.0005, erase: 0.002, bits: 0.0 });
        let mut rng = SmallRng::seed_from_u64(seed);
        let end = (1..).find_map(|version| {
            let page = rng.random_range(0..pages);
            match write(&mut *layer, &mut flash, page, &content(page, version)) {
                Ok(()) => versions[page as usize] = version,
                Err(error) => return Some((page, version, error)),
            }
            flash.settle();
            None
        });
        let bad = flash.nand().wear().bad;
        assert!(bad >= 2, "{story}: {bad} bad blocks");
        let Some((last, refused, Error::NoBlocks { blocks: 48, .. })) = end else {
            panic!("{story}: {end:?}")
        };
        for again in 0..3 {
            for page in 0..pages {
                let found = read(&mut *layer, &mut flash, page)
                    .unwrap_or_else(|error| panic!("{story}, page {page}, {again}: {error}"));
                let old = content(page, versions[page as usize]);
                // A write that was refused may have come true.
                let right = found == old || (page == last && found == content(page, refused));
                assert!(right, "{story}, page {page}, {again}");
            }
            flash.settle();
            flash.nand_mut().power_loss(seed);
            layer = layer.recovered(&mut flash).unwrap_or_else(|error| panic!("{story}, {again}: {error}"));
        }
    }
}

/// No block can be erased any more, so that the drive comes to its end within a merge or collection: all that was written
/// can still be read, then and when the power has gone.
#[test]
fn a_drive_at_its_end_can_be_read() {
    for (kind, seed) in KINDS.into_iter().flat_map(|kind| (0..60).map(move |seed| (kind, seed))) {
        let story = format!("{kind:?}, seed {seed}");
        let mut flash = Flash::new(SMALL, Rules::default(), seed).unwrap();
        let mut layer = kind.make(&flash, options()).unwrap();
        let pages = layer.logical_pages();
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut versions = vec![0; pages as usize];
        let end = (1..).find_map(|version| {
            if version == u64::from(2 * pages) {
                flash.nand_mut().set_faults(Faults { erase: 1.0, ..Faults::default() });
            }
            // Everything once; then one page after the other now and then, or all over.
            let page = match version <= u64::from(pages) {
                true => version as u32 - 1,
                false if version % 16 < seed % 16 => (version / 16 * 8 + version % 16) as u32 % pages,
                false => rng.random_range(0..pages),
            };
            match write(&mut *layer, &mut flash, page, &content(page, version)) {
                Ok(()) => versions[page as usize] = version,
                Err(error) => return Some((page, version, error)),
            }
            flash.settle();
            None
        });
        let Some((last, refused, Error::NoBlocks { .. })) = end else { panic!("{story}: {end:?}") };
        for again in 0..3 {
            for page in 0..pages {
                let found = read(&mut *layer, &mut flash, page)
                    .unwrap_or_else(|error| panic!("{story}, page {page}, {again}: {error}"));
                let old = content(page, versions[page as usize]);
                let right = found == old || (page == last && found == content(page, refused));
                assert!(right, "{story}, page {page}, {again}");
            }
            flash.settle();
            flash.nand_mut().power_loss(seed);
            layer = layer.recovered(&mut flash).unwrap_or_else(|error| panic!("{story}, {again}: {error}"));
        }
    }
}

/// Pages that leak their charge, wherever they are: what they held is told to be lost (or is there still, in a cache; or reads as
/// nothing, where what said whose they were is gone as well), until it is written again; no other page is harmed.
#[test]
fn pages_gone_bad_are_told_of_and_harm_no_other() {
    let mut all_lost = 0;
    for (kind, seed) in KINDS.into_iter().flat_map(|kind| (0..10).map(move |seed| (kind, seed))) {
        let story = format!("{kind:?}, seed {seed}");
        let mut flash = Flash::new(SMALL, Rules::default(), seed).unwrap();
        let mut layer = kind.make(&flash, options()).unwrap();
        let pages = layer.logical_pages();
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut versions = vec![0; pages as usize];
        for version in 1..=u64::from(3 * pages) {
            let page = rng.random_range(0..pages);
            write(&mut *layer, &mut flash, page, &content(page, version)).unwrap();
            versions[page as usize] = version;
        }
        // Any that hold something.
        let spoilt = (0..).map(|_| PageId(rng.random_range(0..SMALL.pages())));
        let spoilt: Vec<_> = spoilt.filter(|page| flash.nand_mut().spoil(*page).is_ok()).take(3).collect();
        let erases = |flash: &Flash, page: &PageId| flash.nand().erases(SMALL.block_of(*page));
        let before: Vec<_> = spoilt.iter().map(|page| erases(&flash, page)).collect();
        let mut lost: Vec<u32> = Vec::new();
        for page in 0..pages {
            match read(&mut *layer, &mut flash, page) {
                Ok(found) if found == content(page, versions[page as usize]) => {}
                Ok(found) => {
                    assert_eq!((found, kind), (content(page, 0), Kind::Dftl(0.05)), "{story}: page {page}");
                    lost.push(page);
                }
                Err(Error::Unreadable { .. }) => lost.push(page),
                Err(error) => panic!("{story}: page {page}: {error}"),
            }
        }
        assert!(lost.len() <= 3, "{story}: lost {lost:?}");
        all_lost += lost.len();
        for version in u64::from(3 * pages) + 1..u64::from(10 * pages) {
            let page = rng.random_range(0..pages);
            // Some are never written again.
            if page % 2 == 0 && lost.contains(&page) {
                let found = read(&mut *layer, &mut flash, page);
                let told = matches!(found, Err(Error::Unreadable { .. }));
                let forgotten = kind == Kind::Dftl(0.05) && found == Ok(content(page, 0));
                assert!(told || forgotten, "{story}: page {page}");
                continue;
            }
            write(&mut *layer, &mut flash, page, &content(page, version)).unwrap();
            versions[page as usize] = version;
            lost.retain(|lost| *lost != page);
            flash.settle();
        }
        // Their blocks are used again once nobody needs anything of them.
        for version in u64::from(10 * pages)..u64::from(20 * pages) {
            let page = version as u32 % pages;
            write(&mut *layer, &mut flash, page, &content(page, version)).unwrap();
            versions[page as usize] = version;
            flash.settle();
        }
        let after = spoilt.iter().map(|page| erases(&flash, page));
        assert!(
            after.zip(&before).all(|(after, before)| after > *before),
            "{story}: a block is lost for good"
        );
        lost.clear();
        for again in [false, true] {
            for page in (0..pages).filter(|page| !lost.contains(page)) {
                let found = read(&mut *layer, &mut flash, page)
                    .unwrap_or_else(|error| panic!("{story}, page {page}, {again}: {error}"));
                assert_eq!(found, content(page, versions[page as usize]), "{story}, page {page}, {again}");
            }
            flash.settle();
            flash.nand_mut().power_loss(seed);
            layer = layer.recovered(&mut flash).unwrap();
        }
    }
    assert!(all_lost > 60, "{all_lost} lost");
}

#[test]
fn translation_pages_gone_bad_are_put_together_again() {
    let mut flash = Flash::new(SMALL, Rules::default(), 0).unwrap();
    let mut layer = Kind::Dftl(0.05).make(&flash, options()).unwrap();
    let pages = layer.logical_pages();
    let mut rng = SmallRng::seed_from_u64(0);
    let mut versions = vec![0; pages as usize];
    let mut version = 0;
    for round in 1..20 {
        for _ in 0..pages {
            version += 1;
            let page = rng.random_range(0..pages);
            write(&mut *layer, &mut flash, page, &content(page, version)).unwrap();
            versions[page as usize] = version;
        }
        // All of them, outdated ones included: kind 2 in the spare area.
        let mut spare = [0; 16];
        for page in (0..SMALL.pages()).map(PageId) {
            if flash.read_spare(page, &mut spare).is_ok() && spare[11] == 2 {
                flash.nand_mut().spoil(page).unwrap();
            }
        }
        if round % 4 == 0 {
            flash.settle();
            flash.nand_mut().power_loss(round);
            layer = layer.recovered(&mut flash).unwrap();
            assert_eq!(event(&*layer, "recovered_tables"), 3, "round {round}");
        }
        for page in 0..pages {
            let found = read(&mut *layer, &mut flash, page).unwrap();
            assert_eq!(found, content(page, versions[page as usize]), "round {round}, page {page}");
        }
        assert!(
            round % 4 == 0 || event(&*layer, "rebuilt_tables") >= 3,
            "round {round}: {:?}",
            layer.events()
        );
    }
}

#[test]
fn pages_that_do_not_exist_are_refused() {
    for kind in KINDS {
        let mut flash = Flash::new(SMALL, Rules::default(), 0).unwrap();
        let mut layer = kind.make(&flash, options()).unwrap();
        let pages = layer.logical_pages();
        let missing = Err(Error::NoSuchPage { page: pages, pages });
        assert_eq!(write(&mut *layer, &mut flash, pages, &[0; PAGE]), missing, "{kind:?}");
        assert_eq!(read(&mut *layer, &mut flash, pages).map(|_| ()), missing, "{kind:?}");
        assert_eq!(trim(&mut *layer, &mut flash, pages), missing, "{kind:?}");
    }
}

#[test]
fn drives_that_cannot_be_are_refused() {
    let flash = Flash::new(SMALL, Rules::default(), 0).unwrap();
    let tiny = Flash::new(Geometry { blocks_per_plane: 3, ..SMALL }, Rules::default(), 0).unwrap();
    let wrong = FtlOptions { over_provision: f64::NAN, ..options() };
    for kind in KINDS {
        assert!(matches!(kind.make(&tiny, options()), Err(Error::Geometry(_))), "{kind:?}");
        assert!(matches!(kind.make(&flash, wrong), Err(Error::Geometry(_))), "{kind:?}");
    }
    for kind in [
        Kind::Fmax(0),
        Kind::Fmax(17),
        Kind::Fast(-0.1),
        Kind::Fast(0.3),
        Kind::Fast(f64::NAN),
        Kind::Dftl(0.0),
        Kind::Dftl(1.1),
        Kind::Dftl(f64::NAN),
    ] {
        assert!(matches!(kind.make(&flash, options()), Err(Error::Geometry(_))), "{kind:?}");
    }
    let rules = Rules { content: Content::Tags, ..Rules::default() };
    let tags = Flash::new(SMALL, rules, 0).unwrap();
    assert!(matches!(Kind::Dftl(0.05).make(&tags, options()), Err(Error::Geometry(_))));
}
