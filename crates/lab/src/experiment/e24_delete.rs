//! E24: deletions by structure and write buffer (AS B-tree, figure 12).

use super::change_like_insert::{ChangeLikeInsert, OfBftl};
use super::e20_insert::{BFTL_BEFORE, IN_PLACE_ALONE};
use super::{Card, Cause, Device};
use crate::as_suite::{Act, X25_E_CACHE};

pub(super) const DELETE: ChangeLikeInsert = ChangeLikeInsert {
    card: &CARD,
    act: Act::Delete,
    bftl: OfBftl { least: 1.57, most: 2.33, told: "\"57 % faster\"" },
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
        Cause { device: Device::Ssdsim, scale: None, key: "in-place", text: IN_PLACE_ALONE },
        Cause {
            device: Device::Ssdsim,
            scale: None,
            key: "bftl",
            text: "by 0.01 too little: reads are all that BFTL's time is (407 of 411 us at ci, 408 of 412 at std), and its lists have 1.33 sectors for \
                   a node, where the paper's have 1.49: 4.9 reads a deletion with those to compact, to the AS B-tree's 3.0. With shorter \
                   lists, which could have refuted it, it is less: 1.26 sectors, 4.4 reads and 1.41 times after 8000 insertions (E20 at ci)",
        },
        Cause { device: Device::Ssdsim, scale: None, key: "X25-E", text: X25_E_CACHE },
    ],
};
