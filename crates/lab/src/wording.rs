//! How figures are written in checks and reports.

use crate::chart::number;
use crate::quantity::{Clock, Lapse, Quantity, Rate};

/// A time in microseconds.
pub(crate) fn micros<C: Clock>(lapse: Lapse<C>) -> String {
    format!("{} us", number(lapse.number()))
}

/// Bytes a second, in millions.
pub(crate) fn megabytes<C: Clock>(rate: Rate<C>) -> String {
    format!("{} MB/s", number(rate.number() / 1e6))
}

/// A ratio.
pub(crate) fn times(ratio: f64) -> String {
    format!("{ratio:.2} x")
}
