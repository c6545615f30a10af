//! The program as users meet it: the real binary, its exit codes, its messages, its files.

#![allow(clippy::unwrap_used, reason = "a failed test is what it is for")]

mod messages;
mod running;
mod traces;
mod whole_way;
