//! What a target has already of the segments that a backup needs: from the newest backup of the database, and from its attempts since then
//! that came to no end. If there is no backup of it, the newest one of each other counts: it may have been restored from that.
//!
//! ```text
//! attempt   parts of segments that it has    nodes of its version ── those that are live now, at the same place, with the
//!                                                                    same checksum: as many as are live in the part now?
//! ```
//! A node that is live now, in a part that the target has, was live in the version for which that part was read, or in the one
//! that has taken the part over: positions are published once, and what is dead stays dead. So if the version of that attempt
//! names all of them, the part has them. If it does not, the database is not the one that it was (a copy of the directory, or a disk
//! image, was put in its place, and has written other nodes under the same numbers), and the part is not taken.
//!
//! Invariants:
//! 1. A part is taken over only if the version of its attempt names every node that is live in it now.
//! 2. Of another database's attempt no part is taken over that has no live node: nothing would tell whose it is.
//! 3. Of an attempt nothing goes that a backup of any database may name: all manifests that are newer than it were read, or all of it stays.

use super::blob::{END, HEADER, Kind, Seal};
use super::input::{BlobInput, database_of, read_manifest};
use super::listing::Listing;
use super::manifest::{BackupManifest, Part, named};
use super::name::BlobName;
use super::target::Target;
use super::{called, damage, is_missing, is_unreadable};
use crate::database_id::DatabaseId;
use crate::encryption::Encryption;
use crate::error::{Error, Result};
use crate::storage::mapping_table::{Address, Position};
use crate::storage::node::NodeId;
use crate::version::Version;
use crate::version::edit::Edit;
use crate::version::manifest::EDIT_MAX;
use std::collections::{BTreeMap, BTreeSet};

/// Parts of a segment (count) with which it is copied anew, as one: a segment is the open one for a few backups in most databases,
/// and each part is a call of the target.
const PARTS_MAX: usize = 8;

/// A part that a target has, and the attempt that tells of it.
struct Found {
    part: Part,
    attempt: u64,
    /// Whether the attempt was this database's.
    is_own: bool,
    /// Nodes that are live in it now, and those of them that the attempt's version names.
    live: u64,
    named: u64,
}

impl Found {
    fn is_it(&self) -> bool {
        self.live == self.named && (self.is_own || self.live > 0)
    }

    fn has(&self, offset: u64) -> bool {
        (self.part.from..self.part.to).contains(&offset)
    }
}

/// Parts by segment.
type Parts = BTreeMap<u64, Vec<Found>>;

/// Parts of segments that need not be copied: for each segment a row from its first byte on, without gap.
pub(super) type Rows = BTreeMap<u64, Vec<Part>>;

/// Finds the parts of segments of `version` that need not be copied; and what the database's own attempts have left of which nothing is
/// taken over, now or later: what has died stays dead.
pub(super) fn find(
    target: &dyn Target,
    listing: &Listing,
    database: DatabaseId,
    of: (&Version, &Encryption),
) -> Result<(Rows, Vec<BlobName>)> {
    let (newest, unnamed) = newest(target, listing, database, of.0)?;
    let last = newest.iter().find(|earlier| earlier.database == database).map(|earlier| earlier.number);
    let mut attempts = BTreeSet::new();
    for attempt in listing.attempts().into_iter().filter(|attempt| last.is_none_or(|last| *attempt > last)) {
        let found = match database_of(target, attempt) {
            Err(Error::NewerFormat { .. }) => None,
            found => found?,
        };
        if found == Some(database) {
            attempts.insert(attempt);
        }
    }
    let rows = rows(target, listing, (newest, &attempts), database, of)?;
    let is_taken = |segment, from, to, backup| {
        let is_it = |part: &Part| (part.from, part.to, part.backup) == (from, to, backup);
        rows.get(&segment).is_some_and(|row| row.iter().any(is_it))
    };
    let of_use: BTreeSet<u64> = rows.values().flatten().map(|part| part.backup).collect();
    let is_left = |name: &BlobName| match *name {
        BlobName::Segment { segment, from, to, backup } => !is_taken(segment, from, to, backup),
        BlobName::Version(attempt) => !of_use.contains(&attempt),
        _ => false,
    };
    let of_own = unnamed.into_iter().filter(|name| attempts.contains(&name.backup()));
    let left = of_own.filter(is_left).collect();
    Ok((rows, left))
}

