//! Determines the generations of the log: from the newest header back to the oldest that is needed.
//!
//! Invariants:
//! 1. Each header names the generation that it continues, and how many of that generation's bytes are valid.
//!    Generations that are not on this chain are void, and are not read.
//! 2. Only files beyond the manifest's `high` may have a broken header: they were never begun. Nothing in such
//!    a file was promised to be durable, since its header would have been made durable and noted first (on a
//!    full disk, only made durable: then a damaged header is taken for one that was never begun, unless a record
//!    testifies otherwise). If a record in it testifies otherwise, that proves damage.

use super::file_name;
use super::log_files::LogFiles;
use super::record::{FORMAT, Flaw, HEADER_LEN, Header, HeaderFlaw};
use super::walker::{Link, Stop};
use super::window;
use crate::database_id::DatabaseId;
use crate::error::{Error, Result};
use crate::source::{FileSource, Source, Window};

/// Where the log ends according to its headers.
pub(super) struct Newest {
    /// The newest generation with a sound header.
    pub generation: u64,
    /// Later generations, which were never begun, and why nothing in them is to be read.
    pub unfinished: Vec<(u64, Flaw)>,
}

impl<'v> LogFiles<'v> {
    /// The newest generation of `newest_first` that was begun, if there is one.
    pub(super) fn newest_sound<'a>(
        self,
        high: u64,
        newest_first: impl Iterator<Item = &'a u64>,
    ) -> Result<Option<Newest>> {
        let mut unfinished = Vec::new();
        for &generation in newest_first {
            match self.header(&self.open(generation)?, generation)? {
                Ok(_) => return Ok(Some(Newest { generation, unfinished })),
                Err(flaw) if generation <= high => return Err(flaw.at(file_name(generation), 0)),
                Err(flaw) => unfinished.push((generation, flaw)),
            }
        }
        // No generation was begun. But the first one is begun durably, so it may not hold a record.
        for (generation, flaw) in unfinished {
            if !self.holds_no_record(generation)? {
                return Err(flaw.at(file_name(generation), 0));
            }
        }
        Ok(None)
    }

    /// The generations from the oldest that is at least `low` up to the newest, of which `len` bytes are valid.
    pub(super) fn chain(self, low: u64, (newest, len): (u64, Option<u64>)) -> Result<Vec<Link>> {
        let is_first = |header: &Header| header.previous_generation < low.max(1);
        let links =
            self.walk_back(&|generation| self.open(generation).map(Some), (newest, len), &is_first)?;
        Ok(links.0)
    }

    /// The generations from the newest of which `is_first` is true up to the newest, of which `len` bytes are valid; from the oldest that
    /// is there, if there is none such. Returns whether none was missing.
    pub(super) fn chain_until(
        self,
        (newest, len): (u64, Option<u64>),
        is_first: &dyn Fn(&Header) -> bool,
    ) -> Result<(Vec<Link>, bool)> {
        let is_first = |header: &Header| is_first(header) || header.previous_generation == 0;
        self.walk_back(&|generation| self.open_if_there(generation), (newest, len), &is_first)
    }

    fn walk_back(
        self,
        open: &dyn Fn(u64) -> Result<Option<FileSource<'v>>>,
        (newest, len): (u64, Option<u64>),
        is_first: &dyn Fn(&Header) -> bool,
    ) -> Result<(Vec<Link>, bool)> {
        let mut links: Vec<Link> = Vec::new();
        let mut generation = newest;
        let mut stop = len.map_or(Stop::EndOfFile, Stop::At);
        let mut is_whole = true;
        loop {
            let name = file_name(generation);
            let Some(source) = open(generation)? else {
                is_whole = false;
                break;
            };
            let header = self.header(&source, generation)?.map_err(|flaw| flaw.at(&name, 0))?;
            if let Some(next) = links.last() {
                let (base, len) = (next.header.base, next.header.previous_len);
                if header.base.plus(len) != base || len < HEADER_LEN as u64 {
                    let expected = format!("{} + {len}, the length of {name}", header.base);
                    return Err(Flaw::new("the log file's base", expected, base)
                        .at(file_name(next.header.generation), 0));
                }
            }
            links.push(Link { header, stop });
            // The numbers strictly decrease ([`Header::check`]), so this ends.
            if is_first(&header) {
                break;
            }
            generation = header.previous_generation;
            stop = Stop::At(header.previous_len);
        }
        links.reverse();
        Ok((links, is_whole))
    }

    /// The header of a generation, as [`read_header`] has it.
    pub(super) fn header(
        self,
        source: &impl Source,
        generation: u64,
    ) -> Result<std::result::Result<Header, Flaw>> {
        read_header(source, self.database, generation, &|| self.describe())
    }

    /// Whether a generation's file holds no record anywhere, so that nothing is lost with it.
    pub(super) fn holds_no_record(self, generation: u64) -> Result<bool> {
        let mut window = Window::new(self.open(generation)?);
        Ok(window::scan(&mut window, (self.database, generation), 0, |_, _| true)?.is_none())
    }
}

/// Reads and checks the header of a file. The inner error means that the header is cut off or its checksum is
/// wrong, perhaps because it was never completely written.
pub(super) fn read_header(
    source: &impl Source,
    database: DatabaseId,
    generation: u64,
    volume: &dyn Fn() -> String,
) -> Result<std::result::Result<Header, Flaw>> {
    let mut bytes = [0; HEADER_LEN];
    let len = source.len().min(HEADER_LEN as u64) as usize;
    let bytes = bytes.get_mut(..len).unwrap_or_default();
    source.read_at(0, bytes)?;
    match Header::decode(bytes) {
        Ok(header) => {
            header.check(database, generation).map_err(|flaw| flaw.at(file_name(generation), 0))?;
            Ok(Ok(header))
        }
        Err(HeaderFlaw::Newer(found)) => Err(Error::NewerFormat { path: volume(), found, supported: FORMAT }),
        Err(HeaderFlaw::Broken(flaw)) => Ok(Err(flaw)),
    }
}
