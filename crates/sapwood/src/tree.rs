//! B+-trees over the store: search, range search and batch update. A tree does not know where its nodes are; it knows
//! ids, and the version's mapping table knows the rest.

pub(crate) mod bupdate;
pub(crate) mod cleanse;
pub(crate) mod fan;
pub(crate) mod held;
pub(crate) mod incoming;
pub(crate) mod logged;
pub(crate) mod merge;
pub(crate) mod merge_layers;
pub(crate) mod overlay;
pub(crate) mod pack;
pub(crate) mod range;
pub(crate) mod route;
pub(crate) mod sample;
pub(crate) mod search;
pub(crate) mod sweep;
pub(crate) mod sweep_ahead;
pub(crate) mod view;
