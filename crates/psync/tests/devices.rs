//! Every backend that works here keeps the contract of `Device`, on real files.

mod disks;

use disks::{BLOCK, NEW, NEW_DIRECT, noise, open, scratch, with_each, write};
use psync::{
    Access, AlignedBuffer, Backend, Counters, Device, Disk, Error, FileId, Read, Request, Volume, Write,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::time::Duration;

fn read(disk: &Disk, file: FileId, offset: u64, len: usize) -> psync::Result<AlignedBuffer> {
    let mut buffer = AlignedBuffer::new(len);
    disk.read(&mut [Read { file, offset, buffer: &mut buffer }]).map(|()| buffer)
}

fn assert_invalid<T: std::fmt::Debug>(answer: psync::Result<T>, what: &str) {
    assert!(matches!(answer, Err(Error::Invalid(_))), "{what}: {answer:?}");
}

/// A file as the test believes it to be, and how requests to it must be aligned.
struct Modelled {
    file: FileId,
    name: &'static str,
    unit: usize,
    content: Vec<u8>,
}

/// Longest that a modelled file may become.
const MODEL_MAX: usize = 64 * BLOCK;

impl Modelled {
    /// A place for a request within the first `end` bytes: offset and length.
    fn place(&self, rng: &mut StdRng, end: usize) -> Option<(usize, usize)> {
        let units = end / self.unit;
        if units == 0 {
            return None;
        }
        let len = rng.random_range(1..=units.min(4 * BLOCK / self.unit));
        Some((rng.random_range(0..=units - len) * self.unit, len * self.unit))
    }
}

#[test]
fn random_sets_do_what_a_model_says() {
    const PIO_MAX: usize = 8;
    with_each(PIO_MAX, |disk, dir| {
        let unit = disk.limits().alignment;
        let mut files =
            [("a", NEW_DIRECT, unit), ("b", NEW, 1), ("c", NEW_DIRECT, unit)].map(|(name, access, unit)| {
                Modelled { file: disk.open(name, access).unwrap(), name, unit, content: Vec::new() }
            });
        let mut rng = StdRng::seed_from_u64(0x5eed);
        for step in 0..400 {
            let before = disk.counters();
            let count = rng.random_range(1..=3 * PIO_MAX);
            let mut expected = Counters::default();
            match rng.random_range(0..10) {
                0..5 => {
                    let mut places: Vec<(usize, usize, AlignedBuffer)> = Vec::new();
                    for _ in 0..count {
                        let index = rng.random_range(0..files.len());
                        let Some((offset, len)) = files[index].place(&mut rng, MODEL_MAX) else { continue };
                        let free = |(other, at, data): &(usize, usize, AlignedBuffer)| {
                            *other != index || offset + len <= *at || at + data.len() <= offset
                        };
                        if places.iter().all(free) {
                            places.push((index, offset, noise(rng.random(), len)));
                        }
                    }
                    let set: Vec<_> = places
                        .iter()
                        .map(|(index, offset, data)| Write {
                            file: files[*index].file,
                            offset: *offset as u64,
                            data,
                        })
                        .collect();
                    disk.write(&set).unwrap();
                    expected.writes = set.len() as u64;
                    expected.write_sets = set.len().div_ceil(PIO_MAX) as u64;
                    expected.bytes_written = set.iter().map(|write| write.data.len() as u64).sum();
                    for (index, offset, data) in &places {
                        let content = &mut files[*index].content;
                        content.resize(content.len().max(offset + data.len()), 0);
                        content[*offset..offset + data.len()].copy_from_slice(data);
                    }
                }
                5..8 => {
                    let mut places: Vec<(usize, usize, AlignedBuffer)> = Vec::new();
                    for _ in 0..count {
                        let index = rng.random_range(0..files.len());
                        let end = files[index].content.len();
                        let Some((offset, len)) = files[index].place(&mut rng, end) else { continue };
                        places.push((index, offset, AlignedBuffer::new(len)));
                    }
                    let mut set: Vec<_> = places
                        .iter_mut()
                        .map(|(index, offset, buffer)| Read {
                            file: files[*index].file,
                            offset: *offset as u64,
                            buffer,
                        })
                        .collect();
                    disk.read(&mut set).unwrap();
                    expected.reads = set.len() as u64;
                    expected.read_sets = set.len().div_ceil(PIO_MAX) as u64;
                    expected.bytes_read = set.iter().map(|read| read.buffer.len() as u64).sum();
                    for (index, offset, found) in &places {
                        let file = &files[*index];
                        let right = &file.content[*offset..offset + found.len()];
                        assert!(right == &found[..], "step {step}: {} at {offset}", file.name);
                    }
                }
                8 => {
                    let file = &mut files[rng.random_range(0..3)];
                    let len = rng.random_range(0..=MODEL_MAX / file.unit) * file.unit;
                    disk.resize(file.file, len as u64).unwrap();
                    file.content.resize(len, 0);
                    assert_eq!(disk.len(file.file).unwrap(), len as u64);
                }
                _ => {
                    let file = &mut files[rng.random_range(0..3)];
                    let start = rng.random_range(0..MODEL_MAX);
                    let end = rng.random_range(start..=MODEL_MAX);
                    disk.release(file.file, start as u64..end as u64).unwrap();
                    let end = end.min(file.content.len());
                    if start < end {
                        file.content[start..end].fill(0);
                    }
                    disk.sync(file.file).unwrap();
                    expected.syncs = 1;
                }
            }
            assert_eq!(disk.counters() - before, expected, "step {step}");
        }
        for file in &files {
            disk.close(file.file).unwrap();
            assert!(std::fs::read(dir.join(file.name)).unwrap() == file.content, "{} at the end", file.name);
        }
    });
}

#[test]
fn a_read_past_the_end_says_which_and_all_others_are_done() {
    with_each(16, |disk, _| {
        let text = noise(1, 8 * BLOCK);
        let long = disk.open("long", NEW).unwrap();
        write(disk, long, 0, &text).unwrap();
        let odd = disk.open("odd", NEW).unwrap();
        write(disk, odd, 0, &text[..BLOCK + 100]).unwrap();
        for direct in [false, true] {
            let access = Access { direct, ..Access::default() };
            let [long, odd] = ["long", "odd"].map(|name| disk.open(name, access).unwrap());
            for (offset, found_then) in [(0, BLOCK + 100), (BLOCK, 100), (4 * BLOCK, 0)] {
                for place in [0, 3, 7] {
                    let mut buffers: Vec<_> = (0..8).map(|_| AlignedBuffer::new(BLOCK)).collect();
                    buffers[place] = AlignedBuffer::new(2 * BLOCK);
                    let mut set: Vec<_> = buffers
                        .iter_mut()
                        .enumerate()
                        .map(|(index, buffer)| match index == place {
                            true => Read { file: odd, offset: offset as u64, buffer },
                            false => Read { file: long, offset: (index * BLOCK) as u64, buffer },
                        })
                        .collect();
                    match disk.read(&mut set).unwrap_err() {
                        Error::Short { operation: "read", file, offset: at, expected, found } => {
                            assert_eq!(
                                (&file[..], at, expected, found),
                                ("odd", offset as u64, 2 * BLOCK, found_then)
                            );
                        }
                        other => panic!("direct {direct}, offset {offset}: {other:?}"),
                    }
                    for (index, buffer) in buffers.iter().enumerate().filter(|(index, _)| *index != place) {
                        assert!(buffer[..] == text[index * BLOCK..][..BLOCK], "member {index} was done");
                    }
                }
                // The same for a set of one, which takes another way.
                let alone = read(disk, odd, offset as u64, 2 * BLOCK).unwrap_err();
                assert!(matches!(alone, Error::Short { found, .. } if found == found_then), "{alone:?}");
            }
        }
    });
}

/// If a failed call came back while a request was still in flight, the kernel would write into a buffer that was
/// already used for something else.
#[test]
fn nothing_touches_the_buffers_of_a_failed_call_later() {
    const LEN: usize = 256 << 10;
    with_each(64, |disk, _| {
        let file = disk.open("f", NEW_DIRECT).unwrap();
        for index in 0..32 {
            write(disk, file, (index * LEN) as u64, &noise(index as u64, LEN)).unwrap();
        }
        let end = disk.len(file).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    let mut rng = StdRng::seed_from_u64(thread);
                    let mut buffers: Vec<_> = (0..16).map(|_| AlignedBuffer::new(LEN)).collect();
                    for _ in 0..25 {
                        let broken = rng.random_range(0..16);
                        let mut set: Vec<_> = buffers
                            .iter_mut()
                            .enumerate()
                            .map(|(index, buffer)| {
                                let offset = rng.random_range(0..32) * LEN as u64;
                                Read { file, offset: if index == broken { end } else { offset }, buffer }
                            })
                            .collect();
                        let error = disk.read(&mut set).unwrap_err();
                        assert!(matches!(error, Error::Short { found: 0, .. }), "{error}");
                        buffers.iter_mut().for_each(|buffer| buffer.fill(0xa5));
                        std::thread::sleep(Duration::from_millis(3));
                        for (index, buffer) in buffers.iter().enumerate() {
                            let touched = buffer.iter().position(|&byte| byte != 0xa5);
                            assert_eq!(touched, None, "buffer {index} was written after the call");
                        }
                    }
                });
            }
        });
    });
}

