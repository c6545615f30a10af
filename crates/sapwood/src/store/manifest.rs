//! The manifest: the log of edits, whose sum is the current version. One record makes a whole flush, collection or
//! rotation of the log happen, atomically.
//!
//! ```text
//! manifest-N = header record*
//!
//! header (52 bytes)                        record
//! offset size                              offset size
//!      0    8  magic "SapMANI\n"                0    4  magic "SapE"
//!      8    4  format version                   4    4  len of the payload
//!     12   16  database id                      8    4  CRC-32C, see below
//!     28    8  manifest number                 12    8  epoch of the version after this edit
//!     36    8  epoch of the checkpoint          20    1  1: the next record belongs to it, else 0
//!     44    4  zero                            21  len  payload: an edit
//!     48    4  CRC-32C of bytes 0..48
//! ```
//! A record's CRC covers database id, manifest number, the record's offset, and its bytes from 12 on: a record of
//! another place, file or database is none.
//!
//! The file begins with a checkpoint (a few edits of one epoch, chained) and grows until another checkpoint is cheaper to keep.
//!
//! Invariants:
//! 1. An edit is durable before the version that it makes is published.
//! 2. After a failed write (a full disk aside) or sync no further edit is accepted: what the file holds is unknown.
//! 3. Reading stops at the first record that is not whole. If a whole one lies behind it, the file is damaged; if not,
//!    the last edit was cut off by a power loss before it was acknowledged.

use crate::bytecode::Reader;
use crate::database_id::DatabaseId;
use crate::error::{Error, Result};
use crate::node::HEADER as NODE_HEADER;
use crate::source::{FileSource, Source, Window};
use crate::store::current::{Current, FORMAT};
use crate::store::edit::Edit;
use crate::store::pager::FILE as DATA_FILE;
use crate::store::segment::{Segment, Slots};
use crate::store::version::Version;
use psync::{Access, FileId, Volume, Write};
use std::sync::Arc;

const FILE_MAGIC: &[u8; 8] = b"SapMANI\n";
const FILE_HEADER: usize = 52;
const RECORD_MAGIC: &[u8; 4] = b"SapE";
const RECORD_HEADER: usize = 21;
/// No edit is longer.
pub(crate) const EDIT_MAX: usize = 64 << 20;
/// Addresses in one record of a checkpoint, which takes 64 KiB of memory on the way there. One of log areas ends after the area with
/// which it is as long; with the hashes of that, it can be 1 MiB and more.
const PORTION: usize = 2 << 10;
/// A manifest shorter than this is not worth a checkpoint.
const CHECKPOINT_MIN: u64 = 1 << 20;

pub(crate) fn file_name(number: u64) -> String {
    format!("manifest-{number:06}")
}

/// The number in a manifest's name.
pub(crate) fn number_of(name: &str) -> Option<u64> {
    let number = name.strip_prefix("manifest-")?.parse().ok()?;
    (file_name(number) == name).then_some(number)
}

/// Appends edits to the manifest.
pub(crate) struct Manifest {
    volume: Arc<dyn Volume>,
    current: Current,
    file: FileId,
    len: u64,
    /// Length of the checkpoint that the file began with.
    checkpoint_len: u64,
    /// How long the file was when there was no space for the next one.
    refused_at: u64,
    bytes_written: u64,
}

impl Manifest {
    /// Begins manifest number `current.manifest` with a checkpoint of `version` and makes it the one that counts.
    pub fn create(volume: Arc<dyn Volume>, current: Current, version: &Version) -> Result<Self> {
        let access = Access { write: true, create: true, ..Access::default() };
        let file = volume.open(&file_name(current.manifest), access)?;
        let mut manifest =
            Self { volume, current, file, len: 0, checkpoint_len: 0, refused_at: 0, bytes_written: 0 };
        let written = manifest.write_checkpoint(version);
        let is_written = written.is_ok();
        match written.and_then(|()| current.store(&*manifest.volume)) {
            Ok(()) => Ok(manifest),
            Err(error) => {
                // Once it is written it may count, unless only space was missing. Best effort: a leftover is removed when the database is
                // opened.
                if !is_written || error.is_disk_full() {
                    let _ = manifest.volume.remove(&file_name(current.manifest));
                }
                Err(error)
            }
        }
    }

