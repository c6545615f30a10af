//! What psync is compared with: many workers, each with one synchronous request at a time, as threads or as processes.
//!
//! Invariants:
//! 1. Every worker has its file open and its memory ready before the clock starts, and none does anything before it.
//! 2. A worker process ends when its parent does: it lives on its standard input.

use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::quantity::{Lapse, Wall};
use crate::row::Row;
use crate::usage::Usage;
use crate::write_order::WriteOrder;
use psync::AlignedBuffer;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Barrier;
use std::time::Instant;

/// Bytes of each request.
const BYTES: usize = 4 << 10;

/// What one worker does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    /// The file.
    pub path: PathBuf,
    /// Its length in bytes.
    pub len: u64,
    /// Whether to bypass the page cache.
    pub direct: bool,
    /// Whether every other request, by chance, is a write.
    pub mixed: bool,
    pub requests: u64,
    pub seed: u64,
    /// Requests go in the order that POSIX asks for; between processes a lock on this file sees to that.
    pub order: Option<PathBuf>,
}

impl Job {
    /// The same among `workers` on the same file, each with its own places.
    pub fn split(&self, workers: usize, seed: u64) -> Vec<Job> {
        let requests = self.requests.div_ceil(workers as u64);
        let job = |worker| Job { requests, seed: seed * 1024 + worker as u64, ..self.clone() };
        (0..workers).map(job).collect()
    }
}

/// What a worker's requests must pass.
enum Gate<'a> {
    Open,
    Threads(&'a WriteOrder),
    Processes(File),
}

impl Gate<'_> {
    fn pass(&self, write: bool, work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        match self {
            Gate::Open => work(),
            Gate::Threads(order) => order.pass(write, work),
            Gate::Processes(file) => {
                if write {
                    file.lock()?;
                } else {
                    file.lock_shared()?;
                }
                let answer = work();
                file.unlock()?;
                answer
            }
        }
    }
}

fn open(job: &Job) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    #[cfg(target_os = "linux")]
    if job.direct {
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, nix::fcntl::OFlag::O_DIRECT.bits());
    }
    options.open(&job.path)
}

/// Does the job, after `ready` returns; with `step`, waits for all others after each request.
fn work(
    job: &Job,
    gate: &Gate<'_>,
    step: Option<&Barrier>,
    ready: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let opened = open(job);
    let mut rng = StdRng::seed_from_u64(job.seed);
    let mut buffer = AlignedBuffer::new(BYTES);
    rng.fill(&mut buffer[..]);
    let slots = job.len / BYTES as u64;
    // Whoever could not open the file must still not leave the others waiting.
    ready()?;
    let mut answer = opened;
    for _ in 0..job.requests {
        let offset = rng.random_range(0..slots) * BYTES as u64;
        let write = job.mixed && rng.random_bool(0.5);
        answer = answer.and_then(|file| {
            if interrupt::pressed() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            gate.pass(write, || {
                if write { write_at(&file, &buffer, offset) } else { read_at(&file, &mut buffer, offset) }
            })?;
            Ok(file)
        });
        match step {
            // Whoever failed goes on stepping, so that nobody waits for ever.
            Some(step) => drop(step.wait()),
            None if answer.is_err() => break,
            None => {}
        }
    }
    answer.map(drop)
}

#[cfg(unix)]
fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buffer, offset)
}

#[cfg(unix)]
fn write_at(file: &File, data: &[u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, data, offset)
}

#[cfg(not(unix))]
fn read_at(_: &File, _: &mut [u8], _: u64) -> io::Result<()> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}

#[cfg(not(unix))]
fn write_at(_: &File, _: &[u8], _: u64) -> io::Result<()> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}

/// What all workers together did.
pub(crate) struct Done {
    elapsed: Lapse<Wall>,
    usage: Option<Usage>,
    requests: u64,
}

impl Done {
    /// As a row of the line `series`.
    pub fn row(&self, series: &str, at: f64, run: u32) -> Row<Wall> {
        Row {
            series: series.to_owned(),
            at,
            run,
            requests: self.requests,
            bytes: self.requests * BYTES as u64,
            elapsed_us: self.elapsed,
            counts: self.usage.map(Usage::counts).unwrap_or_default(),
        }
    }
}

fn total(jobs: &[Job]) -> u64 {
    jobs.iter().map(|job| job.requests).sum()
}

fn failed(jobs: &[Job], error: &io::Error) -> Failure {
    if interrupt::pressed() {
        return Failure::Interrupted;
    }
    let path = jobs.first().map(|job| job.path.display().to_string()).unwrap_or_default();
    Failure::Io(format!("a worker on {path}: {error}"))
}

/// Does each job in a thread of its own.
pub(crate) fn threads(jobs: &[Job]) -> Result<Done> {
    threads_that(jobs, None)
}

/// The same, but after each request a thread waits until all have done theirs. The jobs have equally many requests.
pub(crate) fn threads_in_step(jobs: &[Job]) -> Result<Done> {
    assert!(jobs.windows(2).all(|pair| pair[0].requests == pair[1].requests), "someone would wait for ever");
    threads_that(jobs, Some(&Barrier::new(jobs.len())))
}

