//! Several callers of trees for many threads: as threads on a disk, and on a simulated drive as callers who share its virtual time.
//!
//! A simulated drive cannot be given to threads: its clock moves when a call is answered, so the calls of two threads would
//! follow each other, and which thread waits for a lock it cannot know. So one thread plays all callers. An operation is carried
//! out as a whole when its caller begins it, while time stands still ([`Ssd::deferring`]); what it asked the drive for is then
//! waited for, set by set, while the other callers' requests are under way in the same drive.
//!
//! Invariants:
//! 1. An operation that needs a tree alone begins to wait for the drive when all others on that tree are through, and none
//!    begins on it before it is through itself: the PIO B-tree's lock.
//! 2. The locks of the B-link tree's nodes and pages are taken to be free always, which can only make it faster than it is.
//! 3. Processors take no virtual time.

use crate::failure::{Failure, Result};
use crate::trace::{Op, Step};
use flash::{Batch, Ssd};
use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use trees::{BlinkTree, Index, SharedPioTree};

/// A tree for many threads.
pub(crate) trait SharedTree: Sync {
    /// Whether an update that goes to the device has the whole tree to itself.
    const UPDATES_ALONE: bool;

    fn act(&self, step: Step) -> trees::Result<()>;

    /// How long threads have waited for the whole tree, all together.
    fn waited(&self) -> Duration {
        Duration::ZERO
    }
}

impl SharedTree for SharedPioTree {
    const UPDATES_ALONE: bool = true;

    fn act(&self, Step { op, key, value, .. }: Step) -> trees::Result<()> {
        match op {
            Op::Search => self.search(key).map(|_| ()),
            Op::Range => self.range(key..value).map(|_| ()),
            Op::Insert | Op::Load => self.insert(key, value),
            Op::Update => self.update(key, value),
            Op::Delete => self.delete(key),
        }
    }

    fn waited(&self) -> Duration {
        SharedPioTree::waited(self)
    }
}

/// A PIO B-tree as if its lock were always free, for callers in virtual time: what the lock costs.
pub(crate) struct Unlocked(pub SharedPioTree);

impl SharedTree for Unlocked {
    const UPDATES_ALONE: bool = false;

    fn act(&self, step: Step) -> trees::Result<()> {
        self.0.act(step)
    }
}

impl SharedTree for BlinkTree {
    const UPDATES_ALONE: bool = false;

    fn act(&self, Step { op, key, value, .. }: Step) -> trees::Result<()> {
        match op {
            Op::Search => self.search(key).map(|_| ()),
            Op::Range => self.range(key..value).map(|_| ()),
            Op::Insert | Op::Load | Op::Update => BlinkTree::insert(self, key, value),
            Op::Delete => BlinkTree::delete(self, key),
        }
    }
}

/// Does all steps with so many threads, each of which takes the next step when it is through with one. Trees by index.
pub(crate) fn threads<T: SharedTree>(
    trees: &[T],
    steps: &mut (impl Iterator<Item = Step> + Send),
    threads: usize,
) -> Result<Duration> {
    // A few at a time, so that taking them is no bottleneck.
    const TAKEN: usize = 16;
    let steps = Mutex::new(steps);
    let began = Instant::now();
    let work = || -> trees::Result<()> {
        loop {
            let taken: Vec<Step> = match steps.lock() {
                Ok(mut steps) => steps.by_ref().take(TAKEN).collect(),
                // Another thread has panicked, and is about to be told of.
                Err(_) => return Ok(()),
            };
            if taken.is_empty() {
                return Ok(());
            }
            taken.into_iter().try_for_each(|step| trees[usize::from(step.tree)].act(step))?;
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(ended) => Ok(ended?),
            Err(_) => Err(Failure::CannotRun("a thread of the trace panicked".to_owned())),
        })
    })?;
    Ok(began.elapsed())
}

/// Who uses a tree.
#[derive(Default)]
struct Lock {
    users: usize,
    /// The caller that has it alone, or waits for the others to be through.
    alone: Option<usize>,
    /// Callers whose step has not begun, in order of arrival.
    waiting: VecDeque<(usize, Step)>,
}

/// One who does steps.
#[derive(Default)]
struct Caller {
    tree: usize,
    /// What the drive has to do for the step.
    batches: VecDeque<Batch>,
}

