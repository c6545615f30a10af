//! Raw flash: arrays of operations, side by side where they lie on different dies, under the rules.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use flash::{BlockId, Error, Geometry, Order, PageId, PageProgram, PageRead, Profile, RawFlash, Rules};

fn profile() -> Profile {
    let slc = Profile::slc_2007();
    let geometry = Geometry { channels: 4, dies_per_channel: 2, blocks_per_plane: 4, ..slc.geometry };
    let timing = flash::Timing { queue_depth: 64, ..slc.timing };
    Profile { geometry, timing, ..slc }
}

fn program(page: PageId, data: &[u8]) -> PageProgram<'_> {
    PageProgram { page, offset: 0, data, spare: &[], spare_offset: 0 }
}

#[test]
fn arrays_use_all_dies_and_one_die_takes_its_time() {
    let flash = RawFlash::new(profile(), 1).unwrap();
    let geometry = flash.geometry();
    let data = vec![1; 2048];
    let time = |blocks: &[u32]| {
        let set: Vec<_> =
            blocks.iter().map(|block| program(geometry.page(BlockId(*block), 0), &data)).collect();
        flash.erase(&blocks.iter().map(|block| BlockId(*block)).collect::<Vec<_>>()).unwrap();
        let began = flash.now();
        flash.program(&set).unwrap();
        (flash.now() - began).as_micros()
    };
    // 51 us on the channel, 148 in the die, 5 for the host.
    let one = time(&[0]);
    assert!((200..=210).contains(&one), "{one}");
    assert!(time(&[0, 1, 2, 3]) == one, "four channels");
    assert!(time(&[0, 8, 16, 24]) > 3 * one, "one die");
    assert!((one + 40..one + 60).contains(&time(&[0, 4])), "two dies on one channel share it");
}

#[test]
fn parts_of_pages_and_spare_areas() {
    let flash = RawFlash::new(profile(), 1).unwrap();
    let page = flash.geometry().page(BlockId(2), 3);
    for part in 0..4 {
        let (data, spare) = ([part as u8; 512], [part as u8; 2]);
        let at = PageProgram { page, offset: part * 512, data: &data, spare: &spare, spare_offset: 2 * part };
        flash.program(&[at]).unwrap();
    }
    let mut data = [9; 2048];
    let mut spare = [9; 10];
    let before = flash.counters().reads;
    flash.read(&mut [PageRead { page, offset: 0, buffer: &mut data, spare: &mut spare }]).unwrap();
    assert_eq!(flash.counters().reads, before + 1);
    assert_eq!(data, [[0; 512], [1; 512], [2; 512], [3; 512]].concat()[..]);
    assert_eq!(spare, [0, 0, 1, 1, 2, 2, 3, 3, 0xff, 0xff]);
    let fifth = flash.program(&[PageProgram { page, offset: 0, data: &[0], spare: &[], spare_offset: 0 }]);
    assert_eq!(fifth, Err(Error::NotFree { block: BlockId(2), index: 3, programs: 4, programs_max: 4 }));
}

#[test]
fn one_member_fails_and_the_others_are_carried_out() {
    let rules = Rules { order: Order::Consecutive, ..Rules::default() };
    let flash = RawFlash::new(Profile { rules, ..profile() }, 1).unwrap();
    let geometry = flash.geometry();
    let data = vec![1; 2048];
    let (first, skipping, last) =
        (geometry.page(BlockId(0), 0), geometry.page(BlockId(1), 4), geometry.page(BlockId(2), 0));
    let answer = flash.program(&[program(first, &data), program(skipping, &data), program(last, &data)]);
    assert_eq!(answer, Err(Error::OutOfOrder { block: BlockId(1), index: 4, expected: 0 }));
    let mut found = vec![0; 2048];
    for page in [first, last] {
        flash.read(&mut [PageRead { page, offset: 0, buffer: &mut found, spare: &mut [] }]).unwrap();
        assert_eq!(found, data);
    }
}

