//! A bucket of the record cache: 4 KiB of memory with as many records as fit, whose keys have the same hash
//! in the bits that choose the bucket.
//!
//! ```text
//! offset size
//!      0    2  count: records in it
//!      2    2  hand: the next record that may have to go
//!      4    2  used: bytes of records
//!      6    2  next: the ghost that is overwritten next
//!      8  8×4  ghosts: tag and length of records that went last
//!     40  4×n  slots, oldest first: tag (2)  length, and in its highest bit "was requested since the hand passed" (2)
//!      …    …  free
//!  -used    …  records, newest first, each:  keyspace (4)  klen (2)  key  value
//! ```
//! No pointer, no allocation: a record costs ten bytes besides key and value, and the bucket can be given
//! back to the operating system as it is.
//!
//! SIEVE chooses the victim of an eviction (Zhang et al., NSDI 2024): the hand moves from old to new, spares
//! a record once if it was requested, and evicts the first that was not. *Ghosts*, the records that were
//! evicted last, tell what a little more memory would have been good for.
//!
//! Invariants:
//! 1. The slots' lengths sum up to `used`, and slots and records do not overlap.
//! 2. A key is in a bucket once.

use crate::cache::partition::WINDOW;
use crate::operation::KeyspaceId;

/// Bytes of a bucket: a page of the operating system, so that a bucket can be given back as it is.
pub(crate) const BUCKET: usize = 4096;
/// Offsets, lengths in bytes, and counts of the format drawn above.
const GHOSTS_AT: usize = 8;
const GHOSTS: usize = 8;
const SLOTS_AT: usize = GHOSTS_AT + 4 * GHOSTS;
const SLOT: usize = 4;
/// Bytes before a record's key (keyspace and length).
const PREFIX: usize = 6;
/// The highest bit of a slot's length: the record was requested since the hand passed.
const ASKED: u16 = 1 << 15;
/// Greatest length of a record, its ten bytes included: three of them fit a bucket.
const RECORD_MAX: usize = (BUCKET - SLOTS_AT) / 3;
/// A ghost counts as long as at most this many bytes of records were evicted after it.
const GHOST_BYTES: usize = BUCKET / WINDOW as usize;

/// Whether a record is short enough to be cached.
pub(crate) fn fits(key: &[u8], value: &[u8]) -> bool {
    SLOT + PREFIX + key.len() + value.len() <= RECORD_MAX
}

/// Position of a record in a bucket.
#[derive(Clone, Copy)]
pub(crate) struct RecordSlot {
    index: usize,
    start: usize,
    len: usize,
}

/// A record's key, and what is kept of its hash.
#[derive(Clone, Copy)]
pub(crate) struct Name<'a> {
    pub tag: u16,
    pub keyspace: KeyspaceId,
    pub key: &'a [u8],
}

/// See the module. A bucket of zeros is empty.
pub(crate) struct Bucket<'a>(pub &'a mut [u8]);

