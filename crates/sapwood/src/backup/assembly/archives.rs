//! Takes archives of the log: commits go to the log behind those of the backup, and what happened to keyspaces is kept until the version is
//! known to be the backup's.
//!
//! Invariant: nothing behind the moment that is wanted is taken.

use super::{Assembly, COMMIT_HEAD, append, check_body, commit_or_event, end_of_log};
use crate::backup::blob::{BlobReader, Input};
use crate::backup::manifest::ArchivePart;
use crate::backup::point::Point;
use crate::error::Result;
use crate::operation::{KeyspaceId, Operations, SeqNo};
use crate::version::Version;
use crate::version::edit::Edit;
use crate::wal::{BODY_LEN_MAX, HAS_TIME, TIME_LEN};

/// Bytes of an event before its edit, as the format has it.
const EVENT_HEAD: usize = 8;

/// How far archives have led.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::backup) struct ArchiveProgress {
    /// The last operation.
    pub seq: SeqNo,
    /// The last time that was told, in milliseconds since 1970.
    pub time: u64,
    /// The moment wanted was passed: nothing more is taken.
    pub is_passed: bool,
}

impl Assembly {
    /// Takes an archive that continues the backup, up to a moment; all of it, if none is said. Commits go to the log, behind those of the
    /// backup, and what happened to keyspaces is done to the version: opening finds what a crash at that moment would have left.
    pub fn take_archive<I: Input>(
        &mut self,
        mut reader: BlobReader<'_, I>,
        part: &ArchivePart,
        point: Option<Point>,
    ) -> Result<()> {
        reader.decrypt(&self.encryption)?;
        let mut taking = match self.log {
            Some((_, last)) if self.archived.seq == 0 => ArchiveProgress { seq: last, ..self.archived },
            _ => self.archived,
        };
        if reader.header.a != part.from || self.output.is_some() && taking.seq != part.from {
            return Err(reader.damage("the operation before the archive", part.from, reader.header.a));
        }
        let mut next = part.from + 1;
        let mut writer = self.output.as_mut().and_then(|output| output.log.as_mut());
        let created = self.happened.iter().flat_map(|edit| &edit.trees).map(|(id, _)| id.0).max();
        let of_backup = self.version.as_ref().map_or(0, |version| version.last_keyspace);
        let mut last_keyspace = created.unwrap_or(0).max(of_backup);
        let happened = &mut self.happened;
        let mut failed = None;
        let sealed = reader.frames(COMMIT_HEAD + TIME_LEN + BODY_LEN_MAX, &mut |frame| {
            let (seq, count, body) = commit_or_event(frame).ok_or("a frame that is cut off")?;
            if count == 0 {
                let (time, edit) = event(body)?;
                if seq + 1 != next {
                    return Err(format!("an event behind operation {seq}, where {next} comes next"));
                }
                let passed = point
                    .is_some_and(|point| point.is_before_time(time) || point.is_before_operation(seq + 1));
                taking.is_passed |= passed;
                if taking.is_passed {
                    return Ok(());
                }
                taking.time = taking.time.max(time);
                if writer.is_some() {
                    for (id, _) in &edit.trees {
                        if id.0 <= last_keyspace || *id > KeyspaceId::LAST {
                            return Err(format!("keyspace {} created, where there is {last_keyspace}", id.0));
                        }
                        last_keyspace = id.0;
                    }
                    happened.push(edit);
                }
                return Ok(());
            }
            if seq != next {
                return Err(format!("sequence number {seq} where {next} should be"));
            }
            let (time, body) = match body.split_first_chunk::<TIME_LEN>() {
                Some((time, body)) if count & HAS_TIME > 0 => (u64::from_le_bytes(*time), body),
                None if count & HAS_TIME > 0 => return Err("a time that is cut off".to_owned()),
                _ => (0, body),
            };
            let count = count & !HAS_TIME;
            check_body(body, count)?;
            next += u64::from(count);
            let passed =
                point.is_some_and(|point| point.is_before_time(time) || point.is_before_operation(next - 1));
            taking.is_passed |= passed;
            if taking.is_passed {
                return Ok(());
            }
            (taking.seq, taking.time) = (next - 1, taking.time.max(time));
            let Some(writer) = &mut writer else { return Ok(()) };
            check_keyspaces(body, last_keyspace)?;
            append(writer, (seq, count, body), &mut failed)
        });
        if let Some(error) = failed {
            return Err(error);
        }
        let seal = sealed?;
        if seal != part.seal {
            return Err(reader.damage("the archive", format!("{:?}", part.seal), format!("{seal:?}")));
        }
        if next != part.to + 1 {
            return Err(reader.damage("the last operation of the archive", part.to, next - 1));
        }
        if let Some(writer) = writer {
            end_of_log(writer)?;
        }
        self.archived = taking;
        Ok(())
    }

    /// How far archives have led.
    pub fn archived(&self) -> ArchiveProgress {
        self.archived
    }
}

/// The time of an event, and the edit that makes it happen again, which concerns nothing but keyspaces.
fn event(body: &[u8]) -> std::result::Result<(u64, Edit), String> {
    let (time, edit) = body.split_first_chunk::<EVENT_HEAD>().ok_or("an event that is cut off")?;
    let edit = Edit::decode(edit).map_err(|section| format!("an event with a bad {section}"))?;
    let Edit { trees, dropped, names, ttls, merges, durabilities, compressions, .. } = edit.clone();
    let of_keyspaces =
        Edit { trees, dropped, names, ttls, merges, durabilities, compressions, ..Edit::default() };
    if edit != of_keyspaces || edit.trees.iter().any(|(_, tree)| tree.root.is_some()) {
        return Err("an event that concerns more than keyspaces".to_owned());
    }
    Ok((u64::from_le_bytes(*time), edit))
}

/// Does to keyspaces what an event has done.
pub(super) fn happen_again(version: &mut Version, mut edit: Edit) -> std::result::Result<(), &'static str> {
    let chunks = |id: &KeyspaceId| version.trees.get(id).and_then(|tree| tree.chunks);
    let chunks: Vec<_> = edit.dropped.iter().filter_map(chunks).collect();
    edit.dropped.extend(chunks);
    // A new name tells nothing of the metadata, which may have changed before or since, or is not known any more.
    for named in &mut edit.names {
        if let Some(tree) = version.trees.get(&named.id) {
            named.metadata = tree.metadata.clone();
        }
    }
    version.apply(&edit, &mut |_, _| Err("an event has no segments"))
}

/// Checks that a body changes no keyspace that never was.
fn check_keyspaces(body: &[u8], last: u32) -> std::result::Result<(), String> {
    let keyspaces = Operations::new(body).filter_map(|operation| Some(operation.ok()?.keyspace().0));
    match keyspaces.filter(|id| !(1..=last).contains(id)).last() {
        Some(id) => Err(format!("keyspace {id}, of {last}")),
        None => Ok(()),
    }
}
