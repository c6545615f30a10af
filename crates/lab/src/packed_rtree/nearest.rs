//! Nearest neighbours in a packed R-tree: for one point after the other, best first, and for many points at once, by MPSearch.
//!
//! Best first (Hjaltason and Samet, TODS 24(2), 1999) reads no page that it need not, one at a time: what to read next is known
//! when the last page has come. So many points go another way (as Roussopoulos, Kelley and Vincent, SIGMOD 1995, go from a
//! first candidate to all that may be nearer), in two searches:
//! 1. Each point goes to the nearest child only, down to one leaf: its points bound how far the k-th neighbour can be.
//! 2. Each point goes to all nodes that are no farther than its bound, which shrinks meanwhile.
//!
//! Invariant: the bound of a point is never less than the distance of its k-th neighbour.

use super::{Entries, PackedRTree, Point, Window};
use crate::failure::Result;
use mpsearch::{Tree, Visit};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::sync::Arc;

/// Square of a distance: two coordinates of 32 bits have one of up to 65.
pub(crate) type Square = u128;

/// Records, nearest first, each with the square of its distance.
pub(crate) type Neighbours = Vec<(Square, u64)>;

/// How far a coordinate is from a stretch: at least and at most.
fn apart(at: u32, (low, high): (u32, u32)) -> (u32, u32) {
    let least = low.saturating_sub(at).max(at.saturating_sub(high));
    (least, at.abs_diff(low).max(at.abs_diff(high)))
}

fn square(x: u32, y: u32) -> Square {
    Square::from(x) * Square::from(x) + Square::from(y) * Square::from(y)
}

impl Window {
    /// How far the nearest and the farthest of it is from a point.
    fn distances(self, point: Point) -> (Square, Square) {
        let (x, y) = (apart(point.x, self.x), apart(point.y, self.y));
        (square(x.0, y.0), square(x.1, y.1))
    }
}

/// The nearest so far, and how far others may be.
#[derive(Clone, Debug, Default)]
struct Found {
    /// A heap with the farthest on top, of `count` at most.
    nearest: BinaryHeap<(Square, u64)>,
    /// The farthest that a node may be, if anything is known.
    bound: Option<Square>,
    /// The leaf that was seen already.
    seen: Option<u64>,
}

impl Found {
    fn may_be_in(&self, window: Window, point: Point) -> bool {
        self.bound.is_none_or(|bound| window.distances(point).0 <= bound)
    }

    fn lower(&mut self, bound: Square) {
        self.bound = Some(self.bound.map_or(bound, |old| old.min(bound)));
    }

    /// Takes the points of a leaf in.
    fn take(&mut self, leaf: &Entries, point: Point, count: usize) {
        for (window, record) in leaf {
            self.nearest.push((window.distances(point).0, *record));
            if self.nearest.len() > count {
                self.nearest.pop();
            }
        }
        if self.nearest.len() == count
            && let Some((farthest, _)) = self.nearest.peek()
        {
            self.lower(*farthest);
        }
    }

    /// Nearest first.
    fn answer(self) -> Neighbours {
        self.nearest.into_sorted_vec()
    }
}

impl PackedRTree {
    /// The `count` nearest records of a point, nearest first, each with the square of its distance; of records that are equally
    /// far the lower ones. Best first: one page after the other, and none in vain.
    pub fn nearest(&self, point: Point, count: usize) -> Result<Neighbours> {
        let mut found = Found::default();
        // Pages by the least distance that a point in them may have.
        let mut next = BinaryHeap::from([Reverse((0, self.root, self.height))]);
        while let Some(Reverse((distance, page, height))) = next.pop() {
            if found.bound.is_some_and(|bound| distance > bound) {
                break;
            }
            let mut read = self.read_pages(&[page], height == 0)?;
            let Some(node) = read.pop() else { continue };
            if height == 0 {
                found.take(&node, point, count);
                continue;
            }
            let near = node.iter().map(|(window, child)| (window.distances(point).0, *child));
            next.extend(near.map(|(distance, child)| Reverse((distance, child, height - 1))));
        }
        Ok(found.answer())
    }

    /// The same for many points, and what was read for it. Points that are near each other should follow each other.
    pub fn nearest_of_many(
        &self,
        points: &[Point],
        count: usize,
        pio_max: usize,
    ) -> Result<(Vec<Neighbours>, PagesRead)> {
        let found = vec![Found::default(); points.len()];
        let mut search = Nearest {
            tree: self,
            points,
            count,
            found,
            is_first: true,
            read: HashSet::new(),
            pages: PagesRead::default(),
        };
        mpsearch::mpsearch(&mut search, self.root, self.height, 0..points.len(), pio_max)?;
        search.is_first = false;
        mpsearch::mpsearch(&mut search, self.root, self.height, 0..points.len(), pio_max)?;
        Ok((search.found.into_iter().map(Found::answer).collect(), search.pages))
    }
}

/// Pages that the two searches read; those that several queries of a group go to count once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PagesRead {
    pub first: u64,
    pub second: u64,
    /// Of the second's, those that the first had read.
    pub again: u64,
}

