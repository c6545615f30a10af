//! Rings that lose, delay and double completions: whoever waits comes to an end, with the right result, and no memory is
//! given back too early.

use super::*;
use crate::completion_faults::{Fate, Faults, events_of, while_errors_panic};
use crate::{BufferPool, Error};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const LEN: usize = 4096;
const WARNING: Duration = Duration::from_millis(50);
const TIMEOUT: Duration = Duration::from_millis(400);

/// A backend whose waits are limited like this, on each kind of kernel. `None` if there is no io_uring here.
fn each(timeout: Duration, fate: impl Fn(usize) -> Fate + Copy + Send + Sync + 'static) -> Vec<Uring> {
    let with = |polls| {
        let uring = Uring::new(8, false, Arc::new(Stalls::new(WARNING, timeout))).ok()?;
        *uring.rings.faults.lock() = Some(Arc::new(Faults::new(fate).with_polls(polls)));
        Some(uring)
    };
    let all: Vec<_> = [false, true].into_iter().filter_map(with).collect();
    if all.is_empty() {
        eprintln!("SKIPPED: no io_uring here");
    }
    all
}

/// A file that is on no disk, whose calls never take as long as a timeout.
fn in_memory() -> File {
    let file = rustix::fs::memfd_create("stalls", rustix::fs::MemfdFlags::CLOEXEC);
    file.expect("a file in memory").into()
}

fn transfer<'a>(file: &'a File, place: usize, memory: Memory<'a>) -> Transfer<'a> {
    Transfer { file, offset: (place * LEN) as u64, memory, outcome: Ok(0) }
}

/// Writes and reads blocks, and checks them.
fn write_and_read(uring: &Uring, seed: u8) {
    let file = in_memory();
    let data = [0, 1, 2].map(|n| vec![seed + n; LEN]);
    let mut writes: Vec<_> =
        data.iter().enumerate().map(|(n, data)| transfer(&file, n, Memory::From(data))).collect();
    uring.run(&mut writes);
    assert!(writes.iter().all(|write| matches!(write.outcome, Ok(LEN))), "seed {seed}");
    let mut buffers = vec![vec![0; LEN]; 3];
    let mut reads: Vec<_> =
        buffers.iter_mut().enumerate().map(|(n, buffer)| transfer(&file, n, Memory::Into(buffer))).collect();
    uring.run(&mut reads);
    assert!(reads.iter().all(|read| matches!(read.outcome, Ok(LEN))), "seed {seed}");
    assert!(buffers == data, "seed {seed}");
}

fn reads(file: &Arc<File>, pool: &BufferPool, count: usize) -> Vec<OwnedRead> {
    let read = |n| OwnedRead {
        file: Arc::clone(file),
        offset: (n * LEN) as u64,
        buffer: pool.take(LEN),
        outcome: Ok(0),
    };
    (0..count).map(read).collect()
}

fn filled(blocks: usize) -> Arc<File> {
    let file = in_memory();
    (0..blocks).for_each(|n| file.write_all_at(&[n as u8 + 1; LEN], (n * LEN) as u64).unwrap());
    Arc::new(file)
}

/// Of a pipe, to which nobody writes.
#[test]
fn a_set_that_the_kernel_never_completes_is_cancelled_and_told_of() {
    for uring in each(TIMEOUT, |_| Fate::Come) {
        let (reader, _writer) = io::pipe().unwrap();
        let file = File::from(OwnedFd::from(reader));
        let (mut one, mut two) = ([0; 8], [0; 8]);
        let mut set =
            [transfer(&file, 0, Memory::Into(&mut one)), transfer(&file, 3, Memory::Into(&mut two))];
        let began = Instant::now();
        let events = events_of(|| uring.run(&mut set));
        assert!(began.elapsed() >= TIMEOUT && began.elapsed() < Duration::from_secs(20));
        for transfer in &set {
            let error = transfer.outcome.as_ref().unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ESPIPE), "an ordinary call was made: {error}");
        }
        let stalls = &uring.rings.stalls;
        assert_eq!((stalls.count(), stalls.timeouts()), (1, 1));
        assert!(stalls.longest_ms() >= 300, "{}", stalls.longest_ms());
        let named = |event: &&String| event.contains("read of 8 bytes at byte 12288 of pipe:");
        assert!(events.iter().any(|event| event.starts_with("WARN") && named(&event)), "{events:?}");
        assert!(events.iter().any(|event| event.starts_with("ERROR") && named(&event)), "{events:?}");
        assert!(uring.rings.idle.lock().is_empty(), "the ring is not used again");
        write_and_read(&uring, 1);
    }
}

