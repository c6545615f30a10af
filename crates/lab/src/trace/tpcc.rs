//! A **synthetic** TPC-C index trace: what a database would do on its indexes while it runs the five transactions of TPC-C,
//! made by a logical generator. It stands for the trace that the PIO B-tree's authors recorded inside PostgreSQL, which is not to
//! be had.
//!
//! - Eight indexes, numbered as in [`INDEXES`]; item and stock share one, and so do orders and orders by customer.
//! - Transactions 45 % new order, 43 % payment, 4 % each of order status, delivery and stock level; customers, items and names by
//!   NURand; 1 % of order lines from another warehouse, 15 % of payments by customers of another; 60 % of customers by name.
//! - The operations of `clients` clients are shuffled into one another.
//! - Then whole operations are dropped, evenly by kind, so that the mix is the published one ([`TARGET`]).
//!
//! Invariants:
//! 1. What an order is (customer, items) follows from the seed and its number, so nothing is kept but, of each district, the
//!    newest order and the oldest that is not delivered.
//! 2. The same options give the same trace.
//! 3. Of `operations` operations each kind has its share of [`TARGET`], to the last one.

mod transactions;

use super::{Op, Step};
use std::cell::OnceCell;
use transactions::{Layout, Transactions};

/// The published mix: per cent of the operations.
pub const TARGET: [(Op, f64); 4] =
    [(Op::Search, 71.5), (Op::Insert, 23.8), (Op::Range, 3.7), (Op::Delete, 1.0)];

/// Names of the indexes, by number.
pub const INDEXES: [&str; 8] = [
    "warehouse",
    "district",
    "customer",
    "customer by name",
    "item and stock",
    "orders and orders by customer",
    "order line",
    "new order",
];

/// What a synthetic TPC-C index trace is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TpccOptions {
    /// W: warehouses, 1 to 2048. The published trace had 100.
    pub warehouses: u32,
    /// Operations besides the loads.
    pub operations: u64,
    /// Clients, 1 or more. The published trace had 100.
    pub clients: u32,
    /// Whatever is drawn is drawn from this.
    pub seed: u64,
}

