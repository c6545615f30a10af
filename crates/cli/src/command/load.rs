//! `sapwood load`: records from a file, in batches, durable at the end.
//!
//! Invariants:
//! 1. a record that no database can hold is bad input, as a malformed line is, and keeps no other record out; one that only needs more
//!    memory is none, and is not skipped;
//! 2. nothing is written before the first block of the input was looked at, and could be records;
//! 3. whatever ends the load, records that were read before are in the database, and the message says how many.

use crate::again;
use crate::arguments::{Durability, Load};
use crate::command::Opening;
use crate::escape::shown;
use crate::failure::{Failure, Result};
use crate::format::{Format, ReadError, Record, RecordReader};
use crate::input::{self, Input};
use crate::interrupt;
use crate::magic::{self, Found, Remedy};
use crate::output::tell;
use crate::progress::{Progress, human_bytes};
use sapwood::{Batch, Database, Keyspace, KeyspaceOptions};
use std::cell::Cell;
use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

/// Malformed records that are shown before they are only counted.
const SHOWN: u64 = 5;
/// A batch is committed early when it has so many bytes.
const BATCH_BYTES: usize = 512 << 10;
/// Longer values go in alone: the longest that a database takes depends on its memory, and a batch would not tell which
/// record was too long.
const ALONE: usize = 128 << 10;
/// Bytes that a record of a batch takes in the database's memory beside key and value, at most.
const RECORD_BYTES: u64 = 64;
/// A batch is committed early, too, when it takes this part of the database's memory (a divisor): of a sixth, a queue's share, it is one
/// commit as any other, however short its records are.
const MEMORY_PARTS: u64 = 8;

/// With so much memory a database takes the longest values that there are (16 MiB), which are a sixteenth of it at most.
const ENOUGH_MEMORY: &str = "512M";
/// How to load what is not in the database, where nobody knows which records that are.
const RUN_AGAIN: &str =
    "to go on, run the same command again: records that are in are only set to the same value";

/// Where records come from.
struct Origin<'a> {
    /// The file, as messages name it.
    shown: &'a str,
    /// Neither an option nor its name says what its form is.
    is_form_assumed: bool,
    /// Bytes that were taken from it so far.
    taken: Rc<Cell<u64>>,
}

struct Loader<'a> {
    db: &'a Database,
    options: &'a Load,
    /// Bytes that the database may use.
    memory: u64,
    keyspaces: HashMap<String, Keyspace>,
    batch: Batch,
    records: u64,
    committed: u64,
    /// Malformed records that were left out.
    skipped: u64,
}