fn threads_that(jobs: &[Job], step: Option<&Barrier>) -> Result<Done> {
    let order = WriteOrder::default();
    let start = Barrier::new(jobs.len() + 1);
    let answer = std::thread::scope(|scope| {
        let workers: Vec<_> = jobs
            .iter()
            .map(|job| {
                let gate = if job.order.is_some() { Gate::Threads(&order) } else { Gate::Open };
                let start = &start;
                scope.spawn(move || {
                    work(job, &gate, step, || {
                        start.wait();
                        start.wait();
                        Ok(())
                    })
                })
            })
            .collect();
        // All are ready at the first; none begins before the second, however late this thread gets its processor.
        start.wait();
        let (before, began) = (Usage::so_far(), Instant::now());
        start.wait();
        let mut answer = Ok(());
        for worker in workers {
            let ended = worker.join().unwrap_or_else(|_| Err(io::Error::other("it panicked")));
            answer = answer.and(ended);
        }
        answer.map(|()| (began.elapsed(), Usage::since(before)))
    });
    let (elapsed, usage) = answer.map_err(|error| failed(jobs, &error))?;
    Ok(Done { elapsed: elapsed.into(), usage, requests: total(jobs) })
}

/// A worker process and the pipes to it. Dropping it closes its standard input, by which it ends.
struct Worker {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Worker {
    fn start(program: &Path, job: &Job) -> io::Result<Self> {
        let mut child =
            Command::new(program).arg("worker").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("a child without pipes"));
        };
        writeln!(input, "{}", serde_json::to_string(job)?)?;
        Ok(Self { child, input, output: BufReader::new(output) })
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err(io::Error::other("the worker ended early; its message is above"));
        }
        Ok(line.trim_end().to_owned())
    }
}

/// Does each job in a process of its own, which is this program again.
pub(crate) fn processes(program: &Path, jobs: &[Job]) -> Result<Done> {
    let run = || -> io::Result<Done> {
        let mut workers =
            jobs.iter().map(|job| Worker::start(program, job)).collect::<io::Result<Vec<_>>>()?;
        for worker in &mut workers {
            worker.line()?;
        }
        let began = Instant::now();
        for worker in &mut workers {
            writeln!(worker.input, "go")?;
        }
        let mut usage = Some(Usage::default());
        for worker in &mut workers {
            let spent: Option<Usage> = serde_json::from_str(&worker.line()?)?;
            usage = usage.zip(spent).map(|(sum, spent)| sum + spent);
        }
        let elapsed = began.elapsed();
        for worker in &mut workers {
            worker.child.wait()?;
        }
        Ok(Done { elapsed: elapsed.into(), usage, requests: total(jobs) })
    };
    run().map_err(|error| failed(jobs, &error))
}

/// What a worker process runs: a job from standard input, its cost to standard output.
pub(crate) fn serve() -> Result<()> {
    let run = || -> io::Result<()> {
        let mut input = io::stdin().lock();
        let mut line = String::new();
        input.read_line(&mut line)?;
        let job: Job = serde_json::from_str(&line)?;
        let gate = match &job.order {
            Some(path) => Gate::Processes(OpenOptions::new().read(true).write(true).open(path)?),
            None => Gate::Open,
        };
        let mut before = None;
        let mut output = io::stdout().lock();
        work(&job, &gate, None, || {
            writeln!(output, "ready")?;
            output.flush()?;
            let mut go = String::new();
            if input.read_line(&mut go)? == 0 {
                return Err(io::Error::other("the parent is gone"));
            }
            before = Usage::so_far();
            Ok(())
        })?;
        writeln!(output, "{}", serde_json::to_string(&Usage::since(before))?)?;
        output.flush()
    };
    run().map_err(|error| Failure::Io(format!("worker: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs(path: &Path, order: Option<PathBuf>) -> Vec<Job> {
        let job = |seed| Job {
            path: path.to_owned(),
            len: 64 << 10,
            direct: false,
            mixed: true,
            requests: 50,
            seed,
            order: order.clone(),
        };
        (0..4).map(job).collect()
    }

    #[test]
    fn threads_do_all_their_jobs() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(64 << 10).unwrap();
        for order in [None, Some(PathBuf::from("in memory"))] {
            let in_step = threads_in_step(&jobs(file.path(), order.clone())).unwrap();
            assert_eq!(in_step.requests, 200);
            let done = threads(&jobs(file.path(), order)).unwrap();
            let row = done.row("threads", 4.0, 1);
            assert_eq!((row.requests, row.bytes, row.at, row.run), (200, 200 << 12, 4.0, 1));
            assert!(row.elapsed_us > Lapse::micros(0.0));
            assert!(row.counts.is_empty() || row.count(crate::usage::SWITCHES) > 0.0);
        }
    }

    #[test]
    fn a_file_that_cannot_be_opened_fails_all_and_leaves_none_waiting() {
        let error = threads(&jobs(Path::new("/nowhere/at all"), None)).err().unwrap();
        assert!(error.to_string().contains("/nowhere/at all"), "{error}");
        assert!(threads_in_step(&jobs(Path::new("/nowhere/at all"), None)).is_err());
    }
}
