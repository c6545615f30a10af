//! Faults on order: the n-th operation that matches a filter goes wrong in a way that was chosen.

/// Kinds of operations. Each member of a set of reads or writes is an operation of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// One request of a read set.
    Read,
    /// One request of a write set.
    Write,
    /// Sync of a file.
    Sync,
    /// Sync of the directory.
    SyncDirectory,
    /// Open or create.
    Open,
    /// Remove a file.
    Remove,
    /// Rename a file.
    Rename,
    /// Change a file's length.
    Resize,
    /// Give space back.
    Release,
    /// List the directory.
    List,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An I/O error. Of a write set, any part may have been done; after a failed sync the pages count as clean, though
    /// they are not on the medium.
    Error,
    /// The transfer stops half-way.
    Short,
    /// The disk is full; a part of the write may have been done.
    NoSpace,
    /// The power goes: of this operation a part may have been done, and everything after it fails.
    PowerOff,
    /// The write lands so many bytes further on, and the device says that all is well.
    Misdirect(u64),
    /// The write never happens, and the device says that all is well.
    Lose,
    /// One bit of what is read is flipped on the way (of what is written: on the medium).
    FlipBit,
}

/// Which operations count.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    kinds: Vec<Operation>,
    prefix: Option<String>,
}

impl Filter {
    /// Every operation.
    pub fn any() -> Self {
        Self::default()
    }

    /// Operations of one kind. Can be called again for another kind.
    pub fn kind(mut self, kind: Operation) -> Self {
        self.kinds.push(kind);
        self
    }

    /// Operations on files whose names begin so.
    pub fn file(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    fn matches(&self, kind: Operation, file: &str) -> bool {
        (self.kinds.is_empty() || self.kinds.contains(&kind))
            && self.prefix.as_ref().is_none_or(|prefix| file.starts_with(prefix))
    }
}

/// How often a fault happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// At the n-th operation only.
    Once,
    /// At the n-th operation and all that follow.
    Sticky,
}

struct Rule {
    filter: Filter,
    nth: u64,
    fault: Fault,
    repeat: Repeat,
    seen: u64,
}

/// All faults that are planned.
#[derive(Default)]
pub(super) struct Plan {
    rules: Vec<Rule>,
    pub operations: u64,
    pub fired: u64,
}

impl Plan {
    pub fn add(&mut self, filter: Filter, nth: u64, fault: Fault, repeat: Repeat) {
        self.rules.push(Rule { filter, nth, fault, repeat, seen: 0 });
    }

    pub fn clear(&mut self) {
        self.rules.clear();
    }

    /// Counts an operation; says what goes wrong with it.
    pub fn next(&mut self, kind: Operation, file: &str) -> Option<Fault> {
        self.operations += 1;
        let mut found = None;
        for rule in &mut self.rules {
            if rule.filter.matches(kind, file) {
                rule.seen += 1;
                if rule.seen == rule.nth || (rule.repeat == Repeat::Sticky && rule.seen > rule.nth) {
                    found = found.or(Some(rule.fault));
                }
            }
        }
        self.fired += u64::from(found.is_some());
        found
    }
}