    /// Goes on with a manifest that was read to its end.
    pub fn resume(volume: Arc<dyn Volume>, current: Current, replayed: &Replayed) -> Result<Self> {
        let access = Access { write: true, ..Access::default() };
        let file = volume.open(&file_name(current.manifest), access)?;
        Ok(Self {
            volume,
            current,
            file,
            len: replayed.len,
            checkpoint_len: replayed.checkpoint_len,
            refused_at: 0,
            bytes_written: 0,
        })
    }

    fn write_checkpoint(&mut self, version: &Version) -> Result<()> {
        self.volume.resize(self.file, 0)?;
        let header = encode_header(&self.current, version.epoch);
        self.write(&header)?;
        let mut edits = version.checkpoint(PORTION).peekable();
        while let Some(edit) = edits.next() {
            let goes_on = edits.peek().is_some();
            let record = encode_record(&self.current, self.len, version.epoch, goes_on, &edit)?;
            self.write(&record)?;
        }
        self.volume.sync(self.file)?;
        self.volume.sync_directory()?;
        self.checkpoint_len = self.len;
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.volume.write(&[Write { file: self.file, offset: self.len, data: bytes }])?;
        self.len += bytes.len() as u64;
        self.bytes_written += bytes.len() as u64;
        Ok(())
    }

    /// Makes an edit durable. `epoch` is that of the version after it. On `DiskFull` nothing happened.
    pub fn append(&mut self, edit: &Edit, epoch: u64) -> Result<()> {
        let record = encode_record(&self.current, self.len, epoch, false, edit)?;
        let before = self.len;
        if let Err(error) = self.write(&record) {
            if error.is_disk_full() {
                // The record may be there nevertheless, and would count after a crash, while the nodes that it speaks of
                // are about to be overwritten by the next attempt. So it has to go, durably.
                let cut = self.volume.resize(self.file, before).and_then(|()| self.volume.sync(self.file));
                cut.map_err(Error::undecided)?;
            }
            return Err(error);
        }
        self.volume.sync(self.file).map_err(Error::undecided)
    }

    /// Whether the file has outgrown its checkpoint so far that a new one is due.
    pub fn checkpoint_due(&self) -> bool {
        // Twice as long: so edits are written once more as part of a checkpoint, and outdated ones take no more space than the table
        // itself. Without space the old file goes on for a good while before another is begun.
        self.len > CHECKPOINT_MIN.max(2 * self.checkpoint_len).max(self.refused_at / 4 * 5)
    }

    /// Replaces the file by a new one that begins with a checkpoint of `version`, which is the current version. On an
    /// error before the switch the old file goes on to count.
    pub fn checkpoint(&mut self, version: &Version) -> Result<()> {
        let old = file_name(self.current.manifest);
        let current = Current { manifest: self.current.manifest + 1, manifest_len: 0, ..self.current };
        let mut next = Self::create(Arc::clone(&self.volume), current, version).inspect_err(|error| {
            if error.is_disk_full() {
                self.refused_at = self.len;
            }
        })?;
        next.bytes_written += self.bytes_written;
        let outdated = std::mem::replace(self, next);
        outdated.volume.close(outdated.file)?;
        self.volume.remove(&old)?;
        Ok(())
    }

    /// Notes in `CURRENT` how long the manifest is now, so that from then on every missing byte of it is noticed.
    pub fn seal(&mut self) -> Result<()> {
        if self.current.manifest_len != self.len {
            let current = Current { manifest_len: self.len, ..self.current };
            current.store(&*self.volume)?;
            self.current = current;
        }
        Ok(())
    }

    /// Bytes written since it was opened.
    pub fn bytes_written(&self) -> u64 {
        self.bytes_written
    }

    /// What `CURRENT` says now.
    pub fn current(&self) -> Current {
        self.current
    }
}

impl Drop for Manifest {
    fn drop(&mut self) {
        // All that counts is synced; a file that cannot be closed is nobody's loss.
        let _ = self.volume.close(self.file);
    }
}

