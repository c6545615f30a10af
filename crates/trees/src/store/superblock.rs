//! The superblock: where the tree of a file begins. Two pages take turns, so that a torn one leaves the other.
//!
//! ```text
//! pages 0 and 1: header of a page (kind 1, id 0 or 1, sequence = version), then
//! offset size
//!      0    8  root
//!      8    8  level of the root
//!     16    8  pages of the file that were ever used
//!     24    8  page length in bytes
//!     32   24  three words that belong to the system
//! ```
//!
//! Invariant: version `v` stands on page `v % 2`, so the newest sound one is either the last written or the one before.

use crate::page::NodeId;
use crate::page::header::{HEADER, Header, Kind, bytes_at, open, seal};
use crate::store::Root;
use crate::{Error, Result};

/// Pages that the superblock takes at the beginning of a file.
pub(crate) const PAGES: u64 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub version: u64,
    pub root: Root,
    /// Pages below this one were used at some time.
    pub pages: u64,
    /// What else the system must find again.
    pub words: [u64; 3],
}

impl Superblock {
    /// The page that this version stands on.
    pub fn page(&self) -> u64 {
        self.version % PAGES
    }

    pub fn encode(&self, page: &mut [u8]) {
        page.fill(0);
        let words = [self.root.id.0, u64::from(self.root.level), self.pages, page.len() as u64];
        for (index, word) in words.into_iter().chain(self.words).enumerate() {
            page[HEADER + 8 * index..HEADER + 8 * index + 8].copy_from_slice(&word.to_le_bytes());
        }
        let id = NodeId(self.page());
        let header =
            Header { kind: Kind::Superblock, level: 0, count: 7, id, sequence: self.version, extra: 0 };
        seal(page, &header);
    }

    fn decode(page: &[u8], file: &str, number: u64) -> Result<Self> {
        let offset = number * page.len() as u64;
        let header = open(page, file, offset, NodeId(number))?;
        let word = |index: usize| u64::from_le_bytes(bytes_at(page, HEADER + 8 * index));
        if header.kind != Kind::Superblock || word(3) != page.len() as u64 {
            let expected = format!("a superblock of {} byte pages", page.len());
            let found = format!("{:?} of {} byte pages", header.kind, word(3));
            return Err(Error::corrupt(file, offset, "superblock", expected, found));
        }
        let level = u8::try_from(word(1))
            .map_err(|_| Error::corrupt(file, offset, "level of the root", "less than 256", word(1)))?;
        Ok(Self {
            version: header.sequence,
            root: Root { id: NodeId(word(0)), level },
            pages: word(2),
            words: [word(4), word(5), word(6)],
        })
    }

    /// The newest of the two, from the first two pages of a file.
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
        let block = |version| Superblock {
            version,
            root: Root { id: NodeId(10 + version), level: 1 },
            pages: 50,
            words: [1, 2, version],
        };
        let mut pages = vec![0; 2 * 512];
        block(7).encode(&mut pages[512..]);
        assert_eq!(Superblock::newest(&pages, "f").unwrap(), block(7), "the other is not there yet");
        block(8).encode(&mut pages[..512]);
        assert_eq!(Superblock::newest(&pages, "f").unwrap(), block(8));
        pages[100] ^= 1;
        assert_eq!(Superblock::newest(&pages, "f").unwrap(), block(7), "8 is torn");
        pages[600] ^= 1;
        assert!(matches!(Superblock::newest(&pages, "f"), Err(Error::Corrupt { .. })));
    }
}
