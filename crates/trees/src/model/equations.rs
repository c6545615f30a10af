//! The published cost equations (VLDB 2011, sections 3.2.1 and 3.5 and the appendix, equations 3 to 15), as far as they can be rebuilt, for
//! comparison with [`super::level_table`].
//!
//! With F' the average fan-out, H levels, M pages of buffer, h levels that these hold, E queue entries a page, and Ri and Rs
//! the shares of updates and searches:
//! ```text
//! (4)  H     = log_F' N
//! (5)  C_B+  = H Pr + Ri Pw
//! (6)  C_B+  = (⌊a⌋ + 1 - 1 / F'^(a mod 1)) Pr + Ri Pw
//! (7)  C_PIO = Rs ((H - 1) Pr + Pr(L)) + Ri (Σ_{l = 0}^{H - 1} P'r / n(l) + P'w / n(H - 1))
//! (8)  n(l)  = clamp(O E / F'^l, 1, bcnt)
//! (9)  C_PIO = Rs ((⌊a⌋ - 1 / F'^(a mod 1)) Pr + Pr(L)) + Ri (X + P'w / n(H - 1)),   a of M - O
//! (10) L, O  = arg min (9): [`super::tuning::tune_as_published`]
//! (11) C_B+  = (Hnb + 1 - Cvrg) Pr + Ri Pw
//! (12) M     = (F'^h - 1) / (F' - 1), so h = log_F'((F' - 1) M + 1) ≅ log_F' M + 1
//! (13) a     = H - h ≅ log_F'(N / M) - 1, Hnb = ⌊a⌋
//! (14) Cvrg  = 1 / F'^(a mod 1)
//! (15) X     = Σ_{l = H - ⌊a⌋}^{H - 1} P'r / n(l) + (1 - 1 / F'^(a mod 1)) P'r / n(H - ⌊a⌋ - 1)
//! ```
//! They treat a leaf like an inner node in the fan-out, and those with a buffer fail when everything fits into it (a < 0):
//! then `None`. The levels that (7), (9) and (15) sum over are H rounded up.

use crate::model::device_times::{DeviceTimes, PageTimes};
use crate::model::level_table::{Cost, Load, UTILISATION};
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

/// Equation (4): H, a real number.
pub fn height(records: f64, fanout: f64) -> f64 {
    records.ln() / fanout.ln()
}

/// Equation (5): microseconds for an operation on a B+-tree without a buffer.
pub fn btree_unbuffered(times: &DeviceTimes, load: &Load, page_len: usize) -> f64 {
    let page = times.page(page_len);
    height(load.records, fanout(page_len)) * page.read + load.updates * page.write
}

/// Equation (7): microseconds for an operation on a PIO B-tree without a buffer.
pub fn pio_unbuffered(
    times: &DeviceTimes,
    load: &Load,
    page_len: usize,
    segments: usize,
    queue_pages: f64,
) -> f64 {
    let (page, fanout) = (times.page(page_len), fanout(page_len));
    let height = height(load.records, fanout).ceil();
    let sharing = |level: f64| shared(load, queue_pages, page_len, fanout, level);
    let search = (height - 1.0) * page.read + times.page(page_len * segments).read;
    let descent: f64 = (0..height as u32).map(|level| page.psync_read / sharing(f64::from(level))).sum();
    (1.0 - load.updates) * search + load.updates * (descent + page.psync_write / sharing(height - 1.0))
}

/// Equation (8): how many updates of a batch share a node of a level, 0 being the root's.
pub fn shared(load: &Load, queue_pages: f64, page_len: usize, fanout: f64, level: f64) -> f64 {
    let queued = queue_pages * (page_len / ENTRY) as f64;
    (queued / fanout.powf(level)).clamp(1.0, load.bcnt)
}

/// Equation (11): the cost of an operation by the levels that are not held, and the coverage of the last that is held in part.
pub fn btree_by_levels(page: PageTimes, updates: f64, unbuffered: f64, coverage: f64) -> f64 {
    (unbuffered + 1.0 - coverage) * page.read + updates * page.write
}

/// Equation (12): h, the levels that so many pages hold, a real number.
pub fn buffered_height(pages: f64, fanout: f64) -> f64 {
    ((fanout - 1.0) * pages + 1.0).ln() / fanout.ln()
}

/// Equation (13): a, the levels that so many pages of buffer do not hold. `None` if they hold all.
pub fn unbuffered_height(records: f64, pages: f64, fanout: f64) -> Option<f64> {
    let a = (records / pages).ln() / fanout.ln() - 1.0;
    (a >= 0.0 && a.is_finite()).then_some(a)
}

/// Equation (14): Cvrg, the share of the last level with buffered nodes that is buffered.
pub fn coverage(unbuffered_height: f64, fanout: f64) -> f64 {
    fanout.powf(-unbuffered_height.fract())
}

/// Equation (6): microseconds for an operation on a B+-tree.
pub fn btree(times: &DeviceTimes, load: &Load, page_len: usize) -> Option<f64> {
    let fanout = fanout(page_len);
    let a = unbuffered_height(load.records, load.memory / page_len as f64, fanout)?;
    Some(btree_by_levels(times.page(page_len), load.updates, a.floor(), coverage(a, fanout)))
}

/// Equation (9): microseconds for an operation on a PIO B-tree.
pub fn pio(
    times: &DeviceTimes,
    load: &Load,
    page_len: usize,
    segments: usize,
    queue_pages: f64,
) -> Option<f64> {
    pio_cost(times, load, page_len, segments, queue_pages).map(|cost| cost.mixed)
}

