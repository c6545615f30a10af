//! Block traces as the SNIA repository has those of Microsoft Research Cambridge: one request a line,
//!
//! ```text
//! Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime
//! 128166372003061629,usr,0,Read,7014609920,24576,41286
//! ```
//! A write becomes an insertion, a read a search, of the key Offset / 4096. The CB-tree's authors tell no more than that
//! the traces' write and read requests were performed: the key, its page of 4096 bytes, and that a longer request is one operation as
//! well are choices of this reader. The size and the times are not used. Each volume (host and disk) is an index of its own, numbered in order of appearance.
//!
//! Invariant: memory is bounded, since there are at most 256 volumes.

use crate::error::{TraceError, beginning, number};
use crate::steps::{Format, Steps};
use crate::{Op, Step};

const EXPECTED: &str = "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime";
const FIELDS: usize = 7;
/// Bytes of a page of the trace's keys.
const PAGE: u64 = 4096;

/// Reads steps; ends behind the first error.
pub type Reader<R> = Steps<R, Requests>;

/// What the requests so far were to.
#[derive(Default)]
pub struct Requests {
    volumes: Vec<(String, u64)>,
    values: u64,
}

impl<R> Reader<R> {
    /// Volumes seen so far, as host and disk, by index.
    pub fn volumes(&self) -> &[(String, u64)] {
        &self.format.volumes
    }
}

impl Format for Requests {
    const NAME: &'static str = "msr";

    fn step(&mut self, line: u64, text: &str) -> Result<Option<Step>, TraceError> {
        // Some copies have a head.
        if text.is_empty() || (line == 1 && text.eq_ignore_ascii_case(EXPECTED)) {
            return Ok(None);
        }
        let fields: Vec<&str> = text.split(',').map(str::trim).take(FIELDS + 1).collect();
        let [time, host, disk, kind, offset, size, response] = fields[..] else {
            return Err(TraceError::Fields { line, found: fields.len(), expected: EXPECTED });
        };
        for (field, text) in [("Timestamp", time), ("Size", size), ("ResponseTime", response)] {
            number(line, field, text, u64::MAX)?;
        }
        let disk = number(line, "DiskNumber", disk, u64::MAX)?;
        let key = number(line, "Offset", offset, u64::MAX)? / PAGE;
        let is_write = match kind {
            _ if kind.eq_ignore_ascii_case("write") => true,
            _ if kind.eq_ignore_ascii_case("read") => false,
            _ => return Err(TraceError::NoType { line, word: beginning(kind) }),
        };
        let known = self.volumes.iter().position(|(name, number)| name == host && *number == disk);
        let volume = known.unwrap_or(self.volumes.len());
        let tree = u8::try_from(volume).map_err(|_| TraceError::TooManyTrees { line })?;
        if known.is_none() {
            self.volumes.push((host.to_owned(), disk));
        }
        self.values += 1;
        Ok(Some(match is_write {
            true => Step::new(tree, Op::Insert, key, self.values),
            false => Step::new(tree, Op::Search, key, 0),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_become_operations_on_the_page_of_their_volume() {
        let text = "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\n\
                    128166372003061629,usr,0,Read,7014609920,24576,41286\r\n\
                    128166372016382155,usr,1,Write,4095,512,1\n\n\
                    128166372026382245,usr,0,write,8192,36864,37684\n";
        let mut reader = Reader::new(text.as_bytes());
        let steps: Vec<_> = reader.by_ref().map(Result::unwrap).collect();
        let expected = [
            Step::new(0, Op::Search, 7_014_609_920 / 4096, 0),
            Step::new(1, Op::Insert, 0, 2),
            Step::new(0, Op::Insert, 2, 3),
        ];
        assert_eq!(steps, expected);
        assert_eq!(reader.volumes(), [("usr".to_owned(), 0), ("usr".to_owned(), 1)]);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line_and_a_remedy() {
        let refused = |line: &str| {
            let text = format!("1,a,0,Read,0,512,1\n{line}\n1,a,0,Read,0,512,1\n");
            let mut steps: Vec<_> = Reader::new(text.as_bytes()).collect();
            assert_eq!(steps.len(), 2, "{line}");
            steps.pop().unwrap().unwrap_err().to_string()
        };
        assert!(refused("1,a,0,Read,0,512").contains("line 2: 6 fields; a line is `Timestamp,Hostname,"));
        assert!(refused("1,a,0,Read,0,512,1,1").contains("8 fields"));
        assert!(
            refused("1,a,0,Trim,0,512,1")
                .contains("line 2: the type \"Trim\" is neither Read nor Write; correct or remove")
        );
        assert!(refused("1,a,0,Read,-4096,512,1").contains("Offset is \"-4096\"; write a whole number"));
        assert!(refused("now,a,0,Read,0,512,1").contains("Timestamp is \"now\""));
        assert!(refused("1,a,x,Read,0,512,1").contains("DiskNumber"));
        assert!(refused(&format!("1,a,0,Read,{},512,1", "9".repeat(100))).contains("9…"));
        let many: String = (0..300).map(|disk| format!("1,a,{disk},Read,0,512,1\n")).collect();
        let last = Reader::new(many.as_bytes()).last().unwrap().unwrap_err();
        assert_eq!((last.line(), last.to_string().contains("more than 256 volumes")), (257, true));
    }
}
