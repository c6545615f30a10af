//! E42, ours: which systems become faster as a drive becomes wider.

use super::{Card, Cause, Device, Parameter, Scale, Study};
use crate::chart::{Axis, Chart, Line, Scaling, number};
use crate::every_system::{ENGINE_MEMORY, MEMORY, System};
use crate::failure::{Failure, Result};
use crate::flash_trees::side_by_side;
use crate::interrupt;
use crate::judgement::Judgement;
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Lapse, Quantity, Simulated};
use crate::row::{Missing, Row, Rows};
use crate::wear_ground::{Keys, SEARCHES, UPDATES};
use flash::{FtlOptions, Geometry, Profile, Ssd};
use psync::Volume;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) struct TreeChannels;

static CARD: Card = Card {
    number: 42,
    name: "tree-channels",
    title: "Throughput of trees, by the channels of the drive",
    source: "ours, after Roh et al., PVLDB 5(4), 2011",
    question: "A drive does as many things at once as it has channels and dies. A tree that asks for one page after the other does not \
               notice. On a drive with 1, 2, 4, ... 64 channels, of the same size and speed otherwise: which systems become faster, at \
               updates and at searches of 64 keys at a time, and up to how many channels?",
    reported: "Nothing; the papers have the drives of their time, of 1 to 10 channels. What it means for someone who chooses an index \
               today, at ci scale: a wider drive does nothing for a program that asks for one page after the other: the B+-tree makes 2,788 \
               updates and 8,491 searches a second with 1 channel as with 64. Trees that hand over many requests at once gain \
               up to 4 to 16 channels (PIO B-tree: updates 57 to 197 thousand, searches 19 to 82 thousand a second; Sapwood with 4 MiB: \
               searches 47 to 158 thousand), and then hardly more, since the controller and sets of 64 are the limit. So ask for keys \
               together where you can.",
    absent: &[
        (Device::Disk, "a real drive has the channels that it has"),
        (Device::Nand, "raw flash takes one operation at a time"),
    ],
    causes: &CAUSES,
};

static CAUSES: [Cause; 2] = [
    Cause {
        device: Device::Ssdsim,
        scale: None,
        key: "AS B-tree-updates",
        text: "it writes in sets, but reads the leaf of every update alone before that: 5,617 updates a second with one channel are \
               178 us each, 6,668 with 64 are 150, of which the read alone takes 80. There is little left that overlaps",
    },
    Cause {
        device: Device::Ssdsim,
        scale: None,
        key: "together",
        text: "the engine is 17.5 times as fast; the PIO B-tree is 7.6 times as fast with 8 channels and 9.3 with \
               16: it goes down level by level, and the sets of the upper levels are small",
    },
];

const CHANNELS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
const SYSTEMS: [System; 4] = [System::BTree, System::Pio, System::As, System::Engine];
const WORKS: [&str; 2] = ["updates", "searches"];
/// Keys of a search.
const TOGETHER: usize = 64;
/// A doubling of channels that brings less than this share more does not pay.
const PAYS: f64 = 0.1;

fn series(system: System, work: &str) -> String {
    format!("{}, {work}", system.name())
}

#[derive(Clone, Copy, Debug)]
struct Size {
    records: u64,
    updates: u64,
    searches: u64,
}

impl Size {
    fn of(scale: Scale) -> Self {
        match scale {
            Scale::Trial => Self { records: 20_000, updates: 200, searches: 256 },
            Scale::Ci => Self { records: 1_000_000, updates: 30_000, searches: 12_800 },
            Scale::Std => Self { records: 5_000_000, updates: 200_000, searches: 64_000 },
            Scale::Full => Self { records: 10_000_000, updates: 1_000_000, searches: 640_000 },
        }
    }
}

/// The default drive with other channels, of the same size.
fn profile(channels: u32) -> Profile {
    let default = Profile::ssdsim();
    let blocks_per_plane = default.geometry.blocks_per_plane * default.geometry.channels / channels;
    let geometry = Geometry { channels, blocks_per_plane, ..default.geometry };
    Profile { name: format!("{} with {channels} channels", default.name), geometry, ..default }
}

