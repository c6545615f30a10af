//! The user's part of a state machine: what commands do.

use sapwood::{Keyspace, KeyspaceOptions, Transaction};
use std::fmt::Debug;

/// What the commands of a group do to its keyspaces.
///
/// Every node applies the same commands in the same order, and must come to the same state and the same answers. So `apply` must depend on
/// nothing but the command, its index and the keyspaces: not on the clock, random numbers, the environment, addresses, or the order in a
/// hash map. A command that cannot be carried out is *answered* so; an error stops the node, because then its state is not
/// that of the others. What the transaction refuses for its size is such an error, and no answer: see [`Machine::apply`].
///
/// Commands and answers are encoded by postcard, and logs and snapshots outlive programs: add variants of an enum at its end, and no fields to
/// those that there are. During an upgrade let all nodes run the new program before a new variant is used.
///
/// ```
/// use sapwood::KeyspaceOptions;
/// use sapwood_openraft::{Apply, Machine};
///
/// /// Counts.
/// struct Counters;
///
/// #[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
/// pub struct Add { counter: String, by: u64 }
///
/// impl Machine for Counters {
///     type Command = Add;
///     type Answer = u64;
///
///     fn keyspaces(&self) -> Vec<(String, KeyspaceOptions)> {
///         vec![("counters".into(), KeyspaceOptions::new())]
///     }
///
///     fn apply(&self, at: &mut Apply<'_>, add: Add) -> sapwood::Result<u64> {
///         let counters = &at.keyspaces[0];
///         let old = at.transaction.get(counters, &add.counter)?;
///         let old = old.and_then(|old| old.first_chunk().copied()).map_or(0, u64::from_be_bytes);
///         let new = old.wrapping_add(add.by);
///         at.transaction.insert(counters, &add.counter, new.to_be_bytes())?;
///         Ok(new)
///     }
///
///     fn without_command(&self) -> u64 {
///         0
///     }
/// }
///
/// openraft::declare_raft_types!(
///     pub Config:
///         D = Add,
///         R = u64,
///         SnapshotData = sapwood_openraft::SnapshotFile,
/// );
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # use sapwood_openraft::Store;
/// let db = sapwood::Database::open(dir.path().join("node.db"))?;
/// let store = Store::open(&db, dir.path().join("snapshots"))?;
/// let (log, machine) = store.group::<Config, _>(1, Counters)?;
/// # Ok(()) }
/// ```
pub trait Machine: Send + Sync + 'static {
    /// A command: openraft's `D`.
    type Command: Clone + Send + 'static;
    /// The answer to a command: openraft's `R`.
    type Answer: Send + 'static;

    /// The keyspaces of the state, by names that are its own. They are created when a group is opened. More may be added later, at the
    /// end. Records must not expire: each node would see that at another time.
    ///
    /// Values may be [merged](sapwood::merge), by an operator that does the same on all nodes. A merge reads nothing, so whether it can be
    /// done is known later, if the value is none that the operator knows: that record then fails on every node with
    /// [`MergeFailed`](sapwood::Error::MergeFailed), and is so in snapshots, until a command inserts it anew or removes it. When operands meet their value is up to
    /// each node, so those that one record can get in a row must be far below [16 MiB together](sapwood#limits): where more of them wait for a value they
    /// fail, and elsewhere they do not. `Builder::segment_span` must be the same on all nodes: it limits values.
    fn keyspaces(&self) -> Vec<(String, KeyspaceOptions)>;

    /// Applies a command. All that it writes, and that it was applied, takes effect at once, maybe with commands after it.
    ///
    /// It is called again for the same command if the transaction was not committed: because this one has failed beside
    /// others, or it took so long that conflicts cannot be told any more. Nothing of the call before has happened then, so it must do nothing but by the
    /// transaction. Others may have to wait with their commits meanwhile, so it must not wait for them.
    ///
    /// # Errors
    /// Those of the database, all of which are to be returned. One that a command has beside others is not seen: it is applied again, alone. One that it has alone stops the
    /// node. Which commands share a transaction, and what a node has room for, differ from node to node: so an answer must not follow from `BatchTooLarge`,
    /// `ValueTooLong` or [`writes_len`](Transaction::writes_len). A command that is answered although a write of it was refused for its size stops the
    /// node as well, if it might not be with more memory ([`Error::AnsweredRefusal`](crate::Error::AnsweredRefusal)): compare lengths with a limit of your own,
    /// the same on all nodes. What follows from the command and the state alone may be answered: `KeyEmpty`, `KeyTooLong`, `ValueTooLong` of a value that is
    /// longer than its `most` ([16 MiB, or a quarter of a shorter `Builder::segment_span`](sapwood#limits)), what an operator says of an operand (`BadOperand`), and
    /// that a read is `MergeFailed`, but not for which reason: that follows from how operands were combined, which differs from node to node.
    fn apply(&self, at: &mut Apply<'_>, command: Self::Command) -> sapwood::Result<Self::Answer>;

    /// What entries without a command are answered: those of elections and memberships. The answer reaches no client.
    fn without_command(&self) -> Self::Answer;
}

/// What a command is applied to. See [`Machine::apply`].
#[non_exhaustive]
pub struct Apply<'a> {
    /// Reads the state with all that was applied before, and takes what is written. What else it is used for is not the store's.
    pub transaction: &'a mut Transaction,
    /// The group's keyspaces, in the order of [`Machine::keyspaces`].
    pub keyspaces: &'a [Keyspace],
    /// The index of the command in the log, or what [`Batched`](crate::Batched) makes of it: ascending, the same on every node, never used
    /// twice in a history of the group. [`Store::restart_group`](crate::Store::restart_group) begins another one.
    pub index: u64,
}

impl Debug for Apply<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Apply(command {})", self.index)
    }
}
