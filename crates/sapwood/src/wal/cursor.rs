//! Reads the log of a database that another process writes, as far as that process says that it is durable.
//!
//! Invariant: nothing is judged here. What should be there and is not was changed meanwhile, or is damaged; the caller finds out by
//! beginning again with the manifest.

use super::Record;
use super::log_files::{LogFiles, list};
use super::record::Header;
use super::walker::{Follow, Found, Walker};
use crate::encryption::Encryption;
use crate::error::Result;
use crate::operation::SeqNo;

/// A place in the log.
#[derive(Clone)]
pub(crate) struct LogCursor {
    generation: u64,
    /// Where in that generation's file, and what comes next there; `None` at its beginning.
    within: Option<(u64, Follow)>,
    /// The last operation that was passed.
    passed: SeqNo,
}

impl LogCursor {
    /// The beginning of the generation `low`, of which operations up to `passed` are not wanted.
    pub fn new(low: u64, passed: SeqNo) -> Self {
        Self { generation: low, within: None, passed }
    }

    /// Behind the operation `passed`, in the oldest file that is needed for that; `None` if it is not there any more.
    ///
    /// # Errors
    /// Damage of a header, and errors of the device.
    pub fn behind(files: LogFiles<'_>, passed: SeqNo) -> Result<Option<Self>> {
        let on_disk = list(files.volume)?;
        let Some(newest) = files.newest_sound(0, on_disk.iter().rev())? else { return Ok(None) };
        let has_it = |header: &Header| header.first_seq <= passed + 1;
        let (links, _) = files.chain_until((newest.generation, None), &has_it)?;
        let first = links.first().filter(|link| has_it(&link.header));
        Ok(first.map(|link| Self::new(link.header.generation, passed)))
    }

    /// The last operation that was passed.
    pub fn passed(&self) -> SeqNo {
        self.passed
    }

    /// Passes the records behind this place, up to the operation `until`, to `apply`. Returns false if they are not there.
    ///
    /// # Errors
    /// Those of reading, and of `apply`; damage, of what is damaged or was changed meanwhile.
    pub fn read_until(
        &mut self,
        files: LogFiles<'_>,
        encryption: &Encryption,
        until: SeqNo,
        apply: &mut dyn FnMut(&Record) -> Result<()>,
    ) -> Result<bool> {
        if self.passed >= until {
            return Ok(true);
        }
        let on_disk = list(files.volume)?;
        let newest_first = on_disk.iter().rev().take_while(|generation| **generation >= self.generation);
        let Some(newest) = files.newest_sound(0, newest_first)? else { return Ok(false) };
        for link in files.chain(self.generation, (newest.generation, None))? {
            let generation = link.header.generation;
            let source = files.open(generation)?;
            let mut walker = match self.within {
                Some((at, follow)) if generation == self.generation => {
                    let mut walker = Walker::new(source, &link, follow);
                    walker.at = at;
                    walker
                }
                before => Walker::new(source, &link, link.follow(before.map(|(_, follow)| follow))?),
            };
            loop {
                (self.generation, self.within) = (generation, Some((walker.at, walker.follow)));
                if self.passed >= until {
                    return Ok(true);
                }
                let (head, body) = match walker.next()? {
                    Found::Record(head, body) => (head, body),
                    Found::End => break,
                    Found::Bad(_) => return Ok(false),
                };
                let last = head.next_seq() - 1;
                if last <= self.passed {
                    continue;
                }
                if last > until || head.first_seq != self.passed + 1 {
                    return Ok(false);
                }
                apply(&walker.decrypt(encryption, &head, body)?)?;
                self.passed = last;
            }
        }
        Ok(false)
    }
}
