//! Tests of the storage as openraft uses it: its own suite, power cuts, published bugs of others, snapshots, the ready-made machine.

mod batches;
mod bugs;
mod cluster;
mod conflicts;
mod full_disk;
mod ground;
mod groups;
#[path = "../../examples/replicated-kv/tests/cluster/history.rs"]
mod history;
mod installations;
mod journal;
mod kv;
mod limits;
mod merges;
mod power_cuts;
mod receiving;
mod restart;
mod snapshots;
mod suite;
