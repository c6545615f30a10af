//! `sapwood scan`: records in key order; large values by their lengths.

use crate::arguments::Scan;
use crate::command::Opening;
use crate::failure::Result;
use crate::format::Format;
use crate::output::{buffered, print};
use sapwood::{Key, LargeValues, Value};
use std::ops::Bound;

pub(crate) fn run(options: &Scan, opening: Opening) -> Result<()> {
    let db = opening.to_read(&options.db)?;
    let from = options.from.as_deref().map(super::bytes).transpose()?;
    let to = options.to.as_deref().map(super::bytes).transpose()?;
    let bounds =
        (from.map_or(Bound::Unbounded, Bound::Included), to.map_or(Bound::Unbounded, Bound::Excluded));
    let prefix = options.prefix.as_deref().map(super::bytes).transpose()?;
    if let Some(values) = super::large_values(&db, &options.keyspace)? {
        return lengths(options, &values, bounds, prefix.as_deref());
    }
    let keyspace = super::existing(&db, &options.keyspace)?;
    let range = match prefix {
        Some(prefix) => keyspace.prefix(prefix),
        None => keyspace.range(bounds),
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

/// Large values by their keys and lengths.
fn lengths(
    options: &Scan,
    values: &LargeValues,
    bounds: (Bound<Vec<u8>>, Bound<Vec<u8>>),
    prefix: Option<&[u8]>,
) -> Result<()> {
    let all = match prefix {
        Some(prefix) => values.prefix(prefix),
        None => values.range(bounds),
    };
    let limit = options.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    type Lengths = Box<dyn Iterator<Item = sapwood::Result<(Key, u64)>>>;
    let all: Lengths =
        if options.reverse { Box::new(all.rev().take(limit)) } else { Box::new(all.take(limit)) };
    if options.count {
        let mut count = 0u64;
        for item in all {
            item?;
            count += 1;
        }
        return print(count);
    }
    let mut writer = Format::Tsv.writer(buffered());
    for item in all {
        let (key, len) = item?;
        writer.record(&key, len.to_string().as_bytes())?;
    }
    Ok(writer.end()?)
}
