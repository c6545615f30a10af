//! The names in a simulated volume: as seen, as durable, and the operations in between.
//!
//! Invariants:
//! 1. applying all of `pending` in order to `durable` gives `seen`, until a sync fails: what that loses, only `seen`
//!    has, until somebody else finds the directory ([`Directory::found`]);
//! 2. a pending operation records which file it moved. It does nothing if an earlier one on which it depends
//!    was lost: a rename or removal is done completely or not at all.

use std::collections::BTreeMap;

/// A file's number. Never reused in a volume or its images.
pub(super) type Number = u64;

/// A name created, changed or removed, not durable yet.
#[derive(Clone, Debug)]
pub(super) enum NameChange {
    Create { name: String, file: Number },
    Rename { from: String, to: String, file: Number },
    Remove { name: String, file: Number },
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, Number>) {
        match self {
            Self::Create { name, file } => {
                names.insert(name.clone(), *file);
            }
            Self::Rename { from, to, file } => {
                if names.get(from) == Some(file) {
                    names.remove(from);
                    names.insert(to.clone(), *file);
                }
            }
            Self::Remove { name, file } => {
                if names.get(name) == Some(file) {
                    names.remove(name);
                }
            }
        }
    }
}

/// All names of a volume.
#[derive(Clone, Debug, Default)]
pub(super) struct Directory {
    pub(super) seen: BTreeMap<String, Number>,
    durable: BTreeMap<String, Number>,
    pending: Vec<NameChange>,
    /// A sync has failed.
    has_lost: bool,
}

impl Directory {
    pub(super) fn change(&mut self, change: NameChange) {
        change.apply(&mut self.seen);
        self.pending.push(change);
    }

    /// Makes durable what is pending.
    pub(super) fn sync(&mut self) {
        for change in self.pending.drain(..) {
            change.apply(&mut self.durable);
        }
    }

    /// What a failed sync leaves: the pending operations selected by `kept` are durable. The next sync does not know of
    /// the others, though all is seen as before. So a process that tries again must not believe it.
    pub(super) fn fail_sync(&mut self, kept: impl FnMut(usize) -> bool) {
        self.durable = self.after_loss(kept).durable;
        self.pending.clear();
        self.has_lost = true;
    }

    /// The directory as another process finds it. What a failed sync has lost can become durable again: a kernel either
    /// refuses all changes after it, or writes the directory anew with the first change of whoever comes next. (If not, only
    /// a copy of every file would help.)
    pub(super) fn found(&self) -> Self {
        if !self.has_lost {
            return self.clone();
        }
        let (seen, durable) = (&self.seen, &self.durable);
        let moved = |file: &Number| {
            durable
                .iter()
                .find(|(name, other)| *other == file && seen.get(*name) != Some(file))
                .map(|(name, _)| name)
        };
        let new = seen.iter().filter(|(name, file)| durable.get(*name) != Some(file));
        let mut pending: Vec<NameChange> = new
            .map(|(name, file)| match moved(file) {
                Some(from) => NameChange::Rename { from: from.clone(), to: name.clone(), file: *file },
                None => NameChange::Create { name: name.clone(), file: *file },
            })
            .collect();
        let gone = durable
            .iter()
            .filter(|(name, file)| !seen.contains_key(*name) && !seen.values().any(|other| other == *file));
        pending.extend(gone.map(|(name, file)| NameChange::Remove { name: name.clone(), file: *file }));
        Self { seen: seen.clone(), durable: durable.clone(), pending, has_lost: false }
    }

    pub(super) fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// The directory as it would be if only the pending operations selected by `kept` had happened.
    pub(super) fn after_loss(&self, mut kept: impl FnMut(usize) -> bool) -> Self {
        let mut names = self.durable.clone();
        for (index, change) in self.pending.iter().enumerate() {
            if kept(index) {
                change.apply(&mut names);
            }
        }
        Self { seen: names.clone(), durable: names, pending: Vec::new(), has_lost: false }
    }

    /// Whether `file` has a name, or could have one again after power loss.
    pub(super) fn can_name(&self, file: Number) -> bool {
        let holds = |names: &BTreeMap<String, Number>| names.values().any(|other| *other == file);
        holds(&self.seen)
            || holds(&self.durable)
            || self.pending.iter().any(|change| match change {
                NameChange::Create { file: other, .. }
                | NameChange::Rename { file: other, .. }
                | NameChange::Remove { file: other, .. } => *other == file,
            })
    }
}
