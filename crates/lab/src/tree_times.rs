//! The latencies that the trees' cost models ask for, measured on the ground where the tree will grow, by its clock.

use crate::failure::Result;
use crate::quantity::{Clock, Quantity};
use crate::tree_ground::TreeGround;
use trees::DeviceTimes;

/// Measures single requests and sets of `pio_max`, in a file of `len` bytes that is removed again.
pub(crate) fn measure<C: Clock>(ground: &TreeGround<C>, len: u64, pio_max: usize) -> Result<DeviceTimes> {
    Ok(DeviceTimes::measure(&*ground.volume, len, pio_max, &mut |work| {
        // What a drive does in the background for the round before is not to be counted here.
        ground.rest();
        let began = ground.now();
        work()?;
        Ok(crate::quantity::Lapse::<C>::from(ground.now() - began).number())
    })?)
}
