//! Cuts the changes of a new run into log pieces of about a page, so that a reader that needs a few records
//! of a run reads little else.
//!
//! Invariant: the pieces hold all changes, in order, and the fence between two pieces divides their keys.

use crate::operation::OperationRef;
use crate::storage::node::entry_len;
use crate::tree::pack::separator_len;
use crate::version::builder::Piece;

/// Bytes of a change in a log piece.
pub(super) fn logged_len(change: &OperationRef<'_>) -> u64 {
    entry_len(change.key.len(), 1 + change.value.map_or(0, <[u8]>::len)) as u64
}

/// Target bytes of a log piece: a page, so that a get or a short scan that needs one to five records of a
/// run reads little else. A piece takes some 40 bytes of memory, in the mapping table, the run and its
/// fences. That is a hundredth of its length, and less than the hashes of its 33 records of 116 bytes, which
/// take 75. Of 1000-byte records a piece holds four. With 2 KiB, scans of 100 read a third less, but a random
/// load, which is bound by the processor, is a tenth slower.
const PIECE_LEN: u64 = 4 << 10;

/// A piece is at least this many times as long as the fence behind it, which is that of the next piece.
/// Fences are kept in memory and in the edit, neither of which may become much longer because keys are long.
const FENCE_SHARE: u64 = 16;

/// But a piece of this length ends in any case: with one more record, however long, it must fit into a segment of
/// the least span, 1 MiB.
const PIECE_LONGEST: u64 = 512 << 10;

/// Divides changes into log pieces of about equal length.
pub(in crate::tree) fn cut<'q>(changes: &[OperationRef<'q>]) -> Vec<Piece<'q>> {
    let total: u64 = changes.iter().map(logged_len).sum();
    // Rounded, so that no short piece is left over: a flush that has 5 KiB for each block writes one piece
    // for each.
    let count = ((total + PIECE_LEN / 2) / PIECE_LEN).max(1);
    let mut pieces: Vec<Piece<'q>> = Vec::with_capacity(count as usize);
    // Bytes before this change, bytes before the last piece, and the number of the last piece.
    let (mut before, mut begun, mut number) = (0, 0, 0);
    let mut last_key: &[u8] = &[];
    for (index, change) in changes.iter().enumerate() {
        let len = logged_len(change);
        let next = (before + len / 2) * count / total;
        let fence = if next > number { &change.key[..separator_len(last_key, change.key)] } else { &[] };
        let piece = before - begun;
        let is_long = fence.len() as u64 * FENCE_SHARE > piece && piece < PIECE_LONGEST;
        match pieces.last_mut() {
            Some(last) if next == number || is_long => last.changes.end = index + 1,
            _ => {
                pieces.push(Piece { fence, changes: index..index + 1 });
                (begun, number) = (before, next);
            }
        }
        before += len;
        last_key = change.key;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::KeyspaceId;
    use proptest::prelude::*;

    fn pieces_of(changes: &[OperationRef<'_>]) -> Vec<(u64, usize)> {
        let bytes = |piece: &Piece<'_>| changes[piece.changes.clone()].iter().map(logged_len).sum();
        cut(changes).iter().map(|piece| (bytes(piece), piece.fence.len())).collect()
    }

    fn change<'a>(key: &'a [u8], value: &'a [u8]) -> OperationRef<'a> {
        OperationRef { keyspace: KeyspaceId(1), key, value: Some(value) }
    }

    #[test]
    fn no_piece_outgrows_the_shortest_segment() {
        let (value, mut key) = (vec![7; 4096], vec![7; crate::KEY_LEN_MAX]);
        let at = key.len() - 4;
        let keys: Vec<_> = (0..40u32)
            .map(|number| {
                key[at..].copy_from_slice(&number.to_be_bytes());
                key.clone()
            })
            .collect();
        let changes: Vec<_> = keys.iter().map(|key| change(key, &value)).collect();
        let pieces = pieces_of(&changes);
        let longest = pieces.iter().map(|(bytes, _)| *bytes).max();
        assert!(longest < Some(600 << 10) && pieces.len() < keys.len() / 3, "{pieces:?}");
    }

    #[test]
    fn pieces_are_short_but_not_too_short() {
        let keys: Vec<_> = (0..2000u32).map(|number| format!("user{:012}", number * 37)).collect();
        for (value, count) in [(100, 1), (100, 40), (100, 100), (100, 1000), (1000, 3), (1000, 50), (4, 2000)]
        {
            let value = vec![7; value];
            let changes: Vec<_> = keys[..count].iter().map(|key| change(key.as_bytes(), &value)).collect();
            let pieces = pieces_of(&changes);
            let slack = logged_len(&changes[0]);
            for (bytes, fence) in &pieces {
                assert!(*bytes <= PIECE_LEN * 3 / 2 + slack, "{bytes}");
                assert!(pieces.len() == 1 || bytes + slack >= PIECE_LEN * 2 / 3, "{bytes}");
                assert!(*fence <= 16);
            }
        }
        // Keys of 20 KiB that differ at their end: the fences would be as long as the pieces.
        let keys: Vec<_> = (100..200).map(|number| format!("{}{number}", "x".repeat(20 << 10))).collect();
        let changes: Vec<_> = keys.iter().map(|key| change(key.as_bytes(), b"")).collect();
        let pieces = pieces_of(&changes);
        let are_long = pieces.windows(2).all(|pair| pair[1].1 as u64 * FENCE_SHARE <= pair[0].0);
        assert!(pieces.len() > 2 && are_long, "{pieces:?}");
    }

    proptest! {
        #[test]
        fn pieces_hold_all_changes_in_order_between_their_fences(lens in prop::collection::vec(0usize..40_000, 0..60)) {
            let keys: Vec<_> = (0..lens.len()).map(|index| format!("{index:04}")).collect();
            let bytes = [0; 40_000];
            let changes: Vec<_> = lens
                .iter()
                .zip(&keys)
                .map(|(len, key)| OperationRef {
                    keyspace: KeyspaceId(1),
                    key: key.as_bytes(),
                    value: (len % 7 > 0).then_some(&bytes[..*len % if len % 2 == 0 { 200 } else { 40_000 }]),
                })
                .collect();
            let pieces = cut(&changes);
            prop_assert_eq!(pieces.iter().flat_map(|piece| piece.changes.clone()).collect::<Vec<_>>(), (0..lens.len()).collect::<Vec<_>>());
            for (index, Piece { fence, changes: of_piece }) in pieces.iter().enumerate() {
                prop_assert!(!of_piece.is_empty());
                if index > 0 {
                    prop_assert!(changes[of_piece.start - 1].key < *fence && *fence <= changes[of_piece.start].key);
                }
            }
        }
    }
}
