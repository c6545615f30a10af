//! Reads what is left of a damaged manifest, for a repair.
//!
//! Invariants:
//! 1. Up to the first damage the version is as the edits made it. Of the edits behind it only what they say of keyspaces and of
//!    the log is taken, since their nodes belong to trees that are not known.
//! 2. A record counts only with its checksum, which covers where it stands.

use super::file_name;
use super::format::{FILE_HEADER, FileHeader, RECORD_MAGIC, Record};
use super::replay::{apply, read_record};
use crate::encryption::Encryption;
use crate::error::{Error, Result};
use crate::operation::{KeyspaceId, NUMBER_MAX};
use crate::source::{FileSource, Source, Window};
use crate::storage::slots::Slots;
use crate::version::current::{Current, FORMAT, FORMAT_OF_SLOTS};
use crate::version::edit::Edit;
use crate::version::{Tree, Version};
use psync::Volume;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What is left of a manifest.
pub(crate) struct Salvaged {
    pub current: Current,
    pub version: Version,
    /// The epoch up to which the version is whole; `None` if that is not even its checkpoint.
    pub whole_to: Option<u64>,
    /// Why it is not the newest version, if it is not.
    pub damage: Option<Error>,
    /// Keyspaces that edits behind the damage tell of, but not how their values are stored.
    pub uncertain: BTreeSet<KeyspaceId>,
    /// Bytes behind the last whole record, without zeros at the end: of an edit that was not finished, or is damaged.
    pub unfinished: u64,
}

impl Salvaged {
    /// Whether this is known to be the newest version: the database was closed properly.
    pub fn is_sealed(&self) -> bool {
        self.damage.is_none() && self.unfinished == 0 && self.current.manifest_len > 0
    }
}

/// What the header of a manifest says, for a database whose `CURRENT` is lost: all but the span.
pub(crate) fn identify(volume: &dyn Volume, number: u64) -> Result<Option<Current>> {
    let source = match FileSource::open(volume, &file_name(number)) {
        Err(psync::Error::NotFound { .. }) => return Ok(None),
        opened => opened?,
    };
    let Some(FileHeader { format, database, .. }) = header(&source, number) else { return Ok(None) };
    let is_readable = (FORMAT_OF_SLOTS..=FORMAT).contains(&format) && number < NUMBER_MAX;
    Ok(is_readable.then_some(Current { format, database, manifest: number, span: 0, manifest_len: 0 }))
}

/// The header of this manifest, if it is sound.
fn header(source: &impl Source, number: u64) -> Option<FileHeader> {
    let mut bytes = [0; FILE_HEADER];
    if source.len() < bytes.len() as u64 || source.read_at(0, &mut bytes).is_err() {
        return None;
    }
    FileHeader::decode(&bytes).ok().filter(|header| header.number == number)
}

