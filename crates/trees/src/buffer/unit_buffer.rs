//! Updates that wait in memory until a whole leaf's worth is worth writing: one unit a key, and a policy that picks the
//! victim. IBSF picks by the oldest unit; the lazy-update tree keeps units in groups, one a leaf, and picks a group.
//!
//! Invariants:
//! 1. There is one unit a key: a newer update replaces the older one, and keeps its place in the order of age.
//! 2. Groups do not overlap, and with a policy that has them every unit is in exactly one, which counts it.
//! 3. A group's range is what the leaf's was when the group was opened. The leaf may have changed since: whoever commits a
//!    victim asks the tree for the range and takes by that, so a stale group costs but does no harm.

use crate::page::{Change, Key, KeyRange};
use crate::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Which updates leave the buffer when it is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// Those for the leaf of the update that came first.
    OldestUnit,
    /// A group, chosen so.
    Group(VictimPolicy),
}

/// Which group of updates a lazy-update tree commits when its buffer is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VictimPolicy {
    /// That of the leaf whose last update is longest ago, as the CB-tree paper has it.
    #[default]
    Lru,
    /// That of the leaf with the most updates (first heuristic). Under skew it is the worst: updates of cold leaves are
    /// never the most, and come to fill the buffer.
    Biggest,
    /// The one with the highest product of updates and time since the last one (second heuristic: what is large and gathers
    /// no more).
    Cost,
}

#[derive(Clone, Copy, Debug)]
struct Unit {
    change: Change,
    /// When the key came into the buffer.
    since: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Group {
    high: Option<Key>,
    count: u64,
    newest: u64,
}

/// See the module.
pub(crate) struct UnitBuffer {
    victim: Victim,
    capacity: usize,
    clock: u64,
    units: BTreeMap<Key, Unit>,
    /// Units by age, for [`Victim::OldestUnit`].
    ages: BTreeMap<u64, Key>,
    /// By lowest key.
    groups: BTreeMap<Key, Group>,
    /// Groups by rank, the best victim first, for policies whose rank changes only with the group.
    ranks: BTreeSet<(u64, Key)>,
    /// Updates that replaced one of the same key.
    redundant: u64,
}

impl UnitBuffer {
    /// A buffer of `capacity` units.
    pub fn new(victim: Victim, capacity: usize) -> Result<Self> {
        if capacity == 0 {
            return Err(Error::Invalid("a buffer of 0 units: 1 at least".into()));
        }
        Ok(Self {
            victim,
            capacity,
            clock: 0,
            units: BTreeMap::new(),
            ages: BTreeMap::new(),
            groups: BTreeMap::new(),
            ranks: BTreeSet::new(),
            redundant: 0,
        })
    }

    pub fn is_overfull(&self) -> bool {
        self.units.len() > self.capacity
    }

    pub fn redundant(&self) -> u64 {
        self.redundant
    }

    /// Bytes of memory.
    pub fn memory(&self) -> u64 {
        let (units, groups) = (self.units.len(), self.groups.len());
        (units * size_of::<(Key, Unit)>()
            + self.ages.len() * size_of::<(u64, Key)>()
            + groups * size_of::<(Key, Group)>()
            + self.ranks.len() * size_of::<(u64, Key)>()) as u64
    }

    /// What waits for a key.
    pub fn get(&self, key: Key) -> Option<Change> {
        self.units.get(&key).map(|unit| unit.change)
    }

    /// What waits for the keys of a range.
    pub fn range(&self, range: Range<Key>) -> impl Iterator<Item = (Key, Change)> {
        self.units.range(range).map(|(key, unit)| (*key, unit.change))
    }

    pub fn first_key(&self) -> Option<Key> {
        self.units.first_key_value().map(|(key, _)| *key)
    }

    fn group_of(&self, key: Key) -> Option<Key> {
        let (low, group) = self.groups.range(..=key).next_back()?;
        KeyRange { low: *low, high: group.high }.contains(key).then_some(*low)
    }

    /// Whether [`Self::put`] must be told the range of the leaf.
    pub fn asks_for_range(&self, key: Key) -> bool {
        self.victim != Victim::OldestUnit && self.group_of(key).is_none()
    }

