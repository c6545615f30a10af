//! Validation of transactions: the leader compares what they have read with what was changed since, while it holds the log.
//!
//! ```text
//! transaction   begin ── reads, writes ── complete chunks of the history ──┐
//! leader                                                    log locked: the rest of the history, earlier members of
//!                                                           the group ──▶ log, OPQ, visible
//! ```
//! Between validation and visibility no commit may become visible that changes what was read, or a reader could see it and
//! not the transaction that comes before it. The lock of the log sees to that, and while the log is let go of for a sync,
//! [`Syncing`](crate::commit::log::Syncing) does: it knows what the transactions being synced have read.
//!
//! Invariants:
//! 1. A transaction whose reads were changed since its snapshot is not in the log.
//! 2. A member of a group that conflicts is answered so; the others are committed.
//! 3. The first transaction turns the recording of the history on while it holds the log, so that no commit is half recorded.

use crate::commit::CommitPipeline;
use crate::commit::log::{Log, operations};
use crate::commit::queue::PendingBatch;
use crate::conflict::history::Found;
use crate::conflict::validation::Validation;
use crate::current_state::State;
use crate::error::{ConflictReason, Error, Result};
use crate::operation::{KeyspaceId, Operation, SeqNo};
use crate::value::Value;
use std::sync::Arc;

/// Keeps the turn ([`crate::commit::turn`]) of the thread that took it.
pub(crate) struct Turn<'e> {
    /// `None` if the thread had the turn already, and still has it when this is dropped.
    pipeline: Option<&'e CommitPipeline>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(pipeline) = self.pipeline {
            pipeline.end_turn();
        }
    }
}

impl CommitPipeline {
    /// Begins a transaction: the view that it reads, of which [`History::end`](crate::conflict::history::History::end) must be
    /// told.
    pub fn begin_transaction(&self) -> Result<(Arc<State>, SeqNo)> {
        loop {
            if let Some(view) = self.history.begin(|| self.state.view()) {
                return Ok(view);
            }
            if self.health.is_read_only() {
                // Nothing changes.
                return Ok(self.state.view());
            }
            let mut guard = self.log.lock();
            let log = guard.as_mut().ok_or(Error::Closed)?;
            log.is_recorded = true;
            self.history.start(self.state.visible());
        }
    }

    /// Seeks conflicts with what can be told without the log. Returns what is left to validate.
    pub(super) fn validate_ahead(&self, mut validation: Validation) -> Result<Validation> {
        match self.history.check_complete(&validation.reads, validation.since) {
            Found::Nothing(checked) => validation.since = checked,
            found => self.conflict_of(&validation, found)?,
        }
        Ok(validation)
    }

    /// Rejects the members of a group that change dropped keyspaces, or conflict with what was committed since they began, or with earlier members.
    pub(super) fn validate_group<'a>(
        &self,
        log: &Log,
        group: impl Iterator<Item = &'a PendingBatch> + Clone,
    ) {
        let state = self.state.load();
        if state.version.has_dropped() {
            for pending in group.clone() {
                let is_gone =
                    |operation: Operation<'_>| state.version.check_there(operation.keyspace()).err();
                if let Some(error) = operations(std::iter::once(pending)).find_map(is_gone) {
                    pending.reject(error);
                }
            }
        }
        drop(state);
        for (index, pending) in group.clone().enumerate().filter(|(_, pending)| !pending.is_rejected()) {
            let Some(validation) = &pending.validation else { continue };
            let earlier = group.clone().take(index).filter(|earlier| !earlier.is_rejected());
            if let Err(error) = self.validate(log, validation, earlier) {
                pending.reject(error);
            }
        }
    }

    fn validate<'a>(
        &self,
        log: &Log,
        validation: &Validation,
        earlier: impl Iterator<Item = &'a PendingBatch>,
    ) -> Result<()> {
        let is_newer = |keyspace: &KeyspaceId| log.ingested.is_behind(*keyspace, validation.ingested);
        if let Some(keyspace) = validation.reads.keyspaces().find(is_newer) {
            let is_there = self.state.load().version.trees.contains(&keyspace);
            let reason = if is_there { ConflictReason::Ingested } else { ConflictReason::Dropped };
            return Err(self.conflict(validation, Some(keyspace), reason));
        }
        if self.state.visible() > validation.since {
            let found = self.history.check(&validation.reads, validation.since);
            self.conflict_of(validation, found)?;
        }
        match operations(earlier).find(|operation| validation.concerns(operation)) {
            Some(Operation::Change(change) | Operation::Merge(change)) => {
                Err(self.changed(change.keyspace, change.key))
            }
            Some(Operation::RemoveRange(range)) => {
                let key = validation.reads.first_in(range).unwrap_or_default();
                Err(self.changed(range.keyspace, &key))
            }
            None => Ok(()),
        }
    }

    fn conflict_of(&self, validation: &Validation, found: Found) -> Result<()> {
        match found {
            Found::Nothing(_) => Ok(()),
            Found::Conflict(keyspace, key) => Err(self.changed(keyspace, &key)),
            Found::TooOld => Err(self.conflict(validation, None, ConflictReason::TooOld)),
        }
    }

    fn changed(&self, keyspace: KeyspaceId, key: &[u8]) -> Error {
        let keyspace = self.name_of(keyspace);
        Error::Conflict { keyspace, key: Value(key.to_vec().into()), reason: ConflictReason::Changed }
    }

    fn conflict(
        &self,
        validation: &Validation,
        keyspace: Option<KeyspaceId>,
        reason: ConflictReason,
    ) -> Error {
        let (keyspace, key) = validation.reads.example(keyspace).unwrap_or_default();
        Error::Conflict { keyspace: self.name_of(keyspace), key: Value(key), reason }
    }

    fn name_of(&self, keyspace: KeyspaceId) -> String {
        let version = &self.state.load().version;
        let tree = version.trees.get(&keyspace).or_else(|| version.dropped.get(&keyspace));
        // Of one that is taken apart already there is only the number.
        tree.map_or_else(|| format!("number {}", keyspace.0), |tree| tree.name.to_string())
    }

    /// Waits until no other thread commits, and none will until the result is dropped. What is in the log by then is visible.
    pub fn take_turn(&self) -> Result<Turn<'_>> {
        let turn = &self.queues.turn;
        if turn.is_mine() {
            return Ok(Turn { pipeline: None });
        }
        let guard = self.log.lock();
        let place = turn.place();
        let guard = self.queues.wait(guard, |log| log.is_syncing() || !turn.is_due(place));
        // If the log is closed, no thread waits for it any longer, and none begins.
        guard.as_ref().ok_or(Error::Closed)?;
        turn.begin();
        drop(guard);
        let taken = Turn { pipeline: Some(self) };
        self.queues.durable.send_syncs_alone();
        Ok(taken)
    }

    fn end_turn(&self) {
        let _guard = self.log.lock();
        self.queues.turn.end();
        self.queues.blocker_ended.notify_all();
    }
}
