//! What is to be raced, with which stores, under which limits.

use crate::failure::{Failure, Result};
use arena::{Codec, Disk, Limits, Records, Start, Workload};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// See the module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub engines: Vec<String>,
    /// In the order in which they run.
    pub workloads: Vec<Workload>,
    /// Bytes that each store's process may have, page cache included.
    pub memory: u64,
    pub records: Records,
    /// What values are parts of, if they are text.
    #[serde(default)]
    pub text: Option<PathBuf>,
    #[serde(default)]
    pub codec: Codec,
    #[serde(default)]
    pub disk: Disk,
    pub limits: Limits,
    /// How long to wait at most for what a store still writes after a workload.
    pub settle: Duration,
    pub repeat: u32,
}

/// How much longer a load may take that is needed for what comes after it.
pub(crate) const LOAD_PATIENCE: u32 = 10;

/// What all workloads of transactions are called together.
const TRANSACTIONS: &str = "transactions";

/// Bytes of free space that a byte of records needs: copies for the fastest peers, garbage, logs.
const ROOM: u64 = 5;

impl Plan {
    /// The workloads of these names, in the order in which they run; all but those of transactions, if no name is given.
    pub fn workloads(names: &[String]) -> Result<Vec<Workload>> {
        for name in names {
            if Workload::find(name).is_none() && name != TRANSACTIONS {
                let all: Vec<_> = Workload::ALL.iter().map(|workload| workload.name()).collect();
                let all = all.join(", ");
                let what = format!(
                    "there is no workload {name:?}; there are {all}, and {TRANSACTIONS}, which is all of those"
                );
                return Err(Failure::Usage(what));
            }
        }
        let wanted = |workload: &Workload| {
            let is_of = |name: &String| {
                name == workload.name() || (name == TRANSACTIONS && workload.is_transactional())
            };
            if names.is_empty() { !workload.is_transactional() } else { names.iter().any(is_of) }
        };
        Ok(Workload::ALL.iter().copied().filter(wanted).collect())
    }

    /// The stores of these names among those that there are; all, if no name is given.
    pub fn engines(names: &[String], there: &[String]) -> Result<Vec<String>> {
        if let Some(name) = names.iter().find(|name| !there.contains(name)) {
            let what = format!(
                "the worker was not built with {name:?}; it has {} (features of crates/peers/Cargo.toml)",
                there.join(", ")
            );
            return Err(Failure::Usage(what));
        }
        let wanted = |name: &&String| names.is_empty() || names.contains(name);
        Ok(there.iter().filter(wanted).cloned().collect())
    }

    /// Bytes of all records.
    pub fn bytes(&self) -> u64 {
        self.records.count * self.records.len()
    }

    /// Free space that the race may need.
    pub fn room(&self) -> u64 {
        self.bytes() * ROOM
    }

    /// Repetitions and stores in their order: each store begins once before another begins twice.
    pub fn turns(&self) -> impl Iterator<Item = (u32, &str)> {
        let count = self.engines.len();
        let engine =
            move |repetition: u32, at: usize| self.engines[(at + repetition as usize) % count].as_str();
        (0..self.repeat)
            .flat_map(move |repetition| (0..count).map(move |at| (repetition, engine(repetition, at))))
    }

    /// Whether any workload wants a loaded database.
    pub fn loads(&self) -> bool {
        self.workloads.iter().any(|workload| workload.start() == Start::Loaded)
    }

    /// About how long it takes at most, if no store takes longer than it may. (Loads that are needed may take longer still.)
    pub fn longest(&self) -> Duration {
        let of_one = |workload: &Workload| {
            let run = if *workload == Workload::OpenKilled {
                2 * self.limits.steady
            } else if workload.is_fixed() {
                self.limits.cap
            } else {
                self.limits.steady + self.limits.warm_up
            };
            run + if workload.writes() { self.settle } else { Duration::ZERO }
        };
        let unasked = u32::from(self.loads() && !self.workloads.contains(&Workload::RandomLoad))
            + u32::from(self.loads() && !self.workloads.contains(&Workload::SortedLoad));
        let all: Duration = self.workloads.iter().map(of_one).sum::<Duration>() + unasked * self.limits.cap;
        all * self.repeat * self.engines.len() as u32
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use arena::Kind;

    pub fn plan(engines: &[&str], workloads: &[Workload]) -> Plan {
        Plan {
            engines: engines.iter().map(|name| (*name).to_owned()).collect(),
            workloads: workloads.to_vec(),
            memory: 64 << 20,
            records: Records {
                count: 1000,
                key_len: 16,
                value_len: 100,
                kind: Kind::Incompressible,
                text: None,
            },
            text: None,
            codec: Codec::Lz4,
            disk: Disk::Best,
            limits: Limits {
                cap: Duration::from_secs(100),
                steady: Duration::from_secs(10),
                warm_up: Duration::from_secs(5),
            },
            settle: Duration::from_secs(20),
            repeat: 3,
        }
    }

    #[test]
    fn names_are_chosen_in_the_order_of_the_race_and_unknown_ones_refused() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let chosen = Plan::workloads(&names(&["update", "get-1"])).unwrap();
        assert_eq!(chosen, [Workload::Get1, Workload::Update]);
        let all = Plan::workloads(&[]).unwrap();
        assert!(all.iter().all(|workload| !workload.is_transactional()));
        let transactions = Plan::workloads(&names(&["transactions"])).unwrap();
        assert!(transactions.iter().all(|workload| workload.is_transactional()));
        assert_eq!(all.len() + transactions.len(), Workload::ALL.len());
        assert!(Plan::workloads(&names(&["get"])).unwrap_err().to_string().contains("get-16"));
        let there = names(&["sapwood", "lmdb"]);
        assert_eq!(Plan::engines(&names(&["lmdb"]), &there).unwrap(), ["lmdb"]);
        assert_eq!(Plan::engines(&[], &there).unwrap(), there);
        assert!(
            Plan::engines(&names(&["rocksdb"]), &there).unwrap_err().to_string().contains("sapwood, lmdb")
        );
    }

    #[test]
    fn every_store_begins_in_turn() {
        let plan = plan(&["a", "b", "c"], &[]);
        let turns: Vec<_> =
            plan.turns().map(|(repetition, engine)| format!("{repetition}{engine}")).collect();
        assert_eq!(turns, ["0a", "0b", "0c", "1b", "1c", "1a", "2c", "2a", "2b"]);
    }

    #[test]
    fn the_longest_time_counts_loads_that_are_needed() {
        let alone = plan(&["a", "b"], &[Workload::DurablePut1]);
        assert_eq!(alone.longest(), Duration::from_secs(2 * 3 * (15 + 20)));
        let read = plan(&["a"], &[Workload::Get1]);
        assert_eq!(read.longest(), Duration::from_secs(3 * (15 + 200)));
    }
}
