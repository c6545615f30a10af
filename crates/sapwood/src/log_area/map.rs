//! The map of log areas: finds the log area of a block, and keeps sums over all areas.
//!
//! Invariant: it is a value, like the mapping table: changing a clone leaves the original as it was.

use super::delta_run::DeltaRun;
use super::{LogArea, Size};
use crate::log_area::maplet::KeyHash;
use crate::storage::node::NodeId;
use std::sync::Arc;

/// Number of neighbouring ids that share a chunk: one change to a shared map copies a chunk, and the list of chunks.
const CHUNK: u64 = 1024;
type Chunk = Vec<(NodeId, Arc<LogArea>)>;

/// Block → log area.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogAreas {
    chunks: Vec<Arc<Chunk>>,
    totals: Totals,
    memory: Memory,
}

/// Bytes of memory of all log areas.
#[derive(Clone, Copy, Debug, Default)]
struct Memory {
    /// Of areas, of packed runs, and of the packed runs that appending one more run would copy.
    areas: usize,
    packed_runs: usize,
    copied: usize,
}

impl Memory {
    fn add(&mut self, area: &LogArea) {
        self.areas += area.memory();
        self.packed_runs += area.packed_runs.iter().map(|packed| packed.memory()).sum::<usize>();
        self.copied += area.packed_runs.last().map_or(0, |last| last.copied());
    }

    fn subtract(&mut self, area: &LogArea) {
        self.areas -= area.memory();
        self.packed_runs -= area.packed_runs.iter().map(|packed| packed.memory()).sum::<usize>();
        self.copied -= area.packed_runs.last().map_or(0, |last| last.copied());
    }
}

/// Sums over all log areas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub areas: u64,
    pub runs: u64,
    pub pieces: u64,
    pub changes: u64,
    pub bytes: u64,
    /// Bytes of records that probably no leaf has.
    pub fresh: u64,
}

impl LogAreas {
    /// The log area of a block, if it has pieces.
    pub fn get(&self, block: NodeId) -> Option<&Arc<LogArea>> {
        let chunk = self.chunks.get((block.0 / CHUNK) as usize)?;
        chunk.binary_search_by_key(&block, |(id, _)| *id).ok().map(|index| &chunk[index].1)
    }

    /// Appends a run to the block's area. `size`: of all its pieces together; `hashes`: of its keys.
    pub fn push(&mut self, block: NodeId, run: DeltaRun<'_>, size: Size, hashes: &[KeyHash]) {
        let index = (block.0 / CHUNK) as usize;
        if self.chunks.len() <= index {
            self.chunks.resize_with(index + 1, Arc::default);
        }
        let chunk = Arc::make_mut(&mut self.chunks[index]);
        self.totals.runs += 1;
        self.totals.pieces += run.pieces.len() as u64;
        self.totals.changes += hashes.len() as u64;
        self.totals.bytes += size.bytes;
        self.totals.fresh += size.fresh;
        match chunk.binary_search_by_key(&block, |(id, _)| *id) {
            Ok(at) => {
                let old = &chunk[at].1;
                self.memory.subtract(old);
                let area = Arc::new(old.with(run, size, hashes));
                self.memory.add(&area);
                chunk[at].1 = area;
            }
            Err(at) => {
                self.totals.areas += 1;
                let area = Arc::new(LogArea::new(run, size, hashes));
                self.memory.add(&area);
                chunk.insert(at, (block, area));
            }
        }
    }

    /// Removes a block's area and returns it.
    pub fn remove(&mut self, block: NodeId) -> Option<Arc<LogArea>> {
        let chunk = self.chunks.get_mut((block.0 / CHUNK) as usize)?;
        let at = chunk.binary_search_by_key(&block, |(id, _)| *id).ok()?;
        let (_, area) = Arc::make_mut(chunk).remove(at);
        self.memory.subtract(&area);
        self.totals.areas -= 1;
        self.totals.runs -= area.run_count() as u64;
        self.totals.pieces -= area.piece_count() as u64;
        self.totals.changes -= area.count();
        self.totals.bytes -= area.size.bytes;
        self.totals.fresh -= area.size.fresh;
        Some(area)
    }

