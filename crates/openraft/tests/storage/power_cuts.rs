//! Power cuts at the operations of a simulated volume: while openraft's suite runs, and in a longer life with commands, truncations,
//! purges and snapshots.
//!
//! `RAFT_CUTS=3` cuts at every third change of the volume in the suite, in place of each; `RAFT_LIVES=1000` lives so many lives.

use crate::ground::{self, Result, id};
use crate::journal::{Contents, Journal, NotedLog, NotedMachine, Shared, exchange};
use openraft::storage::{RaftLogStorage, RaftLogStorageExt, RaftStateMachine};
use openraft::testing::{StoreBuilder, Suite};
use openraft::{RaftSnapshotBuilder, StorageError, Vote};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::psync::{Fault, Filter, Repeat, Simulated};
use sapwood_openraft::{KvCommand, KvConfig, KvMachine, KvWrite, Store};
use std::future::Future;
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |number| number.parse().expect("a number"))
}

/// A store whose power is cut.
struct Cut {
    volume: Simulated,
    directory: TempDir,
    journal: Shared,
    threads: usize,
}

impl Cut {
    fn at(seed: u64, change: u64, threads: usize) -> Self {
        let volume = Simulated::new(seed);
        volume.fail_nth(Filter::changes(), change, Fault::PowerOff, Repeat::Once);
        Self { volume, directory: ground::directory(), journal: Journal::new(), threads }
    }

    fn open(&self) -> sapwood_openraft::Result<(NotedLog, NotedMachine)> {
        let db = ground::open_on(&self.volume, self.threads)?;
        let (log, machine) = Store::open(&db, self.directory.path())?.group(7, KvMachine::new())?;
        let journal = || self.journal.clone();
        Ok((NotedLog { log, journal: journal() }, NotedMachine { machine, journal: journal() }))
    }

    /// Opens what is left after the power cut, and compares.
    fn check(&self, seed: u64, story: &str) {
        let volume = self.volume.power_loss(seed);
        let (mut log, mut machine) =
            ground::open(&volume, &self.directory).unwrap_or_else(|error| panic!("{story}: {error}"));
        let found = ground::run(Contents::read(&mut log, &mut machine));
        let found = found.unwrap_or_else(|error| panic!("{story}: {error}"));
        self.journal.lock().expect("not poisoned").check(&found, story);
        // It goes on.
        let next = found.entries.keys().next_back().copied().or(found.purged.map(|purged| purged.index));
        let entry = ground::blank(9, next.map_or(0, |last| last + 1));
        ground::run(log.blocking_append([entry])).unwrap_or_else(|error| panic!("{story}: {error}"));
    }
}

/// Stores that are cut off, for the suite. Of several that a test builds the power of the last one is cut.
struct Cuts {
    seed: u64,
    change: u64,
    threads: usize,
    built: Mutex<Vec<Cut>>,
}

impl StoreBuilder<KvConfig, NotedLog, NotedMachine, ()> for Cuts {
    async fn build(&self) -> std::result::Result<((), NotedLog, NotedMachine), StorageError<u64>> {
        let mut built = self.built.lock().expect("not poisoned");
        if let Some(before) = built.last() {
            before.volume.clear_faults();
        }
        built.push(Cut::at(self.seed, self.change, self.threads));
        let opened = built.last().expect("it was pushed").open();
        let (log, machine) = opened.map_err(|error| {
            let error = openraft::AnyError::new(&error);
            openraft::StorageIOError::write(error)
        })?;
        Ok(((), log, machine))
    }
}

type CutSuite = Suite<KvConfig, NotedLog, NotedMachine, Cuts, ()>;

/// Runs one test of the suite with a cut at every `step`th change, until it passes without one. Returns how many there were.
fn cut_everywhere<F>(name: &str, step: u64, test: impl Fn(Builder) -> F) -> u64
where
    F: Future<Output = Result<()>>,
{
    let (mut change, mut cuts) = (1 + name.len() as u64 % step, 0);
    loop {
        let story = format!("{name}, power off at change {change}");
        let threads = if change % 2 == 0 { 2 } else { 0 };
        let builder = Cuts { seed: change, change, threads, built: Mutex::default() };
        let builder = Arc::new(builder);
        let result = ground::run(test(Builder(builder.clone())));
        let built = builder.built.lock().expect("not poisoned");
        let cut = built.last().expect("a store was built");
        if !cut.volume.is_off() {
            result.unwrap_or_else(|error| panic!("{story}, which did not come: {error}"));
            return cuts;
        }
        cut.check(change, &story);
        cuts += 1;
        change += step;
    }
}

#[derive(Clone)]
struct Builder(Arc<Cuts>);

