//! `sapwood get`: values by key, several of them in parallel.

use crate::arguments::Get;
use crate::command::Opening;
use crate::escape::escape;
use crate::failure::{Failure, Result};
use crate::file;
use crate::format::jsonl;
use crate::interrupt;
use crate::output::{answered, failed};
use crate::progress::{Progress, human_bytes};
use sapwood::Database;
use std::io::{self, BufRead, Write, stdout};
use std::path::Path;

pub(crate) fn run(options: &Get, opening: Opening) -> Result<()> {
    let keys = options.keys.iter().map(|key| super::bytes(key)).collect::<Result<Vec<_>>>()?;
    if options.to.is_some() && keys.len() > 1 {
        return Err(Failure::Usage("--to writes the value of one key".to_owned()));
    }
    let db = opening.to_read(&options.db)?;
    if let Some(to) = &options.to {
        return to_file(&db, options, &keys[0], to);
    }
    let keyspace = super::existing(&db, &options.keyspace)?;
    let values = keyspace.multi_get(&keys)?;
    let names = options.keys.iter().zip(&values).filter(|(_, value)| value.is_none());
    let missing: Vec<_> = names.map(|(name, _)| name.as_str()).collect();
    let answer = if missing.is_empty() {
        Ok(())
    } else {
        Err(Failure::NotFound(format!("not found: {}", missing.join(" "))))
    };
    let told = keys.iter().zip(&values).try_for_each(|(key, value)| show(options, key, value.as_deref()));
    answered(told.and_then(|()| stdout().flush()).map_err(failed), answer)
}

/// Prints what there is of a key.
fn show(options: &Get, key: &[u8], value: Option<&[u8]>) -> io::Result<()> {
    let mut output = stdout().lock();
    match value {
        value if options.json => writeln!(output, "{}", jsonl::object(key, value)),
        None => Ok(()),
        Some(value) if options.hex => {
            let digits: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(output, "{digits}")
        }
        Some(value) => writeln!(output, "{}", escape(value)),
    }
}

/// Writes the value of one key to a file: streamed, if it is a large one.
fn to_file(db: &Database, options: &Get, key: &[u8], to: &Path) -> Result<()> {
    let missing = || Failure::NotFound(format!("not found: {}", options.keys[0]));
    let (source, len): (Box<dyn BufRead>, u64) = match super::large_values(db, &options.keyspace)? {
        Some(values) => {
            let reader = values.get_reader(key)?.ok_or_else(missing)?;
            let len = reader.len();
            (Box::new(reader), len)
        }
        None => {
            let value = super::existing(db, &options.keyspace)?.get(key)?.ok_or_else(missing)?;
            let len = value.len() as u64;
            (Box::new(io::Cursor::new(value)), len)
        }
    };
    // After the value was found: a file is not emptied for a key that is not there.
    if to == Path::new("-") {
        interrupt::watch_leaving("not all of the value was written");
        return copy(source, len, &mut stdout().lock(), failed);
    }
    interrupt::watch_leaving(
        "a file .sapwood-....part may be left beside the one that was to be written: remove it",
    );
    file::replace(to, |output| copy(source, len, output, file::cannot(to)))
}

/// Copies a value of this length.
fn copy(
    mut source: Box<dyn BufRead>,
    len: u64,
    output: &mut dyn Write,
    refused: impl Fn(io::Error) -> Failure,
) -> Result<()> {
    let mut progress = Progress::bytes("reading", Some(len));
    let mut done = 0;
    loop {
        if interrupt::pressed() {
            return Err(Failure::Interrupted(format!("interrupted after {}", human_bytes(done))));
        }
        let some = source.fill_buf().map_err(|error| match error.downcast::<sapwood::Error>() {
            Ok(error) => error.into(),
            Err(error) => Failure::Other(error.to_string()),
        })?;
        if some.is_empty() {
            break;
        }
        let count = some.len();
        output.write_all(some).map_err(&refused)?;
        source.consume(count);
        done += count as u64;
        progress.at(done, &human_bytes(done));
    }
    output.flush().map_err(refused)?;
    progress.finish();
    Ok(())
}
