//! Real directories for tests of devices, one for every backend that works here.

use psync::{Access, AlignedBuffer, Backend, Device, Disk, DiskOptions, FileId, Write};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::path::Path;
use tempfile::TempDir;

/// Created if missing, to be written.
pub const NEW: Access = Access { write: true, create: true, create_new: false, direct: false };
/// The same, past the page cache.
pub const NEW_DIRECT: Access = Access { direct: true, ..NEW };
/// Enough for every disk: the tests do not depend on which alignment this one asks for.
pub const BLOCK: usize = AlignedBuffer::ALIGNMENT;

/// The backends that can be had here. Threads always can.
fn backends() -> Vec<Backend> {
    let dir = scratch();
    [Backend::Uring, Backend::Libaio, Backend::Threads]
        .into_iter()
        .filter(|&backend| match Disk::open(dir.path(), DiskOptions { backend, ..DiskOptions::default() }) {
            Ok(disk) => {
                assert_eq!(disk.backend(), backend);
                true
            }
            Err(error) => {
                assert!(backend != Backend::Threads, "threads work everywhere: {error}");
                eprintln!("SKIPPED: {backend} is not tested, because {error}");
                false
            }
        })
        .collect()
}

/// On the disk that holds the build, since the system's temporary directory may be in memory.
pub fn scratch() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a scratch directory")
}

/// A disk there.
pub fn open(dir: &Path, backend: Backend, pio_max: usize) -> Disk {
    Disk::open(dir, DiskOptions { backend, pio_max, ..DiskOptions::default() }).expect("a disk")
}

/// One whose threads may look for what they wait for.
fn open_to_look(dir: &Path, backend: Backend, pio_max: usize) -> Disk {
    let options = DiskOptions { backend, pio_max, busy_wait: true, ..DiskOptions::default() };
    Disk::open(dir, options).expect("a disk")
}

/// Runs `test` with a disk of its own for every backend and way to wait, whose name is in the panic's backtrace output.
pub fn with_each(pio_max: usize, test: impl Fn(&Disk, &Path)) {
    for backend in backends() {
        for busy_wait in [false, true] {
            eprintln!("backend: {backend}, busy wait: {busy_wait}");
            let dir = scratch();
            let open = if busy_wait { open_to_look } else { open };
            test(&open(dir.path(), backend, pio_max), dir.path());
            // The others wait in one way only.
            if backend != Backend::Uring {
                break;
            }
        }
    }
}

/// `len` bytes that differ by `seed`.
pub fn noise(seed: u64, len: usize) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::new(len);
    StdRng::seed_from_u64(seed).fill(&mut buffer[..]);
    buffer
}

/// Writes it all.
#[allow(dead_code, reason = "not every test writes to disks alone")]
pub fn write(disk: &Disk, file: FileId, offset: u64, data: &[u8]) -> psync::Result<()> {
    disk.write(&[Write { file, offset, data }])
}
