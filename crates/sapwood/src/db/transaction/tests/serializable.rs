//! Histories of many threads, checked for serializability: the committed transactions, batches and readers are the nodes of a graph,
//! and whatever orders two of them is an arrow. A cycle means that no serial order explains what was read (Adya 1999).
//!
//! There are two kinds of objects. Lists, to which transactions append their number: the last value shows the order of all
//! appends. And rooms, ranges of keys of which each is inserted once: a transaction that has read a range and found a key comes after its
//! inserter, one that has not comes before. So a phantom is an arrow like any other.
//!
//! ```text
//! wr, ww     inserter ──▶ reader that found it          append ──▶ next append
//! rw         reader that did not find it ──▶ inserter
//! session    what a thread did ──▶ what it did next
//! ```
//! Between rounds the power fails while the threads are at work. What is found then must be a prefix: the final reader, with the
//! transactions that wrote, is another such graph. It has what was promised to be durable.

use crate::{Database, Durability, Error, Keyspace, Transaction};
use parking_lot::Mutex;
use psync::{Device, FileId, PassThrough, Simulated};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

const THREADS: u16 = 8;
/// Transactions of a thread in a round.
const EACH: usize = 60;
const ROOMS: u8 = 6;
const LISTS: u8 = 4;
/// Keys that a thread may insert in a room.
const SLOTS: u16 = 40;

/// A syncing device takes its time, so that others pass by.
#[derive(Clone)]
struct Slow(Simulated, Duration);

/// How long a sync takes, by turns: shorter than what else threads do, and long enough for them to commit and read beside it.
const SYNCS: [Duration; 2] = [Duration::from_micros(100), Duration::from_millis(1)];

impl PassThrough for Slow {
    fn inner(&self) -> &dyn psync::Volume {
        &self.0
    }

    fn sync(&self, file: FileId) -> psync::Result<()> {
        std::thread::sleep(self.1);
        Device::sync(&self.0, file)
    }
}

/// A key in a room.
type Place = (u8, u16);

/// What a transaction has seen of a room: its keys within bounds, and what inserted them.
#[derive(Clone, Debug)]
struct Seen {
    room: u8,
    slots: RangeInclusive<u16>,
    found: BTreeMap<u16, u32>,
}

/// A transaction, a batch or a reader, and what it has read and written.
#[derive(Clone, Debug, Default)]
struct Node {
    id: u32,
    thread: u16,
    lists: Vec<(u8, Vec<u32>)>,
    seen: Vec<Seen>,
    appended: Vec<u8>,
    inserted: Vec<Place>,
    is_durable: bool,
}

impl Node {
    fn writes(&self) -> bool {
        !self.appended.is_empty() || !self.inserted.is_empty()
    }
}

/// The keys of a round.
#[derive(Clone, Copy)]
struct Names {
    round: u32,
}

impl Names {
    fn list(self, list: u8) -> String {
        format!("{:06} list {list}", self.round)
    }

    fn room(self, room: u8) -> String {
        format!("{:06} room {room} ", self.round)
    }

    fn slot(self, (room, slot): Place) -> String {
        format!("{:06} room {room} {slot:04x}", self.round)
    }
}

fn numbers(value: &[u8]) -> Vec<u32> {
    value.chunks(4).map(|bytes| u32::from_be_bytes(bytes.try_into().unwrap())).collect()
}

fn slot_of(key: &[u8]) -> u16 {
    u16::from_str_radix(std::str::from_utf8(&key[key.len() - 4..]).unwrap(), 16).unwrap()
}

/// A thread at work.
struct Worker<'a> {
    db: &'a Database,
    keyspace: &'a Keyspace,
    names: Names,
    thread: u16,
    rng: StdRng,
    free: Vec<Place>,
}