fn measure(system: System, channels: u32, size: Size) -> Result<[Row<Simulated>; 2]> {
    let wrong = |error| Failure::CannotRun(format!("the simulated drive: {error}"));
    let drive = Ssd::new(profile(channels), FtlOptions::default(), 1).map_err(wrong)?.with_pio_max(256);
    let volume: Arc<dyn Volume> = Arc::new(drive.clone());
    let mut store = system.on_volume(&volume, size.records)?;
    let row = |work: &str, count: u64, began: std::time::Duration| Row {
        series: series(system, work),
        at: f64::from(channels),
        run: 0,
        requests: count,
        bytes: 16 * count,
        elapsed_us: Lapse::from(drive.now() - began),
        counts: BTreeMap::new(),
    };
    drive.drain();
    let began = drive.now();
    for (step, key) in (0..).zip(Keys::Uniform.draw(size.records, size.updates, UPDATES)?) {
        if step % 1024 == 0 && interrupt::pressed() {
            return Err(Failure::Interrupted);
        }
        store.update(key, step)?;
    }
    store.flush()?;
    let updates = row(WORKS[0], size.updates, began);
    drive.drain();
    let began = drive.now();
    for keys in Keys::Uniform.draw(size.records, size.searches, SEARCHES)?.chunks(TOGETHER) {
        if let Some(at) = store.search_many(keys)?.iter().position(Option::is_none) {
            return Err(Failure::CannotRun(format!("{} has lost key {}", system.name(), keys[at])));
        }
    }
    Ok([updates, row(WORKS[1], size.searches, began)])
}

/// The last number of channels up to which each doubling pays.
fn paying(line: &[(f64, f64)]) -> f64 {
    let mut last = line.first().map_or(f64::NAN, |point| point.0);
    for pair in line.windows(2) {
        if pair[1].1 < pair[0].1 * (1.0 + PAYS) {
            break;
        }
        last = pair[1].0;
    }
    last
}

impl Study for TreeChannels {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn parameters(&self, scale: Scale, _: Device) -> Vec<Parameter> {
        let size = Size::of(scale);
        vec![
            Parameter::new(
                "drive",
                "not published",
                "ssdsim, 1 GiB or its nearest, 4 dies of 2 planes a channel; controller and link are the same for all",
            ),
            Parameter::new("records", "not published", size.records.to_string()),
            Parameter::new(
                "updates",
                "not published",
                format!("{}, uniform, one after the other, and a flush", size.updates),
            ),
            Parameter::new(
                "searches",
                "not published",
                format!(
                    "{} keys, uniform, drawn apart from the updated ones, {TOGETHER} at a time",
                    size.searches
                ),
            ),
            Parameter::new(
                "memory",
                "not published",
                format!("{} KiB; the engine its least, {} MiB", MEMORY >> 10, ENGINE_MEMORY >> 20),
            ),
            Parameter::new("logs", "not published", "none, but the engine's, which is written every 64 KiB"),
            Parameter::new(
                "runs",
                "not published",
                "one: the drive's time follows from the seed; the engine's threads take turns by none, so that its figures may \
                 differ from run to run",
            ),
        ]
    }

