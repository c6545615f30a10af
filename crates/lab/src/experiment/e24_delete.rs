//! E24: deletions by structure and write buffer (AS B-tree, figure 12).

use super::change_like_insert::{Figure, acts, judge_alike};
use super::e22_search::fanouts;
use super::{Card, Device, Parameter, Scale, Study};
use crate::as_suite::{self, Act, Recipe};
use crate::chart::Chart;
use crate::failure::Result;
use crate::judgement::Judgement;
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Simulated, Wall};
use crate::row::{Missing, Rows};
use crate::tree_ground::TreeGround;

pub(super) struct Delete;

static CARD: Card = Card {
    number: 24,
    name: "as-delete",
    title: "Deletion: as insertion, without splits",
    source: "AS B-tree, Journal of Information Science and Engineering 30, 2014, figure 12",
    question: "A deletion reads and writes the same nodes as an insertion does, unless nodes become too empty. Do the trees stand to each other \
               as they do when records are inserted?",
    reported: "The AS B-tree with F = 256 and 32 nodes of buffer takes 21 % less time than the B+-tree, and is 57 % faster than BFTL.",
    absent: &[(Device::Nand, "the B+-tree overwrites pages, which raw flash cannot")],
    causes: &[],
};

const FIGURE: Figure = Figure { act: Act::Delete, bftl: "1.57 to 2.3, as one reads \"57 % faster\"" };

impl Study for Delete {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn parameters(&self, scale: Scale, device: Device) -> Vec<Parameter> {
        as_suite::parameters(scale, device, fanouts(scale, device))
    }

    fn on_disk(&self, laboratory: &Laboratory) -> Result<Rows<Wall>> {
        let recipes = Recipe::grid(fanouts(laboratory.scale, Device::Disk));
        as_suite::measure(laboratory, Device::Disk, ("", true), &recipes, &acts(FIGURE), |_| {
            laboratory.trees_on_disk()
        })
    }

    fn on_ssdsim(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        let recipes = Recipe::grid(fanouts(laboratory.scale, Device::Ssdsim));
        let ground = TreeGround::on_ssdsim;
        as_suite::measure(laboratory, Device::Ssdsim, ("", true), &recipes, &acts(FIGURE), ground)
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, device: Device) -> std::result::Result<Judgement, Missing> {
        judge_alike(rows, device, FIGURE)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        as_suite::draw(rows, CARD.title, "delete")
    }
}
