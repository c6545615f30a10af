//! Merges the layers of a log area into one, so that a range search reads one piece in place of one of each
//! layer. No leaf is read or written.
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
use crate::tree::change::Incoming;
use crate::tree::cleanse::Areas;
use crate::tree::route::cut::cut;
use crate::tree::view::TreeView;
use crate::version::builder::Attempt;
use std::sync::Arc;

/// Merges the layers of each of these blocks.
pub(crate) fn to_one_layer(view: TreeView<'_>, attempt: &mut Attempt<'_>, blocks: &[Logged]) -> Result<()> {
    let mut areas = Areas::of(view, blocks.iter().map(|logged| Arc::clone(&logged.area)));
    for Logged { block, area } in blocks {
        let merged: Vec<_> = areas.next()?.unwrap_or_default().collect();
        let changes = merged.iter().map(|change| OperationRef {
            keyspace: view.keyspace,
            key: change.key(),
            value: change.value(),
        });
        let changes: Vec<_> = changes.collect();
        attempt.merge_layers((*block, area), view.keyspace, &changes, &cut(&changes))?;
    }
    Ok(())
}
