//! Tests of the format of nodes.

use super::*;
use crate::storage::entries::Entries;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn name(level: u8) -> Name {
    Name { id: NodeId(42), level, epoch: 7, keyspace: KeyspaceId(3) }
}

fn encoded(level: u8, records: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut entries = Entries::default();
    records.iter().for_each(|(key, payload)| entries.push(key, &[payload]));
    let mut out = Vec::new();
    encode(&mut out, name(level), &entries, records.len());
    out
}

fn leaf(entries: &[(&[u8], &[u8])]) -> Vec<u8> {
    encoded(0, entries)
}

/// The format cannot change without this test changing, and the format version with it.
#[test]
fn golden_bytes() {
    let bytes = leaf(&[(b"a", b"1"), (b"b", b"")]);
    let head = "5361704e 01 00 0000 2a00000000000000 0700000000000000 03000000 35000000 02000000";
    let tail = "30000000 33000000 0161 31 0162";
    let hex = |text: &str| -> Vec<u8> {
        let digits: String = text.split_whitespace().collect();
        (0..digits.len()).step_by(2).map(|i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap()).collect()
    };
    assert_eq!(bytes[..CRC_AT], hex(head));
    assert_eq!(bytes[HEADER..], hex(tail));
    assert_eq!(bytes[CRC_AT..HEADER], checksum(&bytes).to_le_bytes());
    let (first, lone) = (ChildPayload::of(NodeId(9), false), ChildPayload::of(NodeId(10), true));
    let bytes = encoded(1, &[(b"", first.bytes()), (b"a", lone.bytes())]);
    assert_eq!(bytes[HEADER..], hex("30000000 39000000 00 0900000000000000 0161 0a00000000000000 01"));
}

#[test]
fn inner_nodes_lead_keys_to_their_children() {
    let ids = [10u64, 11, 12].map(u64::to_le_bytes);
    let node = encoded(1, &[(b"", &ids[0]), (b"g", &ids[1]), (b"p", &ids[2])]);
    let node = Node::decode(node.into()).unwrap();
    let child_of = |key: &str| node.child(node.child_for(key.as_bytes())).0;
    assert_eq!(["a", "g", "h", "p", "z"].map(child_of), [10, 11, 11, 12, 12]);
    let lone = ChildPayload::of(NodeId(11), true);
    let node = encoded(1, &[(b"", &ids[0]), (b"g", lone.bytes()), (b"p", &ids[2])]);
    let node = Node::decode(node.into()).unwrap();
    let child_of = |key: &str| node.child(node.child_for(key.as_bytes())).0;
    assert_eq!(["a", "g", "h", "p", "z"].map(child_of), [10, 11, 11, 12, 12]);
    let lacks = |key: &str| node.lacks(node.child_for(key.as_bytes()), key.as_bytes());
    assert_eq!(["a", "g", "h", "p", "z"].map(lacks), [false, false, true, false, false]);
}

/// Each thing that can be wrong with an entry, behind a correct checksum: what is told of it, and where.
#[test]
fn what_is_wrong_with_an_entry_is_told() {
    let told = |mut bytes: Vec<u8>, change: &[(usize, u8)]| {
        change.iter().for_each(|(at, byte)| bytes[*at] = *byte);
        seal(&mut bytes);
        let Refusal { what, at, .. } = Node::decode(bytes.into()).unwrap_err();
        (what, at)
    };
    let two = || leaf(&[(b"a", b"1"), (b"b", b"")]);
    assert_eq!(told(two(), &[(40, 49)]), ("offset of the first entry", 40));
    assert_eq!(told(two(), &[(44, 48)]), ("offset of an entry", 40));
    assert_eq!(told(two(), &[(44, 47)]), ("offset of an entry", 40));
    assert_eq!(told(two(), &[(44, 54)]), ("offset of an entry", 40));
    assert_eq!(told(two(), &[(48, 3)]), ("key of an entry", 48));
    assert_eq!(told(two(), &[(51, 0x80)]), ("key of an entry", 51));
    assert_eq!(told(two(), &[(48, 0)]), ("length of a key", 48));
    assert_eq!(told(two(), &[(52, b'a')]), ("order of keys", 51));
    assert_eq!(told(two(), &[(52, b'A')]), ("order of keys", 51));
    let long = [7; crate::KEY_LEN_MAX + 1];
    assert_eq!(told(leaf(&[(&long, b"")]), &[]), ("length of a key", 44));
    assert_eq!(told(encoded(1, &[(b"", &[0; 7])]), &[]), ("child of an inner node", 44));
    assert_eq!(told(encoded(1, &[(b"a", &[0; 8])]), &[]), ("length of a key", 44));
    let lone = [0, 0, 0, 0, 0, 0, 0, 0, LONE];
    let two_children = |level, payload| encoded(level, &[(b"", &lone[..ID]), (b"a", payload)]);
    assert!(Node::decode(two_children(1, &lone).into()).is_ok());
    assert_eq!(told(two_children(2, &lone), &[]), ("child of an inner node", 57));
    assert_eq!(told(two_children(1, &[0; 9]), &[]), ("child of an inner node", 57));
    assert_eq!(told(two_children(1, &[LONE; 10]), &[]), ("child of an inner node", 57));
    assert_eq!(told(encoded(1, &[(b"", &lone)]), &[]), ("child of an inner node", 44));
    for change in [&[][..], &[2], &[REMOVED, 0]] {
        assert_eq!(told(encoded(PIECE, &[(b"a", change)]), &[]), ("change in a log piece", 44));
    }
    assert!(Node::decode(encoded(PIECE, &[(b"a", &[PUT]), (b"b", &[REMOVED])]).into()).is_ok());
}

