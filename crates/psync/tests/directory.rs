//! A real directory keeps the contract of `Volume`: names, options, locks, and disks that are full or read-only.

mod mounted;

#[cfg(target_os = "linux")]
use mounted::Mounted;
use psync::{
    Access, AlignedBuffer, Backend, Device, Disk, DiskOptions, Error, FileId, LockKind, Read, Volume, Write,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::path::Path;
use tempfile::TempDir;

const NEW: Access = Access { write: true, create: true, create_new: false, direct: false };

/// On the disk that holds the build, since the system's temporary directory may be in memory.
fn scratch() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a scratch directory")
}

fn open(dir: &Path, backend: Backend, pio_max: usize) -> Disk {
    Disk::open(dir, DiskOptions { backend, pio_max, ..DiskOptions::default() }).expect("a disk")
}

/// `len` bytes that differ by `seed`.
fn noise(seed: u64, len: usize) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::new(len);
    StdRng::seed_from_u64(seed).fill(&mut buffer[..]);
    buffer
}

fn write(disk: &Disk, file: FileId, offset: u64, data: &[u8]) -> psync::Result<()> {
    disk.write(&[Write { file, offset, data }])
}

fn read(disk: &Disk, file: FileId, offset: u64, len: usize) -> psync::Result<AlignedBuffer> {
    let mut buffer = AlignedBuffer::new(len);
    disk.read(&mut [Read { file, offset, buffer: &mut buffer }]).map(|()| buffer)
}

fn assert_invalid<T: std::fmt::Debug>(answer: psync::Result<T>, what: &str) {
    assert!(matches!(answer, Err(Error::Invalid(_))), "{what}: {answer:?}");
}

#[test]
fn files_are_named_renamed_listed_and_removed() {
    let dir = scratch();
    let disk = open(dir.path(), Backend::Auto, 16);
    for name in ["", ".", "..", "a/b", "/a", "a\\b", "a\0b"] {
        assert_invalid(disk.open(name, NEW), name);
        assert_invalid(disk.remove(name), name);
        assert_invalid(disk.rename("a", name), name);
        assert_invalid(disk.rename(name, "a"), name);
    }
    let missing = disk.open("a", Access { write: true, ..Access::default() });
    assert!(matches!(&missing, Err(Error::NotFound { file }) if file == "a"), "{missing:?}");
    let once = Access { create_new: true, ..NEW };
    let file = disk.open("a", once).unwrap();
    assert!(matches!(disk.open("a", once), Err(Error::Exists { file }) if file == "a"));
    write(&disk, file, 0, b"first").unwrap();
    let other = disk.open("b", NEW).unwrap();
    write(&disk, other, 0, b"second").unwrap();
    std::fs::create_dir(dir.path().join("folder")).unwrap();
    assert_invalid(disk.open("folder", Access::default()), "a directory is no file");
    let listed = |disk: &Disk| -> Vec<_> {
        disk.list().unwrap().into_iter().map(|entry| (entry.name, entry.len)).collect()
    };
    assert_eq!(listed(&disk), [("a".into(), 5), ("b".into(), 6)]);
    disk.rename("a", "b").unwrap();
    assert_eq!(listed(&disk), [("b".into(), 5)]);
    assert_eq!(&read(&disk, other, 0, 6).unwrap()[..], b"second", "open files outlive their names");
    let before = disk.counters().syncs;
    disk.sync_directory().unwrap();
    assert_eq!(disk.counters().syncs, before + 1);
    disk.remove("b").unwrap();
    assert!(matches!(disk.remove("b"), Err(Error::NotFound { .. })));
    assert!(matches!(disk.rename("b", "c"), Err(Error::NotFound { .. })));
    assert_eq!(listed(&disk), []);
}

