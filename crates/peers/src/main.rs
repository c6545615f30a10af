//! The worker: holds one store in a process of its own and does with it what `sapwood-lab arena` orders on standard input.
//! `sapwood-peers --list` names the stores that it was built with.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod allocator;

use std::io::{self, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    let done = match std::env::args().nth(1).as_deref() {
        None => arena::serve(io::stdin().lock(), io::stdout().lock(), peers::open),
        Some("--list") => writeln!(io::stdout(), "{}", peers::names().join("\n")),
        Some(other) => {
            let _ = writeln!(io::stderr(), "sapwood-peers: {other:?} is not known; only --list is");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "sapwood-peers: {error}");
            ExitCode::from(3)
        }
    }
}
