//! Reads the log back, and decides where it ends.
//!
//! The first record that is not whole, at LSN *x*, ends the log: a power loss cut it off before it was acknowledged.
//! Unless something valid behind it claims that more than *x* was durable: then acknowledged commits are damaged.
//!
//! Invariants:
//! 1. Records are given out in order, each whole, with sequence numbers that follow each other and epochs that do
//!    not go down within a generation.
//! 2. Bytes are believed only behind a checksum that covers where they stand; nothing is allocated for a length that
//!    the file does not have.

use crate::database_id::DatabaseId;
use crate::error::{Error, Result};
use crate::operation::SeqNo;
use crate::wal::record::{
    BadHeader, FILE_HEADER, FORMAT, Head, Header, Lsn, Place, RECORD_HEADER, RECORD_MAGIC, file_name,
    generation_of,
};
use bytes::Bytes;
use psync::{Access, FileId, Read, Volume};

/// A record of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub generation: u64,
    pub first_seq: SeqNo,
    pub count: u32,
    pub body: Bytes,
}

/// Where the log ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    /// The last generation.
    pub generation: u64,
    /// Its valid bytes.
    pub len: u64,
    pub end: Lsn,
    /// Sequence number that comes next.
    pub next_seq: SeqNo,
    /// LSN below which all was durable, as far as anything in the log claims.
    pub claimed: Lsn,
    /// Every generation that was read: its number, the LSN of its byte 0, and its valid bytes.
    pub files: Vec<(u64, Lsn, u64)>,
}

impl Tail {
    /// The end of a log that was never begun.
    pub fn none() -> Self {
        Self { generation: 0, len: 0, end: 0, next_seq: 1, claimed: 0, files: Vec::new() }
    }
}

/// Generations on disk, in order.
pub(crate) fn list(volume: &dyn Volume) -> Result<Vec<u64>> {
    let mut generations: Vec<_> =
        volume.list()?.iter().filter_map(|entry| generation_of(&entry.name)).collect();
    generations.sort_unstable();
    Ok(generations)
}

/// Bytes that are read at a time.
const WINDOW: usize = 1 << 20;

/// A file of the log, read through a window.
struct Source<'a> {
    volume: &'a dyn Volume,
    file: FileId,
    len: u64,
    window: Vec<u8>,
    start: u64,
}

impl<'a> Source<'a> {
    fn open(volume: &'a dyn Volume, generation: u64) -> Result<Option<Self>> {
        match volume.open(&file_name(generation), Access::default()) {
            Ok(file) => {
                let len = volume.len(file)?;
                Ok(Some(Self { volume, file, len, window: Vec::new(), start: 0 }))
            }
            Err(psync::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// `len` bytes at `offset`, or as many as the file has.
    fn bytes(&mut self, offset: u64, len: usize) -> Result<&[u8]> {
        let available = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX);
        let len = len.min(available);
        let within = offset >= self.start && offset + len as u64 <= self.start + self.window.len() as u64;
        if !within {
            self.window.resize(len.max(WINDOW).min(available), 0);
            self.start = offset;
            if !self.window.is_empty() {
                self.volume.read(&mut [Read { file: self.file, offset, buffer: &mut self.window }])?;
            }
        }
        let at = (offset - self.start) as usize;
        Ok(&self.window[at..at + len])
    }
}

impl Drop for Source<'_> {
    fn drop(&mut self) {
        // Opened for reading: nothing can be lost.
        let _ = self.volume.close(self.file);
    }
}

/// A whole record at `offset`, if there is one.
fn record_at(source: &mut Source<'_>, place: Place) -> Result<Option<(Head, Bytes)>> {
    let Some(head) = Head::decode(source.bytes(place.offset, RECORD_HEADER)?) else { return Ok(None) };
    if place.offset + head.record_len() as u64 > source.len {
        return Ok(None);
    }
    let record = source.bytes(place.offset, head.record_len())?;
    if record.len() != head.record_len() || place.checksum(record) != head.crc {
        return Ok(None);
    }
    Ok(Some((head, Bytes::copy_from_slice(&record[RECORD_HEADER..]))))
}

/// Gives out every record of the generations `low..=high` (and of `high + 1`, if it was just begun) in order.
pub(crate) fn replay(
    volume: &dyn Volume,
    database: DatabaseId,
    low: u64,
    high: u64,
    apply: &mut dyn FnMut(Record) -> Result<()>,
) -> Result<Tail> {
    let mut tail: Option<Tail> = None;
    let mut generation = low;
    while generation <= high.saturating_add(1) {
        let Some((mut source, header)) = open_generation(volume, database, generation, high)? else { break };
        if let Some(before) = &tail {
            // Not only the claim of the header: that it exists says that the generation before was whole when the
            // writer went on, if that much was durable.
            if before.end != header.base {
                if header.durable > before.end {
                    return Err(damaged(
                        before,
                        &format!("{} claims that it is durable", file_name(generation)),
                    ));
                }
                refuse_later_claims(volume, database, before, generation, high)?;
                return Ok(before.clone());
            }
        }
        let end =
            next_header(volume, database, generation + 1, high)?.map_or(u64::MAX, |next| next.previous_len);
        let next_seq = tail.as_ref().map_or(header.first_seq, |before| before.next_seq);
        if next_seq != header.first_seq {
            return Err(Error::corrupt(
                file_name(generation),
                60,
                "first sequence number",
                next_seq,
                header.first_seq,
            ));
        }
        let mut reached = replay_one(&mut source, &header, end, apply)?;
        if let Some(before) = &tail {
            reached.claimed = reached.claimed.max(before.claimed);
            reached.files = before.files.clone();
        }
        reached.files.push((generation, header.base, reached.len));
        if end == u64::MAX || reached.len < end {
            // The log ends here, or so it seems.
            refuse_hole(&mut source, database, &reached)?;
            if end != u64::MAX {
                refuse_later_claims(volume, database, &reached, generation + 1, high)?;
            }
            return Ok(reached);
        }
        tail = Some(reached);
        generation += 1;
    }
    tail.ok_or_else(|| Error::corrupt(file_name(low), 0, "the log is missing", "a file", "none"))
}

/// Opens a generation and reads its header. `None` if there is none and need not be.
fn open_generation<'a>(
    volume: &'a dyn Volume,
    database: DatabaseId,
    generation: u64,
    high: u64,
) -> Result<Option<(Source<'a>, Header)>> {
    let name = file_name(generation);
    let must_exist = generation <= high;
    let Some(mut source) = Source::open(volume, generation)? else {
        if must_exist {
            return Err(Error::corrupt(name, 0, "a part of the log is missing", "a file", "none"));
        }
        return Ok(None);
    };
    let header = match Header::decode(source.bytes(0, FILE_HEADER)?) {
        Ok(header) => header,
        // Begun at the very moment when the power went.
        Err(BadHeader::Torn { .. }) if !must_exist => return Ok(None),
        Err(BadHeader::Torn { expected, found }) => {
            return Err(Error::corrupt(name, 0, "header of the log", expected, found));
        }
        Err(BadHeader::Newer(found)) => {
            return Err(Error::NewerFormat { path: name, found, supported: FORMAT });
        }
    };
    if header.database != database {
        return Err(Error::corrupt(name, 12, "database id", database, header.database));
    }
    if header.generation != generation {
        return Err(Error::corrupt(name, 28, "generation", generation, header.generation));
    }
    Ok(Some((source, header)))
}

