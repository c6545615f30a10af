//! E23: updates by structure and write buffer (AS B-tree, figure 11).

use super::change_like_insert::{ChangeLikeInsert, OfBftl};
use super::e20_insert::BFTL_BEFORE;
use super::{Card, Cause, Device};
use crate::as_suite::{Act, X25_E_CACHE};

pub(super) const UPDATE: ChangeLikeInsert = ChangeLikeInsert {
    card: &CARD,
    act: Act::Update,
    bftl: OfBftl { least: 1.32, most: 1.47, told: "1.32 to 1.47, as one reads \"32 % faster\"" },
};

static CARD: Card = Card {
    number: 23,
    name: "as-update",
    title: "Update: as insertion, without splits",
    source: "AS B-tree, Journal of Information Science and Engineering 30, 2014, figure 11",
    question: "An update reads and writes the same nodes as an insertion does, but no node grows. Do the trees stand to each other \
               as they do when records are inserted?",
    reported: "The AS B-tree with F = 256 and 32 nodes of buffer takes 21 % less time than the B+-tree, and is 32 % faster than BFTL.",
    absent: &[(Device::Nand, "the B+-tree overwrites pages, which raw flash cannot")],
    causes: &[
        Cause { device: Device::Ssdsim, scale: None, key: "rank", text: BFTL_BEFORE },
        Cause { device: Device::Ssdsim, scale: None, key: "X25-E", text: X25_E_CACHE },
    ],
};
