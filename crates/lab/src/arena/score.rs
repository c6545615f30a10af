//! What the race came to: every run as it was, and from them medians and ratios.
//!
//! Invariants:
//! 1. a median is of the repetitions in which the store ran; if it ran in none, there is a reason and no figure;
//! 2. a ratio compares with the best peer of that workload, whoever that is.

use super::device;
use super::meter::{Cost, Traffic};
use super::plan::Plan;
use crate::failure::{Failure, Result};
use crate::record::Machine;
use arena::{Outcome, Workload};
use disk_profile::Profile;
use serde::{Deserialize, Serialize};

/// What the race is held for.
pub(crate) const OURS: &str = "sapwood";

/// All of it. Kept as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Score {
    pub format: u32,
    pub version: String,
    pub command: String,
    pub date: String,
    pub machine: Machine,
    /// What limited the memory.
    pub fence: String,
    /// Whether bytes are the device's count; the worker's otherwise.
    pub device_counts: bool,
    pub plan: Plan,
    pub profile: Option<Profile>,
    pub notes: Vec<String>,
    pub runs: Vec<Run>,
}

/// One store in one workload once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    pub engine: String,
    pub workload: Workload,
    pub repetition: u32,
    pub fate: Fate,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fate {
    Ran(Box<Measured>),
    /// Why there is nothing.
    Missing(String),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub outcome: Outcome,
    pub cost: Cost,
}

/// A figure of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Figure {
    Rate,
    P50,
    P99,
    P999,
    Stall,
    Written,
    Read,
    Space,
    Memory,
    Anonymous,
    Cpu,
    Conflicts,
}

impl Figure {
    pub const ALL: [Figure; 12] = [
        Figure::Rate,
        Figure::P50,
        Figure::P99,
        Figure::P999,
        Figure::Stall,
        Figure::Written,
        Figure::Read,
        Figure::Space,
        Figure::Memory,
        Figure::Anonymous,
        Figure::Cpu,
        Figure::Conflicts,
    ];

    /// What it is, with its unit.
    pub fn title(self) -> &'static str {
        match self {
            Figure::Rate => "operations a second",
            Figure::P50 => "median latency of a call, µs",
            Figure::P99 => "p99 latency of a call, µs",
            Figure::P999 => "p99.9 latency of a call, µs",
            Figure::Stall => "longest call, µs",
            Figure::Written => "bytes written for a byte that the user wrote",
            Figure::Read => "bytes read for a byte that the user read or wrote",
            Figure::Space => "space on disk for a byte of records",
            Figure::Memory => "peak memory with page cache, MiB",
            Figure::Anonymous => "peak memory without page cache, MiB",
            Figure::Cpu => "processor seconds for a million operations",
            Figure::Conflicts => "transactions that were run again, for one that was committed",
        }
    }

    /// Whether more of it is better.
    pub fn wants_more(self) -> bool {
        self == Figure::Rate
    }
}

/// A place in a table.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cell {
    /// The median, and the least and the most of the repetitions.
    pub figure: Option<[f64; 3]>,
    /// The share of its work that it did in its time, where that was not all.
    pub capped: Option<f64>,
    /// Why there is no figure.
    pub missing: Option<String>,
}

impl Score {
    pub const FORMAT: u32 = 1;

