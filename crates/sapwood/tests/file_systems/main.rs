//! The store on real file systems that fail, run full and lose power. Needs root, loop devices and the programs that
//! make file systems: `make test-root` installs them. Where root cannot be had, each test says so and ends.

#![cfg(target_os = "linux")]

mod disk_full;
mod emptied;
mod failed_sync;
mod ground;
mod power_cut;
mod writer;
