//! What a trace consists of: how many operations of each kind on each index, beside the shares that were meant, and the
//! SHA-256 by which it is known again.

use super::{Op, Step, plain};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// See the module.
#[derive(Clone, Default)]
pub struct Account {
    counts: BTreeMap<(u8, Op), u64>,
    keys: BTreeMap<u8, (u64, u64)>,
    hash: Sha256,
    line: Vec<u8>,
}

impl Account {
    /// Counts and hashes a step.
    pub fn add(&mut self, step: Step) {
        *self.counts.entry((step.tree, step.op)).or_default() += 1;
        let keys = self.keys.entry(step.tree).or_insert((step.key, step.key));
        *keys = (keys.0.min(step.key), keys.1.max(step.key));
        self.line.clear();
        // Memory takes whatever is written to it.
        if plain::write(&mut self.line, step).is_ok() {
            self.hash.update(&self.line);
        }
    }

    /// Steps of a kind.
    pub fn of(&self, op: Op) -> u64 {
        self.counts.iter().filter(|((_, of), _)| *of == op).map(|(_, count)| count).sum()
    }

    /// Steps of a kind on an index.
    pub fn of_tree(&self, tree: u8, op: Op) -> u64 {
        self.counts.get(&(tree, op)).copied().unwrap_or_default()
    }

    /// Operations, loads not counted.
    pub fn operations(&self) -> u64 {
        self.counts.iter().filter(|((_, op), _)| *op != Op::Load).map(|(_, count)| count).sum()
    }

    /// Indexes, with the least and the greatest key that was named.
    pub fn trees(&self) -> impl Iterator<Item = (u8, (u64, u64))> {
        self.keys.iter().map(|(tree, keys)| (*tree, *keys))
    }

    /// Per cent of the operations that are of a kind.
    pub fn share(&self, op: Op) -> f64 {
        100.0 * self.of(op) as f64 / self.operations().max(1) as f64
    }

    /// The mix in words, each kind that occurs, and beside it what was meant, if that is known.
    pub fn told(&self, target: &[(Op, f64)]) -> String {
        let meant = |op: Op| target.iter().find(|(of, _)| *of == op).map(|(_, share)| *share);
        let part = |op: &Op| match meant(*op) {
            Some(share) => format!("{} {:.2} % (target {share} %)", op.name(), self.share(*op)),
            None => format!("{} {:.2} %", op.name(), self.share(*op)),
        };
        let occurs = |op: &&Op| **op != Op::Load && (self.of(**op) > 0 || meant(**op).is_some());
        Op::ALL.iter().filter(occurs).map(part).collect::<Vec<_>>().join(", ")
    }

    /// The SHA-256 of all steps so far, in hexadecimal.
    pub fn sha256(&self) -> String {
        hex(&self.hash.clone().finalize())
    }
}

/// Bytes in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl std::fmt::Debug for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Account").field("counts", &self.counts).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_the_lines_and_the_mix_that_of_the_operations() {
        let mut account = Account::default();
        for key in 0..3 {
            account.add(Step::new(0, Op::Load, key, key));
        }
        for key in 0..3 {
            account.add(Step::new(0, Op::Search, key, 0));
        }
        account.add(Step::new(2, Op::Insert, 9, 8));
        // printf 'load 0\nload 1\nload 2\nsearch 0\nsearch 1\nsearch 2\ninsert 9 8 @2\n' | sha256sum
        assert_eq!(account.sha256(), "0a24af4eec0e973b6086544555bb3e4bc444cf247251d6059deeef03193dba5f");
        assert_eq!((account.operations(), account.of(Op::Load), account.of_tree(2, Op::Insert)), (4, 3, 1));
        let told = account.told(&[(Op::Insert, 23.8), (Op::Delete, 1.0)]);
        assert_eq!(told, "search 75.00 %, insert 25.00 % (target 23.8 %), delete 0.00 % (target 1 %)");
        assert_eq!(account.trees().collect::<Vec<_>>(), [(0, (0, 2)), (2, (9, 9))]);
    }
}
