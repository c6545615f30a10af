//! Holds the race: repetition by repetition, in each of them every store in its turn, so that what changes on the machine
//! meanwhile changes for all.
//!
//! A store's turn:
//! ```text
//! durable puts     each on a fresh database
//! random load      on a fresh database; kept for what follows, if it was finished within its time
//! sorted load      on a fresh database; kept for what follows, if the random load was not finished
//! reads, YCSB, …   one after the other on the database that was kept, in a new process that begins cold; another one
//!                  where writes are to be of another durability, or transactions
//! ```
//!
//! Invariants:
//! 1. a store never meets a database, a page cache or a process of another's turn;
//! 2. what goes wrong with a store is a result of its, and the race goes on;
//! 3. nothing stays in the directory, however the race ends.

use super::fence::Fence;
use super::meter::{Cost, DeviceCounter, Meter, Sampler, files, write_back};
use super::plan::{LOAD_PATIENCE, Plan};
use super::quiet::wait_for_quiet;
use super::score::{Fate, Measured, Run, Score};
use super::worker::{Program, Trouble, Worker};
use crate::failure::{Failure, Result};
use crate::progress::{Progress, tell};
use crate::record::{Machine, conditions};
use arena::{Answer, Latency, Level, Limits, Open, Order, Outcome, Settings, Start, Workload};
use disk_profile::{Profile, ProfileOptions};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How much longer than it should a worker may take to answer: calls under way and a closing sync are waited for.
const GRACE: Duration = Duration::from_secs(300);

/// Runs everything, in a directory below `dir`. Ctrl-C ends it early, with what there is.
pub(crate) fn race(plan: &Plan, program: &Program, dir: &Path, command: &str) -> Result<Score> {
    let scratch = tempfile::Builder::new()
        .prefix("sapwood-arena-")
        .tempdir_in(dir)
        .map_err(|error| Failure::at("make a directory in", dir, error))?;
    let mut notes = conditions();
    let profile = profile(scratch.path(), &mut notes);
    let counter = DeviceCounter::of(scratch.path());
    // What was written a moment ago is our own: by this program's building, and by the measuring of the disk.
    tell("writing back what the file system holds");
    write_back(scratch.path());
    let disk = wait_for_quiet(counter.as_ref())?;
    notes.extend(disk.note());
    let fence = Fence::new(plan.memory);
    if !fence.holds() {
        tell(format_args!("warning: memory is not limited. {}", fence.about()));
    }
    let mut score = Score {
        format: Score::FORMAT,
        version: env!("CARGO_PKG_VERSION").into(),
        command: command.into(),
        date: humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string(),
        machine: Machine::this(Some(dir)),
        fence: fence.about().to_owned(),
        device_counts: disk.counts(),
        plan: plan.clone(),
        profile,
        notes,
        runs: Vec::new(),
    };
    drop(fence);
    let progress = Progress::new("arena");
    progress.expect(plan.workloads.len() * plan.engines.len() * plan.repeat as usize);
    for (repetition, engine) in plan.turns() {
        let turn = Turn {
            plan,
            program,
            counter: counter.as_ref(),
            engine,
            repetition,
            dir: scratch.path().join(format!("{engine}-{repetition}")),
            fence: Fence::new(plan.memory),
            progress: &progress,
        };
        match turn.run(&mut score.runs) {
            Err(Failure::Interrupted) => {
                score.notes.push("interrupted: what was done until then is here".into());
                break;
            }
            other => other?,
        }
    }
    Ok(score)
}

fn profile(dir: &Path, notes: &mut Vec<String>) -> Option<Profile> {
    let options = ProfileOptions { time_per_point: Duration::from_millis(60), ..ProfileOptions::default() };
    let progress = Progress::new("the disk alone");
    let mut told = None;
    let measured = Profile::measure(dir, &options, &mut |step| {
        if told.is_none() {
            progress.expect(step.total);
        }
        // A long point is told of more than once.
        if told.replace(step.done) != Some(step.done) {
            progress.step(step.what);
        }
    });
    match measured {
        Ok(profile) => Some(profile),
        Err(error) => {
            notes.push(format!("the disk alone could not be measured: {error}"));
            None
        }
    }
}

/// One store in one repetition.
struct Turn<'a> {
    plan: &'a Plan,
    program: &'a Program,
    counter: Option<&'a DeviceCounter>,
    engine: &'a str,
    repetition: u32,
    dir: PathBuf,
    fence: Fence,
    progress: &'a Progress,
}

/// What a store is opened for.
#[derive(Clone, Copy, PartialEq)]
struct Mode {
    level: Level,
    transactions: bool,
}

