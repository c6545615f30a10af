//! Repairs of databases that are damaged: what is not listed as lost is there, what is there once was, and the new database is sound.

mod cases;
mod random;
mod world;
