//! Runs the program and takes its answer.

use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// What a run said.
pub struct Answer {
    pub code: Option<i32>,
    pub output: String,
    pub errors: String,
}

/// On the disk that holds the build, since the system's temporary directory may be in memory.
pub fn scratch() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

pub fn lab(dir: &Path, arguments: &[&str]) -> Answer {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sapwood-lab"));
    let output = command.current_dir(dir).args(arguments).stdin(Stdio::null()).output().unwrap();
    Answer {
        code: output.status.code(),
        output: String::from_utf8(output.stdout).unwrap(),
        errors: String::from_utf8(output.stderr).unwrap(),
    }
}

impl Answer {
    /// Fails unless the code is this, and shows all that was said.
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "output:\n{}\nerrors:\n{}", self.output, self.errors);
        self
    }
}
