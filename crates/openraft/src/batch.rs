//! Group commit: commands that wait at the same time become one entry of the log.
//!
//! ```text
//! write ──▶ queue ──▶ one proposal with all that wait ──▶ openraft ──▶ answers
//!             ▲                 │ at most IN_FLIGHT_MAX at a time
//!             └── meanwhile ────┘
//! ```
//! openraft 0.9 appends each proposal by itself and waits for its sync before it takes the next one. So without this a leader syncs once for
//! each command, however many clients wait.
//!
//! Invariants:
//! 1. A command is in one proposal, and is answered by that proposal's result.
//! 2. A proposal has at most `bytes_max` bytes of commands, or one command, so it is no longer than the longest command that is let in.
//! 3. A command whose caller has gone is not proposed any more; one that was proposed may be written all the same.
//! 4. A proposal that openraft never answers, since another leader has come, keeps no other from being made.
//! 5. What waits has at most [`QUEUE_MAX`] bytes, and is dropped within [`SWEEP`] when its caller has gone.
//! 6. The numbers that the commands of an entry are applied with ascend within it, and are less than those of the next entry.

use crate::machine::{Apply, Machine};
use openraft::error::{ClientWriteError, Fatal, RaftError};
use openraft::impls::OneshotResponder;
use openraft::{Raft, RaftTypeConfig, ServerState};
use sapwood::KeyspaceOptions;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

/// Bits of a command's number that say which one of its entry it is.
const PLACE_BITS: u32 = 16;
/// Commands of an entry, at most.
const COMMANDS_MAX: usize = 1 << 12;
/// Proposals at most that have no answer yet: while one is replicated, the leader syncs the next. More of them would be smaller and cost more syncs.
const IN_FLIGHT_MAX: usize = 2;

/// Bytes of commands that wait to be proposed, at most: a leader that reaches no majority proposes none, and its clients come again and again. Many
/// entries, and little beside the memory of a node.
const QUEUE_MAX: usize = 64 << 20;
/// A short command counts as so many bytes, so that no more than an entry's number of commands wait.
const COMMAND_LEAST: usize = QUEUE_MAX / COMMANDS_MAX;
/// While no proposal can be made, those whose callers have gone are dropped so often: soon, and a look at each costs nothing beside it.
const SWEEP: Duration = Duration::from_millis(100);

const _: () = assert!(COMMANDS_MAX <= 1 << PLACE_BITS, "places of an entry's commands differ");

/// A machine whose commands are several of another machine's, applied one after the other. What [`BatchWriter`] proposes.
///
/// [`Apply::index`] is then the index of the entry × 65,536 + the place in it: still ascending, the same on every node, and never used
/// twice, as long as no entry has more than 65,536 commands. Those of [`BatchWriter`] have no more than 4,096; who proposes others bounds them. A group begins with this machine or without it; the two have different logs.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// use sapwood_openraft::{Batched, KvBatchConfig, KvMachine, Store};
///
/// let db = sapwood::Database::open(dir.path().join("node.db"))?;
/// let store = Store::open(&db, dir.path().join("snapshots"))?;
/// let (log, machine) = store.group::<KvBatchConfig, _>(1, Batched(KvMachine::new()))?;
/// assert_eq!(machine.reader().get("fram")?, None);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Batched<M>(pub M);

impl<M: Machine> Machine for Batched<M> {
    type Command = Vec<M::Command>;
    type Answer = Vec<M::Answer>;

    fn keyspaces(&self) -> Vec<(String, KeyspaceOptions)> {
        self.0.keyspaces()
    }

    fn apply(&self, at: &mut Apply<'_>, commands: Vec<M::Command>) -> sapwood::Result<Vec<M::Answer>> {
        let first = at.index << PLACE_BITS;
        let apply = |(index, command)| {
            let mut at = Apply { transaction: &mut *at.transaction, keyspaces: at.keyspaces, index };
            self.0.apply(&mut at, command)
        };
        (first..).zip(commands).map(apply).collect()
    }

    fn without_command(&self) -> Vec<M::Answer> {
        Vec::new()
    }
}

