//! Runs the program in a directory of its own, and keeps what it said.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_sapwood");

/// Longer than anything here takes on a slow disk.
const PATIENCE: Duration = Duration::from_secs(600);
/// After Ctrl-C, in seconds: so that what is ended in order has the time for it on a slow disk.
const ENDS_WITHIN: &str = "300";

/// What a run came to.
#[derive(Debug)]
pub struct Said {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Said {
    pub fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("the program prints UTF-8");
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// Checks the exit code, and that errors are sentences for people.
    #[track_caller]
    pub fn ends(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        assert!(!self.err.contains("panicked"), "{self:#?}");
        for debug in ["Some(", "Err(", "Os {", "Custom {", "Error {"] {
            assert!(!self.err.contains(debug), "{self:#?}");
        }
        if code != 0 && code != 2 {
            assert!(self.err.contains("sapwood: "), "{self:#?}");
        }
        self
    }

    #[track_caller]
    pub fn tells(self, part: &str) -> Self {
        assert!(self.err.contains(part), "expected {part:?} in {self:#?}");
        self
    }
}

/// A directory to run in; removed at the end.
pub struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a temporary directory") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), content).expect("write a file of the test");
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(arguments).current_dir(self.dir.path()).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.env("INTERRUPT_ENDS_WITHIN", ENDS_WITHIN);
        command
    }

    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> Said {
        Said::from(self.command(arguments).output().expect("start the program"))
    }

    /// Runs with `input` on standard input.
    #[track_caller]
    pub fn feed(&self, arguments: &[&str], input: &[u8]) -> Said {
        let mut child = self.command(arguments).stdin(Stdio::piped()).spawn().expect("start the program");
        let mut stdin = child.stdin.take().expect("standard input");
        let input = input.to_vec();
        let feeder = std::thread::spawn(move || {
            // The program may end before it has read everything.
            let _ = stdin.write_all(&input);
        });
        let output = child.wait_with_output().expect("wait for the program");
        feeder.join().expect("feed the program");
        Said::from(output)
    }

    /// Loads lines of tsv into `ships.db`.
    pub fn ships(&self, tsv: &str) {
        self.feed(&["load", "ships.db"], tsv.as_bytes()).ends(0);
    }
}

/// Waits for the end, and fails the test rather than hang.
#[track_caller]
pub fn wait(mut child: Child) -> Said {
    let began = Instant::now();
    while child.try_wait().expect("ask for the program").is_none() {
        if began.elapsed() > PATIENCE {
            let _ = child.kill();
            panic!("the program did not end in {PATIENCE:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Said::from(child.wait_with_output().expect("read what the program said"))
}

/// Waits until something is so.
#[track_caller]
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !so() {
        assert!(began.elapsed() < PATIENCE, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether somebody holds the lock of the database, that is, has opened it.
pub fn is_open(db: &Path) -> bool {
    std::fs::read_to_string(db.join("LOCK")).is_ok_and(|holder| holder.contains("process"))
        && db.join("CURRENT").exists()
}

/// Bytes that look random, and are the same every time.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(|_| next()).collect()
}
