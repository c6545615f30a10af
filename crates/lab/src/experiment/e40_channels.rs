//! E40, ours: how deep a queue still pays, by the number of channels.

use super::{Card, Device, Parameter, Scale, Study};
use crate::chart::{Axis, Chart, Line, Scaling, number};
use crate::failure::Result;
use crate::judgement::{Judgement, first_fall};
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Quantity, Simulated};
use crate::row::{Missing, Row, Rows};
use crate::sweep::{Point, sweep};
use crate::traffic::{Mix, Traffic};
use flash::{Geometry, Profile};

pub(super) struct Channels;

const ONE_DRIVE: &str = "a real drive has the channels that it has";

static CARD: Card = Card {
    number: 40,
    name: "channels",
    title: "Which depth still pays, by channels",
    source: "ours, after Roh et al., PVLDB 5(4), 2011, sections 2.1 and 3.1.1",
    question: "The paper finds that 32 requests at a time are enough, on drives of 2010. Drives have become wider since: on \
               the simulated drive, with 1 to 64 channels of 4 dies, how deep must a queue be? Channels alone, and with a \
               controller and a link that are faster by as much (8 channels are the drive as it is). PioMax should follow \
               the drive, and this says how.",
    reported: "About 32 requests at a time are enough (drives of 2010, of 8 to 10 channels as far as is known).",
    absent: &[(Device::Disk, ONE_DRIVE), (Device::Nand, "raw flash takes one operation at a time")],
    causes: &[],
};

const CHANNELS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
const DEPTHS: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
const LINES: [(&str, Mix); 2] = [("read", Mix::Reads), ("write", Mix::Writes)];
/// A doubling of depth that brings less than this share more does not pay.
const PAYS: f64 = 0.1;

/// A figure of a line of bandwidths by depth.
type Figure<'a> = dyn Fn(&[(f64, f64)]) -> f64 + 'a;

/// What grows with the channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grows {
    Channels,
    Everything,
}

fn series(what: &str, channels: u32, grows: Grows) -> String {
    let plural = if channels == 1 { "" } else { "s" };
    match grows {
        Grows::Channels => format!("{what}, {channels} channel{plural} alone"),
        Grows::Everything => format!("{what}, {channels} channel{plural}"),
    }
}

fn requests(scale: Scale) -> u64 {
    scale.requests(2_000, 20_000, 50_000)
}

/// The default drive with other channels, but of the same size.
fn profile(channels: u32, grows: Grows) -> Profile {
    let default = Profile::ssdsim();
    let (geometry, mut timing) = (default.geometry, default.timing);
    let blocks_per_plane = geometry.blocks_per_plane * geometry.channels / channels;
    if grows == Grows::Everything {
        let slower = f64::from(geometry.channels) / f64::from(channels);
        timing.controller_read = timing.controller_read.mul_f64(slower);
        timing.controller_write = timing.controller_write.mul_f64(slower);
        timing.controller_turn = timing.controller_turn.mul_f64(slower);
        timing.host_bytes_per_second = (timing.host_bytes_per_second as f64 / slower) as u64;
    }
    let name = format!("{} with {channels} channels", default.name);
    Profile { name, geometry: Geometry { channels, blocks_per_plane, ..geometry }, timing, ..default }
}

fn points(scale: Scale, channels: u32, grows: Grows) -> Vec<Point> {
    let mut points = Vec::new();
    for (what, mix) in LINES {
        for depth in DEPTHS {
            let traffic = Traffic::random_4k(mix, depth, requests(scale));
            points.push(Point::new(series(what, channels, grows), depth as f64, traffic));
        }
    }
    points
}

/// The last depth up to which each doubling brings at least the share [`PAYS`] more.
fn paying_depth(line: &[(f64, f64)]) -> f64 {
    let mut depth = line.first().map_or(f64::NAN, |point| point.0);
    for pair in line.windows(2) {
        if pair[1].1 < pair[0].1 * (1.0 + PAYS) {
            break;
        }
        depth = pair[1].0;
    }
    depth
}

impl Study for Channels {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn parameters(&self, scale: Scale, _: Device) -> Vec<Parameter> {
        vec![
            Parameter::new("channels", "as the drives had", "1 doubling to 64, with 4 dies of 2 planes each"),
            Parameter::new("requests at a time", "1 to 64", "1 to 256"),
            Parameter::new("request", "4 KiB, random", "4 KiB, random"),
            Parameter::new("requests a point", "not told", requests(scale).to_string()),
            Parameter::new(
                "what still pays",
                "not told",
                "a doubling that brings at least 10 % more bandwidth",
            ),
        ]
    }

