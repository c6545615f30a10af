//! Faults that a test can plan, and when they happen.
//!
//! Invariants:
//! 1. every operation is shown to every plan exactly once, in the order in which the volume performs them;
//! 2. a plan that fires once fires exactly at the n-th operation that its filter matches.

/// The operations of a simulated volume. Every member of a set is a `Read` or `Write` of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OperationKind {
    /// One member of a set given to [`Device::read`](crate::Device::read).
    Read,
    /// One member of a set given to [`Device::write`](crate::Device::write).
    Write,
    /// [`Window::store`](crate::Window::store). A fault makes it refuse the store; only a power failure can
    /// happen in the middle of one.
    Store,
    /// [`Device::sync`](crate::Device::sync), or [`Device::sync_part`](crate::Device::sync_part).
    Sync,
    /// [`Device::len`](crate::Device::len).
    Len,
    /// [`Device::resize`](crate::Device::resize).
    Resize,
    /// [`Device::release`](crate::Device::release).
    Release,
    /// [`Device::allocate`](crate::Device::allocate).
    Allocate,
    /// [`Volume::open`](crate::Volume::open).
    Open,
    /// [`Volume::remove`](crate::Volume::remove).
    Remove,
    /// [`Volume::rename`](crate::Volume::rename). Its file is the old name.
    Rename,
    /// [`Volume::list`](crate::Volume::list). Has no file.
    List,
    /// [`Volume::sync_directory`](crate::Volume::sync_directory). Has no file.
    SyncDirectory,
    /// [`Volume::lock`](crate::Volume::lock). Has no file.
    Lock,
}

/// Which operations a plan counts.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// `None` is every kind.
    kinds: Option<Vec<OperationKind>>,
    prefix: Option<String>,
}

impl Filter {
    /// Every operation.
    pub fn any() -> Self {
        Self::default()
    }

    /// Operations of these kinds.
    pub fn kinds(kinds: impl IntoIterator<Item = OperationKind>) -> Self {
        Self { kinds: Some(kinds.into_iter().collect()), prefix: None }
    }

    /// Operations that change something or make it durable: those at which a power failure makes a difference.
    pub fn changes() -> Self {
        use OperationKind::{
            Allocate, Open, Release, Remove, Rename, Resize, Store, Sync, SyncDirectory, Write,
        };
        Self::kinds([Write, Store, Sync, Resize, Release, Allocate, Open, Remove, Rename, SyncDirectory])
    }

    /// Restricts the filter to files whose name starts with `prefix`. Operations without a file then never
    /// match.
    #[must_use]
    pub fn file(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    fn matches(&self, kind: OperationKind, file: Option<&str>) -> bool {
        self.kinds.as_ref().is_none_or(|kinds| kinds.contains(&kind))
            && self
                .prefix
                .as_ref()
                .is_none_or(|prefix| file.is_some_and(|name| name.starts_with(prefix.as_str())))
    }
}

impl From<OperationKind> for Filter {
    fn from(kind: OperationKind) -> Self {
        Self::kinds([kind])
    }
}

/// How an operation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The device fails the operation (EIO, [`Error::Io`](crate::Error::Io)). An arbitrary part of a failed
    /// write set reaches the file. A failed sync marks the file's dirty pages clean without making them
    /// durable; a failed `sync_part`, those pages that the part is in. What is written to such a page later, through
    /// the page cache, does not become durable either, although each sync of it succeeds: only cutting the page off,
    /// a hole in its place, direct I/O or another file helps.
    Error,
    /// A read or write moves only a part ([`Error::Short`](crate::Error::Short)). Anything else fails as with `Error`.
    Short,
    /// [`Error::Full`](crate::Error::Full), whatever the capacity. An arbitrary part of a failed write set
    /// reaches the file.
    NoSpace,
    /// There is no descriptor left (EMFILE): an open, list or lock fails with
    /// [`Error::Exhausted`](crate::Error::Exhausted), and nothing has happened. Anything else fails as with `Error`.
    Exhausted,
    /// The power fails: this operation fails, though it may have been done in part, and so do all later ones.
    PowerOff,
}

/// Whether a fault is temporary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// Only the n-th operation fails.
    Once,
    /// The n-th and every later one that matches fails.
    Sticky,
}

/// What a plan does when it fires.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    Fail(Fault),
    /// The write lands this many bytes from where it should.
    Misdirect(i64),
    /// The write is acknowledged and never happens.
    Lose,
    /// The buffer that was read has flipped bits.
    CorruptRead,
}

#[derive(Debug)]
struct Plan {
    filter: Filter,
    nth: u64,
    seen: u64,
    action: Action,
    repeat: Repeat,
}

/// All plans of a volume, and the number of operations they have seen.
#[derive(Debug, Default)]
pub(super) struct Plans {
    plans: Vec<Plan>,
    pub(super) operations: u64,
    pub(super) fired: u64,
}

impl Plans {
    pub(super) fn add(&mut self, filter: Filter, nth: u64, action: Action, repeat: Repeat) {
        assert!(nth > 0, "operations are counted from 1");
        self.plans.push(Plan { filter, nth, seen: 0, action, repeat });
    }

    /// Filters of write lies count only writes; those of read lies only reads.
    pub(super) fn add_lie(&mut self, filter: Filter, nth: u64, action: Action, kind: OperationKind) {
        let filter = Filter { kinds: Some(vec![kind]), ..filter };
        self.add(filter, nth, action, Repeat::Once);
    }

    pub(super) fn clear(&mut self) {
        self.plans.clear();
    }

    /// Counts one operation, and returns what goes wrong with it.
    pub(super) fn count(&mut self, kind: OperationKind, file: Option<&str>) -> Option<Action> {
        self.operations += 1;
        let mut action = None;
        for plan in &mut self.plans {
            if !plan.filter.matches(kind, file) {
                continue;
            }
            plan.seen += 1;
            let fires = match plan.repeat {
                Repeat::Once => plan.seen == plan.nth,
                Repeat::Sticky => plan.seen >= plan.nth,
            };
            if fires && action.is_none() {
                action = Some(plan.action);
                self.fired += 1;
            }
        }
        action
    }
}
