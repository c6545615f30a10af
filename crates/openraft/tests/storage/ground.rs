//! What the tests stand on: databases on simulated volumes and in directories, entries, a runtime.

use openraft::{CommittedLeaderId, Entry, EntryPayload, LogId, Membership, StorageError};
use sapwood::psync::{Simulated, Volume};
use sapwood::{Builder, Database};
use sapwood_openraft::{KvCommand, KvConfig, KvMachine, LogStore, StateMachine, Store};
use std::future::Future;
use std::sync::Arc;
use tempfile::TempDir;

pub type Log = LogStore<KvConfig>;
pub type Machine = StateMachine<KvConfig, KvMachine>;
pub type Result<T> = std::result::Result<T, StorageError<u64>>;

/// Small, so that queues are flushed within the tests.
pub fn options() -> Builder {
    Database::builder().memory(4 << 20).leaf_len(512).segment_span(1 << 20).busy_wait(false)
}

pub fn open_on(volume: &Simulated, threads: usize) -> sapwood::Result<Database> {
    let volume: Arc<dyn Volume> = Arc::new(volume.clone());
    options().background_threads(threads).open_on(volume)
}

/// A store on a simulated volume, whose snapshots are in a directory of their own.
pub fn open(volume: &Simulated, directory: &TempDir) -> sapwood_openraft::Result<(Log, Machine)> {
    let db = open_on(volume, 2)?;
    Store::open(&db, directory.path())?.group(7, KvMachine::new())
}

/// Time stands still but for sleeps that nothing else waits for, so sleeps take none.
pub fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime").block_on(future)
}

pub fn directory() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

pub fn id(term: u64, index: u64) -> LogId<u64> {
    LogId::new(CommittedLeaderId::new(term, 1), index)
}

pub fn blank(term: u64, index: u64) -> Entry<KvConfig> {
    Entry { log_id: id(term, index), payload: EntryPayload::Blank }
}

pub fn command(term: u64, index: u64, command: KvCommand) -> Entry<KvConfig> {
    Entry { log_id: id(term, index), payload: EntryPayload::Normal(command) }
}

pub fn membership(term: u64, index: u64, nodes: &[u64]) -> Entry<KvConfig> {
    let nodes = std::collections::BTreeSet::from_iter(nodes.iter().copied());
    let membership = Membership::new(vec![nodes], None);
    Entry { log_id: id(term, index), payload: EntryPayload::Membership(membership) }
}
