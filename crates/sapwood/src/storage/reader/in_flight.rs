//! What bounds reads in flight: permits for bytes of buffers, shared by all walks or a caller's own.
//!
//! Invariant: permits that share a limit have at most that many bytes together, or there is only one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Which limit applies to reads in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) enum InFlightLimit {
    /// The limit that all walks share. The caller has `mine` bytes in flight already.
    Shared { mine: usize },
    /// None: the caller bounds its reads itself.
    Own,
}

/// Permission to have so many bytes of buffers in flight.
pub(super) struct Permit {
    pub bytes: usize,
    all: Arc<AtomicUsize>,
}

impl Permit {
    pub fn own(bytes: usize) -> Self {
        Self { bytes, all: Arc::new(AtomicUsize::new(bytes)) }
    }

    /// Granted in any case if nothing is in flight.
    pub fn of(bytes: usize, all: &Arc<AtomicUsize>, max: usize, mine: usize) -> Option<Self> {
        let most = |before| if mine == 0 || before == mine { max } else { max / 2 };
        let more = |before| (before == 0 || before + bytes <= most(before)).then_some(before + bytes);
        all.fetch_update(Relaxed, Relaxed, more).ok()?;
        Some(Self { bytes, all: Arc::clone(all) })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_with_reads_in_flight_leaves_half_to_others_unless_alone() {
        let all = Arc::default();
        let of = |bytes, mine| Permit::of(bytes, &all, 100, mine);
        let first = of(40, 0).expect("half and more");
        let second = of(50, 40).expect("he is alone");
        assert!(of(20, 90).is_none(), "more than all");
        drop(of(10, 0).expect("what is left"));
        drop(second);
        let other = of(10, 0).expect("half");
        assert!(of(10, 40).is_none() && of(10, 10).is_none(), "not alone any more");
        drop(of(50, 0).expect("a caller that has nothing yet"));
        drop((first, other));
        assert_eq!(all.load(Relaxed), 0, "what was refused is not counted");
        drop(of(500, 0).expect("one of any length, if no other has any"));
    }
}