#[test]
fn a_set_whose_completions_are_lost_is_carried_out_by_ordinary_calls() {
    for lost in 0..4 {
        for uring in each(TIMEOUT, move |n| if n == lost { Fate::Lost } else { Fate::Come }) {
            write_and_read(&uring, 10);
            assert!(uring.rings.stalls.count() >= 1, "{lost}");
            assert_eq!(uring.rings.stalls.timeouts(), 1, "{lost}");
            write_and_read(&uring, 20);
            assert_eq!(uring.rings.stalls.timeouts(), 1);
        }
    }
}

#[test]
fn a_set_whose_completions_are_late_is_told_of_and_waited_for() {
    const LATE: Duration = Duration::from_millis(300);
    for uring in each(Duration::from_secs(60), |n| if n == 1 { Fate::Late(LATE) } else { Fate::Come }) {
        let file = in_memory();
        let data = [[7; LEN]; 2];
        let mut set =
            [transfer(&file, 4, Memory::From(&data[0])), transfer(&file, 5, Memory::From(&data[1]))];
        let began = Instant::now();
        let events = events_of(|| uring.run(&mut set));
        assert!(began.elapsed() >= LATE && began.elapsed() < Duration::from_secs(20));
        assert!(set.iter().all(|write| matches!(write.outcome, Ok(LEN))));
        let stalls = &uring.rings.stalls;
        assert!(stalls.count() >= 1 && stalls.timeouts() == 0);
        assert!(stalls.longest_ms() >= 50 && stalls.longest_ms() < 20_000, "{}", stalls.longest_ms());
        let named =
            |event: &String| event.starts_with("WARN") && event.contains("write of 4096 bytes at byte ");
        assert!(events.iter().any(named), "{events:?}");
        assert_eq!(uring.rings.idle.lock().len(), 1, "nothing is wrong with the ring");
    }
}

#[test]
fn a_completion_that_comes_twice_counts_once() {
    const LATE: Duration = Duration::from_millis(200);
    let fate = |n| match n {
        0 => Fate::Twice(Duration::ZERO),
        1 => Fate::Late(LATE),
        _ => Fate::Come,
    };
    for uring in each(Duration::from_secs(60), fate) {
        let file = filled(2);
        let (mut one, mut two) = ([0; LEN], [0; LEN]);
        let mut set =
            [transfer(&file, 0, Memory::Into(&mut one)), transfer(&file, 1, Memory::Into(&mut two))];
        let began = Instant::now();
        uring.run(&mut set);
        assert!(began.elapsed() >= LATE, "it returned with a request in flight");
        assert!(set.iter().all(|read| matches!(read.outcome, Ok(LEN))));
        assert!(uring.rings.idle.lock().is_empty(), "the ring is not used again");
    }
}

/// The ring is used again meanwhile.
#[test]
fn a_second_completion_does_not_count_for_the_next_set() {
    const AGAIN: Duration = Duration::from_millis(50);
    let fate = |n| match n {
        0 | 1 => Fate::Twice(AGAIN),
        2 | 3 => Fate::Late(4 * AGAIN),
        _ => Fate::Come,
    };
    for uring in each(Duration::from_secs(60), fate) {
        let file = filled(2);
        for len in [LEN, 512] {
            let (mut one, mut two) = ([0; LEN], [0; LEN]);
            let mut set = [
                transfer(&file, 0, Memory::Into(&mut one[..len])),
                transfer(&file, 1, Memory::Into(&mut two[..len])),
            ];
            uring.run(&mut set);
            let outcomes = set.map(|read| read.outcome.unwrap());
            assert_eq!(outcomes, [len; 2], "of another set");
            assert!(one[..len].iter().all(|byte| *byte == 1) && two[..len].iter().all(|byte| *byte == 2));
            std::thread::sleep(AGAIN);
        }
    }
}

#[test]
fn reads_that_were_begun_and_whose_completions_are_lost_end() {
    for uring in each(TIMEOUT, |n| if n == 0 { Fate::Lost } else { Fate::Come }) {
        let (file, pool) = (filled(3), BufferPool::new(1 << 20));
        let done = uring.begin(reads(&file, &pool, 3)).ok().unwrap().wait();
        for (n, read) in done.iter().enumerate() {
            assert!(matches!(read.outcome, Ok(LEN)), "{:?}", read.outcome);
            assert!(read.buffer.iter().all(|byte| *byte == n as u8 + 1));
        }
        assert_eq!((uring.rings.stalls.timeouts(), uring.rings.pinned_count.load(Relaxed)), (1, 0));
        // Who drops them waits no longer either, nor does who drops the backend.
        *uring.rings.faults.lock() = Some(Arc::new(Faults::new(|_| Fate::Lost)));
        drop(uring.begin(reads(&file, &pool, 3)).ok().unwrap());
        drop(uring);
        drop(done);
        assert_eq!(pool.idle_bytes(), 6 * LEN, "the buffers are back");
    }
}

