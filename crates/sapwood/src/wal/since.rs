//! Reads the durable part of the log from a sequence number on, while it is written and while its oldest files are removed:
//! for the change feed.
//!
//! Invariants:
//! 1. Nothing is returned that a power loss could take back: reading ends where the writer says that all is durable.
//! 2. Records come in order, each once, without a gap; a file that is not there any more is [`Since::Gone`], and damage is an
//!    error, never the end.
//! 3. The writer waits for nothing that is read here. A file that is being read may be removed meanwhile.
//! 4. Memory: one window ([`crate::source`]) while there is something to read.

use super::log_files::{LogFiles, missing_file};
use super::record::{Flaw, HEADER_LEN};
use super::walker::{Follow, Found, Link, Stop, Walker};
use super::writer::WalWriter;
use super::{Record, file_name};
use crate::database_id::DatabaseId;
use crate::encryption::Encryption;
use crate::error::Result;
use crate::operation::SeqNo;
use crate::source::{OwnedFile, Source};
use psync::Volume;
use std::collections::VecDeque;
use std::sync::Arc;

/// How far the log is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DurableEnd {
    pub database: DatabaseId,
    generation: u64,
    /// Bytes of that generation, with its header.
    len: u64,
}

impl WalWriter {
    /// How far the log is durable. All generations before that one are, wholly.
    pub fn durable_end(&self) -> DurableEnd {
        let last = self.older.iter().find(|old| !old.is_synced()).unwrap_or(&self.current);
        // A header that is not durable yet has no durable record behind it.
        let len = last.synced.max(HEADER_LEN as u64);
        DurableEnd { database: self.database, generation: last.number, len }
    }
}

/// What comes next.
pub(crate) enum Since {
    Record(Record),
    /// Nothing, at the moment.
    End,
    /// What comes next was removed; what is there begins behind this operation.
    Gone {
        from: SeqNo,
    },
    /// The log ends at this operation, before the one after which it was to be read.
    Beyond {
        last: SeqNo,
    },
}

/// Reads on and on. See the module.
pub(crate) struct LogSince {
    volume: Arc<dyn Volume>,
    encryption: Encryption,
    next_seq: SeqNo,
    walker: Option<Walker<OwnedFile<Arc<dyn Volume>>>>,
    /// The files after the walker's.
    links: VecDeque<Link>,
    /// Where the last walk ended.
    at: Option<Place>,
}

#[derive(Clone, Copy)]
struct Place {
    generation: u64,
    offset: u64,
    epoch: u32,
}

impl LogSince {
    /// Reads from this operation on.
    pub fn new(volume: Arc<dyn Volume>, encryption: Encryption, next_seq: SeqNo) -> Self {
        Self { volume, encryption, next_seq, walker: None, links: VecDeque::new(), at: None }
    }

    /// Whether everything up to there has been read.
    pub fn is_at(&self, end: &DurableEnd) -> bool {
        let is_end = |at: Place| at.generation == end.generation && at.offset == end.len;
        self.walker.is_none() && self.at.is_some_and(is_end)
    }

    /// The next record. `end` is asked for when everything up to the last one is read.
    ///
    /// # Errors
    /// Damage of a file, and errors of the device.
    pub fn next(&mut self, end: impl Fn() -> Result<DurableEnd>) -> Result<Since> {
        loop {
            let Some(walker) = &mut self.walker else {
                let end = end()?;
                if self.is_at(&end) {
                    return Ok(Since::End);
                }
                match self.begin(&end)? {
                    None => continue,
                    Some(gone) => return Ok(gone),
                }
            };
            match walker.next()? {
                Found::Record(head, _) if head.next_seq() <= self.next_seq => {}
                Found::Record(head, body) => {
                    if head.first_seq != self.next_seq {
                        // Between two operations of a commit, where no reader was.
                        self.begin_anew();
                        return Ok(Since::Beyond { last: head.first_seq - 1 });
                    }
                    let decrypted = walker.decrypt(&self.encryption, &head, body);
                    match decrypted {
                        Ok(_) => self.next_seq = head.next_seq(),
                        Err(_) => self.begin_anew(),
                    }
                    return decrypted.map(Since::Record);
                }
                Found::Bad(flaw) => return Err(flaw.at(file_name(walker.header.generation), walker.at)),
                Found::End => {
                    let follow = walker.follow;
                    let (generation, offset) = (walker.header.generation, walker.at);
                    let link = self.links.pop_front();
                    if link.is_none() && follow.next_seq < self.next_seq {
                        self.begin_anew();
                        return Ok(Since::Beyond { last: follow.next_seq - 1 });
                    }
                    self.at = Some(Place { generation, offset, epoch: follow.epoch });
                    self.walker = None;
                    if let Some(link) = link {
                        self.walk(&link, Some(follow), HEADER_LEN as u64)?;
                    }
                }
            }
        }
    }

    /// What comes next is looked for from the beginning when it is asked for again, and told again.
    fn begin_anew(&mut self) {
        (self.walker, self.at) = (None, None);
        self.links.clear();
    }

    /// Finds the files that have what comes next. `None`: it can be read.
    fn begin(&mut self, end: &DurableEnd) -> Result<Option<Since>> {
        let next_seq = self.next_seq;
        let (links, is_whole) = LogFiles::new(&*self.volume, end.database)
            .chain_until((end.generation, Some(end.len)), &|header| header.first_seq <= next_seq)?;
        self.links = links.into();
        let Some(first) = self.links.pop_front() else { return Ok(Some(Since::Gone { from: next_seq })) };
        if !is_whole || first.header.first_seq > next_seq {
            self.links.clear();
            return Ok(Some(Since::Gone { from: first.header.first_seq - 1 }));
        }
        match self.at.filter(|at| at.generation == first.header.generation) {
            Some(at) => {
                let follow = Follow { next_seq, epoch: at.epoch };
                self.walk(&first, Some(follow), at.offset)?;
            }
            None => self.walk(&first, None, HEADER_LEN as u64)?,
        }
        Ok(None)
    }

    /// Opens a file, to be read from an offset on. If it is not there any more, what is there is looked for anew.
    fn walk(&mut self, link: &Link, follow: Option<Follow>, offset: u64) -> Result<()> {
        let is_begun = offset > HEADER_LEN as u64;
        let follow = match follow {
            Some(follow) if is_begun => follow,
            follow => link.follow(follow)?,
        };
        let name = file_name(link.header.generation);
        let source = match OwnedFile::open(Arc::clone(&self.volume), &name) {
            Err(psync::Error::NotFound { .. }) => {
                self.links.clear();
                return Ok(());
            }
            opened => opened?,
        };
        let source = match (link.stop, source.len()) {
            (Stop::At(stop), len) if stop > len => {
                let flaw = Flaw::new("the log file ends too early", format!("{stop} bytes"), len);
                return Err(flaw.at(name, len));
            }
            (Stop::At(stop), _) => source.up_to(stop),
            (Stop::EndOfFile, _) => source,
        };
        let mut walker = Walker::new(source, link, follow);
        walker.at = offset;
        self.walker = Some(walker);
        Ok(())
    }
}

/// The first operation behind which everything is there, of the log up to `end`.
pub(crate) fn oldest(volume: &dyn Volume, end: &DurableEnd) -> Result<SeqNo> {
    let newest = (end.generation, Some(end.len));
    let (links, _) = LogFiles::new(volume, end.database).chain_until(newest, &|_| false)?;
    let first = links.first().ok_or_else(|| missing_file(end.generation))?;
    Ok(first.header.first_seq - 1)
}
