//! Faults of the network, for tests: messages that this node loses on order.

use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Which messages are lost. Each direction of each pair of nodes is a set of its own, so a partition may have any shape.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Lost {
    /// Requests to these nodes do not arrive.
    pub requests_to: BTreeSet<u64>,
    /// Requests to these nodes arrive, and their answers do not.
    pub answers_from: BTreeSet<u64>,
    /// Each request waits for a time between 0 and so many milliseconds.
    pub delay_ms: u64,
}

#[derive(Debug, Default)]
pub struct Faults(RwLock<Lost>);

impl Faults {
    pub fn set(&self, lost: Lost) {
        *self.0.write() = lost;
    }

    pub fn loses_request_to(&self, node: u64) -> bool {
        self.0.read().requests_to.contains(&node)
    }

    pub fn loses_answer_of(&self, node: u64) -> bool {
        self.0.read().answers_from.contains(&node)
    }

    /// The delay of a request, in milliseconds.
    pub fn delay(&self) -> u64 {
        use std::hash::{BuildHasher, Hasher};
        match self.0.read().delay_ms {
            0 => 0,
            // Keys of a hasher are random.
            max => std::hash::RandomState::new().build_hasher().finish() % max,
        }
    }
}