    /// Takes an update.
    pub fn put(&mut self, key: Key, change: Change, leaf: Option<KeyRange>) {
        self.clock += 1;
        let clock = self.clock;
        let is_new = match self.units.get_mut(&key) {
            Some(unit) => {
                unit.change = change;
                self.redundant += 1;
                false
            }
            None => {
                self.units.insert(key, Unit { change, since: clock });
                true
            }
        };
        if self.victim == Victim::OldestUnit {
            if is_new {
                self.ages.insert(clock, key);
            }
            return;
        }
        let Some(low) = self.group_of(key) else {
            let range = leaf.unwrap_or(KeyRange::ALL);
            self.carve(range);
            let count = self.units.range(range.bounds()).count() as u64;
            self.insert_group(range.low, Group { high: range.high, count, newest: clock });
            return;
        };
        if let Some(group) = self.remove_group(low) {
            self.insert_group(low, Group { count: group.count + u64::from(is_new), newest: clock, ..group });
        }
    }

    /// A key of the victim.
    pub fn victim(&self) -> Option<Key> {
        let low = match self.victim {
            Victim::OldestUnit => return self.ages.first_key_value().map(|(_, key)| *key),
            Victim::Group(VictimPolicy::Lru | VictimPolicy::Biggest) => self.ranks.first()?.1,
            Victim::Group(VictimPolicy::Cost) => {
                let worth = |group: &Group| group.count.saturating_mul(self.clock - group.newest + 1);
                *self.groups.iter().max_by_key(|(_, group)| worth(group))?.0
            }
        };
        self.units.range(low..).next().map(|(key, _)| *key)
    }

    /// Takes all units of a leaf out.
    pub fn take(&mut self, leaf: KeyRange) -> Vec<(Key, Change)> {
        let keys: Vec<Key> = self.units.range(leaf.bounds()).map(|(key, _)| *key).collect();
        let mut taken = Vec::with_capacity(keys.len());
        for key in keys {
            if let Some(unit) = self.units.remove(&key) {
                self.ages.remove(&unit.since);
                taken.push((key, unit.change));
            }
        }
        self.carve(leaf);
        taken
    }

    /// Takes out the unit of one key, for which there was no room.
    pub fn take_back(&mut self, key: Key) {
        self.take(KeyRange { low: key, high: key.checked_add(1) });
    }

    fn rank(&self, group: &Group) -> Option<u64> {
        match self.victim {
            Victim::Group(VictimPolicy::Lru) => Some(group.newest),
            Victim::Group(VictimPolicy::Biggest) => Some(u64::MAX - group.count),
            Victim::OldestUnit | Victim::Group(VictimPolicy::Cost) => None,
        }
    }

    fn insert_group(&mut self, low: Key, group: Group) {
        if let Some(rank) = self.rank(&group) {
            self.ranks.insert((rank, low));
        }
        self.groups.insert(low, group);
    }

    fn remove_group(&mut self, low: Key) -> Option<Group> {
        let group = self.groups.remove(&low)?;
        if let Some(rank) = self.rank(&group) {
            self.ranks.remove(&(rank, low));
        }
        Some(group)
    }

    /// Takes a range away from the groups that have parts of it.
    fn carve(&mut self, range: KeyRange) {
        let first = self.groups.range(..=range.low).next_back().map_or(range.low, |(low, _)| *low);
        let touched: Vec<Key> = self
            .groups
            .range((std::ops::Bound::Included(first), range.bounds().1))
            .filter(|(_, group)| group.high.is_none_or(|high| high > range.low))
            .map(|(low, _)| *low)
            .collect();
        for low in touched {
            let Some(group) = self.remove_group(low) else { continue };
            let left = KeyRange { low, high: Some(range.low) };
            let right = range.high.map(|low| KeyRange { low, high: group.high });
            let parts = [Some(left).filter(|left| left.low < range.low), right];
            for part in parts.into_iter().flatten() {
                if part.high.is_some_and(|high| high <= part.low) {
                    continue;
                }
                let count = self.units.range(part.bounds()).count() as u64;
                if count > 0 {
                    self.insert_group(part.low, Group { high: part.high, count, newest: group.newest });
                }
            }
        }
    }

