//! Computes what is left after a power failure.
//!
//! Invariants:
//! 1. the result depends only on the state and the seed;
//! 2. what was durable is there, unless an unsynced change to the same sectors reached the device;
//! 3. a sector is atomic: it is found as it was at one moment between the last sync and the power failure.
//!    Different sectors may be from different moments, so writes are torn, lost and reordered;
//! 4. resizes and releases go through the file system's journal: a prefix of them is kept;
//! 5. the length is one that the kept changes allow; parts that never reached the device read as zeros.

use super::content::Content;
use super::node::{Change, Node, pieces};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::collections::HashMap;
use std::sync::Arc;

/// The unit that a device writes completely or not at all, in bytes.
pub(super) const SECTOR: u64 = 512;

/// How severe the loss is, drawn once per image.
#[derive(Clone, Copy, Debug)]
pub(super) enum Severity {
    /// Everything had already reached the device.
    KeepAll,
    /// No unsynced change reached the device.
    LoseAll,
    /// All but the last few changes reached the device; those are torn.
    TearLast(usize),
    /// Each change has its own fate. If not torn, it is kept with this probability in percent.
    Mixed(u32),
}

#[derive(Clone, Copy)]
enum Fate {
    Kept,
    Lost,
    /// Each sector is kept with this probability in percent.
    Torn(u32),
}

/// A random generator for one purpose. `parts` distinguishes uses of the same seed.
pub(super) fn random(parts: [u64; 3]) -> StdRng {
    let mut seed = [0; 32];
    for (bytes, part) in seed.chunks_exact_mut(8).zip(parts) {
        bytes.copy_from_slice(&part.to_le_bytes());
    }
    StdRng::from_seed(seed)
}

impl Severity {
    pub(super) fn draw(random: &mut impl Rng) -> Self {
        match random.random_range(0..8) {
            0 => Self::KeepAll,
            1 => Self::LoseAll,
            2..=4 => Self::TearLast(random.random_range(1..=4)),
            _ => Self::Mixed([5, 25, 50, 75, 95].choose(random).copied().unwrap_or(50)),
        }
    }

    /// The fate of change `index` of `count`.
    fn fate(self, index: usize, count: usize, random: &mut impl Rng) -> Fate {
        match self {
            Self::KeepAll => Fate::Kept,
            Self::LoseAll => Fate::Lost,
            Self::TearLast(last) if index + last < count => Fate::Kept,
            Self::TearLast(_) => Fate::Torn(random.random_range(0..=100)),
            Self::Mixed(chance) => match random.random_range(0..3) {
                0 => Fate::Torn(random.random_range(0..=100)),
                _ if random.random_range(0..100) < chance => Fate::Kept,
                _ => Fate::Lost,
            },
        }
    }

    /// Whether the pending directory operation `index` of `count` is kept.
    pub(super) fn keeps(self, index: usize, count: usize, random: &mut impl Rng) -> bool {
        match self.fate(index, count, random) {
            Fate::Kept => true,
            Fate::Lost => false,
            Fate::Torn(chance) => random.random_range(0..100) < chance,
        }
    }
}

/// The file as found after the power failure.
pub(super) fn after_loss(node: &Node, severity: Severity, random: &mut impl Rng) -> Arc<Content> {
    let changes = &node.unsynced;
    if changes.is_empty() || matches!(severity, Severity::LoseAll) {
        return Arc::clone(&node.durable);
    }
    let count = changes.len();
    let mut content = Content::clone(&node.durable);
    if matches!(severity, Severity::KeepAll) {
        changes.iter().for_each(|change| change.apply(&mut content));
        return Arc::new(content);
    }
    // Journalled changes before this index are kept.
    let journalled = match severity {
        Severity::TearLast(last) => random.random_range(count.saturating_sub(last)..=count),
        _ => random.random_range(0..=count),
    };
    // By sector, the last write to it that reached the device.
    let mut moment: HashMap<u64, usize> = HashMap::new();
    for (index, change) in changes.iter().enumerate() {
        let Change::Write { offset, data } = change else { continue };
        let fate = severity.fate(index, count, random);
        for (at, _) in pieces(*offset, data, SECTOR) {
            let kept = match fate {
                Fate::Kept => true,
                Fate::Lost => false,
                Fate::Torn(chance) => random.random_range(0..100) < chance,
            };
            if kept {
                moment.insert(at / SECTOR, index);
            }
        }
    }
    let (mut shortest, mut longest) = (content.len(), content.len());
    for (index, change) in changes.iter().enumerate() {
        match change {
            Change::Write { offset, data } => {
                longest = longest.max(offset + data.len() as u64);
                for (at, part) in pieces(*offset, data, SECTOR) {
                    if moment.get(&(at / SECTOR)).is_some_and(|last| *last >= index) {
                        content.write(at, part);
                    }
                }
            }
            Change::Resize { len } if index < journalled => {
                change.apply(&mut content);
                (shortest, longest) = (*len, *len);
            }
            Change::Release { .. } if index < journalled => change.apply(&mut content),
            Change::Allocate { .. } if index < journalled => {
                change.apply(&mut content);
                longest = longest.max(content.len());
            }
            Change::Resize { .. } | Change::Release { .. } | Change::Allocate { .. } => {}
        }
    }
    let len = match random.random_range(0..4) {
        0 => shortest,
        1 => longest,
        2 => content.len(),
        _ => random.random_range(shortest..=longest),
    };
    content.resize(len);
    Arc::new(content)
}
