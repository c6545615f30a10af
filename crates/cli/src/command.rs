//! The commands, one a file.

mod check;
mod del;
mod dump;
mod get;
mod load;
mod probe;
mod put;
mod scan;
mod stats;
mod tour;

use crate::arguments::{Arguments, Command};
use crate::escape::unescape;
use crate::failure::{Failure, Result};
use sapwood::{Database, Keyspace};
use std::path::Path;

/// Runs the command that was asked for.
pub(crate) fn run(arguments: Arguments) -> Result<()> {
    let memory = arguments.memory;
    match arguments.command {
        Command::Load(options) => load::run(&options, memory),
        Command::Dump(options) => dump::run(&options, memory),
        Command::Get(options) => get::run(&options, memory),
        Command::Put(options) => put::run(&options, memory),
        Command::Del(options) => del::run(&options, memory),
        Command::Scan(options) => scan::run(&options, memory),
        Command::Stats(options) => stats::run(&options, memory),
        Command::Check(options) => check::run(&options, memory),
        Command::Probe(options) => probe::run(&options),
        Command::Tour(options) => tour::run(&options),
    }
}

/// Says it in the words of the command line when somebody took a file for a database.
fn refuse_file(path: &Path) -> Result<()> {
    if path.is_file() {
        let path = path.display();
        return Err(Failure::Other(format!(
            "{path} is a file, and a database is a directory; the database comes first: sapwood load DB FILE"
        )));
    }
    Ok(())
}

fn open_to_read(path: &Path, memory: u64) -> Result<Database> {
    refuse_file(path)?;
    Ok(Database::builder().memory(memory).read_only(true).create(false).open(path)?)
}

fn open_to_write(path: &Path, memory: u64, create: bool) -> Result<Database> {
    refuse_file(path)?;
    Ok(Database::builder().memory(memory).create(create).open(path)?)
}

/// A keyspace that is there.
fn existing(db: &Database, name: &str) -> Result<Keyspace> {
    let names = db.keyspaces();
    if names.iter().any(|existing| existing == name) {
        return Ok(db.keyspace(name)?);
    }
    Err(Failure::NotFound(if names.is_empty() {
        "the database is empty: it has no keyspaces".to_owned()
    } else {
        format!("there is no keyspace {name:?}; there are: {}; choose one with --keyspace", names.join(", "))
    }))
}

/// The bytes of a key or value from the command line.
fn bytes(text: &str) -> Result<Vec<u8>> {
    unescape(text.as_bytes()).map_err(|at| {
        Failure::Usage(format!(
            "{text:?}: expected \\t, \\n, \\r, \\\\ or \\xHH at byte {at}; write \\\\ for a backslash"
        ))
    })
}