    fn on_ssdsim(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        let size = Size::of(laboratory.scale);
        laboratory.expect(CHANNELS.len());
        let mut rows = Vec::new();
        for channels in CHANNELS {
            laboratory.step(&format!("{channels} channels"))?;
            rows.extend(
                side_by_side(&SYSTEMS, |system| measure(*system, channels, size))?.into_iter().flatten(),
            );
        }
        Ok(Rows(rows))
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, _: Device) -> std::result::Result<Judgement, Missing> {
        let mut judgement = Judgement::default();
        let line =
            |system, work| rows.line(&series(system, work), |row| row.elapsed_us.rate(row.requests).number());
        // How many times as fast with `to` channels as with `from`.
        let gain = |system, work, from: u32, to: u32| {
            let at = |channels| {
                rows.median(&series(system, work), f64::from(channels), |row| {
                    row.elapsed_us.rate(row.requests)
                })
            };
            Ok::<f64, Missing>(at(to)?.over(at(from)?))
        };
        for work in WORKS {
            let found = gain(System::BTree, work, 1, 64)?;
            judgement.check(
                &format!("btree-{work}"),
                &format!(
                    "the B+-tree gains nothing: {work} less than 1.5 times as fast with 64 channels as with 1"
                ),
                "not published",
                number(found),
                found < 1.5,
            );
        }
        for (system, work) in [
            (System::Pio, WORKS[0]),
            (System::As, WORKS[0]),
            (System::Engine, WORKS[0]),
            (System::Pio, WORKS[1]),
            (System::Engine, WORKS[1]),
        ] {
            let found = gain(system, work, 1, 8)?;
            judgement.check(
                &format!("{}-{work}", system.name()),
                &format!("{}: {work} at least twice as fast with 8 channels as with 1", system.name()),
                "not published",
                number(found),
                found >= 2.0,
            );
        }
        let times = |system| {
            let of =
                |system| rows.median(&series(system, WORKS[1]), 8.0, |row| row.elapsed_us.rate(row.requests));
            Ok::<f64, Missing>(of(system)?.over(of(System::BTree)?))
        };
        let (pio, engine) = (times(System::Pio)?, times(System::Engine)?);
        judgement.check(
            "together",
            "with 8 channels, the PIO B-tree and the engine search 64 keys at least 8 times as fast as the B+-tree",
            "not published",
            format!("{} and {}", number(pio), number(engine)),
            pio >= 8.0 && engine >= 8.0,
        );
        for work in WORKS {
            for system in SYSTEMS {
                let line = line(system, work)?;
                let all: Vec<String> = line.iter().map(|(_, rate)| number(*rate)).collect();
                judgement.report(
                    &format!("figures-{work}-{}", system.name()),
                    &format!("{}: {work} a second with 1, 2, 4, ... 64 channels, and the channels up to which each doubling brings 10 % more", system.name()),
                    "not published",
                    format!("{}; up to {}", all.join(", "), number(paying(&line))),
                );
            }
        }
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        let mut lines = Vec::new();
        for system in SYSTEMS {
            for work in WORKS {
                let name = series(system, work);
                let all = rows.points(&name).into_iter().map(|at| {
                    Ok((at, rows.spread(&name, at, |row| row.elapsed_us.rate(row.requests))?.scaled(1.0)))
                });
                let points = all.collect::<std::result::Result<Vec<_>, Missing>>()?;
                lines.push(Line { name, paired: work == WORKS[1], points });
            }
        }
        Ok(Chart {
            title: CARD.title.into(),
            x: Axis { label: "channels of the drive".into(), scale: Scaling::Doubling },
            y: Axis { label: "operations a second".into(), scale: Scaling::Doubling },
            lines,
            bars: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judgement::{Outcome, Verdict};
    use crate::row::tests::row;

    /// Micros of an operation follow from what a system overlaps.
    fn rows(change: impl Fn(System, &str, f64) -> f64) -> Rows<Simulated> {
        let mut rows = Vec::new();
        for system in SYSTEMS {
            for work in WORKS {
                for channels in CHANNELS {
                    let channels = f64::from(channels);
                    let overlap = if system == System::BTree { 1.0 } else { 4.0 * channels.min(16.0) };
                    let micros = 100.0 / overlap * change(system, work, channels);
                    rows.push(row(&series(system, work), channels, 0, micros));
                }
            }
        }
        Rows(rows)
    }

    #[test]
    fn what_was_asked_holds_and_each_claim_can_fail() {
        let judge = |rows: &Rows<Simulated>| Study::judge(&TreeChannels, rows, Device::Ssdsim).unwrap();
        let good = judge(&rows(|_, _, _| 1.0));
        assert_eq!(good.verdict(), Verdict::Holds, "{good:?}");
        let fails = |key: &str, of: System, work: &str, factor: &dyn Fn(f64) -> f64| {
            let changed = rows(
                |system, other, channels| {
                    if system == of && other == work { factor(channels) } else { 1.0 }
                },
            );
            assert_eq!(judge(&changed).outcome(key), Some(Outcome::Fails), "{key}");
        };
        for work in WORKS {
            fails(&format!("btree-{work}"), System::BTree, work, &|channels| 1.0 / channels);
        }
        for (system, work) in [
            (System::Pio, WORKS[0]),
            (System::As, WORKS[0]),
            (System::Engine, WORKS[1]),
            (System::Pio, WORKS[1]),
        ] {
            fails(&format!("{}-{work}", system.name()), system, work, &|channels| channels);
        }
        fails("together", System::Pio, WORKS[1], &|_| 5.0);
    }

    #[test]
    fn channels_pay_until_the_first_doubling_that_does_not() {
        assert_eq!(paying(&[(1.0, 10.0), (2.0, 20.0), (4.0, 21.0), (8.0, 40.0)]), 2.0);
        assert_eq!(paying(&[(1.0, 10.0), (2.0, 10.0)]), 1.0);
    }

    #[test]
    fn drives_are_of_one_size() {
        let default = Profile::ssdsim();
        for channels in CHANNELS {
            let profile = profile(channels);
            assert_eq!(
                (profile.geometry.channels, profile.geometry.bytes()),
                (channels, default.geometry.bytes())
            );
            assert_eq!(profile.timing, default.timing);
        }
    }
}
