//! The manifest of a backup: which blobs it consists of. It is written last; a blob that no manifest names belongs to no backup.
//!
//! ```text
//! content = database_format span epoch seq time copied
//!           version (len crc) log (len crc)
//!           n (segment used parts (to backup len crc)*parts)*n
//!           keys (len crc)          in blobs of formats 2 and 4: the database is encrypted
//!           archive                 in blobs of formats 3 and 4: commits were archived
//! archive = event first+1 last_crc gap n (after from from_time to until gap backup (len crc))*n
//! ```
//! All are varints, except crc, which is 4 bytes. *database_format*: version of the format that the database's files had; *seq*: the
//! newest operation in the backup; *time*: milliseconds since 1970; *copied*: bytes of content that were written for this backup;
//! *len* and *crc*: length of the blob, and the checksum at its end; *used*: bytes of the segment; *to*: where a part ends in the
//! segment, which begins where the one before ends; *backup*: the number of the backup for which it was written. *event*: the next event of
//! keyspaces; *first*: first operation of the last commit, of which *last_crc* (4 bytes) is the checksum; 0 in place of first+1: unknown.
//! An archive continues the backup *after*, which ends with the operation *from* at a time, up to the operation *to*, and has all up to
//! the time *until*; *gap*: 0, or why that is not all up to *backup* (1 ingested records, 2 a large value, 3 a keyspace that is
//! not known any more, 4 the log was not kept).
//!
//! Invariants:
//! 1. Segments ascend, and the parts of each cover it from its first byte to its last, without gap.
//! 2. Decoding allocates nothing that the input does not justify.

use super::blob::{Header, Kind, Seal};
use super::name::BlobName;
use crate::bytecode::{Reader, put_varint};
use crate::database_id::DatabaseId;
use crate::operation::{NUMBER_MAX, SeqNo};
use serde::Serialize;
use std::fmt;

/// Why moments before a backup cannot be restored, or not all of them: what its [archive](crate::backup::Backup::archive_log) has not.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::builder().keep_changes(1 << 20).open(dir.path().join("ships.db"))?;
/// use sapwood::backup::{ArchiveGap, Directory};
///
/// let target = Directory::open(dir.path().join("backups"))?;
/// db.backup().archive_log().run(&target)?;
/// db.keyspace("ships")?.ingest([("fram", "1892")])?;
/// let taken = db.backup().archive_log().run(&target)?;
/// assert_eq!(taken.archive.and_then(|archive| archive.gap), Some(ArchiveGap::Ingested));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub enum ArchiveGap {
    /// Records were [ingested](crate::Keyspace::ingest): they are in no log.
    Ingested,
    /// A [large value](crate::LargeValues) was written: it is in no log.
    LargeValue,
    /// A keyspace with a [merge operator](crate::merge) was created and dropped since the backup before: its operator is not known.
    DroppedKeyspace,
    /// The log was not [kept](crate::Builder::keep_changes) for as long as since the backup before, or is not the one that continues it.
    NotKept,
}

impl ArchiveGap {
    pub(super) fn number(self) -> u64 {
        match self {
            Self::Ingested => 1,
            Self::LargeValue => 2,
            Self::DroppedKeyspace => 3,
            Self::NotKept => 4,
        }
    }

    pub(super) fn of(number: u64) -> Option<Self> {
        [Self::Ingested, Self::LargeValue, Self::DroppedKeyspace, Self::NotKept]
            .into_iter()
            .find(|gap| gap.number() == number)
    }
}

impl fmt::Display for ArchiveGap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ingested => "records were ingested, which are in no log",
            Self::LargeValue => "a large value was written, which is in no log",
            Self::DroppedKeyspace => "a keyspace with a merge operator came and went",
            Self::NotKept => {
                "the log was not kept for so long (`sapwood changes --keep`, `Builder::keep_changes`), or another database went on"
            }
        })
    }
}

/// What lies between a backup and the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ArchivePart {
    /// The backup that it continues.
    pub after: u64,
    /// That backup's last operation, ...
    pub from: SeqNo,
    /// ... and its time, in milliseconds since 1970.
    pub from_time: u64,
    /// The last operation that the archive has.
    pub to: SeqNo,
    /// Up to this time everything is in it. If a follower has written it, that is the time of the last commit or event that has one.
    pub until: u64,
    /// Set if that is less than the next backup has.
    pub gap: Option<ArchiveGap>,
    /// The next backup, for which it was written.
    pub backup: u64,
    pub seal: Seal,
}

