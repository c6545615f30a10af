//! The program as users meet it: the real binary, its exit codes, its messages, its files.

#![allow(clippy::unwrap_used, reason = "a failed test is what it is for")]

mod backups;
mod bad_input;
#[cfg(unix)]
mod damage;
mod encryption;
mod exit_codes;
#[cfg(target_os = "linux")]
mod full_disk;
#[cfg(unix)]
mod interruption;
mod large_values;
mod mdb_tools;
mod output;
mod round_trip;
mod running;
mod seeing;
