//! Replication of [Sapwood](sapwood) by Raft: log storage and state machine for [`openraft`].
//!
//! openraft is the Raft; this crate is what it stores on. It *replicates*: every node has all of a group's data. It does not partition: more
//! data than one machine holds, or more writes than one machine takes, need several groups, which the operator places.
//! `docs/replication.md` says what is guaranteed, and what a lost node, disk or power supply does.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! use sapwood_openraft::{KvConfig, KvMachine, Store};
//!
//! let db = sapwood::Database::open(dir.path().join("node.db"))?;
//! let store = Store::open(&db, dir.path().join("snapshots"))?;
//! let (log, machine) = store.group::<KvConfig, _>(1, KvMachine::new())?;
//! let reader = machine.reader();
//! // let raft = openraft::Raft::new(node_id, config, network, log, machine).await?;
//! // raft.client_write(KvCommand::put("fram", "1892")).await?;   durable on a majority when it returns
//! // raft.ensure_linearizable().await?;                           on the leader, before it reads
//! assert_eq!(reader.get("fram")?, None);
//! # Ok(()) }
//! ```
//!
//! | part | what it is |
//! |---|---|
//! | [`Store`] | what the groups of a process share: one database or two, and with them the syncs |
//! | [`LogStore`] | a group's log, vote and commits |
//! | [`StateMachine`], [`StateReader`] | a group's state, and reading it |
//! | [`Machine`] | what commands do: to be implemented by the user |
//! | [`KvMachine`] | a ready-made one: a map with versions, conditions and transactions |
//! | [`Batched`], [`BatchWriter`] | group commit: commands that wait at the same time share an entry, its syncs and its round trip |
//! | [`ReadIndex`] | linearizable reads that wait at the same time share a round trip |
//! | [`SnapshotFile`] | a state on its way to another node |
//!
//! All of it needs a tokio runtime: what waits for the device runs on its threads for blocking work.

mod batch;
mod error;
#[cfg(any(fuzzing, test))]
#[doc(hidden)]
pub mod fuzzing;
mod kv;
mod log;
mod machine;
mod read_index;
mod record;
mod snapshot_file;
mod state_machine;
mod store;

pub use batch::{BatchWriter, Batched, WriteError};
pub use error::{Error, Result};
pub use kv::{
    KvAnswer, KvBatchConfig, KvCommand, KvCondition, KvConfig, KvData, KvMachine, KvValue, KvWrite,
};
pub use log::{LogReader, LogStore};
pub use machine::{Apply, Machine};
pub use read_index::{ReadError, ReadIndex};
pub use snapshot_file::SnapshotFile;
pub use state_machine::{SnapshotBuilder, StateMachine, StateReader, View};
pub use store::Store;
