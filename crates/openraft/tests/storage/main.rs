//! Tests of the storage as openraft uses it: its own suite, power cuts, published bugs of others, snapshots, the ready-made machine.

mod batches;
mod bugs;
mod full_disk;
mod ground;
mod groups;
mod journal;
mod kv;
mod power_cuts;
mod restart;
mod snapshots;
mod suite;
