//! What a thread has cost.

/// Nanoseconds that this thread has been on a processor. Linux only.
pub fn nanos() -> Option<u64> {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    told.split_whitespace().next()?.parse().ok()
}
