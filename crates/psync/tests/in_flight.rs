//! What is begun and waited for later is what a read at once would have brought, on every backend; and nobody's memory is written
//! to after it was given back, whatever became of the one who waits.

mod disks;

use disks::{BLOCK, NEW, NEW_DIRECT, noise, open, scratch, with_each, write};
use psync::{
    Access, AlignedBuffer, Backend, BufferPool, Counters, Device, Disk, Error, FileId, InFlight, Read,
    ReadInto, Volume,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Longer than it takes on a slow disk to read what is read here.
const READ_WITHIN: Duration = Duration::from_secs(20);
/// How long the one who began goes on otherwise: by the clock, and in turns, which take half a nanosecond or more.
const GOES_ON: Duration = Duration::from_secs(60);
const TURNS: u64 = 2 * GOES_ON.as_nanos() as u64;
/// For a few MiB that nobody waited for.
const BACK_WITHIN: Duration = Duration::from_secs(120);

/// A file of so many blocks, and what is in it.
fn filled(disk: &Disk, blocks: usize) -> (FileId, AlignedBuffer) {
    let file = disk.open("data", NEW_DIRECT).expect("a file");
    let text = noise(7, blocks * BLOCK);
    write(disk, file, 0, &text).expect("writes");
    (file, text)
}

fn block(file: FileId, number: usize) -> ReadInto {
    ReadInto { file, offset: (number * BLOCK) as u64, buffer: AlignedBuffer::new(BLOCK) }
}

/// Begins to read these blocks.
fn begin(disk: &dyn Device, file: FileId, blocks: &[usize]) -> InFlight {
    disk.begin(blocks.iter().map(|number| block(file, *number)).collect())
}

fn assert_blocks(text: &[u8], blocks: &[usize], found: &[AlignedBuffer]) {
    assert_eq!(blocks.len(), found.len());
    for (number, found) in blocks.iter().zip(found) {
        assert!(found[..] == text[number * BLOCK..][..BLOCK], "block {number}");
    }
}

/// Sets of one and of more than the ring has entries among them, waited for in any order or not at all.
#[test]
fn sets_that_are_in_flight_at_the_same_time_bring_what_reads_bring() {
    const PIO_MAX: usize = 8;
    const BLOCKS: usize = 128;
    with_each(PIO_MAX, |disk, _| {
        let (file, text) = filled(disk, BLOCKS);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (text, before) = (&text, disk.counters());
                let work = move || {
                    let mut rng = StdRng::seed_from_u64(thread);
                    let (mut flights, mut expected) = (Vec::new(), Counters::default());
                    for _ in 0..300 {
                        let count = rng.random_range(0..=3 * PIO_MAX);
                        let blocks: Vec<_> = (0..count).map(|_| rng.random_range(0..BLOCKS)).collect();
                        expected.reads += count as u64;
                        expected.read_sets += count.div_ceil(PIO_MAX) as u64;
                        expected.bytes_read += (count * BLOCK) as u64;
                        flights.push((begin(disk, file, &blocks), blocks));
                        if flights.len() > rng.random_range(0..6) {
                            let (flight, blocks) = flights.swap_remove(rng.random_range(0..flights.len()));
                            if rng.random_bool(0.9) {
                                assert_blocks(text, &blocks, &flight.wait().unwrap());
                            }
                        }
                    }
                    for (flight, blocks) in flights {
                        assert_blocks(text, &blocks, &flight.wait().unwrap());
                    }
                    if thread == 0 {
                        assert_eq!(disk.counters() - before, expected);
                    }
                };
                // The first by itself, since the counters are everybody's.
                if thread == 0 { work() } else { _ = scope.spawn(work) }
            }
        });
    });
}

#[test]
fn more_sets_than_may_have_rings_are_read_all_the_same() {
    with_each(4, |disk, _| {
        let (file, text) = filled(disk, 64);
        let files = || std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        let before = files();
        let flights: Vec<_> = (0..400).map(|n| begin(disk, file, &[n % 64, n * 7 % 64])).collect();
        assert!(files() <= before + 200, "{before} files before, {} now", files());
        for (n, flight) in flights.into_iter().enumerate() {
            assert_blocks(&text, &[n % 64, n * 7 % 64], &flight.wait().unwrap());
        }
    });
}