impl Worker<'_> {
    /// A key that was not inserted yet.
    fn fresh(&mut self) -> Option<Place> {
        (!self.free.is_empty()).then(|| self.free.swap_remove(self.rng.random_range(0..self.free.len())))
    }

    fn room(&mut self) -> u8 {
        self.rng.random_range(0..ROOMS)
    }

    /// Reads a room: all of it, or some from either end.
    fn read_room(&mut self, tx: &Transaction, room: u8, node: &mut Node) -> crate::Result<()> {
        let mut range = tx.prefix(self.keyspace, self.names.room(room));
        let (mut found, mut slots) = (BTreeMap::new(), 0..=u16::MAX);
        let (is_back, max) = (self.rng.random(), if self.rng.random() { 3 } else { usize::MAX });
        for step in 0.. {
            if step == max {
                slots = match (is_back, found.keys().next(), found.keys().last()) {
                    (true, Some(first), _) => *first..=u16::MAX,
                    (false, _, Some(last)) => 0..=*last,
                    _ => slots,
                };
                break;
            }
            let Some(next) = (if is_back { range.next_back() } else { range.next() }) else { break };
            let (key, value) = next?;
            found.insert(slot_of(&key), numbers(&value)[0]);
        }
        node.seen.push(Seen { room, slots, found });
        Ok(())
    }

    fn read_slot(&mut self, tx: &Transaction, (room, slot): Place, node: &mut Node) -> crate::Result<()> {
        let value = tx.get(self.keyspace, self.names.slot((room, slot)))?;
        let found = value.map(|value| (slot, numbers(&value)[0])).into_iter().collect();
        node.seen.push(Seen { room, slots: slot..=slot, found });
        Ok(())
    }

    fn read_list(&mut self, tx: &Transaction, list: u8, node: &mut Node) -> crate::Result<Vec<u32>> {
        let value = tx.get(self.keyspace, self.names.list(list))?;
        let value = value.map(|value| numbers(&value)).unwrap_or_default();
        node.lists.push((list, value.clone()));
        Ok(value)
    }

    fn append(&mut self, tx: &mut Transaction, list: u8, node: &mut Node) -> crate::Result<()> {
        let mut value = self.read_list(tx, list, node)?;
        value.push(node.id);
        let bytes: Vec<u8> = value.iter().flat_map(|number| number.to_be_bytes()).collect();
        node.appended.push(list);
        tx.insert(self.keyspace, self.names.list(list), bytes)
    }

    fn insert(&mut self, tx: &mut Transaction, place: Option<Place>, node: &mut Node) -> crate::Result<()> {
        let Some(place) = place else { return Ok(()) };
        node.inserted.push(place);
        tx.insert(self.keyspace, self.names.slot(place), node.id.to_be_bytes())
    }

    /// What a transaction of this kind reads and writes.
    fn run(
        &mut self,
        tx: &mut Transaction,
        kind: u32,
        fresh: Option<Place>,
        node: &mut Node,
    ) -> crate::Result<()> {
        match kind {
            0..30 => {
                let room = self.room();
                self.read_room(tx, room, node)?;
                std::thread::yield_now();
                self.insert(tx, fresh, node)
            }
            30..50 => {
                let (read, append) = (self.rng.random_range(0..LISTS), self.rng.random_range(0..LISTS));
                self.read_list(tx, read, node)?;
                std::thread::yield_now();
                self.append(tx, append, node)
            }
            50..70 => {
                for _ in 0..3 {
                    let place = (self.room(), self.rng.random_range(0..SLOTS * THREADS));
                    self.read_slot(tx, place, node)?;
                }
                self.insert(tx, fresh, node)
            }
            70..80 => self.read_everything(tx, node),
            _ => {
                let list = self.rng.random_range(0..LISTS);
                self.append(tx, list, node)?;
                self.insert(tx, fresh, node)
            }
        }
    }

    /// A reader of everything. It has an odd number, unlike steps.
    fn look(&mut self, id: u32) -> Node {
        let (mut node, tx) =
            (Node { id, thread: self.thread, ..Node::default() }, self.db.transaction().unwrap());
        self.read_everything(&tx, &mut node).unwrap();
        tx.commit().unwrap();
        node
    }

    fn read_everything(&mut self, tx: &Transaction, node: &mut Node) -> crate::Result<()> {
        for room in 0..ROOMS {
            self.read_room(tx, room, node)?;
        }
        for list in 0..LISTS {
            self.read_list(tx, list, node)?;
        }
        Ok(())
    }

    /// One transaction or batch. `None` if it was not committed.
    fn step(&mut self, id: u32) -> Option<Node> {
        let durability =
            [Durability::Immediate, Durability::Buffered, Durability::None][self.rng.random_range(0..3usize)];
        let is_durable = durability == Durability::Immediate;
        let new = Node { id, thread: self.thread, is_durable, ..Node::default() };
        let kind = self.rng.random_range(0..115);
        // What is inserted belongs to one transaction, also if it is not committed.
        let fresh = if (70..80).contains(&kind) { None } else { self.fresh() };
        if kind >= 100 {
            let mut batch = self.db.batch();
            let mut node = new;
            for place in [fresh, self.fresh()].into_iter().flatten() {
                node.inserted.push(place);
                batch.insert(self.keyspace, self.names.slot(place), id.to_be_bytes());
            }
            batch.durability(durability).commit().unwrap();
            return Some(node);
        }
        if kind >= 90 {
            let committed = self.db.clone().transact(|tx| {
                let mut node = new.clone();
                tx.durability(durability);
                self.run(tx, kind, fresh, &mut node)?;
                Ok(node)
            });
            return Some(committed.unwrap());
        }
        let (mut node, mut tx) = (new, self.db.transaction().unwrap());
        tx.durability(durability);
        self.run(&mut tx, kind, fresh, &mut node).unwrap();
        match tx.commit() {
            Ok(()) => Some(node),
            Err(Error::Conflict { .. }) => None,
            Err(error) => panic!("{error}"),
        }
    }
}

