//! Searches log files for records in parts that do not follow on.
//!
//! Invariants:
//! 1. Memory: one window ([`crate::source`]).
//! 2. A failed read is an error, never the end of the log.

use super::record::{HEAD_LEN, Header, Lsn, RECORD_MAGIC, RecordHeader, RecordPosition};
use crate::database_id::DatabaseId;
use crate::error::Result;
use crate::source::{Source, Window};
use memchr::memmem::Finder;

/// A valid head that testifies to durability.
pub(super) struct Witness {
    pub generation: u64,
    pub offset: u64,
    pub durable: Lsn,
}

/// Looks for a valid head from `from` on that testifies that more than the part below `above` was durable.
pub(super) fn witness(
    window: &mut Window<impl Source>,
    header: &Header,
    from: u64,
    above: Lsn,
) -> Result<Option<Witness>> {
    let generation = header.generation;
    let of = (header.database, generation);
    let found = scan(window, of, from, |head, offset| {
        head.durable > above && head.durable <= header.base.plus(offset)
    })?;
    Ok(found.map(|(offset, head)| Witness { generation, offset, durable: head.durable }))
}

/// The first valid head at any offset from `from` on that satisfies `wanted`.
pub(super) fn scan(
    window: &mut Window<impl Source>,
    (database, generation): (DatabaseId, u64),
    from: u64,
    wanted: impl Fn(&RecordHeader, u64) -> bool,
) -> Result<Option<(u64, RecordHeader)>> {
    let magic = Finder::new(&RECORD_MAGIC);
    window.search((from, HEAD_LEN), |bytes, at| {
        magic.find_iter(bytes).find_map(|index| {
            let offset = at + index as u64;
            let position = RecordPosition { database, generation, offset };
            let head = RecordHeader::decode(bytes.get(index..index + HEAD_LEN)?, &position).ok()?;
            wanted(&head, offset).then_some((offset, head))
        })
    })
}
