//! Input that is read by a thread of its own, so that Ctrl-C is heeded while a pipe is silent.
//!
//! Invariants:
//! 1. at most `CHUNKS` chunks of `CHUNK` bytes wait to be taken;
//! 2. where a pipe ends after Ctrl-C, that is an error and not the end, since its writer may have been ended within a record;
//! 3. after an error or the end, the thread is gone; a thread that waits for a silent pipe ends with the process.

use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::output::tell;
use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead, IsTerminal, Read, stdin};
use std::path::Path;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

const CHUNK: usize = 256 << 10;
const CHUNKS: usize = 4;
/// Bytes that are looked at before anything is written.
const BLOCK: usize = 4 << 10;
/// The same where a CR comes before the first LF: whether lines end with CR alone is seen at the end of the input only, and a longer one is
/// taken as it is.
const BLOCK_WITH_CR: usize = 1 << 20;
/// How soon Ctrl-C is noticed.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What an input is called.
pub(crate) fn name(path: &Path) -> String {
    if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() }
}

/// See the module.
pub(crate) struct Input {
    chunks: Receiver<io::Result<Vec<u8>>>,
    chunk: Vec<u8>,
    at: usize,
    taken: Rc<Cell<u64>>,
    /// Where it ends is for another program to say.
    is_pipe: bool,
}

impl Input {
    /// Opens the file, or standard input for `-`. Also tells its length, if it has one.
    pub fn open(path: &Path) -> Result<(Self, Option<u64>)> {
        if path == Path::new("-") {
            if stdin().is_terminal() {
                tell("sapwood: reading records from the terminal; Ctrl-D ends them");
            }
            return Ok((Self::of(stdin(), true)?, None));
        }
        let cannot = |error| Failure::Other(format!("{}: {error}", path.display()));
        let file = File::open(path).map_err(cannot)?;
        let metadata = file.metadata().map_err(cannot)?;
        if metadata.is_dir() {
            // Before something is made for what nobody can read.
            return Err(cannot(io::ErrorKind::IsADirectory.into()));
        }
        Ok((Self::of(file, !metadata.is_file())?, metadata.is_file().then_some(metadata.len())))
    }

    fn of(mut source: impl Read + Send + 'static, is_pipe: bool) -> Result<Self> {
        let (sender, chunks) = sync_channel(CHUNKS);
        let read_all = move || {
            loop {
                let mut chunk = vec![0; CHUNK];
                let read = match source.read(&mut chunk) {
                    Ok(0) => return,
                    Ok(read) => Ok(read),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => Err(error),
                };
                let is_last = read.is_err();
                let sent = sender.send(read.map(|read| {
                    chunk.truncate(read);
                    chunk
                }));
                if is_last || sent.is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new()
            .name("sapwood-input".into())
            .spawn(read_all)
            .map_err(|error| Failure::Other(format!("cannot start a thread: {error}")))?;
        Ok(Self { chunks, chunk: Vec::new(), at: 0, taken: Rc::default(), is_pipe })
    }

    /// The first block, which is not taken by that: as much as there is at once, or all up to the end, and no less than the
    /// first line or `BLOCK` bytes. Also whether it is known to be all.
    pub fn first_block(&mut self) -> io::Result<(&[u8], bool)> {
        let (mut has_line, mut most) = (false, BLOCK);
        while !has_line && self.chunk.len() < most {
            let Ok(chunk) = self.chunks.recv() else { return Ok((&self.chunk, true)) };
            let chunk = chunk?;
            has_line = chunk.contains(&b'\n');
            if chunk.contains(&b'\r') {
                most = BLOCK_WITH_CR;
            }
            self.chunk.extend(chunk);
        }
        Ok((&self.chunk, false))
    }

    /// Bytes that were taken from it so far.
    pub fn taken(&self) -> Rc<Cell<u64>> {
        Rc::clone(&self.taken)
    }
}

impl BufRead for Input {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.at == self.chunk.len() {
            match self.chunks.recv_timeout(LOOK_EVERY) {
                Ok(chunk) => {
                    self.chunk = chunk?;
                    self.at = 0;
                }
                Err(RecvTimeoutError::Timeout) if interrupt::pressed() => {
                    // Not `Interrupted`, which readers answer by trying again.
                    return Err(io::Error::other("stopped by Ctrl-C"));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    if self.is_pipe {
                        // Ctrl-C ends the program that writes to it as well, maybe within a record, and may be noted here later.
                        self.is_pipe = false;
                        std::thread::sleep(LOOK_EVERY);
                        if interrupt::pressed() {
                            return Err(io::Error::other("stopped by Ctrl-C"));
                        }
                    }
                    break;
                }
            }
        }
        Ok(&self.chunk[self.at..])
    }

    fn consume(&mut self, bytes: usize) {
        self.at = (self.at + bytes).min(self.chunk.len());
        self.taken.set(self.taken.get() + bytes as u64);
    }
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(buffer)?;
        self.consume(read);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_come_through_in_order() {
        let bytes: Vec<u8> = (0..3 * CHUNK + 7).map(|index| (index % 251) as u8).collect();
        let mut input = Input::of(io::Cursor::new(bytes.clone()), false).ok().unwrap();
        let taken = input.taken();
        let mut found = Vec::new();
        input.read_to_end(&mut found).unwrap();
        assert_eq!(found, bytes);
        assert_eq!(taken.get(), bytes.len() as u64);
    }

    #[test]
    fn the_first_block_is_complete_however_it_comes() {
        /// Gives a byte at a time.
        struct Drops(io::Cursor<Vec<u8>>);
        impl Read for Drops {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let one = buffer.len().min(1);
                self.0.read(&mut buffer[..one])
            }
        }
        let with_cr = [&b"\r"[..], &[b'x'; 3 * BLOCK]].concat();
        for (bytes, block, is_all) in [
            (b"a\t1\nb\t2\n".to_vec(), 4, false),
            (vec![b'x'; 3 * BLOCK], BLOCK, false),
            (b"SQLite".to_vec(), 6, true),
            (Vec::new(), 0, true),
            (with_cr.clone(), with_cr.len(), true),
            ([&with_cr[..], b"\nb\t2\n"].concat(), with_cr.len() + 1, false),
        ] {
            let mut input = Input::of(Drops(io::Cursor::new(bytes.clone())), true).ok().unwrap();
            assert_eq!(input.first_block().unwrap(), (&bytes[..block], is_all));
            let mut found = Vec::new();
            input.read_to_end(&mut found).unwrap();
            assert_eq!(found, bytes);
        }
    }

    #[test]
    fn errors_come_through() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("the tape tore"))
            }
        }
        let mut input = Input::of(Broken, false).ok().unwrap();
        assert_eq!(input.fill_buf().unwrap_err().to_string(), "the tape tore");
    }
}
