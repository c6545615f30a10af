//! `sapwood load`: records from a file, in batches, durable at the end.

use crate::arguments::{Durability, Load};
use crate::failure::{Failure, Result};
use crate::format::{Format, ReadError, Record};
use crate::interrupt;
use crate::progress::{Progress, human_bytes};
use sapwood::{Batch, Database, Keyspace};
use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read, stdin};
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

/// Malformed records that are shown before they are only counted.
const SHOWN: u64 = 5;
/// A batch is committed early when it has so many bytes.
const BATCH_BYTES: usize = 512 << 10;

/// Counts what went through.
struct Counting<R> {
    input: R,
    bytes: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.bytes.set(self.bytes.get() + read as u64);
        Ok(read)
    }
}

fn open_input(path: &Path) -> Result<(Box<dyn Read>, Option<u64>)> {
    if path == Path::new("-") {
        return Ok((Box::new(stdin().lock()), None));
    }
    let cannot = |error| Failure::Other(format!("{}: {error}", path.display()));
    let file = File::open(path).map_err(cannot)?;
    let metadata = file.metadata().map_err(cannot)?;
    Ok((Box::new(file), metadata.is_file().then_some(metadata.len())))
}

struct Loader<'a> {
    db: &'a Database,
    options: &'a Load,
    keyspaces: HashMap<String, Keyspace>,
    batch: Batch,
    records: u64,
    committed: u64,
}

impl Loader<'_> {
    fn add(&mut self, record: &Record) -> Result<()> {
        let name = self.options.keyspace.as_deref().or(record.keyspace.as_deref()).unwrap_or("default");
        if !self.keyspaces.contains_key(name) {
            let keyspace = self.db.keyspace(name)?;
            self.keyspaces.insert(name.to_owned(), keyspace);
        }
        if let Some(keyspace) = self.keyspaces.get(name) {
            self.batch.insert(keyspace, &record.key, &record.value);
        }
        self.records += 1;
        if self.batch.len() >= self.options.batch as usize || self.batch.byte_len() >= BATCH_BYTES {
            self.commit()?;
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<()> {
        let batch = std::mem::replace(&mut self.batch, self.db.batch());
        let durability = match self.options.durability {
            Durability::Immediate => sapwood::Durability::Immediate,
            Durability::Buffered => sapwood::Durability::Buffered,
            Durability::None => sapwood::Durability::None,
        };
        batch.durability(durability).commit()?;
        self.committed = self.records;
        Ok(())
    }
}

/// What keeps a record out of any database, as bad input.
fn refuse(record: &Record, line: u64) -> Option<ReadError> {
    let max = sapwood::KEY_LEN_MAX;
    let len = record.key.len();
    (len > max).then(|| ReadError::Bad {
        line,
        column: 1,
        what: format!("the key has {len} bytes; at most {max}"),
    })
}

pub(crate) fn run(options: &Load, memory: u64) -> Result<()> {
    let (input, total) = open_input(&options.file)?;
    let shown = if options.file == Path::new("-") {
        "standard input".into()
    } else {
        options.file.display().to_string()
    };
    let format = options.format.or_else(|| Format::of_file(&options.file)).unwrap_or(Format::Tsv);
    let db = super::open_to_write(&options.db, memory, true)?;
    interrupt::watch();
    let read_bytes = Rc::new(Cell::new(0));
    let input = BufReader::with_capacity(1 << 20, Counting { input, bytes: Rc::clone(&read_bytes) });
    let mut reader = format.reader(input, options.key_column.as_deref());
    let mut progress = Progress::bytes("loading", total);
    let began = Instant::now();
    let mut loader =
        Loader { db: &db, options, keyspaces: HashMap::new(), batch: db.batch(), records: 0, committed: 0 };
    let mut skipped = 0;
    let mut failed = None;
    while let Some(record) = reader.next_record() {
        let line = reader.line();
        let checked = record.and_then(|record| refuse(&record, line).map_or(Ok(record), Err));
        let added = match checked {
            Ok(record) => loader.add(&record),
            Err(error @ ReadError::Bad { .. }) if options.skip_bad => {
                skipped += 1;
                if skipped <= SHOWN {
                    eprintln!("sapwood: {shown}:{error} (skipped)");
                }
                Ok(())
            }
            Err(ReadError::Io(error)) => Err(Failure::Other(format!("{shown}: {error}"))),
            Err(error) => {
                let hint = if matches!(error, ReadError::Bad { .. }) {
                    "; --skip-bad goes on after such lines"
                } else {
                    ""
                };
                Err(Failure::Other(format!("{shown}:{error}{hint}")))
            }
        };
        if let Err(failure) = added {
            failed = Some(failure);
            break;
        }
        if loader.records.is_multiple_of(512) {
            progress.at(
                read_bytes.get(),
                &format!("{} records, {}", loader.records, human_bytes(read_bytes.get())),
            );
            if interrupt::pressed() {
                failed = Some(Failure::Interrupted(String::new()));
                break;
            }
        }
    }
    progress.finish();
    let line = reader.line();
    // Whatever ended it, what was read before is kept.
    let kept = loader.commit().and_then(|()| Ok(db.flush()?));
    let (records, committed) = (loader.records, loader.committed);
    drop(loader);
    let seconds = began.elapsed().as_secs_f64();
    let closed = kept.and_then(|()| Ok(db.close()?));
    match (failed, closed) {
        (Some(Failure::Interrupted(_)), Ok(())) => Err(Failure::Interrupted(format!(
            "interrupted: {records} records are in the database, up to line {line} of {shown}; load the rest to go on"
        ))),
        (Some(failure), Ok(())) => {
            Err(Failure::Other(format!("{failure}\n  {committed} records before it are in the database")))
        }
        (Some(failure), Err(_)) | (None, Err(failure)) => {
            Err(Failure::Other(format!("{failure}\n  about {committed} records are in the database")))
        }
        (None, Ok(())) => {
            let bytes = read_bytes.get();
            let skipped = if skipped > 0 { format!(", {skipped} malformed skipped") } else { String::new() };
            eprintln!(
                "{records} records ({}) in {seconds:.1} s, {:.0} records/s{skipped}",
                human_bytes(bytes),
                records as f64 / seconds.max(1e-9)
            );
            Ok(())
        }
    }
}
