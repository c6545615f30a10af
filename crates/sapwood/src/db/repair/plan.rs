//! What is known of a damaged database before its nodes are read: which manifest counts, how far it can be believed, and
//! whether the log continues it.
//!
//! ```text
//! CURRENT ──▶ its manifest, whole                           known: its trees are copied
//!    ✗ ─────▶ newest manifest, whole, and the log goes on   known
//!             a part of a manifest, or none                 searched: the data file's nodes tell what they are
//! ```

use crate::database_id::DatabaseId;
use crate::db::open::{has_current, refuse_lost_keys, unfinished};
use crate::encryption::{self, Encryption, EncryptionKey};
use crate::error::{Error, KeyProblem, Result};
use crate::operation::{KeyspaceId, SeqNo};
use crate::storage::reader::FILE as DATA_FILE;
use crate::version::current::{Current, FORMAT};
use crate::version::manifest::{self, Salvaged};
use crate::version::trees::NAME_LEN_MAX;
use crate::version::{Tree, Version};
use crate::wal::{self, Generations, LogFiles, Salvage};
use psync::Volume;
use std::sync::Arc;

/// Spans that a database whose `CURRENT` is lost may have, as powers of two: the default, then all that the options allow, and
/// smaller ones.
const SPANS: [u32; 16] = [26, 20, 21, 22, 23, 24, 25, 27, 28, 29, 30, 16, 17, 18, 19, 31];

/// See the module.
pub(super) struct Plan {
    pub current: Current,
    pub encryption: Encryption,
    pub version: Version,
    /// The epoch up to which the version is whole.
    pub whole_to: Option<u64>,
    /// Whether it is the newest one, as far as anything tells.
    pub is_known: bool,
    /// Bytes behind the end of the manifest that are no whole edit.
    pub unfinished: u64,
    pub damage: Vec<Error>,
    /// The log generations to read.
    pub generations: Generations,
}

impl Plan {
    /// Returns an error if there is nothing to repair.
    pub fn refuse_nothing(volume: &dyn Volume) -> Result<()> {
        let entries = volume.list()?;
        // Part of a copy, of which there is a whole one, or what is to be repaired.
        if !has_current(&entries)
            && let Some(reason) = unfinished(&entries)
        {
            return Err(Error::NotADatabase { path: volume.describe(), reason });
        }
        let is_there = |name: &str| {
            name == DATA_FILE || manifest::number_of(name).is_some() || wal::generation_of(name).is_some()
        };
        if entries.iter().any(|entry| is_there(&entry.name)) {
            return Ok(());
        }
        match Current::read(volume) {
            Err(_) if !has_current(&entries) => Err(Error::Missing { path: volume.describe() }),
            read => read.map(drop),
        }
    }

    pub fn of(volume: &dyn Volume, key: Option<&EncryptionKey>) -> Result<Self> {
        let entries = volume.list()?;
        let mut manifests: Vec<_> =
            entries.iter().filter_map(|entry| manifest::number_of(&entry.name)).collect();
        manifests.sort_unstable_by(|a, b| b.cmp(a));
        let generations: Vec<_> =
            entries.iter().filter_map(|entry| wal::generation_of(&entry.name)).collect();
        let mut damage = Vec::new();
        let named = match Current::read(volume) {
            Ok(current) => Some(current),
            Err(error @ (Error::NewerFormat { .. } | Error::OlderFormat { .. })) => return Err(error),
            // Whoever may not open a file has not lost it.
            Err(Error::Io(error)) if !is_unreadable(&error) => return Err(Error::Io(error)),
            Err(error) => {
                damage.push(error);
                None
            }
        };
        let encryption = encryption_of(volume, &manifests, key)?;
        let mut best: Option<Salvaged> = None;
        if let Some(current) = &named {
            best = manifest::salvage(volume, (current, &encryption))?;
            if best.is_none() {
                let what = "the manifest that CURRENT names is missing";
                let name = manifest::file_name(current.manifest);
                damage.push(Error::corrupt(name, 0, what, "a file", "none"));
            }
        }
        // The named one is only passed over if nothing of it can be believed.
        let is_named = best.as_ref().is_some_and(|found| found.whole_to.is_some());
        if !is_named {
            let old = best.as_mut().and_then(|found| found.damage.take());
            damage.extend(old);
            for number in
                manifests.iter().filter(|number| named.is_none_or(|named| named.manifest != **number))
            {
                let found = other(volume, (*number, &encryption), named.as_ref())?;
                let is_better =
                    |found: &Salvaged| best.as_ref().is_none_or(|best| found.whole_to > best.whole_to);
                if let Some(found) = found.filter(is_better) {
                    best = Some(found);
                }
            }
        }
        let current = named.unwrap_or(Current {
            format: FORMAT,
            database: generations
                .iter()
                .find_map(|number| wal::database_of(volume, *number))
                .unwrap_or(DatabaseId([0; 16])),
            manifest: manifests.first().copied().unwrap_or(1),
            span: 1 << SPANS[0],
            manifest_len: 0,
        });
        let found = best.unwrap_or_else(|| Salvaged {
            current,
            version: Version::empty(current.span),
            whole_to: None,
            damage: None,
            uncertain: Default::default(),
            unfinished: 0,
        });
        let is_sealed = found.is_sealed() && is_named;
        let Salvaged { current, mut version, whole_to, damage: of_manifest, uncertain, unfinished } = found;
        for id in uncertain {
            call_recovered(&mut version, id);
        }
        let is_whole = whole_to.is_some() && of_manifest.is_none() && (is_named || named.is_none());
        damage.extend(of_manifest);
        let (oldest, newest) = (generations.iter().min(), generations.iter().max());
        let mut plan = Self {
            current,
            encryption,
            generations: Generations { low: version.wal_low, high: version.wal_high },
            version,
            whole_to,
            is_known: is_whole,
            unfinished,
            damage,
        };
        if is_whole && !is_sealed && !plan.log_goes_on(volume)? {
            // The edit that made the missing part of the log unnecessary is missing too.
            let name = manifest::file_name(plan.current.manifest);
            let what = "edits at the end of the manifest are missing: the log goes on behind them";
            let expected = format!("sequence number {}", plan.version.flushed_seq + 1);
            plan.damage.push(Error::corrupt(name, 0, what, expected, "a later one"));
            plan.is_known = false;
        }
        if !plan.is_known
            && let (Some(oldest), Some(newest)) = (oldest, newest)
        {
            plan.generations = Generations { low: plan.generations.low.max(*oldest), high: *newest };
        }
        Ok(plan)
    }