/// If a drop gave the buffers back at once, the device would write into memory that the pool has given to somebody else.
#[test]
fn nothing_touches_the_buffers_of_a_set_that_was_dropped() {
    const LEN: usize = 256 << 10;
    with_each(16, |disk, _| {
        let (file, _) = filled(disk, 16 * LEN / BLOCK);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(move || {
                    let pool = BufferPool::new(16 * LEN);
                    for _ in 0..25 {
                        let set = (0..16).map(|n| n * LEN as u64);
                        let flight = disk.begin(
                            set.map(|offset| ReadInto { file, offset, buffer: pool.take(LEN) }).collect(),
                        );
                        drop(flight);
                        let mut buffers: Vec<_> = (0..16).map(|_| pool.take(LEN)).collect();
                        buffers.iter_mut().for_each(|buffer| buffer.fill(0xa5));
                        std::thread::sleep(Duration::from_millis(3));
                        for (index, buffer) in buffers.iter().enumerate() {
                            let touched = buffer.iter().position(|&byte| byte != 0xa5);
                            assert_eq!(touched, None, "buffer {index} was written to after the drop");
                        }
                    }
                });
            }
        });
    });
}

#[test]
fn what_is_leaked_is_leaked_with_its_buffers() {
    let dir = scratch();
    let disk = open(dir.path(), Backend::Auto, 16);
    let (file, text) = filled(&disk, 64);
    let pool = BufferPool::new(1 << 20);
    let buffers: Vec<_> = (0..16).map(|_| pool.take(BLOCK)).collect();
    let set = buffers.into_iter().enumerate();
    let set = set.map(|(n, buffer)| ReadInto { file, offset: (n * BLOCK) as u64, buffer });
    let flight = disk.begin(set.collect());
    if format!("{flight:?}") == "InFlight(ended)" {
        eprintln!("SKIPPED: nothing can be in flight here");
    }
    std::mem::forget(flight);
    assert_eq!(pool.idle_bytes(), 0, "the buffers are not used again");
    assert_blocks(&text, &[3, 60], &begin(&disk, file, &[3, 60]).wait().unwrap());
}

/// A thread that ends while its requests are in flight may have them cancelled by the kernel.
#[test]
fn who_waits_need_not_be_who_began() {
    with_each(16, |disk, _| {
        let (file, text) = filled(disk, 64);
        for round in 0..50 {
            let blocks: Vec<_> = (0..16).map(|n| (n * 13 + round) % 64).collect();
            let flight = std::thread::scope(|scope| scope.spawn(|| begin(disk, file, &blocks)).join());
            assert_blocks(&text, &blocks, &flight.unwrap().wait().unwrap());
        }
    });
}

/// Whatever the one who began does meanwhile, whose task the kernel has finish the requests: computes without a system call, or sleeps.
#[test]
fn who_waits_does_not_wait_for_who_began() {
    with_each(16, |disk, _| {
        let (file, text) = filled(disk, 64);
        for is_asleep in [false, true] {
            let mut longest = Duration::ZERO;
            for round in 0..25 {
                let blocks: Vec<_> = (0..16).map(|n| (n * 13 + round) % 64).collect();
                let (is_over, (send, receive)) = (AtomicBool::new(false), mpsc::channel());
                let (go, gone) = mpsc::channel::<()>();
                let (blocks, is_over) = (&blocks, &is_over);
                std::thread::scope(|scope| {
                    scope.spawn(move || {
                        send.send(begin(disk, file, blocks)).unwrap();
                        if is_asleep {
                            _ = gone.recv_timeout(GOES_ON);
                        } else {
                            let mut turns = 0_u64;
                            while !is_over.load(Relaxed) && turns < TURNS {
                                turns += 1;
                            }
                        }
                    });
                    let flight = receive.recv().unwrap();
                    let began = Instant::now();
                    assert_blocks(&text, blocks, &flight.wait().unwrap());
                    longest = longest.max(began.elapsed());
                    is_over.store(true, Relaxed);
                    _ = go.send(());
                });
                assert!(longest < READ_WITHIN, "asleep {is_asleep}: {longest:?}");
            }
            println!("asleep {is_asleep}: {longest:?} at most");
        }
    });
}

