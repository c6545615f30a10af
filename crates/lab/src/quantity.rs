//! Times and rates that know by which clock they were taken.
//!
//! Invariants:
//! 1. Times of the wall clock and times that a simulation made up never meet in one ratio: [`Lapse`] and [`Rate`] carry
//!    their clock as a type, and [`Quantity::over`] takes two of the same type only.
//! 2. A bare number leaves a quantity only to be shown or drawn.
//!
//! ```compile_fail,E0308
//! use lab::{Lapse, Quantity, Simulated, Wall};
//! let disk = Lapse::<Wall>::micros(50.0);
//! let model = Lapse::<Simulated>::micros(80.0);
//! disk.over(model); // does not compile: who would know what such a ratio means?
//! ```

use serde::{Deserialize, Serialize};
use std::marker::PhantomData;
use std::time::Duration;

/// A clock, as a type.
pub trait Clock: Copy + Default + std::fmt::Debug + PartialOrd + Send + Sync + 'static {
    /// What records and reports call it.
    const NAME: &'static str;
    /// How often each point is measured.
    const RUNS: u32;
    /// Whether it runs on while the host computes.
    const IS_WALL: bool;
}

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Wall;

/// The clock inside a simulated drive.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Simulated;

impl Clock for Wall {
    const NAME: &'static str = "wall";
    const RUNS: u32 = 5;
    const IS_WALL: bool = true;
}

impl Clock for Simulated {
    const NAME: &'static str = "simulated";
    const RUNS: u32 = 3;
    const IS_WALL: bool = false;
}

/// Something measured, of which medians and ratios can be taken.
pub trait Quantity: Copy {
    /// The bare number, in the unit that the type documents.
    fn number(self) -> f64;
    /// The quantity of a bare number.
    fn of(number: f64) -> Self;

    /// How many times `other` this is.
    fn over(self, other: Self) -> f64 {
        self.number() / other.number()
    }
}

impl Quantity for f64 {
    fn number(self) -> f64 {
        self
    }

    fn of(number: f64) -> Self {
        number
    }
}

/// A time that passed, in microseconds of the clock `C`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent, bound = "")]
pub struct Lapse<C>(f64, #[serde(skip)] PhantomData<C>);

/// So many a second of the clock `C`: requests, or bytes.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Rate<C>(f64, PhantomData<C>);

impl<C: Clock> Lapse<C> {
    /// So many microseconds.
    pub fn micros(micros: f64) -> Self {
        Self(micros, PhantomData)
    }

    /// This long for each of `count`.
    pub fn each(self, count: u64) -> Self {
        Self::micros(self.0 / count as f64)
    }

    /// How many of `count` there were a second.
    pub fn rate(self, count: u64) -> Rate<C> {
        Rate::of(count as f64 / self.0 * 1e6)
    }
}

impl<C: Clock> From<Duration> for Lapse<C> {
    fn from(duration: Duration) -> Self {
        Self::micros(duration.as_secs_f64() * 1e6)
    }
}

impl<C: Clock> Quantity for Lapse<C> {
    fn number(self) -> f64 {
        self.0
    }

    fn of(number: f64) -> Self {
        Self(number, PhantomData)
    }
}

impl<C: Clock> Quantity for Rate<C> {
    fn number(self) -> f64 {
        self.0
    }

    fn of(number: f64) -> Self {
        Self(number, PhantomData)
    }
}

/// Middle, least and most of several runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread<Q> {
    /// Half the runs gave less (of an even number: midway between the middle two).
    pub median: Q,
    /// The least.
    pub min: Q,
    /// The most.
    pub max: Q,
}

impl<Q: Quantity> Spread<Q> {
    /// Of the values of all runs; `None` if there are none, or if one is not a finite number.
    pub fn of(values: impl IntoIterator<Item = Q>) -> Option<Self> {
        let mut numbers: Vec<f64> = values.into_iter().map(Quantity::number).collect();
        if numbers.is_empty() || numbers.iter().any(|number| !number.is_finite()) {
            return None;
        }
        numbers.sort_by(f64::total_cmp);
        let middle = numbers.len() / 2;
        let median = match numbers.len() % 2 {
            1 => numbers[middle],
            _ => (numbers[middle - 1] + numbers[middle]) / 2.0,
        };
        Some(Self { median: Q::of(median), min: Q::of(numbers[0]), max: Q::of(numbers[numbers.len() - 1]) })
    }

    /// The same in bare numbers times `scale`, to be drawn.
    pub fn scaled(self, scale: f64) -> Spread<f64> {
        Spread {
            median: self.median.number() * scale,
            min: self.min.number() * scale,
            max: self.max.number() * scale,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_of_the_sorted() {
        let spread = Spread::of([5.0, 1.0, 9.0]).unwrap();
        assert_eq!(spread, Spread { median: 5.0, min: 1.0, max: 9.0 });
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 9.0]).unwrap().median, 3.0);
        assert_eq!(Spread::of([7.0]).unwrap(), Spread { median: 7.0, min: 7.0, max: 7.0 });
    }

    #[test]
    fn nothing_and_nonsense_have_no_median() {
        assert_eq!(Spread::<f64>::of([]), None);
        assert_eq!(Spread::of([1.0, f64::NAN]), None);
        assert_eq!(Spread::of([1.0, f64::INFINITY]), None);
    }

    #[test]
    fn lapses_and_rates_convert() {
        let lapse = Lapse::<Wall>::from(Duration::from_millis(2));
        assert_eq!(lapse.number(), 2000.0);
        assert_eq!(lapse.each(4).number(), 500.0);
        assert_eq!(lapse.rate(10).number(), 5000.0);
        assert_eq!(lapse.over(Lapse::micros(500.0)), 4.0);
        assert_eq!(serde_json::to_string(&lapse).unwrap(), "2000.0");
    }
}