#[test]
fn mingled_sets_move_both_ways_and_count_both() {
    with_each(8, |disk, _| {
        let file = disk.open("data", NEW_DIRECT).unwrap();
        let old = noise(1, 4 * BLOCK);
        write(disk, file, 0, &old).unwrap();
        let (new, before) = (noise(2, 2 * BLOCK), disk.counters());
        let mut buffers = [AlignedBuffer::new(BLOCK), AlignedBuffer::new(BLOCK)];
        let [first, second] = &mut buffers;
        let place = |block: usize| (block * BLOCK) as u64;
        disk.mingled(&mut [
            Request::Read(Read { file, offset: place(2), buffer: first }),
            Request::Write(Write { file, offset: place(0), data: &new[..BLOCK] }),
            Request::Read(Read { file, offset: place(3), buffer: second }),
            Request::Write(Write { file, offset: place(1), data: &new[BLOCK..] }),
        ])
        .unwrap();
        assert!(buffers[0][..] == old[2 * BLOCK..3 * BLOCK] && buffers[1][..] == old[3 * BLOCK..]);
        assert!(read(disk, file, 0, 2 * BLOCK).unwrap()[..] == new[..]);
        let (two, bytes) = (2, 2 * BLOCK as u64);
        let counted = disk.counters() - before;
        // One read set besides: the check above.
        let expected = Counters {
            read_sets: 2,
            reads: two + 1,
            bytes_read: 2 * bytes,
            write_sets: 1,
            writes: two,
            bytes_written: bytes,
            syncs: 0,
            ..Counters::default()
        };
        assert_eq!(counted, expected);
        let twice = |offset| Request::Write(Write { file, offset, data: &new[..BLOCK] });
        assert_invalid(disk.mingled(&mut [twice(0), twice(0)]), "overlapping writes");
        assert_invalid(disk.mingled(&mut (0..9).map(|n| twice(place(n))).collect::<Vec<_>>()), "too many");
        assert_invalid(disk.mingled(&mut [twice(1)]), "unaligned");
        let closed = disk.open("data", Access { direct: true, ..Access::default() }).unwrap();
        let data = &new[..BLOCK];
        let read_only = Request::Write(Write { file: closed, offset: 0, data });
        assert_invalid(disk.mingled(&mut [read_only]), "a file for reading only");
    });
}

