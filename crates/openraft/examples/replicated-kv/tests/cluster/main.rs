//! Clusters of three nodes, each a process, whose histories must be linearizable whatever happens to them.
//!
//! `CLUSTER_ROUNDS=20` goes through all troubles so many times, in place of once, with `CLUSTER_CLIENTS=16` in place of eight clients; `PORCUPINE=1`
//! has porcupine (Go) judge the histories as well.

mod addresses;
mod backup;
mod client;
mod history;
mod lan;
mod limits;
mod members;
mod namespaces;
mod nodes;
mod secured;
mod snapshots;
mod troubles;
