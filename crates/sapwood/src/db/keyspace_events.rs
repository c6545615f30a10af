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
        let version = self.state.version();
        if version.kept_log_max() == 0 {
            return Ok(0);
        }
        // They happen together: no moment lies between them.
        let time = self.clock.now();
        let event = |kind, keyspace: KeyspaceId, name: &Arc<str>| {
            let tree = version.trees.get(&keyspace);
            KeyspaceEvent {
                kind,
                keyspace,
                seq: 0,
                time,
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

#[cfg(test)]
mod tests {
    use crate::Database;
    use psync::Simulated;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::time::{Duration, UNIX_EPOCH};

    /// A restore to the moment between two of them had a state that never was.
    #[test]
    fn what_an_edit_does_to_several_keyspaces_happens_at_one_time() {
        let now = AtomicU64::new(1000);
        let clock = move || UNIX_EPOCH + Duration::from_millis(now.fetch_add(1, Relaxed));
        let builder = Database::builder().keep_changes(1 << 20).background_threads(0).clock(clock);
        let db = builder.open_on(Arc::new(Simulated::new(1))).unwrap();
        for name in ["old", "new"] {
            db.keyspace(name).unwrap().insert("key", name).unwrap();
        }
        db.replace_keyspace("new", "old").unwrap();
        let state = db.handle.engine.state.load_full();
        let events = &state.version.change_log.as_ref().unwrap().events;
        let times: Vec<_> = events.iter().map(|event| event.time).collect();
        assert!(times.len() == 4 && times[1] < times[2] && times[2] == times[3], "{times:?}");
    }
}
