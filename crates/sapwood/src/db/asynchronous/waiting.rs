//! The future that all calls for tasks return.

use crate::answer::{Answer, Giver};
use crate::db::handle::Handle;
use crate::db::keyspace::Keyspace;
use crate::error::Result;
use crate::health::Health;
use crate::pool::{Behind, Pool, Task, caught};
use crate::value::{Key, Value};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A future of any runtime: what a call for tasks returns, as [`Keyspace::get_async`]. It begins when it is first polled, and may be
/// polled by one thread after another. Polled after it was ready, it stays pending.
///
/// Dropping it gives the call up, and leaks nothing. A read in flight ends without it. A commit that has not begun does not happen;
/// one that has begun is waited for until it is visible, so after the drop it is decided.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # let ships = db.keyspace("ships")?;
/// ships.insert("fram", "1892")?;
/// let year: sapwood::Waiting<Option<sapwood::Value>> = ships.get_async("fram");
/// assert!(futures_executor::block_on(year)?.is_some_and(|year| year == "1892"));
/// # Ok(()) }
/// ```
#[must_use = "futures do nothing until they are polled"]
pub struct Waiting<T> {
    stage: Stage<T>,
    /// Makes what was found what the caller gets: the value of a stored value that has not expired.
    read: fn(&Owner, T) -> Result<T>,
    /// Keeps the database open, and is dropped last: threads that work for the future drop theirs before.
    owner: Owner,
}

/// Whose future it is.
pub(crate) enum Owner {
    Database(Arc<Handle>),
    /// Names itself in errors.
    Keyspace(Keyspace),
    /// The same of one record, whose key is named too.
    Record(Keyspace, Key),
}

type Begin<T> = Box<dyn FnOnce() -> Stage<T> + Send + Sync>;

pub(crate) enum Stage<T> {
    New(Begin<T>),
    /// Known at once.
    Ready(Box<Result<T>>),
    /// A read of a group.
    Asked(Answer<T>),
    /// Work of its own. It ends, or is taken back, with the future.
    Working(#[expect(dead_code, reason = "its drop waits")] Task<Behind>, Answer<T>),
    Over,
}

impl<T> Stage<T> {
    pub fn ready(result: Result<T>) -> Self {
        Self::Ready(Box::new(result))
    }
}

impl<T: Send + 'static> Stage<T> {
    /// Work that a thread of the pool begins, and whose result is the answer.
    pub fn work(pool: &Pool, name: &'static str, work: impl FnOnce() -> Result<T> + Send + 'static) -> Self {
        let (answer, giver) = Answer::new();
        let task = pool.submit_polled(name, move || {
            let wake = giver.put(caught(name, work));
            Box::new(|| wake.wake())
        });
        Self::Working(task, answer)
    }

    /// The same, where `tell` makes the answer of the result, later perhaps.
    pub fn work_and<R: Send + 'static>(
        pool: &Pool,
        name: &'static str,
        work: impl FnOnce() -> Result<R> + Send + 'static,
        tell: impl FnOnce(Result<R>, Giver<T>) + Send + 'static,
    ) -> Self {
        let (answer, giver) = Answer::new();
        let task = pool.submit_polled(name, move || {
            let result = caught(name, work);
            Box::new(|| tell(result, giver))
        });
        Self::Working(task, answer)
    }
}

impl<T> Waiting<T> {
    pub(crate) fn new(owner: Owner, begin: impl FnOnce() -> Stage<T> + Send + Sync + 'static) -> Self {
        Self { stage: Stage::New(Box::new(begin)), read: |_, value| Ok(value), owner }
    }
}

impl Waiting<Option<Value>> {
    /// A get, which finds the value as it is stored.
    pub(crate) fn get(
        keyspace: &Keyspace,
        key: &[u8],
        begin: impl FnOnce() -> Stage<Option<Value>> + Send + Sync + 'static,
    ) -> Self {
        let read = |owner: &Owner, stored: Option<Value>| match owner {
            Owner::Keyspace(keyspace) => keyspace.values().read_found(&[], stored),
            Owner::Record(keyspace, key) => keyspace.values().read_found(key, stored),
            Owner::Database(_) => Ok(stored),
        };
        let owner = match keyspace.values().merging() {
            None => Owner::Keyspace(keyspace.clone()),
            // Only what cannot be merged names its key.
            Some(_) => Owner::Record(keyspace.clone(), Key::from(key)),
        };
        Self { stage: Stage::New(Box::new(begin)), read, owner }
    }
}

impl Owner {
    fn health(&self) -> &Health {
        match self {
            Self::Database(handle) => &handle.engine.health,
            Self::Keyspace(keyspace) | Self::Record(keyspace, _) => &keyspace.handle().engine.health,
        }
    }
}

impl<T> Waiting<T> {
    /// Leaves what has begun as it is: in a forked child it is the parent's, and no thread ends it.
    fn leak(&mut self) {
        std::mem::forget(std::mem::replace(&mut self.stage, Stage::Over));
    }
}

impl<T> Drop for Waiting<T> {
    fn drop(&mut self) {
        if self.owner.health().is_forked() {
            self.leak();
        }
    }
}

impl<T> Future for Waiting<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        if let Err(error) = self.owner.health().check_process()
            && !matches!(self.stage, Stage::Over)
        {
            self.leak();
            return Poll::Ready(Err(error));
        }
        if matches!(self.stage, Stage::New(_))
            && let Stage::New(begin) = std::mem::replace(&mut self.stage, Stage::Over)
        {
            self.stage = begin();
        }
        let polled = match &self.stage {
            Stage::Asked(answer) | Stage::Working(_, answer) => answer.poll(context),
            Stage::Ready(_) => match std::mem::replace(&mut self.stage, Stage::Over) {
                Stage::Ready(result) => Poll::Ready(*result),
                _ => Poll::Pending,
            },
            Stage::New(_) | Stage::Over => Poll::Pending,
        };
        let Poll::Ready(result) = polled else { return Poll::Pending };
        self.stage = Stage::Over;
        let result = result.and_then(|found| (self.read)(&self.owner, found));
        Poll::Ready(result.map_err(|error| match &self.owner {
            Owner::Keyspace(keyspace) | Owner::Record(keyspace, _) => keyspace.named(error),
            Owner::Database(_) => error,
        }))
    }
}

impl<T> std::fmt::Debug for Waiting<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.stage {
            Stage::New(_) => "Waiting(not begun)",
            Stage::Ready(_) | Stage::Asked(_) | Stage::Working(..) => "Waiting(begun)",
            Stage::Over => "Waiting(over)",
        })
    }
}
