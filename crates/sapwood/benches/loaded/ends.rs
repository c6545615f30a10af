//! The end of a measurement: who is through, or has failed, ends it for all.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Tells the others to end, however the thread that has it does.
pub struct Ends<'a>(pub &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
