//! What a running experiment is given: the devices, the scale, the seeds, and where to tell how far it is.
//!
//! Invariant: ground on the disk is laid once for all experiments of a run of the program, and is gone at its end.

use crate::chart::bytes;
use crate::experiment::{Device, Scale};
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::progress::Progress;
use crate::stage::{DiskStage, Ground, SsdStage, Stage};
use flash::ftl::fast::{self, Fast};
use flash::{Content, FtlOptions, Profile, Ssd, X25_E_OVER_PROVISION};
use psync::{Backend, Device as _};
use std::cell::{OnceCell, RefCell};
use std::path::{Path, PathBuf};

/// See the module.
#[derive(Debug)]
pub struct Laboratory {
    /// How much of the published size to run.
    pub scale: Scale,
    dir: PathBuf,
    backend: Backend,
    program: PathBuf,
    disk_bytes: u64,
    disk: OnceCell<DiskStage>,
    progress: RefCell<Progress>,
    notes: RefCell<Vec<String>>,
}

const MIB: u64 = 1 << 20;

fn disk_bytes(scale: Scale) -> u64 {
    if scale == Scale::Trial { 16 * MIB } else { scale.pick(1024 * MIB, 4096 * MIB, 4096 * MIB) }
}

/// The file on a simulated drive is small beside the drive, as it was in the papers, so that its collector has little
/// to do.
fn ssd_bytes(scale: Scale) -> u64 {
    if scale == Scale::Trial { 64 * MIB } else { scale.pick(512 * MIB, 1024 * MIB, 1024 * MIB) }
}

impl Laboratory {
    /// A laboratory whose disk is the one behind `dir`, reached through `backend`, and whose worker processes run `program`.
    pub fn new(dir: &Path, backend: Backend, program: &Path, scale: Scale) -> Self {
        let disk_bytes = disk_bytes(scale);
        let progress = RefCell::new(Progress::silent());
        let (dir, program, disk) = (dir.to_owned(), program.to_owned(), OnceCell::new());
        Self { scale, dir, backend, program, disk_bytes, disk, progress, notes: RefCell::default() }
    }

    /// Where things on the disk are.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// What worker processes run.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// The disk, with a scratch directory of ours.
    pub(crate) fn disk(&self) -> Result<&DiskStage> {
        if let Some(disk) = self.disk.get() {
            return Ok(disk);
        }
        if !self.dir.is_dir() {
            let what =
                format!("{} is not a directory that is there; choose one with --dir", self.dir.display());
            return Err(Failure::Io(what));
        }
        let needed = 2 * self.disk_bytes + 64 * MIB;
        if let Some(free) = free_space(&self.dir)
            && free < needed
        {
            return Err(Failure::CannotRun(format!(
                "{} has {} MiB left, but {} MiB are needed; choose another place with --dir{}",
                self.dir.display(),
                free / MIB,
                needed / MIB,
                if self.scale <= Scale::Ci { "" } else { ", or --scale ci" }
            )));
        }
        let disk = DiskStage::open(&self.dir, self.backend)?;
        Ok(self.disk.get_or_init(|| disk))
    }

    /// The file on the disk that most experiments share, fully written.
    pub(crate) fn disk_ground(&self) -> Result<Ground> {
        Ground::lay(self.disk()?, 0, self.disk_bytes)
    }

    /// `count` files on the disk that have the length of the shared one together.
    pub(crate) fn disk_grounds(&self, count: usize) -> Result<Vec<Ground>> {
        let len = (self.disk_bytes / count as u64).next_multiple_of(MIB);
        (1..=count).map(|number| Ground::lay(self.disk()?, number, len)).collect()
    }

    /// What parameters say of a device's files.
    pub(crate) fn file(scale: Scale, device: Device) -> String {
        match device {
            Device::Disk => format!("{}, written once", bytes(disk_bytes(scale) as f64)),
            Device::Ssdsim | Device::Nand => {
                let drive = Profile::ssdsim().geometry.bytes() as f64;
                format!("{} on a drive of {}, written once", bytes(ssd_bytes(scale) as f64), bytes(drive))
            }
        }
    }

    /// The disk and its shared file, for a sweep.
    pub(crate) fn on_disk(&self) -> Result<(&DiskStage, Ground)> {
        Ok((self.disk()?, self.disk_ground()?))
    }

    /// The default simulated drive, new, with a fully written file, for a sweep.
    pub(crate) fn on_ssdsim(&self, run: u32) -> Result<(SsdStage, Ground)> {
        self.on_drive(Profile::ssdsim(), ssd_bytes(self.scale), run)
    }

