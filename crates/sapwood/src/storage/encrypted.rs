//! Encrypted nodes: as all nodes of an encrypted database are stored. In memory they are as other nodes.
//!
//! ```text
//! offset size
//!      0    7  as in a node, or in a compressed one
//!      7    1  1: encrypted (in others 0)
//!      8   20  node id, epoch and keyspace as in a node
//!     28    4  len: bytes of the whole encrypted node
//!     32    4  count: entries, at least 1
//!     36    4  CRC-32C of bytes 0..36 and 40..len
//!     40    …  what follows there in a node or a compressed one, encrypted
//!  len-44   44 the trailer (see [`crate::encryption`]); its context: bytes 0..36
//! ```
//! Invariants:
//! 1. Where a node lies is no part of its context, so the collector moves it as it is. Which of a node's versions is the right one is said
//!    by the mapping table, which has its checksum.
//! 2. Nothing is decrypted before the checksum was found right, nor decoded before the tag was.

use crate::encryption::{Encryption, TRAILER, Undecryptable};
use crate::storage::dictionary::Dictionaries;
use crate::storage::frames::Frames;
use crate::storage::node::{self, CRC_AT, ENCRYPTED_AT, HEADER, LEN_AT, Node, Refusal, refuse};
use crate::storage::{KEPT, compressed};
use std::cell::RefCell;
use std::sync::Arc;

