//! Measures a list of points of traffic, run by run: all points once, then all again, so that a disk that changes its
//! pace meanwhile does not favour the points that came first.

use crate::failure::Result;
use crate::laboratory::Laboratory;
use crate::quantity::Clock;
use crate::row::{Row, Rows};
use crate::stage::{Ground, Stage};
use crate::traffic::Traffic;
use crate::usage::Usage;

/// A point to measure.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    /// Its line.
    pub series: String,
    /// The value of what is varied.
    pub at: f64,
    pub traffic: Traffic,
}

impl Point {
    pub fn new(series: impl Into<String>, at: f64, traffic: Traffic) -> Self {
        Self { series: series.into(), at, traffic }
    }

    /// Measures it once. The row tells what it cost the machine if `costed`.
    pub fn measure<S: Stage>(
        &self,
        stage: &S,
        grounds: &[Ground],
        run: u32,
        seed: u64,
        costed: bool,
    ) -> Result<Row<S::Clock>> {
        let (before, tally) = (Usage::so_far(), stage.tally());
        let mut row = self.traffic.send(stage, grounds, seed)?.row(&self.series, self.at, run);
        if let Some(usage) = Usage::since(before).filter(|_| costed) {
            row.counts = usage.counts();
        }
        let counted = stage.tally().into_iter().zip(tally);
        row.counts.extend(counted.map(|((name, now), (_, then))| (name.to_owned(), (now - then) as f64)));
        Ok(row)
    }
}

/// See the module. `prepare` gives the stage and the ground of each run.
pub(crate) fn sweep<S: Stage>(
    laboratory: &Laboratory,
    points: &[Point],
    mut prepare: impl FnMut(u32) -> Result<(S, Ground)>,
) -> Result<Rows<S::Clock>> {
    laboratory.expect(points.len() * S::Clock::RUNS as usize);
    let mut rows = Vec::new();
    for run in 0..S::Clock::RUNS {
        let (stage, ground) = prepare(run)?;
        let grounds = [ground];
        for (place, point) in points.iter().enumerate() {
            laboratory.step(&format!("{} at {}", point.series, point.at))?;
            stage.rest();
            rows.push(point.measure(&stage, &grounds, run, Laboratory::seed(run, place), false)?);
        }
    }
    Ok(Rows(rows))
}