impl Bucket<'_> {
    fn get(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.0[at], self.0[at + 1]])
    }

    fn set(&mut self, at: usize, value: u16) {
        self.0[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    /// Number of records.
    pub fn count(&self) -> usize {
        usize::from(self.get(0))
    }

    fn used(&self) -> usize {
        usize::from(self.get(4))
    }

    /// Length of a slot's record, and whether it was requested.
    fn slot(&self, index: usize) -> (usize, bool) {
        let len = self.get(SLOTS_AT + SLOT * index + 2);
        (usize::from(len & !ASKED), len & ASKED > 0)
    }

    fn mark(&mut self, index: usize, asked: bool) {
        let at = SLOTS_AT + SLOT * index + 2;
        let before = self.get(at);
        let len = if asked { before | ASKED } else { before & !ASKED };
        // Other processors have the line as well, as long as no thread writes to it.
        if len != before {
            self.set(at, len);
        }
    }

    fn record(&self, place: RecordSlot) -> (KeyspaceId, &[u8], &[u8]) {
        let record = &self.0[place.start..place.start + place.len];
        let keyspace = u32::from_le_bytes([record[0], record[1], record[2], record[3]]);
        let klen = usize::from(u16::from_le_bytes([record[4], record[5]]));
        let (key, value) = record[PREFIX..].split_at(klen);
        (KeyspaceId(keyspace), key, value)
    }

    /// Position of a record, if it is in the bucket.
    pub fn find(&self, name: Name<'_>) -> Option<RecordSlot> {
        let mut start = BUCKET;
        for index in 0..self.count() {
            let (len, _) = self.slot(index);
            start -= len;
            if self.get(SLOTS_AT + SLOT * index) == name.tag {
                let place = RecordSlot { index, start, len };
                let (keyspace, key, _) = self.record(place);
                if (keyspace, key) == (name.keyspace, name.key) {
                    return Some(place);
                }
            }
        }
        None
    }

    /// The value of a record; marks the record as requested.
    pub fn ask(&mut self, place: RecordSlot) -> &[u8] {
        self.mark(place.index, true);
        self.record(place).2
    }

    /// Replaces a record's value by one of the same length; returns false if the length differs.
    pub fn overwrite(&mut self, place: RecordSlot, value: &[u8]) -> bool {
        let old = self.record(place).2.len();
        let end = place.start + place.len;
        if old == value.len() {
            self.0[end - old..end].copy_from_slice(value);
        }
        old == value.len()
    }

    /// Removes a record.
    pub fn remove(&mut self, RecordSlot { index, start, len }: RecordSlot) {
        let (count, used) = (self.count(), self.used());
        self.0.copy_within(BUCKET - used..start, BUCKET - used + len);
        self.0.copy_within(SLOTS_AT + SLOT * (index + 1)..SLOTS_AT + SLOT * count, SLOTS_AT + SLOT * index);
        self.set(0, (count - 1) as u16);
        self.set(4, (used - len) as u16);
        let hand = self.get(2);
        if usize::from(hand) > index {
            self.set(2, hand - 1);
        }
    }

    /// Evicts the record that the hand finds. The bucket must not be empty.
    fn evict(&mut self) {
        let count = self.count();
        let mut index = usize::from(self.get(2));
        loop {
            if index >= count {
                index = 0;
            }
            let (len, asked) = self.slot(index);
            if !asked {
                let start = BUCKET - (0..=index).map(|index| self.slot(index).0).sum::<usize>();
                self.listen(self.get(SLOTS_AT + SLOT * index), len);
                self.set(2, index as u16);
                return self.remove(RecordSlot { index, start, len });
            }
            self.mark(index, false);
            index += 1;
        }
    }

    fn listen(&mut self, tag: u16, len: usize) {
        let next = usize::from(self.get(6)) % GHOSTS;
        self.set(GHOSTS_AT + 4 * next, tag);
        self.set(GHOSTS_AT + 4 * next + 2, len as u16);
        self.set(6, ((next + 1) % GHOSTS) as u16);
    }

    /// Whether a record with this tag was among the last evicted; forgets the ghost.
    pub fn take_ghost(&mut self, tag: u16) -> bool {
        let next = usize::from(self.get(6));
        let mut bytes = 0;
        for back in 1..=GHOSTS {
            let at = GHOSTS_AT + 4 * ((next + GHOSTS - back) % GHOSTS);
            let len = usize::from(self.get(at + 2));
            if bytes >= GHOST_BYTES || len == 0 {
                return false;
            }
            if self.get(at) == tag {
                // The length still counts for older ghosts.
                self.set(at, !tag);
                return true;
            }
            bytes += len;
        }
        false
    }

    /// Adds a record, which [`fits`] and is not in the bucket yet, as the newest. Evicts others until there
    /// is room.
    pub fn insert(&mut self, name: Name<'_>, value: &[u8], asked: bool) {
        let len = PREFIX + name.key.len() + value.len();
        while SLOTS_AT + SLOT * (self.count() + 1) + self.used() + len > BUCKET {
            self.evict();
        }
        let (count, used) = (self.count(), self.used());
        let start = BUCKET - used - len;
        self.0[start..start + 4].copy_from_slice(&name.keyspace.0.to_le_bytes());
        self.set(start + 4, name.key.len() as u16);
        let key = start + PREFIX;
        self.0[key..key + name.key.len()].copy_from_slice(name.key);
        self.0[key + name.key.len()..start + len].copy_from_slice(value);
        self.set(SLOTS_AT + SLOT * count, name.tag);
        self.set(SLOTS_AT + SLOT * count + 2, len as u16);
        self.mark(count, asked);
        self.set(0, (count + 1) as u16);
        self.set(4, (used + len) as u16);
    }

    /// Whether the records of another bucket fit in addition.
    pub fn has_room_for(&self, other: &Bucket<'_>) -> bool {
        SLOTS_AT + SLOT * (self.count() + other.count()) + self.used() + other.used() <= BUCKET
    }

    /// All records, oldest first: name, value, and whether it was requested.
    pub fn records(&self) -> impl Iterator<Item = (Name<'_>, &[u8], bool)> {
        let mut start = BUCKET;
        (0..self.count()).map(move |index| {
            let (len, asked) = self.slot(index);
            start -= len;
            let (keyspace, key, value) = self.record(RecordSlot { index, start, len });
            (Name { tag: self.get(SLOTS_AT + SLOT * index), keyspace, key }, value, asked)
        })
    }

    /// Empties the bucket.
    pub fn clear(&mut self) {
        self.0[..SLOTS_AT].fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn key(number: u8) -> Vec<u8> {
        vec![number; 1 + usize::from(number % 40)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 256 }))]

        #[test]
        fn what_is_found_is_what_was_put_there_last(
            steps in prop::collection::vec((0u8..120, 0usize..600, 0u8..8), 1..400))
        {
            let mut memory = vec![0; BUCKET];
            let mut bucket = Bucket(&mut memory);
            let mut model: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
            for (number, len, what) in steps {
                let key = key(number);
                let name = Name { tag: u16::from(number) % 7, keyspace: KeyspaceId(u32::from(number % 2)), key: &key };
                let value = vec![number ^ len as u8; len];
                let found = bucket.find(name);
                if let Some(place) = found {
                    // Records go when there is no room; those that are there are as the model says.
                    prop_assert_eq!(bucket.ask(place), &model[&number][..]);
                }
                match (what, found) {
                    (0, Some(place)) => {
                        bucket.remove(place);
                        prop_assert!(bucket.find(name).is_none());
                    }
                    (0, None) => {}
                    (_, Some(place)) => {
                        if bucket.overwrite(place, &value) {
                            model.insert(number, value);
                        } else {
                            prop_assert_ne!(model[&number].len(), len);
                        }
                    }
                    (_, None) => {
                        prop_assert!(fits(&key, &value));
                        bucket.insert(name, &value, what > 4);
                        model.insert(number, value);
                        prop_assert!(bucket.find(name).is_some());
                    }
                }
                let used: usize = bucket.records().map(|(name, value, _)| PREFIX + name.key.len() + value.len()).sum();
                prop_assert_eq!(used, bucket.used());
                prop_assert!(SLOTS_AT + SLOT * bucket.count() + used <= BUCKET);
            }
        }
    }

    #[test]
    fn a_requested_record_is_spared_once_and_an_evicted_one_leaves_a_ghost() {
        let mut memory = vec![0; BUCKET];
        let mut bucket = Bucket(&mut memory);
        let name = |key: &'static [u8; 1]| Name { tag: u16::from(key[0]), keyspace: KeyspaceId(1), key };
        let value = [0; 1300];
        for key in [b"a", b"b", b"c"] {
            bucket.insert(name(key), &value, false);
        }
        let a = bucket.find(name(b"a")).expect("a");
        bucket.ask(a);
        let keys =
            |bucket: &Bucket<'_>| -> Vec<u8> { bucket.records().map(|(name, ..)| name.key[0]).collect() };
        bucket.insert(name(b"d"), &value, false);
        bucket.insert(name(b"e"), &value, false);
        assert_eq!(keys(&bucket), b"ade", "b and c went");
        assert!(!bucket.take_ghost(u16::from(b'a')));
        assert!(bucket.take_ghost(u16::from(b'c')), "c went last");
        assert!(!bucket.take_ghost(u16::from(b'c')), "a ghost is seen once");
        assert!(!bucket.take_ghost(u16::from(b'b')), "more than an eighth of the bucket went after b");
        for key in [b"f", b"g"] {
            bucket.insert(name(key), &value, false);
        }
        assert_eq!(keys(&bucket), b"afg", "the hand goes on from where it was");
        for key in [b"f", b"g"] {
            let place = bucket.find(name(key)).expect("there");
            bucket.ask(place);
        }
        bucket.insert(name(b"h"), &value, false);
        assert_eq!(keys(&bucket), b"fgh", "it spares f and g, and comes to a");
        bucket.clear();
        assert!(bucket.count() == 0 && !bucket.take_ghost(u16::from(b'a')));
        assert!(!fits(b"k", &[0; RECORD_MAX]));
    }
}
