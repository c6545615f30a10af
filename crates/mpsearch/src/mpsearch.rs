//! MPSearch: a sorted set of keys goes down a tree, one parallel read a level and group. (VLDB 2011, algorithm 1.)
//!
//! Invariants:
//! 1. A node is read at most once, and only if keys of the set go there, or the tree asks for it ([`Tree::descend`]).
//! 2. No call of [`Tree::read`] has more than PioMax nodes, nor more than the tree wants in memory together
//!    ([`Tree::fits`]); a group may span the children of several parents.
//! 3. Depth first over groups: a group's whole subtree is finished before the next group of its level is read, so
//!    that at most PioMax nodes a level are in memory (PioMax × (height - 1), the root aside).
//! 4. Leaves are delivered in key order.

use std::borrow::Borrow;
use std::ops::Range;

/// A node to visit, and which part of the sorted key set goes there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visit<P> {
    /// What the tree needs to find the node (its id, its parent, ...).
    pub place: P,
    /// Indexes into the key set. Empty only if [`Tree::descend`] made it so.
    pub keys: Range<usize>,
}

/// What MPSearch needs of a tree.
pub trait Tree {
    /// Tells where a node is.
    type Place;
    /// A node in memory.
    type Node;
    /// What reading and delivering can fail with.
    type Error;

    /// Reads the nodes of one group with one parallel read; answers in the order asked. `height` counts from the
    /// leaves: they have 0.
    fn read(&mut self, height: usize, group: &[Visit<Self::Place>]) -> Result<Vec<Self::Node>, Self::Error>;

    /// How many of these next visits of a level may be in memory together; at least one is taken. All of them, unless
    /// nodes can be long.
    fn fits(&self, height: usize, visits: &[Visit<Self::Place>]) -> usize {
        let _ = height;
        visits.len()
    }

    /// Appends to `below` a visit for each child that keys of the visit go to, in key order. See [`fan_out`]. It may visit children between
    /// them that no keys go to as well.
    fn descend(
        &mut self,
        height: usize,
        node: Self::Node,
        visit: Visit<Self::Place>,
        below: &mut Vec<Visit<Self::Place>>,
    ) -> Result<(), Self::Error>;

    /// Takes a group of leaves, in key order.
    fn deliver(&mut self, group: Vec<(Visit<Self::Place>, Self::Node)>) -> Result<(), Self::Error>;
}

/// Takes `keys` (indexes into the caller's sorted key set) from the node at `root`, `height` levels above the
/// leaves, down to their leaves. With `pio_max` 1 this is an ordinary depth-first descent.
pub fn mpsearch<T: Tree>(
    tree: &mut T,
    root: T::Place,
    height: usize,
    keys: Range<usize>,
    pio_max: usize,
) -> Result<(), T::Error> {
    if keys.is_empty() {
        return Ok(());
    }
    level(tree, height, vec![Visit { place: root, keys }], pio_max.max(1))
}

fn level<T: Tree>(
    tree: &mut T,
    height: usize,
    visits: Vec<Visit<T::Place>>,
    pio_max: usize,
) -> Result<(), T::Error> {
    let mut visits = visits.into_iter();
    loop {
        let next = visits.as_slice();
        let fits = tree.fits(height, &next[..pio_max.min(next.len())]).clamp(1, pio_max);
        let group: Vec<_> = visits.by_ref().take(fits).collect();
        if group.is_empty() {
            return Ok(());
        }
        let nodes = tree.read(height, &group)?;
        debug_assert_eq!(nodes.len(), group.len(), "a tree answers each visit of a group");
        if height == 0 {
            tree.deliver(group.into_iter().zip(nodes).collect())?;
        } else {
            let mut below = Vec::with_capacity(group.len());
            for (visit, node) in group.into_iter().zip(nodes) {
                tree.descend(height, node, visit, &mut below)?;
            }
            level(tree, height - 1, below, pio_max)?;
        }
    }
}

/// Divides `keys` among the children of an inner node and calls `emit(child, its keys)` in key order, for children
/// that get any. `key(i)` is the i-th key of the sorted set, `child_of(key)` the child whose range holds the key,
/// `fence_above(child)` the smallest key beyond that child (`None` for the last). O(visited children × log).
pub fn fan_out<K, Key, Fence>(
    keys: Range<usize>,
    key: impl Fn(usize) -> Key,
    child_of: impl Fn(&K) -> usize,
    fence_above: impl Fn(usize) -> Option<Fence>,
    mut emit: impl FnMut(usize, Range<usize>),
) where
    K: Ord + ?Sized,
    Key: Borrow<K>,
    Fence: Borrow<K>,
{
    let mut start = keys.start;
    while start < keys.end {
        let child = child_of(key(start).borrow());
        let end = match fence_above(child) {
            None => keys.end,
            Some(fence) => first_at_or_above(start + 1..keys.end, &key, fence.borrow()),
        };
        emit(child, start..end);
        start = end;
    }
}

