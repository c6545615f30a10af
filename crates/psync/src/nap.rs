//! A nap: a sleep of some tens of microseconds that is hardly longer than it is to be.

use std::time::Duration;

/// Sleeps for `time`. Linux may let a timer wait for others, for 50 microseconds if nobody has said anything else; here it is told not to, for as long as
/// the thread sleeps. Other systems sleep as exactly as they do.
pub fn nap(time: Duration) {
    #[cfg(target_os = "linux")]
    let slack = rustix::thread::current_timer_slack().ok().and_then(std::num::NonZero::new);
    // A refusal makes it a little longer. A thread with real-time priority has no slack.
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
