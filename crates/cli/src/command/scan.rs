//! `sapwood scan`: records in key order; large values by their lengths.

use crate::arguments::Scan;
use crate::command::Opening;
use crate::failure::Result;
use crate::format::{Format, RecordWriter};
use crate::output::{buffered, print};
use std::io;
use std::ops::Bound;

pub(crate) fn run(options: &Scan, opening: Opening) -> Result<()> {
    let db = opening.to_read(&options.db)?;
    let from = options.from.as_deref().map(super::bytes).transpose()?;
    let to = options.to.as_deref().map(super::bytes).transpose()?;
    let bounds =
        (from.map_or(Bound::Unbounded, Bound::Included), to.map_or(Bound::Unbounded, Bound::Excluded));
    let prefix = options.prefix.as_deref().map(super::bytes).transpose()?;
    if let Some(values) = super::large_values(&db, &options.keyspace)? {
        let all = match prefix {
            Some(prefix) => values.prefix(prefix),
            None => values.range(bounds),
        };
        return print_all(options, all, |writer, (key, len)| writer.record(&key, len.to_string().as_bytes()));
    }
    let keyspace = super::existing(&db, &options.keyspace)?;
    let range = match prefix {
        Some(prefix) => keyspace.prefix(prefix),
        None => keyspace.range(bounds),
    };
    print_all(options, range, |writer, (key, value)| writer.record(&key, &value))
}

/// Prints as many of them as are asked for, in the order asked for, or their number.
fn print_all<T>(
    options: &Scan,
    all: impl DoubleEndedIterator<Item = sapwood::Result<T>>,
    mut line: impl FnMut(&mut dyn RecordWriter, T) -> io::Result<()>,
) -> Result<()> {
    let limit = options.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let mut all = all;
    let next = || if options.reverse { all.next_back() } else { all.next() };
    let asked = std::iter::from_fn(next).take(limit);
    if options.count {
        let count = asked.map(|item| item.map(|_| 1)).sum::<sapwood::Result<u64>>()?;
        return print(count);
    }
    let mut writer = Format::Tsv.writer(buffered());
    for item in asked {
        line(&mut *writer, item?)?;
    }
    Ok(writer.end()?)
}
