//! The systems: each a composition of parts.

pub(crate) mod as_btree;
pub(crate) mod b_epsilon_tree;
pub(crate) mod batched_btree;
pub(crate) mod bftl;
pub(crate) mod blink;
pub(crate) mod btree;
pub(crate) mod cb_flash;
pub(crate) mod cb_tree;
pub(crate) mod dipl;
pub(crate) mod fd_tree;
pub(crate) mod ibsf;
pub(crate) mod in_page_logging;
pub(crate) mod in_place_tree;
pub(crate) mod ipl;
pub(crate) mod la_tree;
pub(crate) mod lsb_tree;
pub(crate) mod lsm_tree;
pub(crate) mod lu_tree;
pub(crate) mod mu_tree;
pub(crate) mod pio;
pub(crate) mod record_as_tree;
pub(crate) mod unit_tree;
pub(crate) mod wandering;
