//! The process that holds a store, and the program that it runs.
//!
//! Invariants:
//! 1. a worker is inside its fence before it gets an order;
//! 2. a worker does not outlive its [`Worker`];
//! 3. one that does not answer in time is killed: nobody holds up the race.

use super::fence::Fence;
use crate::failure::{Failure, Result};
use crate::interrupt;
use arena::{Answer, Order};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Where the peers are, from the sources that this program was built from.
const PEERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../peers");

/// The worker program.
#[derive(Clone, Debug)]
pub(crate) struct Program(PathBuf);

impl Program {
    /// The program at `path`, or the one that `cargo build` makes of the peers; built first if `build` says so.
    pub fn find(path: Option<&Path>, build: bool) -> Result<Self> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => Path::new(PEERS).join("target/release/sapwood-peers"),
        };
        if build {
            let manifest = Path::new(PEERS).join("Cargo.toml");
            let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
            let status = Command::new(cargo)
                .args(["build", "--release", "--manifest-path"])
                .arg(&manifest)
                .status()
                .map_err(|error| Failure::at("build", &manifest, error))?;
            if !status.success() {
                let what = format!(
                    "the peers could not be built ({status}); leave out the one that fails: cargo build --release \
                     --manifest-path crates/peers/Cargo.toml --no-default-features --features lmdb,redb"
                );
                return Err(Failure::CannotRun(what));
            }
        }
        if path.exists() {
            return Ok(Self(path));
        }
        let what = format!(
            "the worker program {} is not there: --build builds it (it takes minutes), or name another with --worker",
            path.display()
        );
        Err(Failure::CannotRun(what))
    }

    /// The stores that it was built with.
    pub fn stores(&self) -> Result<Vec<String>> {
        let output = Command::new(&self.0).arg("--list").output();
        let output = output.map_err(|error| Failure::at("start", &self.0, error))?;
        let names: Vec<String> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
        if !output.status.success() || names.is_empty() {
            let what =
                format!("{} is no worker of the arena: --list gave {}", self.0.display(), output.status);
            return Err(Failure::CannotRun(what));
        }
        Ok(names)
    }
}

/// Why a worker gave no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// It said so, and goes on.
    Refused(String),
    /// It is gone.
    Died(String),
}

impl Trouble {
    pub fn reason(&self) -> &str {
        let (Trouble::Refused(reason) | Trouble::Died(reason)) = self;
        reason
    }
}

/// See the module.
pub(crate) struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    answers: Receiver<Answer>,
    /// What the kernel had killed inside the fence before.
    kills: u64,
    /// The last lines that it said on standard error.
    said: Arc<Mutex<Vec<String>>>,
}

const LINES_KEPT: usize = 4;

impl Worker {
    /// Starts one inside the fence.
    pub fn start(program: &Program, fence: &Fence) -> Result<Self> {
        let start = |error| Failure::at("start", &program.0, error);
        let mut command = Command::new(&program.0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Away from the terminal's Ctrl-C: the race ends it in good order.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().map_err(start)?;
        let (input, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (tell, answers) = channel();
        let said = Arc::new(Mutex::new(Vec::new()));
        let worker = Self { child, input, answers, kills: fence.kills(), said: Arc::clone(&said) };
        fence
            .admit(worker.process())
            .map_err(|error| Failure::Io(format!("limit a worker's memory: {error}")))?;
        std::thread::spawn(move || {
            for line in output
                .into_iter()
                .flat_map(|output| BufReader::new(output).lines())
                .map_while(|line| line.ok())
            {
                let answer = serde_json::from_str(&line).unwrap_or_else(|_| Answer::Failed {
                    doing: "understand the worker".into(),
                    reason: line,
                });
                if tell.send(answer).is_err() {
                    break;
                }
            }
        });
        std::thread::spawn(move || {
            for line in errors
                .into_iter()
                .flat_map(|errors| BufReader::new(errors).lines())
                .map_while(|line| line.ok())
            {
                let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
                said.push(line);
                let surplus = said.len().saturating_sub(LINES_KEPT);
                said.drain(..surplus);
            }
        });
        Ok(worker)
    }

    /// Its process.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Gives an order, and waits for the answer; `progress` hears the share that is done. Ends early, without an answer, when
    /// `enough` says so.
    ///
    /// # Errors
    /// [`Failure::Interrupted`]. Trouble with the worker is no failure of the race.
    pub fn order(
        &mut self,
        order: &Order,
        fence: &Fence,
        longest: Duration,
        mut progress: impl FnMut(f64),
        mut enough: impl FnMut(Duration) -> bool,
    ) -> Result<std::result::Result<Option<Answer>, Trouble>> {
        let line = serde_json::to_string(order).map_err(|error| Failure::Io(error.to_string()))?;
        if let Some(input) = &mut self.input {
            // One that is gone is found out below.
            let _ = writeln!(input, "{line}").and_then(|()| input.flush());
        }
        let began = Instant::now();
        loop {
            if interrupt::pressed() {
                return Err(Failure::Interrupted);
            }
            if enough(began.elapsed()) {
                return Ok(Ok(None));
            }
            if began.elapsed() > longest {
                self.kill();
                let reason = format!("it gave no answer for {:.0} s and was killed", longest.as_secs_f64());
                return Ok(Err(Trouble::Died(reason)));
            }
            match self.answers.recv_timeout(Duration::from_millis(100)) {
                Ok(Answer::Progress { share }) => progress(share),
                Ok(Answer::Failed { doing, reason }) => {
                    return Ok(Err(Trouble::Refused(format!("{doing}: {reason}"))));
                }
                Ok(answer) => return Ok(Ok(Some(answer))),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(Err(self.obituary(fence))),
            }
        }
    }

    fn obituary(&mut self, fence: &Fence) -> Trouble {
        let status = self.child.wait();
        if fence.kills() > self.kills {
            return Trouble::Died("the kernel killed it: it needed more memory than the limit".into());
        }
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner).join(" | ");
        let how = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        Trouble::Died(format!("it died ({how}) {said}"))
    }

    /// Ends it as a crash would (SIGKILL).
    pub fn kill(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
    }
}
