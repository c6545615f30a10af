//! `sapwood scan`: records in key order.

use crate::arguments::Scan;
use crate::command::Opening;
use crate::failure::Result;
use crate::format::Format;
use crate::output::{buffered, print};
use sapwood::{Key, Value};
use std::ops::Bound;

pub(crate) fn run(options: &Scan, opening: Opening) -> Result<()> {
    let db = opening.to_read(&options.db)?;
    let keyspace = super::existing(&db, &options.keyspace)?;
    let range = match &options.prefix {
        Some(prefix) => keyspace.prefix(super::bytes(prefix)?),
        None => {
            let from = options.from.as_deref().map(super::bytes).transpose()?;
            let to = options.to.as_deref().map(super::bytes).transpose()?;
            keyspace.range((
                from.map_or(Bound::Unbounded, Bound::Included),
                to.map_or(Bound::Unbounded, Bound::Excluded),
            ))
        }
    };
    let limit = options.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    type Records = Box<dyn Iterator<Item = sapwood::Result<(Key, Value)>>>;
    let records: Records =
        if options.reverse { Box::new(range.rev().take(limit)) } else { Box::new(range.take(limit)) };
    if options.count {
        let mut count = 0u64;
        for record in records {
            record?;
            count += 1;
        }
        return print(count);
    }
    let mut writer = Format::Tsv.writer(buffered());
    for record in records {
        let (key, value) = record?;
        writer.record(&key, &value)?;
    }
    Ok(writer.end()?)
}
