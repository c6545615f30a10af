//! What predicates ask of several figures at once.
//!
//! Invariant: where a statistic is not defined it is not a number, with which every comparison fails.

/// Ranks from 1, equal values sharing the middle of theirs.
fn ranks(values: &[f64]) -> Vec<f64> {
    let rank = |value: &f64| {
        let below = values.iter().filter(|other| *other < value).count() as f64;
        let equal = values.iter().filter(|other| *other == value).count() as f64;
        below + (equal + 1.0) / 2.0
    };
    values.iter().map(rank).collect()
}

fn correlation(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let both: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    let spread = |of: fn(&(f64, f64)) -> f64, mean: f64| {
        points.iter().map(|point| (of(point) - mean).powi(2)).sum::<f64>()
    };
    both / (spread(|point| point.0, x) * spread(|point| point.1, y)).sqrt()
}

/// Spearman's rank correlation, from -1 to 1.
pub(crate) fn spearman(points: &[(f64, f64)]) -> f64 {
    let of = |which: fn(&(f64, f64)) -> f64| ranks(&points.iter().map(which).collect::<Vec<_>>());
    let pairs: Vec<_> = of(|point| point.0).into_iter().zip(of(|point| point.1)).collect();
    correlation(&pairs)
}

/// How much of y's variance a straight line over x explains, from 0 to 1.
pub(crate) fn r_squared(points: &[(f64, f64)]) -> f64 {
    correlation(points).powi(2)
}

/// The middle one, or midway between the middle two.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => sorted[odd / 2],
        even => (sorted[even / 2 - 1] + sorted[even / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_correlate_whatever_the_curve() {
        let curve: Vec<_> = (1..10).map(|x| (f64::from(x), f64::from(-x * x * x))).collect();
        assert!((spearman(&curve) + 1.0).abs() < 1e-12);
        // Ties share a rank: by hand, 1.5, 1.5, 3, 4 against 1, 2, 3, 4.
        let ties = [(1.0, 0.0), (2.0, 0.0), (3.0, 5.0), (4.0, 9.0)];
        assert!((spearman(&ties) - 4.5 / (4.5f64 * 5.0).sqrt()).abs() < 1e-12);
        assert!(spearman(&[(1.0, 1.0), (2.0, 1.0)]).is_nan());
    }

    #[test]
    fn a_line_is_explained_and_a_bow_is_not() {
        let line: Vec<_> = (0..6).map(|x| (f64::from(x), 3.0 - 2.0 * f64::from(x))).collect();
        assert!((r_squared(&line) - 1.0).abs() < 1e-12);
        let bow: Vec<_> = (-3..=3).map(|x| (f64::from(x), f64::from(x * x))).collect();
        assert!(r_squared(&bow) < 1e-12);
    }

    #[test]
    fn the_middle() {
        assert_eq!((median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0, 2.0, 9.0])), (2.0, 3.0));
        assert!(median(&[]).is_nan());
    }
}