fn encode_header(current: &Current, epoch: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(FILE_HEADER);
    out.extend_from_slice(FILE_MAGIC);
    out.extend_from_slice(&FORMAT.to_le_bytes());
    out.extend_from_slice(&current.database.0);
    out.extend_from_slice(&current.manifest.to_le_bytes());
    out.extend_from_slice(&epoch.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    let crc = crc32c::crc32c(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    out
}

fn encode_record(current: &Current, offset: u64, epoch: u64, chained: bool, edit: &Edit) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(256);
    out.extend_from_slice(RECORD_MAGIC);
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&epoch.to_le_bytes());
    out.push(u8::from(chained));
    edit.encode(&mut out);
    let payload_len = out.len() - RECORD_HEADER;
    if payload_len > EDIT_MAX {
        return Err(Error::BatchTooLarge { len: payload_len, max: EDIT_MAX });
    }
    out[4..8].copy_from_slice(&(payload_len as u32).to_le_bytes());
    let crc = record_checksum(current, offset, &out);
    out[8..12].copy_from_slice(&crc.to_le_bytes());
    Ok(out)
}

fn record_checksum(current: &Current, offset: u64, record: &[u8]) -> u32 {
    let mut crc = crc32c::crc32c(&current.database.0);
    crc = crc32c::crc32c_append(crc, &current.manifest.to_le_bytes());
    crc = crc32c::crc32c_append(crc, &offset.to_le_bytes());
    crc32c::crc32c_append(crc, &record[12..])
}

/// A manifest of edits whose payloads are pieces of `bytes`, each piece behind its length: for fuzzing.
#[cfg(any(fuzzing, test))]
pub(crate) fn seal(current: &Current, bytes: &[u8]) -> Vec<u8> {
    let mut file = encode_header(current, 0);
    let mut rest = bytes;
    let mut epoch = 0u64;
    while let [len, after @ ..] = rest {
        let (payload, later) = after.split_at(after.len().min(usize::from(*len)));
        rest = later;
        let offset = file.len() as u64;
        let mut record = RECORD_MAGIC.to_vec();
        record.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        record.extend_from_slice(&[0; 4]);
        record.extend_from_slice(&epoch.to_le_bytes());
        record.push(0);
        record.extend_from_slice(payload);
        let crc = record_checksum(current, offset, &record);
        record[8..12].copy_from_slice(&crc.to_le_bytes());
        file.extend_from_slice(&record);
        epoch += 1;
    }
    file
}

/// A manifest that was read to its end.
pub(crate) struct Replayed {
    pub version: Version,
    /// Valid bytes.
    pub len: u64,
    checkpoint_len: u64,
    /// Whether something unfinished follows them.
    pub torn: bool,
}

struct Record {
    epoch: u64,
    chained: bool,
    edit: std::result::Result<Edit, &'static str>,
    len: u64,
}

/// The record at `offset`, if a whole one begins there.
fn read_record<S: Source>(window: &mut Window<S>, current: &Current, offset: u64) -> Result<Option<Record>> {
    let Some(len) = record_len(window.get(offset, RECORD_HEADER)?) else { return Ok(None) };
    if len > window.source.len().saturating_sub(offset) {
        return Ok(None);
    }
    let bytes = window.copy(offset, len as usize)?;
    Ok(decode_record(current, offset, &bytes))
}

/// How long the record is that begins with these bytes.
fn record_len(header: &[u8]) -> Option<u64> {
    let mut reader = Reader::new(header);
    if reader.array::<4>()? != *RECORD_MAGIC {
        return None;
    }
    let payload_len = reader.u32()? as usize;
    (payload_len <= EDIT_MAX).then_some((RECORD_HEADER + payload_len) as u64)
}

fn decode_record(current: &Current, offset: u64, bytes: &[u8]) -> Option<Record> {
    let mut reader = Reader::new(bytes);
    let (_magic, _len) = (reader.u32()?, reader.u32()?);
    let crc = reader.u32()?;
    let epoch = reader.u64()?;
    let chained = reader.u8()?;
    if chained > 1 || record_checksum(current, offset, bytes) != crc {
        return None;
    }
    let edit = Edit::decode(&bytes[RECORD_HEADER..]);
    Some(Record { epoch, chained: chained == 1, edit, len: bytes.len() as u64 })
}

/// Reads the manifest that `current` names. `slots` is where its segments get their slots from.
pub(crate) fn replay(
    volume: &dyn Volume,
    current: &Current,
    data_len: u64,
    slots: &Arc<Slots>,
) -> Result<Replayed> {
    let name = file_name(current.manifest);
    let source = FileSource::open(volume, &name).map_err(|error| match error {
        psync::Error::NotFound { .. } => {
            Error::corrupt(&name, 0, "the manifest that CURRENT names is missing", "a file", "none")
        }
        other => other.into(),
    })?;
    decode(source, &name, current, data_len, slots)
}

