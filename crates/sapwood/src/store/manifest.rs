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
//! The file begins with a checkpoint (a few edits of one epoch, chained) and grows until another checkpoint is cheaper to keep. That is written to the [`next`] file, a part with
//! each edit, while this one goes on to count.
//!
//! Invariants:
//! 1. An edit is durable before the version that it makes is published.
//! 2. After a failed write (a full disk aside) or sync no further edit is accepted, whoever waited for his turn with it: what the file holds is unknown, and which one
//!    counts may be.
//! 3. Reading stops at the first record that is not whole. If a whole one lies behind it, the file is damaged; if not,
//!    the last edit was cut off by a power loss before it was acknowledged.

mod next;

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
use next::Next;
use psync::{Access, FileId, Volume, Write};
use std::sync::Arc;

const FILE_MAGIC: &[u8; 8] = b"SapMANI\n";
const FILE_HEADER: usize = 52;
const RECORD_MAGIC: &[u8; 4] = b"SapE";
const RECORD_HEADER: usize = 21;
/// No edit is longer.
pub(crate) const EDIT_MAX: usize = 64 << 20;
/// A manifest shorter than this is not worth a checkpoint; in unit tests short ones are, so that these see what goes on beside a checkpoint.
const CHECKPOINT_MIN: u64 = if cfg!(test) { 64 << 10 } else { 1 << 20 };
/// Bytes of the next checkpoint that are written with each edit, and how many times as many as the edit has: the manifest does not become much longer before it is
/// replaced, and nobody waits for a whole one, which can be a hundredth of the data.
const STEP: u64 = if cfg!(test) { 32 << 10 } else { 2 << 20 };
const STEPS_OF_EDIT: u64 = 4;
/// A file that is so many times as long as its checkpoint is replaced before the database is closed.
const LONG_DUE: u64 = 4;

pub(crate) fn file_name(number: u64) -> String {
    format!("manifest-{number:06}")
}

/// The number in a manifest's name.
pub(crate) fn number_of(name: &str) -> Option<u64> {
    let number = name.strip_prefix("manifest-")?.parse().ok()?;
    (file_name(number) == name).then_some(number)
}

/// A manifest's file, to whose end records go.
struct Output {
    volume: Arc<dyn Volume>,
    current: Current,
    file: FileId,
    len: u64,
    /// Bytes written since it was opened.
    written: u64,
}

impl Output {
    fn open(volume: Arc<dyn Volume>, current: Current, access: Access, len: u64) -> Result<Self> {
        let file = volume.open(&file_name(current.manifest), Access { write: true, ..access })?;
        Ok(Self { volume, current, file, len, written: 0 })
    }

    fn put(&mut self, epoch: u64, chained: bool, edit: &Edit) -> Result<()> {
        let record = encode_record(&self.current, self.len, epoch, chained, edit)?;
        self.write(&record)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.volume.write(&[Write { file: self.file, offset: self.len, data: bytes }])?;
        self.len += bytes.len() as u64;
        self.written += bytes.len() as u64;
        Ok(())
    }

    fn sync(&self) -> psync::Result<()> {
        self.volume.sync(self.file)
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // All that counts is synced; a file that cannot be closed is nobody's loss.
        let _ = self.volume.close(self.file);
    }
}

/// Appends edits to the manifest.
pub(crate) struct Manifest {
    output: Output,
    /// Length of the checkpoint that the file began with.
    checkpoint_len: u64,
    /// The one that is to replace this one.
    next: Option<Next>,
    /// Why nobody knows what is in the files.
    failed: Option<Error>,
    /// How long the file was when there was no space for the next one.
    refused_at: u64,
    /// Bytes of the last edit.
    edit_len: u64,
    /// Bytes that were written to others since the database was opened.
    before: u64,
}

impl Manifest {
    /// Begins manifest number `current.manifest` with a checkpoint of `version` and makes it the one that counts.
    pub fn create(volume: Arc<dyn Volume>, current: Current, version: &Version) -> Result<Self> {
        let mut next = Next::begin(volume, current, version, 0)?;
        next.go_on(u64::MAX, None)?;
        let (output, checkpoint_len) = next.replace()?;
        Ok(Self::of(output, checkpoint_len))
    }

    /// Goes on with a manifest that was read to its end.
    pub fn resume(volume: Arc<dyn Volume>, current: Current, replayed: &Replayed) -> Result<Self> {
        let output = Output::open(volume, current, Access::default(), replayed.len)?;
        Ok(Self::of(output, replayed.checkpoint_len))
    }

    fn of(output: Output, checkpoint_len: u64) -> Self {
        Self { output, checkpoint_len, next: None, failed: None, refused_at: 0, edit_len: 0, before: 0 }
    }

    /// Makes an edit durable. `epoch` is that of the version after it. On `DiskFull` nothing happened.
    pub fn append(&mut self, edit: &Edit, epoch: u64) -> Result<()> {
        self.unless_failed(|manifest| match manifest.append_once(edit, epoch) {
            Err(error) if error.is_disk_full() && manifest.has_next() => {
                manifest.give_up_for_space();
                manifest.append_once(edit, epoch)
            }
            appended => appended,
        })
    }

    fn append_once(&mut self, edit: &Edit, epoch: u64) -> Result<()> {
        let output = &mut self.output;
        let before = output.len;
        if let Err(error) = output.put(epoch, false, edit) {
            if error.is_disk_full() {
                // The record may be there nevertheless, and would count after a crash, while the nodes that it speaks of
                // are about to be overwritten by the next attempt. So it has to go, durably.
                let cut = output.volume.resize(output.file, before).and_then(|()| output.sync());
                cut.map_err(Error::undecided)?;
            }
            return Err(error);
        }
        self.edit_len = output.len - before;
        output.sync().map_err(Error::undecided)
    }