#[test]
fn more_threads_than_kept_rings_call_at_the_same_time() {
    const THREADS: usize = 40;
    const SPAN: u64 = 16 * BLOCK as u64;
    with_each(8, |disk, _| {
        let file = disk.open("f", NEW_DIRECT).unwrap();
        disk.resize(file, THREADS as u64 * SPAN).unwrap();
        let before = disk.counters();
        std::thread::scope(|scope| {
            for thread in 0..THREADS as u64 {
                scope.spawn(move || {
                    for round in 0..4 {
                        let data = noise(thread << 8 | round, SPAN as usize);
                        let blocks = || data.chunks(BLOCK).zip(0u64..);
                        let place = |block: u64| thread * SPAN + block * BLOCK as u64;
                        let set: Vec<_> = blocks()
                            .map(|(data, block)| Write { file, offset: place(block), data })
                            .collect();
                        disk.write(&set).unwrap();
                        let mut found: Vec<_> = blocks().map(|_| AlignedBuffer::new(BLOCK)).collect();
                        let mut set: Vec<_> = found
                            .iter_mut()
                            .zip(0u64..)
                            .map(|(buffer, block)| Read { file, offset: place(block), buffer })
                            .collect();
                        disk.read(&mut set).unwrap();
                        assert!(blocks().zip(&found).all(|((data, _), found)| data == &found[..]));
                    }
                });
            }
        });
        let done = disk.counters() - before;
        let requests = THREADS as u64 * 4 * 16;
        assert_eq!((done.reads, done.writes), (requests, requests));
        assert_eq!((done.read_sets, done.write_sets), (requests / 8, requests / 8));
    });
}