/// A commit, by which the next archive knows the log again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LastCommit {
    pub first_seq: SeqNo,
    pub crc: u32,
}

/// What a manifest says of archives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Archive {
    /// The next event of keyspaces after the backup.
    pub next_event: u64,
    /// The last commit of the backup; `None`: the log did not have it any more.
    pub last: Option<LastCommit>,
    /// Why there is no archive between the backup before and this one.
    pub gap: Option<ArchiveGap>,
    /// All archives that continue a backup which was there.
    pub parts: Vec<ArchivePart>,
}

/// A part of a segment in a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub from: u64,
    pub to: u64,
    /// The backup for which it was written.
    pub backup: u64,
    pub seal: Seal,
}

/// A segment of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SegmentParts {
    pub segment: u64,
    /// Its bytes.
    pub used: u64,
    pub parts: Vec<Part>,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BackupManifest {
    pub database: DatabaseId,
    pub number: u64,
    pub database_format: u32,
    pub span: u64,
    pub epoch: u64,
    pub seq: u64,
    /// Milliseconds since 1970.
    pub time: u64,
    pub copied: u64,
    pub version: Seal,
    pub log: Seal,
    pub segments: Vec<SegmentParts>,
    /// The keys, if the database is encrypted.
    pub keys: Option<Seal>,
    /// Set if the log is archived.
    pub archive: Option<Archive>,
}

impl BackupManifest {
    pub fn header(&self) -> Header {
        let is_encrypted = self.keys.is_some();
        Header {
            is_encrypted,
            has_archive: self.archive.is_some(),
            kind: Kind::Manifest,
            database: self.database,
            backup: self.number,
            a: 0,
            b: 0,
        }
    }

    /// Bytes of segments.
    pub fn used(&self) -> u64 {
        self.segments.iter().map(|entry| entry.used).sum()
    }

    /// What was archived for it.
    pub fn own_archive(&self) -> Option<&ArchivePart> {
        self.archive.as_ref()?.parts.iter().find(|part| part.backup == self.number)
    }

    /// Up to this time nothing is missing of what archives have that end with it: a follower's backup may lack what is not durable at its time.
    /// Without such archives, that is its own.
    pub fn known_until(&self) -> u64 {
        self.own_archive().filter(|part| part.gap.is_none()).map_or(self.time, |part| part.until)
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for number in
            [u64::from(self.database_format), self.span, self.epoch, self.seq, self.time, self.copied]
        {
            put_varint(&mut out, number);
        }
        put_seal(&mut out, self.version);
        put_seal(&mut out, self.log);
        put_varint(&mut out, self.segments.len() as u64);
        for SegmentParts { segment, used, parts } in &self.segments {
            put_varint(&mut out, *segment);
            put_varint(&mut out, *used);
            put_varint(&mut out, parts.len() as u64);
            for part in parts {
                put_varint(&mut out, part.to);
                put_varint(&mut out, part.backup);
                put_seal(&mut out, part.seal);
            }
        }
        if let Some(keys) = self.keys {
            put_seal(&mut out, keys);
        }
        if let Some(archive) = &self.archive {
            put_archive(&mut out, archive);
        }
        out
    }

    /// Decodes the content of a blob with this header. The error: what is wrong.
    pub fn decode(header: &Header, bytes: &[u8]) -> Result<Self, &'static str> {
        if header.kind != Kind::Manifest {
            return Err("it is no manifest of a backup");
        }
        let mut reader = Reader::new(bytes);
        let mut next = || reader.varint();
        let mut head = || {
            let format = u32::try_from(next()?).ok()?;
            Some((format, next()?, next()?, (next()?, next()?, next()?)))
        };
        let (database_format, span, epoch, (seq, time, copied)) = head().ok_or("it ends too early")?;
        if !span.is_power_of_two() || span > 1 << 40 {
            return Err("the span of segments is no power of two up to 2^40");
        }
        let version = seal(&mut reader).ok_or("it ends within the seal of the version")?;
        let log = seal(&mut reader).ok_or("it ends within the seal of the log")?;
        let count = reader.varint().ok_or("it ends before the segments")?;
        let mut segments: Vec<SegmentParts> = Vec::new();
        for _ in 0..count {
            let entry = segment(&mut reader, span)?;
            if segments.last().is_some_and(|last| last.segment >= entry.segment) {
                return Err("segments do not ascend");
            }
            segments.push(entry);
        }
        let keys = match header.is_encrypted {
            true => Some(seal(&mut reader).ok_or("it ends within the seal of the keys")?),
            false => None,
        };
        let archive = match header.has_archive {
            true => Some(archive(&mut reader).ok_or("archives that are none")?),
            false => None,
        };
        if reader.remaining() > 0 {
            return Err("something lies behind its end");
        }
        let (database, number) = (header.database, header.backup);
        Ok(Self {
            database,
            number,
            database_format,
            span,
            epoch,
            seq,
            time,
            copied,
            version,
            log,
            segments,
            keys,
            archive,
        })
    }
}

