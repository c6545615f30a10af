//! Reads a manifest from its beginning to the last whole record.
//!
//! Invariants:
//! 1. At most two windows, one record and the edit in it are in memory at a time, besides the version.
//! 2. The data file's length bounds what is believed: an edit is refused if the file never had room for its nodes and segments. The file
//!    shrinks, but never below what the number of ids of the mapping table asks for ([`least_len`]), which does not go down.

use super::file_name;
use super::format::{
    FILE_HEADER, FileHeader, HeaderFlaw, RECORD_HEADER, RECORD_MAGIC, Record, decode_record, record_len,
    says_encrypted,
};
use crate::cache::pager::FILE as DATA_FILE;
use crate::encryption::Encryption;
use crate::error::{Error, Result};
use crate::operation::NUMBER_MAX;
use crate::source::{FileSource, Source, Window};
use crate::storage::data_file::least_len;
use crate::storage::segment::Segment;
use crate::storage::slots::{GRANULE, Slots, granules};
use crate::version::current::{Current, FORMAT_OF_SLOTS};
use crate::version::edit::Edit;
use crate::version::{Tree, Version};
use psync::Volume;
use std::sync::Arc;

/// The result of reading a manifest to its end.
pub(crate) struct Replayed {
    pub version: Version,
    /// Valid bytes.
    pub len: u64,
    pub(super) checkpoint_len: u64,
    /// Whether an incomplete record follows them.
    pub torn: bool,
}

/// The record at `offset`, if a whole one begins there.
pub(super) fn read_record<S: Source>(
    window: &mut Window<S>,
    of: (&Current, &Encryption),
    offset: u64,
) -> Result<Option<Record>> {
    let Some(len) = record_len(window.get(offset, RECORD_HEADER)?) else { return Ok(None) };
    if len > window.source.len().saturating_sub(offset) {
        return Ok(None);
    }
    let mut bytes = Vec::from(window.copy(offset, len as usize)?);
    Ok(decode_record(of, offset, &mut bytes))
}

/// Whether the manifest of this number begins with a record that is encrypted.
pub(crate) fn is_encrypted(volume: &dyn Volume, number: u64) -> Result<bool> {
    let source = match FileSource::open(volume, &file_name(number)) {
        Err(psync::Error::NotFound { .. }) => return Ok(false),
        opened => opened?,
    };
    Ok(says_encrypted(Window::new(source).get(FILE_HEADER as u64, RECORD_HEADER)?))
}

/// The file of the manifest that `current` names.
fn source<'a>(volume: &'a dyn Volume, current: &Current) -> Result<FileSource<'a>> {
    found(current, FileSource::open(volume, &file_name(current.manifest)))
}

/// The same, to read what the device has of it.
pub(crate) fn source_direct<'a>(volume: &'a dyn Volume, current: &Current) -> Result<FileSource<'a>> {
    found(current, FileSource::open_direct(volume, &file_name(current.manifest)))
}

fn found<'a>(current: &Current, opened: psync::Result<FileSource<'a>>) -> Result<FileSource<'a>> {
    opened.map_err(|error| match error {
        psync::Error::NotFound { .. } => {
            let name = file_name(current.manifest);
            Error::corrupt(name, 0, "the manifest that CURRENT names is missing", "a file", "none")
        }
        other => other.into(),
    })
}

/// Reads the manifest that `current` names up to the edit that made `epoch`, or to the end of its checkpoint, while others append to
/// it.
pub(crate) fn replay_until(
    volume: &dyn Volume,
    of: (&Current, &Encryption),
    data_len: u64,
    slots: &Arc<Slots>,
    epoch: u64,
) -> Result<Replayed> {
    decode_until(source(volume, of.0)?, of, data_len, slots, Some(epoch))
}

/// Goes on behind what was read of a manifest, up to the edit that made `epoch`: applies edits to `version`. Returns where it ended.
pub(crate) fn replay_on(
    volume: &dyn Volume,
    (current, encryption, mut at): (&Current, &Encryption, u64),
    data_len: u64,
    slots: &Arc<Slots>,
    (version, epoch): (&mut Version, u64),
) -> Result<u64> {
    let mut window = Window::new(source(volume, current)?);
    while version.epoch < epoch
        && let Some(record) = read_record(&mut window, (current, encryption), at)?
    {
        let (len, expected) = (record.len, version.epoch + 1);
        apply(record, at, expected, (current, data_len, slots), version)?;
        at += len;
    }
    Ok(at)
}

