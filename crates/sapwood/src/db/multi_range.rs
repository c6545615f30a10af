//! Many ranges at once: what they need first is read together.

use crate::bounds::first_at;
use crate::db::key_bounds::KeyBounds;
use crate::db::keyspace::Keyspace;
use crate::db::snapshot::{Snapshot, bounds_of_prefix};
use crate::iter::Range;
use crate::tree::paths::read_paths;
use bytes::Bytes;
use std::ops::Bound;
use std::sync::Arc;

type Bounds = (Bound<Bytes>, Bound<Bytes>);

impl Snapshot {
    /// The records of many ranges. See [`Keyspace::multi_range`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// let before = db.snapshot();
    /// ships.insert("fram", "1892")?;
    /// assert!(before.multi_range(&ships, ["a".."c", "f".."g"]).into_iter().flatten().next().is_none());
    /// # Ok(()) }
    /// ```
    pub fn multi_range<B: KeyBounds>(
        &self,
        keyspace: &Keyspace,
        ranges: impl IntoIterator<Item = B>,
    ) -> Vec<Range> {
        let own = |bound: Bound<&[u8]>| bound.map(Bytes::copy_from_slice);
        let bounds = ranges.into_iter().map(|bounds| (own(bounds.start()), own(bounds.end())));
        self.begin_all(keyspace, bounds.collect())
    }

    /// The records of many prefixes. See [`Keyspace::multi_prefix`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// assert_eq!(db.snapshot().multi_prefix(&ships, ["be", "fr"])[1].by_ref().count(), 1);
    /// # Ok(()) }
    /// ```
    pub fn multi_prefix<P: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        prefixes: impl IntoIterator<Item = P>,
    ) -> Vec<Range> {
        let bounds = prefixes.into_iter().map(|prefix| bounds_of_prefix(prefix.as_ref()));
        self.begin_all(keyspace, bounds.collect())
    }

    /// Ranges that have read what they need first.
    fn begin_all(&self, keyspace: &Keyspace, bounds: Vec<Bounds>) -> Vec<Range> {
        let mut starts: Vec<Bytes> = bounds.iter().map(|(low, _)| first_at(low)).collect();
        let mut ranges: Vec<_> =
            bounds.into_iter().map(|(low, high)| self.between(keyspace, low, high)).collect();
        if self.check(keyspace).is_ok() {
            starts.sort_unstable();
            starts.dedup();
            let starts: Vec<&[u8]> = starts.iter().map(|start| &start[..]).collect();
            // A range that cannot be read says so itself.
            _ = read_paths(self.view_of(keyspace), &starts);
            Range::begin_together(&mut ranges);
        }
        ranges
    }
}

impl Keyspace {
    /// The records of many ranges, one iterator for each, all as of the same moment. What they need first is read
    /// together, each level of the tree with one parallel read, so that many short ranges take little longer than one. Use them from
    /// their beginning: what was read is not for [`rev`](Iterator::rev).
    ///
    /// Each takes about two kilobytes, and until it is used what it has read, which is some 24 KiB of leaves and counts as what iterators hold. As
    /// far as that does not fit the memory for reads, or iterators would hold more than an eighth of the budget, a range reads when it is used.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let calls = db.keyspace("calls")?;
    /// for call in ["bergen 0601", "bergen 0709", "oslo 0503", "vardø 0721"] {
    ///     calls.insert(call, "fram")?;
    /// }
    /// let july = calls.multi_range([("bergen 07".."bergen 08"), ("vardø 07".."vardø 08")]);
    /// let counts: Vec<_> = july.into_iter().map(Iterator::count).collect();
    /// assert_eq!(counts, [1, 1]);
    /// # Ok(()) }
    /// ```
    pub fn multi_range<B: KeyBounds>(&self, ranges: impl IntoIterator<Item = B>) -> Vec<Range> {
        Snapshot::new(Arc::clone(self.handle())).multi_range(self, ranges)
    }

    /// The records whose keys start with one of many prefixes, one iterator for each prefix, as [`multi_range`](Self::multi_range).
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let by_user = db.keyspace("sessions by user")?;
    /// by_user.insert("amundsen/f3a9", "")?;
    /// by_user.insert("nansen/77c0", "")?;
    /// for sessions in by_user.multi_prefix(["amundsen/", "nansen/", "sverdrup/"]) {
    ///     for session in sessions {
    ///         let (session, _) = session?;
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub fn multi_prefix<P: AsRef<[u8]>>(&self, prefixes: impl IntoIterator<Item = P>) -> Vec<Range> {
        Snapshot::new(Arc::clone(self.handle())).multi_prefix(self, prefixes)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Database, Keyspace};
    use psync::{Simulated, Volume};
    use std::sync::Arc;

    fn key(number: u32) -> [u8; 4] {
        number.to_be_bytes()
    }

    /// Many records, some of which are in log areas and some in the queue, and nothing of the tree in memory.
    fn cold() -> (Database, Keyspace) {
        let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
        let open = || {
            let builder = Database::builder().memory(16 << 20).leaf_len(1024).background_threads(0);
            let db = builder.open_on(Arc::clone(&volume)).unwrap();
            let keyspace = db.keyspace("main").unwrap();
            (db, keyspace)
        };
        let (db, keyspace) = open();
        keyspace.ingest((0..200_000).map(|number| (key(number), [0; 50]))).unwrap();
        let mut batch = db.batch();
        (0..200_000).step_by(70).for_each(|number| _ = batch.insert(&keyspace, key(number), [1; 50]));
        (0..200_000).step_by(77).for_each(|number| _ = batch.remove(&keyspace, key(number)));
        batch.commit().unwrap();
        db.flush().unwrap();
        assert!(db.stats().space.log_pieces > 0);
        drop(keyspace);
        db.close().unwrap();
        let (db, keyspace) = open();
        (0..200_000).step_by(50).for_each(|number| keyspace.insert(key(number), [2; 50]).unwrap());
        (db, keyspace)
    }