fn put_archive(out: &mut Vec<u8>, archive: &Archive) {
    let gap = |gap: Option<ArchiveGap>| gap.map_or(0, ArchiveGap::number);
    put_varint(out, archive.next_event);
    put_varint(out, archive.last.map_or(0, |last| last.first_seq + 1));
    out.extend_from_slice(&archive.last.map_or(0, |last| last.crc).to_le_bytes());
    put_varint(out, gap(archive.gap));
    put_varint(out, archive.parts.len() as u64);
    for part in &archive.parts {
        let ArchivePart { after, from, from_time, to, until, backup, .. } = *part;
        [after, from, from_time, to, until, gap(part.gap), backup]
            .into_iter()
            .for_each(|number| put_varint(out, number));
        put_seal(out, part.seal);
    }
}

fn archive(reader: &mut Reader<'_>) -> Option<Archive> {
    let gap = |number| Some(if number == 0 { None } else { Some(ArchiveGap::of(number)?) });
    let next_event = reader.varint()?;
    let first = reader.varint().filter(|first| *first < NUMBER_MAX)?;
    let crc = reader.u32()?;
    let last = first.checked_sub(1).map(|first_seq| LastCommit { first_seq, crc });
    if last.is_some_and(|last| last.first_seq == 0) || last.is_none() && crc != 0 {
        return None;
    }
    let mut archive = Archive { next_event, last, gap: gap(reader.varint()?)?, parts: Vec::new() };
    for _ in 0..reader.varint()? {
        let mut next = || reader.varint().filter(|number| *number < NUMBER_MAX);
        let (after, from, from_time, to, until) = (next()?, next()?, next()?, next()?, next()?);
        let (gap, backup) = (gap(next()?)?, next()?);
        let seal = seal(reader)?;
        if after >= backup || from > to {
            return None;
        }
        archive.parts.push(ArchivePart { after, from, from_time, to, until, gap, backup, seal });
    }
    Some(archive)
}

fn put_seal(out: &mut Vec<u8>, seal: Seal) {
    put_varint(out, seal.len);
    out.extend_from_slice(&seal.crc.to_le_bytes());
}

fn seal(reader: &mut Reader<'_>) -> Option<Seal> {
    Some(Seal { len: reader.varint()?, crc: reader.u32()? })
}