impl Loader<'_> {
    /// Takes all records, until something ends it: a failure, or the user. The text of the latter comes later.
    fn add_all(
        &mut self,
        reader: &mut dyn RecordReader,
        origin: &Origin<'_>,
        progress: &mut Progress,
    ) -> Result<()> {
        let shown = origin.shown;
        let (mut seen, mut databases) = (0u64, 0u64);
        loop {
            let record = reader.next_record();
            // Also those without records: a bad name is told with the first one.
            let begun = reader.begun();
            databases += begun.len() as u64;
            if databases > 1 && self.options.keyspace.is_some() {
                return Err(Failure::Other(format!(
                    "{shown}: up to line {} a second database has begun, and with --keyspace both would be one keyspace; leave --keyspace \
                     out, and each becomes one of its own, or load a dump of one of them",
                    reader.line()
                )));
            }
            for name in &begun {
                let _is_bad = self.keyspace(name.as_deref())?;
            }
            let Some(record) = record else { return Ok(()) };
            let added = match record {
                Ok(record) => self.add(&record, reader.line())?,
                Err(error) => Err(error),
            };
            match added {
                Ok(()) => {}
                Err(error @ ReadError::Bad { .. }) if self.options.skip_bad => {
                    self.skipped += 1;
                    if self.skipped <= SHOWN {
                        progress.say(format_args!("sapwood: {shown}:{error} (skipped)"));
                    }
                }
                Err(ReadError::Io(_)) if interrupt::pressed() => {}
                Err(ReadError::Io(error)) => return Err(Failure::Other(format!("{shown}: {error}"))),
                Err(error @ ReadError::Bad { .. }) => {
                    let assumed = if origin.is_form_assumed && seen == 0 {
                        " (taken for tsv, since neither --format nor the name of the file says otherwise)"
                    } else {
                        ""
                    };
                    return Err(Failure::Other(format!(
                        "{shown}:{error}{assumed}; --skip-bad goes on after such records"
                    )));
                }
                Err(error @ ReadError::End { .. }) => return Err(Failure::Other(format!("{shown}:{error}"))),
            }
            if interrupt::pressed() {
                return Err(Failure::Interrupted(String::new()));
            }
            seen += 1;
            if seen.is_multiple_of(64) {
                let bytes = origin.taken.get();
                progress.at(bytes, &format!("{} records, {}", self.records, human_bytes(bytes)));
            }
        }
    }

    /// Takes a record, which ends with this line. Inside: why no database can hold it, or this one with its memory.
    fn add(&mut self, record: &Record, line: u64) -> Result<std::result::Result<(), ReadError>> {
        let bad = |what| Ok(Err(ReadError::Bad { line, column: 1, what }));
        let (len, max) = (record.key.len(), sapwood::KEY_LEN_MAX);
        if len > max {
            return bad(format!("the key has {len} bytes; keys have 1 to {max} bytes"));
        }
        let keyspace = match self.keyspace(record.keyspace.as_deref())? {
            Ok(keyspace) => keyspace,
            Err(what) => return bad(what),
        };
        let alone = record.value.len() > ALONE;
        if alone {
            self.commit()?;
        }
        self.batch.insert(&keyspace, &record.key, &record.value);
        if alone {
            match self.take_batch().commit() {
                Err(error @ sapwood::Error::ValueTooLong { len, most, .. }) if len <= most => {
                    let what = format!("{error}: load it with --memory {ENOUGH_MEMORY}");
                    return Ok(Err(ReadError::End { line, what }));
                }
                Err(error @ sapwood::Error::ValueTooLong { .. }) => return bad(error.to_string()),
                other => other?,
            }
            self.records += 1;
            self.committed = self.records;
            return Ok(Ok(()));
        }
        self.records += 1;
        let taken = self.batch.len() as u64 * RECORD_BYTES + self.batch.byte_len() as u64;
        let is_full = self.batch.byte_len() >= BATCH_BYTES || taken >= self.memory / MEMORY_PARTS;
        if is_full || self.batch.len() >= self.options.batch as usize {
            self.commit()?;
        }
        Ok(Ok(()))
    }

    /// The keyspace for records that the file says are in this one. The text is why there can be none.
    fn keyspace(&mut self, said: Option<&str>) -> Result<std::result::Result<Keyspace, String>> {
        let name = self.options.keyspace.as_deref().or(said).unwrap_or("default");
        if let Some(keyspace) = self.keyspaces.get(name) {
            return Ok(Ok(keyspace.clone()));
        }
        match self.db.keyspace_with(name, self.keyspace_options()) {
            Ok(keyspace) => Ok(Ok(self.keyspaces.entry(name.to_owned()).or_insert(keyspace).clone())),
            Err(sapwood::Error::BadName { name, reason }) => Ok(Err(format!(
                "{} cannot be a keyspace's name: {reason}; choose one with --keyspace",
                shown(&name)
            ))),
            Err(other) => Err(other.into()),
        }
    }

    fn keyspace_options(&self) -> KeyspaceOptions {
        let options = KeyspaceOptions::new();
        match self.options.compression {
            Some(compression) => options.compression(compression),
            None => options,
        }
    }

    fn take_batch(&mut self) -> Batch {
        let durability = match self.options.durability {
            Durability::Immediate => sapwood::Durability::Immediate,
            Durability::Buffered => sapwood::Durability::Buffered,
            Durability::None => sapwood::Durability::None,
        };
        let mut batch = std::mem::replace(&mut self.batch, self.db.batch());
        batch.durability(durability);
        batch
    }

    fn commit(&mut self) -> Result<()> {
        let done = self.take_batch().commit();
        match done {
            Ok(()) => self.committed = self.records,
            // They are lost, and must not be counted when the next commit succeeds.
            Err(_) => self.records = self.committed,
        }
        Ok(done?)
    }
}

