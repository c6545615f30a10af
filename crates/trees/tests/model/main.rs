//! Every tree does what a `BTreeMap` does, on every device, with nodes and buffers so small that all that is rare happens.

mod blink;
mod btree;
mod pio;
mod suite;
