//! Fences: keys that divide the pieces of a layer from each other, as the manifest and the memory have them.
//!
//! Invariant: those of a layer ascend strictly; the keys of a piece lie at or above its fence and below the next one's. The first piece has none: what is
//! below the second's fence is there.

use crate::bytecode::{Reader, put_varint};

/// Keys one after the other, each behind its length, a varint.
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
    /// Appends a fence to some.
    pub fn put(out: &mut Vec<u8>, fence: &[u8]) {
        put_varint(out, fence.len() as u64);
        out.extend_from_slice(fence);
    }

    /// Takes so many off the front, if there are as many.
    pub fn split(&mut self, count: usize) -> Option<Self> {
        let all = self.0;
        for _ in 0..count {
            self.next()?;
        }
        Some(Self(&all[..all.len() - self.0.len()]))
    }
}