impl Mode {
    fn of(workload: Workload) -> Self {
        Self { level: workload.level(), transactions: workload.is_transactional() }
    }
}

/// A worker with an open store.
struct Opened {
    worker: Worker,
    mode: Mode,
    seconds: f64,
    /// Whether the store can open a database again.
    reopens: bool,
}

/// A loaded database.
struct Base {
    dir: PathBuf,
    /// The process that loaded it, where no other can open it.
    open: Option<Opened>,
}

impl Turn<'_> {
    fn run(&self, runs: &mut Vec<Run>) -> Result<()> {
        for workload in [Workload::DurablePut1, Workload::DurablePut16] {
            if self.wants(workload) {
                let fate =
                    self.on_fresh(workload, self.dir.join(workload.name()), self.plan.limits, false)?.0;
                self.tell(runs, workload, fate);
            }
        }
        if let Some(base) = self.loads(runs)? {
            self.on_loaded(base, runs)?;
        } else {
            for workload in self.loaded_workloads() {
                self.tell(runs, workload, Fate::Missing("its database could not be loaded in time".into()));
            }
        }
        remove(&self.dir)
    }

    fn wants(&self, workload: Workload) -> bool {
        self.plan.workloads.contains(&workload)
    }

    fn loaded_workloads(&self) -> Vec<Workload> {
        let all = self.plan.workloads.iter().copied();
        all.filter(|workload| workload.start() == Start::Loaded).collect()
    }

    fn tell(&self, runs: &mut Vec<Run>, workload: Workload, fate: Fate) {
        runs.push(Run { engine: self.engine.to_owned(), workload, repetition: self.repetition, fate });
    }

    /// Loads, as far as somebody wants it, and gives a database that holds all records.
    fn loads(&self, runs: &mut Vec<Run>) -> Result<Option<Base>> {
        let needed = self.plan.loads();
        let mut base = None;
        for workload in [Workload::RandomLoad, Workload::SortedLoad] {
            let wanted = self.wants(workload);
            if !wanted && (!needed || base.is_some()) {
                continue;
            }
            let dir = self.dir.join(workload.name());
            let keep = needed && base.is_none();
            // A process that holds the database of the first load has that load's memory.
            let apart = base.as_ref().is_some_and(|base: &Base| base.open.is_some()).then(|| self.apart());
            let turn = apart.as_ref().unwrap_or(self);
            let (fate, kept) = turn.on_fresh(workload, dir, self.plan.limits, keep)?;
            if wanted {
                self.tell(runs, workload, fate);
            }
            base = base.or(kept);
        }
        if needed && base.is_none() {
            // Not measured: without it there is nothing to read.
            let dir = self.dir.join("patient-load");
            let limits = Limits { cap: self.plan.limits.cap * LOAD_PATIENCE, ..self.plan.limits };
            base = self.on_fresh(Workload::SortedLoad, dir, limits, true)?.1;
        }
        Ok(base)
    }

    /// The same with memory of its own.
    fn apart(&self) -> Self {
        Self { dir: self.dir.clone(), fence: Fence::new(self.plan.memory), ..*self }
    }

    /// A workload that begins with nothing. With `keep` a database that was loaded wholly stays, closed in good order if it
    /// can be opened again.
    fn on_fresh(
        &self,
        workload: Workload,
        dir: PathBuf,
        limits: Limits,
        keep: bool,
    ) -> Result<(Fate, Option<Base>)> {
        self.step(workload);
        let mut open = match self.open(&dir, Mode::of(workload), false, 0)? {
            Ok(open) => open,
            Err(trouble) => {
                remove(&dir)?;
                return Ok((Fate::Missing(trouble.reason().to_owned()), None));
            }
        };
        let (fate, _) = self.measure(&mut open.worker, workload, &dir, limits)?;
        let is_whole = keep && matches!(&fate, Fate::Ran(measured) if measured.outcome.done >= 1.0);
        if is_whole && !open.reopens {
            return Ok((fate, Some(Base { dir, open: Some(open) })));
        }
        let is_kept = if is_whole {
            self.close(open)?.is_ok()
        } else {
            drop(open);
            false
        };
        if is_kept {
            return Ok((fate, Some(Base { dir, open: None })));
        }
        remove(&dir)?;
        Ok((fate, None))
    }

    /// All workloads on the loaded database.
    fn on_loaded(&self, base: Base, runs: &mut Vec<Run>) -> Result<()> {
        let Base { dir, mut open } = base;
        let dir = dir.as_path();
        let mut lost: Option<String> = None;
        let mut inserted = 0;
        for workload in self.loaded_workloads() {
            self.step(workload);
            if let Some(reason) = &lost {
                self.tell(runs, workload, Fate::Missing(reason.clone()));
                continue;
            }
            let mode = Mode::of(workload);
            if let Some(other) = open.take_if(|open| open.mode != mode && open.reopens)
                && let Err(reason) = self.close(other)?
            {
                let reason = format!("the database did not close: {reason}");
                self.tell(runs, workload, Fate::Missing(reason.clone()));
                lost = Some(reason);
                continue;
            }
            if open.is_none() {
                match self.open(dir, mode, true, inserted)? {
                    Ok(opened) => open = Some(opened),
                    Err(trouble) => {
                        let reason = format!("the database could not be opened: {}", trouble.reason());
                        self.tell(runs, workload, Fate::Missing(reason.clone()));
                        lost = Some(reason);
                        continue;
                    }
                }
            }
            let Some(now) = &mut open else { continue };
            let fate = if (workload == Workload::OpenKilled || now.mode != mode) && !now.reopens {
                Fate::Missing("it cannot open a database again".into())
            } else if workload == Workload::OpenKilled {
                self.kill_in_the_middle(&mut now.worker)?;
                open = None;
                match self.open(dir, mode, true, inserted)? {
                    Ok(opened) => {
                        let fate = Fate::Ran(Box::new(opening(opened.seconds)));
                        open = Some(opened);
                        fate
                    }
                    Err(trouble) => {
                        lost = Some(format!("the database did not open after SIGKILL: {}", trouble.reason()));
                        Fate::Missing(trouble.reason().to_owned())
                    }
                }
            } else {
                let (fate, more) = self.measure(&mut now.worker, workload, dir, self.plan.limits)?;
                match more {
                    Ok(more) => inserted = more,
                    Err(Trouble::Died(reason)) => lost = Some(format!("{workload}: {reason}")),
                    Err(Trouble::Refused(_)) => {}
                }
                fate
            };
            self.tell(runs, workload, fate);
        }
        Ok(())
    }

    /// Closes a store in good order. If it does not close, says why.
    fn close(&self, mut open: Opened) -> Result<std::result::Result<(), String>> {
        Ok(match open.worker.order(&Order::Close, &self.fence, GRACE, |_| (), |_| false)? {
            Ok(Some(Answer::Closed)) => Ok(()),
            Ok(other) => Err(format!("it answered {other:?}")),
            Err(trouble) => Err(trouble.reason().to_owned()),
        })
    }

    fn step(&self, workload: Workload) {
        if self.wants(workload) {
            self.progress.step(&format!("{} {workload}", self.engine));
        }
    }

    fn open(
        &self,
        dir: &Path,
        mode: Mode,
        loaded: bool,
        inserted: u64,
    ) -> Result<std::result::Result<Opened, Trouble>> {
        self.begin_cold();
        let mut worker = Worker::start(self.program, &self.fence)?;
        let records = self.plan.records;
        let settings = Settings {
            dir: dir.to_owned(),
            memory: self.plan.memory,
            bytes: self.plan.bytes(),
            key_len: records.key_len,
            value_len: records.value_len,
            level: mode.level,
            values: records.kind,
            codec: self.plan.codec,
            disk: self.plan.disk,
            transactions: mode.transactions,
        };
        let (engine, text) = (self.engine.to_owned(), self.plan.text.clone());
        let order = Order::Open(Open { engine, settings, records, text, loaded, inserted });
        let answer = worker.order(&order, &self.fence, GRACE + self.plan.limits.cap, |_| (), |_| false)?;
        Ok(match answer {
            Ok(Some(Answer::Opened { seconds, reopens })) => Ok(Opened { worker, mode, seconds, reopens }),
            Ok(other) => Err(Trouble::Died(format!("it answered {other:?} to an order to open"))),
            Err(trouble) => Err(trouble),
        })
    }

    /// The page cache forgets the store's files: pages that were paid for by a process which is gone are free of charge for
    /// the next one otherwise.
    fn begin_cold(&self) {
        for path in files(&self.dir) {
            forget(&path);
        }
        self.fence.forget_pages();
    }

    /// Runs a workload; what it came to, and how many records were inserted so far, or what the trouble was.
    fn measure(
        &self,
        worker: &mut Worker,
        workload: Workload,
        dir: &Path,
        limits: Limits,
    ) -> Result<(Fate, std::result::Result<u64, Trouble>)> {
        let meter = Meter::begin(worker.process(), &self.fence, self.counter, dir);
        let seed = u64::from(self.repetition) * 100 + workload as u64;
        let order = Order::Run { workload, limits, seed };
        let longest = limits.cap.max(limits.steady + limits.warm_up) + GRACE;
        let (answer, anonymous) = Sampler::during(&self.fence, || {
            let show = |share: f64| {
                self.progress.detail(&format!("{} {workload} {:.0} %", self.engine, share * 100.0));
            };
            worker.order(&order, &self.fence, longest, show, |_| false)
        });
        Ok(match answer? {
            Ok(Some(Answer::Ran { outcome, inserted })) => {
                let settle = if workload.writes() { self.plan.settle } else { Duration::ZERO };
                let cost = meter.end(settle, anonymous);
                (Fate::Ran(Box::new(Measured { outcome, cost })), Ok(inserted))
            }
            Ok(other) => {
                let reason = format!("it answered {other:?} to an order to run");
                (Fate::Missing(reason.clone()), Err(Trouble::Died(reason)))
            }
            Err(trouble) => (Fate::Missing(trouble.reason().to_owned()), Err(trouble)),
        })
    }

    /// Has it write, and kills it in the middle.
    fn kill_in_the_middle(&self, worker: &mut Worker) -> Result<()> {
        let limits = Limits { cap: self.plan.limits.steady * 4, ..self.plan.limits };
        let order = Order::Run { workload: Workload::OpenKilled, limits, seed: u64::from(self.repetition) };
        let until = self.plan.limits.warm_up + self.plan.limits.steady;
        let began = Instant::now();
        let enough = |_| began.elapsed() >= until;
        // If there is trouble, the opening that follows tells.
        let _ = worker.order(&order, &self.fence, until + GRACE, |_| (), enough)?;
        worker.kill();
        Ok(())
    }
}

