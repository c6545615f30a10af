//! Windows of files: on a real directory, and on the simulated volume, which does the same and loses power besides.

mod mounted;

#[cfg(target_os = "linux")]
use mounted::{Mounted, run};
use psync::{
    Access, AlignedBuffer, Device, Disk, DiskOptions, Error, Fault, FileId, Filter, OperationKind, Read,
    Repeat, Simulated, Volume, Window, Write,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const NEW: Access = Access { write: true, create: true, create_new: false, direct: false };
const LEN: usize = 40_000;

fn real() -> (tempfile::TempDir, Disk) {
    // On the disk that holds the build, since the system's temporary directory may be in memory.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a scratch directory");
    let disk = Disk::open(dir.path(), DiskOptions::default()).expect("a disk");
    (dir, disk)
}

/// A file of noise, and what is in it.
fn file(volume: &dyn Volume, access: Access) -> (FileId, Vec<u8>) {
    let file = volume.open("file", access).expect("a request that is sound");
    let mut content = AlignedBuffer::new(LEN.next_multiple_of(4096));
    StdRng::seed_from_u64(1).fill(&mut content[..]);
    volume.write(&[Write { file, offset: 0, data: &content }]).expect("a request that is sound");
    (file, content.to_vec())
}

fn read(volume: &dyn Volume, file: FileId) -> Vec<u8> {
    let mut buffer = AlignedBuffer::new(volume.len(file).expect("a request that is sound") as usize);
    volume.read(&mut [Read { file, offset: 0, buffer: &mut buffer }]).expect("a request that is sound");
    buffer.to_vec()
}

/// The window, unless this file system is not one for windows.
fn open(volume: &dyn Volume, file: FileId, range: std::ops::Range<u64>) -> Option<Box<dyn Window>> {
    let window = volume.window(file, range.clone()).expect("a request that is sound");
    if let Some(window) = &window {
        assert_eq!(window.range(), range);
    } else {
        eprintln!("SKIPPED: no windows in {}", volume.describe());
    }
    window
}

fn assert_invalid<T>(answer: psync::Result<T>, what: &str) {
    assert!(matches!(answer, Err(Error::Invalid(_))), "{what}");
}

/// Stores and writes in turn, of any length anywhere: every read sees the newest.
fn is_coherent(volume: &dyn Volume) {
    let (file, mut expected) = file(volume, NEW);
    let Some(mut window) = open(volume, file, 5_000..30_011) else { return };
    let mut rng = StdRng::seed_from_u64(2);
    for step in 0..2_000 {
        let len = rng.random_range(1..6_000);
        let offset = rng.random_range(5_000..=30_011 - len);
        let data = vec![step as u8; len];
        if rng.random_bool(0.5) {
            assert!(window.store(offset as u64, &data).expect("a request that is sound"));
        } else {
            volume
                .write(&[Write { file, offset: offset as u64, data: &data }])
                .expect("a request that is sound");
        }
        expected[offset..offset + len].copy_from_slice(&data);
        if step % 100 == 0 {
            volume.sync(file).expect("a request that is sound");
        }
        assert!(read(volume, file) == expected, "step {step}");
    }
    drop(window);
    assert!(read(volume, file) == expected);
}

#[test]
fn stores_and_writes_see_each_other() {
    let (_dir, disk) = real();
    is_coherent(&disk);
    is_coherent(&Simulated::new(1).with_windows());
}

/// What would end the process does not come so far.
fn is_guarded(volume: &dyn Volume) {
    let (file, mut expected) = file(volume, NEW);
    let end = expected.len() as u64;
    assert_invalid(volume.window(file, 100..100), "nothing");
    assert_invalid(volume.window(file, 100..end + 1), "behind the end");
    let reader = volume.open("file", Access::default()).expect("a request that is sound");
    assert_invalid(volume.window(reader, 0..100), "for reading only");
    let Some(mut window) = open(volume, file, 5_000..end) else { return };
    for (offset, len) in [(4_999, 1), (4_999, 10), (end, 1), (end - 1, 2), (u64::MAX, 2), (u64::MAX - 1, 2)] {
        assert_invalid(window.store(offset, &vec![0; len]), "outside");
    }
    assert_invalid(volume.window(file, 0..100), "a second one");
    assert_invalid(volume.resize(file, end - 1), "its end");
    assert_invalid(volume.resize(file, 0), "all of it");
    assert_invalid(volume.release(file, 4_096..8_192), "its space");
    volume.resize(file, end + 5).expect("a request that is sound");
    volume.resize(file, end).expect("a request that is sound");
    volume.release(file, 0..4_096).expect("a request that is sound");
    expected[..4_096].fill(0);
    // A window outlives the closing of its file, and nothing else.
    volume.close(file).expect("a request that is sound");
    assert!(window.store(end - 3, b"end").expect("a request that is sound"));
    expected.truncate(end as usize - 3);
    expected.extend_from_slice(b"end");
    assert!(read(volume, reader) == expected);
    drop(window);
    let again = volume.open("file", NEW).expect("a request that is sound");
    drop(open(volume, again, 0..100));
    volume.resize(again, 0).expect("a request that is sound");
    drop(volume.resize(again, 10));
}

#[test]
fn nothing_is_stored_where_there_is_no_page() {
    let (_dir, disk) = real();
    is_guarded(&disk);
    is_guarded(&Simulated::new(1).with_windows());
}

#[test]
fn past_the_page_cache_there_is_no_window() {
    let (_dir, disk) = real();
    let direct = Access { direct: true, ..NEW };
    let (there, _) = file(&disk, direct);
    assert!(!disk.limits().direct || disk.window(there, 0..4_096).unwrap().is_none());
    let simulated = Simulated::new(1).with_windows();
    let (there, _) = file(&simulated, direct);
    assert!(simulated.window(there, 0..4_096).unwrap().is_none());
    let without = Simulated::new(1);
    let (there, _) = file(&without, NEW);
    assert!(without.window(there, 0..4_096).unwrap().is_none());
}

/// After a while pages are populated again, which changes nothing in them.
#[test]
fn an_old_window_still_does_it() {
    let (_dir, disk) = real();
    let (file, mut expected) = file(&disk, NEW);
    let Some(mut window) = open(&disk, file, 5_000..30_011) else { return };
    assert!(window.store(5_000, &[7; 100]).unwrap());
    disk.sync(file).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1_200));
    assert!(window.store(20_000, &[8; 10_000]).unwrap());
    expected[5_000..5_100].fill(7);
    expected[20_000..30_000].fill(8);
    assert!(read(&disk, file) == expected);
}

