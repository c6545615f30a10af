//! `sapwood get`: values by key, several of them in parallel.

use crate::arguments::Get;
use crate::command::Opening;
use crate::escape::escape;
use crate::failure::{Failure, Result};
use crate::format::jsonl;
use std::io::{Write, stdout};

pub(crate) fn run(options: &Get, opening: Opening) -> Result<()> {
    let keys = options.keys.iter().map(|key| super::bytes(key)).collect::<Result<Vec<_>>>()?;
    let db = opening.to_read(&options.db)?;
    let keyspace = super::existing(&db, &options.keyspace)?;
    let values = keyspace.multi_get(&keys)?;
    let mut output = stdout().lock();
    let mut missing = Vec::new();
    for ((key, name), value) in keys.iter().zip(&options.keys).zip(&values) {
        if options.json {
            writeln!(output, "{}", jsonl::object(key, value.as_deref()))?;
        }
        let Some(value) = value else {
            missing.push(name.as_str());
            continue;
        };
        if options.hex {
            let digits: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(output, "{digits}")?;
        } else if !options.json {
            writeln!(output, "{}", escape(value))?;
        }
    }
    output.flush()?;
    if missing.is_empty() {
        Ok(())
    } else {
        Err(Failure::NotFound(format!("not found: {}", missing.join(" "))))
    }
}