/// Opening as an outcome: one operation that took so long.
fn opening(seconds: f64) -> Measured {
    let micros = seconds * 1e6;
    let latency = Latency { p50_us: micros, p99_us: micros, p999_us: micros, max_us: micros };
    let outcome = Outcome {
        operations: 1,
        warm_up_operations: Some(0),
        calls: 1,
        seconds,
        bytes_written: 0,
        bytes_read: 0,
        latency,
        done: 1.0,
        conflicts: 0,
    };
    Measured { outcome, cost: Cost::default() }
}

fn remove(dir: &Path) -> Result<()> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Failure::at("remove", dir, error)),
        _ => Ok(()),
    }
}

#[cfg(target_os = "linux")]
fn forget(path: &Path) {
    use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
    if let Ok(file) = std::fs::File::open(path) {
        // Dirty pages cannot be forgotten. Advice is advice: the limit holds without it.
        let _ = file.sync_all();
        let _ = posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
    }
}

#[cfg(not(target_os = "linux"))]
fn forget(_: &Path) {}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::arena::plan::tests::plan;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    /// A store that cannot open a database again: the process that made the first load lives on through the second.
    #[test]
    fn no_two_processes_share_a_memory_limit() {
        let dir = tempfile::tempdir().unwrap();
        let (script, log) = (dir.path().join("worker"), dir.path().join("groups"));
        let ran = serde_json::to_string(&Answer::Ran { outcome: opening(1.0).outcome, inserted: 0 }).unwrap();
        let opened = serde_json::to_string(&Answer::Opened { seconds: 0.0, reopens: false }).unwrap();
        let text = format!(
            "#!/bin/sh\nwhile read -r line; do case \"$line\" in\n*'\"open\"'*) grep -o 'sapwood-arena.*' /proc/$$/cgroup \
             | head -n 1 >> '{}'; echo '{opened}';;\n*) echo '{ran}';;\nesac; done\n",
            log.display()
        );
        fs::write(&script, text).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let workloads = [Workload::RandomLoad, Workload::SortedLoad, Workload::Get1];
        let mut plan = plan(&["fake"], &workloads);
        plan.settle = Duration::ZERO;
        let turn = Turn {
            plan: &plan,
            program: &Program::find(Some(&script), false).unwrap(),
            counter: None,
            engine: "fake",
            repetition: 0,
            dir: dir.path().join("store"),
            fence: Fence::new(plan.memory),
            progress: &Progress::new("a test"),
        };
        if !turn.fence.holds() {
            println!("skipped: {}", turn.fence.about());
            return;
        }
        let mut runs = Vec::new();
        turn.run(&mut runs).unwrap();
        assert!(runs.iter().all(|run| matches!(run.fate, Fate::Ran(_))), "{runs:?}");
        let groups = fs::read_to_string(&log).unwrap();
        let groups: Vec<&str> = groups.lines().collect();
        assert_eq!(groups.len(), 2, "{groups:?}");
        assert_ne!(groups[0], groups[1]);
    }
}