    #[test]
    fn they_find_what_each_finds_by_itself() {
        let (_db, keyspace) = cold();
        let bounds: Vec<_> = (0..300u32)
            .map(|number| {
                let start = number * 7919 % 200_000;
                key(start)..key(start + [0, 1, 9, 40, 3000][number as usize % 5])
            })
            .collect();
        let all = keyspace.multi_range(bounds.iter().cloned());
        assert_eq!(all.len(), bounds.len());
        // Not in the order in which they were begun.
        for (range, bounds) in all.into_iter().zip(&bounds).rev() {
            let alone = keyspace.range(bounds.clone()).map(Result::unwrap);
            assert!(range.map(Result::unwrap).eq(alone), "{bounds:?}");
        }
        let prefixes = [&[0, 0, 1][..], &[0, 1, 7], &[0], &[9]];
        for (range, prefix) in keyspace.multi_prefix(prefixes).into_iter().zip(prefixes) {
            let alone = keyspace.prefix(prefix).rev().map(Result::unwrap);
            assert!(range.rev().map(Result::unwrap).eq(alone), "{prefix:?}, from the other end");
        }
        assert!(keyspace.multi_range(std::iter::empty::<std::ops::Range<&str>>()).is_empty());
        let mut inverted = keyspace.multi_range(["b".."a"]);
        assert!(inverted[0].next().is_none());
    }

    /// With one psync, before any range is used; and nothing is read twice.
    #[test]
    fn what_they_need_first_is_read_at_once() {
        let (db, keyspace) = cold();
        let starts: Vec<u32> = (0..24u32).map(|number| number * 8000 + 11).collect();
        let counters = &db.handle.engine.pager.reader.counters;
        let (requests, sets) =
            (|| counters.total(|counters| &counters.requests), || counters.total(|counters| &counters.sets));
        let (before, sets_before) = (requests(), sets());
        let ranges = keyspace.multi_range(starts.iter().map(|start| key(*start)..key(start + 3)));
        let begun = requests() - before;
        let levels = db.stats().keyspaces[0].levels;
        assert!(
            begun >= 24 && sets() - sets_before <= u64::from(levels),
            "{begun} requests in {} sets",
            sets() - sets_before
        );
        for (range, start) in ranges.into_iter().zip(&starts) {
            assert!(
                range.map(|record| record.unwrap().0.to_vec()).eq((*start..start + 3)
                    .filter(|number| number % 77 != 0 || number % 50 == 0)
                    .map(|number| key(number).to_vec()))
            );
        }
        let later = requests() - before - begun;
        assert!(later <= 6, "{later} more requests");
    }

    /// What they had read was not counted until each was used: standing lists took any memory.
    #[test]
    fn what_standing_lists_have_read_is_counted_and_limited() {
        let (db, keyspace) = cold();
        let held = || db.handle.engine.pager.iterator_bytes();
        let list = |number: u32| {
            let starts = (0..20).map(|range| (number * 4999 + range * 9973) % 190_000);
            keyspace.multi_range(starts.map(|start| key(start)..key(start + 300)))
        };
        let unused: Vec<_> = (0..20).map(|_| keyspace.range(key(7)..)).collect();
        let bare = held();
        drop(unused);
        for is_cached in [false, true] {
            let ranges = list(0);
            assert!(held() > bare + (20 << 10), "{} bytes, {is_cached}", held());
            ranges.into_iter().for_each(|range| assert!(range.count() > 280));
            assert_eq!(held(), 0);
        }
        let lists: Vec<_> = (1..=40).map(list).collect();
        // An eighth of the budget, one list more, and what each range takes that has read nothing.
        let most = (16 << 20) / 8 + (256 << 10) + 40 * 20 * 3000;
        assert!((2 << 20..most).contains(&held()), "{} bytes of {most}", held());
        let found: usize = lists.into_iter().step_by(8).flatten().map(Iterator::count).sum();
        assert!((5 * 20 * 280..=5 * 20 * 300).contains(&found), "{found} records");
        assert_eq!(held(), 0);
    }

    /// Those that are used from the back kept what had been read for their beginning, and with it all.
    #[test]
    fn standing_ranges_that_are_used_from_the_back_hold_little() {
        let (db, keyspace) = cold();
        let held = || db.handle.engine.pager.iterator_bytes();
        let list = |first: u32, count: u32| {
            let starts = (first..first + count).map(|range| range * 9973 % 190_000);
            keyspace.multi_range(starts.map(|start| key(start)..key(start + 300)))
        };
        // There is no room to read anything for the longer list, and for all of the other.
        for count in [1000, 300] {
            let mut ranges = list(0, count);
            ranges.iter_mut().for_each(|range| assert!(range.next_back().unwrap().is_ok()));
            let most = (16 << 20) / 32 + (256 << 10) + count as usize * 2000;
            assert!(held() < most, "{} bytes of {most}", held());
            assert!(ranges.into_iter().step_by(50).all(|range| range.count() >= 279));
        }
    }

    #[test]
    fn each_says_what_is_wrong() {
        let (db, keyspace) = cold();
        db.drop_keyspace("main").unwrap();
        let ranges = keyspace.multi_prefix(["a", "b"]);
        assert!(
            ranges
                .into_iter()
                .all(|mut range| matches!(range.next(), Some(Err(crate::Error::KeyspaceDropped { .. }))))
        );
    }
}
