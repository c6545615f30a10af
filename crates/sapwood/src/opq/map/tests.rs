//! The map against sorted vectors: single entries and batches, with readers beside the writer.

mod memory;
mod nodes;
mod order;
mod readers;
mod tombstones;

use super::{CHUNK, FreeList, Key, Map};
use crate::operation::KeyspaceId;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

impl Map {
    /// Inserts all at once.
    pub(super) fn insert_all<'a>(&self, entries: impl IntoIterator<Item = (Key<'a>, Option<&'a [u8]>)>) {
        let mut insertion = self.begin();
        entries.into_iter().for_each(|(key, value)| insertion.push(key, value));
        insertion.end();
    }
}

/// Fewer under Miri, which is slow.
const COUNT: u64 = if cfg!(miri) { 100 } else { 20_000 };

thread_local! {
    /// What is to be done at a reader's pauses.
    static PAUSED: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
    /// Leaves that readers have looked for to walk along them.
    static PAGES: Cell<usize> = const { Cell::new(0) };
}

/// A reader looks for one.
pub(super) fn page() {
    PAGES.set(PAGES.get() + 1);
}

/// How many leaves some work walks along.
pub(crate) fn pages_of(work: impl FnOnce()) -> usize {
    let before = PAGES.get();
    work();
    PAGES.get() - before
}

/// A reader has read something, and not made sure of it.
pub(super) fn pause() {
    // A reader within a pause has none.
    if let Some(mut work) = PAUSED.take() {
        work();
        PAUSED.set(Some(work));
    }
}

fn shuffled(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31)
}

fn insert(map: &Map, key: Key<'_>, value: Option<&[u8]>) {
    map.insert_all([(key, value)]);
}

/// Keyspace, key, sequence number, value.
type Plain = (u32, Vec<u8>, u64, Option<Vec<u8>>);

/// Inserts entries in their order, so many at a time.
fn insert_batches(map: &Map, entries: &[Plain], batch: usize) {
    for batch in entries.chunks(batch) {
        map.insert_all(
            batch.iter().map(|(keyspace, key, seq, value)| {
                ((KeyspaceId(*keyspace), &key[..], *seq), value.as_deref())
            }),
        );
    }
}

fn sort_as_the_map(entries: &mut [Plain]) {
    entries.sort_by(|a, b| (a.0, &a.1, std::cmp::Reverse(a.2)).cmp(&(b.0, &b.1, std::cmp::Reverse(b.2))));
}

fn entries(map: &Map) -> Vec<Plain> {
    let mut all = Vec::new();
    for entry in map.all() {
        let (keyspace, key, seq) = entry.key();
        all.push((keyspace.0, key.to_vec(), seq, entry.value().map(<[u8]>::to_vec)));
    }
    all
}

/// What keeps the memory of maps that take so many bytes.
fn open(bytes: usize) -> Arc<FreeList> {
    let spare = Arc::new(FreeList::default());
    spare.open(bytes);
    spare
}

/// Has maps leave so many chunks there.
fn leave(spare: &Arc<FreeList>, chunks: usize) {
    let map = Map::new(spare);
    for n in 0..chunks as u64 * 4 {
        // Neither are its entries whole words: there is padding between them that was never written.
        insert(&map, (KeyspaceId(1), &[7; 2001], n), Some(&[n as u8; CHUNK / 4 - 9000]));
    }
    let memory = map.memory();
    assert_eq!(memory, chunks * CHUNK);
    drop(map);
    assert_eq!(spare.bytes(), memory);
}
