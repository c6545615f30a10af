//! Requests as micro-benchmarks make them: of one size, so many at a time, at random places or one after the other.
//!
//! Invariants:
//! 1. Places are multiples of the request's size, and no two requests of a set touch the same bytes.
//! 2. A traffic's time runs from before its first set until its last set is done; making up places is in it, as it is
//!    in any program, but costs no simulated time.

use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::quantity::Lapse;
use crate::row::Row;
use crate::stage::{Ground, Stage};
use psync::{AlignedBuffer, Device, Read, Request, Write};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, HashSet};

/// Where requests go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Places {
    Random,
    /// Upwards from a random place, round the end.
    Sequential,
}

/// What requests do, set by set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mix {
    Reads,
    Writes,
    /// A set of reads, then a set of writes, and so on.
    Grouped,
    /// Read, write, read, write, within every set and from one to the next.
    Alternating,
    /// Each request is the one or the other by chance.
    Chance,
}

/// How requests are handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// In psync sets: the next when all of the last is done.
    Sets,
    /// One by one, as soon as one of those under way has ended.
    KeptFull,
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traffic {
    pub flow: Flow,
    pub mix: Mix,
    pub places: Places,
    /// Bytes of a request.
    pub bytes: usize,
    /// Requests in one psync set.
    pub depth: usize,
    /// Requests in all, rounded up to whole sets (for [`Mix::Grouped`], to pairs of them).
    pub requests: u64,
}

impl Traffic {
    /// Random requests of 4 KiB.
    pub fn random_4k(mix: Mix, depth: usize, requests: u64) -> Self {
        Self { flow: Flow::Sets, mix, places: Places::Random, bytes: 4 << 10, depth, requests }
    }

    /// The same with a queue that is kept full.
    pub fn kept_full(self) -> Self {
        Self { flow: Flow::KeptFull, ..self }
    }

    /// Sends it to one file, or in turn to several: the n-th request of a set to the n-th file, round.
    ///
    /// # Errors
    /// The volume's; [`Failure::Interrupted`] after Ctrl-C.
    pub fn send<S: Stage>(&self, stage: &S, grounds: &[Ground], seed: u64) -> Result<Sent<S>> {
        if self.flow == Flow::KeptFull {
            return self.keep_full(stage, grounds, seed);
        }
        let mut rng = StdRng::seed_from_u64(seed);
        let mut buffers: Vec<_> = (0..self.depth).map(|_| AlignedBuffer::new(self.bytes)).collect();
        for buffer in &mut buffers {
            rng.fill(&mut buffer[..]);
        }
        let slots = grounds.iter().map(|ground| ground.len / self.bytes as u64).min().unwrap_or(0);
        if slots < self.depth as u64 {
            let what = format!("{} requests of {} bytes do not fit into the file", self.depth, self.bytes);
            return Err(psync::Error::Invalid(what).into());
        }
        let mut next = rng.random_range(0..slots);
        let sets = self.requests.div_ceil(self.depth as u64);
        let sets = if self.mix == Mix::Grouped { sets.next_multiple_of(2) } else { sets };
        let mut places: Vec<u64> = Vec::with_capacity(self.depth);
        let elapsed = stage.time(|| -> Result<()> {
            for set in 0..sets {
                go_on()?;
                places.clear();
                while places.len() < self.depth {
                    let slot = match self.places {
                        Places::Random => rng.random_range(0..slots),
                        Places::Sequential => {
                            next = (next + 1) % slots;
                            next
                        }
                    };
                    let place = slot * self.bytes as u64;
                    if !places.contains(&place) {
                        places.push(place);
                    }
                }
                let first = set * self.depth as u64;
                let writes = match self.mix {
                    Mix::Reads => false,
                    Mix::Writes => true,
                    Mix::Grouped => set % 2 == 1,
                    Mix::Alternating => {
                        mingle(stage, grounds, &mut buffers, &places, |index| (first + index) % 2 == 1)?;
                        continue;
                    }
                    Mix::Chance => {
                        mingle(stage, grounds, &mut buffers, &places, |_| rng.random_bool(0.5))?;
                        continue;
                    }
                };
                let files = grounds.iter().map(|ground| ground.file).cycle();
                let members = files.zip(&places);
                if writes {
                    let set: Vec<_> = members
                        .zip(&buffers)
                        .map(|((file, offset), data)| Write { file, offset: *offset, data })
                        .collect();
                    stage.volume().write(&set)?;
                } else {
                    let mut set: Vec<_> = members
                        .zip(&mut buffers)
                        .map(|((file, offset), buffer)| Read { file, offset: *offset, buffer })
                        .collect();
                    stage.volume().read(&mut set)?;
                }
            }
            Ok(())
        })?;
        let requests = sets * self.depth as u64;
        Ok(Sent { requests, bytes: requests * self.bytes as u64, elapsed })
    }
}

