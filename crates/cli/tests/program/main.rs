//! The program as users meet it: the real binary, its exit codes, its messages, its files.

mod bad_input;
mod damage;
mod exit_codes;
mod interruption;
mod mdb_tools;
mod output;
mod round_trip;
mod running;
