//! openraft's own suite of tests, on directories and on a simulated volume, with one database and with two.

use crate::ground::{self, Log, Machine};
use openraft::StorageError;
use openraft::testing::{StoreBuilder, Suite};
use sapwood::psync::Simulated;
use sapwood::{Database, Error};
use sapwood_openraft::{KvConfig, KvMachine, Store};
use std::path::Path;
use tempfile::TempDir;

/// How stores are built for the suite.
enum Ground {
    Directories,
    TwoDatabases,
    /// With so many background threads: with none, whoever waits syncs.
    Simulated(usize),
    /// All stores are groups of one database.
    Groups(Store, std::sync::atomic::AtomicU64),
}

impl StoreBuilder<KvConfig, Log, Machine, Option<TempDir>> for Ground {
    async fn build(&self) -> Result<(Option<TempDir>, Log, Machine), StorageError<u64>> {
        let dir = ground::directory();
        let database = |name: &str| Database::open(dir.path().join(name)).expect("opens");
        let snapshots = dir.path().join("snapshots");
        let store = match self {
            Self::Directories => Store::open(&database("node.db"), snapshots),
            Self::TwoDatabases => Store::open_two(&database("logs.db"), &database("states.db"), snapshots),
            Self::Simulated(threads) => {
                let db: Result<_, Error> = ground::open_on(&Simulated::new(1), *threads);
                Store::open(&db.expect("opens"), snapshots)
            }
            Self::Groups(store, next) => {
                let number = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let (log, machine) = store.group(number, KvMachine::new()).expect("a group");
                return Ok((None, log, machine));
            }
        };
        let (log, machine) = store.expect("a store").group(7, KvMachine::new()).expect("a group");
        Ok((Some(dir), log, machine))
    }
}

fn passes(ground: Ground) {
    Suite::test_all(ground).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn the_suite_passes_in_directories() {
    passes(Ground::Directories);
}

#[test]
fn the_suite_passes_with_two_databases() {
    passes(Ground::TwoDatabases);
}

#[test]
fn the_suite_passes_on_a_simulated_volume() {
    passes(Ground::Simulated(2));
}

#[test]
fn the_suite_passes_without_background_threads() {
    passes(Ground::Simulated(0));
}

#[test]
fn the_suite_passes_in_many_groups_of_one_database() {
    let dir = ground::directory();
    let open = |path: &Path| Database::open(path).expect("opens");
    let store = Store::open(&open(&dir.path().join("node.db")), dir.path().join("snapshots"));
    passes(Ground::Groups(store.expect("a store"), 0.into()));
}
