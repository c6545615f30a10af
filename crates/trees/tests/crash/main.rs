//! Power loss at every device operation, and at thousands of random points, for every tree whose contract promises anything.

mod as_btree;
mod bftl;
mod cb_tree;
mod fd_tree;
mod in_page_logging;
mod pio;
mod raw_suite;
mod suite;
