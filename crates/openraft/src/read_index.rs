//! Reads by read index that share their rounds of confirmation.
//!
//! openraft 0.9 asks every voter for each call of `ensure_linearizable`. Here all reads that wait when a round begins share it. A read never shares
//! a round that began before it did: what was committed in between by another leader would be missing.
//!
//! ```text
//! confirm ──▶ waits for the next round ──▶ read index, a majority follows ──▶ waits until that is applied ──▶ reads
//! ```

use openraft::error::{CheckIsLeaderError, Fatal, RaftError};
use openraft::{LogId, Raft, RaftTypeConfig};
use tokio::sync::{mpsc, oneshot};

/// Reads that wait for a round, at most; others wait for a place.
const QUEUE_MAX: usize = 1 << 12;

/// Why a read is not linearizable.
pub type ReadError<C> = RaftError<
    <C as RaftTypeConfig>::NodeId,
    CheckIsLeaderError<<C as RaftTypeConfig>::NodeId, <C as RaftTypeConfig>::Node>,
>;

/// What a round says: up to where the state must be applied.
type Round<C> = Result<Option<LogId<<C as RaftTypeConfig>::NodeId>>, ReadError<C>>;

/// Confirms that this node leads and has applied what was committed, for many reads at once: as [`Raft::ensure_linearizable`] does, which asks all
/// nodes for each read.
///
/// ```
/// use openraft::Raft;
/// use sapwood_openraft::{KvConfig, ReadIndex, StateReader};
///
/// async fn serve(raft: Raft<KvConfig>, state: StateReader<KvConfig>) -> Result<(), Box<dyn std::error::Error>> {
///     let reads = ReadIndex::new(&raft);
///     // From any number of tasks:
///     reads.confirm().await?;
///     println!("{:?}", state.get("fram")?);
///     Ok(())
/// }
/// ```
pub struct ReadIndex<C: RaftTypeConfig> {
    raft: Raft<C>,
    queue: mpsc::Sender<oneshot::Sender<Round<C>>>,
}

impl<C: RaftTypeConfig> Clone for ReadIndex<C> {
    fn clone(&self) -> Self {
        Self { raft: self.raft.clone(), queue: self.queue.clone() }
    }
}

impl<C: RaftTypeConfig> ReadIndex<C> {
    /// Reads of `raft`. To be called in a tokio runtime: a task runs there until the last clone is dropped.
    pub fn new(raft: &Raft<C>) -> Self {
        let (queue, waiting) = mpsc::channel(QUEUE_MAX);
        tokio::spawn(confirm_all(raft.clone(), waiting));
        Self { raft: raft.clone(), queue }
    }

    /// Returns once a read of this node's state sees all that was acknowledged before the call.
    ///
    /// # Errors
    /// Those of [`Raft::ensure_linearizable`].
    pub async fn confirm(&self) -> Result<(), ReadError<C>> {
        let stopped = || RaftError::Fatal(Fatal::Stopped);
        let (answer, answered) = oneshot::channel();
        self.queue.send(answer).await.map_err(|_| stopped())?;
        let read_index = answered.await.map_err(|_| stopped())??;
        let read_index = read_index.map(|read_index| read_index.index);
        if self.raft.metrics().borrow().last_applied.as_ref().map(|applied| applied.index) < read_index {
            let wait = self.raft.wait(None);
            let applied = wait.applied_index_at_least(read_index, "a linearizable read").await;
            applied.map_err(|_| stopped())?;
        }
        Ok(())
    }
}

async fn confirm_all<C: RaftTypeConfig>(
    raft: Raft<C>,
    mut waiting: mpsc::Receiver<oneshot::Sender<Round<C>>>,
) {
    let (mut readers, mut metrics) = (Vec::new(), raft.metrics());
    while let Some(first) = waiting.recv().await {
        readers.push(first);
        while let Ok(more) = waiting.try_recv() {
            readers.push(more);
        }
        // A round that has begun is not ended when the node stops, but a heartbeat later.
        let round = tokio::select! {
            biased;
            round = raft.get_read_log_id() => round.map(|(read_index, _)| read_index),
            _ = metrics.wait_for(|now| now.running_state.is_err()) => Err(RaftError::Fatal(Fatal::Stopped)),
        };
        // Whoever has gone does not need it.
        readers.drain(..).for_each(|reader| drop(reader.send(round.clone())));
    }
}

impl<C: RaftTypeConfig> std::fmt::Debug for ReadIndex<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReadIndex")
    }
}
