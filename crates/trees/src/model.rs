//! The cost models of the papers, and what is tuned by them.

pub(crate) mod device_times;
pub mod equations;
pub mod level_table;
pub(crate) mod measure;
pub(crate) mod residence;
pub mod tuning;
