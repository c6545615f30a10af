//! The parts of the `sapwood` program: formats of records, commands, and what they share with each other.
//!
//! Exit codes: 0 fine, 1 not found, or damage found by what looks for it or reads backups (`check`, `repair`, `verify`, `restore`,
//! `backups`), 2 usage, 3 everything else (I/O, bad input, a locked database, damage that another command meets), 130 interrupted.

mod again;
mod arguments;
mod command;
mod escape;
mod failure;
mod file;
pub mod format;
mod input;
mod interrupt;
mod magic;
mod output;
mod progress;

use clap::Parser;
use std::process::ExitCode;

/// Runs the program with the arguments of this process.
pub fn run() -> ExitCode {
    let arguments = arguments::Arguments::parse();
    if let Some(level) = arguments.log {
        // A line that cannot be written is not told of where lines cannot be written: that would panic, in a thread of the store.
        let lines = tracing_subscriber::fmt().with_max_level(level).log_internal_errors(false);
        lines.with_ansi(false).with_writer(std::io::stderr).init();
    }
    match command::run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.tell(),
    }
}
