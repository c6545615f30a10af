//! Cleanses all blocks, or those from a given key on: for [`Database::compact`](crate::Database::compact), and
//! at the start of an ingestion.

use super::Cleanser;
use crate::background::garbage_collection::GcUrgency;
use crate::background::portions::PORTION;
use crate::cache::prefetch_buffer::KeyPosition;
use crate::error::{Error, Result};
use crate::flow::memory::Need;
use crate::operation::KeyspaceId;
use crate::publish::TreesChange;
use crate::storage::writer::Writer;
use crate::tree::candidates::{self, Limits};
use crate::tree::cleanse::{ON_THE_WAY, to_leaves};
use crate::tree::view::{Block, TreeView};
use crate::version::builder::VersionBuilder;
use bytes::Bytes;
use std::sync::Arc;

/// Blocks that are looked at while the writer is had once (count): some milliseconds, if their parents are in memory.
const LOOKED_AT: usize = 4096;

impl Cleanser {
    /// The maximum memory for cleansing now: no more data is on its way to the leaves than log areas hold.
    pub fn cleansing_max(&self) -> Need {
        let logged = self.ctx.state.load().version.logs.totals().bytes;
        self.ctx.memory.shares.work(logged.min(ON_THE_WAY), u64::MAX)
    }

    /// Moves all changes in log areas into the leaves, and removes what had expired at the beginning. The freed space is given back
    /// as soon as no writes come. Returns the first error in reading: it keeps nothing else from being done.
    pub fn cleanse_all(&self) -> Result<Option<Error>> {
        let _work = self.ctx.memory.work(self.cleansing_max());
        self.ctx.or_poison(|| self.collector.expirer.tell_time())?;
        let begun = self.ctx.state.version();
        // Keyspaces that are made meanwhile are not waited for.
        let (time, last) = (begun.clock, begun.trees.iter().map(|(id, _)| id).max());
        drop(begun);
        let (mut next, mut most, mut unread) = (last.map(|_| KeyPosition::default()), u64::MAX, None);
        let last = last.unwrap_or_default();
        while let Some(from) = next.take_if(|(keyspace, _)| *keyspace <= last) {
            let mut guard = self.ctx.writer_unless_closing()?;
            let writer = guard.get()?;
            let cleansed = self.ctx.or_poison(|| self.cleanse_from(writer, from.clone(), last, most));
            (next, most) = match cleansed {
                Err(error) if error.is_of_reading() && most > 1 => (Some(from), 1),
                Err(error) if error.is_of_reading() => {
                    unread = unread.or(Some(error));
                    (self.behind_next(from), 1)
                }
                cleansed => (cleansed?, most.saturating_mul(2).max(*PORTION.start())),
            };
        }
        let expired = self.collector.expire_all(time)?;
        self.ctx.flush.notify();
        Ok(unread.or(expired))
    }

    /// Cleanses some blocks at and above a position, of one keyspace after the other up to `last`, of about `most` bytes. Returns where to
    /// continue.
    pub fn cleanse_from(
        &self,
        writer: &mut Writer,
        from: KeyPosition,
        last: KeyspaceId,
        most: u64,
    ) -> Result<Option<KeyPosition>> {
        let base = self.ctx.state.version();
        let budget = self.ctx.cleansing_portion(base.live_bytes()).min(most);
        let mut builder = VersionBuilder::begin(Arc::clone(&base), &self.ctx.pager, &mut *writer);
        let (mut has_cleansed, mut next) = (false, None);
        let mut left = Limits { bytes: budget, blocks: LOOKED_AT };
        for (keyspace, _) in base.trees.from(from.0).take_while(|(keyspace, _)| *keyspace <= last) {
            let view = TreeView { pager: &self.ctx.pager, version: &base, keyspace };
            let low = if keyspace == from.0 { from.1.clone() } else { Bytes::new() };
            // What is cleansed may have to be written or only to be removed.
            if left.are_reached() || builder.is_long() {
                next = Some((keyspace, low));
                break;
            }
            let (blocks, behind) = candidates::next(view, low, &mut left)?;
            if !blocks.is_empty() {
                to_leaves(view, &mut builder, blocks, self.ctx.memory.shares.node_len)?;
                has_cleansed = true;
            }
            if let Some(behind) = behind {
                next = Some((keyspace, behind));
                break;
            }
        }
        if has_cleansed {
            self.ctx.publisher.commit_version(builder, TreesChange::Same)?;
            drop(base);
            self.collector.tidy_up(writer, GcUrgency::AtRest)?;
        }
        Ok(next)
    }

    /// The position behind the next block with a log area; behind its keyspace, if it cannot be found.
    pub fn behind_next(&self, (keyspace, low): KeyPosition) -> Option<KeyPosition> {
        let version = self.ctx.state.version();
        let mut low = Some(low).filter(|_| version.trees.contains(&keyspace));
        for (tree, _) in version.trees.from(keyspace) {
            let view = TreeView { pager: &self.ctx.pager, version: &version, keyspace: tree };
            let mut from = low.take().unwrap_or_default();
            loop {
                let (has_area, fence) = match view.block_at(&from) {
                    Ok(Some(Block { id, fence })) => (view.log(id).is_some(), fence),
                    Ok(None) => (false, None),
                    Err(_) => (true, None),
                };
                match fence {
                    Some(fence) if has_area => return Some((tree, fence)),
                    Some(fence) => from = fence,
                    None if has_area => {
                        return tree.0.checked_add(1).map(|next| (KeyspaceId(next), Bytes::new()));
                    }
                    None => break,
                }
            }
        }
        None
    }
}