/// A hole on a full disk, where a store would be the end of the process: there is no window of it. Elsewhere there is.
#[cfg(target_os = "linux")]
#[test]
fn on_a_full_disk_there_are_windows_only_of_what_has_space() {
    let Some(small) = Mounted::in_memory("tmpfs") else { return };
    let disk = Disk::open(small.path(), DiskOptions::default()).unwrap();
    let (file, mut expected) = file(&disk, NEW);
    let (written, hole) = (expected.len() as u64, 8 << 20);
    disk.resize(file, hole).unwrap();
    assert!(disk.window(file, 0..hole).unwrap().is_none(), "8 MiB in 2");
    let mut window = disk.window(file, 0..written).unwrap().expect("tmpfs has windows");
    let filler = disk.open("filler", NEW).unwrap();
    let full = (0..)
        .find_map(|page| disk.write(&[Write { file: filler, offset: page * 4096, data: &[1; 4096] }]).err());
    assert!(full.unwrap().is_full());
    assert!(window.store(100, &[9; 9_000]).unwrap(), "its space it has");
    expected[100..9_100].fill(9);
    drop(window);
    assert!(disk.window(file, hole - 4096..hole).unwrap().is_none(), "a page without space");
    assert!(read(&disk, file)[..written as usize] == expected);
}

/// Somebody else takes the space of a page away, and the disk is full: a store is refused, once the window is not fresh any more. (Before,
/// it would be the end of the process: see `mapping.rs` on who could do that.)
#[cfg(target_os = "linux")]
#[test]
fn what_lost_its_space_is_refused_after_a_while() {
    let Some(small) = Mounted::in_memory("tmpfs") else { return };
    let disk = Disk::open(small.path(), DiskOptions::default()).unwrap();
    let (file, _) = file(&disk, NEW);
    let mut window = disk.window(file, 0..40_000).unwrap().expect("tmpfs has windows");
    let other = Disk::open(small.path(), DiskOptions::default()).unwrap();
    let same = other.open("file", NEW).unwrap();
    other.release(same, 8_192..12_288).unwrap();
    let filler = disk.open("filler", NEW).unwrap();
    let write = |page: u64| disk.write(&[Write { file: filler, offset: page * 4096, data: &[1; 4096] }]);
    assert!((0..).find_map(|page| write(page).err()).unwrap().is_full());
    std::thread::sleep(std::time::Duration::from_millis(1_200));
    assert!(!window.store(5_000, &[9; 5_000]).unwrap());
    assert!(!window.store(9_000, &[9; 100]).unwrap(), "nor is it fresh because of that");
    assert!(disk.write(&[Write { file, offset: 5_000, data: &[9; 5_000] }]).unwrap_err().is_full());
}

/// A file system of which nobody has thought whether it can be mapped.
#[cfg(target_os = "linux")]
#[test]
fn elsewhere_there_are_no_windows() {
    let Some(small) = Mounted::in_memory("ramfs") else { return };
    let disk = Disk::open(small.path(), DiskOptions::default()).unwrap();
    let (file, _) = file(&disk, NEW);
    assert!(disk.window(file, 0..4096).unwrap().is_none());
    // And none was begun.
    assert!(disk.window(file, 0..4096).unwrap().is_none());
    disk.resize(file, 0).unwrap();
}