/// Reads the manifest that `current` names. Its segments get their slots from `slots`.
pub(crate) fn replay(
    volume: &dyn Volume,
    of: (&Current, &Encryption),
    data_len: u64,
    slots: &Arc<Slots>,
) -> Result<Replayed> {
    decode(source(volume, of.0)?, of, data_len, slots)
}

/// Checks that the numbers of an edit are no absurd ones: nodes for which the data file, which is cut off only so far
/// ([`least_len`]), has no room, and segments whose positions are not numbers. The error: the length that it would need,
/// and for what.
fn within_bounds(edit: &Edit, span: u64, data_len: u64) -> std::result::Result<(), (u64, String)> {
    if let Some((id, _)) = edit.set.iter().find(|(id, _)| least_len(id.0.saturating_add(1)) > data_len) {
        return Err((least_len(id.0.saturating_add(1)), format!("node {}", id.0)));
    }
    let is_absurd = |number: u64| number >= u64::MAX / span / 2;
    if let Some((number, start)) = edit.segments.iter().find(|(number, _)| is_absurd(*number)) {
        let what = format!("segment {number} at granule {start}");
        return Err((number.saturating_mul(span), what));
    }
    match edit.open_segment.filter(|number| is_absurd(*number)) {
        Some(number) => Err((number.saturating_mul(span), format!("open segment {number}"))),
        None => Ok(()),
    }
}

/// Checks the same of the segments and trees of the version that results: those before it may have been larger.
fn has_room(version: &Version, data_len: u64) -> std::result::Result<(), (u64, String)> {
    let trees = version.trees.iter().chain(version.dropped.iter()).map(|(_, tree)| tree);
    let least = |tree: &Tree| tree.bytes.max(tree.len.div_ceil(RECORDS_PER_BYTE));
    if let Some(tree) = trees.into_iter().find(|tree| least(tree) > data_len) {
        // Those of chunks of large values have names of their own.
        let name = tree.name.trim_start_matches(char::is_control);
        let what = format!("{} records, {} bytes, in keyspace {name:?}", tree.len, tree.bytes);
        return Err((least(tree), what));
    }
    let begun = data_len.div_ceil(GRANULE) + GRANULES_BEGUN;
    match version.segments.iter().find(|entry| u64::from(entry.segment.start) >= begun) {
        Some(entry) => {
            let what = format!("segment {} at granule {}", entry.segment.number, entry.segment.start);
            Err((entry.segment.offset(), what))
        }
        None => Ok(()),
    }
}

/// No more records (count) take a byte of the data file: a compressed node has 48 bytes at least, and a node with more than one
/// record becomes 256 KiB at most in memory, of which a record takes three at least.
const RECORDS_PER_BYTE: u64 = 4096;

/// Granules behind the end of the data file at which segments may have been begun: of a thousand segments of 1 GiB.
const GRANULES_BEGUN: u64 = 1 << 24;

/// Applies an edit, the one at byte `offset` of the manifest, which makes the version of epoch `expected`. Returns where in the data file
/// the last of the segments ends that it writes to.
pub(super) fn apply(
    record: Record,
    offset: u64,
    expected: u64,
    (current, data_len, slots): (&Current, u64, &Arc<Slots>),
    version: &mut Version,
) -> Result<u64> {
    let name = &*file_name(current.manifest);
    if record.epoch != expected {
        return Err(Error::corrupt(name, offset, "epoch of an edit", expected, record.epoch));
    }
    let mut edit = record.edit.map_err(|section| {
        Error::corrupt(name, offset, "payload of an edit", "a whole edit", format!("a bad {section}"))
    })?;
    if current.format == FORMAT_OF_SLOTS {
        let slot = granules(current.span);
        edit.segments.iter_mut().for_each(|(_, start)| *start = start.saturating_mul(slot));
    }
    within_bounds(&edit, current.span, data_len).map_err(|(needed, what)| {
        let expected = format!("room for {what} of {name}, byte {offset}: at least {needed} bytes");
        Error::corrupt(DATA_FILE, data_len, "length of the data file", expected, data_len)
    })?;
    version
        .apply(&edit, &mut |number, start| Ok(Segment::found(number, start, slots)))
        .map_err(|why| Error::corrupt(name, offset, "an edit does not fit", "a consistent edit", why))?;
    version.epoch = expected;
    let written = edit.used.iter().filter_map(|(number, _)| version.segments.get(*number));
    Ok(written.map(|entry| entry.segment.offset() + entry.used).max().unwrap_or(0))
}

/// Reads a manifest from its `source`, as [`replay`] does. The data file's length bounds what is believed: see
/// `within_bounds` and `has_room`.
pub(crate) fn decode(
    source: impl Source,
    of: (&Current, &Encryption),
    data_len: u64,
    slots: &Arc<Slots>,
) -> Result<Replayed> {
    decode_until(source, of, data_len, slots, None)
}

