//! Verifies the log of an open database: reads back everything that its writer has written. That can take long,
//! so it is done without holding the log, while others write to it.
//!
//! Invariants:
//! 1. What is read back is never overwritten, cut off or removed meanwhile. Commits are appended behind it, and
//!    refused ones cut off there.
//! 2. It is read from the device where direct I/O is available: after a failed sync the page cache shows what the
//!    device may not have.

use super::log_files::LogFiles;
use super::walker::{Follow, Found, Link, Stop, Walker};
use super::writer::WalWriter;
use super::{Record, file_name};
use crate::database_id::DatabaseId;
use crate::encryption::Encryption;
use crate::error::{Error, Findings, Result};
use psync::Volume;
use std::sync::Arc;

/// Everything that was written to the log from generation `low` on, when [`WalWriter::keep`] was called.
pub(crate) struct KeptLog {
    volume: Arc<dyn Volume>,
    database: DatabaseId,
    encryption: Encryption,
    low: u64,
    /// The generation that was the current one.
    generation: u64,
    /// Valid bytes of its file, including the header.
    len: u64,
}

impl WalWriter {
    /// Keeps all generations until [`WalWriter::let_go`].
    pub fn keep(&mut self, low: u64) -> KeptLog {
        self.readers += 1;
        let (generation, len) = (self.current.number, self.current.len);
        let (volume, encryption) = (Arc::clone(&self.volume), self.pending.encryption().clone());
        KeptLog { volume, database: self.database, encryption, low, generation, len }
    }

    /// Ends what [`WalWriter::keep`] began. The next [`WalWriter::take_below`] takes what was kept.
    pub fn let_go(&mut self) {
        self.readers -= 1;
    }

    #[cfg(test)]
    pub fn verify(&mut self, low: u64) -> Result<u64> {
        let mut records = 0;
        let found = self.keep(low).verify(&mut |_| {
            records += 1;
            Ok(())
        });
        self.let_go();
        found.map(|()| records)
    }
}

impl KeptLog {
    /// Reads back and checks all of it. Passes every record to `each`, whose error is damage of the record; but none behind what cannot be
    /// read: they would not follow on.
    ///
    /// # Errors
    /// The damage, at most one per file ([`Error::Damaged`] if there is more than one, or a file beside it that cannot be read), or an error
    /// of the device.
    pub fn verify(&self, each: &mut dyn FnMut(&Record) -> Result<()>) -> Result<()> {
        let links = self.files().chain(self.low, (self.generation, Some(self.len)))?;
        let mut found = Findings::new(usize::MAX);
        let mut follow = None;
        for link in &links {
            // After damage it goes on with the next file, but without checking that it follows on.
            follow = self.verify_file(link, follow, &mut found, each).unwrap_or_else(|error| {
                found.note(error);
                None
            });
        }
        match found.into_result() {
            Err(Error::Damaged { mut damage, .. }) if damage.len() == 1 => Err(damage.remove(0)),
            result => result,
        }
    }

    fn files(&self) -> LogFiles<'_> {
        LogFiles::new(&*self.volume, self.database).direct()
    }

    /// Returns what the next file must follow on; `None` if this one is damaged.
    fn verify_file(
        &self,
        link: &Link,
        follow: Option<Follow>,
        found: &mut Findings,
        each: &mut dyn FnMut(&Record) -> Result<()>,
    ) -> Result<Option<Follow>> {
        let follow = match link.follow(follow) {
            Ok(follow) => follow,
            Err(flaw) => {
                found.note(flaw);
                link.follow(None)?
            }
        };
        let source = self.files().open(link.header.generation)?;
        // What lies behind it, as zeros written ahead, may be cut off meanwhile.
        let source = match link.stop {
            Stop::At(len) => source.up_to(len),
            Stop::EndOfFile => source,
        };
        let mut walker = Walker::new(source, link, follow);
        loop {
            match walker.next()? {
                Found::Record(head, body) => {
                    let record = walker.decrypt(&self.encryption, &head, body)?;
                    if found.is_read() {
                        each(&record)?;
                    }
                }
                Found::End => return Ok(Some(walker.follow)),
                Found::Bad(flaw) => return Err(flaw.at(file_name(link.header.generation), walker.at)),
            }
        }
    }
}
