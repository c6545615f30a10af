//! What the device gives while nothing else uses it, to compare with.

use psync::{Access, AlignedBuffer, Device, Disk, DiskOptions, ReadInto, Volume};
use std::path::Path;
use std::time::Instant;

/// What a request has, in bytes.
pub const REQUEST: usize = 1 << 20;

/// Reads a file of the directory from front to back, two requests at a time, past the page cache. Returns bytes a second.
pub fn read_alone(dir: &Path, name: &str) -> psync::Result<f64> {
    let disk = Disk::open(dir, DiskOptions::default())?;
    let file = disk.open(name, Access { direct: true, ..Access::default() })?;
    let len = disk.len(file)? / REQUEST as u64 * REQUEST as u64;
    let began = Instant::now();
    let mut ahead = std::collections::VecDeque::new();
    for offset in (0..len).step_by(REQUEST) {
        ahead.push_back(disk.begin(vec![ReadInto { file, offset, buffer: AlignedBuffer::new(REQUEST) }]));
        if ahead.len() == 2
            && let Some(first) = ahead.pop_front()
        {
            first.wait()?;
        }
    }
    ahead.into_iter().try_for_each(|read| read.wait().map(drop))?;
    Ok(len as f64 / began.elapsed().as_secs_f64())
}