    /// As it is kept.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string_pretty(self).map_err(|error| Failure::Io(format!("write the score: {error}")))
    }

    fn runs(&self, engine: &str, workload: Workload) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(move |run| run.engine == engine && run.workload == workload)
    }

    fn traffic(&self, cost: &Cost) -> Option<Traffic> {
        if self.device_counts { cost.device.or(cost.process) } else { cost.process.or(cost.device) }
    }

    fn figure(&self, figure: Figure, workload: Workload, measured: &Measured) -> Option<f64> {
        let Measured { outcome, cost } = measured;
        let latency = &outcome.latency;
        let over = |bytes: u64, user: u64| (user > 0).then(|| bytes as f64 / user as f64);
        let mib = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64 / (1 << 20) as f64);
        let value = match figure {
            Figure::Rate => Some(outcome.rate()),
            Figure::P50 => Some(latency.p50_us),
            Figure::P99 => Some(latency.p99_us),
            Figure::P999 => Some(latency.p999_us),
            Figure::Stall => Some(latency.max_us),
            Figure::Written if workload.writes() => over(self.traffic(cost)?.written, outcome.bytes_written),
            Figure::Written => None,
            Figure::Read => over(self.traffic(cost)?.read, outcome.bytes_read + outcome.bytes_written),
            // Half of the records are gone where half was deleted; the others hold all, and what YCSB inserted.
            Figure::Space => {
                let share = match workload {
                    Workload::DeleteHalf | Workload::ScanDeleted => 0.5,
                    Workload::DurablePut1 | Workload::DurablePut16 | Workload::OpenKilled => return None,
                    _ if outcome.done < 1.0 && workload.start() == arena::Start::Empty => outcome.done,
                    _ => 1.0,
                };
                Some(cost.space as f64 / (self.plan.bytes() as f64 * share).max(1.0))
            }
            Figure::Memory => mib(cost.memory_peak),
            Figure::Anonymous => mib(cost.anonymous_peak),
            Figure::Cpu => {
                // The time is the worker's from the beginning of the warm-up to the end of the settling.
                let operations = (outcome.operations + outcome.warm_up_operations?).max(1) as f64;
                cost.cpu_s.map(|seconds| seconds / operations * 1e6)
            }
            Figure::Conflicts if workload.is_transactional() => {
                Some(outcome.conflicts as f64 / outcome.operations.max(1) as f64)
            }
            Figure::Conflicts => None,
        };
        value.filter(|value| value.is_finite())
    }

    /// The place of a store and a workload in the table of a figure.
    pub fn cell(&self, figure: Figure, engine: &str, workload: Workload) -> Cell {
        let mut values = Vec::new();
        let (mut done, mut missing) = (1.0f64, None);
        for run in self.runs(engine, workload) {
            match &run.fate {
                Fate::Ran(measured) => {
                    values.extend(self.figure(figure, workload, measured));
                    if workload.is_fixed() {
                        done = done.min(measured.outcome.done);
                    }
                }
                Fate::Missing(reason) => missing = Some(reason.clone()),
            }
        }
        let figure = spread(&mut values);
        let missing = if figure.is_some() { None } else { missing };
        Cell { figure, capped: (done < 1.0).then_some(done), missing }
    }

    /// The best peer of a workload, and our figure in its measure: above 1 we are ahead. Smaller figures count as better
    /// where they are.
    pub fn against(&self, figure: Figure, workload: Workload) -> Option<(String, f64)> {
        let median = |engine: &str| self.cell(figure, engine, workload).figure.map(|[median, ..]| median);
        let ours = median(OURS)?;
        let peers = self.plan.engines.iter().filter(|engine| *engine != OURS);
        let of_peers = peers.filter_map(|engine| Some((engine.clone(), median(engine)?)));
        let best = of_peers.reduce(
            |best, next| {
                if (next.1 > best.1) == figure.wants_more() { next } else { best }
            },
        )?;
        let ratio = if figure.wants_more() { ours / best.1 } else { best.1 / ours };
        ratio.is_finite().then_some((best.0, ratio))
    }

    /// What the disk alone could do.
    pub fn device_limit(&self, workload: Workload) -> Option<f64> {
        device::limit(workload, self.profile.as_ref()?, self.plan.records.len())
    }

    /// Every reason why something is missing, once.
    pub fn reasons(&self) -> Vec<String> {
        let mut reasons: Vec<String> = Vec::new();
        for run in &self.runs {
            if let Fate::Missing(reason) = &run.fate {
                let reason = format!("{}, {}: {reason}", run.engine, run.workload);
                if !reasons.contains(&reason) {
                    reasons.push(reason);
                }
            }
        }
        reasons
    }
}

