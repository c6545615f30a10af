//! Whole rounds of a PIO B-tree: from one batch update to another. Whoever measures a part of a round gets queue for
//! nothing, or pays for operations that came before.

use crate::failure::Result;
use trees::{Index, PioTree};

/// Does `work`, which is told how often it was done, until `least` times and until a batch update has just ended. Returns how
/// often. Begin behind a batch update, too.
pub(crate) fn whole_rounds(
    tree: &mut PioTree,
    least: u64,
    mut work: impl FnMut(&mut PioTree, u64) -> Result<()>,
) -> Result<u64> {
    let mut count = 0;
    loop {
        let before = tree.stats().flushes;
        work(tree, count)?;
        count += 1;
        if count >= least && tree.stats().flushes > before {
            return Ok(count);
        }
    }
}
