//! The bytes of the log.
//!
//! ```text
//! wal-G = header record*
//!
//! header (72 bytes)                            record
//! offset size                                  offset size
//!      0    8  magic "SapWAL1\n"                    0    4  magic "SapR"
//!      8    4  format version                       4    4  len of the body
//!     12   16  database id                          8    4  CRC-32C, see below
//!     28    8  generation                          12    4  epoch of the writer
//!     36    8  base: LSN of this file's byte 0     16    8  first sequence number
//!     44    8  length of the generation before     24    8  durable: LSN below which all was known to be durable
//!     52    8  durable: as in a record             32    4  count of operations
//!     60    8  sequence number that comes first    36  len  body: operations
//!     68    4  CRC-32C of bytes 0..68
//! ```
//! LSN, the log sequence number, counts the bytes of all generations since the database was created, in so far as they
//! are valid.
//!
//! A record's CRC covers database id, generation, the record's offset, and its bytes from 12 on: a record of another
//! database, file or place is none.
//!
//! The *durable* claim is what tells a torn tail from damage: what a later record or header claims to be durable
//! was acknowledged, and must be there.

use crate::bytecode::Reader;
use crate::database_id::DatabaseId;
use crate::operation::SeqNo;

pub(crate) const FORMAT: u32 = 1;
const FILE_MAGIC: &[u8; 8] = b"SapWAL1\n";
pub(crate) const FILE_HEADER: usize = 72;
pub(crate) const RECORD_MAGIC: &[u8; 4] = b"SapR";
pub(crate) const RECORD_HEADER: usize = 36;
/// No batch is longer.
pub(crate) const BODY_MAX: usize = 64 << 20;

/// A place in the log of all generations, in bytes.
pub(crate) type Lsn = u64;

/// Name of a generation's file.
pub(crate) fn file_name(generation: u64) -> String {
    format!("wal-{generation:010}")
}

/// The generation in a file's name.
pub(crate) fn generation_of(name: &str) -> Option<u64> {
    name.strip_prefix("wal-")?.parse().ok()
}

/// See the drawing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub database: DatabaseId,
    pub generation: u64,
    pub base: Lsn,
    pub previous_len: u64,
    pub durable: Lsn,
    pub first_seq: SeqNo,
}

/// Why a header is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BadHeader {
    /// Cut off or never whole.
    Torn {
        expected: String,
        found: String,
    },
    Newer(u32),
}

impl Header {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(FILE_HEADER);
        out.extend_from_slice(FILE_MAGIC);
        out.extend_from_slice(&FORMAT.to_le_bytes());
        out.extend_from_slice(&self.database.0);
        for field in [self.generation, self.base, self.previous_len, self.durable, self.first_seq] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        let crc = crc32c::crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, BadHeader> {
        let torn = |expected: String, found: String| Err(BadHeader::Torn { expected, found });
        let mut reader = Reader::new(bytes);
        let mut parse = || {
            let (magic, format, database) = (reader.array::<8>()?, reader.u32()?, reader.array::<16>()?);
            let fields = [reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?];
            Some((magic, format, database, fields, reader.u32()?))
        };
        let Some((magic, format, database, fields, crc)) = parse() else {
            return torn(format!("{FILE_HEADER} bytes"), format!("{} bytes", bytes.len()));
        };
        let actual = crc32c::crc32c(&bytes[..FILE_HEADER - 4]);
        if magic != *FILE_MAGIC || crc != actual {
            return torn(format!("checksum {crc:08x}"), format!("{actual:08x}"));
        }
        if format != FORMAT {
            return Err(BadHeader::Newer(format));
        }
        let [generation, base, previous_len, durable, first_seq] = fields;
        Ok(Self { database: DatabaseId(database), generation, base, previous_len, durable, first_seq })
    }
}

/// The head of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub len: u32,
    pub crc: u32,
    pub epoch: u32,
    pub first_seq: SeqNo,
    pub durable: Lsn,
    pub count: u32,
}

impl Head {
    /// The head at the beginning of `bytes`, if it looks like one. Its CRC is still to be checked.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        if reader.array::<4>()? != *RECORD_MAGIC {
            return None;
        }
        let head = Self {
            len: reader.u32()?,
            crc: reader.u32()?,
            epoch: reader.u32()?,
            first_seq: reader.u64()?,
            durable: reader.u64()?,
            count: reader.u32()?,
        };
        let fits = head.len as usize <= BODY_MAX
            && head.count > 0
            && head.count <= head.len
            && head.first_seq.checked_add(u64::from(head.count)).is_some();
        fits.then_some(head)
    }

    pub fn record_len(&self) -> usize {
        RECORD_HEADER + self.len as usize
    }
}

