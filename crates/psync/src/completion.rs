//! Completes a set of transfers: if a backend moved only a part of one, hands it the rest.
//!
//! Invariants:
//! 1. It returns when every transfer has ended, and reports the first failure found.
//! 2. A partial transfer by a backend is never reported as a success, nor as an error.

use crate::transfer::{Memory, Mover, Transfer};
use crate::{Error, Result};
use std::io;

/// Runs the checked set. `name_of` returns the file name of the set's n-th transfer.
pub(crate) fn complete<'a, 'n>(
    mover: &dyn Mover,
    mut set: Vec<Transfer<'a>>,
    operation: &'static str,
    name_of: impl Fn(usize) -> &'n str,
) -> Result<()> {
    mover.run(&mut set);
    conclude(mover, set, operation, name_of)
}

/// Like [`complete`], for a set of one. Allocates no list as long as all goes well.
pub(crate) fn complete_one(
    mover: &dyn Mover,
    mut transfer: Transfer<'_>,
    operation: &'static str,
    name: &str,
) -> Result<()> {
    mover.run(std::slice::from_mut(&mut transfer));
    match transfer.outcome {
        Ok(moved) if moved >= transfer.memory.len() => Ok(()),
        _ => conclude(mover, vec![transfer], operation, |_| name),
    }
}

/// The second half of [`complete`], for a set whose transfers have all been tried once.
pub(crate) fn conclude<'a, 'n>(
    mover: &dyn Mover,
    mut set: Vec<Transfer<'a>>,
    operation: &'static str,
    name_of: impl Fn(usize) -> &'n str,
) -> Result<()> {
    let mut failed = None;
    let asked: Vec<(u64, usize)> =
        set.iter().map(|transfer| (transfer.offset, transfer.memory.len())).collect();
    // For each transfer, the index of the original of which it is the rest. `None` as long as none has been
    // dropped.
    let mut origins: Option<Vec<usize>> = None;
    loop {
        let mut rest = Vec::new();
        let mut rest_origins = Vec::new();
        for (place, transfer) in set.into_iter().enumerate() {
            let index = origins.as_ref().map_or(place, |origins| origins[place]);
            let (offset, expected) = asked[index];
            let left = transfer.memory.len();
            let short = || Error::Short {
                operation,
                file: name_of(index).to_owned(),
                offset,
                expected,
                found: expected - left,
            };
            match transfer.outcome {
                Ok(moved) if moved >= left => {}
                Ok(0) => {
                    failed.get_or_insert_with(short);
                }
                Ok(moved) => {
                    rest.push(after(transfer, moved));
                    rest_origins.push(index);
                }
                Err(ref error) if error.kind() == io::ErrorKind::Interrupted => {
                    rest.push(after(transfer, 0));
                    rest_origins.push(index);
                }
                // A direct transfer that ended at an unaligned offset (the end of a file) cannot be continued
                // there.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput && left < expected => {
                    failed.get_or_insert_with(short);
                }
                Err(error) => {
                    failed.get_or_insert_with(|| {
                        Error::from_io(operation, name_of(index), Some(offset), error)
                    });
                }
            }
        }
        if rest.is_empty() {
            return failed.map_or(Ok(()), Err);
        }
        set = rest;
        origins = Some(rest_origins);
        mover.run(&mut set);
    }
}

