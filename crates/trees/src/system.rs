//! The systems: each a composition of parts.

pub(crate) mod bftl;
pub(crate) mod btree;
pub(crate) mod fd_tree;
pub(crate) mod ibsf;
pub(crate) mod la_tree;
pub(crate) mod lu_tree;
