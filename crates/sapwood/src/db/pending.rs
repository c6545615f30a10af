//! A commit that is visible, and becomes durable later.
//!
//! Invariants:
//! 1. What it reports as durable survives a power failure. So does then every commit that is before it in the log.
//! 2. It reports once it is known: an error reaches the thread that waits, the callback and the future.

use crate::db::handle::Handle;
use crate::error::Result;
use crate::lock_order::{RankedMutex, rank};
use crate::operation::SeqNo;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A commit that readers see, and that becomes durable later. Returned by [`Batch::commit_visible`](crate::Batch::commit_visible)
/// and [`Transaction::commit_visible`](crate::Transaction::commit_visible).
///
/// Until it is durable the commit is as one of [`Durability::Buffered`](crate::Durability::Buffered): it survives a crash of the
/// process, and a power failure may undo it. Commits become durable in the order of the log, so
/// a commit that is durable implies all that are before it in the log.
///
/// One sync of the log makes all commits durable that came before it. A free background thread
/// syncs, whether the caller waits or not; so do [`wait`](Self::wait), any durable commit, and
/// [`Database::sync`](crate::Database::sync). Where no background thread is free (and never with fewer than two,
/// [`Builder::background_threads`](crate::Builder::background_threads)), the call that waits, polls or registers a callback syncs itself.
///
/// It is a future for any runtime: `pending.await` is what [`wait`](Self::wait) returns. It keeps the database open.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("orders.db"))?;
/// # let orders = db.keyspace("orders")?;
/// let mut batch = db.batch();
/// let mut pending = Vec::new();
/// for number in 0..100u32 {
///     batch.insert(&orders, number.to_be_bytes(), "a hundred planks");
///     pending.push(batch.commit_visible()?);
///     assert!(orders.contains(number.to_be_bytes())?); // at once
/// }
/// for order in pending {
///     order.wait()?; // a few syncs for all of them
/// }
/// # Ok(()) }
/// ```
pub struct Pending {
    handle: Arc<Handle>,
    /// Durable once operations up to this one are.
    seq: SeqNo,
    /// For the future, since it was polled.
    polled: Option<Arc<RankedMutex<rank::Polled, Polled>>>,
}

#[derive(Default)]
struct Polled {
    result: Option<Result<()>>,
    waker: Option<Waker>,
}

impl Pending {
    pub(crate) fn new(handle: Arc<Handle>, seq: SeqNo) -> Self {
        Self { handle, seq, polled: None }
    }

    /// Whether the commit is known to be durable. Does not wait.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("orders.db"))?;
    /// # let orders = db.keyspace("orders")?;
    /// let pending = db.batch().insert(&orders, "1", "a hundred planks").commit_visible()?;
    /// db.sync()?;
    /// assert!(pending.is_durable());
    /// # Ok(()) }
    /// ```
    pub fn is_durable(&self) -> bool {
        self.handle.engine.commits.durable_waits.is_durable(self.seq)
    }

    /// Waits until the commit is durable. Threads that wait, and durable commits, share syncs.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("orders.db"))?;
    /// # let orders = db.keyspace("orders")?;
    /// let pending = db.batch().insert(&orders, "1", "a hundred planks").commit_visible()?;
    /// pending.wait()?;
    /// assert!(pending.is_durable());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Database::sync`](crate::Database::sync). Then the commit is visible, and whether it is durable shows when the database is
    /// opened again. Only after [`Error::DiskFull`](crate::Error::DiskFull) waiting again may succeed.
    pub fn wait(&self) -> Result<()> {
        self.handle.engine.commits.sync_until(self.seq)
    }

    /// Calls `f` with `Ok` once the commit is durable, or with the error that [`wait`](Self::wait) would return.
    ///
    /// A background thread calls `f`, without any lock, one callback after another in the order of the commits; so `f` should be
    /// short. It may use the database, wait for futures that it begins, and drop or close it; it must not wait for another `f`, or for
    /// another thread that waits for a commit to become durable. If the commit is durable already, or no background thread is free, or it was
    /// made within [`transact`](crate::Database::transact), `f` may be called before this returns. A panic of `f` in a background thread is printed, and harms nothing.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("orders.db"))?;
    /// # let orders = db.keyspace("orders")?;
    /// let (answer, answers) = std::sync::mpsc::channel();
    /// for number in 0..10u32 {
    ///     let answer = answer.clone();
    ///     let mut batch = db.batch();
    ///     batch.insert(&orders, number.to_be_bytes(), "a hundred planks");
    ///     batch.commit_visible()?.on_durable(move |result| _ = answer.send(result.map(|()| number)));
    /// }
    /// drop(answer);
    /// for order in answers {
    ///     println!("order {} is confirmed", order?);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn on_durable(self, f: impl FnOnce(Result<()>) + Send + 'static) {
        self.handle.engine.commits.on_durable(self.seq, Box::new(f));
    }
}

/// `Ok` once the commit is durable, or the error that [`Pending::wait`] would return. Dropping it takes nothing back.
///
/// ```
/// # fn block_on<F: std::future::Future>(future: F) -> F::Output {
/// #     struct Unpark(std::thread::Thread);
/// #     impl std::task::Wake for Unpark {
/// #         fn wake(self: std::sync::Arc<Self>) {
/// #             self.0.unpark();
/// #         }
/// #     }
/// #     let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
/// #     let (mut future, mut context) = (std::pin::pin!(future), std::task::Context::from_waker(&waker));
/// #     loop {
/// #         match future.as_mut().poll(&mut context) {
/// #             std::task::Poll::Ready(output) => return output,
/// #             std::task::Poll::Pending => std::thread::park(),
/// #         }
/// #     }
/// # }
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("orders.db"))?;
/// # let orders = db.keyspace("orders")?;
/// let order = async {
///     let pending = db.batch().insert(&orders, "1", "a hundred planks").commit_visible()?;
///     pending.await?;
///     println!("order 1 is confirmed");
///     sapwood::Result::Ok(())
/// };
/// block_on(order)?; // of any runtime
/// # Ok(()) }
/// ```
impl Future for Pending {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        if self.is_durable() {
            return Poll::Ready(Ok(()));
        }
        // In a forked child no thread tells.
        self.handle.engine.health.check_process()?;
        if self.handle.engine.commits.is_waited_for() {
            return Poll::Ready(self.wait());
        }
        let mut is_first = false;
        let polled = self.polled.get_or_insert_with(|| {
            is_first = true;
            Arc::default()
        });
        let polled = Arc::clone(polled);
        let mut now = polled.lock();
        if let Some(result) = now.result.clone() {
            return Poll::Ready(result);
        }
        let before = now.waker.replace(context.waker().clone());
        drop(now);
        // Without the lock: it is code of the user.
        drop(before);
        if !is_first {
            return Poll::Pending;
        }
        let told = Arc::clone(&polled);
        let callback = Box::new(move |result| {
            let mut now = told.lock();
            now.result = Some(result);
            let waker = now.waker.take();
            drop(now);
            if let Some(waker) = waker {
                waker.wake();
            }
        });
        self.handle.engine.commits.on_durable(self.seq, callback);
        // It may have been called.
        let result = polled.lock().result.clone();
        result.map_or(Poll::Pending, Poll::Ready)
    }
}

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pending(durable with operation {}: {})", self.seq, self.is_durable())
    }
}
