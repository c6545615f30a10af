//! Fences: the keys that divide the pieces of a run, as the manifest and the memory store them.
//!
//! Invariant: the fences of a run ascend strictly; the keys of a piece lie at or above its fence and below
//! the next one. The first piece has no fence: all keys below the second piece's fence belong to it.

use crate::bytecode::{Reader, put_varint};

/// Keys one after the other, each behind its length as a varint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fences<'a>(pub &'a [u8]);

impl<'a> Iterator for Fences<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let mut reader = Reader::new(self.0);
        let len = reader.length()?;
        let fence = reader.bytes(len)?;
        self.0 = &self.0[self.0.len() - reader.remaining()..];
        Some(fence)
    }
}

impl<'a> Fences<'a> {
    /// Appends a fence.
    pub fn put(out: &mut Vec<u8>, fence: &[u8]) {
        put_varint(out, fence.len() as u64);
        out.extend_from_slice(fence);
    }

    /// Splits so many fences off the front, if there are as many.
    pub fn split(&mut self, count: usize) -> Option<Self> {
        let all = self.0;
        for _ in 0..count {
            self.next()?;
        }
        Some(Self(&all[..all.len() - self.0.len()]))
    }
}
