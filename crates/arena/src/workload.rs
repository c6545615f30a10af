//! What stores are asked to do, and in which order. What each is, people read in docs/benchmarks.md.

use crate::engine::Level;
use serde::{Deserialize, Serialize};

/// What a database holds when a workload begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Nothing.
    Empty,
    /// All records; and whatever the workloads before it did.
    Loaded,
}

macro_rules! workloads {
    ($($name:ident $text:literal $title:literal $unit:literal;)*) => {
        /// A workload.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Workload {
            $(#[doc = $title] #[serde(rename = $text)] $name,)*
        }

        impl Workload {
            /// All, in the order in which they run.
            pub const ALL: &[Workload] = &[$(Workload::$name,)*];

            /// What it is called on the command line and in files.
            pub fn name(self) -> &'static str {
                match self { $(Workload::$name => $text,)* }
            }

            /// What it is called in tables.
            pub fn title(self) -> &'static str {
                match self { $(Workload::$name => $title,)* }
            }

            /// What its operations are.
            pub fn unit(self) -> &'static str {
                match self { $(Workload::$name => $unit,)* }
            }
        }
    };
}

workloads! {
    RandomLoad "random-load" "random load, batches of 1000" "records";
    SortedLoad "sorted-load" "sorted load, batches of 1000" "records";
    DurablePut1 "durable-put-1" "durable put, 1 writer" "puts";
    DurablePut16 "durable-put-16" "durable put, 16 writers" "puts";
    Get1 "get-1" "get, uniform, 1 thread" "gets";
    Get4 "get-4" "get, uniform, 4 threads" "gets";
    Get16 "get-16" "get, uniform, 16 threads" "gets";
    MultiGet "multi-get" "multi_get of 64, 1 thread" "keys";
    Scan100 "scan-100" "scan of 100, 1 thread" "records";
    Scan10k "scan-10k" "scan of 10,000, 1 thread" "records";
    ScanAll "scan-all" "full scan" "records";
    YcsbA "ycsb-a" "YCSB A: half reads, half updates" "operations";
    YcsbB "ycsb-b" "YCSB B: 95 % reads, 5 % updates" "operations";
    YcsbC "ycsb-c" "YCSB C: reads" "operations";
    YcsbF "ycsb-f" "YCSB F: half reads, half read-modify-writes" "operations";
    YcsbD "ycsb-d" "YCSB D: 95 % reads of the latest, 5 % inserts" "operations";
    YcsbE "ycsb-e" "YCSB E: 95 % scans of 1 to 100, 5 % inserts" "operations";
    Update "update" "uniform update, 4 threads, twice the database" "updates";
    Tx1 "tx-1" "transactions of 4 uniform records, 1 thread" "transactions";
    Tx4 "tx-4" "transactions of 4 uniform records, 4 threads" "transactions";
    Tx16 "tx-16" "transactions of 4 uniform records, 16 threads" "transactions";
    TxZipf1 "tx-zipf-1" "transactions of 4 records by Zipf, 1 thread" "transactions";
    TxZipf4 "tx-zipf-4" "transactions of 4 records by Zipf, 4 threads" "transactions";
    TxZipf16 "tx-zipf-16" "transactions of 4 records by Zipf, 16 threads" "transactions";
    DurableTx1 "durable-tx-1" "durable transactions of 4 uniform records, 1 thread" "transactions";
    DurableTx4 "durable-tx-4" "durable transactions of 4 uniform records, 4 threads" "transactions";
    DurableTx16 "durable-tx-16" "durable transactions of 4 uniform records, 16 threads" "transactions";
    DurableTxZipf1 "durable-tx-zipf-1" "durable transactions of 4 records by Zipf, 1 thread" "transactions";
    DurableTxZipf4 "durable-tx-zipf-4" "durable transactions of 4 records by Zipf, 4 threads" "transactions";
    DurableTxZipf16 "durable-tx-zipf-16" "durable transactions of 4 records by Zipf, 16 threads" "transactions";
    OpenKilled "open-killed" "open after SIGKILL" "opens";
    DeleteHalf "delete-half" "delete half, batches of 1000" "records";
    ScanDeleted "scan-deleted" "full scan after deleting half" "records";
}

