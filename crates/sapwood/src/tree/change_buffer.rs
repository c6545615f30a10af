//! Changes that a flush holds back for the leaves, in key order.
//!
//! Changes from log areas are copied, one behind the other, into a few buffers. Held one by one, each would
//! keep a whole log piece in memory, and all together would need a list as long as they are, which the
//! allocator would take out of what it caches for each thread. Changes for blocks without a log area stay in
//! the queue, and only a list of references is held.
//!
//! ```text
//! buffer = change*                a change lies within one buffer; a long one has a buffer of its own
//! change = klen vlen key value    klen and vlen: 4 bytes; vlen is 2^32 - 1 for a removal
//! ```
//!
//! Invariant: a buffer goes back to the pool as soon as its last change has been taken and dropped. Only a
//! long change begins a new buffer while another has room.

use crate::operation::OperationRef;
use crate::tree::change::{Either, LeafChange};
use psync::{AlignedBuffer, BufferPool};
use std::collections::VecDeque;
use std::rc::Rc;

/// Bytes of a buffer: the pool's smallest size that does not come from the allocator.
const LEN: usize = 64 << 10;
const HEAD: usize = 8;
const REMOVAL: u32 = u32::MAX;

/// See the module.
pub(crate) struct LeafChangeBuffer<'q> {
    pool: BufferPool,
    /// The order of the changes.
    parts: VecDeque<BufferedPart<'q>>,
    /// Full buffers of copied changes.
    full: VecDeque<Filled>,
    last: Filled,
}

enum BufferedPart<'q> {
    /// The next so many copied changes.
    Copied(usize),
    Lent(Vec<OperationRef<'q>>),
}

#[derive(Default)]
struct Filled {
    buffer: Option<AlignedBuffer>,
    filled: usize,
}

impl Filled {
    fn room(&self) -> usize {
        self.buffer.as_ref().map_or(0, |buffer| buffer.len() - self.filled)
    }

    fn bytes(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[], |buffer| &buffer[..self.filled])
    }
}

impl<'q> LeafChangeBuffer<'q> {
    /// Takes its buffers from `pool`.
    pub fn new(pool: BufferPool) -> Self {
        Self { pool, parts: VecDeque::new(), full: VecDeque::new(), last: Filled::default() }
    }

    /// Bytes of copied changes, and of the lists of lent ones.
    pub fn bytes(&self) -> u64 {
        let lent = self.parts.iter().map(|part| match part {
            BufferedPart::Copied(_) => 0,
            BufferedPart::Lent(changes) => changes.capacity() * size_of::<OperationRef<'_>>(),
        });
        let copied = self.full.iter().chain([&self.last]).map(|buffer| buffer.filled);
        (lent.sum::<usize>() + copied.sum::<usize>()) as u64
    }

    /// Adds changes that stay where they are. Their keys lie above all keys added before.
    pub fn lend(&mut self, changes: Vec<OperationRef<'q>>) {
        self.parts.push_back(BufferedPart::Lent(changes));
    }

    /// Adds a copy of a change whose key lies above all keys added before.
    pub fn push(&mut self, key: &[u8], value: Option<&[u8]>) {
        let bytes = value.unwrap_or_default();
        let len = HEAD + key.len() + bytes.len();
        if self.last.room() < len {
            let next = Filled { buffer: Some(self.pool.take(len.max(LEN))), filled: 0 };
            let full = std::mem::replace(&mut self.last, next);
            self.full.extend(full.buffer.is_some().then_some(full));
        }
        let Filled { buffer: Some(buffer), filled } = &mut self.last else { return };
        let vlen = value.map_or(REMOVAL, |value| value.len() as u32);
        for part in [&(key.len() as u32).to_le_bytes()[..], &vlen.to_le_bytes(), key, bytes] {
            buffer[*filled..*filled + part.len()].copy_from_slice(part);
            *filled += part.len();
        }
        match self.parts.back_mut() {
            Some(BufferedPart::Copied(count)) => *count += 1,
            _ => self.parts.push_back(BufferedPart::Copied(1)),
        }
    }
}

impl<'q> IntoIterator for LeafChangeBuffer<'q> {
    type Item = Either<BufferedChange, OperationRef<'q>>;
    type IntoIter = Taken<'q>;

    fn into_iter(self) -> Taken<'q> {
        let mut buffers = self.full;
        buffers.push_back(self.last);
        Taken {
            parts: self.parts,
            buffers,
            now: Rc::default(),
            at: 0,
            copied: 0,
            lent: Vec::new().into_iter(),
        }
    }
}

