//! Why bytes are not a node, and what is said of it.

use super::{HEADER, ID, LONE, Node, NodeId, key_len, payload_of};
use crate::error::Error;
use crate::error::unsupported::UNSUPPORTED;

/// Why some bytes are not a valid node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Offset in the node.
    pub at: usize,
    pub what: &'static str,
    pub expected: String,
    pub found: String,
}

/// What can be wrong with an entry.
#[derive(Clone, Copy)]
pub(super) enum Fault {
    Offset,
    Key,
    KeyLength,
    Order,
    Child,
    Change,
}

impl Refusal {
    /// The error of the node at `offset` of a file.
    pub fn of_node(self, file: &'static str, offset: u64, id: NodeId) -> Error {
        let Self { at, what, expected, found } = self;
        if what == UNSUPPORTED {
            let range = format!("{found} ({id} at byte {offset} of {file})");
            return Error::BadOption { option: UNSUPPORTED, value: 0, range };
        }
        Error::corrupt(file, offset + at as u64, format!("{what} ({id})"), expected, found)
    }
}

pub(crate) fn refuse<T>(
    at: usize,
    what: &'static str,
    expected: impl ToString,
    found: impl ToString,
) -> Result<T, Refusal> {
    Err(Refusal { at, what, expected: expected.to_string(), found: found.to_string() })
}

impl Node {
    /// The error message for an invalid entry.
    #[cold]
    pub(super) fn refuse_entry(&self, fault: Fault, index: usize, start: usize) -> Result<(), Refusal> {
        let end = self.end(index);
        let entry = self.bytes.get(start..end).unwrap_or_default();
        match fault {
            Fault::Offset => {
                let found = format!("{start}..{end}");
                refuse(HEADER + 4 * index, "offset of an entry", "ascending offsets", found)
            }
            Fault::Key => {
                refuse(start, "key of an entry", "a key within the entry", "one that runs over its end")
            }
            Fault::KeyLength => {
                let expected = format!("1 to {}", crate::KEY_LEN_MAX);
                refuse(start, "length of a key", expected, key_len(entry).0)
            }
            Fault::Order => {
                refuse(start, "order of keys", "ascending keys", "a key not above the one before it")
            }
            Fault::Child => {
                let found = format!("{:02x?}", payload_of(entry));
                refuse(
                    start,
                    "child of an inner node",
                    format!("{ID} bytes, and {LONE} if it is lone"),
                    found,
                )
            }
            Fault::Change => refuse(start, "change in a log piece", "a value or a removal", "neither"),
        }
    }
}
