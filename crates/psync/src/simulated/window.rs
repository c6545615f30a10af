//! A window of a simulated file. Each store is a change of its own, as unsynced as a write, so that a power
//! failure loses, tears and reorders stores by sector, more finely than any page cache would.
//!
//! Invariant: a store changes only bytes. Whatever a processor could not do ends the test, as SIGBUS would end
//! a process.

use super::state::{Handle, State};
use crate::lock::Mutex;
use crate::window::check;
use crate::{Error, FileId, Result, Window};
use std::ops::Range;
use std::sync::Arc;

struct SimulatedWindow {
    state: Arc<Mutex<State>>,
    file: FileId,
    handle: Handle,
    range: Range<u64>,
}

/// The window of `range` of the file; `None` without
/// [`Simulated::with_windows`](super::Simulated::with_windows), or if the file has a hole there.
pub(super) fn window(
    state: &Arc<Mutex<State>>,
    file: FileId,
    range: Range<u64>,
) -> Result<Option<Box<dyn Window>>> {
    let mut locked = state.lock();
    let handle = locked.writable(file, "window")?;
    let seen = locked.node(handle.number).map(|node| &node.seen);
    let len = seen.map_or(0, |seen| seen.len());
    if range.is_empty() || range.end > len || locked.mapped.contains_key(&file) {
        return Err(Error::Invalid(format!(
            "{}: a window of {range:?} of {len} bytes, or a second one",
            handle.name
        )));
    }
    let whole = seen.is_some_and(|seen| seen.missing_pages(range.clone()) == 0);
    if !locked.windows || locked.off || handle.access.direct || !whole {
        return Ok(None);
    }
    locked.mapped.insert(file, range.clone());
    drop(locked);
    Ok(Some(Box::new(SimulatedWindow { state: Arc::clone(state), file, handle, range })))
}

impl Window for SimulatedWindow {
    fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    fn store(&mut self, offset: u64, data: &[u8]) -> Result<bool> {
        check(&self.handle.name, &self.range, offset, data.len())?;
        self.state.lock().store(&self.handle, offset, data)
    }
}

impl Drop for SimulatedWindow {
    fn drop(&mut self) {
        self.state.lock().mapped.remove(&self.file);
    }
}
