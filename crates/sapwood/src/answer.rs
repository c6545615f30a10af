//! The answer that a task waits for: another thread gives it, and the future that is polled takes it.
//!
//! Invariants:
//! 1. Each answer is given once: by its [`Giver`], at the latest when that is dropped.
//! 2. Wakers are woken and dropped without the lock: they are code of the user.

use crate::error::{Error, Result};
use crate::health::quietly;
use crate::lock_order::{RankedMutex, rank};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

enum Slot<T> {
    Waiting(Option<Waker>),
    Given(Result<T>),
    Taken,
}

type Shared<T> = Arc<RankedMutex<rank::Polled, Slot<T>>>;

/// The side that waits.
pub(crate) struct Answer<T>(Shared<T>);

/// The side that answers.
pub(crate) struct Giver<T>(Shared<T>);

/// Wakes the task whose answer is there.
pub(crate) struct Wake(Option<Waker>);

impl Wake {
    pub fn wake(self) {
        if let Some(waker) = self.0 {
            // Others wait for answers of the same thread, which may be panicking already.
            quietly(|| waker.wake());
        }
    }
}

impl<T> Answer<T> {
    /// An answer that has not been given yet.
    pub fn new() -> (Self, Giver<T>) {
        let shared = Arc::new(RankedMutex::new(Slot::Waiting(None)));
        (Self(Arc::clone(&shared)), Giver(shared))
    }

    /// The result, once. Otherwise the task is woken when it is given.
    pub fn poll(&self, context: &Context<'_>) -> Poll<Result<T>> {
        let mut slot = self.0.lock();
        let before = match &mut *slot {
            Slot::Waiting(waker) if waker.as_ref().is_some_and(|old| old.will_wake(context.waker())) => None,
            // A waker is cloned under the lock: there is nothing else to wake if the answer comes now.
            Slot::Waiting(waker) => waker.replace(context.waker().clone()),
            Slot::Given(_) => {
                let given = std::mem::replace(&mut *slot, Slot::Taken);
                drop(slot);
                let Slot::Given(result) = given else { return Poll::Pending };
                return Poll::Ready(result);
            }
            Slot::Taken => None,
        };
        drop(slot);
        drop(before);
        Poll::Pending
    }
}

impl<T> Giver<T> {
    pub fn give(self, result: Result<T>) {
        self.put(result).wake();
    }

    /// Whether a future still waits for it.
    pub fn is_wanted(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// The same, but what is returned wakes the task.
    pub fn put(self, result: Result<T>) -> Wake {
        self.fill(result)
    }

    fn fill(&self, result: Result<T>) -> Wake {
        let mut slot = self.0.lock();
        if !matches!(*slot, Slot::Waiting(_)) {
            return Wake(None);
        }
        let before = std::mem::replace(&mut *slot, Slot::Given(result));
        drop(slot);
        match before {
            Slot::Waiting(waker) => Wake(waker),
            _ => Wake(None),
        }
    }
}

impl<T> Drop for Giver<T> {
    fn drop(&mut self) {
        self.fill(Err(Error::panicked("that works for a waiting task"))).wake();
    }
}
