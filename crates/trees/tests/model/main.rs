//! Every tree does what a `BTreeMap` does, on every device, with nodes and buffers so small that all that is rare happens.

mod as_btree;
mod bftl;
mod blink;
mod btree;
mod cb_tree;
mod fd_tree;
mod in_page_logging;
mod la_tree;
mod pio;
mod suite;
mod unit_buffers;