/// A point of many requests takes longer than the program may go on after Ctrl-C.
fn go_on() -> Result<()> {
    if interrupt::pressed() { Err(Failure::Interrupted) } else { Ok(()) }
}

fn mingle<S: Stage>(
    stage: &S,
    grounds: &[Ground],
    buffers: &mut [AlignedBuffer],
    places: &[u64],
    mut is_write: impl FnMut(u64) -> bool,
) -> psync::Result<()> {
    let files = grounds.iter().map(|ground| ground.file).cycle();
    let mut set: Vec<_> = files
        .zip(places)
        .zip(buffers)
        .enumerate()
        .map(|(index, ((file, offset), buffer))| match is_write(index as u64) {
            false => Request::Read(Read { file, offset: *offset, buffer }),
            true => Request::Write(Write { file, offset: *offset, data: buffer }),
        })
        .collect();
    stage.mingled(&mut set)
}

/// Requests that are handed to a stage together when its queue is to be kept full. At the end of each such part the
/// queue runs empty, which must not weigh.
const STREAM: u64 = 8192;

impl Traffic {
    /// As [`Traffic::send`], to the first ground.
    fn keep_full<S: Stage>(&self, stage: &S, grounds: &[Ground], seed: u64) -> Result<Sent<S>> {
        let slots = grounds.first().map_or(0, |ground| ground.len / self.bytes as u64);
        let part = self.requests.min(STREAM);
        if slots < 2 * part {
            return Err(psync::Error::Invalid("a full queue needs a file of some size".into()).into());
        }
        let mut rng = StdRng::seed_from_u64(seed);
        let mut buffers: Vec<_> = (0..part).map(|_| AlignedBuffer::new(self.bytes)).collect();
        let file = grounds[0].file;
        let (mut sent, first) = (0, rng.random_range(0..slots));
        let elapsed = stage.time(|| -> Result<()> {
            while sent < self.requests {
                go_on()?;
                let part = (self.requests - sent).min(STREAM);
                let places = match self.places {
                    Places::Sequential => (0..part).map(|index| (first + sent + index) % slots).collect(),
                    Places::Random => distinct(&mut rng, slots, part),
                };
                let mut requests: Vec<_> = places
                    .into_iter()
                    .zip(&mut buffers)
                    .enumerate()
                    .map(|(index, (slot, buffer))| {
                        let offset = slot * self.bytes as u64;
                        let write = match self.mix {
                            Mix::Reads => false,
                            Mix::Writes => true,
                            Mix::Grouped => index / self.depth % 2 == 1,
                            Mix::Alternating => index % 2 == 1,
                            Mix::Chance => rng.random_bool(0.5),
                        };
                        if write {
                            Request::Write(Write { file, offset, data: buffer })
                        } else {
                            Request::Read(Read { file, offset, buffer })
                        }
                    })
                    .collect();
                stage.stream(&mut requests, self.depth)?;
                sent += part;
            }
            Ok(())
        })?;
        Ok(Sent { requests: sent, bytes: sent * self.bytes as u64, elapsed })
    }
}

/// `many` places of `slots`, each once.
fn distinct(rng: &mut StdRng, slots: u64, many: u64) -> Vec<u64> {
    let mut taken = HashSet::new();
    while taken.len() < many as usize {
        taken.insert(rng.random_range(0..slots));
    }
    let mut places: Vec<u64> = taken.into_iter().collect();
    // A set has no order of its own that would be the same every time.
    places.sort_unstable();
    places.shuffle(rng);
    places
}

/// What was sent, and how long it took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent<S: Stage> {
    pub requests: u64,
    pub bytes: u64,
    pub elapsed: Lapse<S::Clock>,
}

