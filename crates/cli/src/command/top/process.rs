//! What the operating system knows of the process that writes. Linux only; elsewhere nothing is known.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

/// Ticks of a second in /proc, which are the same on all architectures of Linux.
const TICKS: u64 = 100;
/// Most bytes of the note that are shown: longer ones are of no program of ours.
const NOTE_MAX: u64 = 200;

/// What a process has taken since it began, and its memory now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub processor: Duration,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes that came from the device, and that went to it or will.
    pub read: u64,
    pub written: u64,
}

/// Who has the database open for writing, by its note in `LOCK`, and the number of its process. The note stays when a process is killed, so it
/// counts only if the file is locked; and its number may be another process's by then, or be that of another namespace, as in a container: so
/// it counts only if the kernel says that this process has the lock.
pub(super) fn writer(path: &Path) -> Option<(String, Option<u32>)> {
    let mut file = File::open(path.join("LOCK")).ok()?;
    let mut note = Vec::new();
    file.by_ref().take(NOTE_MAX).read_to_end(&mut note).ok()?;
    let note = String::from_utf8_lossy(&note).trim().to_owned();
    if note.is_empty() {
        return None;
    }
    let id = id_of(&note).filter(|id| has_lock(*id, &file));
    (id.is_some() || is_locked(&file)).then_some((note, id))
}

/// Whether the kernel says that this process has a lock on the file, or on one of the same number elsewhere.
#[cfg(target_os = "linux")]
fn has_lock(id: u32, file: &File) -> bool {
    let Ok(inode) = file.metadata().map(|found| std::os::unix::fs::MetadataExt::ino(&found)) else {
        return false;
    };
    std::fs::read_to_string("/proc/locks").is_ok_and(|locks| is_among(&locks, id, inode))
}

#[cfg(not(target_os = "linux"))]
fn has_lock(_: u32, _: &File) -> bool {
    false
}

/// Whether a line of /proc/locks such as `3: FLOCK  ADVISORY  WRITE 4711 fd:00:9978288 0 EOF` is of this process and file. Those that only read have a lock too.
fn is_among(locks: &str, id: u32, inode: u64) -> bool {
    locks.lines().any(|line| {
        let mut fields = line.split_ascii_whitespace().skip(3);
        let (kind, process, place) = (fields.next(), fields.next(), fields.next());
        let found = place.and_then(|place| place.rsplit(':').next());
        kind == Some("WRITE") && process == Some(&id.to_string()[..]) && found == Some(&inode.to_string()[..])
    })
}

/// Whether somebody has the lock, as far as that can be known. It is taken for a moment where nobody has it: not while somebody writes.
fn is_locked(file: &File) -> bool {
    let is_free = file.try_lock_shared().is_ok();
    if is_free {
        // Else the end of this file's handle does it.
        let _ = file.unlock();
    }
    !is_free
}

/// The process id in a note such as `process 4711, /usr/bin/ships`.
fn id_of(note: &str) -> Option<u32> {
    let digits = note.strip_prefix("process ")?;
    digits.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}

impl Usage {
    pub fn of(id: u32) -> Option<Self> {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/{id}/{name}")).ok();
        let (processor, memory) = parse_stat(&read("stat")?, page_size())?;
        // Only the same user may see this one.
        let (read, written) = read("io").and_then(|text| parse_io(&text)).unwrap_or_default();
        Some(Self { processor, memory, read, written })
    }
}

/// Bytes of a page (4 KiB): what the kernel counts memory in where this program is built for; others are told by nobody without a call.
fn page_size() -> u64 {
    4096
}

/// Processor time and memory of /proc/PID/stat.
fn parse_stat(text: &str, page: u64) -> Option<(Duration, u64)> {
    // The program's name may have blanks and brackets.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let (user, system, pages) = (number(11)?, number(12)?, number(21)?);
    Some((Duration::from_millis((user + system) * 1000 / TICKS), pages * page))
}

/// Bytes read and written of /proc/PID/io.
fn parse_io(text: &str) -> Option<(u64, u64)> {
    let number = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    Some((number("read_bytes:")?, number("write_bytes:")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_read() {
        let stat = "4711 (a (b) c) S 1 4711 4711 0 -1 4194560 9 0 0 0 150 50 0 0 20 0 7 0 123456 1000000 2500 184467 1 1";
        assert_eq!(parse_stat(stat, 4096), Some((Duration::from_secs(2), 2500 * 4096)));
        assert_eq!(parse_stat("4711 (x) S 1", 4096), None);
        let io =
            "rchar: 1\nwchar: 2\nsyscr: 3\nread_bytes: 4096\nwrite_bytes: 8192\ncancelled_write_bytes: 0\n";
        assert_eq!(parse_io(io), Some((4096, 8192)));
        assert_eq!(id_of("process 4711, /usr/bin/ships"), Some(4711));
        assert_eq!((id_of("the harbour master"), id_of("process x")), (None, None));
    }

    #[test]
    fn a_note_that_was_left_counts_for_no_process_that_has_its_number_now() {
        let dir = tempfile::tempdir().unwrap();
        let note = format!("process {}, /usr/bin/ships", std::process::id());
        std::fs::write(dir.path().join("LOCK"), &note).unwrap();
        assert_eq!(writer(dir.path()), None);
        let lock = File::open(dir.path().join("LOCK")).unwrap();
        lock.lock().unwrap();
        let id = cfg!(target_os = "linux").then_some(std::process::id());
        assert_eq!(writer(dir.path()), Some((note, id)));
        // As a process of another namespace names itself: there is such a process, or none.
        for id in [1, u32::MAX] {
            let note = format!("process {id}, /usr/bin/ships");
            std::fs::write(dir.path().join("LOCK"), &note).unwrap();
            assert_eq!(writer(dir.path()), Some((note, None)));
        }
        lock.unlock().unwrap();
        assert_eq!(writer(dir.path()), None);
    }

    #[test]
    fn locks_are_those_of_a_process_and_a_file() {
        let locks = "1: FLOCK  ADVISORY  WRITE 11 fe:00:591 0 EOF\n1: -> FLOCK  ADVISORY  READ 13 fe:00:591 0 EOF\n2: POSIX  ADVISORY  WRITE 12 fe:00:100 0 EOF\n3: FLOCK  ADVISORY  READ 14 fe:00:591 0 EOF\n";
        assert!(is_among(locks, 11, 591) && is_among(locks, 12, 100));
        for (id, inode) in [(1, 591), (11, 91), (12, 591), (13, 591), (14, 591)] {
            assert!(!is_among(locks, id, inode), "{id} {inode}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_takes_something() {
        let usage = Usage::of(std::process::id()).expect("it is there");
        assert!(usage.memory > 1 << 20, "{usage:?}");
    }
}
