//! A volume that keeps account of the time that reads and writes take, each by itself.
//!
//! Invariant: it moves the same bytes in the same calls as the volume below; only the clock is looked at.

use psync::{FileId, PassThrough, Read, Result, Volume, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A clock: time since some moment.
pub(crate) type Now = Arc<dyn Fn() -> Duration + Send + Sync>;

/// See the module.
pub(crate) struct Spent {
    below: Arc<dyn Volume>,
    now: Now,
    /// In nanoseconds.
    reading: AtomicU64,
    writing: AtomicU64,
}

impl Spent {
    pub fn over(below: Arc<dyn Volume>, now: Now) -> Arc<Self> {
        Arc::new(Self { below, now, reading: AtomicU64::new(0), writing: AtomicU64::new(0) })
    }

    /// Microseconds of reading and of writing so far; syncs are writing.
    pub fn micros(&self) -> (f64, f64) {
        let micros = |nanos: &AtomicU64| nanos.load(Relaxed) as f64 / 1000.0;
        (micros(&self.reading), micros(&self.writing))
    }

    fn charge<T>(&self, to: &AtomicU64, work: impl FnOnce() -> T) -> T {
        let began = (self.now)();
        let answer = work();
        to.fetch_add(((self.now)() - began).as_nanos() as u64, Relaxed);
        answer
    }
}

impl PassThrough for Spent {
    fn inner(&self) -> &dyn Volume {
        &*self.below
    }

    fn read(&self, set: &mut [Read<'_>]) -> Result<()> {
        self.charge(&self.reading, || self.below.read(set))
    }

    fn write(&self, set: &[Write<'_>]) -> Result<()> {
        self.charge(&self.writing, || self.below.write(set))
    }

    fn sync(&self, file: FileId) -> Result<()> {
        self.charge(&self.writing, || self.below.sync(file))
    }

    fn sync_directory(&self) -> Result<()> {
        self.charge(&self.writing, || self.below.sync_directory())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree_ground::TreeGround;
    use psync::{Access, AlignedBuffer};

    #[test]
    fn reads_and_writes_are_charged_each_to_its_account_and_together_are_all_there_was() {
        let ground = TreeGround::on_ssdsim(0).unwrap().with_accounts();
        let volume = &ground.volume;
        let access = Access { write: true, create: true, direct: true, ..Access::default() };
        let file = volume.open("file", access).unwrap();
        let mut page = AlignedBuffer::new(8192);
        let row = ground
            .row("both", 0.0, 0, 3, || {
                volume.write(&[Write { file, offset: 0, data: &page }])?;
                for _ in 0..2 {
                    volume.read(&mut [Read { file, offset: 0, buffer: &mut page }])?;
                }
                Ok(())
            })
            .unwrap();
        let (reading, writing) = (row.count("read_us"), row.count("write_us"));
        assert!((100.0..200.0).contains(&reading) && (200.0..300.0).contains(&writing), "{row:?}");
        assert!((reading + writing - crate::quantity::Quantity::number(row.elapsed_us)).abs() < 0.01);
        assert_eq!((row.count("reads"), row.count("writes")), (2.0, 1.0));
        assert_eq!((row.count("flash_programs"), row.count("flash_copies")), (2.0, 0.0));
    }
}