/// Whether the data file ever had room for what an edit speaks of. If not: how long it would have to be, and for what.
fn within_bounds(edit: &Edit, span: u64, data_len: u64) -> std::result::Result<(), (u64, String)> {
    if let Some((id, _)) = edit.set.iter().find(|(id, _)| id.0 >= data_len / NODE_HEADER as u64) {
        return Err((id.0.saturating_add(1).saturating_mul(NODE_HEADER as u64), format!("node {}", id.0)));
    }
    let slots = data_len / span + SLOTS_BEGUN;
    let outside = |(number, slot): &&(u64, u32)| u64::from(*slot) >= slots || *number >= u64::MAX / span / 2;
    match edit.segments.iter().find(outside) {
        Some((number, slot)) => {
            Err((u64::from(*slot).saturating_mul(span), format!("segment {number} in slot {slot}")))
        }
        None => Ok(()),
    }
}

/// Slots that can have been begun behind the end of the data file.
const SLOTS_BEGUN: u64 = 1 << 16;

/// The decoder proper. The data file's length, which never shrinks, bounds what is believed: so many nodes and segments
/// have there been room for.
pub(crate) fn decode(
    source: impl Source,
    name: &str,
    current: &Current,
    data_len: u64,
    slots: &Arc<Slots>,
) -> Result<Replayed> {
    let len = source.len();
    let mut window = Window::new(source);
    let bytes = window.get(0, FILE_HEADER)?;
    let mut reader = Reader::new(bytes);
    let mut header = || {
        Some((
            reader.array::<8>()?,
            reader.u32()?,
            reader.array::<16>()?,
            reader.u64()?,
            reader.u64()?,
            reader.u32()?,
            reader.u32()?,
        ))
    };
    let Some((magic, format, database, number, epoch, _, crc)) = header() else {
        return Err(Error::corrupt(
            name,
            0,
            "length of the manifest",
            format!("at least {FILE_HEADER} bytes"),
            len,
        ));
    };
    let actual = crc32c::crc32c(&bytes[..FILE_HEADER - 4]);
    if magic != *FILE_MAGIC || actual != crc {
        return Err(Error::corrupt(
            name,
            48,
            "header's checksum",
            format!("{crc:08x}"),
            format!("{actual:08x}"),
        ));
    }
    if format != FORMAT {
        return Err(Error::corrupt(name, 8, "format version", FORMAT, format));
    }
    if database != current.database.0 {
        return Err(Error::corrupt(name, 12, "database id", current.database, DatabaseId(database)));
    }
    if number != current.manifest {
        return Err(Error::corrupt(name, 28, "manifest number", current.manifest, number));
    }
    let mut version = Version { epoch, ..Version::empty(current.span) };
    let mut at = FILE_HEADER as u64;
    let mut checkpoint_len = None;
    while let Some(record) = read_record(&mut window, current, at)? {
        let offset = at;
        let expected = if checkpoint_len.is_none() { epoch } else { version.epoch + 1 };
        if record.epoch != expected {
            return Err(Error::corrupt(name, offset, "epoch of an edit", expected, record.epoch));
        }
        let edit = record.edit.map_err(|section| {
            Error::corrupt(name, offset, "payload of an edit", "a whole edit", format!("a bad {section}"))
        })?;
        within_bounds(&edit, current.span, data_len).map_err(|(needed, what)| {
            let expected = format!("room for {what} of {name}, byte {offset}: at least {needed} bytes");
            Error::corrupt(DATA_FILE, data_len, "length of the data file", expected, data_len)
        })?;
        let mut claim = |number, slot| {
            if slots.claim(slot) {
                Ok(Segment::new(number, slot, slots))
            } else {
                Err("a slot was given to two segments")
            }
        };
        version
            .apply(&edit, &mut claim)
            .map_err(|why| Error::corrupt(name, offset, "an edit does not fit", "a consistent edit", why))?;
        version.epoch = expected;
        at += record.len;
        if checkpoint_len.is_none() && !record.chained {
            checkpoint_len = Some(at);
        }
    }
    let Some(checkpoint_len) = checkpoint_len else {
        return Err(Error::corrupt(
            name,
            at,
            "the checkpoint at the beginning",
            "a whole one",
            "a part of one",
        ));
    };
    if at < current.manifest_len {
        let found = format!("whole edits up to byte {at}");
        let expected = format!("whole edits up to byte {}", current.manifest_len);
        return Err(Error::corrupt(name, at, "an edit is damaged or missing", expected, found));
    }
    refuse_hole(&mut window, at, name, current)?;
    version.table.rebuild_free();
    Ok(Replayed { version, len: at, checkpoint_len, torn: at < len })
}

