//! What the process has resident, and at most while it does something.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Bytes of memory that this process has of its own.
pub fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).expect("RssAnon");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") << 10
}

/// The most that `work` had resident at any time beyond `before`.
pub fn peak_while<T>(before: u64, work: impl FnOnce() -> T) -> (u64, T) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut peak = resident();
            while !done.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(2));
                peak = peak.max(resident());
            }
            peak.saturating_sub(before)
        });
        let answer = work();
        done.store(true, Relaxed);
        (watch.join().expect("it only looks"), answer)
    })
}
