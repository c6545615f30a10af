//! `sapwood repair`: makes a new database of what can be read of a damaged one.

use crate::arguments::Repair as Options;
use crate::command::Opening;
use crate::command::backup::Watch;
use crate::escape::escape;
use crate::failure::{Failure, Result, list_damage};
use crate::interrupt;
use crate::output::print;
use crate::progress::human_bytes;
use sapwood::Error;
use sapwood::repair::{LostRange, Repair, RepairReport, RepairedKeyspace};
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::{Duration, Instant};

/// How often a database is tried that another process has open.
const TRY_EVERY: Duration = Duration::from_millis(50);

/// A keyspace and its ranges, one a line.
fn put_keyspace(text: &mut String, keyspace: &RepairedKeyspace) {
    let (records, bytes) = (keyspace.records, human_bytes(keyspace.bytes));
    // What the log has is told apart: it may be of the same keys.
    let _ = write!(text, "\n  {}: {records} records in its tree, {bytes}", escape(keyspace.name.as_bytes()));
    for range in &keyspace.lost {
        let LostRange { from, to, loss, cause, .. } = range;
        let keys = match to {
            None if from.is_empty() => "any key".to_owned(),
            None => format!("from \"{}\" on", escape(from)),
            Some(to) if from.is_empty() => format!("up to \"{}\"", escape(to)),
            Some(to) if to.strip_suffix(&[0]) == Some(from) => format!("\"{}\"", escape(from)),
            Some(to) => format!("from \"{}\" up to \"{}\"", escape(from), escape(to)),
        };
        let _ = write!(text, "\n    may be {loss}: {keys}: {cause}");
    }
}

fn text(options: &Options, report: &RepairReport) -> String {
    let log = &report.log;
    let mut text = format!(
        "{}: {} in the trees, {} operations in the log",
        options.new.display(),
        human_bytes(report.bytes),
        log.operations
    );
    report.keyspaces.iter().for_each(|keyspace| put_keyspace(&mut text, keyspace));
    if report.may_lack_keyspaces {
        text.push_str("\n  there may have been keyspaces of which nothing is left: the manifest is damaged");
    }
    if log.left_out + log.operations_unreadable > 0 {
        let (left_out, operations) = (log.left_out, log.operations_left_out);
        let _ = write!(
            text,
            "\n  of the log: {} operations cannot be read; {left_out} records with {operations} operations lie behind damage and were left out",
            log.operations_unreadable
        );
    }
    if !report.damage.is_empty() {
        let places = report.damage.len() as u64 + report.damage_left_out;
        let _ = write!(text, "\n{}: {places} damaged place(s):", options.db.display());
    }
    list_damage(&mut text, &report.damage, report.damage_left_out);
    text
}

fn json(report: &RepairReport) -> Value {
    let range = |range: &LostRange| {
        json!({
            "from": escape(&range.from),
            "to": range.to.as_deref().map(escape),
            "loss": range.loss.to_string(),
            "cause": range.cause.to_string(),
        })
    };
    let keyspace = |keyspace: &RepairedKeyspace| {
        json!({
            "name": keyspace.name,
            "records": keyspace.records,
            "bytes": keyspace.bytes,
            "lost": keyspace.lost.iter().map(range).collect::<Vec<_>>(),
        })
    };
    let log = &report.log;
    json!({
        "has_losses": report.has_losses(),
        "keyspaces": report.keyspaces.iter().map(keyspace).collect::<Vec<_>>(),
        "may_lack_keyspaces": report.may_lack_keyspaces,
        "log": {
            "records": log.records,
            "operations": log.operations,
            "left_out": log.left_out,
            "operations_left_out": log.operations_left_out,
            "operations_unreadable": log.operations_unreadable,
        },
        "unfinished": report.unfinished,
        "damage": report.damage.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "damage_left_out": report.damage_left_out,
        "bytes": report.bytes,
    })
}

pub(crate) fn run(options: &Options, opening: &Opening) -> Result<()> {
    super::refuse_file(&options.db)?;
    interrupt::watch_leaving("there is no new database yet: run it again, and it begins anew");
    let mut watch = Watch::new("repairing");
    let began = Instant::now();
    let done = loop {
        let repair = Repair::of(&options.db);
        let repair = match &opening.key {
            Some(key) => repair.encryption_key(key.clone()),
            None => repair,
        };
        match repair
            .memory(opening.memory)
            .on_progress(|progress| watch.see(progress))
            .into_directory(&options.new)
        {
            // Nothing was done, and nothing made.
            Err(Error::Locked { .. }) if began.elapsed() < opening.wait && !interrupt::pressed() => {
                std::thread::sleep(TRY_EVERY);
            }
            done => break done,
        }
    };
    watch.finish();
    let report = done.map_err(|error| match error {
        Error::Locked { .. } if interrupt::pressed() => {
            Failure::Interrupted("interrupted: nothing was done".to_owned())
        }
        error => error.into(),
    })?;
    let told = if options.json {
        let text = serde_json::to_string_pretty(&json(&report));
        print(text.map_err(|error| Failure::Other(error.to_string()))?)
    } else {
        print(text(options, &report))
    };
    // The exit code is an answer too, for whoever has read enough.
    if report.has_losses() {
        let new = options.new.display();
        return Err(Failure::Damage(format!(
            "{new} has what could be saved; records may be lost, as listed"
        )));
    }
    told
}
