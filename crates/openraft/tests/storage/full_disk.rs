//! A disk that is full: the call fails and says so, nothing acknowledged is lost, and with space it goes on.

use crate::ground::{self, command};
use openraft::RaftLogReader;
use openraft::storage::{RaftLogStorage, RaftLogStorageExt, RaftStateMachine};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::psync::Simulated;
use sapwood_openraft::KvCommand;

#[test]
fn a_full_disk_fails_the_append_and_leaves_no_hole() {
    let (volume, directory) = (Simulated::new(1).with_capacity(6 << 20), ground::directory());
    let (mut log, mut machine) = ground::open(&volume, &directory).expect("opens");
    // What is random is not compressed.
    let value = |index| StdRng::seed_from_u64(index).random_iter().take(20_000).collect::<Vec<u8>>();
    let entry = |index: u64| command(1, index, KvCommand::put(format!("key {index}"), value(index)));
    let (mut appended, mut applied) = (0, 0);
    let error = ground::run(async {
        while appended < 1000 {
            if let Err(error) = log.blocking_append([entry(appended + 1)]).await {
                return error;
            }
            appended += 1;
            // Half as often, so that the log is what is refused.
            if appended % 2 == 0 && machine.apply([entry(applied + 1)]).await.is_ok() {
                applied += 1;
            }
        }
        panic!("{appended} entries were appended");
    });
    assert!(error.to_string().contains("full") || error.to_string().contains("space"), "{error}");
    assert!(appended > 20, "{appended} entries");
    drop((log, machine));

    // openraft has stopped the node. It is started again, with more space.
    volume.set_capacity(64 << 20);
    let (mut log, mut machine) = ground::open(&volume, &directory).expect("opens");
    ground::run(async {
        let found = log.try_get_log_entries(..).await.expect("reads");
        let indexes: Vec<_> = found.iter().map(|entry| entry.log_id.index).collect();
        assert!(indexes.iter().copied().eq(1..=indexes.len() as u64), "{indexes:?}");
        assert!(indexes.len() as u64 >= appended, "{} of {appended}", indexes.len());
        let state = machine.applied_state().await.expect("reads").0.map_or(0, |last| last.index);
        assert!(state >= applied && state <= indexes.len() as u64, "{state} of {applied}");
        let next = indexes.len() as u64 + 1;
        log.blocking_append([entry(next)]).await.expect("there is space");
        machine.apply((state + 1..=next).map(entry)).await.expect("applies");
        assert_eq!(log.get_log_state().await.expect("reads").last_log_id, Some(ground::id(1, next)));
    });
}
