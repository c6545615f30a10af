//! Tests of the clock: what waits for what, to the microsecond.

use super::*;

/// 2 channels of 2 dies, all times apart: read 50, program 200, erase 1000, 640 bytes in 10 (all in us), the host 5.
pub(super) fn clock(change: impl FnOnce(&mut Timing)) -> Clock {
    let geometry = Geometry {
        channels: 2,
        dies_per_channel: 2,
        planes: 1,
        blocks_per_plane: 4,
        pages_per_block: 8,
        page_bytes: 512,
        spare_bytes: 16,
    };
    let mut timing = Timing {
        read: Duration::from_micros(50),
        program: Duration::from_micros(200),
        erase: Duration::from_micros(1000),
        bus_bytes_per_second: 64_000_000,
        bus_command: Duration::ZERO,
        bus_turn: Duration::ZERO,
        controller_read: Duration::ZERO,
        controller_write: Duration::ZERO,
        controller_turn: Duration::ZERO,
        host_overhead: Duration::from_micros(5),
        host_bytes_per_second: u64::MAX,
        queue_depth: 64,
        write_cache_bytes: 0,
        read_priority: ReadPriority::None,
    };
    change(&mut timing);
    Clock::new(geometry, &timing).unwrap()
}

/// A request of one operation.
pub(super) fn one(batch: &mut Batch, kind: OperationKind, unit: u32) -> u32 {
    let request = if kind == OperationKind::Read { RequestKind::Read } else { RequestKind::Write };
    batch.begin_request(request, 0);
    batch.add(kind, unit, 640, Operation::NONE)
}

pub(super) fn micros(clock: &mut Clock, batch: &Batch) -> f64 {
    let began = clock.now();
    clock.run(batch, |_, _| {});
    (clock.now() - began).as_nanos() as f64 / 1e3
}

pub(super) fn reads(units: &[u32]) -> Batch {
    let mut batch = Batch::default();
    for unit in units {
        one(&mut batch, OperationKind::Read, *unit);
    }
    batch
}

#[test]
fn what_does_not_collide_goes_on_at_the_same_time() {
    let time = |units: &[u32]| micros(&mut clock(|_| ()), &reads(units)).round();
    assert_eq!(time(&[0]), 65.0, "50 sensing, 10 on the channel, 5 for the host");
    assert_eq!(time(&[0, 1]), 65.0, "two channels");
    assert_eq!(time(&[0, 2]), 75.0, "two dies on one channel: one transfer waits");
    assert_eq!(time(&[0, 0]), 125.0, "one die does one after the other");
    assert_eq!(time(&[0, 1, 2, 3]), 75.0);
    assert_eq!(time(&[0, 0, 1]), 125.0);
}

/// Two callers share the drive: what does not collide overlaps, what does waits, and each is answered when its own is done.
#[test]
fn callers_wait_for_their_own_alone() {
    let mut clock = clock(|_| ());
    let (short, long) = (clock.submit(reads(&[0])), clock.submit(reads(&[1, 1, 1])));
    assert_eq!((clock.next_answered(|_, _| {}), clock.now().as_micros()), (Some(short), 65));
    // The first goes on while the second waits.
    let again = clock.submit(reads(&[1]));
    let third = clock.submit(reads(&[2]));
    assert_eq!((clock.next_answered(|_, _| {}), clock.now().as_micros()), (Some(third), 130));
    assert_eq!((clock.next_answered(|_, _| {}), clock.now().as_micros()), (Some(long), 185));
    let empty = clock.submit(Batch::default());
    assert_eq!((clock.next_answered(|_, _| {}), clock.now().as_micros()), (Some(empty), 185));
    assert_eq!((clock.next_answered(|_, _| {}), clock.now().as_micros()), (Some(again), 245));
    assert_eq!(clock.next_answered(|_, _| {}), None);
}

/// Answers were lost that came while the host computed, and whoever asked for them asked for ever.
#[test]
fn answers_wait_while_time_passes() {
    let mut clock = clock(|timing| timing.queue_depth = 2);
    let tickets: Vec<u64> = [0, 0, 1].map(|unit| clock.submit(reads(&[unit]))).to_vec();
    clock.advance(Duration::from_micros(100));
    assert_eq!((clock.next_answered(|_, _| {}), clock.now().as_micros()), (Some(tickets[0]), 100));
    clock.drain();
    let now = clock.now();
    assert_eq!(clock.next_answered(|_, _| {}), Some(tickets[1]));
    assert_eq!(clock.next_answered(|_, _| {}), Some(tickets[2]));
    assert_eq!((clock.next_answered(|_, _| {}), clock.now()), (None, now));
}

