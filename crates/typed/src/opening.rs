//! Who opens which keyspace, so that one thread at a time looks at its schema and sets it; and who migrates.
//!
//! Invariants:
//! 1. Whoever opens a keyspace waits only for threads that open one of the same name, in any database.
//! 2. One thread at a time migrates, as its code may open others. It waits for that with no turn of a name, so no two wait for each other.
//! 3. No thread waits for itself: within a migration it may open others, and its own.

use parking_lot::{ReentrantMutex, ReentrantMutexGuard};
use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

/// The threads that open keyspaces, by name.
static OPENING: Mutex<Option<HashMap<String, ThreadId>>> = Mutex::new(None);
static OVER: Condvar = Condvar::new();

static MIGRATING: ReentrantMutex<()> = ReentrantMutex::new(());

/// The turn of a thread, until dropped.
pub(crate) struct Turn<'n> {
    /// `None` if the thread had it already: it is migrating what has this name.
    name: Option<&'n str>,
}

fn opening() -> MutexGuard<'static, Option<HashMap<String, ThreadId>>> {
    // No code of others runs under it.
    OPENING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until no other thread opens a keyspace of this name.
pub(crate) fn take_turn(name: &str) -> Turn<'_> {
    let mut by = opening();
    loop {
        match by.as_ref().and_then(|by| by.get(name)) {
            Some(thread) if *thread == thread::current().id() => return Turn { name: None },
            Some(_) => by = OVER.wait(by).unwrap_or_else(PoisonError::into_inner),
            None => break,
        }
    }
    by.get_or_insert_default().insert(name.to_owned(), thread::current().id());
    Turn { name: Some(name) }
}

/// Waits until no other thread migrates. The caller has no turn of a name, but for those of migrations of its own.
pub(crate) fn migrate() -> ReentrantMutexGuard<'static, ()> {
    #[cfg(test)]
    tests::CALLS.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    MIGRATING.lock()
}

impl Turn<'_> {
    /// Whether the thread is not within a migration of what has this name.
    pub fn is_first(&self) -> bool {
        self.name.is_some()
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(name) = self.name {
            if let Some(by) = opening().as_mut() {
                by.remove(name);
            }
            OVER.notify_all();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test may panic")]
mod tests {
    use crate::{DatabaseExt, Schema};
    use sapwood::Database;
    use sapwood::psync::Simulated;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    /// How often threads have asked to migrate (count).
    pub(super) static CALLS: AtomicUsize = AtomicUsize::new(0);

    /// Each had the turn of its own name, and waited for the other's.
    #[test]
    fn migrations_that_open_each_others_keyspace_end() {
        let builder = Database::builder().memory(4 << 20).background_threads(0);
        let db = builder.open_on(Arc::new(Simulated::new(1))).unwrap();
        for name in ["one", "two"] {
            db.typed::<u16, u8>(name).unwrap().insert(7, 1).unwrap();
        }
        let (send, receive) = channel();
        let running = Arc::new(AtomicUsize::new(0));
        for (name, other) in [("one", "two"), ("two", "one")] {
            let (db, send, running) = (db.clone(), send.clone(), Arc::clone(&running));
            std::thread::spawn(move || {
                let inner = db.clone();
                let old = Schema::<u16, u8>::new();
                let new = Schema::<u32, u8>::new().version(2).migrate_from(old, move |key, value| {
                    running.fetch_add(1, SeqCst);
                    // Until the other one migrates too, or waits to.
                    while running.load(SeqCst) < 2 && CALLS.load(SeqCst) < 2 {
                        std::thread::yield_now();
                    }
                    // As it is by now.
                    if inner.typed::<u16, u8>(other).is_err() {
                        inner.typed_with(other, Schema::<u32, u8>::new().version(2))?;
                    }
                    // Its own, as it was.
                    inner.typed::<u16, u8>(name)?;
                    Ok(Some((key.into(), value)))
                });
                _ = send.send(db.typed_with(name, new).map(|keyspace| keyspace.get(7)));
            });
        }
        for _ in 0..2 {
            let found = receive.recv_timeout(Duration::from_secs(60)).expect("it ends").unwrap();
            assert_eq!(found.unwrap(), Some(1));
        }
    }
}