/// What remains of the transfer after its first `moved` bytes.
fn after(transfer: Transfer<'_>, moved: usize) -> Transfer<'_> {
    Transfer {
        file: transfer.file,
        offset: transfer.offset + moved as u64,
        memory: match transfer.memory {
            Memory::Into(buffer) => Memory::Into(&mut buffer[moved..]),
            Memory::From(data) => Memory::From(&data[moved..]),
        },
        outcome: Ok(0),
    }
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::sync::Mutex;

    /// Moves a random part of each transfer, and is interrupted now and then.
    struct Stutter(Mutex<StdRng>);

    impl Mover for Stutter {
        fn run(&self, set: &mut [Transfer<'_>]) {
            let mut rng = self.0.lock().unwrap();
            for transfer in set {
                if rng.random_bool(0.3) {
                    transfer.outcome = Err(io::Error::from(io::ErrorKind::Interrupted));
                    continue;
                }
                let part = rng.random_range(1..=transfer.memory.len());
                transfer.outcome = match &mut transfer.memory {
                    Memory::Into(buffer) => transfer.file.read_at(&mut buffer[..part], transfer.offset),
                    Memory::From(data) => transfer.file.write_at(&data[..part], transfer.offset),
                };
            }
        }
    }

    /// Gives each transfer in turn the next of the outcomes.
    struct Scripted(Mutex<Vec<io::Result<usize>>>);

    impl Mover for Scripted {
        fn run(&self, set: &mut [Transfer<'_>]) {
            for transfer in set {
                transfer.outcome = self.0.lock().unwrap().remove(0);
            }
        }
    }

    fn stutter(seed: u64) -> Stutter {
        Stutter(Mutex::new(StdRng::seed_from_u64(seed)))
    }

    fn transfer<'a>(file: &'a File, offset: usize, memory: Memory<'a>) -> Transfer<'a> {
        Transfer { file, offset: offset as u64, memory, outcome: Ok(0) }
    }

    #[test]
    fn parts_are_joined_to_the_whole() {
        let mut text = vec![0; 5000];
        StdRng::seed_from_u64(1).fill(&mut text[..]);
        for seed in 0..50 {
            let file = tempfile::tempfile().unwrap();
            let pieces = || text.chunks(700).enumerate();
            let set = pieces().map(|(n, data)| transfer(&file, n * 700, Memory::From(data))).collect();
            complete(&stutter(seed), set, "write", |_| "f").unwrap();
            let mut found = vec![0; text.len()];
            let set = found.chunks_mut(300).enumerate();
            let set = set.map(|(n, buffer)| transfer(&file, n * 300, Memory::Into(buffer))).collect();
            complete(&stutter(seed), set, "read", |_| "f").unwrap();
            assert!(found == text, "seed {seed}");
        }
    }

    #[test]
    fn one_alone_is_carried_to_its_end_too() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 1000], 0).unwrap();
        for seed in 0..50 {
            let mut buffer = [0; 700];
            let read = transfer(&file, 300, Memory::Into(&mut buffer));
            complete_one(&stutter(seed), read, "read", "f").unwrap();
            assert_eq!(buffer, [7; 700]);
            let answer =
                complete_one(&stutter(seed), transfer(&file, 400, Memory::Into(&mut buffer)), "read", "f");
            match answer.unwrap_err() {
                Error::Short { operation: "read", file, offset: 400, expected: 700, found: 600 } => {
                    assert_eq!(file, "f");
                }
                other => panic!("{other:?}"),
            }
        }
        let failed = Scripted(Mutex::new(vec![Ok(50), Err(io::Error::from(io::ErrorKind::StorageFull))]));
        let data = [0; 100];
        let answer = complete_one(&failed, transfer(&file, 0, Memory::From(&data)), "write", "f");
        assert!(matches!(&answer, Err(Error::Full { file, .. }) if file == "f"), "{answer:?}");
    }

    #[test]
    fn what_stops_early_is_short_by_the_right_amount() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 1000], 0).unwrap();
        for seed in 0..50 {
            let mut buffers = [[0; 400]; 4];
            let set = buffers.iter_mut().enumerate();
            let set = set.map(|(n, buffer)| transfer(&file, n * 400, Memory::Into(buffer))).collect();
            let name_of = |index: usize| ["a", "b", "c", "d"][index];
            match complete(&stutter(seed), set, "read", name_of).unwrap_err() {
                Error::Short { operation: "read", file, offset, expected: 400, found } => {
                    assert!([("c", 800, 200), ("d", 1200, 0)].contains(&(&file[..], offset, found)));
                }
                other => panic!("{other:?}"),
            }
            let whole = buffers.as_flattened();
            assert!(whole[..1000].iter().all(|&byte| byte == 7), "the others were read to their ends");
        }
    }

    #[test]
    fn the_first_failure_is_told_after_the_others_have_ended() {
        let file = tempfile::tempfile().unwrap();
        let data = [0; 100];
        let script = |outcomes: Vec<io::Result<usize>>| {
            let mover = Scripted(Mutex::new(outcomes));
            let set = (0..2).map(|n| transfer(&file, n * 100, Memory::From(&data))).collect();
            let answer = complete(&mover, set, "write", |index| ["a", "b"][index]);
            assert!(mover.0.lock().unwrap().is_empty(), "every outcome was waited for");
            answer
        };
        let full = || Err(io::Error::from(io::ErrorKind::StorageFull));
        let odd = || Err(io::Error::from(io::ErrorKind::InvalidInput));
        script(vec![Ok(100), Ok(100)]).unwrap();
        let answer = script(vec![full(), Ok(50), Ok(50)]);
        assert!(matches!(&answer, Err(Error::Full { file, .. }) if file == "a"), "{answer:?}");
        let answer = script(vec![Ok(60), Ok(100), Ok(0)]);
        assert!(matches!(answer, Err(Error::Short { found: 60, expected: 100, .. })), "{answer:?}");
        let answer = script(vec![Ok(100), Ok(60), odd()]);
        assert!(matches!(answer, Err(Error::Short { found: 60, offset: 100, .. })), "{answer:?}");
        let answer = script(vec![Ok(100), odd()]);
        assert!(matches!(answer, Err(Error::Io { offset: Some(100), .. })), "{answer:?}");
    }
}