#[test]
fn options_out_of_range_and_missing_directories_are_refused() {
    let dir = scratch();
    for pio_max in [0, 4097] {
        assert_invalid(Disk::open(dir.path(), DiskOptions { pio_max, ..DiskOptions::default() }), "pio_max");
    }
    for pio_max in [1, 4096] {
        assert_eq!(open(dir.path(), Backend::Auto, pio_max).limits().pio_max, pio_max);
    }
    let missing = dir.path().join("missing");
    let opened = Disk::open(&missing, DiskOptions { create: false, ..DiskOptions::default() });
    assert!(matches!(opened, Err(Error::NotFound { .. })), "{opened:?}");
    Disk::open(missing.join("deeper"), DiskOptions { create: true, ..DiskOptions::default() }).unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    for create in [false, true] {
        for path in [&file, &file.join("below"), Path::new("")] {
            let opened = Disk::open(path, DiskOptions { create, ..DiskOptions::default() });
            assert!(matches!(opened, Err(Error::NotADirectory { .. })), "{path:?}: {opened:?}");
        }
    }
    let cached = Disk::open(dir.path(), DiskOptions { direct: false, ..DiskOptions::default() }).unwrap();
    assert_eq!((cached.limits().alignment, cached.limits().direct), (1, false));
}

/// Files of a database went elsewhere from then on, and were acknowledged there.
#[test]
fn a_relative_path_stays_where_it_was_when_the_process_goes_elsewhere() {
    let (dir, elsewhere) = (scratch(), scratch());
    std::env::set_current_dir(dir.path()).expect("is there");
    let disk = Disk::open("here", DiskOptions::default()).expect("a disk");
    std::env::set_current_dir(elsewhere.path()).expect("is there");
    disk.open("one", NEW).expect("a file");
    disk.open("two", NEW).expect("a file");
    disk.rename("two", "three").expect("renamed");
    assert_eq!(disk.list().expect("listed").len(), 2);
    let found = ["here/one", "here/three"].map(|name| dir.path().join(name).is_file());
    assert!(found.iter().all(|is_there| *is_there), "{found:?}");
    // Both directories go.
    std::env::set_current_dir("/").expect("is there");
}

/// Others may make names in some directories without reading them. Takes root, who lets go of its rights for it.
#[cfg(target_os = "linux")]
#[test]
fn a_directory_can_be_made_where_one_may_not_read() {
    use rustix::thread::{Uid, set_thread_uid};
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    if tempfile::tempdir().and_then(|dir| dir.path().metadata()).expect("a scratch directory").uid() != 0 {
        eprintln!("not tried: this takes root");
        return;
    }
    // Not all directories above the build may be open to everyone.
    let above = tempfile::tempdir().expect("a scratch directory");
    std::fs::set_permissions(above.path(), std::fs::Permissions::from_mode(0o733)).expect("allowed");
    let made = above.path().join("one").join("two");
    let disk = std::thread::scope(|scope| {
        let nobody = scope.spawn(|| {
            if set_thread_uid(Uid::from_raw(65534)).is_err() {
                return None;
            }
            std::fs::read_dir(above.path()).expect_err("it may not be read");
            Some(Disk::open(&made, DiskOptions::default()).map(drop))
        });
        nobody.join().expect("no panic")
    });
    let Some(disk) = disk else { return eprintln!("not tried: there is no other user here") };
    disk.expect("it is made");
    assert!(made.is_dir());
}

/// Names are those of the directory that was opened, and not of another that has its path now.
#[cfg(unix)]
#[test]
fn a_directory_is_the_one_that_was_opened() {
    let above = scratch();
    let [path, elsewhere] = ["d", "e"].map(|name| above.path().join(name));
    let disk = open(&path, Backend::Auto, 4);
    let known = disk.open("known", NEW).unwrap();
    disk.identify_by(known).unwrap();
    std::fs::rename(&path, &elsewhere).unwrap();
    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join("known"), "another").unwrap();
    let new = disk.open("new", NEW).unwrap();
    disk.rename("new", "renamed").unwrap();
    disk.sync(new).unwrap();
    disk.sync_directory().unwrap();
    assert!(elsewhere.join("renamed").is_file());
    disk.remove("renamed").unwrap();
    disk.sync(new).unwrap_or_else(|error| panic!("its own removal is no loss: {error}"));
    assert_eq!(disk.list().unwrap().len(), 1);
    assert_eq!(std::fs::read_dir(&path).unwrap().count(), 1, "nothing happened there");
    assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 1);
}

