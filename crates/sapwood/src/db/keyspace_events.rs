//! What an edit does to keyspaces, told to readers of the change feed: the log has nothing of it.
//!
//! Invariants:
//! 1. The event stands in the edit that it tells of, and behind all that was committed before: that is made durable first.
//! 2. Nothing of a keyspace is in the log before the event of its creation is in the manifest.

use crate::db::engine::Engine;
use crate::db::large_values::create::is_hidden;
use crate::error::Result;
use crate::operation::KeyspaceId;
use crate::version::change_log::{EventKind, KeyspaceEvent};
use crate::version::edit::Edit;
use std::sync::Arc;

/// Most bytes of an event in a manifest without its name: a tag, a kind, flags, and four varints.
const EVENT_LISTED: u64 = 34;

impl Engine {
    /// Adds to an edit the events that it is, if there is a change feed. `ingested`: the keyspace to whose tree it brings records.
    /// Returns how many bytes they take in the manifest, at most.
    pub(super) fn note_events(&self, edit: &mut Edit, ingested: Option<KeyspaceId>) -> Result<u64> {
        let version = Arc::clone(&self.state.load().version);
        if version.kept_log_max() == 0 {
            return Ok(0);
        }
        let event = |kind, keyspace: KeyspaceId, name: &Arc<str>| {
            let tree = version.trees.get(&keyspace);
            KeyspaceEvent {
                kind,
                keyspace,
                seq: 0,
                time: self.clock.now(),
                expires: tree.is_some_and(|tree| tree.ttl.is_some())
                    || edit.ttls.iter().any(|(id, _)| *id == keyspace),
                merges: tree.is_some_and(|tree| tree.merging.is_some())
                    || edit.merges.iter().any(|(id, _)| *id == keyspace),
                large: tree.is_some_and(|tree| tree.chunks.is_some())
                    || edit.larges.iter().any(|(id, _)| *id == keyspace),
                name: Arc::clone(name),
            }
        };
        let of_tree = |kind, id: &KeyspaceId| Some(event(kind, *id, &version.trees.get(id)?.name));
        let created = edit.trees.iter().filter(|(id, _)| id.0 > version.last_keyspace);
        let is_renamed =
            |id: &KeyspaceId, name: &Arc<str>| version.trees.get(id).is_some_and(|tree| tree.name != *name);
        let renamed = edit.names.iter().filter(|named| is_renamed(&named.id, &named.name));
        let mut events: Vec<_> = created
            .map(|(id, tree)| event(EventKind::Created, *id, &tree.name))
            .chain(edit.dropped.iter().filter_map(|id| of_tree(EventKind::Dropped, id)))
            .chain(renamed.map(|named| event(EventKind::Renamed, named.id, &named.name)))
            .chain(ingested.iter().filter_map(|id| of_tree(EventKind::Ingested, id)))
            .filter(|event| !is_hidden(&event.name))
            .collect();
        if events.is_empty() {
            return Ok(0);
        }
        let seq = self.commits.durable_seq()?;
        events.iter_mut().for_each(|event| event.seq = seq);
        let listed = events.iter().map(|event| event.name.len() as u64 + EVENT_LISTED).sum();
        edit.events = events;
        Ok(listed)
    }
}
