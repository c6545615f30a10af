//! The commands, one a file.

mod backup;
mod changes;
mod check;
mod compact;
mod del;
mod drop;
mod dump;
mod explain;
mod get;
mod key;
mod load;
mod man;
mod map;
mod probe;
mod put;
mod repair;
mod restore;
mod scan;
mod stats;
mod top;
mod tour;

use crate::arguments::{Arguments, Command, Key};
use crate::escape::unescape;
use crate::failure::{Failure, Result};
use sapwood::{Builder, Database, EncryptionKey, Error, Keyspace, LargeValues};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How databases are opened.
#[derive(Debug)]
pub(crate) struct Opening {
    memory: u64,
    key: Option<EncryptionKey>,
    /// How long to wait for a database that another process has open.
    wait: Duration,
}

impl Opening {
    /// Options of a database that is opened at once or not at all.
    fn at_once(&self) -> Builder {
        let builder = Database::builder().memory(self.memory);
        match &self.key {
            Some(key) => builder.encryption_key(key.clone()),
            None => builder,
        }
    }

    fn builder(&self) -> Builder {
        self.at_once().wait_for_lock(self.wait)
    }

    /// Opens a database that no other process has open for writing, to read.
    fn to_read_alone(&self, path: &Path) -> Result<Database> {
        refuse_file(path)?;
        Ok(self.builder().read_only(true).create(false).open(path)?)
    }

    /// To write, where so many bytes of the log are kept for changes from now on, or as many as before.
    fn to_write_keeping(&self, path: &Path, bytes: Option<u64>) -> Result<Database> {
        refuse_file(path)?;
        let builder = self.builder().create(false);
        Ok(bytes.into_iter().fold(builder, |builder, bytes| builder.keep_changes(bytes)).open(path)?)
    }

    /// Opens a database to read; one that another process has open for writing as of what is durable now.
    fn to_read(&self, path: &Path) -> Result<Database> {
        refuse_file(path)?;
        let builder = self.at_once().create(false);
        match builder.clone().read_only(true).open(path) {
            Err(Error::Locked { .. }) => {}
            opened => return Ok(opened?),
        }
        match builder.follow(true).open(path) {
            Err(Error::NotFollowable { .. }) => self.to_read_alone(path),
            opened => Ok(opened?),
        }
    }

    fn to_write(&self, path: &Path, create: bool) -> Result<Database> {
        refuse_file(path)?;
        Ok(self.builder().create(create).open(path)?)
    }
}

/// Runs the command that was asked for.
pub(crate) fn run(arguments: Arguments) -> Result<()> {
    // Not for what opens no database: the file may be on a stick that is elsewhere, or be made by this command.
    let needs_key = !matches!(
        arguments.command,
        Command::Backups(_)
            | Command::Key(Key::New(_))
            | Command::Probe(_)
            | Command::Tour(_)
            | Command::Completions(_)
            | Command::Man(_)
    );
    let key_file = arguments.key_file.or_else(key_file_of_environment).filter(|_| needs_key);
    let key = key_file.map(EncryptionKey::from_file).transpose()?;
    let opening = Opening { memory: arguments.memory, key, wait: arguments.wait };
    match arguments.command {
        Command::Load(options) => load::run(&options, opening),
        Command::Dump(options) => dump::run(&options, opening),
        Command::Get(options) => get::run(&options, opening),
        Command::Put(options) => put::run(&options, opening),
        Command::Del(options) => del::run(&options, opening),
        Command::Drop(options) => drop::run(&options, opening),
        Command::Scan(options) => scan::run(&options, opening),
        Command::Stats(options) => stats::run(&options, opening),
        Command::Top(options) => top::run(&options, &opening),
        Command::Explain(options) => explain::run(&options, opening),
        Command::Map(options) => map::run(&options, opening),
        Command::Changes(options) => changes::run(&options, opening),
        Command::Check(options) => check::run(&options, opening),
        Command::Repair(options) => repair::run(&options, &opening),
        Command::Backup(options) => backup::run(&options, opening),
        Command::Backups(options) => backup::list(&options),
        Command::Restore(options) => restore::run(&options, opening),
        Command::Verify(options) => restore::verify(&options, &opening),
        Command::Key(Key::New(options)) => key::new(&options),
        Command::Key(Key::Change(options)) => key::change(&options, opening),
        Command::Flush(options) => compact::flush(&options, opening),
        Command::Compact(options) => compact::compact(&options, opening),
        Command::Probe(options) => probe::run(&options),
        Command::Tour(options) => tour::run(&options),
        Command::Completions(options) => man::completions(&options),
        Command::Man(options) => man::man(&options),
    }
}

/// The key file that the environment names. An empty name is none there, as for most programs; as an option it would be one that a script
/// has lost.
fn key_file_of_environment() -> Option<PathBuf> {
    std::env::var_os("SAPWOOD_KEY_FILE").filter(|name| !name.is_empty()).map(PathBuf::from)
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

/// The large values of a keyspace, if it is there and has such.
fn large_values(db: &Database, name: &str) -> Result<Option<LargeValues>> {
    match db.keyspace_if_exists(name) {
        Err(sapwood::Error::LargeValues { .. }) => Ok(Some(db.large_values(name)?)),
        other => Ok(other.map(|_| None)?),
    }
}

/// A keyspace that is there.
fn existing(db: &Database, name: &str) -> Result<Keyspace> {
    db.keyspace_if_exists(name)?.ok_or_else(|| {
        let names = db.keyspaces();
        Failure::NotFound(if names.is_empty() {
            "the database is empty: it has no keyspaces".to_owned()
        } else {
            format!(
                "there is no keyspace {name:?}; there are: {}; choose one with --keyspace",
                names.join(", ")
            )
        })
    })
}

/// Refuses what no keyspace can be called, before a database is made for it.
fn check_name(name: &str) -> Result<()> {
    if (1..=255).contains(&name.len()) && !name.chars().any(char::is_control) {
        return Ok(());
    }
    Err(Error::BadName { name: name.into(), reason: "names have 1 to 255 bytes and no control characters" }
        .into())
}

/// Refuses what can be no key, before a database is made for it.
fn check_key(key: &[u8]) -> Result<()> {
    match key.len() {
        0 => Err(Error::KeyEmpty.into()),
        len if len > sapwood::KEY_LEN_MAX => Err(Error::KeyTooLong { len, max: sapwood::KEY_LEN_MAX }.into()),
        _ => Ok(()),
    }
}

/// The bytes of a key or value from the command line.
fn bytes(text: &str) -> Result<Vec<u8>> {
    unescape(text.as_bytes()).map_err(|at| {
        Failure::Usage(format!(
            "{text:?}: expected \\t, \\n, \\r, \\\\ or \\xHH at byte {at}; write \\\\ for a backslash"
        ))
    })
}
