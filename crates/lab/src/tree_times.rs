//! The latencies that the trees' cost models ask for, measured on the ground where the tree will grow.

use crate::failure::Result;
use crate::quantity::{Clock, Quantity};
use crate::tree_ground::{TreeGround, UniformKeys};
use psync::{Access, AlignedBuffer, Read, Write};
use trees::{DeviceTimes, PageTimes};

const FILE: &str = "tree-times";
const SIZES: [usize; 6] = [2048, 4096, 8192, 16384, 32768, 65536];
/// Requests of a part, and parts of a point: the middle part counts, so that a moment's stall does not.
const REQUESTS: usize = 128;
const PARTS: usize = 5;

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
    let mut sizes = Vec::new();
    for bytes in SIZES.into_iter().filter(|bytes| bytes.is_multiple_of(volume.limits().alignment)) {
        let mut point = |depth: usize, writes: bool| -> Result<f64> {
            let mut buffers: Vec<AlignedBuffer> = (0..depth).map(|_| AlignedBuffer::new(bytes)).collect();
            let mut parts = Vec::with_capacity(PARTS);
            for _ in 0..PARTS {
                let ((), lapse) = ground.time(|| {
                    for _ in 0..REQUESTS.div_ceil(depth) {
                        let mut places: Vec<u64> = (0..depth)
                            .map(|_| keys.next() / 2 % (len / bytes as u64) * bytes as u64)
                            .collect();
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
                parts.push(lapse.number() / (REQUESTS.div_ceil(depth) * depth) as f64);
            }
            parts.sort_by(f64::total_cmp);
            Ok(parts[PARTS / 2])
        };
        sizes.push(PageTimes {
            bytes,
            read: point(1, false)?,
            write: point(1, true)?,
            psync_read: point(pio_max, false)?,
            psync_write: point(pio_max, true)?,
        });
    }
    volume.close(file)?;
    volume.remove(FILE)?;
    Ok(DeviceTimes { sizes })
}
