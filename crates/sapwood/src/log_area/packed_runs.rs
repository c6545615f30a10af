//! Packed runs: several runs of a block in one allocation, with one maplet.
//!
//! ```text
//! runs, changes │ ─▶ maplet │ a head for each run │ ids of all pieces, oldest run first │ fences of all runs
//! ```
//! For heads, ids and fences see [`RunRef`]. The counts lie beside those of the area's other packed runs: a search for a key asks
//! all packed runs, and finds with them what to read of each.
//!
//! Invariants:
//! 1. It is immutable, so that versions share it: appending makes another.
//! 2. Appending copies at most [`PACKED_CHANGES`] changes, and at most [`PACKED_LEN`] bytes.

use super::delta_run::DeltaRun;
use super::run_ref::{Ids, RunHeader, RunRef};
use crate::bytecode::Reader;
use crate::log_area::maplet::{Entry, KeyHash, Maplet, RUNS};
use std::sync::Arc;

/// Runs are packed up to this many changes: some 500 bytes that are copied for one more run. If a flush
/// has fifteen changes for a block, packed runs for each run would be larger than the run itself.
pub(super) const PACKED_CHANGES: usize = 256;
/// The same limit in bytes, since fences may be long.
const PACKED_LEN: usize = 2048;

/// Several runs, oldest first; never empty.
#[derive(Clone, Debug)]
pub(super) struct PackedRuns {
    runs: u8,
    changes: u32,
    memory: Arc<[u8]>,
}

impl PackedRuns {
    /// Packed runs of one run, with keys of these hashes.
    pub fn of(run: DeltaRun<'_>, hashes: &[KeyHash]) -> Self {
        let mut entries: Vec<_> = hashes.iter().map(|hash| hash.in_run(0)).collect();
        entries.sort_unstable();
        Self::made_of(0, [&[]; 3], run, &entries)
    }

    /// This packed runs with one more run, with keys of these hashes.
    pub fn with(&self, run: DeltaRun<'_>, hashes: &[KeyHash]) -> Self {
        let (runs, mut entries): (_, Vec<_>) = (self.len(), self.maplet().entries().collect());
        let old = entries.len();
        entries.extend(hashes.iter().map(|hash| hash.in_run(runs)));
        entries[old..].sort_unstable();
        // A stable sort, which finds both sorted runs and merges them.
        entries.sort();
        Self::made_of(runs, self.parts(), run, &entries)
    }

    /// Packed runs of `runs` old runs, given by their parts, and a new one. `entries`: of all of them.
    fn made_of(runs: usize, [heads, ids, fences]: [&[u8]; 3], run: DeltaRun<'_>, entries: &[Entry]) -> Self {
        let mut out = Vec::new();
        Maplet::put(runs + 1, entries, &mut out);
        out.extend_from_slice(heads);
        RunHeader::of(run).put(&mut out);
        out.extend_from_slice(ids);
        RunRef::put_ids(run, &mut out);
        out.extend_from_slice(fences);
        RunRef::put_fences(run, &mut out);
        Self { runs: runs as u8 + 1, changes: entries.len() as u32, memory: out.into() }
    }

    fn split(&self) -> (Maplet<'_>, &[u8]) {
        Maplet::split(self.len(), self.changes(), &self.memory)
    }

    /// The bytes of all heads, ids and fences.
    fn parts(&self) -> [&[u8]; 3] {
        let (_, rest) = self.split();
        let mut reader = Reader::new(rest);
        let ids: usize = (0..self.len()).map(|_| RunHeader::take(&mut reader).ids_len()).sum();
        let (heads, rest) = rest.split_at(rest.len() - reader.remaining());
        let (ids, fences) = rest.split_at(ids);
        [heads, ids, fences]
    }

    /// How many runs there are.
    pub fn len(&self) -> usize {
        usize::from(self.runs)
    }

    /// Number of changes in all runs.
    pub fn changes(&self) -> usize {
        self.changes as usize
    }

    pub fn maplet(&self) -> Maplet<'_> {
        self.split().0
    }

    /// The runs, oldest first.
    pub fn runs(&self) -> impl Iterator<Item = RunRef<'_>> {
        let [heads, mut ids, mut fences] = self.parts();
        let mut heads = Reader::new(heads);
        (0..self.len()).map(move |_| {
            let head = RunHeader::take(&mut heads);
            let (own_ids, own_fences);
            (own_ids, ids) = ids.split_at(head.ids_len());
            (own_fences, fences) = fences.split_at(head.fences_len());
            RunRef::of(head, own_ids, own_fences)
        })
    }

    /// The pieces of all runs, oldest run first.
    pub fn pieces(&self) -> Ids<'_> {
        let [_, ids, _] = self.parts();
        Ids::of(ids)
    }

    /// Whether a run of so many changes goes into this packed runs, not into a new one.
    pub fn takes(&self, changes: usize) -> bool {
        self.len() < RUNS && self.changes() + changes <= PACKED_CHANGES && self.memory.len() <= PACKED_LEN
    }

    /// Bytes of memory, with the overhead of the allocator and the reference counts.
    pub fn memory(&self) -> usize {
        16 + 12 + self.memory.len()
    }

    /// Bytes that are copied if the next run goes into this packed runs.
    pub fn copied(&self) -> usize {
        if self.takes(1) { self.memory() } else { 0 }
    }

    /// Whether both are the same memory.
    #[cfg(test)]
    pub fn is_shared_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.memory, &other.memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log_area::Fences;
    use crate::storage::node::NodeId;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// Whatever fences there are, halving finds what going through them would.
        #[test]
        fn halving_finds_the_piece_that_going_through_them_finds(
            fences in prop::collection::btree_set(prop::collection::vec(0u8..4, 0..200), 0..40),
            others in prop::collection::btree_set(prop::collection::vec(0u8..4, 0..3), 0..5),
            keys in prop::collection::vec(prop::collection::vec(0u8..5, 0..6), 1..20))
        {
            let pieces: Vec<_> = (0..fences.len() as u64 + 1).map(NodeId).collect();
            let bytes = |fences: &BTreeSet<Vec<u8>>| {
                let mut bytes = Vec::new();
                fences.iter().for_each(|fence| Fences::put(&mut bytes, fence));
                bytes
            };
            // Behind another run in the same packed runs.
            let before = bytes(&others);
            let run = DeltaRun { pieces: &pieces[..1], fences: Fences::default(), removals: 0 };
            let of_run = bytes(&fences);
            let second = DeltaRun { pieces: &pieces, fences: Fences(&of_run), removals: 3 };
            let hashes = [KeyHash::of(b"ash")];
            let packed = if others.len() < pieces.len() {
                let first = DeltaRun { pieces: &pieces[..others.len() + 1], fences: Fences(&before), ..run };
                PackedRuns::of(first, &[]).with(second, &hashes)
            } else {
                PackedRuns::of(second, &hashes)
            };
            let run = packed.runs().last().expect("a run");
            prop_assert!(run.pieces.iter().eq(pieces.iter().copied()));
            prop_assert_eq!((run.fences, run.removals), (second.fences, 3));
            for key in keys.iter().chain(&fences) {
                let linear = Fences(&of_run).take_while(|fence| *fence <= &key[..]).count();
                prop_assert_eq!(run.piece_for(key), linear);
                let below = Fences(&of_run).take_while(|fence| *fence < &key[..]).count();
                prop_assert_eq!(run.pieces_while(|fence| fence < &key[..]), below + 1);
            }
        }
    }
}
