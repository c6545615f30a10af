//! Reads what is left of a damaged log, for a repair: the records up to the first damage, and then what can still be read.
//!
//! Invariants:
//! 1. What is passed on as the log is a prefix of it: records one after the other, none left out.
//! 2. A record counts only with both checksums. The one of its head covers database, file and offset, so it is found without the
//!    file's header.
//! 3. Memory: one window ([`crate::source`]), and one record.

use super::log_files::{Generations, LogFiles, list, missing_file};
use super::record::{HEAD_LEN, HEADER_LEN, Header, RecordHeader, RecordPosition};
use super::window::scan;
use super::{Record, file_name};
use crate::database_id::DatabaseId;
use crate::encryption::Encryption;
use crate::error::{Error, Result};
use crate::operation::SeqNo;
use crate::source::{FileSource, Source, Window};
use psync::Volume;

/// What was found of a log.
#[derive(Default)]
pub(crate) struct SalvagedLog {
    /// Why it ends before its end, if it does.
    pub damage: Option<Error>,
    /// Bytes behind its end that are not zeros: of a commit that was not finished, or of damage that nothing testifies to.
    pub dropped: u64,
}

/// Where records go.
pub(crate) enum Salvage<'r> {
    /// Of the log, in order.
    Next(&'r Record),
    /// Of what lies behind the damage.
    Behind(&'r Record),
}

impl LogFiles<'_> {
    /// Reads what is left of these generations. Errors of `take` end it.
    pub fn salvage(
        self,
        encryption: &Encryption,
        generations: Generations,
        take: &mut dyn FnMut(Salvage<'_>) -> Result<()>,
    ) -> Result<SalvagedLog> {
        match self.replay(encryption, generations, &mut |_| Ok(())) {
            Ok(tail) => {
                self.replay(encryption, generations, &mut |record| take(Salvage::Next(&record)))?;
                let dropped = tail.truncated.map_or(0, |truncated| truncated.dropped);
                Ok(SalvagedLog { damage: None, dropped })
            }
            Err(error @ (Error::NewerFormat { .. } | Error::OlderFormat { .. })) => Err(error),
            Err(error) => {
                let mut reading = Reading { files: self, encryption, next: None, damage: None };
                for found in &self.found(generations)? {
                    reading.generation(found, take)?;
                }
                // A replay also refuses a log whose records are all there, but promise more.
                Ok(SalvagedLog { damage: reading.damage.or(Some(error)), dropped: 0 })
            }
        }
    }

    /// The generations that count, oldest first: those that sound headers do not declare void.
    fn found(self, Generations { low, high }: Generations) -> Result<Vec<Found>> {
        let mut numbers = list(self.volume)?;
        numbers.retain(|number| *number >= low);
        let on_disk = numbers.clone();
        // A damaged number of generations would be no reason to look for all of them.
        let newest = numbers.last().copied().unwrap_or(low);
        numbers.extend((low..=high.min(newest.saturating_add(1))).filter(|number| !on_disk.contains(number)));
        numbers.sort_unstable();
        let mut found: Vec<Found> = Vec::new();
        // The generation that the one behind it continues, and how far.
        let mut continued: Option<(u64, u64)> = None;
        for number in numbers.into_iter().rev() {
            if continued.is_some_and(|(previous, _)| previous < number) {
                continue;
            }
            let stop = continued.filter(|(previous, _)| *previous == number).map(|(_, len)| len);
            let header = self.sound_header(number);
            continued = header.map(|header| (header.previous_generation, header.previous_len));
            found.push(Found { number, stop, is_there: on_disk.contains(&number) });
        }
        found.reverse();
        Ok(found)
    }

    fn sound_header(self, generation: u64) -> Option<Header> {
        let source = self.open_if_there(generation).ok()??;
        self.header(&source, generation).ok()?.ok()
    }
}

/// A generation that counts, and how many bytes of it do, if another one says so.
struct Found {
    number: u64,
    stop: Option<u64>,
    is_there: bool,
}

/// The database that a log file belongs to, if its header can be read.
pub(crate) fn database_of(volume: &dyn Volume, generation: u64) -> Option<DatabaseId> {
    let source = FileSource::open(volume, &file_name(generation)).ok()?;
    let mut bytes = [0; HEADER_LEN];
    if source.len() < HEADER_LEN as u64 || source.read_at(0, &mut bytes).is_err() {
        return None;
    }
    Header::decode(&bytes).ok().map(|header| header.database)
}

struct Reading<'v> {
    files: LogFiles<'v>,
    encryption: &'v Encryption,
    /// The sequence number that comes next, once it is known.
    next: Option<SeqNo>,
    damage: Option<Error>,
}