fn next_header(
    volume: &dyn Volume,
    database: DatabaseId,
    generation: u64,
    high: u64,
) -> Result<Option<Header>> {
    if generation > high.saturating_add(1) {
        return Ok(None);
    }
    Ok(open_generation(volume, database, generation, high)?.map(|(_, header)| header))
}

/// Gives out the records of one generation up to byte `end`, or the first that is not whole.
fn replay_one(
    source: &mut Source<'_>,
    header: &Header,
    end: u64,
    apply: &mut dyn FnMut(Record) -> Result<()>,
) -> Result<Tail> {
    let mut tail = Tail {
        generation: header.generation,
        len: FILE_HEADER as u64,
        end: header.base + FILE_HEADER as u64,
        next_seq: header.first_seq,
        claimed: header.durable,
        files: Vec::new(),
    };
    let mut epoch = 0;
    while tail.len < end {
        let place = Place { database: header.database, generation: header.generation, offset: tail.len };
        let Some((head, body)) = record_at(source, place)? else { break };
        if head.first_seq != tail.next_seq || head.epoch < epoch {
            break;
        }
        epoch = head.epoch;
        tail.claimed = tail.claimed.max(head.durable);
        tail.len += head.record_len() as u64;
        tail.end += head.record_len() as u64;
        tail.next_seq += SeqNo::from(head.count);
        apply(Record { generation: header.generation, first_seq: head.first_seq, count: head.count, body })?;
    }
    Ok(tail)
}

fn damaged(reached: &Tail, found: &str) -> Error {
    Error::corrupt(
        file_name(reached.generation),
        reached.len,
        "a record of the log that was durable is damaged or missing",
        "a whole record",
        format!("none, while {found}"),
    )
}

/// Damage if a whole record behind the end claims that something beyond the end was durable.
fn refuse_hole(source: &mut Source<'_>, database: DatabaseId, reached: &Tail) -> Result<()> {
    let mut offset = reached.len + 1;
    let mut candidates = Vec::new();
    while offset < source.len {
        let chunk = source.bytes(offset, WINDOW)?;
        candidates.clear();
        candidates.extend(
            chunk
                .windows(RECORD_MAGIC.len())
                .enumerate()
                .filter(|(_, window)| window == RECORD_MAGIC)
                .map(|(index, _)| offset + index as u64),
        );
        // Chunks overlap, so that no magic is cut in two.
        let step = chunk.len().saturating_sub(RECORD_MAGIC.len() - 1).max(1) as u64;
        for at in &candidates {
            let place = Place { database, generation: reached.generation, offset: *at };
            if let Some((head, _)) = record_at(source, place)?
                && head.durable > reached.end
            {
                return Err(damaged(reached, &format!("the record at byte {at} claims that it is durable")));
            }
        }
        offset += step;
    }
    Ok(())
}

/// Damage if anything in the generations from `from` on claims that something beyond the end was durable.
fn refuse_later_claims(
    volume: &dyn Volume,
    database: DatabaseId,
    reached: &Tail,
    from: u64,
    high: u64,
) -> Result<()> {
    for generation in from..=high.saturating_add(1) {
        let Some((mut source, header)) = open_generation(volume, database, generation, high)? else {
            return Ok(());
        };
        if header.durable > reached.end {
            return Err(damaged(reached, &format!("{} claims that it is durable", file_name(generation))));
        }
        let mut claimed = None;
        let mut offset = FILE_HEADER as u64;
        while let Some((head, _)) = record_at(&mut source, Place { database, generation, offset })? {
            if head.durable > reached.end {
                claimed = Some(offset);
                break;
            }
            offset += head.record_len() as u64;
        }
        if let Some(at) = claimed {
            let found =
                format!("the record at byte {at} of {} claims that it is durable", file_name(generation));
            return Err(damaged(reached, &found));
        }
    }
    Ok(())
}