struct Nearest<'a> {
    tree: &'a PackedRTree,
    points: &'a [Point],
    count: usize,
    found: Vec<Found>,
    /// Whether each point goes to one leaf only.
    is_first: bool,
    /// Pages of the first search.
    read: HashSet<u64>,
    pages: PagesRead,
}

impl Nearest<'_> {
    /// Which children a point goes to, by position.
    fn children_of(&mut self, index: usize, node: &Entries) -> Vec<usize> {
        let (point, found) = (self.points[index], &mut self.found[index]);
        if self.is_first {
            let nearest = (0..node.len()).min_by_key(|child| node[*child].0.distances(point));
            return nearest.into_iter().collect();
        }
        // Each child has a point at least, so the k-th that is wholly near bounds the k-th neighbour.
        let mut farthest: Vec<Square> = node.iter().map(|(window, _)| window.distances(point).1).collect();
        if let Some(last) = self.count.checked_sub(1).filter(|last| *last < farthest.len()) {
            found.lower(*farthest.select_nth_unstable(last).1);
        }
        let goes = |child: &usize| {
            let (window, page) = node[*child];
            found.may_be_in(window, point) && found.seen != Some(page)
        };
        (0..node.len()).filter(goes).collect()
    }
}

impl Tree for Nearest<'_> {
    type Place = u64;
    type Node = Arc<Entries>;
    type Error = crate::failure::Failure;

    fn read(&mut self, height: usize, group: &[Visit<u64>]) -> Result<Vec<Arc<Entries>>> {
        let pages: HashSet<u64> = group.iter().map(|visit| visit.place).collect();
        if self.is_first {
            self.pages.first += pages.len() as u64;
            self.read.extend(pages);
        } else {
            self.pages.second += pages.len() as u64;
            self.pages.again += pages.intersection(&self.read).count() as u64;
        }
        self.tree.read_group(height, group)
    }

    fn descend(
        &mut self,
        _: usize,
        node: Arc<Entries>,
        visit: Visit<u64>,
        below: &mut Vec<Visit<u64>>,
    ) -> Result<()> {
        let mut visits: Vec<Vec<std::ops::Range<usize>>> = vec![Vec::new(); node.len()];
        for index in visit.keys {
            for child in self.children_of(index, &node) {
                match visits[child].last_mut() {
                    Some(last) if last.end == index => last.end = index + 1,
                    _ => visits[child].push(index..index + 1),
                }
            }
        }
        for ((_, place), stretches) in node.iter().zip(visits) {
            below.extend(stretches.into_iter().map(|keys| Visit { place: *place, keys }));
        }
        Ok(())
    }

    fn deliver(&mut self, group: Vec<(Visit<u64>, Arc<Entries>)>) -> Result<()> {
        for (visit, leaf) in group {
            for index in visit.keys {
                let found = &mut self.found[index];
                // The root may be the only leaf.
                if found.seen != Some(visit.place) {
                    found.take(&leaf, self.points[index], self.count);
                }
                if self.is_first {
                    found.seen = Some(visit.place);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use psync::Device;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    fn checked(points: &[Point], queries: &[Point], count: usize) -> (u64, u64) {
        let volume = psync::Simulated::new(1).with_alignment(4096).with_pio_max(64);
        let tree = PackedRTree::build(Arc::new(volume.clone()), points).unwrap();
        let expected: Vec<_> = queries
            .iter()
            .map(|query| {
                let mut all: Vec<_> = (0..)
                    .zip(points)
                    .map(|(id, point)| (square(point.x.abs_diff(query.x), point.y.abs_diff(query.y)), id))
                    .collect();
                all.sort_unstable();
                all.truncate(count);
                all
            })
            .collect();
        let alone = |query: &Point| tree.nearest(*query, count).unwrap();
        let before = volume.counters();
        assert_eq!(queries.iter().map(alone).collect::<Vec<_>>(), expected);
        let single = (volume.counters() - before).reads;
        let mut reads = 0;
        for pio_max in [1, 7, 64] {
            let before = volume.counters();
            let (found, pages) = tree.nearest_of_many(queries, count, pio_max).unwrap();
            assert_eq!(found, expected, "PioMax {pio_max}");
            reads = (volume.counters() - before).reads;
            assert_eq!(pages.first + pages.second, reads);
            assert!(
                pages.again > 0 && pages.again <= pages.second,
                "the root at least is read twice: {pages:?}"
            );
        }
        (single, reads)
    }

    #[test]
    fn the_nearest_are_those_that_a_look_at_all_points_finds() {
        let mut rng = StdRng::seed_from_u64(3);
        let mut random = |count: usize, max: u32| -> Vec<Point> {
            (0..count).map(|_| Point { x: rng.random_range(0..max), y: rng.random_range(0..max) }).collect()
        };
        for (count, max) in [(50_000, 1_000_000), (20_000, 300), (3, 1000), (300, u32::MAX)] {
            let points = random(count, max);
            let mut queries = random(60, max);
            queries.sort_by_key(|query| (query.x / (max / 8).max(1), query.y));
            for neighbours in [1, 8] {
                let (single, many) = checked(&points, &queries, neighbours);
                // Its two searches read little that the best order would not have read, and inner pages once a set.
                assert!(many <= 2 * single, "{many} pages, {single} one by one");
            }
        }
    }
}
