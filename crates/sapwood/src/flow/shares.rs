//! How the memory budget is divided.
//!
//! Invariant: the shares follow from the budget and the lengths of segments and leaves alone, so that a database opened again
//! with the same options has the same.

use crate::storage::node::NodeLen;

/// The most bytes at which a queue counts as full. If no two entries share anything (`opq/map/memory.rs`, 64
/// KiB), that is a quarter of what its positions can address. No group of batches is added to a queue of twice
/// as many bytes, which is half of that.
pub(crate) const QUEUE_MAX: u64 = 2 << 30;

/// The most bytes of a batch, 60 MiB: it is one record of the log, whose body has 64 at most.
pub(crate) const BATCH_MAX: u64 = 60 << 20;

/// Bytes that a change takes in the queue beside its key and value, at most (a test in `commit/room.rs` has short records).
pub(crate) const QUEUE_ENTRY: usize = 64;

/// How the memory budget is divided, in bytes, and the limits that follow from it. [`crate::flow::memory`] describes
/// the parts that are rebalanced at run time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shares {
    pub memory: u64,
    /// The maximum for each of the two operation queues, and the least that it is reduced to. The cache uses
    /// what the queues do not.
    pub queue: usize,
    pub queue_min: usize,
    /// The sequential writer's buffer.
    pub writer: usize,
    /// Idle read buffers to keep, in bytes. Buffers of the prefetch buffer come on top while there is
    /// one.
    pub read_buffers: usize,
    /// Keys and values that a flush collects for the leaves before it writes them, or lists of references to
    /// those that stay in the queue.
    pub hold: u64,
    /// Nodes that are read ahead of the flush.
    pub prefetch: u64,
    /// The history of commits that open transactions are validated against, at most: with keys of 16 bytes, the changes of
    /// half a second at a budget of 128 MiB.
    pub history: usize,
    /// The maximum size of a batch that is committed beside what is in the queue, and of what a transaction writes.
    pub batch: usize,
    /// The same of a batch that has the queue to itself ([`Shares::batch_max`]).
    large_batch: usize,
    /// The maximum size of a value that is committed.
    pub value: usize,
    /// The maximum size of one that is in the tree, whatever budget it was committed with.
    pub stored_value: usize,
    pub node_len: NodeLen,
}

impl Shares {
    /// The shares of a budget of `memory` bytes, where a segment has `span` bytes and a leaf `leaf_len`.
    pub fn of(memory: u64, span: u64, leaf_len: usize) -> Self {
        let queue = (memory / 6).min(QUEUE_MAX);
        let batch = (memory / 16).clamp(1 << 20, BATCH_MAX) as usize;
        let large_batch = queue.clamp(batch as u64, BATCH_MAX) as usize;
        let entry = crate::KEY_LEN_MAX + 64;
        let stored_value = (16 << 20).min(span as usize / 4);
        Self {
            memory,
            queue: queue as usize,
            queue_min: queue as usize / 4,
            writer: (memory / 128).clamp(256 << 10, 2 << 20) as usize,
            read_buffers: (memory / 64).clamp(128 << 10, 16 << 20) as usize,
            hold: (memory / 32).clamp(256 << 10, 16 << 20),
            prefetch: (memory / 32).clamp(256 << 10, 16 << 20),
            history: (memory / 16) as usize,
            batch,
            large_batch,
            value: stored_value.min(batch - entry),
            stored_value,
            node_len: NodeLen {
                leaf: leaf_len,
                block: (2 << 10).min(4 * leaf_len),
                inner: (8 << 10).min(4 * leaf_len),
            },
        }
    }

    /// The maximum size of a batch of so many changes. While it is committed, it is in the caller's hands, in the buffer of the
    /// log and in the queue: half of the budget, if it takes a whole share of a queue. One of very short records, which take
    /// more in the queue than elsewhere, takes that much in the queue alone at most.
    pub fn batch_max(&self, count: usize) -> usize {
        let entries = count.saturating_mul(QUEUE_ENTRY);
        let short = self.batch.min((self.memory as usize / 2).saturating_sub(entries));
        self.large_batch.saturating_sub(entries).max(short)
    }

    /// Whether a batch of so many bytes and changes has to have the queue to itself.
    pub fn is_large(&self, len: usize, count: usize) -> bool {
        let queued = len.saturating_add(count.saturating_mul(QUEUE_ENTRY));
        len > self.batch || queued > self.queue.max(self.batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sixteenth of the budget of records of a few bytes was several queues.
    #[test]
    fn batches_of_short_records_take_no_more_of_the_budget_than_others() {
        for memory in [4 << 20, 16 << 20, 128 << 20, 1 << 30_u64] {
            let shares = Shares::of(memory, 16 << 20, 4096);
            for record in [3, 5, 9, 20, 100, 1000] {
                let (mut accepted, mut beside) = (0, 0);
                for count in (0..).step_by(100) {
                    let len = count * record;
                    if len > shares.batch_max(count) {
                        break;
                    }
                    accepted = len + count * QUEUE_ENTRY;
                    if !shares.is_large(len, count) {
                        beside = accepted;
                    }
                }
                assert!(accepted <= memory as usize / 2, "{accepted} bytes of {memory}, {record} each");
                assert!(
                    beside <= shares.queue.max(shares.batch),
                    "{beside} bytes of {memory}, {record} each"
                );
                // Records of usual lengths have what a batch may have.
                assert!(
                    record < 100 || accepted >= shares.batch,
                    "{accepted} bytes of {memory}, {record} each"
                );
            }
        }
    }
}
