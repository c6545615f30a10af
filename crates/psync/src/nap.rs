//! Short, precise sleeps of some tens of microseconds.

use std::time::Duration;

/// Sleeps for `time`. On Linux, timers may fire late to be batched, by default up to 50 microseconds (timer
/// slack). This function turns that off for the thread while it sleeps. Other systems sleep as precisely as
/// they can.
pub fn nap(time: Duration) {
    #[cfg(target_os = "linux")]
    let slack = rustix::thread::current_timer_slack().ok().and_then(std::num::NonZero::new);
    // If this is refused, the sleep is a little longer. A thread with real-time priority has no slack.
    #[cfg(target_os = "linux")]
    let _ = slack.map(|_| rustix::thread::set_current_timer_slack(std::num::NonZero::new(1)));
    std::thread::sleep(time);
    #[cfg(target_os = "linux")]
    let _ = slack.map(|slack| rustix::thread::set_current_timer_slack(Some(slack)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn it_is_no_shorter_and_leaves_the_thread_as_it_was() {
        #[cfg(target_os = "linux")]
        let before = rustix::thread::current_timer_slack().unwrap();
        let began = Instant::now();
        nap(Duration::from_micros(300));
        assert!(began.elapsed() >= Duration::from_micros(300));
        #[cfg(target_os = "linux")]
        assert_eq!(rustix::thread::current_timer_slack().unwrap(), before);
    }
}
