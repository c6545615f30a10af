//! `sapwood changes`: what was committed, as lines of JSON.

use crate::arguments::Changes;
use crate::command::Opening;
use crate::failure::{Failure, Result};
use crate::format::jsonl::put_bytes;
use crate::interrupt;
use crate::output::{buffered, failed, tell};
use sapwood::{Change, ChangesPosition, CommittedOperation, Error, Expiry};
use serde_json::{Map, Value, json};
use std::io::Write;
use std::time::UNIX_EPOCH;

pub(crate) fn run(options: &Changes, opening: Opening) -> Result<()> {
    if options.keep == Some(0) && options.since.is_some() {
        return Err(Failure::Usage("--keep 0 keeps no changes, so there are none --since".to_owned()));
    }
    let since = options.since.as_deref().map(str::parse::<ChangesPosition>).transpose()?;
    if let (Some(_), Some(since)) = (options.keep, &since) {
        // Before the database remembers what it is to keep.
        let db = opening.to_write_keeping(&options.db, None)?;
        match db.changes(since) {
            Err(Error::NoChanges { .. }) => {}
            begun => drop(begun?),
        }
        db.close()?;
    }
    let db = opening.to_write_keeping(&options.db, options.keep)?;
    if options.keep == Some(0) {
        db.close()?;
        tell(format_args!("{}: no changes are kept any more", options.db.display()));
        return Ok(());
    }
    let since = since.map_or_else(|| db.oldest_change(), Ok)?;
    interrupt::watch();
    let mut changes = db.changes(&since)?;
    let mut output = buffered();
    while !interrupt::pressed()
        && let Some(change) = changes.next()
    {
        let mut line = told(&change?);
        line.insert("position".to_owned(), changes.position().to_string().into());
        writeln!(output, "{}", Value::Object(line)).map_err(failed)?;
    }
    output.flush().map_err(failed)?;
    let position = changes.position();
    if interrupt::pressed() {
        return Err(Failure::Interrupted(format!("interrupted; to go on: --since {position}")));
    }
    tell(format_args!("{}: {position}", options.db.display()));
    Ok(())
}

fn told(change: &Change) -> Map<String, Value> {
    let of_keyspace = |what: &str, id: &u32, name: &str| {
        Map::from_iter([(what.to_owned(), name.into()), ("number".to_owned(), (*id).into())])
    };
    match change {
        Change::Commit(commit) => Map::from_iter([
            ("first".to_owned(), commit.first_sequence().into()),
            ("last".to_owned(), commit.last_sequence().into()),
            (
                "operations".to_owned(),
                commit.operations().map(|operation| operation_of(&operation)).collect(),
            ),
        ]),
        Change::KeyspaceCreated { id, name } => of_keyspace("created", id, name),
        Change::KeyspaceRenamed { id, name } => of_keyspace("renamed", id, name),
        Change::KeyspaceDropped { id, name } => of_keyspace("dropped", id, name),
        Change::KeyspaceIngested { id, name } => of_keyspace("ingested", id, name),
        other => Map::from_iter([("unknown".to_owned(), format!("{other:?}").into())]),
    }
}

fn operation_of(operation: &CommittedOperation<'_>) -> Value {
    let mut object = Map::new();
    object.insert("keyspace".to_owned(), operation.keyspace().name.into());
    let what = match operation {
        CommittedOperation::Insert { key, value, expiry, .. } => {
            put_bytes(&mut object, "key", key);
            put_bytes(&mut object, "value", value);
            if let Expiry::At(time) = expiry {
                let millis = time.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64);
                object.insert("expires_ms".to_owned(), millis.into());
            }
            "insert"
        }
        CommittedOperation::InsertLarge { key, len, .. } => {
            put_bytes(&mut object, "key", key);
            object.insert("value_bytes".to_owned(), json!(len));
            "insert_large"
        }
        CommittedOperation::Remove { key, .. } => {
            put_bytes(&mut object, "key", key);
            "remove"
        }
        CommittedOperation::RemoveRange { from, to, .. } => {
            put_bytes(&mut object, "from", from);
            if let Some(to) = to {
                put_bytes(&mut object, "to", to);
            }
            "remove_range"
        }
        CommittedOperation::Merge { key, operand, .. } => {
            put_bytes(&mut object, "key", key);
            put_bytes(&mut object, "operand", operand);
            "merge"
        }
        _ => "unknown",
    };
    object.insert("operation".to_owned(), what.into());
    Value::Object(object)
}
