//! Power loss at every device operation, and at thousands of random points, for every tree whose contract promises anything.

mod as_btree;
mod b_epsilon_tree;
mod bftl;
mod cb_flash;
mod cb_tree;
mod fd_tree;
mod in_page_logging;
mod lsb_tree;
mod lsm_tree;
mod mu_tree;
mod pio;
mod pio_transactions;
mod raw_suite;
mod suite;
mod tiny_flash;
mod wandering;