/// Where a record stands, which its checksum covers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub database: DatabaseId,
    pub generation: u64,
    pub offset: u64,
}

impl Place {
    /// The CRC of a whole record (its own CRC field is not looked at).
    pub fn checksum(&self, record: &[u8]) -> u32 {
        let mut crc = crc32c::crc32c(&self.database.0);
        crc = crc32c::crc32c_append(crc, &self.generation.to_le_bytes());
        crc = crc32c::crc32c_append(crc, &self.offset.to_le_bytes());
        crc32c::crc32c_append(crc, record.get(12..).unwrap_or_default())
    }

    /// Appends a record.
    pub fn encode(
        &self,
        out: &mut Vec<u8>,
        epoch: u32,
        durable: Lsn,
        first_seq: SeqNo,
        count: u32,
        body: &[u8],
    ) {
        let start = out.len();
        out.reserve(RECORD_HEADER + body.len());
        out.extend_from_slice(RECORD_MAGIC);
        out.extend_from_slice(&(body.len() as u32).to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&epoch.to_le_bytes());
        out.extend_from_slice(&first_seq.to_le_bytes());
        out.extend_from_slice(&durable.to_le_bytes());
        out.extend_from_slice(&count.to_le_bytes());
        out.extend_from_slice(body);
        let crc = self.checksum(&out[start..]);
        out[start + 8..start + 12].copy_from_slice(&crc.to_le_bytes());
    }
}

/// A log of records whose bodies are pieces of `bytes`, each piece behind its length: for fuzzing.
#[cfg(any(fuzzing, test))]
pub(crate) fn seal(database: DatabaseId, bytes: &[u8]) -> Vec<u8> {
    let header = Header { database, generation: 1, base: 0, previous_len: 0, durable: 0, first_seq: 1 };
    let mut file = header.encode();
    let mut rest = bytes;
    let mut seq = 1;
    while let [len, count, after @ ..] = rest {
        let (body, later) = after.split_at(after.len().min(usize::from(*len)));
        rest = later;
        let place = Place { database, generation: 1, offset: file.len() as u64 };
        place.encode(&mut file, 1, u64::from(*count) * 16, seq, u32::from(*count), body);
        seq += u64::from(*count);
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEADER: Header = Header {
        database: DatabaseId([7; 16]),
        generation: 3,
        base: 1000,
        previous_len: 500,
        durable: 900,
        first_seq: 42,
    };

    #[test]
    fn golden_header_and_every_flipped_bit() {
        let bytes = HEADER.encode();
        assert_eq!(bytes.len(), FILE_HEADER);
        assert_eq!(&bytes[..12], b"SapWAL1\n\x01\0\0\0");
        assert_eq!(bytes[28], 3);
        assert_eq!(Header::decode(&bytes), Ok(HEADER));
        for bit in 0..8 * FILE_HEADER {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(Header::decode(&flipped), Err(BadHeader::Torn { .. })), "bit {bit}");
        }
    }

    #[test]
    fn golden_record_valid_in_its_place_only() {
        let place = Place { database: DatabaseId([7; 16]), generation: 3, offset: 72 };
        let mut bytes = Vec::new();
        place.encode(&mut bytes, 1, 72, 42, 2, b"body");
        assert_eq!(&bytes[..8], b"SapR\x04\0\0\0");
        assert_eq!(&bytes[36..], b"body");
        let head = Head::decode(&bytes).unwrap();
        assert_eq!((head.first_seq, head.durable, head.count, head.epoch), (42, 72, 2, 1));
        assert_eq!(place.checksum(&bytes), head.crc);
        for other in [
            Place { offset: 73, ..place },
            Place { generation: 4, ..place },
            Place { database: DatabaseId([8; 16]), ..place },
        ] {
            assert_ne!(other.checksum(&bytes), head.crc);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = Header::decode(&bytes);
            let mut with_magic = RECORD_MAGIC.to_vec();
            with_magic.extend(bytes);
            if let Some(head) = Head::decode(&with_magic) {
                prop_assert!(head.len as usize <= BODY_MAX && head.count > 0);
            }
        }
    }
}
