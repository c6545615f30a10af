//! What an experiment is, and the list of them. Each has a file of its own: its workload, its predicate, its picture, and
//! the causes that are known where it does not hold.
//!
//! Invariants:
//! 1. A predicate is a pure function of the recorded rows, and its labels of the record's device and scale, so that every
//!    verdict can be had again from the record.
//! 2. Where an experiment cannot be asked on a device, its card says why.

#[cfg(test)]
mod cause_figures;
mod change_like_insert;
mod e01_io_size;
mod e02_depth;
mod e03_mingling;
mod e04_shared_file;
mod e05_file_per_thread;
mod e06_context_switches;
mod e07_processes;
mod e08_sequential_random;
mod e09_openssd;
mod e10_mpsearch;
mod e11_buffer_size;
mod e12_range;
mod e13_opq_size;
mod e14_mixed;
mod e15_tpcc;
mod e16_concurrency;
mod e17_tuning;
mod e18_parts;
mod e19_valid_nodes;
mod e20_insert;
mod e21_write_share;
mod e22_search;
mod e23_update;
mod e24_delete;
mod e25_cache;
mod e26_file_size;
mod e27_mixed;
mod e28_start_and_recycling;
mod e29_creation;
mod e30_retrieval;
mod e31_live_pages;
mod e32_flash_operations;
mod e33_raw_times;
mod e34_cost_model;
mod e35_dipl_insertion;
mod e36_dipl_search;
mod e37_eager_cleansing;
mod e38_log_overflow;
mod e39_power_loss;
mod e40_channels;
mod e41_wear;
mod e42_tree_channels;
mod e43_many_keys;
mod e44_gathered;
mod e45_log_price;
mod e46_oltp_mix;
mod e47_as_space;
mod labels;
#[cfg(test)]
mod mutations;

use crate::chart::Chart;
use crate::failure::{Failure, Result};
use crate::judgement::Judgement;
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Simulated, Wall};
use crate::row::{Missing, Rows};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// What an experiment runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Device {
    /// A real file in --dir, direct I/O, timed by the wall clock
    Disk,
    /// The simulated SSD, timed by its own clock
    Ssdsim,
    /// Raw simulated flash without a translation layer
    Nand,
}

impl Device {
    /// All of them.
    pub const ALL: [Device; 3] = [Device::Disk, Device::Ssdsim, Device::Nand];
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Device::Disk => "disk",
            Device::Ssdsim => "ssdsim",
            Device::Nand => "nand",
        })
    }
}

/// How much of the published size is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// A moment: shows that it runs, while its figures mean little
    #[value(hide = true)]
    Trial,
    /// Minutes for all experiments together
    Ci,
    /// A tenth of the published size, or all of it where that is quick
    Std,
    /// The published size
    Full,
}

impl std::fmt::Display for Scale {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Scale::Trial => "trial",
            Scale::Ci => "ci",
            Scale::Std => "std",
            Scale::Full => "full",
        })
    }
}

impl Scale {
    /// How many requests make a point.
    pub(crate) fn requests(self, ci: u64, std: u64, full: u64) -> u64 {
        let picked = self.pick(ci, std, full);
        if self == Scale::Trial { (picked / 50).max(64) } else { picked }
    }

    /// One of three, by scale.
    pub(crate) fn pick<T>(self, ci: T, std: T, full: T) -> T {
        match self {
            Scale::Trial | Scale::Ci => ci,
            Scale::Std => std,
            Scale::Full => full,
        }
    }
}

/// What people should know of an experiment before they see its figures.
#[derive(Debug)]
pub struct Card {
    /// Its number in the project's specification.
    pub number: u32,
    /// A short name, as the file has it.
    pub name: &'static str,
    /// What it is about.
    pub title: &'static str,
    /// Where it was published: paper and figure.
    pub source: &'static str,
    /// The question, and what the answer is good for, in a few sentences.
    pub question: &'static str,
    /// What the paper reports.
    pub reported: &'static str,
    /// Devices on which it cannot be asked, and why.
    pub absent: &'static [(Device, &'static str)],
    /// Known causes of checks that do not hold.
    pub causes: &'static [Cause],
}

/// Why a check does not hold, or cannot be asked, on a device.
#[derive(Debug)]
pub struct Cause {
    /// On which device.
    pub device: Device,
    /// At this scale only, if one is named: where its figures are those of one record.
    pub scale: Option<Scale>,
    /// Which checks: those whose key begins so.
    pub key: &'static str,
    /// The cause, and the evidence for it.
    pub text: &'static str,
}

impl Card {
    /// Such as E12.
    pub fn id(&self) -> String {
        format!("E{}", self.number)
    }

