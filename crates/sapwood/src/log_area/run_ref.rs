//! A run in memory: its pieces in a row. The piece of a key is found by binary search of the fences.
//!
//! ```text
//! head:     number of pieces, number of removals, bytes of fences; varints
//! pieces:   6×pieces their ids
//! fences:   4×(pieces - 1) offset of each fence │ the fences, each behind its length
//! ```
//!
//! Invariant: a run has one fence less than pieces, wherever it came from: those of the manifest are
//! counted when they are read.

use super::delta_run::DeltaRun;
use super::fences::Fences;
use crate::bytecode::{Reader, put_varint};
use crate::storage::node::{Node, NodeId};

/// Bytes of an id: a mapping table with more nodes would be a thousand times as large as any memory.
const ID_LEN: usize = 6;

/// Ids of pieces, as stored in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ids<'a>(&'a [[u8; ID_LEN]]);

impl<'a> Ids<'a> {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn at(&self, index: usize) -> NodeId {
        let mut id = [0; 8];
        id[..ID_LEN].copy_from_slice(&self.0[index]);
        NodeId(u64::from_le_bytes(id))
    }

    pub fn iter(self) -> impl DoubleEndedIterator<Item = NodeId> + ExactSizeIterator + 'a {
        (0..self.len()).map(move |index| self.at(index))
    }

    /// The ids that [`RunRef::put_ids`] has appended.
    pub(super) fn of(memory: &'a [u8]) -> Self {
        Self(memory.as_chunks().0)
    }
}

/// Sizes of one run in the memory of packed runs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RunHeader {
    pieces: usize,
    removals: u32,
    fences: usize,
}

impl RunHeader {
    /// The head of a run.
    pub fn of(run: DeltaRun<'_>) -> Self {
        let starts = 4 * (run.pieces.len() - 1);
        let fences = starts + run.fences.0.len();
        Self { pieces: run.pieces.len(), removals: run.removals, fences }
    }

    pub fn put(self, out: &mut Vec<u8>) {
        put_varint(out, self.pieces as u64);
        put_varint(out, u64::from(self.removals));
        put_varint(out, self.fences as u64);
    }

    /// Reads what [`RunHeader::put`] has appended.
    pub fn take(from: &mut Reader<'_>) -> Self {
        let mut next = || from.length().unwrap_or(0);
        Self { pieces: next(), removals: next() as u32, fences: next() }
    }

    /// Bytes of the run's ids.
    pub fn ids_len(self) -> usize {
        ID_LEN * self.pieces
    }

    /// Bytes of the run's fences.
    pub fn fences_len(self) -> usize {
        self.fences
    }
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunRef<'a> {
    pub pieces: Ids<'a>,
    /// Offset of each fence in `fences`.
    starts: &'a [[u8; 4]],
    pub fences: Fences<'a>,
    /// Number of changes that are removals.
    pub removals: u32,
}

impl<'a> RunRef<'a> {
    /// The run with this head, ids and fences.
    pub(super) fn of(head: RunHeader, ids: &'a [u8], fences: &'a [u8]) -> Self {
        let (starts, fences) = fences.split_at(4 * (head.pieces - 1));
        let pieces = Ids::of(ids);
        Self { pieces, starts: starts.as_chunks().0, fences: Fences(fences), removals: head.removals }
    }

    /// Appends the ids of a run's pieces.
    pub(super) fn put_ids(run: DeltaRun<'_>, out: &mut Vec<u8>) {
        for id in run.pieces {
            debug_assert!(id.0 >> (8 * ID_LEN) == 0, "{id} is within what a mapping table can have");
            out.extend_from_slice(&id.0.to_le_bytes()[..ID_LEN]);
        }
    }

    /// Appends the run's fences, behind their offsets.
    pub(super) fn put_fences(run: DeltaRun<'_>, out: &mut Vec<u8>) {
        let mut rest = run.fences;
        let all = rest.0.len();
        for _ in 1..run.pieces.len() {
            out.extend_from_slice(&((all - rest.0.len()) as u32).to_le_bytes());
            rest.next();
        }
        debug_assert!(rest.0.is_empty(), "a fence for each piece but the first");
        out.extend_from_slice(run.fences.0);
    }

    /// Index of the piece that has the key, if any has it.
    pub fn piece_for(&self, key: &[u8]) -> usize {
        self.pieces_while(|fence| fence <= key) - 1
    }

    /// Number of pieces before the first one whose fence is not `is_before`; the first piece always counts.
    /// `is_before` must not hold for a fence above one for which it does not.
    pub fn pieces_while(&self, is_before: impl Fn(&[u8]) -> bool) -> usize {
        let fence = |start: &[u8; 4]| Fences(&self.fences.0[u32::from_le_bytes(*start) as usize..]).next();
        1 + self.starts.partition_point(|start| fence(start).is_some_and(&is_before))
    }

    /// Whether the keys of `nodes`, which are the pieces, agree with the fences.
    pub fn holds(&self, nodes: &[Node]) -> bool {
        let low = std::iter::once(None).chain(self.fences.map(Some));
        let high = self.fences.map(Some).chain([None]);
        nodes.iter().zip(low.zip(high)).all(|(node, (low, high))| {
            low.is_none_or(|low| node.key(0) >= low)
                && high.is_none_or(|high| node.key(node.count() - 1) < high)
        })
    }
}
