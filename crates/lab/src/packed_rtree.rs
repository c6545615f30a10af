//! A packed R-tree of points on a volume: many windows, and the neighbours of many points, at once, by MPSearch. (Guttman, SIGMOD 1984, packed as
//! Leutenegger, Lopez and Edgington do, ICDE 1997: sorted by x, cut into slices, each sorted by y. The MPSearch paper
//! names the R-tree first among the trees that it is for.)
//!
//! ```text
//! page: count (2 bytes), 6 free, then entries
//! leaf entry:  x, y (4 bytes each), record (8)
//! inner entry: least x, least y, most x, most y (4 bytes each), page of the child (8)
//! ```
//! Invariant: an entry of an inner page covers all points below it, bounds included.

mod nearest;

pub(crate) use nearest::PagesRead;

use crate::failure::Result;
use mpsearch::{Tree, Visit};
use psync::{Access, AlignedBuffer, FileId, Read, Volume, Write};
use std::ops::Range;
use std::sync::Arc;

const FILE: &str = "packed-rtree";
/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;
const HEAD: usize = 8;
const POINT: usize = 16;
const CHILD: usize = 24;
/// Pages that are written at once.
const WRITTEN: usize = 64;

/// A point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    pub x: u32,
    pub y: u32,
}

/// A rectangle, bounds included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub x: (u32, u32),
    pub y: (u32, u32),
}

impl Window {
    fn of(point: Point) -> Self {
        Self { x: (point.x, point.x), y: (point.y, point.y) }
    }

    fn and(self, other: Self) -> Self {
        let join = |one: (u32, u32), other: (u32, u32)| (one.0.min(other.0), one.1.max(other.1));
        Self { x: join(self.x, other.x), y: join(self.y, other.y) }
    }

    pub fn meets(self, other: Self) -> bool {
        let meet = |one: (u32, u32), other: (u32, u32)| one.0 <= other.1 && other.0 <= one.1;
        meet(self.x, other.x) && meet(self.y, other.y)
    }
}

/// See the module.
pub(crate) struct PackedRTree {
    volume: Arc<dyn Volume>,
    file: FileId,
    root: u64,
    height: usize,
}

/// A page in memory: what it covers, and records or children.
type Entries = Vec<(Window, u64)>;

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn decode(page: &[u8], leaf: bool) -> Entries {
    let count = usize::from(page[0]) | usize::from(page[1]) << 8;
    let len = if leaf { POINT } else { CHILD };
    let entry = |index: usize| {
        let at = HEAD + index * len;
        let of = |field: usize| word(page, at + 4 * field);
        let long = |field: usize| u64::from(of(field)) | u64::from(of(field + 1)) << 32;
        if leaf {
            (Window::of(Point { x: of(0), y: of(1) }), long(2))
        } else {
            (Window { x: (of(0), of(2)), y: (of(1), of(3)) }, long(4))
        }
    };
    (0..count.min((PAGE - HEAD) / len)).map(entry).collect()
}

fn encode(entries: &[(Window, u64)], leaf: bool, page: &mut [u8]) {
    page.fill(0);
    page[..2].copy_from_slice(&(entries.len() as u16).to_le_bytes());
    let mut at = HEAD;
    for (window, id) in entries {
        let bounds = [window.x.0, window.y.0, window.x.1, window.y.1];
        for bound in &bounds[..if leaf { 2 } else { 4 }] {
            page[at..at + 4].copy_from_slice(&bound.to_le_bytes());
            at += 4;
        }
        page[at..at + 8].copy_from_slice(&id.to_le_bytes());
        at += 8;
    }
}

/// Groups of `per` entries whose windows are compact.
fn packed(mut entries: Entries, per: usize) -> Vec<Entries> {
    let groups = entries.len().div_ceil(per);
    let slice = (groups as f64).sqrt().ceil().max(1.0) as usize * per;
    entries.sort_by_key(|(window, id)| (window.x.0, *id));
    let mut packed = Vec::with_capacity(groups);
    for slice in entries.chunks_mut(slice) {
        slice.sort_by_key(|(window, id)| (window.y.0, *id));
        packed.extend(slice.chunks(per).map(<[_]>::to_vec));
    }
    packed
}

impl PackedRTree {
    /// Builds it with the points; the record of each is its position. There must be a point.
    pub fn build(volume: Arc<dyn Volume>, points: &[Point]) -> Result<Self> {
        let access = Access { write: true, create: true, create_new: true, direct: true };
        let file = volume.open(FILE, access)?;
        let mut level: Entries = (0..).zip(points).map(|(id, point)| (Window::of(*point), id)).collect();
        let (mut next, mut height, mut leaf) = (0, 0, true);
        loop {
            let nodes = packed(level, (PAGE - HEAD) / if leaf { POINT } else { CHILD });
            let first = next;
            for nodes in nodes.chunks(WRITTEN) {
                let mut pages = AlignedBuffer::new(nodes.len() * PAGE);
                for (node, page) in nodes.iter().zip(pages.chunks_mut(PAGE)) {
                    encode(node, leaf, page);
                }
                volume.write(&[Write { file, offset: next * PAGE as u64, data: &pages }])?;
                next += nodes.len() as u64;
            }
            if nodes.len() <= 1 {
                volume.sync(file)?;
                return Ok(Self { volume, file, root: first, height });
            }
            let cover = |node: &Entries| node.iter().map(|entry| entry.0).reduce(Window::and);
            level = nodes.iter().filter_map(cover).zip(first..).collect();
            (leaf, height) = (false, height + 1);
        }
    }

