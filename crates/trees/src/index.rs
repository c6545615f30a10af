//! What every system can do.
//!
//! Updates are blind, since several of the systems cannot know what is on the device without reading it: `insert` and
//! `update` both set the value of a key, whether it was there or not, and `delete` of a key that is not there does nothing.

use crate::{Counters, Key, PageUse, Result, Value};
use std::ops::Range;

/// When what an operation did survives power loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contract {
    /// After each operation.
    EachOperation,
    /// After [`Index::flush`]; what was done since then is lost as a whole.
    Flush,
    /// After [`Index::flush`]; of what was done to a key since then, none or some has lasted, up to one of the operations on
    /// it. Other keys may have kept more, or less.
    EachKey,
    /// After [`Index::flush`], if the power does not fail before the next one: pages are overwritten in place without a
    /// log.
    Never,
}

/// What [`Index::check`] has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Records, those that wait in memory included.
    pub records: u64,
    /// Leaves.
    pub leaves: u64,
    /// Inner nodes.
    pub inner: u64,
    /// Levels, leaves included.
    pub height: u32,
}

/// An ordered map from `u64` to `u64` on a device or on raw flash.
pub trait Index {
    /// What it is built with.
    type Options: Clone
    where
        Self: Sized;

    /// What it stands on: a psync volume (`Arc<dyn psync::Volume>`), or, for the systems that manage flash themselves, raw
    /// flash (`Arc<flash::RawFlash>`). A clone is another handle of the same.
    type Ground: Clone
    where
        Self: Sized;

    /// Makes an empty one on `ground`: on a volume in files of its own that must not exist, on raw flash on all of it,
    /// whatever was there before.
    fn create(ground: Self::Ground, options: &Self::Options) -> Result<Self>
    where
        Self: Sized;

    /// Opens what is on `ground`, after whatever happened to it, as far as [`Index::contract`] promises.
    fn recover(ground: Self::Ground, options: &Self::Options) -> Result<Self>
    where
        Self: Sized;

    /// Makes one with the records given, in ascending order of key, none twice; nodes are filled to `fill` (0.5 to 1) of
    /// what they can hold. It is durable when this returns.
    fn bulk_load(
        ground: Self::Ground,
        options: &Self::Options,
        fill: f64,
        records: &mut dyn Iterator<Item = (Key, Value)>,
    ) -> Result<Self>
    where
        Self: Sized;

    /// Its name, as in the papers.
    fn name(&self) -> &'static str;

    /// What survives power loss.
    fn contract(&self) -> Contract;

    /// Sets the value of a key.
    fn insert(&mut self, key: Key, value: Value) -> Result<()>;

    /// Sets the value of a key that is there.
    fn update(&mut self, key: Key, value: Value) -> Result<()> {
        self.insert(key, value)
    }

    /// Removes a key.
    fn delete(&mut self, key: Key) -> Result<()>;

    /// The value of a key.
    fn search(&self, key: Key) -> Result<Option<Value>>;

    /// The values of many keys, in the order asked. One after the other, unless the system knows better.
    fn search_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>> {
        keys.iter().map(|key| self.search(*key)).collect()
    }

    /// All records with keys in `range`, in order of key.
    fn range(&self, range: Range<Key>) -> Result<Vec<(Key, Value)>>;

    /// Brings everything that waits in memory to the device and makes it durable.
    ///
    /// After one that failed, after any write that did, and after an update that failed halfway, a tree that keeps changes in
    /// memory refuses everything until it is recovered, `check` too: memory may lack what was on its way, and a retry would prove
    /// nothing. An update that could not read: where updates find their way before anything changes (B+-trees in place, B-link
    /// tree, AS B-tree, AS-tree, IBSF, lazy-update tree; BFTL but for its table), it fails as if it had not come, and may be
    /// repeated; but for a removal that could not read the leaf beside its own, to join it. Others may refuse everything as after a write, in-page logging after a search that could not read too. The
    /// wandering tree, µ-trees and the LSB-tree keep no changes in memory, and refuse nothing.
    fn flush(&mut self) -> Result<()>;

    /// Reads everything and verifies the system's invariants.
    fn check(&self) -> Result<Checked>;

    /// What it has done and what it takes.
    fn stats(&self) -> Counters;

    /// Which pages it still needs, as far as it has a table of them. Reads nothing.
    fn page_use(&self) -> PageUse {
        PageUse::NotTold
    }
}