#[test]
fn arrays_that_returned_survive_power_loss() {
    let flash = RawFlash::new(profile(), 1).unwrap();
    let geometry = flash.geometry();
    let pages: Vec<_> = (0..8).map(|block| geometry.page(BlockId(block), 0)).collect();
    let next: Vec<_> = (0..8).map(|block| geometry.page(BlockId(block), 1)).collect();
    let data = vec![1; 2048];
    flash.program(&pages.iter().map(|page| program(*page, &data)).collect::<Vec<_>>()).unwrap();
    flash.cut_power_at(6);
    let cut = flash.program(&next.iter().map(|page| program(*page, &data)).collect::<Vec<_>>());
    assert_eq!(cut, Err(Error::PowerOff));
    let mut outcomes = [0; 3];
    for seed in 0..100 {
        let found = flash.power_loss(seed);
        let read = |page| {
            let mut buffer = vec![0; 2048];
            found
                .read(&mut [PageRead { page, offset: 0, buffer: &mut buffer, spare: &mut [] }])
                .map(|()| buffer)
        };
        assert!(pages.iter().all(|page| read(*page).unwrap() == data), "seed {seed}");
        for page in &next {
            let outcome = match read(*page) {
                Ok(found) if found == data => 0,
                Ok(found) => usize::from(found == [0xff; 2048]),
                Err(_) => 2,
            };
            outcomes[outcome] += 1;
        }
        assert!(read(next[5]).is_err(), "the one under way is unreadable");
        assert_eq!(read(next[7]).unwrap(), [0xff; 2048], "that one had not begun");
    }
    assert!(outcomes.iter().all(|count| *count > 100), "{outcomes:?}");
}

#[test]
fn reads_do_not_count_if_changes_are_cut() {
    let flash = RawFlash::new(profile(), 1).unwrap();
    let page = flash.geometry().page(BlockId(1), 0);
    let data = vec![1; 2048];
    let read = || {
        let mut buffer = vec![0; 2048];
        flash.read(&mut [PageRead { page, offset: 0, buffer: &mut buffer, spare: &mut [] }])
    };
    flash.cut_power_at_change(2);
    flash.program(&[program(page, &data)]).unwrap();
    for _ in 0..5 {
        read().unwrap();
    }
    assert_eq!(flash.erase(&[BlockId(2)]), Err(Error::PowerOff), "the second change");
    assert_eq!(read(), Err(Error::PowerOff));
}

/// An image is what `cut_power_at_change` would have left, at every change of an array and of an erase.
#[test]
fn kept_images_are_what_a_cut_there_leaves() {
    let data = vec![1; 2048];
    let work = |flash: &RawFlash| {
        let pages: Vec<_> = (0..3).map(|block| flash.geometry().page(BlockId(block), 0)).collect();
        flash.program(&pages.iter().map(|page| program(*page, &data)).collect::<Vec<_>>())?;
        flash.erase(&[BlockId(1)])
    };
    let contents = |flash: &RawFlash| -> Vec<_> {
        let read = |block| {
            let mut buffer = vec![0; 2048];
            let page = flash.geometry().page(BlockId(block), 0);
            flash
                .read(&mut [PageRead { page, offset: 0, buffer: &mut buffer, spare: &mut [] }])
                .map(|()| buffer)
        };
        (0..3).map(read).collect()
    };
    let kept = RawFlash::new(profile(), 1).unwrap();
    kept.keep_power_cuts();
    work(&kept).unwrap();
    let cuts = kept.take_power_cuts();
    assert_eq!((cuts.len(), kept.take_power_cuts().len()), (4, 0));
    for (nth, cut) in (1..).zip(&cuts) {
        let again = RawFlash::new(profile(), 1).unwrap();
        again.cut_power_at_change(nth);
        assert_eq!(work(&again), Err(Error::PowerOff));
        for seed in 0..20 {
            let (kept, again) = (cut.within.power_loss(seed), again.power_loss(seed));
            assert_eq!(contents(&kept), contents(&again), "change {nth}, seed {seed}");
        }
    }
    let whole = contents(&cuts[3].before.power_loss(1));
    assert!(whole.iter().all(|page| page.as_ref() == Ok(&data)), "the erase had not begun");
}
