//! The published cost equations (VLDB 2011, section 3.5, equations 3 to 15), as far as they can be rebuilt, for comparison with
//! [`super::level_table`].
//!
//! With F' the average fan-out, M pages of buffer, and a = log_F'(N / M) - 1 the levels that the buffer does not reach:
//! ```text
//! (6)  C_B+  = (⌊a⌋ + 1 - 1 / F'^(a mod 1)) Pr + Ri Pw
//! (8)  n(l)  = clamp(O E / F'^l, 1, bcnt)
//! (9)  C_PIO = Rs ((⌊a⌋ - 1 / F'^(a mod 1)) Pr + Pr(L)) + Ri (X + P'w / n(H - 1)),   a of M - O
//! (15) X     = Σ_{l = H - ⌊a⌋}^{H - 1} P'r / n(l) + (1 - 1 / F'^(a mod 1)) P'r / n(H - ⌊a⌋ - 1)
//! ```
//! They treat a leaf like an inner node in the fan-out, and fail when everything fits into the buffer (a < 0): then
//! `None`.

use crate::model::device_times::DeviceTimes;
use crate::model::level_table::{Load, UTILISATION};
use crate::page::leaf_segments::ENTRY;
use crate::page::node::Shape;

/// Equation (3): the utility of a page for its cost, log2 of its entries per microsecond of reading it.
pub fn utility_per_cost(times: &DeviceTimes, page_len: usize) -> f64 {
    (Shape::of_page(page_len).fanout as f64).log2() / times.page(page_len).read
}

/// F' for pages of a size.
fn fanout(page_len: usize) -> f64 {
    (Shape::of_page(page_len).fanout as f64 - 1.0) * UTILISATION
}

/// a, for so many pages of buffer.
fn unbuffered(records: f64, pages: f64, fanout: f64) -> Option<f64> {
    let a = (records / pages).ln() / fanout.ln() - 1.0;
    (a >= 0.0 && a.is_finite()).then_some(a)
}

/// Equation (6): microseconds for an operation on a B+-tree.
pub fn btree(times: &DeviceTimes, load: &Load, page_len: usize) -> Option<f64> {
    let (page, fanout) = (times.page(page_len), fanout(page_len));
    let a = unbuffered(load.records, load.memory / page_len as f64, fanout)?;
    Some((a.floor() + 1.0 - fanout.powf(-a.fract())) * page.read + load.updates * page.write)
}

/// Equation (9): microseconds for an operation on a PIO B-tree.
pub fn pio(
    times: &DeviceTimes,
    load: &Load,
    page_len: usize,
    segments: usize,
    queue_pages: f64,
) -> Option<f64> {
    let (page, fanout) = (times.page(page_len), fanout(page_len));
    let a = unbuffered(load.records, load.memory / page_len as f64 - queue_pages, fanout)?;
    let height = (load.records.ln() / fanout.ln()).ceil();
    let queued = queue_pages * (page_len / ENTRY) as f64;
    let sharing = |level: f64| (queued / fanout.powf(level)).clamp(1.0, load.bcnt);
    let partly = 1.0 - fanout.powf(-a.fract());
    let mut descent = partly * page.psync_read / sharing(height - a.floor() - 1.0);
    for up in 0..a.floor() as u32 {
        descent += page.psync_read / sharing(height - 1.0 - f64::from(up));
    }
    let search = (a.floor() + partly - 1.0) * page.read + times.page(page_len * segments).read;
    let update = descent + page.psync_write / sharing(height - 1.0);
    Some((1.0 - load.updates) * search + load.updates * update)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::device_times::tests::guess;
    use crate::model::level_table;

    #[test]
    fn equations_and_level_table_agree_within_a_third() {
        let load = Load::default();
        for (equation, table) in [
            (btree(&guess(), &load, 4096).unwrap(), level_table::btree(&guess(), &load, 4096).mixed),
            (
                pio(&guess(), &load, 4096, 1, 64.0).unwrap(),
                level_table::pio(&guess(), &load, 4096, 1, 64.0).mixed,
            ),
        ] {
            assert!((0.67..1.5).contains(&(equation / table)), "{equation} against {table}");
        }
        assert_eq!(btree(&guess(), &Load { records: 1e5, ..load }, 4096), None, "all in memory");
    }

    #[test]
    fn sublinear_latency_makes_larger_pages_worth_it() {
        let times = guess();
        assert!(utility_per_cost(&times, 8192) > utility_per_cost(&times, 4096));
    }
}
