//! Whole drives on each layer: files through the psync interface, on two dies or more at once, and power loss.

use crate::harness::{KINDS, options};
use flash::{Geometry, Profile, RequestKind, Ssd};
use psync::{Access, Device, FileId, Read, Volume, Write};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const PAGE: usize = 4096;

fn open(drive: &Ssd) -> FileId {
    drive.open("data", Access { write: true, create: true, ..Access::default() }).unwrap()
}

#[test]
fn files_are_found_again_on_every_layer() {
    let profile = Profile::ssdsim();
    let geometry = Geometry {
        channels: 2,
        dies_per_channel: 2,
        planes: 1,
        blocks_per_plane: 16,
        pages_per_block: 16,
        ..profile.geometry
    };
    for kind in KINDS {
        let profile = Profile { geometry, ..profile.clone() };
        let mut drive = Ssd::with_ftl(profile, 1, |flash| kind.make(flash, options())).unwrap();
        let mut rng = SmallRng::seed_from_u64(1);
        let pages = drive.capacity() as usize / PAGE / 2;
        let mut file = open(&drive);
        let mut expected = vec![0; pages];
        let fill = |value: usize| vec![value as u8; PAGE];
        for round in 0..12_u64 {
            for _ in 0..40 {
                let set: Vec<_> = (0..rng.random_range(1..8))
                    .map(|_| {
                        let (page, value) = (rng.random_range(0..pages), rng.random_range(1..256));
                        expected[page] = value;
                        (page, fill(value))
                    })
                    .collect();
                for (page, data) in &set {
                    let offset = (*page * PAGE) as u64;
                    drive.write(&[Write { file, offset, data }]).unwrap();
                }
            }
            drive.sync(file).unwrap();
            drive = drive.power_loss(round).unwrap();
            file = open(&drive);
            let len = drive.len(file).unwrap() as usize / PAGE;
            for (page, value) in expected.iter().enumerate() {
                let mut found = vec![0; PAGE];
                if page < len {
                    let offset = (page * PAGE) as u64;
                    drive.read(&mut [Read { file, offset, buffer: &mut found }]).unwrap();
                }
                assert_eq!(found, fill(*value), "{kind:?}, round {round}, page {page}");
            }
        }
        let writes = drive.latency(RequestKind::Write);
        println!("{kind:?}: {:?} in {:?}, writes {writes:?}", drive.flash_counters(), drive.now());
        assert!(drive.flash_counters().erases > 20 && drive.now().as_millis() > 0, "{kind:?}");
    }
}