    /// Pages with one parallel read.
    fn read_pages(&self, pages: &[u64], leaves: bool) -> Result<Vec<Arc<Entries>>> {
        let mut buffers: Vec<AlignedBuffer> = pages.iter().map(|_| AlignedBuffer::new(PAGE)).collect();
        let each = pages.iter().zip(&mut buffers);
        let mut set: Vec<Read<'_>> =
            each.map(|(page, buffer)| Read { file: self.file, offset: page * PAGE as u64, buffer }).collect();
        self.volume.read(&mut set)?;
        Ok(buffers.iter().map(|buffer| Arc::new(decode(buffer, leaves))).collect())
    }

    /// The nodes of a group; one to which several stretches of queries go is read once.
    fn read_group(&self, height: usize, group: &[Visit<u64>]) -> Result<Vec<Arc<Entries>>> {
        let mut pages: Vec<u64> = group.iter().map(|visit| visit.place).collect();
        pages.sort_unstable();
        pages.dedup();
        let nodes = self.read_pages(&pages, height == 0)?;
        let node = |visit: &Visit<u64>| Arc::clone(&nodes[pages.partition_point(|page| *page < visit.place)]);
        Ok(group.iter().map(node).collect())
    }

    /// The records in each of the windows, in no order. Windows that are near each other should follow each other.
    pub fn search(&self, windows: &[Window], pio_max: usize) -> Result<Vec<Vec<u64>>> {
        let mut search = Search { tree: self, windows, found: vec![Vec::new(); windows.len()] };
        mpsearch::mpsearch(&mut search, self.root, self.height, 0..windows.len(), pio_max)?;
        Ok(search.found)
    }
}

struct Search<'a> {
    tree: &'a PackedRTree,
    windows: &'a [Window],
    found: Vec<Vec<u64>>,
}

impl Search<'_> {
    /// The runs of windows that meet an entry.
    fn runs(&self, window: Window, keys: Range<usize>) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        for index in keys.filter(|index| self.windows[*index].meets(window)) {
            match runs.last_mut() {
                Some(last) if last.end == index => last.end = index + 1,
                _ => runs.push(index..index + 1),
            }
        }
        runs
    }
}

impl Tree for Search<'_> {
    type Place = u64;
    type Node = Arc<Entries>;
    type Error = crate::failure::Failure;

    fn read(&mut self, height: usize, group: &[Visit<u64>]) -> Result<Vec<Arc<Entries>>> {
        self.tree.read_group(height, group)
    }

    fn descend(
        &mut self,
        _: usize,
        node: Arc<Entries>,
        visit: Visit<u64>,
        below: &mut Vec<Visit<u64>>,
    ) -> Result<()> {
        for (window, place) in &*node {
            let runs = self.runs(*window, visit.keys.clone());
            below.extend(runs.into_iter().map(|keys| Visit { place: *place, keys }));
        }
        Ok(())
    }

    fn deliver(&mut self, group: Vec<(Visit<u64>, Arc<Entries>)>) -> Result<()> {
        for (visit, node) in group {
            for index in visit.keys {
                let met = node.iter().filter(|(point, _)| self.windows[index].meets(*point));
                self.found[index].extend(met.map(|(_, record)| *record));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    #[test]
    fn windows_find_what_a_look_at_all_points_finds_whatever_pio_max() {
        let mut rng = StdRng::seed_from_u64(3);
        let points: Vec<Point> = (0..50_000)
            .map(|_| Point { x: rng.random_range(0..1000), y: rng.random_range(0..1000) })
            .collect();
        let volume = psync::Simulated::new(1).with_alignment(4096).with_pio_max(64);
        let tree = PackedRTree::build(Arc::new(volume.clone()), &points).unwrap();
        assert_eq!(tree.height, 2);
        let window = |rng: &mut StdRng| {
            let (x, y) = (rng.random_range(0..980), rng.random_range(0..980));
            Window { x: (x, x + rng.random_range(0..20)), y: (y, y + rng.random_range(0..20)) }
        };
        let mut windows: Vec<Window> = (0..100).map(|_| window(&mut rng)).collect();
        windows.sort_by_key(|window| window.x.0 / 50);
        let all = |window: &Window| -> Vec<u64> {
            let met = (0..).zip(&points).filter(|(_, point)| window.meets(Window::of(**point)));
            met.map(|(id, _)| id).collect()
        };
        for pio_max in [1, 7, 64] {
            let mut found = tree.search(&windows, pio_max).unwrap();
            found.iter_mut().for_each(|found| found.sort_unstable());
            assert_eq!(found, windows.iter().map(all).collect::<Vec<_>>(), "PioMax {pio_max}");
        }
    }
}