    /// Whether the log has what follows on the trees, or nothing at all.
    fn log_goes_on(&self, volume: &dyn Volume) -> Result<bool> {
        let (flushed, mut first) = (self.version.flushed_seq, None::<SeqNo>);
        let mut take = |found: Salvage<'_>| {
            let (Salvage::Next(record) | Salvage::Behind(record)) = found;
            if record.first_seq + u64::from(record.count) > flushed + 1 {
                first = Some(record.first_seq.min(first.unwrap_or(u64::MAX)));
            }
            Ok(())
        };
        let files = LogFiles::new(volume, self.current.database);
        files.salvage(&self.encryption, self.generations, &mut take)?;
        let has_low = volume.list()?.iter().any(|entry| entry.name == wal::file_name(self.generations.low));
        Ok(first.map_or(has_low, |first| first <= flushed + 1))
    }
}

/// Whether the device could not read.
fn is_unreadable(error: &psync::Error) -> bool {
    matches!(error, psync::Error::Io { operation: "read", .. })
}

/// The data keys, whichever of the manifests counts. Without them nothing can be saved.
fn encryption_of(volume: &dyn Volume, manifests: &[u64], key: Option<&EncryptionKey>) -> Result<Encryption> {
    let path = volume.describe();
    if let Some(content) = encryption::content(volume)? {
        return Encryption::of_copy(&content, key, &path);
    }
    for number in manifests {
        match refuse_lost_keys(volume, *number) {
            // Nothing is known of it.
            Err(Error::Io(error)) if is_unreadable(&error) => {}
            refused => refused?,
        }
    }
    match key {
        None => Ok(Encryption::NONE),
        Some(_) => Err(Error::EncryptionKey { path, problem: KeyProblem::Needless }),
    }
}

/// Gives a keyspace another name, since its values may be stored in another way than its users would take them for.
fn call_recovered(version: &mut Version, id: KeyspaceId) {
    let Some(tree) = version.trees.get(&id).cloned() else { return };
    let name = free_name(version, format!("recovered-{}-{}", id.0, tree.name));
    version.trees.insert(id, Tree { name, ..tree });
}

/// Adds a keyspace that no manifest tells of, with its tree if that is known.
pub(super) fn recover(version: &mut Version, id: KeyspaceId, tree: Option<Tree>) {
    let name = free_name(version, format!("recovered-{}", id.0));
    let tree = Tree { name, ..tree.unwrap_or_else(|| Tree::empty("".into())) };
    version.trees.insert(id, tree);
    version.last_keyspace = version.last_keyspace.max(id.0);
}

/// A name like this that no keyspace has.
fn free_name(version: &Version, mut name: String) -> Arc<str> {
    while version.trees.iter().any(|(_, tree)| *tree.name == *name) {
        name.insert(0, '-');
    }
    // Those of chunks of large values have such.
    name.retain(|character| !character.is_control());
    while name.len() > NAME_LEN_MAX {
        name.pop();
    }
    name.into()
}

/// What is left of another manifest than the one that `CURRENT` names, or of any if that is lost.
fn other(
    volume: &dyn Volume,
    (number, encryption): (u64, &Encryption),
    named: Option<&Current>,
) -> Result<Option<Salvaged>> {
    if let Some(named) = named {
        let current = Current { manifest: number, manifest_len: 0, ..*named };
        return manifest::salvage(volume, (&current, encryption));
    }
    let Some(current) = manifest::identify(volume, number)? else { return Ok(None) };
    // Only the right span makes positions lie in segments.
    let mut best: Option<Salvaged> = None;
    for span in SPANS {
        let current = Current { span: 1 << span, ..current };
        let Some(found) = manifest::salvage(volume, (&current, encryption))? else { return Ok(None) };
        if found.damage.is_none() {
            return Ok(Some(found));
        }
        if best.as_ref().is_none_or(|best| found.whole_to > best.whole_to) {
            best = Some(found);
        }
    }
    Ok(best)
}
