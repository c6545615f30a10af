//! What listeners of `tracing` are told. Not with other tests in one process: a place that another thread meets for the first time is taken for
//! one that nobody listens to, for good, while one thread alone has a listener (tracing-core 0.1, `Rebuilder::JustOne`).

mod spans;
mod told;

/// One test at a time, for the same reason.
static ALONE: parking_lot::Mutex<()> = parking_lot::Mutex::new(());