#[test]
fn what_the_suite_was_told_is_there_after_a_power_cut() {
    let step = variable("RAFT_CUTS", 1);
    let mut cuts = 0;
    macro_rules! tests {
        ($($name:ident)*) => {
            $(cuts += cut_everywhere(stringify!($name), step, async |builder: Builder| {
                let (_, log, machine) = builder.0.build().await?;
                CutSuite::$name(log, machine).await
            });)*
        };
    }
    tests! {
        last_membership_in_log_initial last_membership_in_log last_membership_in_log_multi_step
        get_membership_initial get_membership_from_log_and_empty_sm get_membership_from_empty_log_and_sm
        get_membership_from_log_le_sm_last_applied get_membership_from_log_gt_sm_last_applied_1
        get_membership_from_log_gt_sm_last_applied_2 get_initial_state_without_init
        get_initial_state_membership_from_log_and_sm get_initial_state_with_state get_initial_state_last_log_gt_sm
        get_initial_state_last_log_lt_sm get_initial_state_log_ids get_initial_state_re_apply_committed save_vote
        get_log_entries limited_get_log_entries try_get_log_entry initial_logs get_log_state get_log_id
        last_id_in_log last_applied_state purge_logs_upto_0 purge_logs_upto_5 purge_logs_upto_20
        delete_logs_since_11 delete_logs_since_0 append_to_log snapshot_meta apply_single apply_multiple
    }
    cuts += cut_everywhere("transfer_snapshot", step, async |builder: Builder| {
        CutSuite::transfer_snapshot(&*builder.0).await
    });
    println!("{cuts} power cuts");
    assert!(cuts * step > 700, "{cuts} power cuts");
}

/// One life: calls as openraft makes them, with commands, until the power is cut.
struct Life {
    rng: StdRng,
    log: NotedLog,
    machine: NotedMachine,
    journal: Shared,
    /// Another node, which sends snapshots.
    other: (NotedLog, NotedMachine, Shared),
    term: u64,
}

impl Life {
    fn contents(&self) -> Contents {
        let journal = self.journal.lock().expect("not poisoned");
        journal.contents.last().expect("there is one").clone()
    }

    fn command(&mut self) -> KvCommand {
        let value = vec![self.term as u8; self.rng.random_range(0..3000)];
        let mut key = || format!("key {}", self.rng.random_range(0..60)).into_bytes();
        let writes =
            [KvWrite::put(key(), value), KvWrite::delete(key()), KvWrite::delete_range(key(), Some(key()))];
        let mut writes = Vec::from(writes);
        writes.truncate(self.rng.random_range(1..4));
        KvCommand { conditions: Vec::new(), writes }
    }

    async fn step(&mut self) -> Result<()> {
        let now = self.contents();
        let last = now.entries.values().next_back().map(|(last, _)| *last).or(now.purged);
        let last = last.map_or(0, |last| last.index);
        let applied = now.applied.map_or(0, |applied| applied.index);
        match self.rng.random_range(0..20) {
            0..8 => {
                let count = self.rng.random_range(1..6);
                let entries: Vec<_> =
                    (1..=count).map(|next| ground::command(self.term, last + next, self.command())).collect();
                self.log.blocking_append(entries).await
            }
            8..13 if applied < last => {
                let until = self.rng.random_range(applied + 1..=last);
                self.log.save_committed(Some(now.entries[&until].0)).await?;
                let entries =
                    openraft::RaftLogReader::try_get_log_entries(&mut self.log, applied + 1..=until);
                let entries = entries.await?;
                self.machine.apply(entries).await.map(drop)
            }
            13 => {
                self.term += 1;
                self.log.save_vote(&Vote::new(self.term, self.rng.random_range(1..4))).await
            }
            14 if applied < last => {
                let from = self.rng.random_range(applied + 1..=last);
                self.log.truncate(now.entries[&from].0).await
            }
            15 | 16 if now.applied > now.purged => {
                // As openraft does: what a snapshot has is purged.
                let snapshot = self.machine.get_snapshot_builder().await.build_snapshot().await?;
                self.log.purge(snapshot.meta.last_log_id.expect("something was applied")).await
            }
            17 => {
                // The other node goes ahead, and its state comes as a snapshot.
                let ahead = last + self.rng.random_range(1..5);
                let entry = ground::command(self.term, ahead, self.command());
                self.other.1.apply([entry]).await?;
                let sent = self.other.1.get_snapshot_builder().await.build_snapshot().await?;
                exchange(&self.other.2, &self.journal);
                // openraft purges while it is installed, or has not begun to be.
                let is_purged_first = self.rng.random_bool(0.5);
                if is_purged_first {
                    self.log.purge(id(self.term, ahead)).await?;
                }
                self.machine.install_snapshot(&sent.meta, sent.snapshot).await?;
                if is_purged_first { Ok(()) } else { self.log.purge(id(self.term, ahead)).await }
            }
            _ => Ok(()),
        }
    }
}

fn live(seed: u64) -> bool {
    let mut rng = StdRng::seed_from_u64(seed);
    let change = rng.random_range(1..if seed.is_multiple_of(4) { 60 } else { 600 });
    let cut = Cut::at(seed, change, [0, 2][seed as usize % 2]);
    let other = Cut::at(seed, u64::MAX, 0);
    let (log, machine) = other.open().expect("opens");
    let story = format!("seed {seed}, power off at change {change}");
    if let Ok((log_of_this, machine_of_this)) = cut.open() {
        let mut life = Life {
            rng,
            log: log_of_this,
            machine: machine_of_this,
            journal: cut.journal.clone(),
            other: (log, machine, other.journal.clone()),
            term: 1,
        };
        ground::run(async {
            for _ in 0..250 {
                if let Err(error) = life.step().await {
                    assert!(cut.volume.is_off(), "{story}: {error}");
                    break;
                }
            }
        });
    }
    if cut.volume.is_off() {
        cut.check(seed, &story);
    }
    cut.volume.is_off()
}

#[test]
fn what_a_group_was_told_is_there_after_a_power_cut_in_any_life() {
    let lives = variable("RAFT_LIVES", 300);
    let cut = (0..lives).filter(|seed| live(*seed)).count() as u64;
    assert!(cut > lives / 2, "{cut} of {lives} were cut off");
}
