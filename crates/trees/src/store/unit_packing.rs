//! Which index units share a sector. (As BFTL packs them: Wu, Kuo and Chang, ACM TECS 2007.)

use crate::page::NodeId;
use crate::page::unit_page::Unit;

/// Packs units into sectors, first fit decreasing, so that one node's units share a sector; groups larger than a sector
/// are cut. A node's pieces are in sectors of ascending order, and no two in the same.
pub(crate) fn pack(groups: &[(NodeId, Vec<Unit>)], per_sector: usize) -> Vec<Vec<&[Unit]>> {
    let mut pieces: Vec<&[Unit]> = groups.iter().flat_map(|(_, units)| units.chunks(per_sector)).collect();
    // Stable: a node's whole sectors come before its rest.
    pieces.sort_by_key(|piece| std::cmp::Reverse(piece.len()));
    let mut sectors: Vec<(usize, Vec<&[Unit]>)> = Vec::new();
    for piece in pieces {
        match sectors.iter_mut().find(|(used, _)| used + piece.len() <= per_sector) {
            Some((used, sector)) => {
                *used += piece.len();
                sector.push(piece);
            }
            None => sectors.push((piece.len(), vec![piece])),
        }
    }
    sectors.into_iter().map(|(_, sector)| sector).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::unit_page::What;

    #[test]
    fn units_of_a_node_share_a_sector_and_large_groups_are_cut_in_order() {
        let group = |node, count: u64| {
            let unit = |key| Unit { node: NodeId(node), key, what: What::Remove };
            (NodeId(node), (0..count).map(unit).collect::<Vec<_>>())
        };
        let groups = [group(1, 3), group(2, 7), group(3, 25), group(4, 3), group(5, 5), group(6, 2)];
        let sectors = pack(&groups, 10);
        let story: Vec<Vec<(u64, usize)>> = sectors
            .iter()
            .map(|sector| sector.iter().map(|piece| (piece[0].node.0, piece.len())).collect())
            .collect();
        assert_eq!(
            story,
            [vec![(3, 10)], vec![(3, 10)], vec![(2, 7), (1, 3)], vec![(3, 5), (5, 5)], vec![(4, 3), (6, 2)]]
        );
        assert_eq!(sectors[3][0][0].key, 20, "the rest of node 3 is its end");
    }
}
