//! The lazy-update B+-tree (On, Hu, Li and Xu, "Lazy-Update B+-Tree for Flash Devices", MDM 2009; a comparator of the
//! CB-tree): updates wait in a buffer, in groups by the leaf that they are for; when it is full, one group is committed.
//!
//! The [tree behind a buffer of updates](crate::UnitTree) with [these victims](crate::VictimPolicy). To know the group of a new
//! key it reads the inner nodes on the way to its leaf, unless a group is there for it already.

use crate::buffer::unit_buffer::{Victim, VictimPolicy};
use crate::system::unit_tree::{UnitTree, UnitTreeOptions, VictimChoice};

impl VictimChoice for VictimPolicy {
    const NAME: &'static str = "LU-tree";
    const FILE: &'static str = "lutree";

    fn victim(self) -> Victim {
        Victim::Group(self)
    }
}

/// See the module.
pub type LuTree = UnitTree<VictimPolicy>;

/// What an [`LuTree`] is built with.
pub type LuTreeOptions = UnitTreeOptions<VictimPolicy>;
