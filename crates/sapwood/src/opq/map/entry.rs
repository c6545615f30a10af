//! An entry: a key, its sequence number, and a value, side by side.
//!
//! ```text
//! offset  size
//!     0      8  sequence number
//!     8      4  keyspace
//!    12      4  klen
//!    16      4  vlen, or NONE for a removal; and in the highest bit a mark: a reader has requested it
//!    20      …  key  value
//! ```
//!
//! Invariants:
//! 1. An entry is written before its place is published, is never changed afterwards except for its mark, and
//!    lives as long as the map.

use super::memory::{Memory, MemoryRef, Table};
use crate::bytecode::compare_bytes;
use crate::operation::{KeyspaceId, SeqNo};
use std::cmp::Ordering;
use std::marker::PhantomData;
use std::mem::offset_of;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

/// The mark in `vlen`, its highest bit: a reader has asked for the entry.
const ASKED: u32 = 1 << 31;
/// `vlen` of a removal: the greatest number of the lower bits, which no value's length needs.
const NONE: u32 = ASKED - 1;

/// The fixed part; key and value follow.
#[repr(C)]
struct EntryHeader {
    seq: SeqNo,
    keyspace: KeyspaceId,
    klen: u32,
    vlen: AtomicU32,
}

/// Bytes before the key: only padding follows the head's last field.
const HEAD: usize = offset_of!(EntryHeader, vlen) + size_of::<AtomicU32>();
const _: () = assert!(HEAD == 20 && align_of::<EntryHeader>() <= 8);

/// The order of the map: keyspace, key, newest first.
pub(crate) type Key<'a> = (KeyspaceId, &'a [u8], SeqNo);

#[inline]
pub(super) fn compare(a: Key<'_>, b: Key<'_>) -> Ordering {
    a.0.cmp(&b.0).then_with(|| compare_bytes(a.1, b.1)).then_with(|| b.2.cmp(&a.2))
}

/// Bytes of the keyspace, which precede each key when key bytes are counted.
const KEYSPACE: usize = size_of::<KeyspaceId>();

/// The number of leading bytes that two keys have in common, including the keyspace.
pub(super) fn shared(a: Key<'_>, b: Key<'_>) -> usize {
    if a.0 != b.0 {
        return (a.0.0 ^ b.0.0).leading_zeros() as usize / 8;
    }
    let (a, b) = (a.1, b.1);
    // Compare words first, since keys may be long.
    let words = 8 * a.chunks_exact(8).zip(b.chunks_exact(8)).take_while(|(a, b)| a == b).count();
    KEYSPACE + words + a[words..].iter().zip(&b[words..]).take_while(|(a, b)| a == b).count()
}

/// Whether two keys agree in the first `skip` bytes, including the keyspace.
#[inline]
pub(super) fn begins_alike(a: Key<'_>, b: Key<'_>, skip: usize) -> bool {
    match skip.checked_sub(KEYSPACE) {
        Some(skip) => a.0 == b.0 && a.1.get(..skip).is_some_and(|a| b.1.get(..skip) == Some(a)),
        None => shared(a, b) >= skip,
    }
}

/// The four bytes of a key after the first `skip` (including the keyspace), padded with zeros. Among keys that
/// agree in the first `skip` bytes, ranks are in key order.
#[inline]
pub(super) fn rank(key: Key<'_>, skip: usize) -> u32 {
    match skip.checked_sub(KEYSPACE) {
        Some(skip) => word(key.1.get(skip..).unwrap_or_default()),
        None => ((u64::from(key.0.0) << 32 | u64::from(word(key.1))) >> (32 - 8 * skip)) as u32,
    }
}

/// The first four bytes, padded with zeros.
#[inline]
fn word(bytes: &[u8]) -> u32 {
    match bytes.first_chunk() {
        Some(first) => u32::from_be_bytes(*first),
        None => bytes.iter().rev().fold(0, |word, byte| word >> 8 | u32::from(*byte) << 24),
    }
}