struct Play<'a, T> {
    ssd: &'a Ssd,
    trees: &'a [T],
    callers: Vec<Caller>,
    locks: Vec<Lock>,
    tickets: HashMap<u64, usize>,
    /// Callers without a step.
    idle: VecDeque<usize>,
}

/// Does all steps with so many callers, as [`threads`] does, in the virtual time of the drive that the trees are on.
pub(crate) fn in_virtual_time<T: SharedTree>(
    ssd: &Ssd,
    trees: &[T],
    steps: &mut impl Iterator<Item = Step>,
    callers: usize,
) -> Result<Duration> {
    ssd.drain();
    let began = ssd.now();
    let mut play = Play {
        ssd,
        trees,
        callers: (0..callers).map(|_| Caller::default()).collect(),
        locks: trees.iter().map(|_| Lock::default()).collect(),
        tickets: HashMap::new(),
        idle: (0..callers).collect(),
    };
    loop {
        while let Some(caller) = play.idle.pop_front() {
            let Some(step) = steps.next() else { break };
            play.ask(caller, step)?;
        }
        let Some(ticket) = ssd.next_answered() else { break };
        let Some(caller) = play.tickets.remove(&ticket) else { continue };
        play.go_on(caller)?;
    }
    Ok(ssd.now() - began)
}

