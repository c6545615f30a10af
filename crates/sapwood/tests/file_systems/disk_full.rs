//! A disk that really runs full under a process that is killed meanwhile.

use crate::ground::{BTRFS, EXT4, Kind, Mount, XFS, ground};
use crate::writer::{Writer, verify};
use std::io::Write;
use std::time::{Duration, Instant};

/// Refusals that are waited for before the writer is killed, and how long: it may have space left for long, or wait for the disk.
const REFUSALS: u64 = 20;
const REFUSED_WITHIN: Duration = Duration::from_secs(5);
/// One there has to be, and it takes a slow disk some time to write so much.
const ONE_WITHIN: Duration = Duration::from_secs(600);

/// Whether one of the rounds has to meet a refusal: btrfs may find space for the writer again, and did for four rounds of five.
fn survives(kind: Kind, is_refused: bool) {
    let Some(dir) = ground(kind) else { return };
    let at = dir.path().join("mounted");
    let _mounted = Mount::make(kind, &dir.path().join("disk.img"), 320, &at).expect("a file system");
    let (path, fill) = (at.join("db"), at.join("fill"));
    let (mut least, mut refused) = (0, 0);
    for round in 0..5u64 {
        let story = format!("{kind:?}, round {round}");
        let mut writer = Writer::start(&path);
        // It is open, and at work.
        writer.after(least);
        // It is full until somebody frees a part, and then full again.
        let mut file = std::fs::File::create(&fill).expect("a file");
        while file.write_all(&[1; 4096]).is_ok() {}
        drop(file);
        let begun = Instant::now();
        while writer.full() < REFUSALS {
            let is_one = !is_refused || refused + writer.full() > 0;
            if begun.elapsed() > if is_one { REFUSED_WITHIN } else { ONE_WITHIN } {
                break;
            }
            assert!(!writer.has_ended(), "{story}: the writer ends");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(37 * round));
        refused += writer.full();
        least = least.max(writer.kill());
        std::fs::remove_file(&fill).expect("there");
        least = verify(&path, least, &story);
    }
    println!("{kind:?}: {refused} refusals");
    assert!(refused > 0 || !is_refused, "{kind:?}: the disk was never full for the writer");
}

#[test]
#[ignore = "needs root: make test-root"]
fn ext4() {
    survives(EXT4, true);
}

#[test]
#[ignore = "needs root: make test-root"]
fn xfs() {
    survives(XFS, true);
}

#[test]
#[ignore = "needs root: make test-root"]
fn btrfs() {
    survives(BTRFS, false);
}