fn segment(reader: &mut Reader<'_>, span: u64) -> Result<SegmentParts, &'static str> {
    let cut = "it ends within a segment";
    let mut next = || reader.varint().ok_or(cut);
    let (segment, used, count) = (next()?, next()?, next()?);
    if used > span || segment >= u64::MAX / span / 2 {
        return Err("a segment is longer than the span, or its number is absurd");
    }
    let (mut parts, mut from) = (Vec::new(), 0);
    for _ in 0..count {
        let to = reader.varint().ok_or(cut)?;
        let backup = reader.varint().ok_or(cut)?;
        let seal = seal(reader).ok_or(cut)?;
        if to <= from {
            return Err("a part of a segment has no bytes");
        }
        parts.push(Part { from, to, backup, seal });
        from = to;
    }
    if from == used { Ok(SegmentParts { segment, used, parts }) } else { Err("parts do not cover a segment") }
}

/// The blobs that a manifest names.
pub(super) fn named(manifest: &BackupManifest) -> impl Iterator<Item = (BlobName, Seal)> {
    let parts = manifest.archive.iter().flat_map(|archive| &archive.parts);
    needed(manifest).chain(parts.map(|part| (BlobName::Archive(part.backup), part.seal)))
}

/// Those of them that make the database as of the backup.
pub(super) fn needed(manifest: &BackupManifest) -> impl Iterator<Item = (BlobName, Seal)> {
    // Keys first: they are needed for the others.
    let keys = manifest.keys.map(|seal| (BlobName::Keys(manifest.number), seal));
    let own = [
        (BlobName::Version(manifest.number), manifest.version),
        (BlobName::Log(manifest.number), manifest.log),
    ];
    let parts = manifest.segments.iter().flat_map(|entry| {
        entry.parts.iter().map(|part| {
            let (segment, from, to, backup) = (entry.segment, part.from, part.to, part.backup);
            (BlobName::Segment { segment, from, to, backup }, part.seal)
        })
    });
    keys.into_iter().chain(own).chain(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sound() -> BackupManifest {
        let seal = |len| Seal { len, crc: 0x1234_5678 + len as u32 };
        let part = |from, to, backup| Part { from, to, backup, seal: seal(to - from) };
        let segments = vec![
            SegmentParts { segment: 0, used: 0, parts: vec![] },
            SegmentParts { segment: 7, used: 9000, parts: vec![part(0, 4096, 2), part(4096, 9000, 3)] },
        ];
        BackupManifest {
            database: DatabaseId([5; 16]),
            number: 3,
            database_format: 10,
            span: 1 << 20,
            epoch: 77,
            seq: 1000,
            time: 1_700_000_000_000,
            copied: 4904,
            version: seal(500),
            log: seal(90),
            segments,
            keys: None,
            archive: None,
        }
    }

    fn archived() -> Archive {
        let seal = Seal { len: 90, crc: 7 };
        let part = ArchivePart {
            after: 2,
            from: 900,
            from_time: 1_600_000_000_000,
            to: 950,
            until: 1_650_000_000_000,
            gap: Some(ArchiveGap::Ingested),
            backup: 3,
            seal,
        };
        let last = Some(LastCommit { first_seq: 998, crc: 12 });
        Archive { next_event: 5, last, gap: None, parts: vec![ArchivePart { gap: None, ..part }, part] }
    }

    #[test]
    fn what_is_encoded_is_decoded_and_every_cut_is_refused() {
        let sound = sound();
        let archived = BackupManifest { archive: Some(archived()), ..sound.clone() };
        let unknown = Archive { last: None, parts: Vec::new(), ..archived.archive.clone().unwrap() };
        for sound in [
            BackupManifest { keys: Some(sound.log), ..archived.clone() },
            BackupManifest { archive: Some(unknown), ..sound.clone() },
            archived,
            BackupManifest { keys: Some(sound.log), ..sound.clone() },
            sound,
        ] {
            let bytes = sound.encode();
            assert_eq!(BackupManifest::decode(&sound.header(), &bytes), Ok(sound.clone()));
            for len in 0..bytes.len() {
                assert!(BackupManifest::decode(&sound.header(), &bytes[..len]).is_err(), "{len} bytes");
            }
            assert!(BackupManifest::decode(&sound.header(), &[&bytes[..], &[0]].concat()).is_err());
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let refused = |change: &dyn Fn(&mut BackupManifest)| {
            let mut manifest = sound();
            change(&mut manifest);
            BackupManifest::decode(&manifest.header(), &manifest.encode()).is_err()
        };
        assert!(refused(&|it| it.span = 3));
        assert!(refused(&|it| it.segments.swap(0, 1)));
        assert!(refused(&|it| it.segments[1].used += 1));
        assert!(refused(&|it| it.segments[1].parts[0].to = 0));
        assert!(refused(&|it| it.segments[1].segment = u64::MAX / 2));
        let with = |change: &dyn Fn(&mut Archive)| {
            let mut archive = archived();
            change(&mut archive);
            refused(&|it| it.archive = Some(archive.clone()))
        };
        assert!(with(&|it| it.parts[0].backup = 2));
        assert!(with(&|it| it.parts[1].to = 899));
        assert!(with(&|it| it.last = Some(LastCommit { first_seq: 0, crc: 12 })));
        assert!(!with(&|_| {}));
        assert!(!refused(&|_| {}));
    }
}
