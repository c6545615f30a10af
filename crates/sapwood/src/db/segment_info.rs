//! The segments of the data file as users see them.
//!
//! Invariant: together the segments have the live and used bytes of [`Stats::space`](crate::Stats::space) of the same moment.

use crate::db::engine::Engine;
use serde::Serialize;
use std::collections::HashMap;

/// One segment of the data file: what was written into one place, from its beginning to its end and once only. From
/// [`Database::segments`](crate::Database::segments).
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # let ships = db.keyspace("ships")?;
/// ships.ingest((0..1000u32).map(|number| (number.to_be_bytes(), "afloat")))?;
/// for segment in db.segments() {
///     println!("{:>3} at {:>9}: {} of {} bytes are live", segment.number, segment.offset, segment.live, segment.used);
///     assert!(segment.logged <= segment.live && segment.live <= segment.used && segment.used <= segment.len);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SegmentInfo {
    /// Segments are numbered in the order in which they were begun, and no number is used twice: this is its age.
    pub number: u64,
    /// Where its place begins in the file `data`, in bytes.
    pub offset: u64,
    /// Bytes of its place.
    pub len: u64,
    /// Bytes written.
    pub used: u64,
    /// Bytes of nodes that the trees need.
    pub live: u64,
    /// The part of `live` in log pieces: changes that are not in the leaves yet.
    pub logged: u64,
    /// Whether it is the one that is being written, or was at the last edit.
    pub is_open: bool,
}

/// The segments of the current version, by number.
pub(super) fn segments(engine: &Engine) -> Vec<SegmentInfo> {
    let version = &engine.state.load_full().version;
    let mut logged: HashMap<u64, u64> = HashMap::new();
    for (_, area) in version.logs.iter() {
        for address in area.pieces().filter_map(|piece| version.table.address(piece)) {
            *logged.entry(address.position.0 / version.span).or_default() += u64::from(address.len());
        }
    }
    let of = |entry: &crate::storage::segment::SegmentUse| {
        let number = entry.segment.number;
        SegmentInfo {
            number,
            offset: entry.segment.offset(),
            len: entry.segment.room(),
            used: entry.used,
            live: entry.live,
            logged: logged.get(&number).copied().unwrap_or(0),
            is_open: number == version.open_segment,
        }
    };
    version.segments.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use crate::Database;
    use psync::Simulated;
    use std::sync::Arc;

    #[test]
    fn segments_have_together_what_stats_say_and_do_not_overlap() {
        let builder = Database::builder().memory(4 << 20).segment_span(1 << 20).background_threads(0);
        let db = builder.open_on(Arc::new(Simulated::new(1))).unwrap();
        let keyspace = db.keyspace("main").unwrap();
        for step in [1, 40, 41, 20] {
            let numbers: Vec<_> = (0..30_000u32).step_by(step).collect();
            for some in numbers.chunks(5000) {
                let mut batch = db.batch();
                some.iter().for_each(|number| _ = batch.insert(&keyspace, number.to_be_bytes(), [7; 50]));
                batch.commit().unwrap();
            }
            db.flush().unwrap();
        }
        let (mut segments, space) = (db.segments(), db.stats().space);
        assert!(segments.len() > 2 && space.logged > 0);
        assert!(segments.is_sorted_by(|a, b| a.number < b.number));
        let sum = |of: fn(&super::SegmentInfo) -> u64| segments.iter().map(of).sum::<u64>();
        let sums = (sum(|segment| segment.live), sum(|segment| segment.used), sum(|segment| segment.logged));
        assert_eq!(sums, (space.live, space.used, space.logged));
        assert!(segments.iter().filter(|segment| segment.is_open).count() <= 1);
        segments.sort_by_key(|segment| segment.offset);
        assert!(segments.is_sorted_by(|a, b| a.offset + a.len <= b.offset), "{segments:?}");
    }
}
