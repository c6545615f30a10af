//! Power loss at every device operation, and at thousands of random points, for every tree whose contract promises anything.

mod as_btree;
mod bftl;
mod cb_tree;
mod fd_tree;
mod pio;
#[allow(dead_code, reason = "until the first tree on raw flash is there")]
mod raw_suite;
mod suite;