    /// A new simulated drive with page mapping, with a fully written file of `len` bytes.
    pub(crate) fn on_drive(&self, profile: Profile, len: u64, run: u32) -> Result<(SsdStage, Ground)> {
        let stage = drive(profile, Layer::PageMap, run)?;
        let ground = Ground::lay(&stage, 0, len)?;
        Ok((stage, ground))
    }

    /// The same with a file that takes all of the drive.
    pub(crate) fn on_full_drive(
        &self,
        profile: Profile,
        layer: Layer,
        run: u32,
    ) -> Result<(SsdStage, Ground)> {
        let stage = drive(profile, layer, run)?;
        let len = stage.volume().capacity() / MIB * MIB;
        let ground = Ground::lay(&stage, 0, len)?;
        Ok((stage, ground))
    }

    /// The fitted X25-E, smaller, with a file that takes all of it.
    pub(crate) fn on_x25_e(&self, run: u32) -> Result<(SsdStage, Ground)> {
        let mut profile = Profile::x25_e();
        profile.geometry.blocks_per_plane = crate::tree_ground::x25_e_blocks(self.scale);
        profile.rules.content = Content::Tags;
        let options = FtlOptions { over_provision: X25_E_OVER_PROVISION, ..FtlOptions::default() };
        let ssd = Ssd::new(profile, options, u64::from(run));
        let stage =
            SsdStage::new(ssd.map_err(|error| Failure::CannotRun(format!("the simulated drive: {error}")))?);
        let len = stage.volume().capacity() / MIB * MIB;
        let ground = Ground::lay(&stage, 0, len)?;
        Ok((stage, ground))
    }

    /// The disk's peculiarities, if it was used.
    pub(crate) fn disk_notes(&self) -> Vec<String> {
        let Some(stage) = self.disk.get() else { return Vec::new() };
        let disk = stage.volume();
        let mut notes = vec![through(disk.backend())];
        notes.extend(disk.notes().iter().cloned());
        if !disk.limits().direct {
            notes.push(
                "the page cache could not be bypassed: the figures are memory's, not the disk's".to_owned(),
            );
        }
        notes
    }

    /// Something that belongs into the record of what runs now; said once.
    pub(crate) fn note(&self, note: String) {
        let mut notes = self.notes.borrow_mut();
        if !notes.contains(&note) {
            notes.push(note);
        }
    }

    /// The notes, which are gone then.
    pub(crate) fn take_notes(&self) -> Vec<String> {
        self.notes.take()
    }

    /// From here on progress is that of `what`.
    pub(crate) fn begin(&self, what: &str) {
        self.progress.replace(Progress::new(what));
    }

    /// The bar goes, so that results can be told.
    pub(crate) fn end(&self) {
        self.progress.replace(Progress::silent());
    }

    /// There will be so many points more.
    pub(crate) fn expect(&self, points: usize) {
        self.progress.borrow().expect(points);
    }

    /// A point begins.
    ///
    /// # Errors
    /// [`Failure::Interrupted`] after Ctrl-C.
    pub(crate) fn step(&self, what: &str) -> Result<()> {
        if interrupt::pressed() {
            return Err(Failure::Interrupted);
        }
        self.progress.borrow().step(what);
        Ok(())
    }

    /// The seed of a point: the same in every run of the program, another for each run and place.
    pub(crate) fn seed(run: u32, place: usize) -> u64 {
        0x5a90_0000 + u64::from(run) * 4096 + place as u64
    }
}

/// How a record notes what requests go through.
pub(crate) fn through(backend: Backend) -> String {
    format!("requests go through {backend}")
}

#[cfg(unix)]
fn free_space(dir: &Path) -> Option<u64> {
    let status = nix::sys::statvfs::statvfs(dir).ok()?;
    // The types of these differ by system.
    #[allow(clippy::unnecessary_cast, clippy::useless_conversion)]
    Some((status.blocks_available() as u64).saturating_mul(status.fragment_size() as u64))
}

#[cfg(not(unix))]
fn free_space(_: &Path) -> Option<u64> {
    None
}

/// Which translation layer a simulated drive has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layer {
    PageMap,
    Fast,
}

/// A new simulated drive.
fn drive(mut profile: Profile, layer: Layer, run: u32) -> Result<SsdStage> {
    // What is written is never looked at.
    profile.rules.content = Content::Tags;
    let (options, seed) = (FtlOptions::default(), u64::from(run));
    let ssd = match layer {
        Layer::PageMap => Ssd::new(profile, options, seed),
        Layer::Fast => {
            Ssd::with_ftl(profile, seed, |flash| Ok(Box::new(Fast::new(flash, options, fast::LOG_BLOCKS)?)))
        }
    };
    Ok(SsdStage::new(ssd.map_err(|error| Failure::CannotRun(format!("the simulated drive: {error}")))?))
}
