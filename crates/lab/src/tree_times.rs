//! The latencies that the trees' cost models ask for, measured on the ground where the tree will grow.

use crate::failure::Result;
use crate::quantity::{Clock, Quantity};
use crate::tree_ground::{TreeGround, UniformKeys};
use psync::{Access, AlignedBuffer, Read, Write};
use trees::{DeviceTimes, PageTimes};

const FILE: &str = "tree-times";
const SIZES: [usize; 6] = [2048, 4096, 8192, 16384, 32768, 65536];
/// Requests of a point in a round, and rounds. The middle round of a point counts, so that a moment's stall does not; and
/// every round visits all points, so that a disk that changes its pace within seconds favours no size.
const REQUESTS: usize = 128;
const ROUNDS: usize = 11;

/// Measures single requests and sets of `pio_max`, in a file of `len` bytes that is removed again.
pub(crate) fn measure<C: Clock>(ground: &TreeGround<C>, len: u64, pio_max: usize) -> Result<DeviceTimes> {
    let volume = &ground.volume;
    let access = Access { write: true, create: true, direct: true, ..Access::default() };
    let file = volume.open(FILE, access)?;
    let chunk = AlignedBuffer::new(1 << 20);
    for offset in (0..len).step_by(1 << 20) {
        volume.write(&[Write { file, offset, data: &chunk }])?;
    }
    volume.sync(file)?;
    let mut keys = UniformKeys::new(7, len);
    let mut round = |bytes: usize, depth: usize, writes: bool| -> Result<f64> {
        let mut buffers: Vec<AlignedBuffer> = (0..depth).map(|_| AlignedBuffer::new(bytes)).collect();
        let ((), lapse) = ground.time(|| {
            for _ in 0..REQUESTS.div_ceil(depth) {
                let mut places: Vec<u64> =
                    (0..depth).map(|_| keys.next() / 2 % (len / bytes as u64) * bytes as u64).collect();
                places.sort_unstable();
                places.dedup();
                if writes {
                    let set: Vec<_> = places
                        .iter()
                        .zip(&buffers)
                        .map(|(offset, data)| Write { file, offset: *offset, data })
                        .collect();
                    volume.write(&set)?;
                } else {
                    let mut set: Vec<_> = places
                        .iter()
                        .zip(&mut buffers)
                        .map(|(offset, buffer)| Read { file, offset: *offset, buffer })
                        .collect();
                    volume.read(&mut set)?;
                }
            }
            Ok(())
        })?;
        Ok(lapse.number() / (REQUESTS.div_ceil(depth) * depth) as f64)
    };
    let alignment = volume.limits().alignment;
    let sizes: Vec<usize> = SIZES.into_iter().filter(|bytes| bytes.is_multiple_of(alignment)).collect();
    let kinds = [(1, false), (1, true), (pio_max, false), (pio_max, true)];
    let mut points = vec![[const { Vec::new() }; 4]; sizes.len()];
    for _ in 0..ROUNDS {
        for (bytes, points) in sizes.iter().zip(&mut points) {
            for ((depth, writes), point) in kinds.into_iter().zip(points) {
                point.push(round(*bytes, depth, writes)?);
            }
        }
    }
    let sizes = sizes.into_iter().zip(points).map(|(bytes, points)| {
        let [read, write, psync_read, psync_write] = points.map(|mut rounds: Vec<f64>| {
            rounds.sort_by(f64::total_cmp);
            rounds[ROUNDS / 2]
        });
        PageTimes { bytes, read, write, psync_read, psync_write }
    });
    let sizes = sizes.collect();
    volume.close(file)?;
    volume.remove(FILE)?;
    Ok(DeviceTimes { sizes })
}
