//! Virtual time: when each flash operation begins and ends, and with it each request.
//!
//! A discrete-event simulation of four kinds of things that can be busy:
//! - the controller, which takes one request after the other, and the host link with it; a turn from reads to writes, or
//!   back, costs extra;
//! - the channels, each of which moves one page at a time, in the order of asking; a turn from moving in to moving out, or
//!   back, costs extra too;
//! - the units (planes of dies), each of which does one operation at a time, in the order of asking, and is busy from the
//!   beginning of an operation to its end, transfers included: a read waits for the program before it, unless the drive's
//!   reads have priority: see `priority`;
//! - the slots of the queue: a request is admitted when one is free;
//! - the bytes of the write cache, if there is one: see `cache`.
//!
//! How much goes on at the same time is an outcome of that. Nothing is random; equal times are resolved by order.
//!
//! Invariants:
//! 1. time never goes back;
//! 2. [`Clock::run`] returns at the time when the last request of the batch is answered; background operations stay, and
//!    those that come later find units busy with them;
//! 3. no more than `BACKGROUND_MAX` operations are left behind: beyond that the clock waits for them.

mod cache;
mod callers;
mod priority;

use crate::batch::Request;
use crate::{Batch, Geometry, Operation, OperationKind, ReadPriority, RequestKind, Result, Timing};
use cache::WriteCache;
use callers::Submitted;
use priority::NEVER;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

/// Background operations that may be unfinished when a batch ends.
const BACKGROUND_MAX: usize = 16_384;

/// Nanoseconds since the clock was made.
type Nanos = u64;

const NONE: u32 = u32::MAX;
/// No submission.
const ALONE: u64 = u64::MAX;

/// What happens at a time. The numbers are of requests or operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The controller hands a request's operations to the units.
    Dispatch(u32),
    /// A unit has sensed a page, programmed it, or erased its block.
    Cell(u32),
    /// A page has crossed its channel.
    Bus(u32),
    /// The write cache has a page that is to be read.
    Hit(u32),
    /// A request is answered, and leaves its slot.
    Answer(u32),
}

/// An operation that has not ended.
#[derive(Clone, Copy, Debug)]
struct Pending {
    operation: Operation,
    task: u32,
    /// The write in the cache that it is a part of.
    held: u32,
    /// The next operation of the task.
    next_in_task: u32,
    /// The first of those that wait for this one, and the next that waits for the same as this one.
    waiting: u32,
    next_waiting: u32,
    waits: bool,
    /// When its unit has sensed, programmed or erased, once it has begun.
    due: Nanos,
}

/// A task that has not ended.
#[derive(Clone, Copy, Debug)]
struct Task {
    request: u32,
    /// The first operation of the stages to come.
    next: u32,
    /// Operations of the present stage that have not ended.
    unfinished: u32,
}

/// A request that has not been answered.
#[derive(Clone, Copy, Debug)]
struct Active {
    kind: RequestKind,
    admitted: Nanos,
    /// The submission that it belongs to, or `ALONE`.
    ticket: u64,
    /// Its place in the write cache, if it goes there.
    held: u32,
    /// How many tasks it has.
    tasks: u32,
    /// Operations that the host waits for and that have not ended.
    awaited: u32,
}

#[derive(Clone, Debug)]
struct Unit {
    busy: bool,
    queue: VecDeque<u32>,
    /// What it is about, if it is busy.
    running: u32,
    /// What was interrupted, and how long it takes from there.
    suspended: Option<(u32, Nanos)>,
}

impl Default for Unit {
    fn default() -> Self {
        Self { busy: false, queue: VecDeque::new(), running: NONE, suspended: None }
    }
}

#[derive(Clone, Debug, Default)]
struct Channel {
    busy: bool,
    queue: VecDeque<u32>,
    last: Option<OperationKind>,
}

/// Things by number; numbers of those that are gone are given out again.
#[derive(Clone, Debug)]
struct Slab<T> {
    items: Vec<T>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    const fn new() -> Self {
        Self { items: Vec::new(), free: Vec::new() }
    }

    fn add(&mut self, item: T) -> u32 {
        match self.free.pop() {
            Some(number) => {
                self.items[number as usize] = item;
                number
            }
            None => {
                self.items.push(item);
                self.items.len() as u32 - 1
            }
        }
    }

    fn len(&self) -> usize {
        self.items.len() - self.free.len()
    }
}