/// Equation (9) and its parts.
pub fn pio_cost(
    times: &DeviceTimes,
    load: &Load,
    page_len: usize,
    segments: usize,
    queue_pages: f64,
) -> Option<Cost> {
    let (page, fanout) = (times.page(page_len), fanout(page_len));
    let a = unbuffered_height(load.records, load.memory / page_len as f64 - queue_pages, fanout)?;
    let height = height(load.records, fanout).ceil();
    let sharing = |level: f64| shared(load, queue_pages, page_len, fanout, level);
    let partly = 1.0 - coverage(a, fanout);
    // (15)
    let mut descent = partly * page.psync_read / sharing(height - a.floor() - 1.0);
    for up in 0..a.floor() as u32 {
        descent += page.psync_read / sharing(height - 1.0 - f64::from(up));
    }
    let search = (a.floor() + partly - 1.0) * page.read + times.page(page_len * segments).read;
    Some(Cost::of(load, search, descent + page.psync_write / sharing(height - 1.0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::device_times::tests::guess;
    use crate::model::level_table;

    /// F = 11, U = 1: F' = 10, so that logarithms are decimal ones.
    const TEN: f64 = 10.0;

    fn close(one: f64, other: f64) {
        assert!((one - other).abs() <= 1e-9 * other.abs().max(1.0), "{one} and {other}");
    }

    #[test]
    fn heights_and_coverage_are_those_computed_by_hand() {
        // (4): log10 of a million; and (12): 1 + 10 + 100 pages hold three levels.
        close(height(1e6, TEN), 6.0);
        close(buffered_height(111.0, TEN), 3.0);
        close(buffered_height(1.0, TEN), 1.0);
        // (13): log10(1e6 / 100) - 1 = 3; log10(1e6 / 200) - 1 = 2.69897…
        close(unbuffered_height(1e6, 100.0, TEN).unwrap(), 3.0);
        close(unbuffered_height(1e6, 200.0, TEN).unwrap(), 2.698_970_004_336_019);
        assert_eq!(unbuffered_height(1e6, 1e6, TEN), None, "all in memory");
        // (14): 10^-0.69897 = 1/5; a whole number of levels is covered whole.
        close(coverage(2.698_970_004_336_019, TEN), 0.2);
        close(coverage(3.0, TEN), 1.0);
    }

    #[test]
    fn the_simplified_height_of_12_is_near_the_exact_one() {
        let (pages, fanout) = (4096.0, 140.0);
        let simplified = height(pages, fanout) + 1.0;
        assert!((buffered_height(pages, fanout) - simplified).abs() < 0.01);
    }

    #[test]
    fn sharing_is_that_computed_by_hand() {
        let load = Load { bcnt: 300.0, ..Load::default() };
        // (8): 2 pages of 4096 / 17 = 240 entries: 480 at the root are cut to bcnt, 48 and 4.8 below, and never less than 1.
        let shared = |level| shared(&load, 2.0, 4096, TEN, level);
        close(shared(0.0), 300.0);
        close(shared(1.0), 48.0);
        close(shared(2.0), 4.8);
        close(shared(3.0), 1.0);
    }

    /// A page of 4096 bytes has room for F = 254 children: F' = 253 x 0.69 = 174.57. With N = F'^3 a tree has three levels.
    fn three_levels() -> (f64, Load) {
        let fanout = 174.57;
        close(super::fanout(4096), fanout);
        (
            fanout,
            Load { records: 174.57_f64.powi(3) * (1.0 - 1e-12), updates: 0.25, bcnt: 1e6, ..Load::default() },
        )
    }

    #[test]
    fn costs_without_a_buffer_are_those_computed_by_hand() {
        let (fanout, load) = three_levels();
        // (5): 3 x 55 + 0.25 x 55 = 178.75.
        close(btree_unbuffered(&guess(), &load, 4096), 178.75);
        // (7), L = 2, 10 pages of queue: 2400 entries, which share 2400, 13.748 and 1 (0.0788, cut) of a node.
        // Search: 2 x 55 + 58 = 168. Update: 11.1 / 2400 + 11.1 / 13.748 + 11.1 / 1 + 11.1 / 1 = 23.012.
        let update = 11.1 / 2400.0 + 11.1 * fanout / 2400.0 + 11.1 + 11.1;
        close(pio_unbuffered(&guess(), &load, 4096, 2, 10.0), 0.75 * 168.0 + 0.25 * update);
        assert!((update - 23.012).abs() < 0.001, "{update}");
    }

    #[test]
    fn equation_11_with_13_and_14_is_equation_6() {
        let page = guess().page(4096);
        // Two levels not held, half of the third: 2.5 reads, and a quarter of a write.
        close(btree_by_levels(page, 0.25, 2.0, 0.5), 2.5 * 55.0 + 0.25 * 55.0);
        for memory in [1e6, 16e6, 64e6] {
            let load = Load { memory, ..Load::default() };
            let fanout = fanout(4096);
            let a = (load.records / (memory / 4096.0)).ln() / fanout.ln() - 1.0;
            let six =
                (a.floor() + 1.0 - 1.0 / fanout.powf(a.fract())) * page.read + load.updates * page.write;
            close(btree(&guess(), &load, 4096).unwrap(), six);
        }
    }

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
