//! Edits round trip, have the bytes that they had, and are refused when damaged.

use super::*;
use crate::version::change_log::EventKind;
use proptest::prelude::*;

#[test]
fn an_edit_round_trips() {
    let edit = Edit {
        wal_low: Some(3),
        wal_high: Some(900),
        flushed_seq: Some(NUMBER_MAX - 1),
        open_segment: Some(7),
        trees: vec![
            (
                KeyspaceId(1),
                Tree {
                    root: Some(NodeId(0)),
                    height: 2,
                    len: 99,
                    bytes: 9000,
                    is_estimated: true,
                    ..Tree::empty("ships".into())
                },
            ),
            (KeyspaceId(9), Tree::empty("".into())),
        ],
        dropped: vec![KeyspaceId(1), KeyspaceId(77)],
        names: vec![
            TreeName { id: KeyspaceId(9), name: "harbours".into(), metadata: None },
            TreeName { id: KeyspaceId(2), name: "x".into(), metadata: Some(b"schema".as_slice().into()) },
        ],
        last_keyspace: Some(99),
        ttls: vec![(KeyspaceId(9), DefaultTtl(0)), (KeyspaceId(2), DefaultTtl(u64::MAX))],
        merges: vec![(KeyspaceId(9), Merging::named("add u64".into()))],
        dictionaries: vec![(KeyspaceId(8), Dictionary::new(vec![7; 100]).unwrap())],
        compressions: vec![
            (KeyspaceId(7), Compression::Lz4),
            (KeyspaceId(8), Compression::Zstd { level: 19 }),
            (KeyspaceId(9), Compression::None),
        ],
        larges: vec![(KeyspaceId(2), KeyspaceId(77))],
        durabilities: vec![
            (KeyspaceId(2), Durability::None),
            (KeyspaceId(9), Durability::Buffered),
            (KeyspaceId(77), Durability::Immediate),
        ],
        begun_flushes: vec![7, 300],
        keeping: Some(Keeping { bytes: 1 << 30, from: 7, first_event: 300 }),
        events: vec![KeyspaceEvent {
            kind: EventKind::Dropped,
            keyspace: KeyspaceId(77),
            time: 77,
            seq: 300,
            expires: false,
            merges: true,
            large: false,
            name: "ships".into(),
        }],
        clock: Some(1_790_000_000_000),
        oldest_key: Some(300),
        segments: vec![(7, 1), (8, u32::MAX)],
        used: vec![(7, 4096)],
        expiring: vec![
            (7, ExpiringBytes::of_steps(&[(1_790_000_000_001, 7), (1_790_000_000_002, u64::MAX)]).unwrap()),
            (8, ExpiringBytes::default()),
        ],
        set: vec![(NodeId(5), Address::new(Position(1 << 40), NodeLengths::of(8000, 20_000), 0xdead_beef))],
        freed: vec![NodeId(300), NodeId(1)],
        emptied: vec![NodeId(5)],
        runs: vec![
            (NodeId(5), NewRun { pieces: 1, count: 1, removals: 0, fresh: 100 }),
            (NodeId(5), NewRun { pieces: 2, count: 2, removals: 2, fresh: 0 }),
        ],
        pieces: vec![NodeId(6), NodeId(1 << 39), NodeId(7)],
        fences: b"\x02le".to_vec(),
        hashes: [&b"kale"[..], b"leek", b"chard"].map(KeyHash::of).to_vec(),
    };
    let mut bytes = Vec::new();
    edit.encode(&mut bytes);
    // As it was in format 14 first.
    assert_eq!((bytes.len(), crc32c::crc32c(&bytes)), (356, 1_179_151_522));
    assert_eq!(Edit::decode(&bytes), Ok(edit));
    for len in 1..bytes.len() {
        let _ = Edit::decode(&bytes[..len]);
    }
    let without_the_last_hash = &bytes[..bytes.len() - KeyHash::LEN];
    assert_eq!(Edit::decode(without_the_last_hash), Err("number of hashes"));
    let without_a_fence_that_ascends = edit_with_fences(b"\x01m\x01m");
    assert_eq!(Edit::decode(&without_a_fence_that_ascends), Err("fence of a log piece"));
    assert!(Edit::decode(&edit_with_fences(b"\x01m\x01n")).is_ok());
}

/// The next number would not be one.
#[test]
fn numbers_at_the_end_of_their_range_are_refused() {
    let with = |edit: Edit| {
        let mut bytes = Vec::new();
        edit.encode(&mut bytes);
        Edit::decode(&bytes).map(|_| ())
    };
    for last in [NUMBER_MAX, u64::MAX] {
        assert_eq!(with(Edit { wal_high: Some(last), ..Edit::default() }), Err("wal_high"));
        assert_eq!(with(Edit { flushed_seq: Some(last), ..Edit::default() }), Err("flushed_seq"));
        assert_eq!(with(Edit { open_segment: Some(last), ..Edit::default() }), Err("open_segment"));
    }
    let tree = || Tree::empty("".into());
    let of = |id| with(Edit { trees: vec![(KeyspaceId(id), tree())], ..Edit::default() });
    assert_eq!((of(KeyspaceId::LAST.0), of(u32::MAX)), (Ok(()), Err("tree")));
}

#[test]
fn an_unknown_durability_is_refused() {
    assert!(Edit::decode(&[21, 9, 2]).is_ok());
    assert_eq!(Edit::decode(&[21, 9, 3]), Err("durability of a keyspace"));
    assert_eq!(Edit::decode(&[21, 9]), Err("durability of a keyspace"));
}

/// The bytes of an edit with a run of three pieces.
fn edit_with_fences(fences: &[u8]) -> Vec<u8> {
    let edit = Edit {
        runs: vec![(NodeId(5), NewRun { pieces: 3, count: 3, removals: 0, fresh: 7 })],
        pieces: vec![NodeId(6), NodeId(7), NodeId(8)],
        fences: fences.to_vec(),
        hashes: [&b"kale"[..], b"m", b"no"].map(KeyHash::of).to_vec(),
        ..Edit::default()
    };
    let mut bytes = Vec::new();
    edit.encode(&mut bytes);
    bytes
}

proptest! {
    #[test]
    fn any_bytes_decode_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        if let Ok(edit) = Edit::decode(&bytes) {
            let mut again = Vec::new();
            edit.encode(&mut again);
            prop_assert_eq!(Edit::decode(&again), Ok(edit));
        }
    }
}
