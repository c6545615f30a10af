//! What of a file of pages counts: written when everything that it speaks of is durable. Two pages take turns, so that a torn
//! record leaves the one before.
//!
//! ```text
//! pages 0 and 1: header of a page (kind 1, id 0 or 1, sequence = version), then
//! offset size
//!      0    8  root
//!      8    8  level of the root
//!     16    8  pages of the file that were ever used
//!     24    8  page length in bytes
//!     32    8  pages with lower sequence numbers count, others were written later
//!     40    8  digest of all nodes: id, page, sequence number
//! ```
//!
//! Invariant: version `v` stands on page `v % 2`.

use crate::page::NodeId;
use crate::page::header::{HEADER, Header, Kind, bytes_at, open, seal};
use crate::store::Root;
use crate::{Error, Result};

/// Pages that records take at the beginning of a file.
pub(crate) const PAGES: u64 = 2;
const WORDS: u16 = 6;

/// See the drawing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommitRecord {
    pub version: u64,
    pub root: Root,
    pub pages: u64,
    pub sequence: u64,
    pub digest: u64,
}

impl CommitRecord {
    /// The page that this version stands on.
    pub fn page(&self) -> u64 {
        self.version % PAGES
    }

    pub fn encode(&self, page: &mut [u8]) {
        page.fill(0);
        let Root { id, level } = self.root;
        let words = [id.0, u64::from(level), self.pages, page.len() as u64, self.sequence, self.digest];
        for (index, word) in words.into_iter().enumerate() {
            page[HEADER + 8 * index..HEADER + 8 * index + 8].copy_from_slice(&word.to_le_bytes());
        }
        let (id, sequence) = (NodeId(self.page()), self.version);
        seal(page, &Header { kind: Kind::Superblock, level: 0, count: WORDS, id, sequence, extra: 0 });
    }

    fn decode(page: &[u8], file: &str, number: u64) -> Result<Self> {
        let offset = number * page.len() as u64;
        let header = open(page, file, offset, NodeId(number))?;
        let word = |index: usize| u64::from_le_bytes(bytes_at(page, HEADER + 8 * index));
        if header.kind != Kind::Superblock || header.count != WORDS || word(3) != page.len() as u64 {
            let expected = format!("a commit record of {} byte pages", page.len());
            let found = format!("{:?} of {} byte pages", header.kind, word(3));
            return Err(Error::corrupt(file, offset, "commit record", expected, found));
        }
        let level = u8::try_from(word(1))
            .map_err(|_| Error::corrupt(file, offset, "level of the root", "less than 256", word(1)))?;
        let root = Root { id: NodeId(word(0)), level };
        Ok(Self { version: header.sequence, root, pages: word(2), sequence: word(4), digest: word(5) })
    }

    /// The newest sound one of both pages.
    pub fn newest(pages: &[u8], file: &str) -> Result<Self> {
        let (first, second) = pages.split_at(pages.len() / 2);
        match (Self::decode(first, file, 0), Self::decode(second, file, 1)) {
            (Ok(first), Ok(second)) => Ok(if first.version > second.version { first } else { second }),
            (Ok(one), Err(_)) | (Err(_), Ok(one)) => Ok(one),
            (Err(error), Err(_)) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_sound_one_counts() {
        let record = |version| {
            let root = Root { id: NodeId(10 + version), level: 1 };
            CommitRecord { version, root, pages: 50, sequence: 900, digest: 3 }
        };
        let mut pages = vec![0; 2 * 256];
        record(7).encode(&mut pages[256..]);
        assert_eq!(CommitRecord::newest(&pages, "f").unwrap(), record(7), "the other is not there yet");
        record(8).encode(&mut pages[..256]);
        assert_eq!(CommitRecord::newest(&pages, "f").unwrap(), record(8));
        assert!(CommitRecord::newest(&pages[..256], "f").is_err(), "of other pages");
        pages[100] ^= 1;
        assert_eq!(CommitRecord::newest(&pages, "f").unwrap(), record(7), "8 is torn");
        pages[300] ^= 1;
        assert!(matches!(CommitRecord::newest(&pages, "f"), Err(Error::Corrupt { .. })));
    }
}