/// The rows, of parts of these backups and attempts.
fn rows(
    target: &dyn Target,
    listing: &Listing,
    (newest, attempts): (Vec<Earlier>, &BTreeSet<u64>),
    database: DatabaseId,
    (version, encryption): (&Version, &Encryption),
) -> Result<Rows> {
    let mut parts = Parts::new();
    let mut add = |segment: u64, part: Part, attempt| {
        parts.entry(segment).or_default().push(Found { part, attempt, is_own: false, live: 0, named: 0 });
    };
    for earlier in &newest {
        earlier.parts.iter().for_each(|(segment, part)| add(*segment, *part, earlier.number));
    }
    for (name, len) in &listing.blobs {
        if let BlobName::Segment { segment, from, to, backup } = *name
            && attempts.contains(&backup)
            && fits(version, segment, to)
        {
            add(segment, Part { from, to, backup, seal: Seal { len: *len, crc: 0 } }, backup);
        }
    }
    if parts.is_empty() {
        return Ok(BTreeMap::new());
    }
    count_live(version, &mut parts);
    for attempt in newest.iter().map(|earlier| earlier.number).chain(attempts.iter().copied()) {
        match count_named(target, attempt, (database, version, encryption), &mut parts) {
            // The target is locked: nobody has removed it just now.
            Err(error) if is_unreadable(&error) || is_missing(&error) => {
                tracing::warn!(%error, "nothing is taken over from a backup that cannot be read");
                parts.values_mut().for_each(|found| found.retain(|it| it.attempt != attempt));
            }
            counted => counted?,
        }
    }
    let mut rows = BTreeMap::new();
    for (segment, mut found) in parts {
        found.retain(Found::is_it);
        let parts = found.into_iter().map(|it| it.part).collect();
        let row = sealed_row(target, segment, parts)?;
        if !row.is_empty() && row.len() < PARTS_MAX {
            rows.insert(segment, row);
        }
    }
    Ok(rows)
}

/// Whether a segment of the version reaches as far.
fn fits(version: &Version, segment: u64, to: u64) -> bool {
    version.segments.get(segment).is_some_and(|entry| to <= entry.used)
}

/// What is of interest in the manifest of a backup.
struct Earlier {
    number: u64,
    database: DatabaseId,
    /// The parts of which the version may need nodes, and their segments.
    parts: Vec<(u64, Part)>,
}

impl Earlier {
    fn of(manifest: &BackupManifest, listing: &Listing, version: &Version) -> Self {
        let segments = manifest.segments.iter().filter(|_| manifest.span == version.span);
        let parts = segments.flat_map(|entry| {
            let there = entry.parts.iter().take_while(|part| {
                let Part { from, to, backup, seal } = **part;
                listing.has(BlobName::Segment { segment: entry.segment, from, to, backup }, seal.len)
            });
            let of_use = there.filter(|part| fits(version, entry.segment, part.to));
            of_use.map(|part| (entry.segment, *part))
        });
        Self { number: manifest.number, database: manifest.database, parts: parts.collect() }
    }
}

/// The newest backup of this database, else the newest ones of all others, of those that can be read; and the blobs of attempts that no backup
/// names which is newer than they are. One manifest is in memory at a time.
fn newest(
    target: &dyn Target,
    listing: &Listing,
    database: DatabaseId,
    version: &Version,
) -> Result<(Vec<Earlier>, BTreeSet<BlobName>)> {
    let mut others: Vec<Earlier> = Vec::new();
    let attempts = listing.attempts();
    let of_attempts = listing.blobs.keys().copied().filter(|name| attempts.contains(&name.backup()));
    let mut unnamed: BTreeSet<BlobName> = of_attempts.collect();
    for number in listing.backups().into_iter().rev() {
        let manifest = match read_manifest(target, number) {
            Ok((manifest, _)) => manifest,
            Err(error) if is_unreadable(&error) => {
                tracing::warn!(%error, "nothing is taken over from a backup that cannot be read");
                // It may name all that was there before it.
                unnamed.retain(|name| name.backup() > number);
                continue;
            }
            Err(error) => return Err(error),
        };
        if manifest.database == database {
            return Ok((vec![Earlier::of(&manifest, listing, version)], unnamed));
        }
        if !unnamed.is_empty() {
            named(&manifest).for_each(|(name, _)| _ = unnamed.remove(&name));
        }
        if others.iter().all(|other| other.database != manifest.database) {
            others.push(Earlier::of(&manifest, listing, version));
        }
    }
    Ok((others, unnamed))
}