/// Durations in the units that the clock counts in.
#[derive(Clone, Copy, Debug)]
struct Ticks {
    read: Nanos,
    program: Nanos,
    erase: Nanos,
    bus_command: Nanos,
    bus_turn: Nanos,
    bus_picos_per_byte: u64,
    controller_read: Nanos,
    controller_write: Nanos,
    controller_turn: Nanos,
    host: Nanos,
    host_picos_per_byte: u64,
}

impl Ticks {
    fn new(timing: &Timing) -> Self {
        let nanos = |duration: Duration| duration.as_nanos().min(u128::from(u64::MAX / 4)) as Nanos;
        let picos = |bytes_per_second: u64| 1_000_000_000_000 / bytes_per_second.max(1);
        Self {
            read: nanos(timing.read),
            program: nanos(timing.program),
            erase: nanos(timing.erase),
            bus_command: nanos(timing.bus_command),
            bus_turn: nanos(timing.bus_turn),
            bus_picos_per_byte: picos(timing.bus_bytes_per_second),
            controller_read: nanos(timing.controller_read),
            controller_write: nanos(timing.controller_write),
            controller_turn: nanos(timing.controller_turn),
            host: nanos(timing.host_overhead),
            host_picos_per_byte: picos(timing.host_bytes_per_second),
        }
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Clock {
    geometry: Geometry,
    ticks: Ticks,
    queue_depth: usize,
    now: Nanos,
    controller_free: Nanos,
    /// Whether the last request that moved data was a write.
    controller_writes: bool,
    units: Vec<Unit>,
    channels: Vec<Channel>,
    pending: Slab<Pending>,
    tasks: Slab<Task>,
    active: Slab<Active>,
    /// Tasks of requests that wait for the controller, in order of admission.
    admitted_tasks: VecDeque<u32>,
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    /// Breaks ties between events of the same time: first planned, first served.
    planned: u64,
    answered: usize,
    /// Batches of several callers, in order of submission.
    submitted: VecDeque<Submitted>,
    tickets: u64,
    /// Tickets that are answered and that nobody has asked for.
    done: VecDeque<u64>,
    /// Where the operations of the task went that is being admitted.
    numbers: Vec<u32>,
    cache: WriteCache,
    read_priority: ReadPriority,
}

impl Clock {
    /// A clock at zero, with everything idle.
    ///
    /// # Errors
    /// [`Error::Geometry`](crate::Error::Geometry).
    pub fn new(geometry: Geometry, timing: &Timing) -> Result<Self> {
        geometry.check()?;
        timing.check()?;
        Ok(Self {
            geometry,
            ticks: Ticks::new(timing),
            queue_depth: timing.queue_depth as usize,
            now: 0,
            controller_free: 0,
            controller_writes: false,
            units: vec![Unit::default(); geometry.units() as usize],
            channels: vec![Channel::default(); geometry.channels as usize],
            pending: Slab::new(),
            tasks: Slab::new(),
            active: Slab::new(),
            admitted_tasks: VecDeque::new(),
            events: BinaryHeap::new(),
            planned: 0,
            answered: 0,
            submitted: VecDeque::new(),
            tickets: 0,
            done: VecDeque::new(),
            numbers: Vec::new(),
            cache: WriteCache::new(timing.write_cache_bytes),
            read_priority: timing.read_priority,
        })
    }

    /// Time since the clock was made.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.now)
    }

    /// Operations that have not ended: what is left in the background.
    pub fn unfinished(&self) -> usize {
        self.pending.len()
    }

    /// Hands over all requests of the batch now, in order, as many at a time as the drive's queue takes, and lets time
    /// pass until the last is answered. `answered` is told of each request and how long it took from its admission to the
    /// queue.
    pub fn run(&mut self, batch: &Batch, answered: impl FnMut(RequestKind, Duration)) {
        self.run_at_depth(batch, self.queue_depth, answered);
    }

    /// As [`Clock::run`], with at most `depth` requests in the queue at a time (at least one, and no more than the drive's
    /// queue takes): a stream of requests from a host that keeps that many outstanding.
    pub fn run_at_depth(
        &mut self,
        batch: &Batch,
        depth: usize,
        mut answered: impl FnMut(RequestKind, Duration),
    ) {
        while !self.submitted.is_empty() {
            self.step_submitted(&mut answered);
        }
        let depth = depth.clamp(1, self.queue_depth);
        let total = batch.requests.len();
        let mut next = 0;
        self.answered = 0;
        while self.answered < total {
            while next < total && next - self.answered < depth {
                self.admit(batch, next, ALONE);
                next += 1;
            }
            if let Some(number) = self.step() {
                let request = self.active.items[number as usize];
                self.active.free.push(number);
                self.answered += 1;
                answered(request.kind, Duration::from_nanos(self.now - request.admitted));
            }
        }
        while self.pending.len() > BACKGROUND_MAX {
            self.step();
        }
    }

    /// Lets time pass in which the host asks for nothing more. What was submitted goes on, and its answers wait.
    pub fn advance(&mut self, duration: Duration) {
        let end = self.now.saturating_add(duration.as_nanos().min(u128::from(u64::MAX / 4)) as Nanos);
        while self.events.peek().is_some_and(|Reverse((at, ..))| *at <= end) {
            self.step_submitted(&mut |_, _| {});
        }
        self.now = end;
    }

    /// Lets time pass until the drive is idle. What was submitted is answered then, and its answers wait.
    pub fn drain(&mut self) {
        while !self.events.is_empty() {
            self.step_submitted(&mut |_, _| {});
        }
    }

    /// The power went and came back: nothing is under way any more.
    pub(crate) fn restart(&mut self) {
        self.units.fill(Unit::default());
        self.channels.fill(Channel::default());
        self.pending = Slab::new();
        self.tasks = Slab::new();
        self.active = Slab::new();
        self.admitted_tasks.clear();
        self.submitted.clear();
        self.done.clear();
        self.events.clear();
        self.cache.clear();
        self.controller_free = self.now;
    }

    fn plan(&mut self, after: Nanos, event: Event) {
        self.planned += 1;
        self.events.push(Reverse((self.now + after, self.planned, event)));
    }

    /// Takes a request into the queue: the controller gets to it when it is through with those before.
    fn admit(&mut self, batch: &Batch, number: usize, ticket: u64) {
        let Request { kind, bytes, .. } = batch.requests[number];
        let tasks = batch.tasks_of(number);
        let held = self.cache.admit(kind, bytes);
        let request = self.active.add(Active {
            kind,
            admitted: self.now,
            ticket,
            held,
            tasks: tasks.len() as u32,
            awaited: 0,
        });
        for task in tasks {
            self.admit_task(batch, task, (request, held));
        }
        let writes = kind == RequestKind::Write;
        let mut service = if writes { self.ticks.controller_write } else { self.ticks.controller_read };
        service += u64::from(bytes) * self.ticks.host_picos_per_byte / 1000;
        if kind != RequestKind::Command && writes != std::mem::replace(&mut self.controller_writes, writes) {
            service += self.ticks.controller_turn;
        }
        self.controller_free = self.controller_free.max(self.now) + service;
        self.plan(self.controller_free - self.now, Event::Dispatch(request));
    }

    /// Copies a task's operations, since the batch is gone before the background is through.
    fn admit_task(&mut self, batch: &Batch, number: usize, (request, held): (u32, u32)) {
        let range = batch.operations_of(number);
        let task = self.tasks.add(Task { request, next: NONE, unfinished: 0 });
        self.admitted_tasks.push_back(task);
        let mut last = NONE;
        let mut stage_start = range.start;
        self.numbers.clear();
        for at in range.clone() {
            let mut operation = batch.operations()[at];
            let held = if operation.background { NONE } else { held };
            if held != NONE {
                self.cache.add_operation(held);
                operation.background = true;
            }
            if operation.stage {
                stage_start = at;
            }
            let pending = self.pending.add(Pending {
                operation,
                task,
                held,
                next_in_task: NONE,
                waiting: NONE,
                next_waiting: NONE,
                waits: false,
                due: NEVER,
            });
            match last {
                NONE => self.tasks.items[task as usize].next = pending,
                _ => self.pending.items[last as usize].next_in_task = pending,
            }
            let after = operation.after as usize;
            if operation.after != Operation::NONE && after >= stage_start && after < at {
                let target = self.numbers[after - range.start] as usize;
                let head = std::mem::replace(&mut self.pending.items[target].waiting, pending);
                let item = &mut self.pending.items[pending as usize];
                (item.next_waiting, item.waits) = (head, true);
            }
            self.numbers.push(pending);
            last = pending;
            self.active.items[request as usize].awaited += u32::from(!operation.background);
        }
    }

    /// The next event happens. The request that it answers, if it does.
    fn step(&mut self) -> Option<u32> {
        let Reverse((at, _, event)) = self.events.pop()?;
        self.now = at;
        match event {
            Event::Dispatch(request) => {
                let Active { tasks, awaited, held, .. } = self.active.items[request as usize];
                if held != NONE {
                    self.dispatch_to_cache(request, tasks as usize);
                    return None;
                }
                for _ in 0..tasks {
                    if let Some(task) = self.admitted_tasks.pop_front() {
                        self.begin_stage(task);
                    }
                }
                if awaited == 0 {
                    self.plan(self.ticks.host, Event::Answer(request));
                }
            }
            Event::Cell(number) if self.is_stale(number) => {}
            Event::Cell(number) => match self.operation(number).kind {
                OperationKind::Read => self.ask_for_bus(number),
                OperationKind::Program | OperationKind::Erase => self.end(number),
            },
            Event::Bus(number) => {
                let Operation { kind, unit, .. } = self.operation(number);
                let channel = self.geometry.channel_of(unit) as usize;
                self.channels[channel].busy = false;
                if let Some(next) = self.channels[channel].queue.pop_front() {
                    self.transfer(next);
                }
                if kind == OperationKind::Program {
                    self.begin_cell(number, self.ticks.program);
                    self.suspend(unit as usize);
                } else {
                    self.end(number);
                }
            }
            Event::Hit(number) => self.ended(number),
            Event::Answer(request) => return Some(request),
        }
        None
    }

    fn operation(&self, number: u32) -> Operation {
        self.pending.items[number as usize].operation
    }

    /// Begins the next stage of a task; the task is gone if there is none.
    fn begin_stage(&mut self, task: u32) {
        let first = self.tasks.items[task as usize].next;
        if first == NONE {
            self.tasks.free.push(task);
            return;
        }
        let (mut at, mut unfinished) = (first, 0);
        while at != NONE && (at == first || !self.operation(at).stage) {
            unfinished += 1;
            at = self.pending.items[at as usize].next_in_task;
        }
        let behind = at;
        let state = &mut self.tasks.items[task as usize];
        (state.next, state.unfinished) = (behind, unfinished);
        let mut at = first;
        while at != behind {
            let Pending { waits, next_in_task, .. } = self.pending.items[at as usize];
            if !waits {
                self.ask_for_unit(at);
            }
            at = next_in_task;
        }
    }

    fn ask_for_unit(&mut self, number: u32) {
        if self.cache.has(&self.operation(number)) {
            return self.plan(0, Event::Hit(number));
        }
        let unit = &mut self.units[self.pending.items[number as usize].operation.unit as usize];
        if unit.busy {
            self.wait_for_unit(number);
        } else {
            unit.busy = true;
            self.start(number);
        }
    }

    fn start(&mut self, number: u32) {
        let Operation { kind, unit, .. } = self.operation(number);
        self.units[unit as usize].running = number;
        match kind {
            OperationKind::Read => self.begin_cell(number, self.ticks.read),
            OperationKind::Program => self.ask_for_bus(number),
            OperationKind::Erase => self.begin_cell(number, self.ticks.erase),
        }
    }

    fn ask_for_bus(&mut self, number: u32) {
        let channel = self.geometry.channel_of(self.operation(number).unit) as usize;
        if self.channels[channel].busy {
            self.wait_for_channel(number);
        } else {
            self.transfer(number);
        }
    }

    fn transfer(&mut self, number: u32) {
        let Operation { kind, unit, bytes, .. } = self.operation(number);
        let channel = &mut self.channels[self.geometry.channel_of(unit) as usize];
        channel.busy = true;
        let turns = channel.last.replace(kind).is_some_and(|last| last != kind);
        let turn = if turns { self.ticks.bus_turn } else { 0 };
        let move_it = u64::from(bytes) * self.ticks.bus_picos_per_byte / 1000;
        self.plan(turn + self.ticks.bus_command + move_it, Event::Bus(number));
    }

    /// A unit is through with an operation.
    fn end(&mut self, number: u32) {
        self.next_of_unit(self.operation(number).unit as usize);
        self.ended(number);
    }

    fn ended(&mut self, number: u32) {
        let Pending { operation, task, held, mut waiting, .. } = self.pending.items[number as usize];
        self.pending.free.push(number);
        while waiting != NONE {
            let next = self.pending.items[waiting as usize].next_waiting;
            self.ask_for_unit(waiting);
            waiting = next;
        }
        if held != NONE {
            self.leave_cache(held, &operation);
        }
        let state = &mut self.tasks.items[task as usize];
        state.unfinished -= 1;
        let Task { request, unfinished, .. } = *state;
        if !operation.background {
            let active = &mut self.active.items[request as usize];
            active.awaited -= 1;
            if active.awaited == 0 {
                self.plan(self.ticks.host, Event::Answer(request));
            }
        }
        if unfinished == 0 {
            self.begin_stage(task);
        }
    }
}

#[cfg(test)]
mod tests;
