//! The stores by name.

#[cfg(feature = "bf-tree")]
mod bf_tree;
#[cfg(feature = "fjall")]
mod fjall;
#[cfg(feature = "lmdb")]
mod lmdb;
#[cfg(feature = "redb")]
mod redb;
#[cfg(feature = "rocksdb")]
mod rocksdb;
mod sapwood;
#[cfg(feature = "sqlite")]
mod sqlite;

use arena::{Engine, Failed, Result, Settings};

type Open = fn(&Settings) -> Result<Box<dyn Engine>>;

const STORES: &[(&str, Open)] = &[
    ("sapwood", sapwood::open),
    #[cfg(feature = "rocksdb")]
    ("rocksdb", rocksdb::open),
    #[cfg(feature = "lmdb")]
    ("lmdb", lmdb::open),
    #[cfg(feature = "redb")]
    ("redb", redb::open),
    #[cfg(feature = "fjall")]
    ("fjall", fjall::open),
    #[cfg(feature = "sqlite")]
    ("sqlite", sqlite::open),
    #[cfg(feature = "bf-tree")]
    ("bf-tree", bf_tree::open),
];

/// The names of the stores that this crate was built with.
pub fn names() -> Vec<&'static str> {
    STORES.iter().map(|(name, _)| *name).collect()
}

/// Opens the store `name`, and creates its directory and database if they are not there.
///
/// # Errors
/// A store that was not built in, and what the store says.
pub fn open(name: &str, settings: &Settings) -> Result<Box<dyn Engine>> {
    let Some((_, open)) = STORES.iter().find(|(known, _)| *known == name) else {
        let known = names().join(", ");
        return Err(Failed::new("open", format!("{name:?} was not built in; there are {known}")));
    };
    std::fs::create_dir_all(&settings.dir)
        .map_err(|error| Failed::new(format!("create {}", settings.dir.display()), error))?;
    open(settings)
}

/// Says what was being done when a store refused.
fn doing<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> Failed {
    move |error| Failed::new(what, error)
}