/// Why a command was not confirmed.
pub type WriteError<C> = RaftError<
    <C as RaftTypeConfig>::NodeId,
    ClientWriteError<<C as RaftTypeConfig>::NodeId, <C as RaftTypeConfig>::Node>,
>;

/// Writes the commands of many clients to a group in few entries: commands that wait at the same time share an entry, its sync on each node,
/// and its round trip.
///
/// ```
/// use openraft::Raft;
/// use sapwood_openraft::{BatchWriter, KvAnswer, KvBatchConfig, KvCommand, KvMachine};
///
/// async fn serve(raft: Raft<KvBatchConfig>) -> Result<(), Box<dyn std::error::Error>> {
///     let writer = BatchWriter::<_, KvMachine>::new(&raft, KvCommand::BYTES_MAX, KvCommand::log_bytes);
///     // From any number of tasks:
///     let answer = writer.write(KvCommand::put("fram", "1892")).await?;
///     assert!(matches!(answer, KvAnswer::Done { .. }));
///     Ok(())
/// }
/// ```
pub struct BatchWriter<C: RaftTypeConfig, M: Machine> {
    /// Bounded by the room.
    queue: mpsc::UnboundedSender<Waiting<C, M>>,
    room: Arc<Semaphore>,
    bytes_of: fn(&M::Command) -> usize,
}

/// To whoever waits for the answer to a command.
type Answer<C, M> = oneshot::Sender<Result<<M as Machine>::Answer, WriteError<C>>>;

/// A command, and who waits for its answer.
struct Waiting<C: RaftTypeConfig, M: Machine> {
    command: M::Command,
    answer: Answer<C, M>,
    /// Its part of the queue, which it gives back when it is proposed or dropped.
    _room: OwnedSemaphorePermit,
}

impl<C: RaftTypeConfig, M: Machine> Clone for BatchWriter<C, M> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone(), room: Arc::clone(&self.room), bytes_of: self.bytes_of }
    }
}

impl<C, M> BatchWriter<C, M>
where
    M: Machine,
    C: RaftTypeConfig<D = Vec<M::Command>, R = Vec<M::Answer>, Responder = OneshotResponder<C>>,
{
    /// Writes to `raft`. The commands of an entry have at most `bytes_max` bytes by `bytes_of`, or the entry has one command. They are appended and applied
    /// together, so that is no more than one command may have on the node with the least memory: of
    /// [`KvCommand`](crate::KvCommand) [`BYTES_MAX`](crate::KvCommand::BYTES_MAX), or what its [`refusal`](crate::KvCommand::refusal) says. An entry with more stops each node that has too little memory for it.
    ///
    /// To be called in a tokio runtime: a task runs there until the last clone is dropped.
    pub fn new(raft: &Raft<C>, bytes_max: usize, bytes_of: fn(&M::Command) -> usize) -> Self {
        let (queue, waiting) = mpsc::unbounded_channel();
        tokio::spawn(propose_all(raft.clone(), waiting, bytes_max, bytes_of));
        Self { queue, room: Arc::new(Semaphore::new(QUEUE_MAX)), bytes_of }
    }

    /// Writes a command, and returns its answer once it is durable on a majority and applied here. If the caller does not wait for that, the
    /// command may be written all the same, unless it has not been proposed yet: then it is not.
    ///
    /// Do not wait without a limit: a leader that reaches no majority has no answer, nor has one that was replaced, and is sent a snapshot in
    /// place of what it had proposed ([openraft's issue 1761](https://github.com/databendlabs/openraft/issues/1761)).
    ///
    /// # Errors
    /// Those of [`Raft::client_write`]. As there, the command may have been written, or may still be.
    pub async fn write(&self, command: M::Command) -> Result<M::Answer, WriteError<C>> {
        let stopped = || RaftError::Fatal(Fatal::Stopped);
        let bytes = (self.bytes_of)(&command).clamp(COMMAND_LEAST, QUEUE_MAX);
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.room).acquire_many_owned(bytes).await.map_err(|_| stopped())?;
        let (answer, answered) = oneshot::channel();
        self.queue.send(Waiting { command, answer, _room: room }).map_err(|_| stopped())?;
        answered.await.map_err(|_| stopped())?
    }
}