impl Reading<'_> {
    fn generation(&mut self, found: &Found, take: &mut dyn FnMut(Salvage<'_>) -> Result<()>) -> Result<()> {
        if !found.is_there {
            self.damage.get_or_insert_with(|| missing_file(found.number));
            return Ok(());
        }
        let Some(source) = self.files.open_if_there(found.number)? else { return Ok(()) };
        let mut window = Window::of_damaged(source);
        let mut at = HEADER_LEN as u64;
        if self.damage.is_none() {
            loop {
                match self.record(&mut window, found, at) {
                    Ok(Some((record, len))) => {
                        at += len;
                        self.next = Some(record.first_seq + u64::from(record.count));
                        take(Salvage::Next(&record))?;
                    }
                    Ok(None) => return Ok(()),
                    Err(error) => {
                        self.damage = Some(error);
                        break;
                    }
                }
            }
        }
        self.behind(&mut window, found, at, take)
    }

    /// The record there, and its bytes; `None` at the end of the generation.
    fn record(
        &self,
        window: &mut Window<FileSource<'_>>,
        found: &Found,
        at: u64,
    ) -> Result<Option<(Record, u64)>> {
        if found.stop == Some(at) {
            return Ok(None);
        }
        let read = self.whole_record(window, found, at);
        if read.is_err() && found.stop.is_none() && window.zeros_at_end(at)? == at {
            return Ok(None);
        }
        read.map(Some)
    }

    fn whole_record(
        &self,
        window: &mut Window<FileSource<'_>>,
        found: &Found,
        at: u64,
    ) -> Result<(Record, u64)> {
        let name = file_name(found.number);
        let place = RecordPosition { database: self.files.database, generation: found.number, offset: at };
        let head = RecordHeader::decode(window.get(at, HEAD_LEN)?, &place);
        let head = head.map_err(|flaw| flaw.at(&*name, at))?;
        let end = found.stop.unwrap_or(u64::MAX).min(window.source.len());
        if at.saturating_add(head.record_len()) > end {
            let expected = format!("{} bytes", head.record_len());
            return Err(Error::corrupt(
                name,
                at,
                "the log record is cut off",
                expected,
                end.saturating_sub(at),
            ));
        }
        if let Some(next) = self.next.filter(|next| *next != head.first_seq) {
            let what = "the sequence number of a log record";
            return Err(Error::corrupt(name, at, what, next, head.first_seq));
        }
        let body = window.copy(at + HEAD_LEN as u64, head.len as usize)?;
        head.check_body(&body).map_err(|flaw| flaw.at(&*name, at))?;
        Ok((head.decrypt(self.encryption, &place, body)?, head.record_len()))
    }

    /// Passes on what can be read from there on.
    fn behind(
        &self,
        window: &mut Window<FileSource<'_>>,
        found: &Found,
        mut at: u64,
        take: &mut dyn FnMut(Salvage<'_>) -> Result<()>,
    ) -> Result<()> {
        let of = (self.files.database, found.number);
        while let Some((offset, head)) = scan(window, of, at, |_, _| true)? {
            at = offset + 1;
            if found.stop.is_some_and(|stop| offset >= stop) {
                break;
            }
            let body_at = offset + HEAD_LEN as u64;
            if offset.saturating_add(head.record_len()) > window.source.len() {
                continue;
            }
            let Ok(body) = window.copy(body_at, head.len as usize) else { continue };
            if head.check_body(&body).is_ok() {
                at = offset + head.record_len();
                let place =
                    RecordPosition { database: self.files.database, generation: found.number, offset };
                let Ok(record) = head.decrypt(self.encryption, &place, body) else { continue };
                take(Salvage::Behind(&record))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wal::record::{Lsn, sealed};
    use psync::Simulated;

    const DATABASE: DatabaseId = DatabaseId(*b"0123456789abcdef");

    fn file(generation: u64, first_seq: SeqNo, bodies: &[&str]) -> Vec<u8> {
        sealed(DATABASE, generation, first_seq, bodies.iter().map(|body| (1, body.as_bytes())))
    }

    /// What the newest header declares void is not taken for the log, also where that is damaged.
    #[test]
    fn what_is_void_is_neither_the_log_nor_behind_it() {
        let volume = Simulated::new(1);
        let write =
            |generation, bytes: &[u8]| volume.write_file(&file_name(generation), bytes).expect("written");
        write(1, &file(1, 1, &["a", "b", "void"]));
        write(2, &file(2, 3, &["void too"]));
        let two = file(1, 1, &["a", "b"]).len() as u64;
        // The last one, of so many operations, testifies that what is before it had been durable.
        let records = [(1, &b"c"[..]), (1, b"damaged"), (20, b"d")];
        let mut third = sealed(DATABASE, 3, 3, records.into_iter());
        let header = Header {
            database: DATABASE,
            generation: 3,
            base: Lsn(two),
            previous_generation: 1,
            previous_len: two,
            durable: Lsn(0),
            first_seq: 3,
        };
        third[..HEADER_LEN].copy_from_slice(&header.encode());
        let at = third.windows(7).position(|bytes| bytes == b"damaged").expect("it is there");
        third[at] ^= 1;
        write(3, &third);
        let (mut next, mut behind) = (Vec::new(), Vec::new());
        let mut take = |found: Salvage<'_>| {
            match found {
                Salvage::Next(record) => next.push(record.body.to_vec()),
                Salvage::Behind(record) => behind.push(record.body.to_vec()),
            }
            Ok(())
        };
        let generations = Generations { low: 1, high: 3 };
        let files = LogFiles::new(&volume, DATABASE);
        let salvaged = files.salvage(&Encryption::NONE, generations, &mut take).expect("reads");
        assert!(salvaged.damage.is_some_and(|damage| damage.to_string().contains("wal-0000000003")));
        assert_eq!((next, behind), (vec![b"a".to_vec(), b"b".to_vec(), b"c".to_vec()], vec![b"d".to_vec()]));
    }
}