/// The same, up to the edit that made `until`: what lies behind is not looked at.
fn decode_until(
    source: impl Source,
    of: (&Current, &Encryption),
    data_len: u64,
    slots: &Arc<Slots>,
    until: Option<u64>,
) -> Result<Replayed> {
    let current = of.0;
    let (len, name) = (source.len(), &*file_name(current.manifest));
    let mut window = Window::new(source);
    let damage = |at: u64, what: &str, expected: String, found: String| {
        Err(Error::corrupt(name, at, what, expected, found))
    };
    let header = match FileHeader::decode(window.get(0, FILE_HEADER)?) {
        Ok(header) => header,
        Err(HeaderFlaw::CutOff) => {
            let expected = format!("at least {FILE_HEADER} bytes");
            return damage(0, "length of the manifest", expected, len.to_string());
        }
        Err(HeaderFlaw::Checksum { said, actual }) => {
            return damage(48, "header's checksum", format!("{said:08x}"), format!("{actual:08x}"));
        }
    };
    let FileHeader { format, database, number, epoch } = header;
    if format != current.format {
        return damage(8, "format version", current.format.to_string(), format.to_string());
    }
    if database != current.database {
        return damage(12, "database id", current.database.to_string(), database.to_string());
    }
    if epoch >= NUMBER_MAX {
        let expected = format!("less than {NUMBER_MAX}");
        return damage(36, "epoch of the checkpoint", expected, epoch.to_string());
    }
    if number != current.manifest {
        return damage(28, "manifest number", current.manifest.to_string(), number.to_string());
    }
    let mut version = Version { epoch, ..Version::empty(current.span) };
    let mut at = FILE_HEADER as u64;
    let (mut checkpoint_len, mut reach) = (None, 0);
    let is_behind = |version: &Version| until.is_some_and(|until| version.epoch >= until);
    while (checkpoint_len.is_none() || !is_behind(&version))
        && let Some(record) = read_record(&mut window, of, at)?
    {
        let expected = if checkpoint_len.is_none() { epoch } else { version.epoch + 1 };
        let (record_len, chained) = (record.len, record.chained);
        reach = reach.max(apply(record, at, expected, (current, data_len, slots), &mut version)?);
        at += record_len;
        if checkpoint_len.is_none() && !chained {
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
    if at < current.manifest_len && until.is_none() {
        let found = format!("whole edits up to byte {at}");
        let expected = format!("whole edits up to byte {}", current.manifest_len);
        return Err(Error::corrupt(name, at, "an edit is damaged or missing", expected, found));
    }
    if until.is_none() {
        refuse_hole(&mut window, at, name, of)?;
    }
    has_room(&version, data_len).map_err(|(needed, what)| {
        let expected = format!("room for {what} of {name}: at least {needed} bytes");
        Error::corrupt(DATA_FILE, data_len, "length of the data file", expected, data_len)
    })?;
    if let Some(entry) = version.segments.iter().find(|entry| entry.live > entry.used) {
        let what = format!("live bytes of segment {}", entry.segment.number);
        return Err(Error::corrupt(name, at, what, format!("at most {}", entry.used), entry.live));
    }
    let mut segments: Vec<_> = version.segments.iter().collect();
    segments.sort_unstable_by_key(|entry| entry.segment.start);
    if let Some(entry) = segments.into_iter().find(|entry| !entry.segment.claim(entry.used)) {
        let what = format!("place of segment {}", entry.segment.number);
        return Err(Error::corrupt(name, at, what, "a place of its own", "one that another segment has"));
    }
    // Perhaps the last edit is lost with the power, and what it dropped is needed again.
    slots.reach(granules(reach.min(data_len)));
    Ok(Replayed { version, len: at, checkpoint_len, torn: at < len })
}

/// An error if a whole record lies behind the first one, at `at`, that is not whole.
fn refuse_hole<S: Source>(
    window: &mut Window<S>,
    at: u64,
    name: &str,
    of: (&Current, &Encryption),
) -> Result<()> {
    let mut from = at + 1;
    while let Some(later) = window.find(RECORD_MAGIC, from)? {
        if read_record(window, of, later)?.is_some() {
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
    use crate::database_id::DatabaseId;
    use crate::operation::KeyspaceId;
    use crate::source::WINDOW_LEN;
    use crate::version::Tree;
    use crate::version::current::FORMAT;
    use crate::version::manifest::format::{FileHeader, encode_record};

    const CURRENT: Current = Current {
        format: FORMAT,
        database: DatabaseId(*b"the right forest"),
        manifest: 3,
        span: 1 << 20,
        manifest_len: 0,
    };

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
        let (mut bytes, mut ends) = (FileHeader::of(&CURRENT, 0).encode(), Vec::new());
        for (epoch, count) in trees.iter().enumerate() {
            let tree = Tree { len: epoch as u64, ..Tree::empty("x".repeat(255).into()) };
            let trees = (0..*count).map(|id| (KeyspaceId(id), tree.clone())).collect();
            let edit = Edit { trees, ..Edit::default() };
            let record =
                encode_record((&CURRENT, &Encryption::NONE), bytes.len() as u64, epoch as u64, false, &edit);
            bytes.extend(record.expect("a record that is not too long"));
            ends.push(bytes.len());
        }
        (bytes, ends)
    }

    /// Positions in the segments that would be begun next would not be numbers.
    #[test]
    fn absurd_numbers_of_segments_are_refused() {
        let last = u64::MAX / CURRENT.span / 2;
        let with = |edit: &Edit| {
            let mut bytes = FileHeader::of(&CURRENT, 0).encode();
            bytes.extend(
                encode_record((&CURRENT, &Encryption::NONE), bytes.len() as u64, 0, false, edit)
                    .expect("a short record"),
            );
            read(&bytes).map(drop)
        };
        for (number, is_sound) in [(last - 1, true), (last, false), ((1 << 62) - 1, false)] {
            for edit in [
                Edit { open_segment: Some(number), ..Edit::default() },
                Edit { segments: vec![(number, 0)], open_segment: Some(0), ..Edit::default() },
            ] {
                match with(&edit) {
                    Ok(()) => assert!(is_sound, "{edit:?}"),
                    Err(error) => assert!(!is_sound && error.to_string().contains("segment"), "{error}"),
                }
            }
        }
    }

    /// Slots of the older format are as long as the span.
    #[test]
    fn segments_of_the_format_of_slots_are_where_they_were() {
        let of = |current: &Current, segments| {
            let used = vec![(1, 1 << 20), (2, 70_000)];
            let edit = Edit { segments, used, open_segment: Some(1), ..Edit::default() };
            let mut bytes = FileHeader::of(current, 0).encode();
            bytes.extend(
                encode_record((current, &Encryption::NONE), bytes.len() as u64, 0, false, &edit)
                    .expect("a record"),
            );
            let slots = Arc::default();
            let replayed = decode(Portions(&bytes), (current, &Encryption::NONE), 1 << 30, &slots)?;
            let offsets = replayed.version.segments.iter().map(|entry| entry.segment.offset());
            Ok::<_, Error>((offsets.collect::<Vec<_>>(), slots.used(), slots.dirty_count()))
        };
        let old = Current { format: FORMAT_OF_SLOTS, ..CURRENT };
        assert_eq!(of(&old, vec![(1, 5), (2, 3)]).expect("sound"), (vec![5 << 20, 3 << 20], 18, 5 * 16 - 2));
        assert_eq!(of(&CURRENT, vec![(1, 5), (2, 3)]).expect("sound"), (vec![5 << 16, 3 << 16], 18, 3));
        for current in [&old, &CURRENT] {
            let told = of(current, vec![(1, 5), (2, 5)]).expect_err("twice").to_string();
            assert!(told.contains("another segment"), "{told}");
        }
        assert!(of(&CURRENT, vec![(1, 5), (2, 4)]).is_err(), "two granules, the second of which is taken");
    }

    fn read(bytes: &[u8]) -> Result<Replayed> {
        decode(Portions(bytes), (&CURRENT, &Encryption::NONE), 1 << 30, &Arc::default())
    }

    /// Records of all lengths, across the ends of windows and longer than one. All are read, with no more
    /// than two windows in memory at a time; one that is cut off at the end is torn; one that is damaged
    /// before a whole one is damage.
    #[test]
    fn a_manifest_longer_than_a_window_is_read_in_portions() {
        let trees = [10, 3_000, 500, 5_000, 1, 700, 900, 1, 1_400, 800, 2_900, 3_100, 2];
        let (bytes, ends) = manifest(&trees);
        assert!(bytes.len() > 4 * WINDOW_LEN);
        let replayed = read(&bytes).expect("a whole manifest");
        assert_eq!((replayed.version.epoch, replayed.torn), (trees.len() as u64 - 1, false));
        assert_eq!((replayed.len, replayed.checkpoint_len), (bytes.len() as u64, ends[0] as u64));
        assert_eq!(replayed.version.trees.get(&KeyspaceId(3_050)).unwrap().len, 11);
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