    /// Why it cannot be asked on `device`, if so.
    pub fn absence(&self, device: Device) -> Option<&'static str> {
        self.absent.iter().find(|(absent, _)| *absent == device).map(|(_, why)| *why)
    }

    /// Why the check `key` does not hold on `device` at `scale`, as far as is known: of several that fit, the first of those that
    /// name most of the key.
    pub fn cause(&self, device: Device, scale: Scale, key: &str) -> Option<&'static str> {
        let fits = |cause: &&Cause| {
            cause.device == device
                && cause.scale.is_none_or(|only| only == scale)
                && key.starts_with(cause.key)
        };
        let most = |best: &'static Cause, next| {
            let longer = |one: &Cause, other: &Cause| one.key.len() > other.key.len();
            if longer(next, best) { next } else { best }
        };
        self.causes.iter().filter(fits).reduce(most).map(|cause| cause.text)
    }
}

/// One setting of an experiment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameter {
    /// Which.
    pub name: String,
    /// As published.
    pub published: String,
    /// As run.
    pub used: String,
}

impl Parameter {
    pub(crate) fn new(name: &str, published: &str, used: impl Into<String>) -> Self {
        Self { name: name.to_owned(), published: published.to_owned(), used: used.into() }
    }
}

/// All that was measured, by the clock that timed it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "clock", content = "rows", rename_all = "snake_case")]
pub enum Measured {
    /// Times of the machine's clock.
    Wall(Rows<Wall>),
    /// Times of a simulated drive's clock.
    Simulated(Rows<Simulated>),
}

impl Measured {
    /// What the figures are, in words: medians of so many runs.
    pub fn runs(&self) -> String {
        let runs = match self {
            Measured::Wall(rows) => rows.runs(),
            Measured::Simulated(rows) => rows.runs(),
        };
        match runs {
            (_, 1) => "one run".to_owned(),
            (least, most) if least == most => format!("medians of {most} runs"),
            (least, most) => format!("medians of {least} to {most} runs"),
        }
    }

    /// The rows as CSV.
    pub fn to_csv(&self) -> String {
        match self {
            Measured::Wall(rows) => rows.to_csv(),
            Measured::Simulated(rows) => rows.to_csv(),
        }
    }
}

/// An experiment as its file writes it: what is the same for both clocks is written once.
pub(crate) trait Study: Sync {
    fn card(&self) -> &'static Card;
    fn parameters(&self, scale: Scale, device: Device) -> Vec<Parameter>;

    fn on_disk(&self, _: &Laboratory) -> Result<Rows<Wall>> {
        Err(Failure::CannotRun(format!("{} has no workload for disk", self.card().id())))
    }

    fn on_ssdsim(&self, _: &Laboratory) -> Result<Rows<Simulated>> {
        Err(Failure::CannotRun(format!("{} has no workload for ssdsim", self.card().id())))
    }

    fn on_nand(&self, _: &Laboratory) -> Result<Rows<Simulated>> {
        Err(Failure::CannotRun(format!("{} has no workload for raw flash", self.card().id())))
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, device: Device) -> std::result::Result<Judgement, Missing>;
    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing>;
}

/// An experiment as commands use it.
pub trait Experiment: Sync {
    /// What it is.
    fn card(&self) -> &'static Card;

    /// Its settings at a scale.
    fn parameters(&self, scale: Scale, device: Device) -> Vec<Parameter>;

    /// Measures. Devices on which it cannot be asked are not for this: see [`Card::absence`].
    ///
    /// # Errors
    /// What the device says, [`Failure::CannotRun`], [`Failure::Interrupted`].
    fn measure(&self, laboratory: &Laboratory, device: Device) -> Result<Measured>;

    /// Judges what was measured on `device` at `scale`.
    ///
    /// # Errors
    /// [`Missing`] names what was not recorded.
    fn judge(
        &self,
        measured: &Measured,
        device: Device,
        scale: Scale,
    ) -> std::result::Result<Judgement, Missing>;

    /// Draws it.
    ///
    /// # Errors
    /// [`Missing`] names what was not recorded.
    fn draw(&self, measured: &Measured, device: Device) -> std::result::Result<Chart, Missing>;
}

impl<S: Study> Experiment for S {
    fn card(&self) -> &'static Card {
        Study::card(self)
    }

    fn parameters(&self, scale: Scale, device: Device) -> Vec<Parameter> {
        Study::parameters(self, scale, device)
    }

    fn measure(&self, laboratory: &Laboratory, device: Device) -> Result<Measured> {
        match device {
            Device::Disk => self.on_disk(laboratory).map(Measured::Wall),
            Device::Ssdsim => self.on_ssdsim(laboratory).map(Measured::Simulated),
            Device::Nand => self.on_nand(laboratory).map(Measured::Simulated),
        }
    }

    fn judge(
        &self,
        measured: &Measured,
        device: Device,
        scale: Scale,
    ) -> std::result::Result<Judgement, Missing> {
        let mut judgement = match measured {
            Measured::Wall(rows) => Study::judge(self, rows, device)?,
            Measured::Simulated(rows) => Study::judge(self, rows, device)?,
        };
        labels::apply(self.card().number, (device, scale), &mut judgement);
        Ok(judgement)
    }

    fn draw(&self, measured: &Measured, device: Device) -> std::result::Result<Chart, Missing> {
        let mut chart = match measured {
            Measured::Wall(rows) => Study::draw(self, rows)?,
            Measured::Simulated(rows) => Study::draw(self, rows)?,
        };
        let clock = match measured {
            Measured::Wall(_) => Wall::NAME,
            Measured::Simulated(_) => Simulated::NAME,
        };
        chart.title = format!("{} ({device}, {clock} time)", chart.title);
        Ok(chart)
    }
}

