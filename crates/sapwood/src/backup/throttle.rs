//! The rate of a backup.

use crate::error::Result;
use std::time::{Duration, Instant};

/// Time that may be caught up after something else was slow: a tenth of a second is no burst to those who read.
const SLACK: Duration = Duration::from_millis(100);
/// Most parts of a second for which one call sleeps, if the pieces are as long as [`Throttle::piece`] says.
const SLEEPS: u64 = 8;
/// A sleep is no longer (250 ms): after what was only noted there may be hours to wait, and who wants to end it does not wait as long.
const SLEEP_MAX: Duration = Duration::from_millis(250);

/// Lets so many bytes pass in a second.
pub(super) struct Throttle {
    rate: Option<u64>,
    /// When the next byte may pass.
    next: Instant,
}

impl Throttle {
    /// `rate`: bytes a second.
    pub fn new(rate: Option<u64>) -> Self {
        Self { rate: rate.map(|rate| rate.max(1)), next: Instant::now() }
    }

    /// Most bytes that should pass at once, but at least `least`.
    pub fn piece(&self, most: usize, least: usize) -> usize {
        let piece = self.rate.map_or(most as u64, |rate| rate / SLEEPS);
        usize::try_from(piece).unwrap_or(most).clamp(least.min(most), most)
    }

    /// Notes that so many bytes have passed, for which the others will wait.
    pub fn note(&mut self, bytes: u64) {
        self.note_at(bytes, Instant::now());
    }

    fn note_at(&mut self, bytes: u64, now: Instant) {
        if let Some(rate) = self.rate {
            let earliest = now.checked_sub(SLACK).unwrap_or(now);
            let taken = Duration::from_secs_f64(bytes as f64 / rate as f64);
            self.next = self.next.max(earliest) + taken;
        }
    }

    /// Sleeps until the next byte may pass. Asks `goes_on` now and then; its error ends the sleep.
    pub fn pass(&mut self, bytes: u64, goes_on: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.note(bytes);
        while self.rate.is_some() {
            let left = self.next.saturating_duration_since(Instant::now());
            std::thread::sleep(left.min(SLEEP_MAX));
            if left <= SLEEP_MAX {
                break;
            }
            goes_on()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn what_passes_takes_its_time_and_little_is_caught_up() {
        let mut throttle = Throttle::new(Some(1000));
        let began = throttle.next;
        throttle.note_at(500, began);
        assert_eq!(throttle.next, began + Duration::from_millis(500));
        let late = began + Duration::from_secs(60);
        throttle.note_at(500, late);
        assert_eq!(throttle.next, late - SLACK + Duration::from_millis(500));
        let mut asked = 0;
        let stopped = throttle.pass(1_000_000, &mut || {
            asked += 1;
            if asked == 2 { Err(Error::Stopped) } else { Ok(()) }
        });
        assert!(matches!(stopped, Err(Error::Stopped)) && asked == 2);
        assert_eq!(Throttle::new(Some(80_000)).piece(1 << 20, 4096), 10_000);
        assert_eq!(Throttle::new(Some(8)).piece(1 << 20, 4096), 4096);
        assert_eq!(Throttle::new(None).piece(1 << 20, 4096), 1 << 20);
    }
}
