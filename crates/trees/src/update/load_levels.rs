//! Builds a tree in a store that is rewritten ([`Rewrite`]) from records in order: level upon level, since there a level may
//! have to be written before the next one can name it.
//!
//! Invariant: every node is filled to `fill` of what its level has room for, but for the last one or two of a level, which take
//! what is left and are at least half full, unless they are the root.

use crate::page::node::{Inner, Leaf, Node};
use crate::page::{Key, NodeId, Value};
use crate::store::Root;
use crate::store::nodes::Rewrite;
use crate::update::bulk_load::{for_each_chunk, share};
use crate::update::in_order::{InOrder, check_fill};
use crate::{Error, Result};

/// The root of an empty tree.
pub(crate) fn plant(store: &mut impl Rewrite) -> Result<()> {
    let id = store.replace(0, &[], vec![Node::Leaf(Leaf::default())])?[0];
    store.set_root(Root { id, level: 0 });
    Ok(())
}

/// Fills an empty store.
pub(crate) fn load_levels(
    store: &mut impl Rewrite,
    fill: f64,
    records: &mut dyn Iterator<Item = (Key, Value)>,
) -> Result<()> {
    check_fill(fill)?;
    let mut records = InOrder::new(records);
    let all: Vec<(Key, Value)> = records.by_ref().collect();
    records.finish()?;
    if all.is_empty() {
        return plant(store);
    }
    let height = height_for(store, fill, all.len())?;
    let mut children: Vec<(Key, NodeId)> = Vec::new();
    let leaves = chunks(all, fill, store.limits(0, height).max)?;
    for entries in leaves {
        let low = entries[0].0;
        children.push((low, store.replace(0, &[], vec![Node::Leaf(Leaf { entries, next: None })])?[0]));
    }
    for level in 1..height {
        let mut above = Vec::new();
        for below in chunks(children, fill, store.limits(level, height).max)? {
            let (low, fences) = (below[0].0, below[1..].iter().map(|child| child.0).collect());
            let children = below.into_iter().map(|child| child.1).collect();
            let inner = Node::Inner(Inner { level, fences, children });
            above.push((low, store.replace(level, &[], vec![inner])?[0]));
        }
        children = above;
    }
    store.set_root(Root { id: children[0].1, level: height - 1 });
    Ok(())
}

/// The least height of a tree of so many records.
fn height_for(store: &impl Rewrite, fill: f64, records: usize) -> Result<u8> {
    for height in 1..=u8::MAX {
        let mut count = records;
        for level in 0..height {
            let max = store.limits(level, height).max;
            if max < 2 {
                return Err(Error::Full(format!(
                    "{records} records need {height} levels, for which a page of this tree has no room; take larger pages"
                )));
            }
            count = chunk_count(count, share(max, fill), max);
        }
        if count == 1 {
            return Ok(height);
        }
    }
    Err(Error::broken(format!("{records} records need more than 255 levels")))
}

/// How many chunks [`for_each_chunk`] makes.
fn chunk_count(mut items: usize, len: usize, max: usize) -> usize {
    let whole = items.saturating_sub(len + 1) / len;
    items -= whole * len;
    whole + if items > max { 2 } else { 1 }
}

fn chunks<T>(items: Vec<T>, fill: f64, max: usize) -> Result<Vec<Vec<T>>> {
    let mut chunks = Vec::new();
    for_each_chunk(&mut items.into_iter(), share(max, fill), max, &mut |chunk, _| {
        chunks.push(chunk);
        Ok(())
    })?;
    Ok(chunks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_counted_as_they_are_cut() {
        for max in 2..12_usize {
            for len in max.div_ceil(2)..=max {
                for items in 1..60 {
                    let mut found = 0;
                    for_each_chunk(&mut (0..items), len, max, &mut |_, _| {
                        found += 1;
                        Ok(())
                    })
                    .unwrap();
                    assert_eq!(
                        chunk_count(items, len, max),
                        found,
                        "{items} in chunks of {len}, at most {max}"
                    );
                }
            }
        }
    }
}
