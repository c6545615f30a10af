//! Every tree does what a `BTreeMap` does, on every device, with nodes and buffers so small that all that is rare happens.

mod bftl;
mod btree;
mod fd_tree;
mod la_tree;
mod suite;
mod unit_buffers;