/// Whatever would change it, or promises that something lasts there, is refused; what is open can be read.
#[cfg(unix)]
#[test]
fn a_directory_that_is_not_the_same_any_more_is_left_alone() {
    type Way = (&'static str, fn(&Path));
    let ways: [Way; 4] = [
        ("removed", |path| std::fs::remove_dir_all(path).unwrap()),
        ("emptied", |path| {
            ["known", "other"]
                .map(|name| std::fs::remove_file(path.join(name)).unwrap())
                .into_iter()
                .collect()
        }),
        ("replaced", |path| {
            std::fs::write(path.join("copy"), "copy").unwrap();
            std::fs::rename(path.join("copy"), path.join("known")).unwrap();
        }),
        ("linked", |path| {
            std::fs::rename(path.join("known"), path.with_extension("known")).unwrap();
            std::os::unix::fs::symlink(path.with_extension("known"), path.join("known")).unwrap();
        }),
    ];
    for (what, change) in ways {
        let above = scratch();
        let path = above.path().join("d");
        let disk = open(&path, Backend::Auto, 4);
        let [known, other] = ["known", "other"].map(|name| disk.open(name, NEW).unwrap());
        write(&disk, known, 0, b"known").unwrap();
        disk.identify_by(known).unwrap();
        disk.verify().unwrap();
        change(&path);
        let names = || {
            std::fs::read_dir(&path)
                .map(|entries| entries.map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>())
        };
        let before = names().ok();
        let is_gone = |answer: psync::Result<()>| {
            assert!(matches!(answer, Err(Error::Gone { .. })), "{what}: {answer:?}")
        };
        is_gone(disk.verify());
        is_gone(disk.open("new", NEW).map(drop));
        is_gone(disk.remove("other"));
        is_gone(disk.rename("other", "another"));
        is_gone(disk.sync(known));
        is_gone(disk.sync(other));
        is_gone(disk.sync_part(Write { file: known, offset: 0, data: b"known" }));
        is_gone(disk.sync_directory());
        assert_eq!(&read(&disk, known, 0, 5).unwrap()[..], b"known");
        assert_eq!(names().ok(), before, "{what}");
        // Another file, another volume.
        disk.close(known).unwrap();
        disk.verify().unwrap();
    }
}

/// One file alone that somebody has removed; the volume is known by another.
#[cfg(unix)]
#[test]
fn what_nobody_will_find_is_not_durable() {
    let dir = scratch();
    let disk = open(dir.path(), Backend::Auto, 4);
    let [known, other] = ["known", "other"].map(|name| disk.open(name, NEW).unwrap());
    disk.identify_by(known).unwrap();
    write(&disk, other, 0, b"lost").unwrap();
    std::fs::remove_file(dir.path().join("other")).unwrap();
    assert!(matches!(disk.sync(other), Err(Error::Gone { .. })));
    disk.sync(known).unwrap();
    // It has another name, or had one that it gave to another itself.
    let [first, second] = ["first", "second"].map(|name| disk.open(name, NEW).unwrap());
    disk.rename("first", "second").unwrap();
    disk.sync(first).unwrap();
    disk.sync(second).unwrap();
}

#[cfg(unix)]
#[test]
fn links_are_listed_and_not_followed() {
    let dir = scratch();
    let disk = open(dir.path(), Backend::Auto, 4);
    disk.open("file", NEW).unwrap();
    std::os::unix::fs::symlink("file", dir.path().join("link")).unwrap();
    let names: Vec<_> = disk.list().unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, ["file", "link"]);
    for access in [Access::default(), NEW] {
        let opened = disk.open("link", access);
        assert!(matches!(opened, Err(Error::SymbolicLink { .. })), "{opened:?}");
    }
    disk.remove("link").unwrap();
    assert!(dir.path().join("file").is_file());
}