/// What is in a database.
fn read_all(db: &Database, names: Names) -> Node {
    let keyspace = db.keyspace("main").unwrap();
    let tx = db.transaction().unwrap();
    let mut node = Node { id: u32::MAX, thread: u16::MAX, ..Node::default() };
    let rng = StdRng::seed_from_u64(0);
    let mut worker = Worker { db, keyspace: &keyspace, names, thread: u16::MAX, rng, free: Vec::new() };
    for list in 0..LISTS {
        worker.read_list(&tx, list, &mut node).unwrap();
    }
    for room in 0..ROOMS {
        let records = tx.prefix(&keyspace, names.room(room)).map(|record| record.unwrap());
        let found = records.map(|(key, value)| (slot_of(&key), numbers(&value)[0])).collect();
        node.seen.push(Seen { room, slots: 0..=u16::MAX, found });
    }
    node
}

/// Why a history is not serializable.
fn fault<'a>(nodes: impl Iterator<Item = &'a Node>, last: &Node, end: &'a Node) -> Option<String> {
    let nodes: Vec<&Node> = nodes.chain([end]).collect();
    let index: BTreeMap<u32, usize> = nodes.iter().enumerate().map(|(at, node)| (node.id, at)).collect();
    let mut inserter: BTreeMap<Place, usize> = BTreeMap::new();
    let mut arrows: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); nodes.len()];
    for (at, node) in nodes.iter().enumerate() {
        inserter.extend(node.inserted.iter().map(|place| (*place, at)));
        let same = |next: &usize| nodes[*next].thread == node.thread;
        arrows[at].extend((at + 1..nodes.len()).find(same));
    }
    let orders: BTreeMap<u8, &Vec<u32>> = last.lists.iter().map(|(list, order)| (*list, order)).collect();
    for order in orders.values() {
        for pair in order.windows(2) {
            let (Some(one), Some(next)) = (index.get(&pair[0]), index.get(&pair[1])) else {
                return Some(format!("{pair:?} were appended, and not both committed"));
            };
            arrows[*one].insert(*next);
        }
    }
    for (at, node) in nodes.iter().enumerate() {
        for (list, read) in &node.lists {
            let order = orders[list];
            if !order.starts_with(read) {
                return Some(format!("{} has read {read:?} of {order:?}", node.id));
            }
            if let Some(from) = read.last().and_then(|id| index.get(id)).filter(|from| **from != at) {
                arrows[*from].insert(at);
            }
            if let Some(to) = order.get(read.len()).and_then(|id| index.get(id)).filter(|to| **to != at) {
                arrows[at].insert(*to);
            }
        }
        for Seen { room, slots, found } in &node.seen {
            for (slot, id) in found {
                match inserter.get(&(*room, *slot)) {
                    Some(from) if nodes[*from].id == *id => _ = arrows[*from].insert(at),
                    _ => return Some(format!("{} has read what {id} had not committed", node.id)),
                }
            }
            let within = inserter.range((*room, *slots.start())..=(*room, *slots.end()));
            arrows[at].extend(
                within.filter(|((_, slot), to)| !found.contains_key(slot) && **to != at).map(|(_, to)| *to),
            );
        }
    }
    // What is left when nodes without arrows to them are taken away, one after the other.
    let mut count = vec![0; nodes.len()];
    arrows.iter().flatten().for_each(|to| count[*to] += 1);
    let mut free: Vec<usize> = (0..nodes.len()).filter(|at| count[*at] == 0).collect();
    let mut left: BTreeSet<usize> = (0..nodes.len()).collect();
    while let Some(at) = free.pop() {
        left.remove(&at);
        for to in &arrows[at] {
            count[*to] -= 1;
            if count[*to] == 0 {
                free.push(*to);
            }
        }
    }
    let cycle: Vec<_> = left.iter().map(|at| nodes[*at]).take(5).collect();
    (!left.is_empty()).then(|| format!("{} nodes are in cycles or behind them: {cycle:#?}", left.len()))
}

/// Nodes in the order in which each thread made them.
fn sorted(nodes: &Mutex<Vec<Node>>) -> Vec<Node> {
    let mut nodes = nodes.lock().clone();
    nodes.sort_by_key(|node| (node.thread, node.id));
    nodes
}

