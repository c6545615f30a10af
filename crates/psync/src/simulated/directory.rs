//! The names in a simulated volume: as seen, as durable, and the operations in between.
//!
//! Invariants:
//! 1. applying all of `pending` in order to `durable` gives `seen`;
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
}

impl Directory {
    pub(super) fn change(&mut self, change: NameChange) {
        change.apply(&mut self.seen);
        self.pending.push(change);
    }

    /// Makes the names durable as they are seen.
    pub(super) fn sync(&mut self) {
        if !self.pending.is_empty() {
            self.pending.clear();
            self.durable = self.seen.clone();
        }
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
        Self { seen: names.clone(), durable: names, pending: Vec::new() }
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