/// Reads the manifest that `current` names, as far as it can be read. `None`: there is no such file.
pub(crate) fn salvage(volume: &dyn Volume, of: (&Current, &Encryption)) -> Result<Option<Salvaged>> {
    let current = of.0;
    let name = file_name(current.manifest);
    let source = match FileSource::open(volume, &name) {
        Err(psync::Error::NotFound { .. }) => return Ok(None),
        opened => opened?,
    };
    let mut window = Window::of_damaged(source);
    let slots: Arc<Slots> = Arc::default();
    let mut found = Salvaged {
        current: *current,
        version: Version::empty(current.span),
        whole_to: None,
        damage: None,
        uncertain: BTreeSet::new(),
        unfinished: 0,
    };
    let checkpoint = header(&window.source, current.manifest).map(|header| header.epoch);
    let corrupt = |at, what: &str, found: String| Error::corrupt(&*name, at, what, "a whole edit", found);
    let (mut at, mut is_first) = (FILE_HEADER as u64, true);
    loop {
        let record = read_record(&mut window, of, at).unwrap_or_else(|error| {
            found.damage.get_or_insert(error);
            None
        });
        let Some(record) = record else {
            let Some(later) = next_record(&mut window, of, at + 1) else { break };
            let what = "an edit in the middle is damaged";
            let told = corrupt(at, what, format!("one that is not, and a whole one at byte {later}"));
            found.damage.get_or_insert(told);
            at = later;
            continue;
        };
        let (len, chained, epoch, edit) = (record.len, record.chained, record.epoch, record.edit.clone());
        if found.damage.is_none() {
            let expected = if found.whole_to.is_some() { found.version.epoch + 1 } else { epoch };
            // Ids and segments are believed: each record has its checksum, and the data file may have been cut off.
            let room = (current, u64::MAX, &slots);
            match apply(record, at, expected, room, &mut found.version) {
                Ok(_) if found.whole_to.is_some() || !chained => found.whole_to = Some(found.version.epoch),
                Ok(_) => {}
                Err(error) => {
                    found.damage = Some(error);
                    found.whole_to = None;
                }
            }
        }
        if found.damage.is_some()
            && let Ok(edit) = edit
        {
            // Those that create keyspaces, and the checkpoint, tell all of them.
            let creates = edit.set.is_empty() && edit.freed.is_empty();
            let is_told = |tree: &Tree| checkpoint == Some(epoch) || (creates && tree.root.is_none());
            let is_new = |id: &KeyspaceId| !found.version.trees.contains(id);
            let untold = edit.trees.iter().filter(|(id, tree)| is_new(id) && !is_told(tree));
            found.uncertain.extend(untold.map(|(id, _)| *id));
            apply_catalog(&mut found.version, &edit);
        }
        is_first = false;
        at += len;
    }
    if found.damage.is_none() && (is_first || found.whole_to.is_none()) {
        let what = "the checkpoint at the beginning";
        found.damage = Some(corrupt(FILE_HEADER as u64, what, "a part of one".to_owned()));
    }
    if found.damage.is_none() && at < current.manifest_len {
        let what = "an edit is damaged or missing";
        let told = format!("whole edits up to byte {at} of {}", current.manifest_len);
        found.damage = Some(corrupt(at, what, told));
    }
    found.unfinished = window.zeros_at_end(at).map_or(1, |end| end - at);
    Ok(Some(found))
}

/// Where the next whole record begins.
fn next_record<S: Source>(window: &mut Window<S>, of: (&Current, &Encryption), mut from: u64) -> Option<u64> {
    while let Ok(Some(later)) = window.find(RECORD_MAGIC, from) {
        if let Ok(Some(Record { .. })) = read_record(window, of, later) {
            return Some(later);
        }
        from = later + 1;
    }
    None
}

/// Applies what an edit says of keyspaces and of the log, each by itself, and passes over what does not fit.
fn apply_catalog(version: &mut Version, edit: &Edit) {
    let of = |change: &dyn Fn(&mut Edit)| {
        let mut part = Edit::default();
        change(&mut part);
        part
    };
    let mut parts = Vec::new();
    parts.extend(edit.trees.iter().map(|tree| of(&|part| part.trees.push(tree.clone()))));
    parts.extend(edit.dropped.iter().map(|id| of(&|part| part.dropped.push(*id))));
    parts.extend(edit.names.iter().map(|name| of(&|part| part.names.push(name.clone()))));
    parts.extend(edit.ttls.iter().map(|ttl| of(&|part| part.ttls.push(*ttl))));
    parts.extend(edit.merges.iter().map(|merging| of(&|part| part.merges.push(merging.clone()))));
    parts.extend(edit.durabilities.iter().map(|one| of(&|part| part.durabilities.push(*one))));
    parts.extend(edit.compressions.iter().map(|one| of(&|part| part.compressions.push(*one))));
    parts.extend(edit.larges.iter().map(|one| of(&|part| part.larges.push(*one))));
    parts.extend(edit.dictionaries.iter().map(|one| of(&|part| part.dictionaries.push(one.clone()))));
    parts.push(Edit {
        wal_low: edit.wal_low,
        wal_high: edit.wal_high,
        flushed_seq: edit.flushed_seq,
        begun_flushes: edit.begun_flushes.clone(),
        last_keyspace: edit.last_keyspace,
        clock: edit.clock,
        keeping: edit.keeping,
        ..Edit::default()
    });
    let epoch = version.epoch;
    for part in &parts {
        // What does not fit changes nothing: each part is checked before it is applied.
        let _ = version.apply(part, &mut |_, _| Err("no segments"));
    }
    version.epoch = epoch;
}
