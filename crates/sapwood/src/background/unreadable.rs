//! What could not be read is left alone for a time, so that it keeps no other work from being done: it may have been an outage, but
//! each attempt costs a read that may time out.

use crate::lock_order::{RankedMutex, rank};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long something is left alone: longer than a device is usually away, and seldom enough that reads which time out cost little.
const LEFT_ALONE: Duration = Duration::from_secs(600);

/// Segments, or trees, that are left alone, and since when.
pub(crate) struct Unreadable<K>(RankedMutex<rank::Unreadable, BTreeMap<K, Instant>>);

impl<K> Default for Unreadable<K> {
    fn default() -> Self {
        Self(RankedMutex::default())
    }
}

impl<K: Ord + Copy> Unreadable<K> {
    pub fn leave_alone(&self, what: K) {
        self.0.lock().insert(what, Instant::now());
    }

    /// What is left alone now.
    pub fn now<S: FromIterator<K>>(&self) -> S {
        let mut left = self.0.lock();
        left.retain(|_, since| since.elapsed() < LEFT_ALONE);
        left.keys().copied().collect()
    }
}
