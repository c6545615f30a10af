//! Merges the runs of a log area into one, so that a range search reads one piece in place of one of each
//! run. No leaf is read or written.
//!
//! ```text
//! [a c g …] [b g' …] [c' f …] [d …]  ──▶  [a b c' d f g' …]        oldest to newest; of each key the newest change
//! ```
//! Removals stay, since a leaf may have their keys.
//!
//! Invariant: the area has the same newest change of each key as before.

use crate::error::Result;
use crate::operation::OperationRef;
use crate::tree::candidates::Logged;
use crate::tree::change::LeafChange;
use crate::tree::cleanse::Areas;
use crate::tree::route::cut::cut;
use crate::tree::view::TreeView;
use crate::version::builder::VersionBuilder;
use std::sync::Arc;

/// Merges the runs of each of these blocks.
pub(crate) fn to_one_run(
    view: TreeView<'_>,
    builder: &mut VersionBuilder<'_>,
    blocks: &[Logged],
) -> Result<()> {
    let mut areas = Areas::of(view, blocks.iter().map(|logged| Arc::clone(&logged.area)));
    for Logged { block, area } in blocks {
        let merged: Vec<_> = areas.next()?.unwrap_or_default().collect();
        let changes = merged.iter().map(|change| OperationRef {
            keyspace: view.keyspace,
            key: change.key(),
            value: change.value(),
        });
        let changes: Vec<_> = changes.collect();
        builder.merge_runs((*block, area), view.keyspace, &changes, &cut(&changes))?;
    }
    Ok(())
}
