//! E24: deletions by structure and write buffer (AS B-tree, figure 12).

use super::change_like_insert::{ChangeLikeInsert, OfBftl};
use super::e20_insert::BFTL_BEFORE;
use super::{Card, Cause, Device};
use crate::as_suite::{Act, X25_E_CACHE};

pub(super) const DELETE: ChangeLikeInsert = ChangeLikeInsert {
    card: &CARD,
    act: Act::Delete,
    bftl: OfBftl { least: 1.57, most: 2.33, told: "1.57 to 2.3, as one reads \"57 % faster\"" },
};

static CARD: Card = Card {
    number: 24,
    name: "as-delete",
    title: "Deletion: as insertion, without splits",
    source: "AS B-tree, Journal of Information Science and Engineering 30, 2014, figure 12",
    question: "A deletion reads and writes the same nodes as an insertion does, unless nodes become too empty. Do the trees stand to each other \
               as they do when records are inserted?",
    reported: "The AS B-tree with F = 256 and 32 nodes of buffer takes 21 % less time than the B+-tree, and is 57 % faster than BFTL.",
    absent: &[(Device::Nand, "the B+-tree overwrites pages, which raw flash cannot")],
    causes: &[
        Cause { device: Device::Ssdsim, scale: None, key: "rank", text: BFTL_BEFORE },
        Cause { device: Device::Ssdsim, scale: None, key: "X25-E", text: X25_E_CACHE },
    ],
};
