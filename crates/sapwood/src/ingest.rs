//! Bulk ingestion: sorted records go straight to the end of a tree, filled to the brim, in one attempt and one edit. They are written
//! once, not to the log and to a queue before. (CB-tree: no leaf is split while keys ascend.)
//!
//! Invariants:
//! 1. All of them become visible and durable in one step, or nothing happened.
//! 2. Memory: what a run of leaves takes in the packer, and the list of the new leaves (100 to 300 bytes each).

use crate::batch::check_key;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::operation::KeyspaceId;
use crate::publish::Trees;
use crate::store::attempt::Attempt;
use crate::store::manifest::EDIT_MAX;
use crate::store::writer::Writer;
use crate::tree::bupdate::bupdate;
use bytes::Bytes;
use std::sync::Arc;

/// Bytes of keys and values that one call takes.
const MAX: u64 = 8 << 30;

fn too_large(len: u64, max: u64) -> Error {
    let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    Error::BatchTooLarge { len: bytes(len), max: bytes(max) }
}

impl Engine {
    /// Ingests records whose keys ascend and lie above `last`, the keyspace's last key, asked for when nothing can be flushed any
    /// more. Says how many.
    pub fn ingest(
        &self,
        keyspace: KeyspaceId,
        last: impl FnOnce() -> Result<Option<Bytes>>,
        records: impl Iterator<Item = (Bytes, Bytes)>,
    ) -> Result<u64> {
        self.flush_all()?;
        let mut guard = self.writer(self.shares.work(u64::MAX, u64::MAX))?;
        let writer = guard.get()?;
        self.check_writable()?;
        let mut sorted =
            Sorted { last: last()?, count: 0, bytes: 0, value_max: self.shares.value, failed: None };
        let ingested = self.ingest_sorted(writer, keyspace, &mut sorted, records);
        // What is wrong with the records concerns nobody else.
        let ingested = ingested.inspect_err(|error| {
            if matches!(error, Error::Io(_) | Error::DiskFull(_) | Error::Corrupt { .. }) {
                self.yield_to(error);
            } else {
                // It may be gigabytes, and whoever writes nodes waits.
                self.reclaim_by_steps();
            }
        });
        // Space that it has set free goes back when nobody writes.
        self.flush.notify();
        ingested
    }

    fn ingest_sorted(
        &self,
        writer: &mut Writer,
        keyspace: KeyspaceId,
        sorted: &mut Sorted,
        records: impl Iterator<Item = (Bytes, Bytes)>,
    ) -> Result<u64> {
        // No log area may lie above leaves that are rewritten: the last one's, and those of what was removed behind it.
        let mut from = Some(sorted.last.clone().unwrap_or_default());
        while let Some(at) = from.take() {
            from = self.cleanse_some(writer, keyspace, at)?;
        }
        let base = Arc::clone(&self.state.load().version);
        let mut attempt = Attempt::begin(base, &self.pager, writer);
        let records = records.map_while(|(key, value)| sorted.check(key, value));
        let mut records = records.fuse().peekable();
        if records.peek().is_some() {
            bupdate(&mut attempt, keyspace, &mut records, self.shares.node_len)?;
        }
        drop(records);
        if let Some(error) = sorted.failed.take() {
            return Err(error);
        }
        let list = attempt.edit_mut().nodes_len();
        if list > EDIT_MAX as u64 {
            return Err(too_large(sorted.bytes, sorted.bytes / list.div_ceil(EDIT_MAX as u64)));
        }
        if sorted.count > 0 {
            self.commit_attempt(attempt, Trees::Grown)?;
        }
        Ok(sorted.count)
    }
}

/// Sees to it that records are as they should be.
struct Sorted {
    last: Option<Bytes>,
    count: u64,
    bytes: u64,
    value_max: usize,
    failed: Option<Error>,
}

impl Sorted {
    /// The record; `None` if there is something wrong with it.
    fn check(&mut self, key: Bytes, value: Bytes) -> Option<(Bytes, Bytes)> {
        self.bytes += (key.len() + value.len()) as u64;
        let checked = if let Err(error) = check_key(&key) {
            Err(error)
        } else if value.len() > self.value_max {
            Err(Error::ValueTooLong { len: value.len(), max: self.value_max })
        } else if self.last.as_ref().is_some_and(|last| *last >= key) {
            Err(Error::NotSorted { record: self.count })
        } else if self.bytes > MAX {
            Err(too_large(self.bytes, MAX))
        } else {
            Ok(())
        };
        if let Err(error) = checked {
            self.failed = Some(error);
            return None;
        }
        self.count += 1;
        self.last = Some(key.clone());
        Some((key, value))
    }
}
