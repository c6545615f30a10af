//! SQLite, through rusqlite, as a table without row ids in WAL mode.
//!
//! Invariant: all writing goes through one connection behind a mutex: SQLite has one writer at a time, and a mutex is handed
//! over faster than a busy file lock is tried again.

use super::doing;
use arena::{Change, Disk, Engine, Failed, Level, Modify, Result, Session, Settings};
use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(super) fn open(settings: &Settings) -> Result<Box<dyn Engine>> {
    let file = settings.dir.join("records.sqlite");
    let synchronous = if settings.level == Level::Durable { "FULL" } else { "NORMAL" };
    // The page cache has what this one leaves.
    let memory = match settings.disk {
        Disk::Best => settings.memory,
        Disk::Second => settings.memory / 4,
    };
    let writer = connect(&file, memory / 4)?;
    let checkpoint = (settings.memory / 8 / 4096).clamp(1000, 16384);
    writer
        .execute_batch(&format!(
            "PRAGMA synchronous={synchronous}; PRAGMA wal_autocheckpoint={checkpoint};
             CREATE TABLE IF NOT EXISTS records (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;"
        ))
        .map_err(doing("create the table"))?;
    Ok(Box::new(Sqlite { file, memory, writer: Mutex::new(writer) }))
}

/// A connection whose cache has that many bytes. What it has not, the system's page cache may have.
///
/// Nothing is mapped: SQLite cannot switch the kernel's read-around off for a map, and with data five times the limit every
/// page fault then pushes out what others need: 130 gets a second in the place of thousands.
fn connect(file: &PathBuf, cache: u64) -> Result<Connection> {
    let connection = Connection::open(file).map_err(doing("open"))?;
    connection
        .execute_batch(&format!(
            "PRAGMA journal_mode=WAL; PRAGMA cache_size=-{}; PRAGMA mmap_size=0; PRAGMA temp_store=MEMORY; PRAGMA busy_timeout=60000;",
            (cache >> 10).max(256)
        ))
        .map_err(doing("set up"))?;
    Ok(connection)
}

struct Sqlite {
    file: PathBuf,
    memory: u64,
    writer: Mutex<Connection>,
}

impl Sqlite {
    fn writer(&self) -> MutexGuard<'_, Connection> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine for Sqlite {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Hand { store: self, reader: connect(&self.file, self.memory / 64)? }))
    }

    fn sync(&self) -> Result<()> {
        // A checkpoint syncs the log first; passive, since readers need not be waited for.
        let writer = self.writer();
        writer.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).map_err(doing("sync"))
    }

    fn close(self: Box<Self>) -> Result<()> {
        let writer = self.writer.into_inner().unwrap_or_else(PoisonError::into_inner);
        writer.close().map_err(|(_, error)| Failed::new("close", error))
    }
}

struct Hand<'a> {
    store: &'a Sqlite,
    reader: Connection,
}

const PUT: &str = "INSERT OR REPLACE INTO records VALUES (?1, ?2)";
const GET: &str = "SELECT value FROM records WHERE key = ?1";

fn read(connection: &Connection, key: &[u8], show: &mut dyn FnMut(&[u8])) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(GET)?;
    statement
        .query_row(params![key], |row| {
            show(row.get_ref(0)?.as_blob()?);
            Ok(())
        })
        .optional()
        .map(|_| ())
}

fn write(connection: &mut Connection, changes: &[Change<'_>]) -> rusqlite::Result<()> {
    // Out of a transaction a statement is one of its own: a single change needs no more.
    let transaction = if changes.len() > 1 { Some(connection.unchecked_transaction()?) } else { None };
    let mut put = connection.prepare_cached(PUT)?;
    let mut remove = connection.prepare_cached("DELETE FROM records WHERE key = ?1")?;
    for change in changes {
        match *change {
            Change::Put(key, value) => put.execute(params![key, value])?,
            Change::Remove(key) => remove.execute(params![key])?,
        };
    }
    transaction.map_or(Ok(()), rusqlite::Transaction::commit)
}

impl Session for Hand<'_> {
    fn get(&mut self, key: &[u8], show: &mut dyn FnMut(&[u8])) -> Result<()> {
        read(&self.reader, key, show).map_err(doing("get"))
    }

    /// One transaction for all keys.
    fn multi_get(&mut self, keys: &[Vec<u8>], show: &mut dyn FnMut(usize, &[u8])) -> Result<()> {
        let transaction = self.reader.unchecked_transaction().map_err(doing("begin"))?;
        for (at, key) in keys.iter().enumerate() {
            read(&self.reader, key, &mut |value| show(at, value)).map_err(doing("get"))?;
        }
        transaction.commit().map_err(doing("end"))
    }

    fn scan(&mut self, from: &[u8], _: u64, show: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let mut scan = || -> rusqlite::Result<()> {
            let query = "SELECT key, value FROM records WHERE key >= ?1 ORDER BY key";
            let mut statement = self.reader.prepare_cached(query)?;
            let mut rows = statement.query(params![from])?;
            while let Some(row) = rows.next()? {
                if !show(row.get_ref(0)?.as_blob()?, row.get_ref(1)?.as_blob()?) {
                    break;
                }
            }
            Ok(())
        };
        scan().map_err(doing("scan"))
    }

    fn write(&mut self, changes: &[Change<'_>]) -> Result<()> {
        write(&mut self.store.writer(), changes).map_err(doing("write"))
    }

    /// One at a time, in the connection that writes.
    fn modify(&mut self, keys: &[Vec<u8>], change: &mut Modify<'_>) -> Result<u64> {
        let mut writer = self.store.writer();
        let transaction =
            writer.transaction_with_behavior(TransactionBehavior::Immediate).map_err(doing("begin"))?;
        for (at, key) in keys.iter().enumerate() {
            let mut value = None;
            read(&transaction, key, &mut |found| value = Some(change(at, Some(found))))
                .map_err(doing("get"))?;
            let value = value.unwrap_or_else(|| change(at, None))?;
            let put = transaction.prepare_cached(PUT).and_then(|mut put| put.execute(params![key, value]));
            put.map_err(doing("put"))?;
        }
        transaction.commit().map_err(doing("commit"))?;
        Ok(0)
    }
}
