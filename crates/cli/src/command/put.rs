//! `sapwood put`: one record, durable when the command returns; or a large value, from a file.

use crate::arguments::Put;
use crate::command::Opening;
use crate::failure::{Failure, Result};
use crate::input::{self, Input};
use crate::interrupt;
use crate::progress::{Progress, human_bytes};
use sapwood::{Database, Expiry, KeyspaceOptions};
use std::cell::Cell;
use std::io::{self, BufRead, Read};
use std::rc::Rc;

pub(crate) fn run(options: &Put, opening: Opening) -> Result<()> {
    let key = super::bytes(&options.key)?;
    super::check_key(&key)?;
    super::check_name(&options.keyspace)?;
    if let Some(from) = &options.from {
        // Before a database is created for it.
        let (mut input, len) = Input::open(from)?;
        input.fill_buf().map_err(|error| Failure::Other(format!("{}: {error}", input::name(from))))?;
        let db = opening.to_write(&options.db, true)?;
        put_large(&db, options, &key, (input, len))?;
        return Ok(db.close()?);
    }
    let value = super::bytes(options.value.as_deref().unwrap_or_default())?;
    let db = opening.to_write(&options.db, true)?;
    match options.expires {
        None => db.keyspace(&options.keyspace)?.insert(key, value)?,
        Some(life) => {
            let name = &options.keyspace;
            let keyspace = match db.keyspace_if_exists(name)? {
                Some(found) => found,
                None => db.keyspace_with(name, KeyspaceOptions::new().expiring())?,
            };
            keyspace.insert_expiring(key, value, Expiry::After(life))?;
        }
    }
    Ok(db.close()?)
}

/// Streams a file into the database.
fn put_large(db: &Database, options: &Put, key: &[u8], (input, len): (Input, Option<u64>)) -> Result<()> {
    interrupt::watch();
    let name = &options.keyspace;
    let is_new = !db.keyspaces().contains(name);
    let values = db.large_values(name)?;
    let mut source = Watched { progress: Progress::bytes("writing", len), taken: input.taken(), input };
    let put = values.insert_from(key, &mut source);
    source.progress.finish();
    let Err(error) = put else { return Ok(()) };
    let is_empty = is_new && matches!(values.len_of(key), Ok(None));
    // A keyspace of large values that has none would only keep records out.
    let stays = is_empty && db.drop_keyspace(name).is_err();
    let place = options.db.display();
    let beside = match () {
        () if stays => format!(
            "; but {place} has a keyspace {name:?} of large values now, which takes no records: `sapwood drop` removes it"
        ),
        () if db.keyspaces().is_empty() => format!("; {place} has no keyspaces"),
        () => String::new(),
    };
    let failure = match error {
        // What else failed may have left the value there.
        sapwood::Error::Source { .. } if interrupt::pressed() => {
            Failure::Interrupted("interrupted: nothing was changed".to_owned())
        }
        sapwood::Error::Source { cause } => {
            let from = options.from.as_deref().map(input::name).unwrap_or_default();
            Failure::Other(format!("{from}: {cause}; nothing was changed"))
        }
        error => error.into(),
    };
    Err(failure.and(&beside))
}

/// A source that tells how far it is, and ends when the command is interrupted.
struct Watched {
    input: Input,
    progress: Progress,
    taken: Rc<Cell<u64>>,
}

impl Read for Watched {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if interrupt::pressed() {
            return Err(io::Error::other("stopped by Ctrl-C"));
        }
        let read = self.input.read(buffer)?;
        let taken = self.taken.get();
        self.progress.at(taken, &human_bytes(taken));
        Ok(read)
    }
}
