//! The file format of a manifest.
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
//!     36    8  epoch of the checkpoint          20    1  1: the next record belongs to it, else 0; and 2 if it is encrypted
//!     44    4  zero                            21  len  payload: an edit, which may be encrypted
//!     48    4  CRC-32C of bytes 0..48
//! ```
//! A record's CRC covers database id, manifest number, the record's offset, and its bytes from 12 on, so a
//! record of another place, file or database is not accepted. The context of its encryption ([`crate::encryption`])
//! is the same without the payload.

use crate::bytecode::Reader;
use crate::database_id::DatabaseId;
use crate::encryption::{Encryption, TRAILER};
use crate::error::{Error, Result};
use crate::version::current::Current;
use crate::version::edit::Edit;

pub(super) const FILE_MAGIC: &[u8; 8] = b"SapMANI\n";
/// Bytes of the header of a file, as the format has it.
pub(super) const FILE_HEADER: usize = 52;
pub(super) const RECORD_MAGIC: &[u8; 4] = b"SapE";
/// Bytes of the header of a record, as the format has it.
pub(super) const RECORD_HEADER: usize = 21;
/// Greatest length of an edit, in bytes: a longer one is refused when read, so that damage costs no memory.
pub(crate) const EDIT_MAX: usize = 64 << 20;

/// The header of a file.
pub(super) struct FileHeader {
    pub format: u32,
    pub database: DatabaseId,
    pub number: u64,
    /// That of the version that the checkpoint behind it has.
    pub epoch: u64,
}

/// Why bytes are no header.
pub(super) enum HeaderFlaw {
    CutOff,
    Checksum { said: u32, actual: u32 },
}

impl FileHeader {
    /// That of the manifest of `current`.
    pub fn of(current: &Current, epoch: u64) -> Self {
        Self { format: current.format, database: current.database, number: current.manifest, epoch }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(FILE_HEADER);
        out.extend_from_slice(FILE_MAGIC);
        out.extend_from_slice(&self.format.to_le_bytes());
        out.extend_from_slice(&self.database.0);
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.epoch.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        let crc = crc32c::crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// What `encode` made, at the beginning of these bytes.
    pub fn decode(bytes: &[u8]) -> std::result::Result<Self, HeaderFlaw> {
        let mut reader = Reader::new(bytes);
        let mut fields = || {
            let magic = reader.array::<8>()?;
            let (format, database) = (reader.u32()?, DatabaseId(reader.array()?));
            let header = Self { format, database, number: reader.u64()?, epoch: reader.u64()? };
            Some((magic, header, reader.u32()?, reader.u32()?))
        };
        let (magic, header, _, said) = fields().ok_or(HeaderFlaw::CutOff)?;
        let actual = crc32c::crc32c(&bytes[..FILE_HEADER - 4]);
        if magic != *FILE_MAGIC || actual != said {
            return Err(HeaderFlaw::Checksum { said, actual });
        }
        Ok(header)
    }
}

/// Tags of the format: bits of byte 20.
const CHAINED: u8 = 1;
const ENCRYPTED: u8 = 2;

/// The context of a record's encryption.
fn context(current: &Current, offset: u64, record: &[u8]) -> Vec<u8> {
    let mut context = current.database.0.to_vec();
    context.extend_from_slice(&current.manifest.to_le_bytes());
    context.extend_from_slice(&offset.to_le_bytes());
    context.extend_from_slice(&record[12..RECORD_HEADER]);
    context
}

pub(super) fn encode_record(
    (current, encryption): (&Current, &Encryption),
    offset: u64,
    epoch: u64,
    chained: bool,
    edit: &Edit,
) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(256);
    out.extend_from_slice(RECORD_MAGIC);
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&epoch.to_le_bytes());
    out.push(u8::from(chained) * CHAINED + u8::from(encryption.is_on()) * ENCRYPTED);
    edit.encode(&mut out);
    let context = context(current, offset, &out);
    encryption.encrypt(&context, &mut out, RECORD_HEADER);
    let payload_len = out.len() - RECORD_HEADER;
    if payload_len > EDIT_MAX + encryption.added() {
        return Err(Error::BatchTooLarge { len: payload_len, max: EDIT_MAX });
    }
    out[4..8].copy_from_slice(&(payload_len as u32).to_le_bytes());
    let crc = record_checksum(current, offset, &out);
    out[8..12].copy_from_slice(&crc.to_le_bytes());
    Ok(out)
}

