//! The user's part of a state machine: what commands do.

use sapwood::{Keyspace, KeyspaceOptions, Transaction};
use std::fmt::Debug;

/// What the commands of a group do to its keyspaces.
///
/// Every node applies the same commands in the same order, and must come to the same state and the same answers. So `apply` must depend on
/// nothing but the command, its index and the keyspaces: not on the clock, random numbers, the environment, addresses, or the order in a
/// hash map. A command that cannot be carried out is *answered* so; an error stops the node, because then its state is not
/// that of the others.
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
    fn keyspaces(&self) -> Vec<(String, KeyspaceOptions)>;

    /// Applies a command. All that it writes, and that it was applied, takes effect at once, maybe with commands after it.
    ///
    /// It is called again for the same command if the transaction was not committed: because it has no room for this one beside
    /// others, or took so long that conflicts cannot be told any more. Nothing of the call before has happened then, so it must do nothing but by the
    /// transaction. Others may have to wait with their commits meanwhile, so it must not wait for them.
    ///
    /// # Errors
    /// Those of the database. They stop the node.
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