#[test]
fn what_breaks_the_contract_is_refused_before_anything_is_moved() {
    with_each(16, |disk, _| {
        let file = disk.open("direct", NEW_DIRECT).unwrap();
        let data = noise(1, 4 * BLOCK);
        write(disk, file, 0, &data).unwrap();
        let buffered = disk.open("buffered", NEW).unwrap();
        write(disk, buffered, 3, &data[1..8]).unwrap();
        assert_eq!(
            &read(disk, buffered, 4, 3).unwrap()[..],
            &data[2..5],
            "the page cache takes odd requests"
        );

        let before = disk.counters();
        if disk.limits().direct {
            assert_invalid(write(disk, file, 1, &data[..BLOCK]), "offset");
            assert_invalid(write(disk, file, 0, &data[..100]), "length");
            assert_invalid(write(disk, file, 0, &data[1..=BLOCK]), "address");
            assert_invalid(read(disk, file, 7, BLOCK), "offset of a read");
        } else {
            eprintln!("SKIPPED: no direct I/O here, so nothing can be unaligned");
        }
        for empty in [file, buffered] {
            assert_invalid(write(disk, empty, 0, &[]), "nothing to write");
        }
        assert_invalid(write(disk, buffered, u64::MAX - 2, &data[..BLOCK]), "beyond u64");
        assert_invalid(write(disk, buffered, i64::MAX as u64, &data[..BLOCK]), "beyond i64");
        let good = Write { file, offset: 0, data: &data[BLOCK..2 * BLOCK] };
        let overlapping = [good, Write { offset: 0, data: &data[..2 * BLOCK], ..good }];
        assert_invalid(disk.write(&overlapping), "overlap");
        let elsewhere = [good, Write { file: FileId::new(u64::MAX), ..good }];
        assert_invalid(disk.write(&elsewhere), "unknown file");
        let reader = disk.open("buffered", Access::default()).unwrap();
        assert_invalid(write(disk, reader, 0, &data[..3]), "write to a file opened for reading");
        assert_invalid(disk.resize(reader, 0), "resize of a file opened for reading");
        assert_invalid(disk.release(reader, 0..3), "release of a file opened for reading");
        assert_eq!(disk.counters(), before, "nothing was counted");
        assert!(read(disk, file, 0, 4 * BLOCK).unwrap()[..] == data[..], "nothing was written");

        disk.read(&mut []).unwrap();
        disk.write(&[]).unwrap();
        let neighbours = [good, Write { offset: BLOCK as u64, ..good }];
        disk.write(&neighbours).unwrap();
    });
}