    /// Verifies the groups.
    pub fn check(&self) -> Result<()> {
        if self.victim == Victim::OldestUnit {
            let sound = self.ages.len() == self.units.len()
                && self
                    .ages
                    .iter()
                    .all(|(since, key)| self.units.get(key).is_some_and(|unit| unit.since == *since));
            return if sound { Ok(()) } else { Err(Error::broken("units and their ages do not match")) };
        }
        let (mut counted, mut end) = (0, Some(0));
        for (low, group) in &self.groups {
            let range = KeyRange { low: *low, high: group.high };
            let count = self.units.range(range.bounds()).count() as u64;
            if end.is_none_or(|end| end > *low) || count != group.count || count == 0 {
                return Err(Error::broken(format!("the group from {low} on: {group:?}, {count} units")));
            }
            (counted, end) = (counted + count, group.high);
        }
        let ranked = if self.victim == Victim::Group(VictimPolicy::Cost) { 0 } else { self.groups.len() };
        if counted != self.units.len() as u64 || self.ranks.len() != ranked {
            return Err(Error::broken("units outside all groups, or groups without rank"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::VictimPolicy::{Biggest, Cost, Lru};
    use super::*;
    use proptest::prelude::*;

    /// Leaves of ten keys each.
    fn leaf(key: Key) -> KeyRange {
        KeyRange { low: key / 10 * 10, high: Some(key / 10 * 10 + 10) }
    }

    fn victims(victim: Victim, keys: &[Key]) -> Vec<Vec<Key>> {
        let mut buffer = UnitBuffer::new(victim, 100).unwrap();
        for key in keys {
            let range = buffer.asks_for_range(*key).then(|| leaf(*key));
            buffer.put(*key, Change::Remove, range);
            buffer.check().unwrap();
        }
        std::iter::from_fn(|| {
            let taken = buffer.take(leaf(buffer.victim()?));
            buffer.check().unwrap();
            Some(taken.into_iter().map(|(key, _)| key).collect())
        })
        .collect()
    }

    #[test]
    fn each_policy_picks_its_victim() {
        // Leaf 1 is first touched first, leaf 2 last touched first, leaf 3 has the most; leaf 4 is new.
        let keys = [11, 21, 22, 31, 32, 33, 34, 12, 41];
        let order =
            |victim| -> Vec<Key> { victims(victim, &keys).iter().map(|units| units[0] / 10).collect() };
        assert_eq!(order(Victim::OldestUnit), [1, 2, 3, 4]);
        assert_eq!(order(Victim::Group(Lru)), [2, 3, 1, 4]);
        assert_eq!(order(Victim::Group(Biggest)), [3, 1, 2, 4]);
        // 2 × 2 of leaf 1, 2 × 7 of leaf 2, 4 × 3 of leaf 3, 1 × 1 of leaf 4.
        assert_eq!(order(Victim::Group(Cost)), [2, 3, 1, 4]);
    }

    #[test]
    fn an_update_of_a_waiting_key_keeps_its_age_but_refreshes_its_group() {
        let keys = [11, 21, 11];
        assert_eq!(victims(Victim::OldestUnit, &keys), [[11], [21]]);
        assert_eq!(victims(Victim::Group(Lru), &keys), [[21], [11]]);
    }

    proptest! {
        /// Leaves divide and join at random between updates, so ranges of groups go stale.
        #[test]
        fn groups_stay_sound_when_leaves_change(
            policy in 0..4usize,
            steps in prop::collection::vec((0..100u64, 1..40u64, any::<bool>()), 1..80),
        ) {
            let victims = [Victim::OldestUnit, Victim::Group(Lru), Victim::Group(Biggest), Victim::Group(Cost)];
            let mut buffer = UnitBuffer::new(victims[policy], 10).unwrap();
            let mut model = BTreeMap::new();
            for (key, width, takes) in steps {
                let low = key.saturating_sub(width / 2);
                let range = KeyRange { low, high: Some(low + width).filter(|high| *high < 90 && *high > key) };
                let range = KeyRange { low: range.low.min(key), ..range };
                if takes {
                    let taken = buffer.take(range);
                    let expected: Vec<_> = model.range(range.bounds()).map(|(key, change)| (*key, *change)).collect();
                    model.retain(|key, _| !range.contains(*key));
                    prop_assert_eq!(taken, expected);
                } else {
                    let told = buffer.asks_for_range(key).then_some(range);
                    buffer.put(key, Change::Put(width), told);
                    model.insert(key, Change::Put(width));
                }
                buffer.check().unwrap();
                prop_assert_eq!(buffer.victim().is_some(), !model.is_empty());
            }
        }
    }
}
