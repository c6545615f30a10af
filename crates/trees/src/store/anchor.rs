//! What a system must know to open its file, as words on one page. Two pages take turns, so that a torn one leaves the
//! other.
//!
//! ```text
//! pages 0 and 1: header of a page (kind 32, id 0 or 1, sequence = version, extra = whose it is), then
//! offset size
//!      0  8 n  words: n = count of the header. The first is the page length in bytes
//! ```
//!
//! Invariant: version `v` stands on page `v % 2`, so the newest sound one is either the last written or the one before.

use crate::page::NodeId;
use crate::page::header::{HEADER, Header, Kind, bytes_at, open, seal};
use crate::{Error, Result};

/// Pages that it takes at the beginning of a file.
pub(crate) const PAGES: u64 = 2;

/// Whose file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Owner {
    FdTree = 1,
    Bftl = 2,
    LaTree = 3,
    LsmTree = 4,
    BEpsilon = 5,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Anchor {
    pub version: u64,
    /// Without the page length.
    pub words: Vec<u64>,
}

/// Most words that fit, besides the page length.
pub(crate) fn words_max(page_len: usize) -> usize {
    (page_len - HEADER) / 8 - 1
}

impl Anchor {
    /// The page that this version stands on.
    pub fn page(&self) -> u64 {
        self.version % PAGES
    }

    /// Fills a page. The words must fit: see [`words_max`].
    pub fn encode(&self, owner: Owner, page: &mut [u8]) {
        page[HEADER..].fill(0);
        let len = page.len() as u64;
        for (index, word) in std::iter::once(&len).chain(&self.words).enumerate() {
            page[HEADER + 8 * index..HEADER + 8 * index + 8].copy_from_slice(&word.to_le_bytes());
        }
        let header = Header {
            kind: Kind::Anchor,
            level: 0,
            count: self.words.len() as u16 + 1,
            id: NodeId(self.page()),
            sequence: self.version,
            extra: owner as u32,
        };
        seal(page, &header);
    }

    fn decode(page: &[u8], owner: Owner, file: &str, number: u64) -> Result<Self> {
        let offset = number * page.len() as u64;
        let header = open(page, file, offset, NodeId(number))?;
        let word = |index: usize| u64::from_le_bytes(bytes_at(page, HEADER + 8 * index));
        let count = usize::from(header.count);
        let sound = header.kind == Kind::Anchor
            && header.extra == owner as u32
            && (1..=words_max(page.len()) + 1).contains(&count)
            && word(0) == page.len() as u64
            && header.sequence % PAGES == number;
        if !sound {
            let expected = format!("anchor of {owner:?} with pages of {} bytes", page.len());
            let found = format!(
                "{:?} of owner {} with {count} words, page length {}",
                header.kind,
                header.extra,
                word(0)
            );
            return Err(Error::corrupt(file, offset, "anchor", expected, found));
        }
        Ok(Self { version: header.sequence, words: (1..count).map(word).collect() })
    }

    /// The newest of the two, from the first two pages of a file.
    pub fn newest(pages: &[u8], owner: Owner, file: &str) -> Result<Self> {
        let (first, second) = pages.split_at(pages.len() / 2);
        match (Self::decode(first, owner, file, 0), Self::decode(second, owner, file, 1)) {
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
    fn the_newest_sound_one_counts_and_no_other_owner_does() {
        let anchor = |version| Anchor { version, words: vec![version, 3] };
        let newest = |pages: &[u8]| Anchor::newest(pages, Owner::FdTree, "f");
        let mut pages = vec![0; 2 * 512];
        assert!(newest(&pages).is_err());
        anchor(7).encode(Owner::FdTree, &mut pages[512..]);
        assert_eq!(newest(&pages).unwrap(), anchor(7));
        anchor(8).encode(Owner::FdTree, &mut pages[..512]);
        assert_eq!(newest(&pages).unwrap(), anchor(8));
        pages[100] ^= 1;
        assert_eq!(newest(&pages).unwrap(), anchor(7));
        pages[512 + 24..512 + 28].copy_from_slice(&99u32.to_le_bytes());
        assert!(matches!(newest(&pages), Err(Error::Corrupt { .. })));
    }
}