impl<S: Stage> Sent<S> {
    /// As a row of the line `series`.
    pub fn row(&self, series: &str, at: f64, run: u32) -> Row<S::Clock> {
        Row {
            series: series.to_owned(),
            at,
            run,
            requests: self.requests,
            bytes: self.bytes,
            elapsed_us: self.elapsed,
            counts: BTreeMap::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use psync::Simulated as Memory;
    use std::cell::Cell;
    use std::time::Duration;

    /// A volume in memory whose clock ticks once at each look.
    struct Ticking {
        volume: Memory,
        ticks: Cell<u64>,
    }

    impl Stage for Ticking {
        type Clock = crate::quantity::Simulated;
        type Volume = Memory;

        fn volume(&self) -> &Memory {
            &self.volume
        }

        fn now(&self) -> Duration {
            self.ticks.set(self.ticks.get() + 1);
            Duration::from_micros(self.ticks.get())
        }

        fn mingled(&self, set: &mut [Request<'_>]) -> psync::Result<()> {
            for request in set {
                match request {
                    Request::Read(read) => self.volume.read(std::slice::from_mut(read))?,
                    Request::Write(write) => self.volume.write(std::slice::from_ref(write))?,
                }
            }
            Ok(())
        }
    }

    fn send(mix: Mix, places: Places, depth: usize) -> (Sent<Ticking>, psync::Counters) {
        let stage = Ticking { volume: Memory::new(1), ticks: Cell::new(0) };
        let grounds = [0, 1].map(|number| Ground::lay(&stage, number, 1 << 20).unwrap());
        let before = stage.volume().counters();
        let traffic = Traffic { flow: Flow::Sets, mix, places, bytes: 4096, depth, requests: 100 };
        let sent = traffic.send(&stage, &grounds, 7).unwrap();
        (sent, stage.volume().counters() - before)
    }

    #[test]
    fn sets_have_the_depth_and_the_mixture_that_was_asked_for() {
        let (sent, counted) = send(Mix::Reads, Places::Random, 8);
        assert_eq!((sent.requests, sent.bytes), (104, 104 * 4096));
        assert_eq!((counted.reads, counted.read_sets, counted.writes), (104, 13, 0));
        let (_, counted) = send(Mix::Writes, Places::Sequential, 8);
        assert_eq!((counted.reads, counted.writes, counted.write_sets), (0, 104, 13));
        let (sent, counted) = send(Mix::Grouped, Places::Random, 8);
        assert_eq!((sent.requests, counted.reads, counted.writes), (112, 56, 56));
        assert_eq!((counted.read_sets, counted.write_sets), (7, 7));
        let (_, counted) = send(Mix::Alternating, Places::Random, 8);
        assert_eq!((counted.reads, counted.writes), (52, 52));
        let (_, counted) = send(Mix::Alternating, Places::Random, 1);
        assert_eq!((counted.reads, counted.writes), (50, 50));
        let (_, counted) = send(Mix::Chance, Places::Random, 4);
        assert_eq!(counted.reads + counted.writes, 100);
        assert!((30..70).contains(&counted.reads), "{counted:?}");
    }

    #[test]
    fn a_queue_that_is_kept_full_waits_for_nobody() {
        let ssd = flash::Ssd::new(flash::Profile::ssdsim(), flash::FtlOptions::default(), 1).unwrap();
        let stage = crate::stage::SsdStage::new(ssd);
        let grounds = [Ground::lay(&stage, 0, 128 << 20).unwrap()];
        let sets = Traffic::random_4k(Mix::Reads, 32, 10_000);
        let by_set = sets.send(&stage, &grounds, 1).unwrap();
        let before = stage.volume().counters();
        let full = sets.kept_full().send(&stage, &grounds, 1).unwrap();
        assert_eq!((full.requests, full.bytes), (10_000, 40_960_000));
        assert_eq!((stage.volume().counters() - before).reads, 10_000);
        assert!(full.elapsed < by_set.elapsed, "{full:?} {by_set:?}");
        let mixed = Traffic::random_4k(Mix::Grouped, 8, 100).kept_full();
        let before = stage.volume().counters();
        mixed.send(&stage, &grounds, 1).unwrap();
        let counted = stage.volume().counters() - before;
        assert_eq!((counted.reads, counted.writes), (52, 48));
        let in_order = Traffic { places: Places::Sequential, mix: Mix::Writes, ..sets }.kept_full();
        let before = stage.volume().counters();
        assert_eq!(in_order.send(&stage, &grounds, 1).unwrap().requests, 10_000);
        assert_eq!((stage.volume().counters() - before).writes, 10_000);
        let disk = Ticking { volume: Memory::new(1), ticks: Cell::new(0) };
        let grounds = [Ground::lay(&disk, 0, 128 << 20).unwrap()];
        assert!(sets.kept_full().send(&disk, &grounds, 1).is_err(), "a disk takes sets");
    }

    #[test]
    fn a_set_larger_than_the_file_is_refused() {
        let stage = Ticking { volume: Memory::new(1), ticks: Cell::new(0) };
        let grounds = [Ground::lay(&stage, 0, 16 << 10).unwrap()];
        let traffic = Traffic::random_4k(Mix::Reads, 5, 10);
        assert!(traffic.send(&stage, &grounds, 1).is_err());
        assert!(traffic.send(&stage, &[], 1).is_err());
    }
}