/// Lets threads work, and the power fail meanwhile. Returns the volume that is left, how many steps were committed, and the fault.
fn round(volume: Simulated, names: Names, broken: Option<Broken>) -> (Simulated, usize, Option<String>) {
    let seed = u64::from(names.round);
    let builder = Database::builder().memory(4 << 20).leaf_len(4096);
    let sync = SYNCS[names.round as usize % SYNCS.len()];
    let db = builder.clone().open_on(Arc::new(Slow(volume.clone(), sync))).unwrap();
    let history = &db.handle.engine.commits.history;
    history.ignores_ranges.store(broken == Some(Broken::Ranges), Relaxed);
    history.ignores_syncing.store(broken == Some(Broken::Syncing), Relaxed);
    let keyspace = db.keyspace("main").unwrap();
    let done = Mutex::new(Vec::new());
    let (found, promised) = std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let free =
                (0..ROOMS).flat_map(|room| (0..SLOTS).map(move |slot| (room, slot * THREADS + thread)));
            let rng = StdRng::seed_from_u64(seed * u64::from(THREADS) + u64::from(thread));
            let free = free.collect();
            let mut worker = Worker { db: &db, keyspace: &keyspace, names, thread, rng, free };
            let done = &done;
            scope.spawn(move || {
                for number in 0..EACH {
                    let id = (u32::from(thread) << 16) + 2 * number as u32;
                    let Some(node) = worker.step(id) else { continue };
                    let may_pass = node.writes() && !node.is_durable;
                    done.lock().push(node);
                    // What became visible beside a sync is seen by a reader that does not see yet what is being synced.
                    if may_pass {
                        let node = worker.look(id + 1);
                        done.lock().push(node);
                    }
                }
            });
        }
        let mut rng = StdRng::seed_from_u64(seed);
        let most = usize::from(THREADS) * EACH / 2;
        let enough = rng.random_range(0..most);
        while done.lock().len() < enough {
            std::thread::yield_now();
        }
        if rng.random() {
            db.flush().unwrap();
        }
        let promised = done.lock().clone();
        (volume.power_loss(seed), promised)
    });
    let (nodes, last) = (sorted(&done), read_all(&db, names));
    let mut fault_found = fault(nodes.iter(), &last, &last);
    drop(keyspace);
    db.close().unwrap();

    let db = builder.open_on(Arc::new(found.clone())).unwrap();
    let survived = read_all(&db, names);
    let writers = || nodes.iter().filter(|node| node.writes());
    fault_found = fault_found
        .or_else(|| fault(writers(), &last, &survived).map(|fault| format!("after a crash: {fault}")));
    for node in promised.iter().filter(|node| node.is_durable) {
        let is_lost = |(room, slot): &Place| {
            !survived.seen.iter().any(|seen| seen.room == *room && seen.found.contains_key(slot))
        };
        let is_off =
            |list: &u8| !survived.lists.iter().any(|(found, of)| found == list && of.contains(&node.id));
        if node.inserted.iter().any(is_lost) || node.appended.iter().any(is_off) {
            fault_found = fault_found.or(Some(format!("{} was durable, and is lost", node.id)));
        }
    }
    db.close().unwrap();
    let committed = nodes.iter().filter(|node| node.id % 2 == 0).count();
    (found, committed, fault_found)
}

/// What is left out of validation, to see that the histories notice.
#[derive(Clone, Copy, PartialEq)]
enum Broken {
    Ranges,
    /// What transactions have read whose commits are being synced.
    Syncing,
}

/// `SERIALIZABLE_ROUNDS=2800 cargo test -p sapwood --lib serial` is more than a million transactions and batches.
#[test]
fn what_threads_have_read_is_explained_by_a_serial_order() {
    let rounds = std::env::var("SERIALIZABLE_ROUNDS").map_or(25, |rounds| rounds.parse().expect("a number"));
    let (mut volume, mut committed) = (Simulated::new(1), 0);
    for number in 0..rounds {
        let (left, count, fault) = round(volume, Names { round: number }, None);
        assert!(fault.is_none(), "round {number}: {}", fault.unwrap());
        (volume, committed) = (left, committed + count);
    }
    let all = rounds as usize * usize::from(THREADS) * EACH;
    println!("{committed} of {all} transactions and batches were committed");
    assert!(committed > all / 4, "{committed} of {all}");
}

/// Lets a build that leaves something out of validation run until it is caught.
fn assert_caught(broken: Broken, what: &str) {
    let mut volume = Simulated::new(1);
    for number in 0..500 {
        let (left, _, fault) = round(volume, Names { round: number }, Some(broken));
        if let Some(fault) = fault {
            println!("round {number}: {fault}");
            return;
        }
        volume = left;
    }
    panic!("{what} were not noticed");
}

#[test]
fn a_build_that_validates_no_ranges_is_caught() {
    assert_caught(Broken::Ranges, "phantoms");
}

#[test]
fn a_build_that_lets_changes_pass_by_what_syncing_transactions_have_read_is_caught() {
    assert_caught(Broken::Syncing, "changes that were visible too early");
}
