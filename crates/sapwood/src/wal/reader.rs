//! Reads the log for recovery.
//!
//! The log ends at its first bad record, or where only zeros follow. If anything valid further on testifies
//! that the bad record was durable, this is damage. Otherwise it is the torn tail of a power loss, and is
//! dropped.

use super::log_files::{Generations, LogFiles, list, missing_file};
use super::record::{Flaw, HEADER_LEN, Lsn};
use super::walker::{Follow, Found, Walker};
use super::window;
use super::window::Witness;
use super::{Record, file_name};
use crate::encryption::Encryption;
use crate::error::{Error, Result};
use crate::operation::SeqNo;
use crate::source::Window;

/// Where the log ends: what the next writer needs to continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    /// The newest existing generation, even if void; 0 if there is none. The next one gets the number after it.
    pub generation: u64,
    /// The generation in which the log ends; 0 if there is none.
    pub ends_in: u64,
    /// Valid bytes of that generation's file, including the header.
    pub len: u64,
    /// Where the log ends.
    pub end: Lsn,
    /// Everything below this LSN is durable, as testified by a header or record.
    pub durable: Lsn,
    /// The next sequence number.
    pub next_seq: SeqNo,
    /// The epoch of the last record.
    pub epoch: u32,
    /// Number of records up to the end.
    pub records: u64,
    /// The generations that were read, oldest first.
    pub spans: Vec<Span>,
    /// What was dropped.
    pub truncated: Option<Truncated>,
}

impl Tail {
    /// Valid bytes of all generations that were read.
    pub fn bytes(&self) -> u64 {
        self.spans.iter().map(|span| span.len).sum()
    }
}

/// The valid part of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub generation: u64,
    /// LSN of the file's first byte.
    pub base: Lsn,
    /// Valid bytes, including the header.
    pub len: u64,
}

/// The torn tail of a log. None of it was promised to be durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Truncated {
    /// The file that the log ends in.
    pub file: String,
    /// Where the log ends in that file, in bytes.
    pub offset: u64,
    /// Bytes after that, in this file and all newer ones, without the zeros at a file's end.
    pub dropped: u64,
    /// Why the log ends here.
    pub why: String,
}

impl Tail {
    /// The log of a new database.
    pub fn none() -> Self {
        Self {
            generation: 0,
            ends_in: 0,
            len: 0,
            end: Lsn(0),
            durable: Lsn(0),
            next_seq: 1,
            epoch: 1,
            records: 0,
            spans: Vec::new(),
            truncated: None,
        }
    }
}

