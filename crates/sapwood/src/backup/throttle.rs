//! The rate of a backup.

use std::time::{Duration, Instant};

/// Time that may be caught up after something else was slow: a tenth of a second is no burst to those who read.
const SLACK: Duration = Duration::from_millis(100);
/// Most parts of a second for which one call sleeps, if the pieces are as long as [`Throttle::piece`] says.
const SLEEPS: u64 = 8;

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

    /// Sleeps until the next byte may pass.
    pub fn pass(&mut self, bytes: u64) {
        self.note(bytes);
        if self.rate.is_some() {
            std::thread::sleep(self.next.saturating_duration_since(Instant::now()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_takes_its_time_and_little_is_caught_up() {
        let mut throttle = Throttle::new(Some(1000));
        let began = throttle.next;
        throttle.note_at(500, began);
        assert_eq!(throttle.next, began + Duration::from_millis(500));
        let late = began + Duration::from_secs(60);
        throttle.note_at(500, late);
        assert_eq!(throttle.next, late - SLACK + Duration::from_millis(500));
        assert_eq!(Throttle::new(Some(80_000)).piece(1 << 20, 4096), 10_000);
        assert_eq!(Throttle::new(Some(8)).piece(1 << 20, 4096), 4096);
        assert_eq!(Throttle::new(None).piece(1 << 20, 4096), 1 << 20);
    }
}