/// A change that was held back.
pub(crate) struct BufferedChange {
    buffer: Rc<Filled>,
    /// Offsets of the key, of the value, and of the value's end; `None` for a removal.
    key: usize,
    value: usize,
    end: Option<usize>,
}

impl LeafChange for BufferedChange {
    fn key(&self) -> &[u8] {
        &self.buffer.bytes()[self.key..self.value]
    }

    fn value(&self) -> Option<&[u8]> {
        self.end.map(|end| &self.buffer.bytes()[self.value..end])
    }
}

/// Iterator over the changes, in key order.
pub(crate) struct Taken<'q> {
    parts: VecDeque<BufferedPart<'q>>,
    buffers: VecDeque<Filled>,
    /// Buffer and offset of the next copied change, and how many copied changes come before the next lent
    /// ones.
    now: Rc<Filled>,
    at: usize,
    copied: usize,
    lent: std::vec::IntoIter<OperationRef<'q>>,
}

impl Taken<'_> {
    /// The next copied change; the caller knows that there is one.
    fn next_copied(&mut self) -> Option<BufferedChange> {
        while self.at == self.now.filled {
            (self.now, self.at) = (Rc::default(), 0);
            self.now = Rc::new(self.buffers.pop_front()?);
        }
        let head = &self.now.bytes()[self.at..];
        let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (klen, vlen) = (number(0), number(4));
        let key = self.at + HEAD;
        let value = key + klen as usize;
        let end = (vlen != REMOVAL).then(|| value + vlen as usize);
        self.at = end.unwrap_or(value);
        Some(BufferedChange { buffer: Rc::clone(&self.now), key, value, end })
    }
}

impl<'q> Iterator for Taken<'q> {
    type Item = Either<BufferedChange, OperationRef<'q>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(change) = self.lent.next() {
                return Some(Either::Other(change));
            }
            if let Some(left) = self.copied.checked_sub(1) {
                self.copied = left;
                return self.next_copied().map(Either::One);
            }
            match self.parts.pop_front()? {
                BufferedPart::Copied(count) => self.copied = count,
                BufferedPart::Lent(changes) => self.lent = changes.into_iter(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_was_held_comes_out_in_order_and_its_buffers_come_back(
            changes in prop::collection::vec((1usize..300, prop::option::of(0usize..50_000), any::<bool>()), 0..40),
        ) {
            let pool = BufferPool::new(64 << 20);
            let mut buffered = LeafChangeBuffer::new(pool.clone());
            let of = |(index, (klen, vlen, _)): (usize, &(usize, Option<usize>, bool))| {
                (vec![index as u8; *klen], vlen.map(|len| vec![!(index as u8); len]))
            };
            let all: Vec<_> = changes.iter().enumerate().map(of).collect();
            for ((key, value), (_, _, is_lent)) in all.iter().zip(&changes) {
                match is_lent {
                    true => buffered.lend(vec![OperationRef { key, value: value.as_deref(), ..OperationRef::default() }]),
                    false => buffered.push(key, value.as_deref()),
                }
            }
            let mut taken = buffered.into_iter();
            for (key, value) in &all {
                let next = taken.next().expect("as many as were buffered");
                prop_assert_eq!((next.key(), next.value()), (&key[..], value.as_deref()));
            }
            prop_assert!(taken.next().is_none());
            drop(taken);
            let copied = changes.iter().filter(|(_, _, is_lent)| !is_lent);
            let lens: Vec<_> = copied.map(|(klen, vlen, _)| HEAD + klen + vlen.unwrap_or(0)).collect();
            let bytes: usize = lens.iter().sum();
            prop_assert!(pool.idle_bytes() <= 2 * bytes + LEN, "{} for {}", pool.idle_bytes(), bytes);
            prop_assert!(pool.idle_bytes() >= bytes, "{} of {}", pool.idle_bytes(), bytes);
        }

        #[test]
        fn a_buffer_comes_back_before_the_next_is_taken(count in 1usize..2000) {
            let pool = BufferPool::new(64 << 20);
            let mut buffered = LeafChangeBuffer::new(pool.clone());
            (0..count).for_each(|_| buffered.push(b"key", Some(&[7; 1000])));
            let mut taken = buffered.into_iter();
            let buffers = count.div_ceil(LEN / 1011);
            for number in 0..count {
                prop_assert!(taken.next().is_some());
                let back = pool.idle_bytes() / LEN;
                prop_assert!(back <= buffers && back >= (number / (LEN / 1011)).min(buffers - 1));
            }
        }
    }
}