impl LogFiles<'_> {
    /// Passes every valid record of the generations from the oldest on to `apply`, in order, and returns where the log
    /// ends.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for damage, possibly after records have been applied: the caller must then discard them.
    /// Errors of `apply` end the replay and are returned.
    pub fn replay(
        self,
        encryption: &Encryption,
        Generations { low, high }: Generations,
        apply: &mut dyn FnMut(Record) -> Result<()>,
    ) -> Result<Tail> {
        if low == 0 || low > high.saturating_add(1) || (low > high && high > 0) {
            let found = format!("{low} to {high}");
            return Err(Flaw::new("the manifest's log generations", "an oldest and a newest one", found)
                .at(file_name(low), 0));
        }
        let on_disk = list(self.volume)?;
        if let Some(missing) = (low..=high).find(|generation| on_disk.binary_search(generation).is_err()) {
            return Err(missing_file(missing));
        }
        let newest_first = on_disk.iter().rev().take_while(|generation| **generation >= low);
        let Some(newest) = self.newest_sound(high, newest_first)? else {
            return Ok(Tail::none());
        };
        let links = self.chain(low, (newest.generation, None))?;
        let mut tail = Tail { generation: newest.generation, ..Tail::none() };
        let mut follow: Option<Follow> = None;
        for (index, link) in links.iter().enumerate() {
            let follow_on = link.follow(follow)?;
            let mut walker = Walker::new(self.open(link.header.generation)?, link, follow_on);
            tail.durable = tail.durable.max(link.header.durable);
            let flaw = loop {
                match walker.next()? {
                    Found::Record(head, body) => {
                        tail.records += 1;
                        tail.durable = tail.durable.max(head.durable);
                        apply(walker.decrypt(encryption, &head, body)?)?;
                    }
                    Found::End => break None,
                    Found::Bad(flaw) => break Some(flaw),
                }
            };
            follow = Some(walker.follow);
            tail.next_seq = walker.follow.next_seq;
            tail.epoch = walker.follow.epoch;
            tail.ends_in = link.header.generation;
            tail.len = walker.at;
            tail.end = walker.lsn();
            tail.spans.push(Span { generation: tail.ends_in, base: link.header.base, len: tail.len });
            // Whatever lies behind the end, torn or voided by the next header, must not have been promised to be
            // durable.
            let mut witness = window::witness(&mut walker.window, &link.header, walker.at, tail.end)?;
            let later = links.get(index + 1..).unwrap_or_default();
            let Some(flaw) = flaw else {
                if let Some(witness) = witness {
                    let flaw = Flaw::new("a part of the log was left out", "no promise for it", "a promise");
                    return Err(promised(flaw, link.header.generation, tail.len, &witness));
                }
                continue;
            };
            let mut dropped = walker.window.zeros_at_end(tail.len)?.saturating_sub(tail.len);
            for link in later {
                let mut window = Window::new(self.open(link.header.generation)?);
                dropped = dropped.saturating_add(window.zeros_at_end(0)?);
                if witness.is_none() && link.header.durable > tail.end {
                    let durable = link.header.durable;
                    witness = Some(Witness { generation: link.header.generation, offset: 0, durable });
                }
                if witness.is_none() {
                    witness = window::witness(&mut window, &link.header, HEADER_LEN as u64, tail.end)?;
                }
            }
            if let Some(witness) = witness {
                return Err(promised(flaw, link.header.generation, tail.len, &witness));
            }
            tail.truncated = Some(Truncated {
                file: file_name(tail.ends_in),
                offset: tail.len,
                dropped,
                why: format!("{}: expected {}, found {}", flaw.what, flaw.expected, flaw.found),
            });
            break;
        }
        for (generation, flaw) in newest.unfinished {
            self.drop_unfinished(generation, flaw, &mut tail)?;
        }
        Ok(tail)
    }

    /// Records what is lost with a generation that was never begun; an error if it had been promised to be durable.
    fn drop_unfinished(self, generation: u64, flaw: Flaw, tail: &mut Tail) -> Result<()> {
        let mut window = Window::new(self.open(generation)?);
        if let Some((offset, head)) =
            window::scan(&mut window, (self.database, generation), 0, |head, _| head.durable > tail.end)?
        {
            let witness = Witness { generation, offset, durable: head.durable };
            return Err(promised(flaw, generation, 0, &witness));
        }
        if window::scan(&mut window, (self.database, generation), 0, |_, _| true)?.is_none() {
            return Ok(());
        }
        let dropped = window.zeros_at_end(0)?;
        let why = format!("{}: expected {}, found {}", flaw.what, flaw.expected, flaw.found);
        let file = file_name(generation);
        let truncated = tail.truncated.get_or_insert(Truncated { file, offset: 0, dropped: 0, why });
        truncated.dropped = truncated.dropped.saturating_add(dropped);
        Ok(())
    }
}

pub(super) fn promised(flaw: Flaw, generation: u64, offset: u64, witness: &Witness) -> Error {
    let proof = format!(
        "{}, and {} proves at byte {} that everything below LSN {} had been durable",
        flaw.what,
        file_name(witness.generation),
        witness.offset,
        witness.durable
    );
    Error::corrupt(file_name(generation), offset, proof, flaw.expected, flaw.found)
}