/// How to load what an interrupted load left out.
fn how_to_go_on(options: &Load, format: Format, line: u64) -> String {
    match format {
        Format::Tsv | Format::Jsonl => {
            let from_file = options.file != Path::new("-");
            let file = options.file.display().to_string();
            let file = if from_file { format!(" {}", again::quoted(&file)) } else { String::new() };
            let again = again::from_pipe(format.name());
            format!("to go on with the rest: tail -n +{}{file} | {again}", line + 1)
        }
        // Their beginning says what follows.
        Format::Csv | Format::Mdb => RUN_AGAIN.to_owned(),
    }
}

/// What the extension of a compressed file says, and its program that makes text of it.
fn filter_of(extension: &str) -> Option<&'static str> {
    Some(match extension {
        "gz" => "zcat",
        "zst" => "zstdcat",
        "xz" => "xzcat",
        "bz2" => "bzcat",
        "lz4" => "lz4cat",
        _ => return None,
    })
}

fn extension(path: &Path) -> &str {
    path.extension().and_then(|extension| extension.to_str()).unwrap_or_default()
}

/// Compressed bytes make no records, and some may look like it.
fn refuse_compressed(options: &Load) -> Result<()> {
    let file = again::quoted(&options.file.display().to_string());
    match filter_of(extension(&options.file)) {
        Some(filter) if options.format.is_none() => Err(Failure::Usage(format!(
            "{file} is compressed; load it so: {filter} {file} | {}",
            from_pipe(options, None)
        ))),
        _ => Ok(()),
    }
}

/// An option that the form has no use for was given for another form.
fn refuse_unused(options: &Load, format: Format) -> Result<()> {
    if options.key_column.is_none() || matches!(format, Format::Csv | Format::Jsonl) {
        return Ok(());
    }
    let name = format.name();
    Err(Failure::Usage(format!(
        "--key-column is for csv and jsonl, and this is taken for {name}: choose the form with --format"
    )))
}

/// The command that loads what a pipe brings. Its form is what was told, or what the name says that was packed.
fn from_pipe(options: &Load, format: Option<Format>) -> String {
    let unpacked = filter_of(extension(&options.file)).and_then(|_| options.file.file_stem().map(Path::new));
    let by_name = || Format::of_file(unpacked.unwrap_or(&options.file));
    let format = format.or(options.format).or_else(by_name).unwrap_or(Format::Tsv);
    again::from_pipe(format.name())
}

/// Refuses what is none of the forms, before anything is written.
fn refuse_other(options: &Load, shown: &str, found: &Found) -> Failure {
    let from_file = options.file != Path::new("-");
    let file = if from_file { again::quoted(&options.file.display().to_string()) } else { "FILE".to_owned() };
    let what_to_do = match found.remedy {
        Remedy::Filter(filter) if from_file => {
            format!("load it so: {filter} {file} | {}", from_pipe(options, None))
        }
        Remedy::Filter(filter) => {
            let filter = filter.trim_end_matches(" <");
            format!("load it so: ... | {filter} | {}", from_pipe(options, None))
        }
        Remedy::Export(command, format) => {
            let told = (format == Format::Tsv).then_some(options.format).flatten();
            format!(
                "load it so: {} | {}",
                command.replace("FILE", &file),
                from_pipe(options, Some(told.unwrap_or(format)))
            )
        }
        Remedy::Is(format) => {
            format!("load it with --format {} (or --format tsv if it is none)", format.name())
        }
        Remedy::Say(text) => text.to_owned(),
    };
    Failure::Other(format!("{shown} is {}; nothing was loaded; {what_to_do}", found.what))
}

