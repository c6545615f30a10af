//! Typed keyspaces: the order and the bytes of keys, values, schemas, all calls beside a model, migrations and crashes of these.

#![allow(clippy::unwrap_used, reason = "a failed test is what it is for")]

mod calls;
mod golden;
mod keys;
mod migration;
mod model;
mod schemas;
mod types;
