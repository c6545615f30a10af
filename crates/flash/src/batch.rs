//! What was done to flash and has not been timed yet: the form in which a translation layer tells the clock.
//!
//! A batch is a list of requests. A request has tasks (one a logical page), which go on side by side. A task has
//! operations, in stages: those of a stage may begin when all of the stage before have ended. Within a stage an
//! operation may wait for one other (the program of a copy for its read).
//!
//! Invariants:
//! 1. requests, tasks and operations stand in the order in which they were begun, each task's operations in one run;
//! 2. an operation waits only for an earlier one of the same stage;
//! 3. a request is answered when all its operations have ended that are not in the background.

/// What the host asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// Data go to the host.
    Read,
    /// Data come from the host.
    Write,
    /// No data: trim, sync.
    Command,
}

/// What flash does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationKind {
    /// Sense, then move out.
    Read,
    /// Move in, then program.
    Program,
    /// Erase a block.
    Erase,
}

/// One operation of one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// What.
    pub kind: OperationKind,
    /// Which unit is busy with it.
    pub unit: u32,
    /// Bytes that cross the channel.
    pub bytes: u32,
    /// The page that is read or programmed, or [`Operation::NONE`].
    pub page: u32,
    /// The operation of this batch that ends before this one begins, or [`Operation::NONE`].
    pub after: u32,
    /// Whether it is the first of a stage.
    pub stage: bool,
    /// Whether the host waits for it no more.
    pub background: bool,
}

impl Operation {
    /// Not an operation, or of no page.
    pub const NONE: u32 = u32::MAX;
}

/// A request of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub kind: RequestKind,
    pub bytes: u32,
    /// Its first task; it ends where the next one's begin.
    pub first_task: u32,
}

/// See the module. Kept and cleared, so that nothing is allocated once it has grown.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub(crate) requests: Vec<Request>,
    /// First operation of each task.
    pub(crate) tasks: Vec<u32>,
    operations: Vec<Operation>,
    /// The next operation begins a stage.
    stage: bool,
    background: bool,
}

impl Batch {
    /// Begins a request of `bytes` bytes. What is added from now on is its.
    pub fn begin_request(&mut self, kind: RequestKind, bytes: u32) {
        self.requests.push(Request { kind, bytes, first_task: self.tasks.len() as u32 });
        self.begin_task();
    }

    /// The request that was begun last is of so many bytes less: they are moved with another one.
    pub(crate) fn shorten_request(&mut self, bytes: u32) {
        if let Some(last) = self.requests.last_mut() {
            last.bytes = last.bytes.saturating_sub(bytes);
        }
    }

    /// Begins a task of the request: what follows waits for nothing before it, and the host waits for it.
    pub fn begin_task(&mut self) {
        if self.requests.is_empty() {
            self.begin_request(RequestKind::Command, 0);
            return;
        }
        self.stage = false;
        self.background = false;
        // A task without operations is the one that begins now.
        let first = self.operations.len() as u32;
        let empty = self.tasks.last() == Some(&first);
        let own =
            self.requests.last().is_some_and(|request| (request.first_task as usize) < self.tasks.len());
        if !(empty && own) {
            self.tasks.push(first);
        }
    }

    /// What follows in this task begins when all before it in this task has ended.
    pub fn fence(&mut self) {
        self.stage = true;
    }

    /// The host has its answer; what follows in this task goes on in the background.
    pub fn answered(&mut self) {
        self.background = true;
    }

    /// Adds an operation. The answer is what `after` of a later one may say.
    pub(crate) fn add(&mut self, kind: OperationKind, unit: u32, bytes: u32, after: u32) -> u32 {
        self.add_of_page(kind, (unit, Operation::NONE), bytes, after)
    }

    /// The same, of a page of the unit.
    pub(crate) fn add_of_page(
        &mut self,
        kind: OperationKind,
        (unit, page): (u32, u32),
        bytes: u32,
        after: u32,
    ) -> u32 {
        if self.tasks.is_empty() {
            self.begin_request(RequestKind::Command, 0);
        }
        let number = self.operations.len() as u32;
        let first = self.tasks.last().is_some_and(|first| *first == number);
        let stage = self.stage && !first;
        let background = self.background;
        self.operations.push(Operation { kind, unit, bytes, page, after, stage, background });
        self.stage = false;
        number
    }

    /// All operations, in order.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// The tasks of a request.
    pub(crate) fn tasks_of(&self, request: usize) -> std::ops::Range<usize> {
        let end = self.requests.get(request + 1).map_or(self.tasks.len(), |next| next.first_task as usize);
        self.requests[request].first_task as usize..end
    }

    /// The operations of a task.
    pub(crate) fn operations_of(&self, task: usize) -> std::ops::Range<usize> {
        let end = self.tasks.get(task + 1).map_or(self.operations.len(), |next| *next as usize);
        self.tasks[task] as usize..end
    }

    /// Whether nothing was asked for.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.requests.clear();
        self.tasks.clear();
        self.operations.clear();
        self.stage = false;
        self.background = false;
    }
}