/// All experiments, by number.
pub fn all() -> &'static [&'static dyn Experiment] {
    &[
        &e01_io_size::IoSize,
        &e02_depth::Depth,
        &e03_mingling::Mingling,
        &e04_shared_file::SharedFile,
        &e05_file_per_thread::FilePerThread,
        &e06_context_switches::ContextSwitches,
        &e07_processes::Processes,
        &e08_sequential_random::SequentialRandom,
        &e09_openssd::OpenSsd,
        &e10_mpsearch::MpSearch,
        &e11_buffer_size::BufferSize,
        &e12_range::RangeSearch,
        &e13_opq_size::OpqSize,
        &e14_mixed::Mixed,
        &e15_tpcc::TpccTrace,
        &e16_concurrency::Concurrency,
        &e17_tuning::Tuning,
        &e18_parts::Parts,
        &e19_valid_nodes::ValidNodes,
        &e20_insert::Insert,
        &e21_write_share::WriteShare,
        &e22_search::Search,
        &e23_update::UPDATE,
        &e24_delete::DELETE,
        &e25_cache::Cache,
        &e26_file_size::FileSize,
        &e27_mixed::Mixed,
        &e28_start_and_recycling::StartAndRecycling,
        &e29_creation::Creation,
        &e30_retrieval::Retrieval,
        &e31_live_pages::LivePages,
        &e32_flash_operations::FlashOperations,
        &e33_raw_times::RawTimes,
        &e34_cost_model::CostModel,
        &e35_dipl_insertion::DiplInsertion,
        &e36_dipl_search::DiplSearch,
        &e37_eager_cleansing::EagerCleansing,
        &e38_log_overflow::LogOverflow,
        &e39_power_loss::PowerLoss,
        &e40_channels::Channels,
        &e41_wear::FlashWear,
        &e42_tree_channels::TreeChannels,
        &e43_many_keys::ManyKeys,
        &e44_gathered::Gathered,
        &e45_log_price::LogPrice,
        &e46_oltp_mix::OltpMix,
        &e47_as_space::AsSpace,
    ]
}

/// The experiment that `name` means: E12, e12, 12, or its short name.
///
/// # Errors
/// [`Failure::Usage`] suggests the nearest.
pub fn find(name: &str) -> Result<&'static dyn Experiment> {
    let wanted = name.trim().to_ascii_lowercase().replace('_', "-");
    let number = wanted.strip_prefix('e').unwrap_or(&wanted).parse::<u32>().ok();
    let fits = |card: &Card| number == Some(card.number) || card.name == wanted;
    if let Some(experiment) = all().iter().find(|experiment| fits(experiment.card())) {
        return Ok(*experiment);
    }
    let distance = |card: &Card| match number {
        Some(number) => card.number.abs_diff(number) as usize,
        None => strsim::damerau_levenshtein(card.name, &wanted),
    };
    let nearest = all().iter().map(|experiment| experiment.card()).min_by_key(|card| distance(card));
    let hint =
        nearest.map(|card| format!("; did you mean {} ({})?", card.id(), card.name)).unwrap_or_default();
    Err(Failure::Usage(format!("there is no experiment {name:?}{hint} `sapwood-lab list` has them all")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_in_order_and_tell_what_they_must() {
        let numbers: Vec<_> = all().iter().map(|experiment| experiment.card().number).collect();
        assert!(numbers.is_sorted() && !numbers.is_empty());
        for experiment in all() {
            let card = experiment.card();
            for text in [card.name, card.title, card.source, card.question, card.reported] {
                assert!(!text.is_empty(), "{}", card.id());
            }
            assert_eq!(find(card.name).unwrap().card().number, card.number);
            for device in Device::ALL {
                if card.absence(device).is_none() {
                    assert!(!experiment.parameters(Scale::Ci, device).is_empty(), "{} {device}", card.id());
                }
            }
        }
    }

    #[test]
    fn a_record_without_rows_is_never_judged() {
        for experiment in all() {
            let id = experiment.card().id();
            for (measured, device) in [
                (Measured::Wall(Rows(Vec::new())), Device::Disk),
                (Measured::Simulated(Rows(Vec::new())), Device::Ssdsim),
            ] {
                assert!(experiment.judge(&measured, device, Scale::Ci).is_err(), "{id}");
            }
        }
    }

    #[test]
    fn names_are_found_and_near_misses_named() {
        for name in ["E2", "e2", "2", "depth", "DEPTH", "e02"] {
            assert_eq!(find(name).unwrap().card().number, 2, "{name}");
        }
        let told = |name| find(name).err().unwrap().to_string();
        assert!(told("dept").contains("did you mean E2 (depth)?"), "{}", told("dept"));
        assert!(told("io_sise").contains("did you mean E1 (io-size)?"));
        assert!(told("E300").contains("did you mean E"));
        assert!(told("").contains("sapwood-lab list"));
    }
}