async fn propose_all<C, M>(
    raft: Raft<C>,
    mut waiting: mpsc::UnboundedReceiver<Waiting<C, M>>,
    bytes_max: usize,
    bytes_of: fn(&M::Command) -> usize,
) where
    M: Machine,
    C: RaftTypeConfig<D = Vec<M::Command>, R = Vec<M::Answer>, Responder = OneshotResponder<C>>,
{
    let in_flight = Arc::new(Semaphore::new(IN_FLIGHT_MAX));
    let mut queue = VecDeque::new();
    loop {
        if queue.is_empty() {
            let Some(next) = waiting.recv().await else { return };
            queue.push_back(next);
        }
        // Those that come while it waits for this join it.
        let Some(permit) = permit(&in_flight, &mut waiting, &mut queue).await else { return };
        while let Ok(more) = waiting.try_recv() {
            queue.push_back(more);
        }
        let (mut commands, mut answers, mut bytes) = (Vec::new(), Vec::new(), 0);
        while let Some(next) = queue.pop_front() {
            // Nobody waits for it any more, and nobody was promised it.
            if next.answer.is_closed() {
                continue;
            }
            bytes += bytes_of(&next.command);
            if !commands.is_empty() && (bytes > bytes_max || commands.len() == COMMANDS_MAX) {
                queue.push_front(next);
                break;
            }
            commands.push(next.command);
            answers.push(next.answer);
        }
        if commands.is_empty() {
            continue;
        }
        tokio::spawn(propose::<C, M>(raft.clone(), commands, answers, permit));
    }
}

/// Waits until a proposal may be made. Meanwhile what has waited for nothing goes.
async fn permit<C: RaftTypeConfig, M: Machine>(
    in_flight: &Arc<Semaphore>,
    waiting: &mut mpsc::UnboundedReceiver<Waiting<C, M>>,
    queue: &mut VecDeque<Waiting<C, M>>,
) -> Option<OwnedSemaphorePermit> {
    let mut permit = std::pin::pin!(Arc::clone(in_flight).acquire_owned());
    loop {
        tokio::select! {
            biased;
            permit = &mut permit => return permit.ok(),
            () = tokio::time::sleep(SWEEP) => {
                while let Ok(more) = waiting.try_recv() {
                    queue.push_back(more);
                }
                queue.retain(|waiting| !waiting.answer.is_closed());
            }
        }
    }
}

/// Proposes commands, and answers those who wait. The permit is given back once another proposal may be made.
async fn propose<C, M>(
    raft: Raft<C>,
    commands: Vec<M::Command>,
    mut answers: Vec<Answer<C, M>>,
    permit: OwnedSemaphorePermit,
) where
    M: Machine,
    C: RaftTypeConfig<D = Vec<M::Command>, R = Vec<M::Answer>, Responder = OneshotResponder<C>>,
{
    let mut metrics = raft.metrics();
    let term = metrics.borrow().current_term;
    let mut writing = std::pin::pin!(raft.client_write(commands));
    let mut written = tokio::select! {
        biased;
        written = &mut writing => Some(written),
        // Others are refused at once now, and this one may have no answer: openraft 0.9 gives none where the leader after this one has
        // purged beyond all that this one had (databendlabs/openraft#1761).
        _ = metrics.wait_for(|now| now.state != ServerState::Leader || now.current_term > term) => None,
    };
    drop(permit);
    if written.is_none() {
        written = tokio::select! {
            biased;
            written = &mut writing => Some(written),
            () = all_gone(&mut answers) => None,
        };
    }
    match written {
        // Whoever has gone does not need it.
        Some(Ok(written)) => {
            answers.into_iter().zip(written.data).for_each(|(to, answer)| drop(to.send(Ok(answer))));
        }
        Some(Err(error)) => answers.into_iter().for_each(|to| drop(to.send(Err(error.clone())))),
        None => {}
    }
}

/// Returns once nobody waits for an answer.
async fn all_gone<T>(answers: &mut [oneshot::Sender<T>]) {
    for answer in answers {
        answer.closed().await;
    }
}

impl<C: RaftTypeConfig, M: Machine> std::fmt::Debug for BatchWriter<C, M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BatchWriter")
    }
}