pub(super) fn record_checksum(current: &Current, offset: u64, record: &[u8]) -> u32 {
    let mut crc = crc32c::crc32c(&current.database.0);
    crc = crc32c::crc32c_append(crc, &current.manifest.to_le_bytes());
    crc = crc32c::crc32c_append(crc, &offset.to_le_bytes());
    crc32c::crc32c_append(crc, &record[12..])
}

/// A manifest of edits whose payloads are pieces of `bytes`, each piece behind its length: for fuzzing.
#[cfg(any(fuzzing, test))]
pub(crate) fn seal(current: &Current, bytes: &[u8]) -> Vec<u8> {
    let mut file = FileHeader::of(current, 0).encode();
    let mut rest = bytes;
    let mut epoch = 0u64;
    while let [len, after @ ..] = rest {
        let (payload, later) = after.split_at(after.len().min(usize::from(*len)));
        rest = later;
        file.extend_from_slice(&seal_record(current, file.len() as u64, epoch, payload));
        epoch += 1;
    }
    file
}

/// The record at `offset` with this payload.
#[cfg(any(fuzzing, test))]
pub(crate) fn seal_record(current: &Current, offset: u64, epoch: u64, payload: &[u8]) -> Vec<u8> {
    let mut record = RECORD_MAGIC.to_vec();
    record.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    record.extend_from_slice(&[0; 4]);
    record.extend_from_slice(&epoch.to_le_bytes());
    record.push(0);
    record.extend_from_slice(payload);
    let crc = record_checksum(current, offset, &record);
    record[8..12].copy_from_slice(&crc.to_le_bytes());
    record
}

pub(super) struct Record {
    pub epoch: u64,
    pub chained: bool,
    pub edit: std::result::Result<Edit, &'static str>,
    pub len: u64,
}

/// Length of the record that begins with these bytes.
pub(super) fn record_len(header: &[u8]) -> Option<u64> {
    let mut reader = Reader::new(header);
    if reader.array::<4>()? != *RECORD_MAGIC {
        return None;
    }
    let payload_len = reader.u32()? as usize;
    (payload_len <= EDIT_MAX + TRAILER).then_some((RECORD_HEADER + payload_len) as u64)
}

/// Whether a record that begins with these bytes is encrypted.
pub(super) fn says_encrypted(header: &[u8]) -> bool {
    record_len(header).is_some() && header.get(20).is_some_and(|flags| flags & ENCRYPTED != 0)
}

pub(super) fn decode_record(
    (current, encryption): (&Current, &Encryption),
    offset: u64,
    bytes: &mut [u8],
) -> Option<Record> {
    let mut reader = Reader::new(bytes);
    let (_magic, _len) = (reader.u32()?, reader.u32()?);
    let crc = reader.u32()?;
    let epoch = reader.u64()?;
    let flags = reader.u8()?;
    if flags > CHAINED | ENCRYPTED || record_checksum(current, offset, bytes) != crc {
        return None;
    }
    let (len, chained) = (bytes.len() as u64, flags & CHAINED != 0);
    let context = context(current, offset, bytes);
    let payload = &mut bytes[RECORD_HEADER..];
    let edit = match (encryption.is_on(), flags & ENCRYPTED != 0) {
        (false, true) => Err("encryption: there is no file KEYS"),
        (true, false) => Err("encryption: it has none, and the database is encrypted"),
        _ => encryption
            .decrypt(&context, payload)
            .map_err(|_| "encryption: it was changed, moved or forged, or KEYS is older")
            .and_then(|len| Edit::decode(&payload[..len])),
    };
    Some(Record { epoch, chained, edit, len })
}