impl<T: SharedTree> Play<'_, T> {
    /// A caller wants to do a step.
    fn ask(&mut self, caller: usize, step: Step) -> Result<()> {
        let lock = &mut self.locks[usize::from(step.tree)];
        if lock.alone.is_some() || !lock.waiting.is_empty() {
            lock.waiting.push_back((caller, step));
            return Ok(());
        }
        self.begin(caller, step)
    }

    /// Carries the step out; the caller waits for the drive, or first for others.
    fn begin(&mut self, caller: usize, step: Step) -> Result<()> {
        let tree = usize::from(step.tree);
        let (done, batches) = self.ssd.deferring(|| self.trees[tree].act(step));
        done?;
        let is_update = !matches!(step.op, Op::Search | Op::Range);
        let alone = T::UPDATES_ALONE && is_update && !batches.is_empty();
        self.callers[caller] = Caller { tree, batches: batches.into() };
        let lock = &mut self.locks[tree];
        if alone {
            lock.alone = Some(caller);
            return if lock.users == 0 { self.go_on(caller) } else { Ok(()) };
        }
        lock.users += 1;
        self.go_on(caller)
    }

    /// The caller's next batch, or the end of its step.
    fn go_on(&mut self, caller: usize) -> Result<()> {
        if let Some(batch) = self.callers[caller].batches.pop_front() {
            self.tickets.insert(self.ssd.submit(batch), caller);
            return Ok(());
        }
        self.idle.push_back(caller);
        let tree = self.callers[caller].tree;
        let lock = &mut self.locks[tree];
        if lock.alone == Some(caller) {
            lock.alone = None;
        } else {
            lock.users -= 1;
            if let (0, Some(alone)) = (lock.users, lock.alone) {
                return self.go_on(alone);
            }
        }
        while self.locks[tree].alone.is_none()
            && let Some((caller, step)) = self.locks[tree].waiting.pop_front()
        {
            self.begin(caller, step)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantity::Simulated;
    use crate::trace::replay::{Forest, plant};
    use crate::tree_ground::TreeGround;
    use flash::{FtlOptions, Profile};
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};
    use std::sync::Arc;
    use trees::{BlinkOptions, LogMode, PioOptions, PioTree};

    fn pio_options() -> PioOptions {
        PioOptions { segments: 1, queue_pages: 1, frames: 4, log: LogMode::Off, ..PioOptions::default() }
    }

    fn blink_options() -> BlinkOptions {
        BlinkOptions { frames: 5, ..BlinkOptions::default() }
    }

    fn records() -> impl Iterator<Item = (u64, u64)> {
        (0..20_000).map(|key| (2 * key, key))
    }

    fn steps() -> Vec<Step> {
        let mut rng = StdRng::seed_from_u64(3);
        let step = |_| {
            let key = rng.random_range(0..40_000);
            match rng.random_range(0..10) {
                0..6 => Step::new(0, Op::Search, key, 0),
                6 => Step::new(0, Op::Range, key, key + 400),
                7 => Step::new(0, Op::Delete, key, 0),
                _ => Step::new(0, Op::Insert, key, key),
            }
        };
        (0..6000).map(step).collect()
    }

    fn drive() -> Ssd {
        Ssd::new(Profile::ssdsim(), FtlOptions::default(), 0).unwrap().with_pio_max(256)
    }

    fn pio(callers: usize) -> (Duration, u64, Vec<(u64, u64)>) {
        let ssd = drive();
        let volume = Arc::new(ssd.clone());
        let tree = PioTree::bulk_load(volume, &pio_options(), 0.69, &mut records()).unwrap();
        let trees = [SharedPioTree::new(tree)];
        let took = in_virtual_time(&ssd, &trees, &mut steps().into_iter(), callers).unwrap();
        let [tree] = trees;
        let flushes = tree.stats().flushes;
        (took, flushes, tree.into_inner().range(0..u64::MAX).unwrap())
    }

    fn blink(callers: usize) -> (Duration, Vec<(u64, u64)>) {
        let ssd = drive();
        let volume = Arc::new(ssd.clone());
        let trees = [BlinkTree::bulk_load(volume, &blink_options(), 0.69, &mut records()).unwrap()];
        let took = in_virtual_time(&ssd, &trees, &mut steps().into_iter(), callers).unwrap();
        (took, trees[0].range(0..u64::MAX).unwrap())
    }

    /// Virtual time for one caller is what the same steps take without all this.
    #[test]
    fn one_caller_takes_as_long_as_a_replay() {
        let replayed = |plant: crate::trace::replay::Plant<'_>| {
            let ground = TreeGround::<Simulated>::on_ssdsim(0).unwrap();
            let mut forest = Forest::bare();
            forest.plant(&ground, plant, 0, &mut records()).unwrap();
            ground.rest();
            let began = ground.now();
            let mut time = Duration::ZERO;
            forest
                .replay(
                    &ground,
                    plant,
                    steps().into_iter().map(Ok).chain(std::iter::from_fn(|| {
                        time = ground.now() - began;
                        None
                    })),
                    false,
                )
                .unwrap();
            time
        };
        assert_eq!(pio(1).0, replayed(&plant::<PioTree>(|_| pio_options())));
        assert_eq!(blink(1).0, replayed(&plant::<BlinkTree>(|_| blink_options())));
    }

    #[test]
    fn many_callers_do_the_same_in_less_time() {
        let (one, flushes, records) = pio(1);
        assert!(flushes > 3, "{flushes}");
        let (blink_one, blink_records) = blink(1);
        assert_eq!(blink_records, records);
        for callers in [4, 16] {
            // Steps begin in the same order, and are carried out as they begin.
            let (many, _, same) = pio(callers);
            assert_eq!(same, records);
            let (blink_many, same) = blink(callers);
            assert_eq!(same, records);
            for (one, many) in [(one, many), (blink_one, blink_many)] {
                let gain = one.as_secs_f64() / many.as_secs_f64();
                assert!(gain > 1.5 && gain <= callers as f64, "{callers} callers: {gain}");
            }
        }
    }

    #[test]
    fn a_lock_costs_nothing_alone_and_something_among_many() {
        let unlocked = |callers| {
            let ssd = drive();
            let volume = Arc::new(ssd.clone());
            let tree = PioTree::bulk_load(volume, &pio_options(), 0.69, &mut records()).unwrap();
            let trees = [Unlocked(SharedPioTree::new(tree))];
            in_virtual_time(&ssd, &trees, &mut steps().into_iter(), callers).unwrap()
        };
        assert_eq!(unlocked(1), pio(1).0);
        assert!(
            unlocked(16).as_secs_f64() < 0.98 * pio(16).0.as_secs_f64(),
            "{:?} {:?}",
            unlocked(16),
            pio(16).0
        );
    }

    #[test]
    fn threads_do_all_steps() {
        let volume = Arc::new(psync::Simulated::new(1));
        let tree = PioTree::bulk_load(volume, &pio_options(), 0.69, &mut records()).unwrap();
        let trees = [SharedPioTree::new(tree)];
        let inserts = (0..5000).map(|key| Step::new(0, Op::Insert, 2 * key + 1, 7));
        threads(&trees, &mut inserts.into_iter(), 4).unwrap();
        let [tree] = trees;
        assert_eq!(tree.into_inner().check().unwrap().records, 25_000);
    }
}