proptest! {
    #[test]
    fn nodes_round_trip(records in prop::collection::btree_map(
        prop::collection::vec(any::<u8>(), 1..200), prop::collection::vec(any::<u8>(), 0..300), 1..60))
    {
        let records: BTreeMap<Vec<u8>, Vec<u8>> = records;
        let entries: Vec<_> = records.iter().map(|(k, v)| (&k[..], &v[..])).collect();
        let node = Node::decode(leaf(&entries).into()).unwrap();
        prop_assert_eq!(node.name(), name(0));
        prop_assert_eq!(node.count(), records.len());
        for (index, (key, payload)) in entries.iter().enumerate() {
            prop_assert_eq!((node.key(index), &node.payload(index)[..]), (*key, *payload));
            prop_assert_eq!(node.search(key), Ok(index));
        }
        // And from node to node, in runs.
        let at = records.len() / 3;
        let mut copied = Entries::default();
        copied.extend(&node, at..records.len());
        let mut all = Entries::default();
        all.push(b"", &[b"dropped"]);
        all.extend(&node, 0..at);
        all.append(&copied);
        all.drop_front(1);
        prop_assert_eq!(all.node_bytes(0, records.len()) + HEADER, node.bytes().len());
        let mut out = Vec::new();
        encode(&mut out, name(0), &all, records.len());
        prop_assert_eq!(&out[..], &node.bytes()[..]);
    }

    #[test]
    fn every_flipped_bit_is_noticed(byte in 0usize..53, bit in 0u8..8) {
        let mut bytes = leaf(&[(b"a", b"1"), (b"b", b"")]);
        bytes[byte] ^= 1 << bit;
        prop_assert!(Node::decode(bytes.into()).is_err());
    }

    /// Behind a correct checksum too, nothing is believed.
    #[test]
    fn sealed_garbage_is_refused_or_harmless(mut bytes in prop::collection::vec(any::<u8>(), HEADER..200), count in 0u32..9, level in 0u8..3) {
        let len = bytes.len() as u32;
        bytes[..8].copy_from_slice(&[b'S', b'a', b'p', b'N', if level == 0 { 1 } else { 2 }, level, 0, 0]);
        bytes[28..32].copy_from_slice(&len.to_le_bytes());
        bytes[32..36].copy_from_slice(&count.to_le_bytes());
        if len as usize >= HEADER + 4 * count as usize {
            for i in 0..count as usize {
                let byte = bytes[HEADER + 4 * i];
                let offset = if i == 0 { HEADER as u32 + 4 * count } else { u32::from(byte) };
                bytes[HEADER + 4 * i..HEADER + 4 * i + 4].copy_from_slice(&offset.to_le_bytes());
            }
        }
        let crc = checksum(&bytes);
        bytes[CRC_AT..HEADER].copy_from_slice(&crc.to_le_bytes());
        if let Ok(node) = Node::decode(bytes.into()) {
            for index in 0..node.count() {
                prop_assert!(node.search(node.key(index)) == Ok(index));
                let _ = node.entry(index);
                if level > 0 {
                    let _ = node.child(index);
                }
            }
        }
    }
}