/// Median, least and most.
fn spread(values: &mut [f64]) -> Option<[f64; 3]> {
    values.sort_by(f64::total_cmp);
    let (least, most) = (*values.first()?, *values.last()?);
    let middle = values.len() / 2;
    let median =
        if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 };
    Some([median, least, most])
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::arena::device::tests::profile;
    use crate::arena::plan::tests::plan;
    use arena::Latency;

    fn run(engine: &str, workload: Workload, repetition: u32, rate: f64) -> Run {
        let latency = Latency { p50_us: 1.0, p99_us: 1e6 / rate, p999_us: 20.0, max_us: 300.0 };
        let outcome = Outcome {
            operations: 1000,
            warm_up_operations: Some(0),
            calls: 1000,
            seconds: 1000.0 / rate,
            bytes_written: 116_000,
            bytes_read: 0,
            latency,
            done: if engine == "slow" { 0.25 } else { 1.0 },
            conflicts: 250,
        };
        let traffic = |times: u64| Some(Traffic { read: 0, written: 116_000 * times });
        let cost = Cost {
            device: traffic(9),
            process: traffic(3),
            cpu_s: Some(0.5),
            memory_peak: Some(64 << 20),
            space: 116_000 * 2,
            ..Cost::default()
        };
        let fate = Fate::Ran(Box::new(Measured { outcome, cost }));
        Run { engine: engine.into(), workload, repetition, fate }
    }

    pub fn score() -> Score {
        let (update, load) = (Workload::Update, Workload::RandomLoad);
        let mut runs = Vec::new();
        for (repetition, rate) in [(0, 300.0), (1, 100.0), (2, 200.0)] {
            runs.push(run("sapwood", update, repetition, rate));
            runs.push(run("fast", update, repetition, 2.0 * rate));
            runs.push(run("slow", update, repetition, rate / 10.0));
            runs.push(run("sapwood", load, repetition, rate));
            runs.push(run("slow", load, repetition, rate / 4.0));
            let fate = Fate::Missing("it <died>".into());
            runs.push(Run { engine: "fast".into(), workload: load, repetition, fate });
        }
        Score {
            format: Score::FORMAT,
            version: "0.0.0".into(),
            command: "sapwood-lab arena".into(),
            date: "2026-01-01T00:00:00Z".into(),
            machine: Machine::this(None),
            fence: "cgroup v1".into(),
            device_counts: true,
            plan: plan(&["sapwood", "fast", "slow"], &[load, update]),
            profile: Some(profile()),
            notes: vec!["a <note>".into()],
            runs,
        }
    }

    #[test]
    fn medians_are_of_all_repetitions() {
        let score = score();
        let cell = score.cell(Figure::Rate, "sapwood", Workload::Update);
        assert_eq!(cell.figure.unwrap().map(f64::round), [200.0, 100.0, 300.0]);
        assert_eq!(spread(&mut [4.0, 1.0]), Some([2.5, 1.0, 4.0]));
        assert_eq!(spread(&mut []), None);
        let capped = score.cell(Figure::Rate, "slow", Workload::Update);
        assert_eq!(capped.capped, Some(0.25));
        let missing = score.cell(Figure::Rate, "fast", Workload::RandomLoad);
        assert_eq!((missing.figure, missing.missing.as_deref()), (None, Some("it <died>")));
        assert_eq!(score.reasons(), ["fast, random-load: it <died>"]);
    }

    /// The processor works for the warm-up as well. Scores of before do not tell how much was done then.
    #[test]
    fn processor_time_is_of_all_operations() {
        let mut score = score();
        let cpu = |score: &Score| score.cell(Figure::Cpu, "sapwood", Workload::Update).figure;
        for (warm_up, expected) in [(Some(0), Some([500.0; 3])), (Some(250), Some([400.0; 3])), (None, None)]
        {
            for run in &mut score.runs {
                if let Fate::Ran(measured) = &mut run.fate {
                    measured.outcome.warm_up_operations = warm_up;
                }
            }
            assert_eq!(cpu(&score), expected, "half a second for 1000 operations and {warm_up:?}");
        }
    }

    #[test]
    fn the_ratio_is_to_the_best_peer_that_ran() {
        let score = score();
        let against = |figure, workload| {
            let (peer, ratio) = score.against(figure, workload).unwrap();
            (peer, (ratio * 100.0).round() / 100.0)
        };
        assert_eq!(against(Figure::Rate, Workload::Update), ("fast".into(), 0.5));
        assert_eq!(against(Figure::Rate, Workload::RandomLoad), ("slow".into(), 4.0));
        assert_eq!(against(Figure::P99, Workload::Update), ("fast".into(), 0.5));
        assert_eq!(score.against(Figure::Rate, Workload::Get1), None);
    }

    #[test]
    fn amplification_is_by_the_count_that_can_be_believed() {
        let mut score = score();
        let written = |score: &Score| {
            score.cell(Figure::Written, "sapwood", Workload::Update).figure.map(|[median, ..]| median)
        };
        assert_eq!(written(&score), Some(9.0));
        score.device_counts = false;
        assert_eq!(written(&score), Some(3.0));
        let space = score.cell(Figure::Space, "sapwood", Workload::Update).figure.unwrap()[0];
        assert_eq!(space, 2.0);
        assert_eq!(score.cell(Figure::Memory, "sapwood", Workload::Update).figure.unwrap()[0], 64.0);
        assert_eq!(score.cell(Figure::Cpu, "sapwood", Workload::Update).figure.unwrap()[0], 500.0);
    }

    #[test]
    fn conflicts_are_those_of_transactions() {
        let mut score = score();
        score.runs.push(run("sapwood", Workload::Tx4, 0, 100.0));
        assert_eq!(score.cell(Figure::Conflicts, "sapwood", Workload::Tx4).figure.unwrap()[0], 0.25);
        assert_eq!(score.cell(Figure::Conflicts, "sapwood", Workload::Update).figure, None);
    }

    #[test]
    fn a_score_reads_back_as_it_was_written() {
        let score = score();
        let back: Score = serde_json::from_str(&score.to_json().unwrap()).unwrap();
        assert_eq!(back, score);
    }
}
