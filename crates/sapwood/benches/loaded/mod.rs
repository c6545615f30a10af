//! What is measured of a database that others write to: [`gets`] by what they read, [`puts`] by how long they take.

mod ends;
pub mod gets;
mod latencies;
pub mod puts;
pub mod requests;
mod stalls;
