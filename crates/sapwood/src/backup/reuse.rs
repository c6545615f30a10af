//! What a target has already of the segments that a backup needs: from the newest backup, and from attempts after it that came to no
//! end.
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
//! Invariant: a part is taken over only if the version of its attempt names every node that is live in it now.

use super::blob::{END, HEADER, Kind, Seal};
use super::input::{BlobInput, read_manifest};
use super::manifest::Part;
use super::name::BlobName;
use super::target::Target;
use super::{called, damage};
use crate::encryption::Encryption;
use crate::error::Result;
use crate::storage::mapping_table::{Address, Position};
use crate::storage::node::NodeId;
use crate::version::Version;
use crate::version::edit::Edit;
use crate::version::manifest::EDIT_MAX;
use std::collections::{BTreeMap, BTreeSet};

/// Parts of a segment (count) with which it is copied anew, as one: a segment is the open one for a few backups in most databases,
/// and each part is a call of the target.
const PARTS_MAX: usize = 8;

/// What a target has, by name.
#[derive(Debug, Default)]
pub(super) struct Listing {
    pub blobs: BTreeMap<BlobName, u64>,
}

impl Listing {
    pub fn read(target: &dyn Target) -> Result<Self> {
        let listed = called(target, "list", "blobs", target.list())?;
        let blobs = listed.iter().filter_map(|(name, len)| Some((BlobName::parse(name)?, *len))).collect();
        Ok(Self { blobs })
    }

    /// The numbers of the backups.
    pub fn backups(&self) -> BTreeSet<u64> {
        let manifests = self.blobs.keys().filter(|name| matches!(name, BlobName::Manifest(_)));
        manifests.map(|name| name.backup()).collect()
    }

    /// A number above all that were ever used, as far as there is anything left of them.
    pub fn next_number(&self) -> u64 {
        self.blobs.keys().map(|name| name.backup()).max().unwrap_or(0) + 1
    }

    /// Whether there is a blob of this name and length.
    pub fn has(&self, name: BlobName, len: u64) -> bool {
        self.blobs.get(&name) == Some(&len)
    }
}

/// A part that a target has, and the attempt that tells of it.
struct Found {
    part: Part,
    attempt: u64,
    /// Nodes that are live in it now, and those of them that the attempt's version names.
    live: u64,
    named: u64,
}

impl Found {
    fn has(&self, offset: u64) -> bool {
        (self.part.from..self.part.to).contains(&offset)
    }
}

/// Parts by segment.
type Parts = BTreeMap<u64, Vec<Found>>;

/// Finds the parts of segments of `version` that need not be copied: for each segment a row from its first byte on, without gap.
pub(super) fn find(
    target: &dyn Target,
    listing: &Listing,
    (version, encryption): (&Version, &Encryption),
) -> Result<BTreeMap<u64, Vec<Part>>> {
    let newest = listing.backups().last().copied();
    let mut parts = Parts::new();
    let mut add = |segment: u64, part: Part, attempt| {
        let used = version.segments.get(segment).map_or(0, |entry| entry.used);
        if part.to <= used {
            parts.entry(segment).or_default().push(Found { part, attempt, live: 0, named: 0 });
        }
    };
    if let Some(number) = newest {
        match read_manifest(target, number) {
            Ok((manifest, _)) if manifest.span == version.span => {
                for entry in &manifest.segments {
                    let there = entry.parts.iter().take_while(|part| {
                        let Part { from, to, backup, seal } = **part;
                        let name = BlobName::Segment { segment: entry.segment, from, to, backup };
                        listing.has(name, seal.len)
                    });
                    there.for_each(|part| add(entry.segment, *part, number));
                }
            }
            Ok(_) => {}
            Err(error) if error.is_damage() => {
                tracing::warn!(%error, "nothing is taken over from a damaged backup");
            }
            Err(error) => return Err(error),
        }
    }
    let attempts: BTreeSet<u64> = listing
        .blobs
        .keys()
        .filter(
            |name| matches!(name, BlobName::Version(number) if newest.is_none_or(|newest| *number > newest)),
        )
        .map(|name| name.backup())
        .collect();
    for (name, len) in &listing.blobs {
        if let BlobName::Segment { segment, from, to, backup } = *name
            && attempts.contains(&backup)
        {
            add(segment, Part { from, to, backup, seal: Seal { len: *len, crc: 0 } }, backup);
        }
    }
    if parts.is_empty() {
        return Ok(BTreeMap::new());
    }
    count_live(version, &mut parts);
    for attempt in newest.into_iter().chain(attempts) {
        match count_named(target, attempt, (version, encryption), &mut parts) {
            Err(error) if error.is_damage() => {
                tracing::warn!(%error, "nothing is taken over from a damaged backup");
                parts.values_mut().for_each(|found| found.retain(|it| it.attempt != attempt));
            }
            counted => counted?,
        }
    }
    let mut rows = BTreeMap::new();
    for (segment, mut found) in parts {
        found.retain(|it| it.live == it.named);
        let mut row = row(found.iter().map(|it| it.part).collect());
        for part in &mut row {
            if part.seal.crc == 0 {
                part.seal = read_seal(target, segment, part)?;
            }
        }
        if !row.is_empty() && row.len() < PARTS_MAX {
            rows.insert(segment, row);
        }
    }
    Ok(rows)
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
    (version, encryption): (&Version, &Encryption),
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
    if got < END {
        return Err(damage(&target.describe(), &name, len, "the blob is cut off", "its end", got));
    }
    Ok(Seal::of_end(&end, len))
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