/// An entry of a map.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    head: NonNull<EntryHeader>,
    map: PhantomData<&'a Table>,
}

impl<'a> Entry<'a> {
    /// The entry at a place where one was written.
    #[inline]
    pub(super) fn at(table: &'a Table, place: MemoryRef) -> Self {
        Self { head: table.at(place).cast(), map: PhantomData }
    }

    #[inline]
    fn head(self) -> &'a EntryHeader {
        // SAFETY: an entry is made of a place where one was written, whose memory lives as long as the map ('a), and whose head is never
        // changed but for the mark, which is part of an atomic (invariant 1).
        unsafe { self.head.as_ref() }
    }

    #[inline]
    fn bytes(self, offset: usize, len: usize) -> &'a [u8] {
        // SAFETY: the entry was given room for its key and value, and `offset` and `len` come from its head; these bytes are never
        // changed after it was written (invariant 1), and live as long as the map.
        unsafe { std::slice::from_raw_parts(self.head.as_ptr().cast::<u8>().add(offset), len) }
    }

    fn key_len(self) -> usize {
        self.head().klen as usize
    }

    /// The entry's key, which gives its position in the order.
    #[inline]
    pub fn key(self) -> Key<'a> {
        let head = self.head();
        (head.keyspace, self.bytes(HEAD, self.key_len()), head.seq)
    }

    /// The entry's value; `None` for a removal.
    pub fn value(self) -> Option<&'a [u8]> {
        let len = self.head().vlen.load(Relaxed) & !ASKED;
        (len != NONE).then(|| self.bytes(HEAD + self.key_len(), len as usize))
    }

    /// Marks the entry as asked for.
    pub fn ask(self) {
        // Usually it is marked already; then the cache line stays shared among its readers.
        if !self.is_asked() {
            self.head().vlen.fetch_or(ASKED, Relaxed);
        }
    }

    /// Whether a reader has asked for the entry.
    pub fn is_asked(self) -> bool {
        self.head().vlen.load(Relaxed) & ASKED != 0
    }

    /// Prefetches the entry into the cache, as much as a short one has.
    #[inline]
    pub(super) fn prefetch(self) {
        let start = self.head.as_ptr().cast::<u8>();
        (0..3).for_each(|line| prefetch(start.wrapping_add(64 * line)));
    }
}

/// Writes an entry whose place is not yet published.
#[inline]
pub(super) fn write(
    memory: &mut Memory,
    table: &Table,
    total: &AtomicUsize,
    (keyspace, key, seq): Key<'_>,
    value: Option<&[u8]>,
) -> MemoryRef {
    let vlen = value.map_or(0, <[u8]>::len);
    debug_assert!(
        key.len() <= crate::KEY_LEN_MAX && vlen < NONE as usize,
        "lengths are limited by the options"
    );
    let len = (HEAD + key.len() + vlen).max(size_of::<EntryHeader>());
    let place = memory.take(len, 8, table, total);
    let start = table.at(place);
    let head = EntryHeader {
        seq,
        keyspace,
        klen: key.len() as u32,
        vlen: AtomicU32::new(value.map_or(NONE, |value| value.len() as u32)),
    };
    // SAFETY: `take` gave us so many bytes, aligned to 8 and not used otherwise; all that is written lies within them, and the sources
    // are slices of the lengths that are copied. The head's padding is written before the key, which takes its place.
    unsafe {
        start.cast::<EntryHeader>().write(head);
        ptr::copy_nonoverlapping(key.as_ptr(), start.add(HEAD).as_ptr(), key.len());
        if let Some(value) = value {
            ptr::copy_nonoverlapping(value.as_ptr(), start.add(HEAD + key.len()).as_ptr(), vlen);
        }
    }
    place
}

/// Prefetches a cache line.
#[inline]
pub(super) fn prefetch(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing as far as the program can tell, and asks no more of an address than to be a number.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}
