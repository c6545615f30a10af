//! The power goes while a process writes. The image of the file system is copied at one moment, by a reflink of the
//! file that it lies in, and the copy is mounted: its journal is all that repairs it.

use crate::ground::{EXT4, Kind, Mount, XFS, ground, run, text};
use crate::writer::{Writer, verify};
use std::time::{Duration, Instant};

/// On a slow disk it ends after so long, when there were as many cuts as this.
const LONG: Duration = Duration::from_secs(300);
const FEWEST: u64 = 10;

fn survives(kind: Kind, most: u64) {
    let (Some(dir), Some(_)) = (ground(kind), ground(XFS)) else { return };
    // XFS has reflinks.
    let outer_at = dir.path().join("outer");
    let _outer = Mount::make(XFS, &dir.path().join("outer.img"), 3000, &outer_at).expect("a file system");
    let (image, copy) = (outer_at.join("disk.img"), outer_at.join("copy.img"));
    let (at, copy_at) = (dir.path().join("mounted"), dir.path().join("copy"));
    let mounted = Mount::make(kind, &image, 400, &at).expect("a file system");
    let mut writer = Writer::start(&at.join("db"));
    let begun = writer.after(0);
    let (mut furthest, mut durable, mut cuts) = (0, begun, 0);
    let began = Instant::now();
    for cut in 0..most {
        if began.elapsed() > LONG && cut >= FEWEST {
            break;
        }
        // Odd moments, and something new is durable at each: copying and mounting may have kept the writer waiting.
        durable = writer.after(durable);
        std::thread::sleep(Duration::from_micros(cut * 7919 % 50_000));
        durable = durable.max(writer.durable());
        run("cp", &["--reflink=always", text(&image), text(&copy)]).expect("a copy");
        let story = format!("{kind:?}, cut {cut}");
        // XFS refuses a second file system of the same identity.
        let options = if kind.make[0] == "mkfs.xfs" { "nouuid" } else { kind.options };
        let copied = Mount::of(&copy, options, &copy_at).unwrap_or_else(|error| panic!("{story}: {error}"));
        furthest = verify(&copy_at.join("db"), durable, &story);
        drop(copied);
        std::fs::remove_file(&copy).expect("there");
        cuts = cut + 1;
    }
    println!("{kind:?}: {cuts} of {most} cuts, up to batch {furthest}");
    assert!(!writer.has_ended(), "{kind:?}: the writer ended");
    assert!(furthest > begun + cuts, "{kind:?}: it wrote meanwhile: from batch {begun} to {furthest}");
    drop(writer);
    drop(mounted);
}

#[test]
#[ignore = "needs root: make test-root"]
fn ext4_with_a_journal() {
    survives(EXT4, 100);
}

#[test]
#[ignore = "needs root: make test-root"]
fn xfs() {
    survives(XFS, 50);
}
