//! **mpsearch**: which nodes of a tree to read together.
//!
//! Pure planning, no I/O of its own, for any tree of sorted nodes:
//! - [`mpsearch`]: many keys go down a tree level by level, and the nodes that a level needs are read in groups of
//!   at most PioMax, each with one parallel read ([`Tree::read`]).
//! - [`fan_out`]: the keys that reached an inner node, divided among its children.
//! - [`Gather`]: point searches of many threads, gathered into one such search.
//! - [`ReadAhead`] and [`runs`]: the parallel range search, prange: how many leaves to read next, and which of them
//!   lie so close together that one request brings them all.
//!
//! # A tree of one's own
//!
//! Bring the keys sorted, and tell how nodes are read, who the children are, and what to do with leaves. Here nodes are in a
//! `Vec`, and a read of many is a loop; on a device it is one submission of many requests, such as io_uring takes.
//!
//! ```
//! use mpsearch::{Tree, Visit, fan_out, mpsearch};
//! use std::convert::Infallible;
//!
//! #[derive(Clone)]
//! enum Node {
//!     /// Least key of each child but the first, and where the children are.
//!     Inner(Vec<u64>, Vec<usize>),
//!     Leaf(Vec<(u64, &'static str)>),
//! }
//!
//! struct Search<'a> {
//!     nodes: &'a [Node],
//!     keys: &'a [u64],
//!     found: Vec<Option<&'static str>>,
//!     reads: Vec<usize>,
//! }
//!
//! impl Tree for Search<'_> {
//!     type Place = usize;
//!     type Node = Node;
//!     type Error = Infallible;
//!
//!     // One parallel read.
//!     fn read(&mut self, _height: usize, group: &[Visit<usize>]) -> Result<Vec<Node>, Infallible> {
//!         self.reads.push(group.len());
//!         Ok(group.iter().map(|visit| self.nodes[visit.place].clone()).collect())
//!     }
//!
//!     fn descend(
//!         &mut self,
//!         _height: usize,
//!         node: Node,
//!         visit: Visit<usize>,
//!         below: &mut Vec<Visit<usize>>,
//!     ) -> Result<(), Infallible> {
//!         let Node::Inner(fences, children) = node else { unreachable!("all leaves are equally deep") };
//!         let keys = self.keys;
//!         fan_out(
//!             visit.keys,
//!             |index| keys[index],
//!             |key| fences.partition_point(|fence| fence <= key),
//!             |child| fences.get(child).copied(),
//!             |child, keys| below.push(Visit { place: children[child], keys }),
//!         );
//!         Ok(())
//!     }
//!
//!     fn deliver(&mut self, group: Vec<(Visit<usize>, Node)>) -> Result<(), Infallible> {
//!         for (visit, node) in group {
//!             let Node::Leaf(records) = node else { unreachable!("height 0 has leaves alone") };
//!             for index in visit.keys {
//!                 let at = records.iter().position(|(key, _)| *key == self.keys[index]);
//!                 self.found[index] = at.map(|at| records[at].1);
//!             }
//!         }
//!         Ok(())
//!     }
//! }
//!
//! let nodes = [
//!     Node::Inner(vec![20, 40], vec![1, 2, 3]),
//!     Node::Leaf(vec![(1, "one"), (7, "seven")]),
//!     Node::Leaf(vec![(20, "twenty"), (30, "thirty")]),
//!     Node::Leaf(vec![(40, "forty"), (50, "fifty")]),
//! ];
//! let keys = [1, 7, 8, 50];
//! let mut search = Search { nodes: &nodes, keys: &keys, found: vec![None; keys.len()], reads: Vec::new() };
//! mpsearch(&mut search, 0, 1, 0..keys.len(), 64)?;
//! assert_eq!(search.found, [Some("one"), Some("seven"), None, Some("fifty")]);
//! assert_eq!(search.reads, [1, 2], "the root, then two leaves at once; the one in the middle is not asked for");
//! # Ok::<(), Infallible>(())
//! ```
//!
//! # Trees that are no B+-trees
//!
//! Section 3 of the Bulletin paper names others, and each is done in this project:
//! - Many sorted runs, as an LSM-tree has: a root in memory is above all of them, the index page of a part of a run is an inner node, a
//!   block a leaf. [`Tree::descend`] sends a key to the runs that may have it (several visits may hold the same key), and to
//!   no block that a filter denies; [`Tree::deliver`] lets the newest run win. (`trees::LsmTree`)
//! - Buffers in inner nodes, as a Bε-tree (fractal tree) has: [`Tree::descend`] answers the keys that the buffer knows and
//!   visits no child for those alone. (`trees::BEpsilonTree`)
//! - Runs with fences from one to the next, as an FD-tree has: a run is a level. (`trees::FdTree`)
//! - Children that overlap, as an R-tree has: the "keys" are windows in some order that keeps near ones together, and a child
//!   gets a visit for each stretch of windows that meet it. Nearest neighbours take two such searches: the first goes to one
//!   leaf a query and bounds its distances, the second to all nodes within. (`lab`, `packed_rtree`)
//!
//! Sources: Roh et al., "B+-tree Index Optimization by Exploiting Internal Parallelism of Flash-based Solid State
//! Drives", VLDB 2011, section 3.1.1; Roh, Park, Shin and Lee, "MPSearch: Multi-Path Search for Tree-based Indexes to
//! Exploit Internal Parallelism of Flash SSDs", IEEE Data Engineering Bulletin 2014.

mod gather;
mod mpsearch;
mod prange;

pub use gather::Gather;
pub use mpsearch::{Tree, Visit, fan_out, mpsearch};
pub use prange::{Extent, ReadAhead, Run, runs};
