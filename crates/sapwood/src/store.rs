//! The always-sequential store: nodes are written once, at the end of the data, and found through the mapping table.
//! What a database consists of at some moment is a [`version::Version`]; the manifest makes versions follow each other
//! atomically.

pub(crate) mod attempt;
pub(crate) mod border;
pub(crate) mod bucket;
pub(crate) mod cache;
pub(crate) mod checkpoint;
pub(crate) mod current;
pub(crate) mod data_file;
pub(crate) mod edit;
pub(crate) mod frames;
pub(crate) mod garbage_collection;
pub(crate) mod ghosts;
pub(crate) mod lasting;
pub(crate) mod log_area;
pub(crate) mod manifest;
pub(crate) mod maplet;
pub(crate) mod mapping_table;
pub(crate) mod node_reader;
pub(crate) mod pager;
pub(crate) mod record_cache;
pub(crate) mod rent;
pub(crate) mod scan_lengths;
pub(crate) mod segment;
pub(crate) mod stage;
pub(crate) mod striped;
pub(crate) mod unused;
pub(crate) mod version;
pub(crate) mod write_behind;
pub(crate) mod writer;