    /// All areas by block.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, &Arc<LogArea>)> {
        self.chunks.iter().flat_map(|chunk| chunk.iter().map(|(id, area)| (*id, area)))
    }

    /// All areas by block, as they are now. Keeps only those in memory that were not returned yet.
    pub fn told_once(&self) -> impl Iterator<Item = (NodeId, Arc<LogArea>)> + Send + use<> {
        let chunks = self.chunks.clone().into_iter();
        chunks.flat_map(|chunk| (0..chunk.len()).map(move |index| chunk[index].clone()))
    }

    /// Sums over all areas.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Bytes of memory of the map and all areas, hashes included.
    pub fn memory(&self) -> usize {
        self.chunks.len() * 40 + self.memory.areas + self.memory.packed_runs
    }

    /// Bytes of memory that this map would not share with a next one in which each area has one more run;
    /// without that run itself.
    pub fn unshared(&self) -> usize {
        self.memory.areas + self.memory.copied
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log_area::Fences;
    use crate::log_area::maplet::RUNS;
    use crate::log_area::packed_runs::PACKED_CHANGES;

    fn one(id: &[NodeId; 1]) -> DeltaRun<'_> {
        DeltaRun { pieces: id, fences: Fences::default(), removals: 1 }
    }

    fn hashes() -> [KeyHash; 3] {
        [&b"ash"[..], b"elm", b"oak"].map(KeyHash::of)
    }

    #[test]
    fn a_clone_keeps_what_it_saw_and_sums_are_kept() {
        let mut areas = LogAreas::default();
        for block in [5, 2000, 7] {
            areas.push(NodeId(block), one(&[NodeId(block + 1)]), Size { bytes: 100, fresh: 40 }, &hashes());
        }
        areas.push(NodeId(5), one(&[NodeId(99)]), Size { bytes: 50, fresh: 0 }, &hashes());
        let before = areas.clone();
        assert_eq!(
            areas.totals(),
            Totals { areas: 3, runs: 4, pieces: 4, changes: 12, bytes: 350, fresh: 120 }
        );
        let area = areas.get(NodeId(5)).expect("an area");
        assert_eq!(area.candidates(b"elm").collect::<Vec<_>>(), [NodeId(99), NodeId(6)]);
        assert_eq!((area.hashes().flatten().count(), area.removals(), area.fresh()), (6, 2, 40));
        let gone = areas.remove(NodeId(5)).expect("an area");
        assert_eq!(gone.pieces().collect::<Vec<_>>(), [NodeId(6), NodeId(99)]);
        assert_eq!(
            areas.totals(),
            Totals { areas: 2, runs: 2, pieces: 2, changes: 6, bytes: 200, fresh: 80 }
        );
        assert!(areas.get(NodeId(5)).is_none() && areas.remove(NodeId(5)).is_none());
        assert_eq!(before.get(NodeId(5)).expect("still there").bytes(), 150);
        assert_eq!(areas.iter().map(|(id, _)| id.0).collect::<Vec<_>>(), [7, 2000]);
        assert!([7, 2000].into_iter().all(|block| areas.remove(NodeId(block)).is_some()));
        assert_eq!(areas.memory.areas + areas.memory.packed_runs + areas.memory.copied, 0);
    }

    /// Runs of all sizes: all are found, newest first, in the right piece, and appending copies little.
    #[test]
    fn layers_are_shared_and_small_ones_bundled() {
        const PIECE: u64 = 50;
        let keys = |run: u64, count: u64| (0..count).map(move |number| (number * (run + 1)).to_be_bytes());
        for counts in [vec![3; 40], vec![200; 10], vec![1, 127, 1, 128, 129, 60, 60, 60, 5]] {
            let mut areas = LogAreas::default();
            for (run, count) in counts.iter().enumerate() {
                let before = areas.clone();
                let hashes: Vec<_> = keys(run as u64, *count).map(|key| KeyHash::of(&key)).collect();
                let pieces: Vec<_> =
                    (0..count.div_ceil(PIECE)).map(|piece| NodeId(100 * run as u64 + piece)).collect();
                let mut fences = Vec::new();
                keys(run as u64, *count)
                    .step_by(PIECE as usize)
                    .skip(1)
                    .for_each(|key| Fences::put(&mut fences, &key));
                let run = DeltaRun { pieces: &pieces, fences: Fences(&fences), removals: 0 };
                areas.push(NodeId(1), run, Size { bytes: 100, fresh: 0 }, &hashes);
                let Some(old) = before.get(NodeId(1)) else { continue };
                let now = areas.get(NodeId(1)).expect("an area");
                let shared =
                    now.packed_runs.iter().zip(&old.packed_runs).filter(|(now, old)| now.is_shared_with(old));
                assert!(shared.count() + 1 >= old.packed_runs.len());
                let last = now.packed_runs.last().expect("one at least");
                assert!(last.len() == 1 || last.changes() <= PACKED_CHANGES);
            }
            let area = areas.get(NodeId(1)).expect("an area");
            assert_eq!((area.run_count(), area.runs().count()), (counts.len(), counts.len()));
            for (run, count) in counts.iter().enumerate() {
                for (number, key) in keys(run as u64, *count).enumerate() {
                    let found: Vec<_> = area.candidates(&key).map(|id| id.0).collect();
                    let expected = 100 * run as u64 + number as u64 / PIECE;
                    assert!(found.contains(&expected), "{expected} is not among {found:?}");
                    assert!(found.is_sorted_by(|a, b| a / 100 >= b / 100));
                }
            }
            if counts[0] == 3 {
                assert_eq!(area.packed_runs.len(), 40 / RUNS);
                assert!(areas.unshared() * 2 < areas.memory(), "{} of {}", areas.unshared(), areas.memory());
            }
        }
    }
}