thread_local! {
    /// Working memory of a thread: a compressed node, decrypted.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Encrypts a stored node. Returns its checksum.
pub(crate) fn encrypt(encryption: &Encryption, stored: &mut Vec<u8>) -> u32 {
    let len = (stored.len() + TRAILER) as u32;
    stored[ENCRYPTED_AT] = 1;
    stored[LEN_AT..LEN_AT + 4].copy_from_slice(&len.to_le_bytes());
    stored.resize(len as usize, 0);
    let (head, body) = stored.split_at_mut(HEADER);
    encryption.encrypt_in_place(&head[..CRC_AT], body);
    node::put_checksum(stored)
}

/// The same node encrypted with the newest data key, and its checksum; `None` if it is already.
pub(crate) fn renew(encryption: &Encryption, stored: &[u8]) -> Result<Option<(Vec<u8>, u32)>, Refusal> {
    let number = stored.len().checked_sub(TRAILER).and_then(|at| stored.get(at..)?.first_chunk::<4>());
    if number.is_some_and(|number| u32::from_le_bytes(*number) == encryption.newest_key()) {
        return Ok(None);
    }
    let mut node = vec![0; stored.len().saturating_sub(TRAILER)];
    if node.len() < HEADER {
        return refuse(HEADER, "an encrypted node", "a trailer", "none");
    }
    decrypt(encryption, stored, &mut node)?;
    let crc = encrypt(encryption, &mut node);
    Ok(Some((node, crc)))
}

/// Decrypts and decodes an encrypted node, and checks every byte.
pub(crate) fn decode(
    encryption: &Encryption,
    stored: &[u8],
    frames: &Arc<Frames>,
    dictionaries: &Dictionaries,
) -> Result<Node, Refusal> {
    let head = node::decode_header(stored)?;
    let Some(len) = stored.len().checked_sub(TRAILER).filter(|len| head.is_encrypted && *len >= HEADER)
    else {
        return refuse(
            ENCRYPTED_AT,
            "mark of an encrypted node",
            "1, in a database that is encrypted",
            stored[ENCRYPTED_AT],
        );
    };
    let node = if compressed::is_compressed(stored) {
        // It may be gone already, at the end of the thread.
        let mut scratch = SCRATCH.try_with(RefCell::take).unwrap_or_default();
        scratch.resize(scratch.len().max(len), 0);
        decrypt(encryption, stored, &mut scratch[..len])?;
        let node = compressed::decode(&scratch[..len], frames, dictionaries);
        if scratch.capacity() <= KEPT {
            _ = SCRATCH.try_with(|kept| kept.replace(scratch));
        }
        node?
    } else {
        let mut refusal = None;
        let decrypted = frames
            .fill(len, |node| decrypt(encryption, stored, node).map_err(|wrong| refusal = Some(wrong)).ok());
        match (decrypted, refusal) {
            (Some(bytes), _) => Node::decode(bytes)?,
            (None, Some(refusal)) => return Err(refusal),
            (None, None) => return refuse(HEADER, "an encrypted node", "room for it", "none"),
        }
    };
    Ok(node.stored_as(head.crc, stored.len()))
}

/// Decrypts a node to a place of its length without the trailer, as it would be if it were not encrypted.
fn decrypt(encryption: &Encryption, stored: &[u8], node: &mut [u8]) -> Result<(), Refusal> {
    let (content, trailer) = stored.split_at(node.len());
    node.copy_from_slice(content);
    let (head, body) = node.split_at_mut(HEADER);
    encryption.decrypt_parts(&head[..CRC_AT], body, trailer).map_err(|why: Undecryptable| {
        let (expected, found) = why.told();
        Refusal { at: HEADER, what: "encryption of a node", expected: expected.to_owned(), found }
    })?;
    head[ENCRYPTED_AT] = 0;
    head[LEN_AT..LEN_AT + 4].copy_from_slice(&(content.len() as u32).to_le_bytes());
    node::put_checksum(node);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compression::Compression;
    use crate::operation::KeyspaceId;
    use crate::storage::compressed::{Compressor, StoredNode};
    use crate::storage::entries::Entries;
    use crate::storage::node::{Name, NodeId};

    fn encryption() -> Encryption {
        Encryption::for_test()
    }

    /// A leaf as it is encoded, and as it is stored, compressed or not.
    fn leaf(compression: Compression) -> (Vec<u8>, Vec<u8>) {
        let name = Name { id: NodeId(42), level: 0, epoch: 7, keyspace: KeyspaceId(3) };
        let mut entries = Entries::default();
        (b'a'..b'p').for_each(|byte| entries.push(&[b'k', byte], &[&[byte; 40]]));
        let (mut encoded, mut stored) = (Vec::new(), Vec::new());
        node::encode(&mut encoded, name, &entries, 15);
        let records = entries.records(15);
        let compressor = Compressor::new(compression);
        if compressor.compress(name, &encoded, records, (None, None), &mut stored).is_none() {
            stored.clone_from(&encoded);
        }
        (encoded, stored)
    }

    #[test]
    fn what_is_encrypted_comes_back_and_nothing_else_is_believed() {
        let (encryption, frames) = (encryption(), Frames::new(1 << 20));
        let none = Dictionaries::default();
        for compression in [Compression::None, Compression::Lz4] {
            let (encoded, plain) = leaf(compression);
            let mut encrypted = plain.clone();
            let crc = encrypt(&encryption, &mut encrypted);
            assert_eq!((encrypted.len(), &encrypted[..7]), (plain.len() + TRAILER, &plain[..7]));
            assert!(!encrypted.windows(8).any(|window| window == [b'c'; 8]));
            let node = decode(&encryption, &encrypted, &frames, &none).unwrap();
            assert_eq!(node.bytes()[HEADER..], encoded[HEADER..]);
            assert_eq!((node.crc(), node.stored_len()), (crc, encrypted.len()));
            let moved = StoredNode::decode(encrypted.clone().into()).unwrap();
            assert_eq!((moved.name(), moved.crc()), (node.name(), crc));

            assert!(decode(&encryption, &plain, &frames, &none).is_err(), "one that was not encrypted");
            assert!(Node::decode(encrypted.clone().into()).is_err(), "where nothing is encrypted");
            assert!(compressed::decode(&encrypted, &frames, &none).is_err(), "where nothing is encrypted");
            assert!(decode(&Encryption::for_test(), &encrypted, &frames, &none).is_err(), "other keys");
            // Checksums are no proof.
            for bit in 0..8 * encrypted.len() {
                let mut forged = encrypted.clone();
                forged[bit / 8] ^= 1 << (bit % 8);
                node::put_checksum(&mut forged);
                if (8 * CRC_AT..8 * HEADER).contains(&bit) {
                    continue;
                }
                assert!(decode(&encryption, &forged, &frames, &none).is_err(), "bit {bit}");
            }
        }
    }
}