/// The lock is on the directory: its file only tells who holds it.
#[cfg(unix)]
#[test]
fn without_its_file_the_lock_still_keeps_others_away() {
    let dir = scratch();
    let [one, two] = [(); 2].map(|()| open(dir.path(), Backend::Threads, 4));
    for (held, tried) in [
        (LockKind::Exclusive, LockKind::Exclusive),
        (LockKind::Exclusive, LockKind::Shared),
        (LockKind::Shared, LockKind::Exclusive),
    ] {
        let lock = one.lock(held, "somebody").unwrap();
        std::fs::remove_file(dir.path().join("LOCK")).unwrap();
        let refused = two.lock(tried, "somebody else");
        assert!(matches!(refused, Err(Error::Locked { .. })), "{refused:?}");
        drop(lock);
        drop(two.lock(tried, "somebody else").unwrap());
    }
}

#[test]
fn backends_are_called_the_same_everywhere() {
    for (backend, name) in [
        (Backend::Auto, "auto"),
        (Backend::Uring, "io_uring"),
        (Backend::Libaio, "libaio"),
        (Backend::Threads, "threads"),
    ] {
        assert_eq!(backend.to_string(), name);
        assert_eq!(name.parse::<Backend>().unwrap(), backend);
        assert_eq!(serde_json::to_string(&backend).unwrap(), format!("\"{name}\""));
    }
    let unknown = "uring2".parse::<Backend>().unwrap_err().to_string();
    assert!(unknown.contains("io_uring, libaio, threads"), "{unknown}");
}

/// A child inherits every descriptor and drops them with its exec, a moment later: it must not keep the lock meanwhile.
#[test]
fn a_released_lock_is_free_while_children_are_being_started() {
    let dir = scratch();
    let disk = open(dir.path(), Backend::Threads, 4);
    let done = std::sync::atomic::AtomicBool::new(false);
    let children = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                std::process::Command::new("true").status().unwrap();
                children.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        });
        let began = std::time::Instant::now();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let is_enough = || children.load(std::sync::atomic::Ordering::Relaxed) >= 20;
            while began.elapsed().as_secs() < 1 || !is_enough() {
                assert!(began.elapsed().as_secs() < 120, "children take too long to start");
                for kind in [LockKind::Exclusive, LockKind::Shared] {
                    drop(disk.lock(kind, "a parent").unwrap());
                }
            }
        }));
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        outcome.unwrap();
    });
}

