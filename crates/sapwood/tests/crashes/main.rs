//! What the store does when something goes wrong: power loss, kills, failing and lying disks, at any moment of all that it does.

mod changes;
mod closing;
mod damage;
mod encrypted;
mod failed_sync;
mod faults;
mod followers;
mod ingest;
mod keyspaces;
mod kill;
mod log_areas;
mod long_scans;
mod pending;
mod poisoned;
mod power_loss;
mod power_loss_beside;
mod power_loss_small_flushes;
mod read_ahead;
mod repair;
mod scenario;
mod second_faults;
mod shorter_data;
mod unbegun_log;
mod unsynced_log;
