//! IBSF (Lee and Lee, "An Efficient Index Buffer Management Scheme for Implementing a B-tree on NAND Flash Memory", Data &
//! Knowledge Engineering 2010; a comparator of the CB-tree): updates wait in a buffer, of each key the last one only; when
//! it is full, all that wait for the leaf of the *oldest* update are written with that leaf as one page.
//!
//! The [tree behind a buffer of updates](crate::UnitTree) with this victim.

use crate::buffer::unit_buffer::Victim;
use crate::system::unit_tree::{UnitTree, UnitTreeOptions, VictimChoice};

/// The victim is the leaf of the update that came first.
#[derive(Clone, Copy, Debug, Default)]
pub struct OldestUnit;

impl VictimChoice for OldestUnit {
    const NAME: &'static str = "IBSF";
    const FILE: &'static str = "ibsf";

    fn victim(self) -> Victim {
        Victim::OldestUnit
    }
}

/// See the module.
pub type Ibsf = UnitTree<OldestUnit>;

/// What an [`Ibsf`] is built with.
pub type IbsfOptions = UnitTreeOptions<OldestUnit>;