/// Index of the first key in `keys` that is at or above `fence`, or the end. Gallops, since the answer is mostly near.
fn first_at_or_above<K: Ord + ?Sized, Key: Borrow<K>>(
    keys: Range<usize>,
    key: &impl Fn(usize) -> Key,
    fence: &K,
) -> usize {
    let (mut low, mut step) = (keys.start, 1);
    while low + step < keys.end && key(low + step).borrow() < fence {
        low += step;
        step *= 2;
    }
    let mut high = (low + step).min(keys.end);
    while low < high {
        let middle = low + (high - low) / 2;
        if key(middle).borrow() < fence {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    /// A complete tree over the keys 0..: leaf i holds `i * per_leaf ..`, inner nodes have `fan` children.
    struct Numbers {
        keys: Vec<u64>,
        fan: u64,
        per_leaf: u64,
        groups: Vec<(usize, usize)>,
        delivered: Vec<(u64, Vec<u64>)>,
        in_memory_max: usize,
    }

    impl Numbers {
        fn span(&self, height: usize) -> u64 {
            self.per_leaf * self.fan.pow(height as u32)
        }
    }

    impl Tree for Numbers {
        type Place = u64; // the smallest key under the node
        type Node = u64;
        type Error = Infallible;

        fn read(&mut self, height: usize, group: &[Visit<u64>]) -> Result<Vec<u64>, Infallible> {
            self.groups.push((height, group.len()));
            self.in_memory_max = self.in_memory_max.max(group.len());
            Ok(group.iter().map(|visit| visit.place).collect())
        }

        fn descend(
            &mut self,
            height: usize,
            node: u64,
            visit: Visit<u64>,
            below: &mut Vec<Visit<u64>>,
        ) -> Result<(), Infallible> {
            let (span, last) = (self.span(height - 1), self.fan - 1);
            fan_out::<u64, _, _>(
                visit.keys,
                |i| self.keys[i],
                |key| ((key - node) / span).min(last) as usize,
                |child| (child as u64 != last).then(|| node + (child as u64 + 1) * span),
                |child, keys| below.push(Visit { place: node + child as u64 * span, keys }),
            );
            Ok(())
        }

        fn deliver(&mut self, group: Vec<(Visit<u64>, u64)>) -> Result<(), Infallible> {
            for (visit, node) in group {
                self.delivered.push((node, self.keys[visit.keys].to_vec()));
            }
            Ok(())
        }
    }

    fn search(keys: Vec<u64>, height: usize, pio_max: usize) -> Numbers {
        let count = keys.len();
        let mut tree = Numbers {
            keys,
            fan: 4,
            per_leaf: 8,
            groups: Vec::new(),
            delivered: Vec::new(),
            in_memory_max: 0,
        };
        mpsearch(&mut tree, 0, height, 0..count, pio_max).expect("cannot fail");
        tree
    }

    #[test]
    fn one_parallel_read_a_level_when_the_keys_fit_one_group() {
        let tree = search((0..64).map(|i| i * 8).collect(), 3, 64);
        assert_eq!(tree.groups, [(3, 1), (2, 4), (1, 16), (0, 64)]);
    }

    #[test]
    fn keys_arrive_at_their_leaves_in_order_for_every_pio_max() {
        let keys: Vec<u64> = (0..500).filter(|i| i % 7 != 3).collect();
        for pio_max in [1, 2, 3, 7, 64, 1000] {
            let tree = search(keys.clone(), 3, pio_max);
            let all: Vec<u64> = tree.delivered.iter().flat_map(|(_, keys)| keys.clone()).collect();
            assert_eq!(all, keys);
            for (leaf, keys) in &tree.delivered {
                assert!(keys.iter().all(|key| key / 8 * 8 == *leaf), "leaf {leaf} got {keys:?}");
            }
            assert!(tree.in_memory_max <= pio_max);
            let nodes: usize = tree.groups.iter().map(|(_, count)| count).sum();
            assert_eq!(nodes, 63 + 16 + 4 + 1, "each node is read once");
        }
    }

    #[test]
    fn no_keys_no_reads() {
        assert!(search(Vec::new(), 3, 64).groups.is_empty());
    }
}