/// They are left to the disk, a few of them, until it is asked for something else or goes.
#[test]
fn who_drops_a_few_sets_need_not_wait_and_their_buffers_come_back() {
    const LEN: usize = 256 << 10;
    with_each(16, |disk, _| {
        let (file, text) = filled(disk, 16 * LEN / BLOCK);
        let pool = BufferPool::new(64 * 16 * LEN);
        let large = |pool: &BufferPool| {
            let set = (0..16).map(|n| ReadInto { file, offset: (n * LEN) as u64, buffer: pool.take(LEN) });
            disk.begin(set.collect())
        };
        let flights: Vec<_> = (0..20).map(|_| large(&pool)).collect();
        drop(flights);
        let idle = pool.idle_bytes() / (16 * LEN);
        assert!(idle >= 16, "{} of 20 sets were not waited for", 20 - idle);
        let began = Instant::now();
        while pool.idle_bytes() < 20 * 16 * LEN {
            assert_blocks(&text, &[3, 60], &begin(disk, file, &[3, 60]).wait().unwrap());
            assert!(began.elapsed() < BACK_WITHIN, "{} bytes came back", pool.idle_bytes());
        }
    });
    let dir = scratch();
    let disk = open(dir.path(), Backend::Auto, 16);
    let (file, _) = filled(&disk, 16 * LEN / BLOCK);
    let pool = BufferPool::new(64 * 16 * LEN);
    let set = (0..16).map(|n| ReadInto { file, offset: (n * LEN) as u64, buffer: pool.take(LEN) });
    drop(disk.begin(set.collect()));
    drop(disk);
    assert_eq!(pool.idle_bytes(), 16 * LEN, "nothing is in flight without a disk");
}

#[test]
fn neither_the_file_nor_the_disk_need_stay_open() {
    let dir = scratch();
    for backend in [Backend::Auto, Backend::Threads] {
        let disk = open(dir.path(), backend, 16);
        let (file, text) = filled(&disk, 64);
        let whole = begin(&disk, file, &[1, 2, 3]);
        let short = begin(&disk, file, &[1, 63, 64]);
        disk.close(file).unwrap();
        drop(disk);
        assert_blocks(&text, &[1, 2, 3], &whole.wait().unwrap());
        let error = short.wait().unwrap_err();
        assert!(matches!(&error, Error::Short { file, found: 0, .. } if file == "data"), "{error}");
    }
}

/// Of the members of a set one by one, so that one is told that comes first, last, alone and beyond what a ring takes.
#[test]
fn errors_are_those_of_a_read() {
    const PIO_MAX: usize = 8;
    with_each(PIO_MAX, |disk, _| {
        let (data, _) = filled(disk, 32);
        let odd = disk.open("odd", NEW).unwrap();
        write(disk, odd, 0, &noise(1, 100)).unwrap();
        let closed = disk.open("closed", NEW).unwrap();
        disk.close(closed).unwrap();
        let direct = disk.open("odd", Access { direct: true, ..Access::default() }).unwrap();
        for (count, place) in [(1, 0), (4, 0), (4, 3), (20, 2), (20, 19)] {
            for (file, offset) in [(odd, 0), (odd, 50), (odd, 4096), (direct, 0), (closed, 0), (data, 1)] {
                let set = || {
                    let mut set: Vec<_> = (0..count).map(|number| block(data, number)).collect();
                    set[place] = ReadInto { file, offset, buffer: AlignedBuffer::new(BLOCK) };
                    set
                };
                let before = disk.counters();
                let begun = disk.begin(set()).wait().unwrap_err();
                let counted = disk.counters() - before;
                let before = disk.counters();
                let mut set = set();
                let mut set: Vec<_> = set
                    .iter_mut()
                    .map(|read| Read { file: read.file, offset: read.offset, buffer: &mut read.buffer })
                    .collect();
                let read = disk.read(&mut set).unwrap_err();
                assert_eq!(format!("{begun:?}"), format!("{read:?}"));
                assert_eq!(counted, disk.counters() - before, "{read}");
            }
        }
    });
}
