//! The always-sequential store: nodes are written once, at the end of the data, and found through the mapping table.

pub(crate) mod mapping_table;
pub(crate) mod segment;