#[test]
fn the_lock_keeps_others_away_and_names_the_holder() {
    let dir = scratch();
    let [one, two] = [(); 2].map(|()| open(dir.path(), Backend::Threads, 4));
    let refusal = |disk: &Disk, kind| match disk.lock(kind, "somebody else").unwrap_err() {
        Error::Locked { volume, holder } => {
            assert_eq!(volume, dir.path().display().to_string());
            holder
        }
        other => panic!("{other:?}"),
    };
    let held = one.lock(LockKind::Exclusive, "process 12, sapwood load").unwrap();
    for disk in [&one, &two] {
        for kind in [LockKind::Exclusive, LockKind::Shared] {
            assert_eq!(refusal(disk, kind), "process 12, sapwood load");
        }
    }
    drop(held);
    assert_eq!(std::fs::read(dir.path().join("LOCK")).unwrap(), b"", "a holder takes its name along");
    let first = one.lock(LockKind::Shared, "a reader").unwrap();
    let second = two.lock(LockKind::Shared, "another reader").unwrap();
    let holder = refusal(&two, LockKind::Exclusive);
    assert!(!holder.contains("process 12"), "who is gone is not blamed: {holder}");
    assert!(holder.contains("read"), "{holder}");
    drop(first);
    refusal(&one, LockKind::Exclusive);
    drop(second);
    let short = two.lock(LockKind::Exclusive, "me").unwrap();
    assert_eq!(refusal(&one, LockKind::Shared), "me", "nothing is left of a longer holder");
    drop(short);

    // What lies in the file is shown to people, so it is bounded and made printable.
    std::fs::write(dir.path().join("LOCK"), vec![b'x'; 1 << 20]).unwrap();
    let foreign = std::fs::File::open(dir.path().join("LOCK")).unwrap();
    foreign.lock().unwrap();
    assert!(refusal(&one, LockKind::Exclusive).len() < 1000);
    std::fs::write(dir.path().join("LOCK"), b"\x1b[31m\xff\n").unwrap();
    let holder = refusal(&one, LockKind::Exclusive);
    assert!(!holder.contains(['\x1b', '\n']), "{holder:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_told_and_can_be_used_again() {
    for backend in [Backend::Uring, Backend::Libaio, Backend::Threads] {
        let Some(mounted) = Mounted::in_memory("tmpfs") else { return };
        let disk = match Disk::open(mounted.path(), DiskOptions { backend, ..DiskOptions::default() }) {
            Ok(disk) => disk,
            Err(error) => {
                assert!(backend != Backend::Threads, "threads work everywhere: {error}");
                eprintln!("SKIPPED: {backend} is not tested, because {error}");
                continue;
            }
        };
        let limits = disk.limits();
        assert_eq!((limits.alignment, limits.direct), (1, false), "there is nothing behind the page cache");
        assert!(disk.notes().iter().any(|note| note.contains("page cache")), "{:?}", disk.notes());
        let kept = disk.open("kept", Access { direct: true, ..NEW }).unwrap();
        let text = noise(1, 256 << 10);
        write(&disk, kept, 0, &text).unwrap();
        let big = disk.open("big", NEW).unwrap();
        let data = noise(2, 256 << 10);
        let set: Vec<_> = (0..16)
            .map(|index| Write { file: big, offset: index * data.len() as u64, data: &data })
            .collect();
        let error = disk.write(&set).unwrap_err();
        assert!(error.is_full() && error.to_string().contains("big"), "{backend}: {error:?}");
        let alone = write(&disk, kept, 1 << 20, &noise(3, 2 << 20)).unwrap_err();
        assert!(alone.is_full(), "{backend}: {alone:?}");
        assert!(read(&disk, kept, 0, text.len()).unwrap()[..] == text[..], "{backend}");
        disk.resize(kept, text.len() as u64).unwrap();
        disk.resize(big, 0).unwrap();
        disk.write(&set[..4]).unwrap();
        assert!(read(&disk, big, 3 * data.len() as u64, data.len()).unwrap()[..] == data[..], "{backend}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_read_only_disk_can_be_locked_for_reading() {
    let Some(mounted) = Mounted::in_memory("tmpfs") else { return };
    let options = DiskOptions { create: false, ..DiskOptions::default() };
    mounted.remount("ro");
    let disk = Disk::open(mounted.path(), options).unwrap();
    drop(disk.lock(LockKind::Shared, "reader").unwrap());
    let refused = disk.lock(LockKind::Exclusive, "writer");
    assert!(matches!(refused, Err(Error::ReadOnlyFileSystem { .. })), "{refused:?}");
    mounted.remount("rw");
    drop(disk.lock(LockKind::Exclusive, "writer").unwrap());
    mounted.remount("ro");
    let shared = disk.lock(LockKind::Shared, "reader").unwrap();
    let again = Disk::open(mounted.path(), options).unwrap();
    let also = again.lock(LockKind::Shared, "another reader").unwrap();
    drop((shared, also));
    let foreign = std::fs::File::open(mounted.path().join("LOCK")).unwrap();
    foreign.lock().unwrap();
    let refused = disk.lock(LockKind::Shared, "reader");
    assert!(matches!(refused, Err(Error::Locked { .. })), "the file's lock counts: {refused:?}");
}