/// Damage if a whole record lies behind the first one, at `at`, that is not whole.
fn refuse_hole<S: Source>(window: &mut Window<S>, at: u64, name: &str, current: &Current) -> Result<()> {
    let mut from = at + 1;
    while let Some(later) = window.find(RECORD_MAGIC, from)? {
        if read_record(window, current, later)?.is_some() {
            let found = format!("one that is not, and a whole one at byte {later}");
            return Err(Error::corrupt(
                name,
                at,
                "an edit in the middle is damaged",
                "a whole record",
                found,
            ));
        }
        from = later + 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::KeyspaceId;
    use crate::source::WINDOW_LEN;
    use crate::store::version::Tree;

    const CURRENT: Current =
        Current { database: DatabaseId(*b"the right forest"), manifest: 3, span: 1 << 20, manifest_len: 0 };

    /// A file in memory that is read in portions.
    struct Portions<'a>(&'a [u8]);

    impl Source for Portions<'_> {
        fn len(&self) -> u64 {
            Source::len(&self.0)
        }

        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
            assert!(buffer.len() <= 2 * WINDOW_LEN, "{} bytes at once", buffer.len());
            self.0.read_at(offset, buffer)
        }
    }

    /// A manifest of so many edits, the `index`th of which has `trees[index]` trees; and where its records end.
    fn manifest(trees: &[u32]) -> (Vec<u8>, Vec<usize>) {
        let (mut bytes, mut ends) = (encode_header(&CURRENT, 0), Vec::new());
        for (epoch, count) in trees.iter().enumerate() {
            let tree = Tree { name: "x".repeat(255).into(), root: None, height: 0, len: epoch as u64 };
            let trees = (0..*count).map(|id| (KeyspaceId(id), tree.clone())).collect();
            let edit = Edit { trees, ..Edit::default() };
            let record = encode_record(&CURRENT, bytes.len() as u64, epoch as u64, false, &edit);
            bytes.extend(record.expect("a record that is not too long"));
            ends.push(bytes.len());
        }
        (bytes, ends)
    }

    fn read(bytes: &[u8]) -> Result<Replayed> {
        decode(Portions(bytes), "manifest-000003", &CURRENT, 0, &Arc::default())
    }

    /// Records of all lengths, across the ends of windows and longer than one: all are read, no more than two windows' worth at a time;
    /// one that is cut off at the end is torn; one that is damaged before a whole one is damage.
    #[test]
    fn a_manifest_longer_than_a_window_is_read_in_portions() {
        let trees = [10, 3_000, 500, 5_000, 1, 700, 900, 1, 1_400, 800, 2_900, 3_100, 2];
        let (bytes, ends) = manifest(&trees);
        assert!(bytes.len() > 4 * WINDOW_LEN);
        let replayed = read(&bytes).expect("a whole manifest");
        assert_eq!((replayed.version.epoch, replayed.torn), (trees.len() as u64 - 1, false));
        assert_eq!((replayed.len, replayed.checkpoint_len), (bytes.len() as u64, ends[0] as u64));
        assert_eq!(replayed.version.trees[&KeyspaceId(3_050)].len, 11);
        for (epoch, end) in ends.iter().enumerate().skip(1) {
            let begin = ends[epoch - 1];
            for cut in [begin + 1, begin + RECORD_HEADER, begin.midpoint(*end), end - 1] {
                let replayed = read(&bytes[..cut]).expect("a manifest cut off");
                let found = (replayed.version.epoch, replayed.len, replayed.torn);
                assert_eq!(found, (epoch as u64 - 1, begin as u64, true), "cut at {cut}");
            }
            for at in [begin, begin + 7, begin + RECORD_HEADER, begin.midpoint(*end), end - 1] {
                let mut bytes = bytes.clone();
                bytes[at] ^= 0x10;
                match read(&bytes) {
                    Ok(replayed) => assert_eq!((replayed.len, epoch), (begin as u64, trees.len() - 1)),
                    Err(error) => assert!(error.to_string().contains("an edit in the middle"), "{error}"),
                }
            }
        }
    }
}