impl Default for TpccOptions {
    fn default() -> Self {
        Self { warehouses: 10, operations: 1_000_000, clients: 100, seed: 1 }
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Tpcc {
    options: TpccOptions,
    layout: Layout,
    /// How many operations of each kind of [`TARGET`] the transactions make until there are enough of all.
    raw: [u64; 4],
    /// Records of each index, once they were counted: those of order lines take a draw for each order.
    records: [OnceCell<u64>; INDEXES.len()],
}

impl Tpcc {
    /// Runs the transactions once, to count. `Err` says which option is out of range.
    ///
    /// # Errors
    /// A sentence for people.
    pub fn new(options: TpccOptions) -> Result<Self, String> {
        if !(1..=2048).contains(&options.warehouses) {
            return Err(format!("{} warehouses: 1 to 2048", options.warehouses));
        }
        if !(1..=10_000).contains(&options.clients) {
            return Err(format!("{} clients: 1 to 10000", options.clients));
        }
        if options.operations > 1 << 40 {
            return Err(format!("{} operations: at most 2^40", options.operations));
        }
        let layout = Layout { warehouses: u64::from(options.warehouses), seed: options.seed };
        let mut raw = [0; 4];
        let wanted = wanted(options.operations);
        let mut transactions = Transactions::new(layout, options.clients);
        while raw.iter().zip(wanted).any(|(raw, wanted)| *raw < wanted) {
            if let Some(place) = place(transactions.next_step().op) {
                raw[place] += 1;
            }
        }
        Ok(Self { options, layout, raw, records: Default::default() })
    }

    /// What it is made from.
    pub fn options(&self) -> TpccOptions {
        self.options
    }

    /// The records that an index has when the trace begins, by ascending key.
    pub fn load(&self, tree: u8) -> Box<dyn Iterator<Item = (u64, u64)>> {
        self.layout.load(tree)
    }

    /// How many they are.
    pub fn records(&self, tree: u8) -> u64 {
        match self.records.get(usize::from(tree)) {
            Some(records) => *records.get_or_init(|| self.layout.records(tree)),
            None => self.layout.records(tree),
        }
    }

    /// The operations.
    pub fn steps(&self) -> impl Iterator<Item = Step> + use<> {
        let mut transactions = Transactions::new(self.layout, self.options.clients);
        let (raw, wanted) = (self.raw, wanted(self.options.operations));
        let (mut seen, mut left) = ([0; 4], self.options.operations);
        std::iter::from_fn(move || {
            while left > 0 {
                let step = transactions.next_step();
                let Some(at) = place(step.op) else { continue };
                let kept = |seen: u64| u128::from(seen) * u128::from(wanted[at]) / u128::from(raw[at].max(1));
                seen[at] += 1;
                if seen[at] <= raw[at] && kept(seen[at]) > kept(seen[at] - 1) {
                    left -= 1;
                    return Some(step);
                }
            }
            None
        })
    }

    /// All of the trace: loads by index, then the operations.
    pub fn trace(&self) -> impl Iterator<Item = Step> + use<> {
        let layout = self.layout;
        let loads = (0..INDEXES.len() as u8).flat_map(move |tree| {
            layout.load(tree).map(move |(key, value)| Step::new(tree, Op::Load, key, value))
        });
        loads.chain(self.steps())
    }

    /// What to say of it wherever it is named.
    pub fn describe(&self) -> String {
        let TpccOptions { warehouses, operations, clients, seed } = self.options;
        format!(
            "synthetic TPC-C index trace: {warehouses} warehouses, {clients} clients, {operations} operations on 8 indexes, seed {seed}"
        )
    }
}

/// Where a kind of operation stands in [`TARGET`].
fn place(op: Op) -> Option<usize> {
    TARGET.iter().position(|(of, _)| *of == op)
}

/// How many of `operations` are of each kind: rounded down, and what is then missing are searches.
fn wanted(operations: u64) -> [u64; 4] {
    let mut wanted =
        TARGET.map(|(_, share)| (u128::from(operations) * (share * 10.0).round() as u128 / 1000) as u64);
    wanted[0] += operations - wanted.iter().sum::<u64>();
    wanted
}

#[cfg(test)]
mod tests {
    use super::super::account::Account;
    use super::*;
    use std::collections::HashSet;

    fn made(operations: u64, seed: u64) -> (Tpcc, Vec<Step>) {
        let options = TpccOptions { warehouses: 2, operations, seed, ..TpccOptions::default() };
        let tpcc = Tpcc::new(options).unwrap();
        let steps = tpcc.steps().collect();
        (tpcc, steps)
    }

    #[test]
    fn the_mix_is_the_published_one_within_a_tenth_of_a_point() {
        for operations in [1000, 54_321] {
            let mut account = Account::default();
            made(operations, 3).1.into_iter().for_each(|step| account.add(step));
            assert_eq!(account.operations(), operations);
            for (op, share) in TARGET {
                assert!((account.share(op) - share).abs() <= 0.1, "{}", account.told(&TARGET));
            }
        }
    }

    #[test]
    fn the_transactions_make_about_that_mix_by_themselves() {
        let (tpcc, _) = made(200_000, 3);
        let total: u64 = tpcc.raw.iter().sum();
        let shares = tpcc.raw.map(|count| 100.0 * count as f64 / total as f64);
        for ((op, target), share) in TARGET.iter().zip(shares) {
            assert!((share - target).abs() < 4.0, "{}: {share} for {target}", op.name());
        }
    }

    #[test]
    fn the_same_options_give_the_same_trace_and_another_seed_another() {
        let hash = |seed| {
            let mut account = Account::default();
            made(5000, seed).1.into_iter().for_each(|step| account.add(step));
            account.sha256()
        };
        assert_eq!(hash(1), hash(1));
        assert_ne!(hash(1), hash(2));
    }

    #[test]
    fn loads_ascend_and_are_as_many_as_told() {
        let (tpcc, _) = made(10, 1);
        for tree in 0..8 {
            let keys: Vec<u64> = tpcc.load(tree).map(|(key, _)| key).collect();
            assert!(keys.is_sorted_by(|one, two| one < two), "{}", INDEXES[usize::from(tree)]);
            assert_eq!(keys.len() as u64, tpcc.records(tree), "{}", INDEXES[usize::from(tree)]);
        }
    }

    /// Nearly all keys that are searched are there: order lines and new orders may have been dropped.
    #[test]
    fn keys_are_those_of_records() {
        let (tpcc, steps) = made(40_000, 5);
        let mut there: Vec<HashSet<u64>> =
            (0..8).map(|tree| tpcc.load(tree).map(|(key, _)| key).collect()).collect();
        let (mut searched, mut found, mut inserted, mut new) = (0, 0, 0, 0);
        for step in &steps {
            let keys = &mut there[usize::from(step.tree)];
            match step.op {
                Op::Search => {
                    searched += 1;
                    found += u64::from(keys.contains(&step.key));
                }
                Op::Insert => {
                    inserted += 1;
                    new += u64::from(keys.insert(step.key));
                }
                Op::Delete => assert!(keys.remove(&step.key), "{step:?}"),
                Op::Range => assert!(step.value > step.key),
                Op::Load | Op::Update => panic!("{step:?}"),
            }
        }
        assert!(found * 1000 >= searched * 999, "{found} of {searched}");
        assert_eq!(inserted, new, "every order is a new one");
        // Stock level looks at 20 orders, payment at a name: ranges have their widths.
        let rows = |step: &&Step| step.op == Op::Range && step.tree == 6;
        let widths: Vec<usize> = steps
            .iter()
            .filter(rows)
            .map(|step| there[6].iter().filter(|key| (step.key..step.value).contains(key)).count())
            .collect();
        assert!(widths.iter().any(|width| (5..=15).contains(width)), "{widths:?}");
        assert!(widths.iter().any(|width| (120..=300).contains(width)), "{widths:?}");
    }

    #[test]
    fn options_out_of_range_are_refused() {
        let refused = |options| Tpcc::new(options).unwrap_err();
        assert_eq!(
            refused(TpccOptions { warehouses: 0, ..TpccOptions::default() }),
            "0 warehouses: 1 to 2048"
        );
        assert!(refused(TpccOptions { clients: 0, ..TpccOptions::default() }).contains("clients"));
        assert!(refused(TpccOptions { operations: 1 << 50, ..TpccOptions::default() }).contains("2^40"));
    }
}