    fn on_ssdsim(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        let mut rows = Vec::new();
        for grows in [Grows::Everything, Grows::Channels] {
            for channels in CHANNELS {
                let points = points(laboratory.scale, channels, grows);
                let prepare = |run| laboratory.on_drive(profile(channels, grows), 256 << 20, run);
                rows.extend(sweep(laboratory, &points, prepare)?.0);
            }
        }
        Ok(Rows(rows))
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, _: Device) -> std::result::Result<Judgement, Missing> {
        let mut judgement = Judgement::default();
        for (what, _) in LINES {
            let line =
                |channels, grows| rows.line(&series(what, channels, grows), |row| row.bandwidth().number());
            let most = |line: &[(f64, f64)]| line.iter().map(|point| point.1).fold(0.0, f64::max);
            let by_channels = |grows, figure: &Figure<'_>| {
                let point = |channels| Ok((f64::from(channels), figure(&line(channels, grows)?)));
                CHANNELS.into_iter().map(point).collect::<std::result::Result<Vec<_>, Missing>>()
            };
            let told = |line: &[(f64, f64)]| {
                line.iter()
                    .map(|(at, value)| format!("{} at {at}", number(*value)))
                    .collect::<Vec<_>>()
                    .join(", ")
            };
            let pays = by_channels(Grows::Everything, &paying_depth)?;
            judgement.check(
                &format!("{what}-grows"),
                &format!("{what}s: the depth that still pays does not fall with channels, and is larger at 64 than at 1"),
                "not told",
                told(&pays),
                first_fall(&pays, 0.0).is_none() && pays[pays.len() - 1].1 > pays[0].1,
            );
            let at_32 = |line: &[(f64, f64)]| {
                line.iter().find(|point| point.0 == 32.0).map_or(f64::NAN, |point| point.1) / most(line)
            };
            let shares = by_channels(Grows::Everything, &at_32)?;
            let last = shares[shares.len() - 1].1;
            judgement.check(
                &format!("{what}-32"),
                &format!("{what}s: with 64 channels, 32 at a time give less than 80 % of the most; the share by channels"),
                "32 are enough",
                told(&shares),
                last < 0.8,
            );
            judgement.report(
                &format!("{what}-alone"),
                &format!("{what}s: the depth that still pays when channels alone grow"),
                "not told",
                told(&by_channels(Grows::Channels, &paying_depth)?),
            );
            judgement.report(
                &format!("{what}-alone-most"),
                &format!("{what}s: the most MB/s when channels alone grow"),
                "not told",
                told(&by_channels(Grows::Channels, &|line| most(line) / 1e6)?),
            );
        }
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        let mut lines = Line::all(rows, 1e-6, Row::bandwidth)?;
        lines.retain(|line| line.name.starts_with(LINES[0].0) && !line.name.ends_with("alone"));
        Ok(Chart {
            title: CARD.title.into(),
            x: Axis { label: "random reads of 4 KiB at a time".into(), scale: Scaling::Doubling },
            y: Axis { label: "bandwidth, MB/s".into(), scale: Scaling::Doubling },
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

    /// Rows in which requests overlap up to a number that follows from the channels.
    fn rows(most: impl Fn(f64) -> f64) -> Rows<Simulated> {
        let mut rows = Vec::new();
        for (what, _) in LINES {
            for channels in CHANNELS {
                for grows in [Grows::Everything, Grows::Channels] {
                    for depth in DEPTHS {
                        let overlap = (depth as f64).min(most(f64::from(channels)));
                        rows.push(row(&series(what, channels, grows), depth as f64, 0, 100.0 / overlap));
                    }
                }
            }
        }
        Rows(rows)
    }

    #[test]
    fn wider_drives_want_deeper_queues() {
        let judge = |most: &dyn Fn(f64) -> f64| Study::judge(&Channels, &rows(most), Device::Ssdsim).unwrap();
        assert_eq!(judge(&|channels| 4.0 * channels).verdict(), Verdict::Holds);
        let same = judge(&|_| 32.0);
        assert_eq!(same.outcome("read-grows"), Some(Outcome::Fails));
        assert_eq!(same.outcome("write-32"), Some(Outcome::Fails));
        let falling = judge(&|channels| if channels == 16.0 { 2.0 } else { 4.0 * channels });
        assert_eq!(falling.outcome("read-grows"), Some(Outcome::Fails));
        assert_eq!(falling.outcome("read-32"), Some(Outcome::Holds));
        assert_eq!(falling.outcome("read-alone"), Some(Outcome::Reported));
    }

    #[test]
    fn a_depth_pays_until_the_first_doubling_that_does_not() {
        assert_eq!(paying_depth(&[(1.0, 10.0), (2.0, 19.0), (4.0, 21.0), (8.0, 22.0)]), 4.0);
        assert_eq!(paying_depth(&[(1.0, 10.0), (2.0, 10.5), (4.0, 21.0)]), 1.0);
        assert_eq!(paying_depth(&[(1.0, 10.0)]), 1.0);
    }

    #[test]
    fn drives_differ_in_width_alone() {
        let default = Profile::ssdsim();
        for channels in CHANNELS {
            let [alone, all] = [Grows::Channels, Grows::Everything].map(|grows| profile(channels, grows));
            for profile in [&alone, &all] {
                assert_eq!(
                    (profile.geometry.channels, profile.geometry.bytes()),
                    (channels, default.geometry.bytes())
                );
                profile.geometry.check().unwrap();
                profile.timing.check().unwrap();
            }
            assert_eq!(alone.timing, default.timing);
            assert_eq!(all.timing == default.timing, channels == default.geometry.channels);
        }
    }
}