/// A second descriptor keeps the kernel from freeing the ring, as a device that hangs would.
#[test]
fn buffers_that_the_kernel_does_not_let_go_of_are_pinned() {
    for uring in each(TIMEOUT, |n| if n == 0 { Fate::Lost } else { Fate::Come }) {
        let (file, pool) = (filled(3), BufferPool::new(1 << 20));
        let held = uring.rings.idle.lock()[0].held_open();
        let done = uring.begin(reads(&file, &pool, 3)).ok().unwrap().wait();
        let failed: Vec<_> = done.into_iter().filter_map(|read| read.outcome.err()).collect();
        assert_eq!(failed.len(), 1, "the others have completed");
        let error = Error::from_io("read", "data", Some(4096), failed.into_iter().next().unwrap());
        assert!(matches!(error, Error::Stalled { .. }), "{error:?}");
        assert!(error.to_string().starts_with("read of data at byte 4096 was not completed"), "{error}");
        assert_eq!(pool.idle_bytes(), 2 * LEN, "the buffer of the third may still be written to");
        write_and_read(&uring, 30);
        assert_eq!((pool.idle_bytes(), uring.rings.pinned_count.load(Relaxed)), (2 * LEN, 1));
        drop(held);
        let began = Instant::now();
        while pool.idle_bytes() < 3 * LEN {
            write_and_read(&uring, 40);
            assert!(began.elapsed() < Duration::from_secs(20), "it does not come back");
        }
        assert_eq!(uring.rings.pinned_count.load(Relaxed), 0);
    }
}

/// The subscriber unwound with the buffers still in the set, and they went back to the pool.
#[test]
fn buffers_are_pinned_before_that_is_reported() {
    for uring in each(TIMEOUT, |_| Fate::Lost) {
        let (file, pool) = (filled(3), BufferPool::new(1 << 20));
        let held = uring.rings.idle.lock()[0].held_open();
        let begun = uring.begin(reads(&file, &pool, 3)).ok().unwrap();
        let is_last = |event: &String| event.contains("their buffers are not used again");
        let told = events_of(|| {
            while_errors_panic(|| _ = catch_unwind(AssertUnwindSafe(|| drop(begun.wait()))));
        });
        assert!(told.iter().any(is_last), "{told:?}");
        assert_eq!(pool.idle_bytes(), 0, "the kernel may still write to them");
        drop(uring);
        drop(held);
    }
}

#[test]
fn pinned_buffers_outlive_the_backend() {
    for uring in each(TIMEOUT, |_| Fate::Lost) {
        let (file, pool) = (filled(3), BufferPool::new(1 << 20));
        let held = uring.rings.idle.lock()[0].held_open();
        // Left to the rings, and ended with them.
        drop(uring.begin(reads(&file, &pool, 3)).ok().unwrap());
        let began = Instant::now();
        drop(uring);
        assert!(began.elapsed() < Duration::from_secs(20), "the backend cannot be closed");
        assert_eq!(pool.idle_bytes(), 0, "the kernel may still write to them");
        drop(held);
    }
}

/// The caller has lent the memory: there is nothing to return as long as the kernel may write to it.
#[test]
fn who_lent_memory_waits_until_the_kernel_lets_go_of_it() {
    for uring in each(TIMEOUT, |n| if n == 0 { Fate::Lost } else { Fate::Come }) {
        let held = uring.rings.idle.lock()[0].held_open();
        let (done, is_done) = mpsc::channel();
        std::thread::scope(|scope| {
            let uring = &uring;
            scope.spawn(move || {
                write_and_read(uring, 50);
                done.send(()).unwrap();
            });
            let began = Instant::now();
            // It is told of again and again as it waits.
            while uring.rings.stalls.longest_ms() < 2 * TIMEOUT.as_millis() as u64 {
                assert!(is_done.try_recv().is_err(), "it returned with a request in flight");
                assert!(began.elapsed() < Duration::from_secs(20), "who waits is not told of");
                std::thread::sleep(Duration::from_millis(10));
            }
            assert!(is_done.recv_timeout(TIMEOUT).is_err(), "it returned with a request in flight");
            drop(held);
            is_done.recv_timeout(Duration::from_secs(20)).unwrap();
        });
        assert!(uring.rings.stalls.count() >= 1);
        assert_eq!(uring.rings.stalls.timeouts(), 1);
    }
}

#[test]
fn rings_that_lose_set_after_set_are_not_used_any_more() {
    for uring in each(TIMEOUT, |_| Fate::Lost) {
        let began = Instant::now();
        (0..20).for_each(|seed| write_and_read(&uring, seed));
        assert_eq!(uring.rings.stalls.timeouts(), 3);
        assert!(began.elapsed() < Duration::from_secs(20));
        let (file, pool) = (filled(3), BufferPool::new(1 << 20));
        assert!(uring.begin(reads(&file, &pool, 3)).is_err(), "they are read at once instead");
    }
}
