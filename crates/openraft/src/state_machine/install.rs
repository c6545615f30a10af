//! Installing a snapshot: into a set of keyspaces of its own, which becomes the current one with one record.

use super::{Applied, Header, State, create};
use crate::error::{Error, Result};
use crate::record::Kind;
use crate::snapshot_file::{Reader, SnapshotFile};
use openraft::{RaftTypeConfig, SnapshotMeta};
use sapwood::{Durability, Keyspace};
use std::sync::Arc;

/// Records are ingested in portions of so many bytes: a portion is one edit, whose list of nodes is in memory.
const PORTION: usize = 16 << 20;

impl<C: RaftTypeConfig<SnapshotData = SnapshotFile>> State<C> {
    /// Replaces the state with that of a snapshot. If it fails, or the process dies, the state is as it was.
    pub(super) fn install(
        &self,
        meta: SnapshotMeta<C::NodeId, C::Node>,
        mut snapshot: SnapshotFile,
    ) -> Result<()> {
        let (shared, group) = (&self.lease.shared, self.lease.group);
        let current = self.current.read().set;
        // A builder that ends meanwhile waits, and finds that its own is the older one: it would remove this file.
        let mut shown = self.snapshot.lock();
        // Of an installation that failed.
        self.lease.drop_sets(|set| set != current)?;
        let set = current + 1;
        let keyspaces = create(&self.lease, &self.keyspaces, set)?;
        // Before it counts: once the state is that of the snapshot, the log is purged up to there, by openraft when it starts if this process
        // dies in between, and then it has to have a snapshot for nodes which need what was purged.
        let path = SnapshotFile::finished_path(&shared.directory, group, &meta.snapshot_id);
        snapshot.keep(&path)?;
        if let Err(error) = self.fill(&keyspaces, &meta, &snapshot) {
            if shown.as_ref().is_none_or(|(_, shown)| *shown != path) {
                // If that fails, it is removed when the store is opened.
                _ = std::fs::remove_file(&path);
            }
            return Err(error);
        }

        let mut batch = shared.db.batch();
        batch.insert(&shared.meta, Kind::Set.key(group), Kind::Set.encode(&set)?);
        match &meta.last_log_id {
            Some(last) => batch.insert(&shared.meta, Kind::Applied.key(group), Kind::Applied.encode(last)?),
            None => batch.remove(&shared.meta, Kind::Applied.key(group)),
        };
        let membership = Kind::Membership.encode(&meta.last_membership)?;
        batch.insert(&shared.meta, Kind::Membership.key(group), membership);
        let mut now = self.current.write();
        batch.durability(Durability::Immediate).commit()?;
        (now.set, now.keyspaces) = (set, keyspaces);
        drop(now);
        *self.applied.lock() =
            Applied { last: meta.last_log_id.clone(), membership: meta.last_membership.clone() };
        // openraft has purged it up to there already, while this was installed.
        self.log.state_came_to(meta.last_log_id.as_ref())?;
        self.lease.drop_sets(|found| found != set)?;
        self.show_snapshot(&mut shown, meta, path)?;
        Ok(())
    }

    /// Ingests a snapshot, which must be that of `meta`.
    fn fill(
        &self,
        keyspaces: &Arc<[Keyspace]>,
        meta: &SnapshotMeta<C::NodeId, C::Node>,
        snapshot: &SnapshotFile,
    ) -> Result<()> {
        let opened = Reader::open::<Header<C>>(snapshot.path(), self.key.as_ref(), self.lease.group)?;
        let (mut reader, (found, names)) = opened;
        if found.last_log_id != meta.last_log_id || found.last_membership != meta.last_membership {
            return Err(Error::Snapshot {
                path: snapshot.path().to_owned(),
                offset: 0,
                what: "the header",
                expected: meta.to_string(),
                found: found.to_string(),
            });
        }
        let mut targets = Vec::with_capacity(names.len());
        for name in names {
            let number = self.keyspaces.iter().position(|(own, _)| *own == name);
            let reason =
                "a snapshot has it, and the machine of this node does not: let it run the newer program";
            let number = number.ok_or(Error::BadKeyspace { keyspace: name, reason })?;
            targets.push(&keyspaces[number]);
        }
        let mut next = reader.next()?;
        while let Some((number, ..)) = next {
            let target = targets.get(usize::from(number)).ok_or_else(|| Error::Snapshot {
                path: snapshot.path().to_owned(),
                offset: 0,
                what: "the number of a keyspace",
                expected: format!("less than {}", targets.len()),
                found: number.to_string(),
            })?;
            let (mut bytes, mut failed) = (0, None);
            target.try_ingest(std::iter::from_fn(|| {
                let is_of_portion = bytes < PORTION && next.as_ref().is_some_and(|(of, ..)| *of == number);
                let (_, key, value) = if is_of_portion { next.take()? } else { return None };
                bytes += key.len() + value.as_ref().map_or(0, Vec::len);
                match reader.next() {
                    Ok(record) => next = record,
                    Err(error) => failed = Some(error),
                }
                let operator = "that of the snapshot".to_owned();
                Some(match value {
                    Ok(value) => Ok((key, value)),
                    Err(reason) => Err(sapwood::Error::MergeFailed { key: key.into(), operator, reason }),
                })
            }))?;
            if let Some(error) = failed {
                return Err(error);
            }
        }
        Ok(())
    }
}
