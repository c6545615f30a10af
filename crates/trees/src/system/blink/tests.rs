//! What two threads do that meet while the root is being split.

#![allow(clippy::unwrap_used, reason = "a test")]

use super::{BlinkOptions, BlinkTree};
use crate::index::Index;
use crate::page::NodeId;
use parking_lot::Mutex;
use psync::{Device as _, PassThrough, Simulated, Volume, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::ThreadId;
use std::time::Duration;

/// Longer than any insertion takes: whoever is not through then waits for ever.
const FOREVER: Duration = Duration::from_secs(20);
/// Time for a thread that need not wait to insert a few keys in memory. One that has to wait is not through then.
const WHILE_STOPPED: Duration = Duration::from_millis(300);
/// Frames of the pool: few, so that pages are driven out of it.
const FRAMES: usize = 4;

/// A volume that stops one thread at each of its writes, until it is told to go on.
struct Stops {
    volume: Simulated,
    thread: Mutex<Option<ThreadId>>,
    stopped: Sender<()>,
    /// The one thread that is stopped locks it alone.
    go: Mutex<Receiver<()>>,
}

impl PassThrough for Stops {
    fn inner(&self) -> &dyn Volume {
        &self.volume
    }

    fn write(&self, set: &[Write<'_>]) -> psync::Result<()> {
        let is_stopped = *self.thread.lock() == Some(std::thread::current().id());
        if is_stopped {
            self.stopped.send(()).unwrap();
            self.go.lock().recv().unwrap();
        }
        self.volume.write(set)
    }
}

/// The first thread has written both halves of the root, and no root above them yet. The second one comes by the old root to
/// the right half, and divides it too.
#[test]
fn threads_that_split_the_root_and_its_right_half_agree() {
    let ((stopped, stops), (go, goes)) = (channel(), channel());
    let volume = Simulated::new(1).with_alignment(128);
    let volume = Arc::new(Stops { volume, thread: Mutex::new(None), stopped, go: Mutex::new(goes) });
    let options = BlinkOptions { page_len: 256, frames: FRAMES, keys_max: Some(4) };
    let tree = Arc::new(BlinkTree::create(Arc::<Stops>::clone(&volume), &options).unwrap());
    let mut next = 0;
    while !is_about_to_split(&tree) {
        tree.insert(next, next).unwrap();
        next += 1;
    }
    let root = *tree.root.read();
    // Pages that nobody else uses, in two sets: whatever is put into a pool full of one drives out a page that has to be
    // written. The page of one set that is just being written is not to be touched: the other set has its turn.
    let sets: Vec<Vec<NodeId>> = (0..2).map(|_| (0..FRAMES).map(|_| tree.allocate()).collect()).collect();
    let leaf = tree.plant().unwrap();
    let leaf = tree.nodes.read(leaf.id).unwrap();
    let fill_pool = |set: &[NodeId]| {
        set.iter().for_each(|id| tree.nodes.write(*id, leaf.as_ref().clone()).unwrap());
    };
    fill_pool(&sets[0]);
    let insert = |keys: std::ops::Range<u64>| {
        let (tree, volume) = (Arc::clone(&tree), Arc::clone(&volume));
        let (done, is_done) = channel();
        std::thread::spawn(move || {
            volume.thread.lock().get_or_insert(std::thread::current().id());
            done.send(keys.into_iter().try_for_each(|key| tree.insert(key, key))).unwrap();
        });
        is_done
    };
    let first = insert(next..next + 1);
    for set in sets.iter().cycle().skip(1) {
        stops.recv_timeout(FOREVER).expect("the root's halves are written before the insertion ends");
        let is_split = tree.nodes.read(root.id).unwrap().right.is_some();
        fill_pool(set);
        if is_split {
            break;
        }
        go.send(()).unwrap();
    }
    // The first thread's key is in neither half yet, or in the right one.
    let second = insert(next + 1..next + 30);
    let early = second.recv_timeout(WHILE_STOPPED);
    // From here on nobody is stopped: each stop finds that it may go on.
    (0..1000).for_each(|_| go.send(()).unwrap());
    first.recv_timeout(FOREVER).expect("no endless way").expect("inserted");
    let second = match early {
        Ok(done) => done,
        Err(_) => second.recv_timeout(FOREVER).expect("no endless way"),
    };
    second.expect("inserted");
    tree.check().expect("sound");
    for key in 0..next + 30 {
        assert_eq!(Index::search(tree.as_ref(), key).unwrap(), Some(key), "key {key}");
    }
}

/// Whether one more key at the end would divide the last leaf, and with it a root above the leaves.
fn is_about_to_split(tree: &BlinkTree) -> bool {
    let root = *tree.root.read();
    let node = tree.nodes.read(root.id).unwrap();
    let Ok(inner) = node.node.as_inner() else { return false };
    let last = tree.nodes.read(*inner.children.last().unwrap()).unwrap();
    inner.children.len() == tree.shape.fanout && last.node.count() == tree.shape.records
}
