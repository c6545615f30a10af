//! Walks through the records of one generation's file, and reports where and why it cannot go on.
//!
//! Invariants:
//! 1. Records are returned in order, each complete, with consecutive sequence numbers and epochs that never
//!    decrease.
//! 2. A file ends where only zeros follow: they were reserved. But if the length of the file's valid part is
//!    known, zeros before its end are as bad as anything else.
//! 3. Lengths are trusted only up to the file's length and the format's limit.

use super::record::{Flaw, HEAD_LEN, HEADER_LEN, Header, Lsn, RecordHeader, RecordPosition};
use super::{Record, file_name};
use crate::encryption::Encryption;
use crate::error::Result;
use crate::operation::SeqNo;
use crate::source::{Source, Window};
use bytes::Bytes;

/// What the next record must follow on.
#[derive(Clone, Copy)]
pub(super) struct Follow {
    pub next_seq: SeqNo,
    pub epoch: u32,
}

/// A generation to be read, and where its valid part ends.
pub(super) struct Link {
    pub header: Header,
    pub stop: Stop,
}

impl Link {
    /// What its first record must continue: the previous generation, if that was read to its end, and the
    /// header.
    pub fn follow(&self, before: Option<Follow>) -> Result<Follow> {
        let next_seq = self.header.first_seq;
        match before {
            Some(before) if before.next_seq != next_seq => {
                let flaw = Flaw::new("the log file's first sequence number", before.next_seq, next_seq);
                Err(flaw.at(file_name(self.header.generation), 0))
            }
            Some(before) => Ok(before),
            None => Ok(Follow { next_seq, epoch: 1 }),
        }
    }
}

#[derive(Clone, Copy)]
pub(super) enum Stop {
    /// At this offset, as told by the next generation's header, or by the writer.
    At(u64),
    EndOfFile,
}

pub(super) enum Found {
    Record(RecordHeader, Bytes),
    End,
    Bad(Flaw),
}

/// Walks from record to record through one file.
pub(super) struct Walker<S> {
    pub window: Window<S>,
    pub header: Header,
    pub follow: Follow,
    /// The end of the valid records so far.
    pub at: u64,
    stop: u64,
    /// Whether the end of the valid part is unknown.
    is_open: bool,
}

impl<S: Source> Walker<S> {
    pub fn new(source: S, link: &Link, follow: Follow) -> Self {
        let stop = match link.stop {
            Stop::At(stop) => stop,
            Stop::EndOfFile => source.len(),
        };
        let window = Window::new(source);
        let is_open = matches!(link.stop, Stop::EndOfFile);
        Self { window, header: link.header, follow, at: HEADER_LEN as u64, stop, is_open }
    }

    /// The LSN of the next record.
    pub fn lsn(&self) -> Lsn {
        self.header.base.plus(self.at)
    }

    pub fn next(&mut self) -> Result<Found> {
        if self.at == self.stop {
            return Ok(Found::End);
        }
        let found = self.record()?;
        let ends = matches!(found, Found::Bad(_)) && self.is_open;
        if ends && self.window.zeros_at_end(self.at)? == self.at {
            return Ok(Found::End);
        }
        Ok(found)
    }

    /// The record that [`Walker::next`] has returned last, decrypted.
    ///
    /// # Errors
    /// Those of [`RecordHeader::decrypt`].
    pub fn decrypt(&self, encryption: &Encryption, head: &RecordHeader, body: Bytes) -> Result<Record> {
        head.decrypt(encryption, &self.position(self.at - head.record_len()), body)
    }

    fn position(&self, offset: u64) -> RecordPosition {
        RecordPosition { database: self.header.database, generation: self.header.generation, offset }
    }

    fn record(&mut self) -> Result<Found> {
        let file_len = self.window.source.len();
        let left = file_len.min(self.stop).saturating_sub(self.at);
        if left < HEAD_LEN as u64 {
            let what = if self.stop > file_len {
                "the log file ends too early"
            } else {
                "the log record is cut off"
            };
            let expected = format!("{HEAD_LEN} bytes of head");
            return Ok(Found::Bad(Flaw::new(what, expected, format!("{left} bytes"))));
        }
        let place = self.position(self.at);
        let head = match RecordHeader::decode(self.window.get(self.at, HEAD_LEN)?, &place) {
            Ok(head) => head,
            Err(flaw) => return Ok(Found::Bad(flaw)),
        };
        if let Err(flaw) = self.fits(&head, left) {
            return Ok(Found::Bad(flaw));
        }
        let body = self.window.copy(self.at + HEAD_LEN as u64, head.len as usize)?;
        if let Err(flaw) = head.check_body(&body) {
            return Ok(Found::Bad(flaw));
        }
        self.at += head.record_len();
        self.follow = Follow { next_seq: head.next_seq(), epoch: head.epoch };
        Ok(Found::Record(head, body))
    }

    /// Whether a valid head is the next one in sequence, and not a remainder of something older.
    fn fits(&self, head: &RecordHeader, left: u64) -> std::result::Result<(), Flaw> {
        if head.record_len() > left {
            let found = format!("{left} bytes");
            return Err(Flaw::new(
                "the log record is cut off",
                format!("{} bytes", head.record_len()),
                found,
            ));
        }
        if head.epoch < self.follow.epoch {
            let expected = format!("at least {}", self.follow.epoch);
            return Err(Flaw::new("the epoch of a log record", expected, head.epoch));
        }
        if head.first_seq != self.follow.next_seq {
            let expected = self.follow.next_seq;
            return Err(Flaw::new("the sequence number of a log record", expected, head.first_seq));
        }
        if head.durable > self.lsn() {
            let expected = format!("at most {}", self.lsn());
            return Err(Flaw::new("what a log record testifies to", expected, head.durable));
        }
        Ok(())
    }
}
