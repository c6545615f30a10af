//! Every tree does what a `BTreeMap` does, on every device, with nodes and buffers so small that all that is rare happens.

mod as_btree;
mod batched_btree;
mod bftl;
mod blink;
mod btree;
mod cb_tree;
mod fd_tree;
mod la_tree;
mod pio;
mod record_as_tree;
mod suite;
mod unit_buffers;