    /// What is done as long as everybody knows what is in the files. Who waited for the manifest while somebody else failed with it does not know of that otherwise.
    fn unless_failed(&mut self, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        work(self).inspect_err(|error| {
            if !error.is_disk_full() {
                self.failed = Some(error.clone());
            }
        })
    }

    /// Whether the file has outgrown its checkpoint so far that a new one is due.
    fn is_checkpoint_due(&self) -> bool {
        // Twice as long: so edits are written once more as part of a checkpoint, and outdated ones take no more space than the table
        // itself. Without space the old file goes on for a good while before another is begun.
        self.output.len > CHECKPOINT_MIN.max(2 * self.checkpoint_len).max(self.refused_at / 4 * 5)
    }

    /// After an edit that has made `version`, which is the current version: sees to it that the file is replaced by a new one that begins with a
    /// checkpoint, when that is due, a part of it at a time. On an error before the switch the old file goes on to count.
    pub fn renew(&mut self, version: &Version) -> Result<()> {
        self.unless_failed(|manifest| {
            if manifest.next.is_none() && manifest.is_checkpoint_due() {
                manifest.next = Some(manifest.begin_next(version)?);
            }
            manifest.go_on(version, STEP.max(STEPS_OF_EDIT * manifest.edit_len))
        })
    }

    fn begin_next(&mut self, version: &Version) -> Result<Next> {
        let current = self.output.current;
        let current = Current { manifest: current.manifest + 1, manifest_len: 0, ..current };
        let next = Next::begin(Arc::clone(&self.output.volume), current, version, self.output.len);
        next.inspect_err(|error| self.note_refusal(error))
    }

    /// Writes about so many bytes to the next one, if there is one, and lets it count when it has all. One that could not go on is given up.
    fn go_on(&mut self, version: &Version, bytes: u64) -> Result<()> {
        let Some(mut next) = self.next.take() else { return Ok(()) };
        let mut went_on = next.go_on(bytes, Some(&self.output));
        if let Err(error) = &went_on
            && !error.is_disk_full()
        {
            // Perhaps it was this file that could not be read. What it says is in the version too.
            tracing::warn!(%error, "the next manifest is begun again");
            self.before += next.bytes_written();
            drop(next);
            next = self.begin_next(version)?;
            went_on = next.go_on(u64::MAX, Some(&self.output));
        }
        let written = next.bytes_written();
        match went_on {
            Ok(true) => self.change_over(next),
            Ok(false) => {
                self.next = Some(next);
                Ok(())
            }
            Err(error) => {
                self.before += written;
                self.note_refusal(&error);
                Err(error)
            }
        }
    }

    fn note_refusal(&mut self, error: &Error) {
        if error.is_disk_full() {
            self.refused_at = self.output.len;
        }
    }

    /// Whether another one is on its way.
    pub fn has_next(&self) -> bool {
        self.next.is_some()
    }

    /// What was begun is given up: for whoever needs its space, as if there had been none for it.
    pub fn give_up_for_space(&mut self) {
        if self.has_next() {
            self.give_up_next();
            self.refused_at = self.output.len;
        }
    }

    fn give_up_next(&mut self) {
        self.before += self.next.take().map_or(0, |next| next.bytes_written());
    }

    /// The next one, which has all that this one has, comes in the place of it.
    fn change_over(&mut self, next: Next) -> Result<()> {
        self.before += next.bytes_written();
        let (output, checkpoint_len) = next.replace().inspect_err(|error| self.note_refusal(error))?;
        let output = std::mem::replace(&mut self.output, output);
        self.before += output.written;
        self.output.written = 0;
        (self.checkpoint_len, self.refused_at) = (checkpoint_len, 0);
        let (volume, old) = (Arc::clone(&output.volume), file_name(output.current.manifest));
        drop(output);
        Ok(volume.remove(&old)?)
    }

    /// Whether this manifest, or the next one, is in the file of this number.
    pub fn needs(&self, number: u64) -> bool {
        let current = self.output.current.manifest;
        number == current || (self.has_next() && number == current + 1)
    }

    /// Notes in `CURRENT` how long the manifest is now, so that from then on every missing byte of it is noticed. A checkpoint that was begun is given up, unless
    /// it was long due: who opens and closes often would never come to its end.
    pub fn seal(&mut self, version: &Version) -> Result<()> {
        let is_long_due = self.output.len > LONG_DUE * self.checkpoint_len.max(CHECKPOINT_MIN);
        match self.unless_failed(|it| if is_long_due { it.go_on(version, u64::MAX) } else { Ok(()) }) {
            Err(error) if error.is_disk_full() => {}
            changed => changed?,
        }
        self.give_up_next();
        let Output { current, len, ref volume, .. } = self.output;
        if current.manifest_len != len {
            let current = Current { manifest_len: len, ..current };
            current.store(&**volume)?;
            self.output.current = current;
        }
        Ok(())
    }

    /// Bytes written since it was opened.
    pub fn bytes_written(&self) -> u64 {
        self.before + self.output.written + self.next.as_ref().map_or(0, Next::bytes_written)
    }

    /// What `CURRENT` says now.
    pub fn current(&self) -> Current {
        self.output.current
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