#[test]
fn a_full_queue_holds_callers_back_in_order() {
    let mut clock = clock(|timing| timing.queue_depth = 2);
    let tickets: Vec<u64> = [0, 1, 2, 3].map(|unit| clock.submit(reads(&[unit]))).to_vec();
    let mut seen = Vec::new();
    let mut times = Vec::new();
    while let Some(ticket) = clock.next_answered(|_, latency| times.push(latency.as_micros())) {
        seen.push(ticket);
    }
    assert_eq!(seen, tickets);
    assert_eq!((clock.now().as_micros(), times), (130, vec![65; 4]));
    // One submission alone is what a run is.
    let batch = reads(&[0, 0, 1, 2, 3]);
    let (mut alone, began) = (clock.clone(), clock.now());
    let expected = micros(&mut alone, &batch);
    clock.submit(batch);
    clock.next_answered(|_, _| {});
    assert_eq!((clock.now() - began).as_nanos() as f64 / 1e3, expected);
}

#[test]
fn a_read_waits_for_the_program_before_it() {
    let mut batch = Batch::default();
    one(&mut batch, OperationKind::Program, 0);
    one(&mut batch, OperationKind::Read, 0);
    let mut latencies = Vec::new();
    clock(|_| ()).run(&batch, |kind, latency| latencies.push((kind, latency.as_nanos() / 1000)));
    assert_eq!(latencies, [(RequestKind::Write, 215), (RequestKind::Read, 275)]);
}

#[test]
fn stages_and_waits_order_a_task_and_nothing_else() {
    let mut batch = Batch::default();
    batch.begin_request(RequestKind::Write, 0);
    let read = batch.add(OperationKind::Read, 0, 640, Operation::NONE);
    batch.add(OperationKind::Program, 1, 640, read);
    batch.add(OperationKind::Read, 2, 0, Operation::NONE);
    batch.fence();
    batch.add(OperationKind::Erase, 3, 0, Operation::NONE);
    batch.begin_task();
    batch.add(OperationKind::Read, 3, 0, Operation::NONE);
    // 60 for the read, then 210 for the program; the other read beside them; then the erase.
    assert_eq!(micros(&mut clock(|_| ()), &batch).round(), 60.0 + 210.0 + 1000.0 + 5.0);
}

#[test]
fn the_host_does_not_wait_for_the_background_but_may_run_into_it() {
    let mut batch = Batch::default();
    one(&mut batch, OperationKind::Read, 0);
    batch.answered();
    batch.fence();
    batch.add(OperationKind::Erase, 0, 0, Operation::NONE);
    let mut clock = clock(|_| ());
    assert_eq!(micros(&mut clock, &batch).round(), 65.0);
    assert_eq!(clock.unfinished(), 1);
    assert_eq!(micros(&mut clock, &reads(&[0])).round(), 995.0 + 65.0, "the erase began 5 before");
    assert_eq!(micros(&mut clock, &batch).round(), 65.0);
    clock.advance(Duration::from_millis(2));
    assert_eq!(clock.unfinished(), 0);
    assert_eq!(micros(&mut clock, &reads(&[0])).round(), 65.0);
}

#[test]
fn the_controller_takes_one_after_the_other_and_turns() {
    let mut batch = reads(&[0, 1, 3]);
    let mut clock = clock(|timing| {
        timing.controller_read = Duration::from_micros(100);
        timing.controller_write = Duration::from_micros(300);
        timing.controller_turn = Duration::from_micros(7);
        timing.host_bytes_per_second = 1_000_000;
    });
    assert_eq!(micros(&mut clock, &batch).round(), 3.0 * 100.0 + 65.0);
    one(&mut batch, OperationKind::Program, 2);
    assert_eq!(micros(&mut clock, &batch).round(), 3.0 * 100.0 + 300.0 + 7.0 + 215.0);
    assert_eq!(micros(&mut clock, &reads(&[0])).round(), 107.0 + 65.0);
    batch.clear();
    batch.begin_request(RequestKind::Command, 50);
    assert_eq!(micros(&mut clock, &batch).round(), 100.0 + 50.0 + 5.0, "no flash, but the host link");
}

#[test]
fn the_queue_takes_as_many_as_it_has_slots() {
    let mut clock = clock(|timing| timing.queue_depth = 2);
    assert_eq!(micros(&mut clock, &reads(&[0, 1, 2, 3])).round(), 130.0);
    let began = clock.now();
    clock.run_at_depth(&reads(&[0, 1, 2, 3]), 1, |_, _| {});
    assert_eq!((clock.now() - began).as_micros(), 260);
}

#[test]
fn a_channel_that_turns_takes_longer() {
    let mut batch = Batch::default();
    one(&mut batch, OperationKind::Program, 0);
    one(&mut batch, OperationKind::Read, 2);
    let mut latencies = Vec::new();
    let mut clock = clock(|timing| timing.bus_turn = Duration::from_micros(9));
    clock.run(&batch, |_, latency| latencies.push(latency.as_nanos() / 1000));
    assert_eq!(latencies, [65 + 9, 215]);
}