/// ext4 whose data goes through the journal, by mount or by file, does not write in place; as it is usually, it does.
#[cfg(target_os = "linux")]
#[test]
fn what_goes_through_the_journal_has_no_windows() {
    for (options, flag, has) in
        [("data=ordered", "-j", true), ("data=journal", "-j", false), ("rw", "+j", false)]
    {
        let Some(small) = Mounted::ext4(options) else { return };
        let disk = Disk::open(small.path(), DiskOptions::default()).unwrap();
        let (file, _) = file(&disk, NEW);
        if !run("chattr", &[flag, &format!("{}/file", small.path().display())]) {
            eprintln!("SKIPPED: chattr {flag} is not permitted (it takes CAP_SYS_RESOURCE)");
            continue;
        }
        assert_eq!(disk.window(file, 0..4096).unwrap().is_some(), has, "{options}, chattr {flag}");
    }
}

/// A store is as unsynced as a write: lost, kept or torn, in any order, until a sync.
#[test]
fn power_loss_treats_stores_as_writes() {
    let (mut lost, mut kept, mut torn, mut reordered) = (0, 0, 0, 0);
    for seed in 0..200 {
        let volume = Simulated::new(seed).with_windows();
        let file = volume.open("file", NEW).unwrap();
        volume.sync_directory().unwrap();
        volume.write(&[Write { file, offset: 0, data: &[0; 8192] }]).unwrap();
        let mut window = volume.window(file, 0..8192).unwrap().expect("asked for");
        assert!(window.store(0, &[1; 100]).unwrap());
        volume.sync(file).unwrap();
        assert!(window.store(100, &[2; 3_000]).unwrap() && window.store(5_000, &[3; 1_000]).unwrap());
        let found = volume.power_loss(seed).read_file("file").unwrap();
        assert!(found[..100] == [1; 100], "it was synced");
        assert!(volume.crash().read_file("file").unwrap()[100..3_100] == [2; 3_000]);
        let there = |range: std::ops::Range<usize>| {
            let bytes = &found[range.clone()];
            assert!(bytes.iter().all(|byte| [0, bytes[0].max(2), 3].contains(byte)));
            bytes.iter().filter(|byte| **byte != 0).count() as f64 / range.len() as f64
        };
        let (first, second) = (there(100..3_100), there(5_000..6_000));
        lost += u32::from(first == 0.0);
        kept += u32::from(first == 1.0);
        torn += u32::from(first > 0.0 && first < 1.0);
        reordered += u32::from(first == 0.0 && second == 1.0);
    }
    for count in [lost, kept, torn, reordered] {
        assert!(count > 2, "{lost} lost, {kept} kept, {torn} torn, {reordered} reordered");
    }
}

#[test]
fn faults_refuse_stores_and_power_goes_in_the_midst_of_them() {
    let mut lens = std::collections::BTreeSet::new();
    for seed in 0..100 {
        let volume = Simulated::new(seed).with_windows();
        let (file, before) = file(&volume, NEW);
        let mut window = volume.window(file, 0..8192).unwrap().expect("asked for");
        for fault in [Fault::Error, Fault::NoSpace, Fault::Short] {
            volume.fail_nth(OperationKind::Store, 1, fault, Repeat::Once);
            assert!(!window.store(0, &[1; 600]).unwrap(), "refused");
            assert!(window.store(0, &before[..600]).unwrap(), "and the next one not");
            volume.clear_faults();
        }
        assert_eq!(volume.read_file("file").unwrap(), before);
        volume.fail_nth(Filter::changes(), 1, Fault::PowerOff, Repeat::Once);
        let data: Vec<u8> = before[..600].iter().map(|byte| !byte).collect();
        assert!(window.store(0, &data).is_err() && volume.is_off());
        assert!(window.store(0, &data).is_err());
        let found = volume.crash().read_file("file").unwrap();
        lens.insert(found.iter().zip(&before).filter(|(found, before)| found != before).count());
        assert_eq!(found[600..], before[600..]);
    }
    assert!(lens.len() > 10, "copying stops anywhere: {lens:?}");
}

/// The alarm: a file that is cut below a window by other means than its volume's.
#[test]
#[should_panic(expected = "SIGBUS")]
fn a_store_without_a_page_ends_the_test() {
    let volume = Simulated::new(1).with_windows();
    let (file, _) = file(&volume, NEW);
    let mut window = volume.window(file, 0..8192).unwrap().expect("asked for");
    volume.truncate_file("file", 4096).unwrap();
    let _ = window.store(4_000, &[1; 100]);
}