impl Workload {
    /// The one of that name.
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|workload| workload.name() == name)
    }

    /// What the database holds when it begins.
    pub fn start(self) -> Start {
        match self {
            Self::RandomLoad | Self::SortedLoad | Self::DurablePut1 | Self::DurablePut16 => Start::Empty,
            _ => Start::Loaded,
        }
    }

    /// How durable its writes are.
    pub fn level(self) -> Level {
        match self {
            Self::DurablePut1
            | Self::DurablePut16
            | Self::DurableTx1
            | Self::DurableTx4
            | Self::DurableTx16
            | Self::DurableTxZipf1
            | Self::DurableTxZipf4
            | Self::DurableTxZipf16 => Level::Durable,
            _ => Level::Buffered,
        }
    }

    /// Threads.
    pub fn threads(self) -> usize {
        match self {
            Self::DurablePut16
            | Self::Get16
            | Self::Tx16
            | Self::TxZipf16
            | Self::DurableTx16
            | Self::DurableTxZipf16 => 16,
            Self::Tx4
            | Self::TxZipf4
            | Self::DurableTx4
            | Self::DurableTxZipf4
            | Self::Get4
            | Self::YcsbA
            | Self::YcsbB
            | Self::YcsbC
            | Self::YcsbD
            | Self::YcsbE
            | Self::YcsbF
            | Self::Update
            | Self::OpenKilled => 4,
            _ => 1,
        }
    }

    /// Whether it is of transactions ([`crate::Session::modify`]).
    pub fn is_transactional(self) -> bool {
        self.unit() == "transactions"
    }

    /// Whether it is over when its work is done, and not when its time is.
    pub fn is_fixed(self) -> bool {
        matches!(
            self,
            Self::RandomLoad
                | Self::SortedLoad
                | Self::ScanAll
                | Self::Update
                | Self::DeleteHalf
                | Self::ScanDeleted
                | Self::OpenKilled
        )
    }

    /// Whether it writes.
    pub fn writes(self) -> bool {
        !matches!(
            self,
            Self::Get1
                | Self::Get4
                | Self::Get16
                | Self::MultiGet
                | Self::Scan100
                | Self::Scan10k
                | Self::ScanAll
                | Self::YcsbC
                | Self::ScanDeleted
                | Self::OpenKilled
        )
    }
}

impl std::fmt::Display for Workload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_find_their_workloads_and_are_what_files_say() {
        for workload in Workload::ALL {
            assert_eq!(Workload::find(workload.name()), Some(*workload));
            assert_eq!(serde_json::to_string(workload).unwrap(), format!("{:?}", workload.name()));
        }
        assert_eq!(Workload::find("ycsb-g"), None);
    }

    #[test]
    fn what_is_of_transactions_is_called_so() {
        for workload in Workload::ALL {
            let name = workload.name();
            assert_eq!(workload.is_transactional(), name.contains("tx"), "{name}");
            assert_eq!(workload.level() == Level::Durable, name.contains("durable"), "{name}");
        }
        assert_eq!(Workload::ALL.iter().filter(|workload| workload.is_transactional()).count(), 12);
    }

    #[test]
    fn what_needs_an_empty_database_comes_first_and_what_removes_comes_last() {
        let loaded = Workload::ALL.iter().position(|workload| workload.start() == Start::Loaded).unwrap();
        assert!(Workload::ALL[loaded..].iter().all(|workload| workload.start() == Start::Loaded));
        assert!(Workload::ALL.ends_with(&[Workload::DeleteHalf, Workload::ScanDeleted]));
    }
}
