//! Every tree does what a `BTreeMap` does, on every device, with nodes and buffers so small that all that is rare happens.

mod as_btree;
mod b_epsilon_tree;
mod batched_btree;
mod bftl;
mod blink;
mod btree;
mod cb_flash;
mod cb_tree;
mod failures;
mod fd_tree;
mod in_page_logging;
mod la_tree;
mod lsb_tree;
mod lsm_tree;
mod mu_tree;
mod pio;
mod raw_flash;
mod record_as_tree;
mod suite;
mod unit_buffers;
mod wandering;
