//! Builds a tree from records in order: leaves from left to right, then level upon level.
//!
//! Invariant: every node is filled to `fill`, but for the last one or two of a level, which take what is left and are at
//! least half full, unless they are the root.

use crate::Result;
use crate::page::node::{Inner, Leaf, Node};
use crate::page::{Key, NodeId, Value};
use crate::store::{NodeStore, Root};
use crate::update::in_order::{InOrder, check_fill};
use crate::update::single::plant;

/// Nodes that are written at a time.
const GROUP: usize = 64;

/// Fills an empty store.
pub(crate) fn bulk_load(
    store: &mut impl NodeStore,
    fill: f64,
    records: &mut dyn Iterator<Item = (Key, Value)>,
) -> Result<()> {
    check_fill(fill)?;
    let shape = store.shape();
    let per_leaf = share(shape.records, fill);
    let mut records = InOrder::new(records);
    let mut group = Vec::new();
    let mut level = Vec::new();
    let mut next_id = store.allocate();
    for_each_chunk(&mut records, per_leaf, shape.records, &mut |entries, is_last| {
        let id = next_id;
        let next = if is_last { None } else { Some(store.allocate()) };
        next_id = next.unwrap_or(id);
        level.push((entries[0].0, id));
        group.push((id, Node::Leaf(Leaf { entries, next })));
        write_group(store, &mut group, is_last)
    })?;
    records.finish()?;
    if level.is_empty() {
        store.free(next_id)?;
        return plant(store);
    }
    let per_inner = share(shape.fanout, fill);
    let mut height = 0;
    while level.len() > 1 {
        height += 1;
        let mut above = Vec::new();
        let mut below = std::mem::take(&mut level).into_iter();
        for_each_chunk(&mut below, per_inner, shape.fanout, &mut |children, is_last| {
            let id = store.allocate();
            above.push((children[0].0, id));
            let fences = children[1..].iter().map(|child| child.0).collect();
            let children: Vec<NodeId> = children.into_iter().map(|child| child.1).collect();
            group.push((id, Node::Inner(Inner { level: height, fences, children })));
            write_group(store, &mut group, is_last)
        })?;
        level = above;
    }
    store.set_root(Root { id: level[0].1, level: height });
    store.settle()
}

/// How many of `max` a fill means: at least half.
pub(crate) fn share(max: usize, fill: f64) -> usize {
    ((max as f64 * fill) as usize).clamp(max.div_ceil(2), max)
}

fn write_group(store: &mut impl NodeStore, group: &mut Vec<(NodeId, Node)>, now: bool) -> Result<()> {
    if group.len() >= GROUP || now {
        store.write_many(std::mem::take(group))?;
    }
    Ok(())
}

/// Cuts items into chunks of `len`. What is left at the end goes into one chunk if that is at most `max`, else evenly
/// into two.
pub(crate) fn for_each_chunk<T>(
    items: &mut dyn Iterator<Item = T>,
    len: usize,
    max: usize,
    take: &mut dyn FnMut(Vec<T>, bool) -> Result<()>,
) -> Result<()> {
    let mut pending: Vec<T> = Vec::with_capacity(2 * len + 1);
    for item in items {
        pending.push(item);
        // One more than two chunks: so the last two are never cut from less than `len`.
        if pending.len() > 2 * len {
            let rest = pending.split_off(len);
            take(std::mem::replace(&mut pending, rest), false)?;
        }
    }
    if pending.is_empty() {
        return Ok(());
    }
    if pending.len() > max {
        let rest = pending.split_off(pending.len().div_ceil(2));
        take(std::mem::replace(&mut pending, rest), false)?;
    }
    take(pending, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_fits_into_one_or_is_shared_by_two() {
        for (count, sizes) in [
            (0, vec![]),
            (1, vec![1]),
            (10, vec![10]),
            (12, vec![12]),
            (13, vec![7, 6]),
            (20, vec![10, 10]),
            (21, vec![10, 11]),
            (23, vec![10, 7, 6]),
        ] {
            let mut found = Vec::new();
            for_each_chunk(&mut (0..count), 10, 12, &mut |chunk, is_last| {
                found.push((chunk.len(), is_last));
                Ok(())
            })
            .unwrap();
            assert_eq!(found.iter().map(|(len, _)| *len).collect::<Vec<_>>(), sizes);
            assert_eq!(found.iter().filter(|(_, is_last)| *is_last).count(), usize::from(count > 0));
        }
    }
}
