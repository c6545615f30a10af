//! Who opens which keyspace, so that one thread at a time looks at its schema and sets it.
//!
//! Invariant: threads wait for those only that open a keyspace of the same name, in any database; and none waits for itself: a migration may open
//! others, and its own.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

static OPENING: Opening = Opening { by: Mutex::new(None), over: Condvar::new() };

struct Opening {
    /// The threads that open keyspaces, by name.
    by: Mutex<Option<HashMap<String, ThreadId>>>,
    over: Condvar,
}

/// The turn of a thread, until dropped.
pub(crate) struct Turn<'n> {
    /// `None` if the thread had it already.
    name: Option<&'n str>,
}

fn lock() -> MutexGuard<'static, Option<HashMap<String, ThreadId>>> {
    // No code of others runs under it.
    OPENING.by.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until no other thread opens a keyspace of this name.
pub(crate) fn take_turn(name: &str) -> Turn<'_> {
    let mut by = lock();
    loop {
        match by.as_ref().and_then(|by| by.get(name)) {
            Some(thread) if *thread == thread::current().id() => return Turn { name: None },
            Some(_) => by = OPENING.over.wait(by).unwrap_or_else(PoisonError::into_inner),
            None => break,
        }
    }
    by.get_or_insert_default().insert(name.to_owned(), thread::current().id());
    Turn { name: Some(name) }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(name) = self.name {
            if let Some(by) = lock().as_mut() {
                by.remove(name);
            }
            OPENING.over.notify_all();
        }
    }
}