pub(crate) fn run(options: &Load, opening: Opening) -> Result<()> {
    super::refuse_file(&options.db)?;
    refuse_compressed(options)?;
    let told = options.format.or_else(|| Format::of_file(&options.file));
    let format = told.unwrap_or(Format::Tsv);
    refuse_unused(options, format)?;
    options.keyspace.as_deref().map_or(Ok(()), super::check_name)?;
    let (mut input, total) = Input::open(&options.file)?;
    let taken = input.taken();
    let shown = input::name(&options.file);
    let (first, is_all) = input.first_block().map_err(|error| Failure::Other(format!("{shown}: {error}")))?;
    if let Some(found) = magic::find(first, is_all, format, told.is_none()) {
        return Err(refuse_other(options, &shown, &found));
    }
    let db = opening.to_write(&options.db, true)?;
    interrupt::watch();
    let mut reader = format.reader(input, options.key_column.as_deref());
    let mut progress = Progress::bytes("loading", total);
    let began = Instant::now();
    let (keyspaces, batch, memory) = (HashMap::new(), db.batch(), opening.memory);
    let mut loader =
        Loader { db: &db, options, memory, keyspaces, batch, records: 0, committed: 0, skipped: 0 };
    if options.keyspace.is_some() || format != Format::Mdb {
        // Exists even if there are no records, so that what was loaded can be dumped.
        loader.keyspace(None)?.map_err(Failure::Usage)?;
    }
    let origin = Origin { shown: &shown, is_form_assumed: told.is_none(), taken };
    let ended = loader.add_all(&mut *reader, &origin, &mut progress);
    progress.finish();
    if matches!(ended, Err(Failure::Interrupted(_))) {
        tell("sapwood: interrupted, finishing in order; Ctrl-C again ends it at once");
    }
    // Whatever ended it, what was read before is kept.
    let kept = loader.commit().and_then(|()| Ok(db.flush()?));
    let (records, committed, skipped) = (loader.records, loader.committed, loader.skipped);
    drop(loader);
    let seconds = began.elapsed().as_secs_f64();
    let closed = kept.and_then(|()| Ok(db.close()?));
    match (ended, closed) {
        (Ok(()), Ok(())) => {
            let skipped = if skipped > 0 { format!(", {skipped} malformed skipped") } else { String::new() };
            tell(format_args!(
                "{records} records ({}) in {seconds:.1} s, {:.0} records/s{skipped}",
                human_bytes(origin.taken.get()),
                records as f64 / seconds.max(1e-9)
            ));
            Ok(())
        }
        (Err(Failure::Interrupted(_)), Ok(())) => {
            let line = reader.line();
            Err(Failure::Interrupted(format!(
                "interrupted: {records} records are in the database, up to line {line} of {shown}\n  {}",
                how_to_go_on(options, format, line)
            )))
        }
        (Err(failure), Ok(())) => {
            Err(Failure::Other(format!("{failure}\n  {committed} records before it are in the database")))
        }
        (ended, Err(error)) => Err(Failure::Other(what_may_be_in(ended, &error, committed))),
    }
}

/// What is said where what was read before the end may not have come in.
fn what_may_be_in(ended: Result<()>, error: &Failure, committed: u64) -> String {
    let about = format!("about {committed} records are in the database");
    match ended {
        // Those of the last batch may be missing, so no line says where the rest begins.
        Err(Failure::Interrupted(_)) => format!("{error}\n  interrupted: {about}\n  {RUN_AGAIN}"),
        Err(failure) => format!("{failure}\n  and then: {error}\n  {about}"),
        Ok(()) => format!("{error}\n  {about}"),
    }
}
