//! E23: updates by structure and write buffer (AS B-tree, figure 11).

use super::change_like_insert::{ChangeLikeInsert, OfBftl};
use super::e20_insert::{BFTL_BEFORE, IN_PLACE_ALONE};
use super::{Card, Cause, Device};
use crate::as_suite::{Act, X25_E_CACHE};

pub(super) const UPDATE: ChangeLikeInsert = ChangeLikeInsert {
    card: &CARD,
    act: Act::Update,
    bftl: OfBftl { least: 1.32, most: 1.47, told: "\"32 % faster\"" },
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
        Cause { device: Device::Ssdsim, scale: None, key: "in-place", text: IN_PLACE_ALONE },
        Cause {
            device: Device::Ssdsim,
            scale: None,
            key: "bftl",
            text: "BFTL's updates cost here what its insertions and deletions cost, 1.55 to 1.56 times the AS B-tree's time at std (E20, E24). The paper \
                   says so of its own (\"a similar pattern\"), but prints 32 % for updates and 57 % for the others: of that difference its text gives no \
                   reason, and nothing here has it",
        },
        Cause { device: Device::Ssdsim, scale: None, key: "X25-E", text: X25_E_CACHE },
    ],
};
