//! A program that changes its working directory, which all threads of its process share: so this test is alone in one.

use openraft::RaftSnapshotBuilder;
use openraft::storage::RaftStateMachine;
use sapwood::Database;
use sapwood_openraft::{KvConfig, KvMachine, Store};

/// Snapshots were written, listed and removed by the relative path, elsewhere.
#[tokio::test]
async fn snapshots_stay_in_their_directory() {
    let dir = tempfile::tempdir().expect("a directory");
    let elsewhere = dir.path().join("elsewhere");
    std::fs::create_dir_all(elsewhere.join("snapshots")).expect("creates");
    let foreign = elsewhere.join("snapshots/0000000000000007-1-1.snapshot");
    std::fs::write(&foreign, "of another").expect("writes");
    std::env::set_current_dir(dir.path()).expect("goes there");
    let db = Database::builder().memory(16 << 20).open("node.db").expect("opens");
    let store = Store::open(&db, "snapshots").expect("a store");
    std::env::set_current_dir(&elsewhere).expect("goes there");
    let (_log, mut machine) = store.group::<KvConfig, _>(7, KvMachine::new()).expect("a group");
    machine.get_snapshot_builder().await.build_snapshot().await.expect("builds");
    assert!(machine.get_current_snapshot().await.expect("reads").is_some());
    let count = |name: &str| {
        let files = std::fs::read_dir(dir.path().join(name)).expect("lists");
        let names = files.map(|file| file.expect("an entry").file_name());
        names.filter(|name| name.to_string_lossy().ends_with(".snapshot")).count()
    };
    assert_eq!(count("snapshots"), 1);
    assert_eq!(std::fs::read_to_string(&foreign).expect("it is there"), "of another");
}
