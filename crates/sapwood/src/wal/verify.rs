//! Verifies the log of an open database: reads back everything that its writer has written.

use super::chain::chain;
use super::file_name;
use super::walker::{Found, Walker};
use super::window;
use super::writer::Written;
use crate::database_id::DatabaseId;
use crate::error::{Error, Result};
use psync::Volume;

/// What [`verify`] found.
#[derive(Debug)]
pub(super) struct Verified {
    /// Valid records.
    pub records: u64,
    /// All damage, at most one per file.
    pub damage: Vec<Error>,
}

/// Checks the log of an open database, from generation `low` up to what its writer had written (see
/// [`Written`]); what it writes later does not matter. The caller keeps these generations from being removed.
///
/// # Errors
/// Errors of the device. Damage is part of the result.
pub(super) fn verify(
    volume: &dyn Volume,
    database: DatabaseId,
    low: u64,
    until: Written,
) -> Result<Verified> {
    let mut verified = Verified { records: 0, damage: Vec::new() };
    let links = match chain(volume, database, low, until.generation, Some(until.len)) {
        Ok(links) => links,
        Err(damage) if damage.is_damage() => {
            verified.damage.push(damage);
            return Ok(verified);
        }
        Err(other) => return Err(other),
    };
    let mut follow = None;
    for link in &links {
        let follow_on = match link.follow(follow) {
            Ok(follow_on) => follow_on,
            Err(damage) => {
                verified.damage.push(damage);
                link.follow(None)?
            }
        };
        let mut walker = Walker::new(window::open(volume, link.header.generation)?, link, follow_on);
        follow = loop {
            match walker.next()? {
                Found::Record(..) => verified.records += 1,
                Found::End => break Some(walker.follow),
                Found::Bad(flaw) => {
                    verified.damage.push(flaw.at(file_name(link.header.generation), walker.at));
                    // Continue with the next file, but without checking that it follows on.
                    break None;
                }
            }
        };
    }
    Ok(verified)
}