/// Parts one behind the other, from the first byte on: of those that begin at the same byte the longest.
fn row(mut parts: Vec<Part>) -> Vec<Part> {
    parts.sort_unstable_by_key(|part| (part.from, std::cmp::Reverse(part.to)));
    let mut row: Vec<Part> = Vec::new();
    for part in parts {
        if part.from == row.last().map_or(0, |last| last.to) {
            row.push(part);
        }
    }
    row
}

/// The parts that have a position.
fn parts_at<'p>(
    parts: &'p mut Parts,
    position: Position,
    span: u64,
) -> impl Iterator<Item = &'p mut Found> + use<'p> {
    let (segment, offset) = (position.0 / span, position.0 % span);
    parts.get_mut(&segment).into_iter().flatten().filter(move |found| found.has(offset))
}

fn count_live(version: &Version, parts: &mut Parts) {
    for (_, address) in version.table.iter() {
        parts_at(parts, address.position, version.span).for_each(|found| found.live += 1);
    }
}

/// Counts the nodes that the version of an attempt has as this one does.
fn count_named(
    target: &dyn Target,
    attempt: u64,
    (database, version, encryption): (DatabaseId, &Version, &Encryption),
    parts: &mut Parts,
) -> Result<()> {
    if !parts.values().flatten().any(|found| found.attempt == attempt) {
        return Ok(());
    }
    let mut input = BlobInput::new(target, BlobName::Version(attempt));
    let mut reader = input.open(Kind::Version, attempt)?;
    if reader.header.is_encrypted != encryption.is_on() {
        // Another database's.
        return Ok(());
    }
    reader.decrypt(encryption)?;
    let is_own = reader.header.database == database;
    parts.values_mut().flatten().filter(|it| it.attempt == attempt).for_each(|it| it.is_own = is_own);
    let mut is_first = true;
    reader.frames(EDIT_MAX, &mut |frame| {
        if std::mem::take(&mut is_first) {
            return Ok(());
        }
        for (id, address) in set_by(frame)? {
            if version.table.address(id) == Some(address) {
                parts_at(parts, address.position, version.span)
                    .filter(|found| found.attempt == attempt)
                    .for_each(|found| found.named += 1);
            }
        }
        Ok(())
    })?;
    Ok(())
}

fn set_by(frame: &[u8]) -> std::result::Result<Vec<(NodeId, Address)>, String> {
    Edit::decode(frame).map(|edit| edit.set).map_err(|section| format!("an edit with a bad {section}"))
}

/// The row of these parts, with the seals of those that no manifest names. A part whose end cannot be read is as good as not there: the
/// attempt may have been cut off while its blob was put.
fn sealed_row(target: &dyn Target, segment: u64, mut parts: Vec<Part>) -> Result<Vec<Part>> {
    'without_unreadable: loop {
        let mut row = row(parts.clone());
        for part in row.iter_mut().filter(|part| part.seal.crc == 0) {
            match read_seal(target, segment, part) {
                Err(error) if is_unreadable(&error) || is_missing(&error) => {
                    tracing::warn!(%error, "nothing is taken over from a segment that cannot be read");
                    parts.retain(|it| it != part);
                    continue 'without_unreadable;
                }
                seal => part.seal = seal?,
            }
        }
        return Ok(row);
    }
}

/// The seal of a part that no manifest names.
fn read_seal(target: &dyn Target, segment: u64, part: &Part) -> Result<Seal> {
    let Part { from, to, backup, seal: Seal { len, .. } } = *part;
    let name = BlobName::Segment { segment, from, to, backup }.to_string();
    let mut end = [0; END];
    let got = match len.checked_sub(END as u64) {
        Some(at) if len >= (HEADER + END) as u64 => {
            called(target, "read", &name, target.get(&name, at, &mut end))?
        }
        _ => 0,
    };
    let of_end = (got == END).then(|| Seal::of_end(&end, len, to - from)).flatten();
    let is_cut_off = || damage(&target.describe(), &name, len, "the blob is cut off", "its end", got);
    of_end.ok_or_else(is_cut_off)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_no_gap_and_begin_at_the_first_byte() {
        let part = |from, to, backup| Part { from, to, backup, seal: Seal::default() };
        let found = row(vec![
            part(8, 12, 1),
            part(0, 4, 1),
            part(4, 8, 2),
            part(4, 6, 1),
            part(6, 8, 1),
            part(20, 30, 1),
        ]);
        assert_eq!(found, [part(0, 4, 1), part(4, 8, 2), part(8, 12, 1)]);
        assert_eq!(row(vec![part(4, 8, 1)]), []);
    }
}