#[test]
fn a_closed_file_is_refused_and_its_id_never_returns() {
    with_each(16, |disk, _| {
        let first = disk.open("f", NEW).unwrap();
        write(disk, first, 0, b"text").unwrap();
        disk.close(first).unwrap();
        let second = disk.open("f", NEW).unwrap();
        assert_ne!(first, second);
        assert_invalid(read(disk, first, 0, 4), "read");
        assert_invalid(write(disk, first, 0, b"more"), "write");
        assert_invalid(disk.sync(first), "sync");
        assert_invalid(disk.len(first), "len");
        assert_invalid(disk.resize(first, 0), "resize");
        assert_invalid(disk.release(first, 0..1), "release");
        assert_invalid(disk.close(first), "close");
        assert_eq!(&read(disk, second, 0, 4).unwrap()[..], b"text");
        let mut ids: Vec<_> = (0..100)
            .map(|_| {
                let id = disk.open("f", NEW).unwrap();
                disk.close(id).unwrap();
                id
            })
            .collect();
        ids.dedup();
        assert_eq!(ids.len(), 100);
    });
}

#[cfg(target_os = "linux")]
#[test]
fn released_space_reads_as_zeros_and_goes_back_to_the_file_system() {
    use std::os::unix::fs::MetadataExt;
    const LEN: usize = 1 << 20;
    let dir = scratch();
    let disk = open(dir.path(), Backend::Auto, 16);
    let file = disk.open("f", NEW_DIRECT).unwrap();
    let data = noise(1, LEN);
    write(&disk, file, 0, &data).unwrap();
    disk.sync(file).unwrap();
    let blocks = || std::fs::metadata(dir.path().join("f")).unwrap().blocks() * 512;
    let before = blocks();
    let hole = 64 << 10..512 << 10;
    disk.release(file, hole.clone()).unwrap();
    assert_eq!(disk.len(file).unwrap(), LEN as u64);
    assert!(blocks() + (400 << 10) <= before, "{before} bytes, then {}", blocks());
    let found = read(&disk, file, 0, LEN).unwrap();
    let (start, end) = (hole.start as usize, hole.end as usize);
    assert!(found[..start] == data[..start] && found[end..] == data[end..], "the rest stays");
    assert!(found[start..end].iter().all(|&byte| byte == 0));

    // Nothing, nothing backwards, and what lies behind the end.
    let (earlier, later) = (4096, 512);
    for range in [0..0, earlier..later, LEN as u64..u64::MAX, u64::MAX - 1..u64::MAX] {
        disk.release(file, range.clone()).unwrap_or_else(|error| panic!("{range:?}: {error}"));
    }
    assert_eq!(disk.len(file).unwrap(), LEN as u64);
    assert!(read(&disk, file, 0, LEN).unwrap()[..] == found[..]);
}

#[cfg(target_os = "linux")]
#[test]
fn allocated_space_is_there_and_reads_as_zeros() {
    use std::os::unix::fs::MetadataExt;
    const LEN: u64 = 1 << 20;
    let dir = scratch();
    let disk = open(dir.path(), Backend::Auto, 16);
    let access = Access { write: true, create: true, ..Access::default() };
    let file = disk.open("f", access).unwrap();
    let data = noise(1, 10_000);
    write(&disk, file, 0, &data).unwrap();
    disk.allocate(file, 0..LEN).unwrap();
    let blocks = || std::fs::metadata(dir.path().join("f")).unwrap().blocks() * 512;
    assert!(disk.len(file).unwrap() == LEN && blocks() >= LEN, "{} bytes", blocks());
    let found = read(&disk, file, 0, LEN as usize).unwrap();
    assert!(found[..data.len()] == data[..], "what was there stays");
    assert!(found[data.len()..].iter().all(|&byte| byte == 0));
    // What is there already.
    disk.allocate(file, 4096..8192).unwrap();
    disk.allocate(file, 0..0).unwrap();
    assert_eq!(disk.len(file).unwrap(), LEN);
    disk.resize(file, 0).unwrap();
    assert!(blocks() <= LEN / 2, "{} bytes after it was cut", blocks());
}
