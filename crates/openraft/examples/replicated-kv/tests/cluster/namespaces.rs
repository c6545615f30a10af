//! Troubles of nodes in network namespaces: each has a TCP stack of its own, frames are lost, late or cut off on the way, disks are full, and
//! clocks jump. Histories must be linearizable, nothing acknowledged may be lost, and the nodes must end with the same records.
//!
//! They run as root, and say why where they cannot.

use crate::history::violation;
use crate::lan::{self, Lan, Way};
use crate::nodes::{Nodes, until};
use crate::troubles::{judge, live, pause};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use reqwest::header::DATE;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// MiB of the disk of each node, which is in memory: what a node of these tests needs several times.
const DISK_MIB: u64 = 96;
/// How long a fault lasts, in milliseconds: longer than it takes to elect another leader, which begins after 15 to 20 heartbeats of 100 and may split its votes.
const FAULT_MS: u64 = 3000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    KillLeader,
    KillFollower,
    KillAll,
    StopLeader,
    StopFollower,
    /// Nothing of the leader reaches the other nodes, and nothing of them reaches it.
    IsolateLeader,
    LeaderIsMute,
    LeaderIsDeaf,
    /// Two nodes do not reach one another, and both reach the third.
    Bridge,
    /// The leader's interface is down: clients do not reach it either.
    LinkDown,
    /// Of all frames between nodes a tenth is lost.
    Loss,
    /// Frames between nodes take 20 to 40 ms.
    Delay,
    LossAndDelay,
    FullDiskOfLeader,
    FullDiskOfFollower,
    ClocksJump,
    /// A node goes and another comes, while frames are lost.
    Members,
}

const ALL: [Trouble; 17] = [
    Trouble::KillLeader,
    Trouble::KillFollower,
    Trouble::KillAll,
    Trouble::StopLeader,
    Trouble::StopFollower,
    Trouble::IsolateLeader,
    Trouble::LeaderIsMute,
    Trouble::LeaderIsDeaf,
    Trouble::Bridge,
    Trouble::LinkDown,
    Trouble::Loss,
    Trouble::Delay,
    Trouble::LossAndDelay,
    Trouble::FullDiskOfLeader,
    Trouble::FullDiskOfFollower,
    Trouble::ClocksJump,
    Trouble::Members,
];

/// libfaketime, if it is installed (Debian's package `libfaketime`).
fn clock_library() -> Option<PathBuf> {
    let paths = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib", "/usr/lib64"];
    let paths = paths.iter().map(|path| Path::new(path).join("faketime/libfaketimeMT.so.1"));
    paths.into_iter().find(|path| path.exists())
}

fn lan(nodes: &Nodes) -> &Lan {
    nodes.lan.as_ref().expect("they are in a network of namespaces")
}

/// The way from one node to each of the others, or back.
fn set_ways(nodes: &Nodes, from: &[u64], to: &[u64], way: Way) {
    for from in from {
        to.iter().filter(|to| *to != from).for_each(|to| lan(nodes).set(*from, *to, way));
    }
}

async fn make(nodes: &mut Nodes, trouble: Trouble, next: &mut u64) {
    let (ids, leader) = (nodes.ids(), nodes.leader().await);
    let follower = *ids.iter().find(|id| **id != leader).expect("there are three");
    let cut = Way { is_cut: true, ..Way::default() };
    let lossy = Way { loss_percent: 10, ..Way::default() };
    let late = Way { delay: Duration::from_millis(40), ..Way::default() };
    match trouble {
        Trouble::KillLeader | Trouble::KillFollower => {
            let id = if trouble == Trouble::KillLeader { leader } else { follower };
            nodes.kill(id);
            pause(FAULT_MS).await;
            nodes.start(id, &[]);
        }
        Trouble::KillAll => {
            ids.iter().for_each(|id| nodes.kill(*id));
            ids.iter().for_each(|id| nodes.start(*id, &[]));
        }
        Trouble::StopLeader | Trouble::StopFollower => {
            let id = if trouble == Trouble::StopLeader { leader } else { follower };
            nodes.stop(id, true);
            pause(FAULT_MS).await;
            nodes.stop(id, false);
        }
        Trouble::IsolateLeader => {
            set_ways(nodes, &[leader], &ids, cut);
            set_ways(nodes, &ids, &[leader], cut);
            pause(FAULT_MS).await;
        }
        Trouble::LeaderIsMute => {
            set_ways(nodes, &[leader], &ids, cut);
            pause(FAULT_MS).await;
        }
        Trouble::LeaderIsDeaf => {
            set_ways(nodes, &ids, &[leader], cut);
            pause(FAULT_MS).await;
        }
        Trouble::Bridge => {
            set_ways(nodes, &[leader], &[follower], cut);
            set_ways(nodes, &[follower], &[leader], cut);
            pause(FAULT_MS).await;
        }
        Trouble::LinkDown => {
            lan(nodes).link(leader, "down");
            pause(FAULT_MS).await;
            lan(nodes).link(leader, "up");
        }
        Trouble::Loss | Trouble::Delay | Trouble::LossAndDelay => {
            let way = match trouble {
                Trouble::Loss => lossy,
                Trouble::Delay => late,
                _ => Way { loss_percent: 3, ..late },
            };
            let before = lan(nodes).counts();
            set_ways(nodes, &ids, &ids, way);
            pause(FAULT_MS).await;
            let after = lan(nodes).counts();
            assert!(way.loss_percent == 0 || after.0 > before.0, "frames were lost");
            assert!(way.delay.is_zero() || after.1 > before.1, "frames were late");
        }
        Trouble::FullDiskOfLeader | Trouble::FullDiskOfFollower => {
            let id = if trouble == Trouble::FullDiskOfLeader { leader } else { follower };
            fill_disk(nodes, id).await;
        }
        Trouble::ClocksJump => {
            let offsets = ["+3600", "-86400", "+0.5", "+31536000", "-1"];
            for (number, offset) in offsets.into_iter().enumerate() {
                let id = ids[number % ids.len()];
                nodes.set_clock(id, offset);
                pause(FAULT_MS / 5).await;
            }
            if nodes.clock_library.is_some() {
                let leader = nodes.leader().await;
                let before = date(nodes, leader).await;
                // Three years on: what the server says is cached until a later second.
                nodes.set_clock(leader, "+100000000");
                until("the node has seen the jump", async || {
                    (date(nodes, leader).await[..16] != before[..16]).then_some(())
                })
                .await;
            }
            ids.iter().for_each(|id| nodes.set_clock(*id, "+0"));
        }
        Trouble::Members => {
            set_ways(nodes, &ids, &ids, Way { loss_percent: 2, ..Way::default() });
            nodes.remove(leader).await;
            nodes.forget(leader);
            nodes.start(*next, &[]);
            nodes.add(*next).await;
            *next += 1;
        }
    }
    lan(nodes).heal();
    nodes.leader().await;
    pause(500).await;
}

/// What time a node says it is.
async fn date(nodes: &Nodes, id: u64) -> String {
    let answer = nodes.client.get(nodes.url(id, "/status")).send().await.expect("it answers");
    answer.headers()[DATE].to_str().expect("text").to_owned()
}

/// Fills the disk of a node until it stops, and lets the others go on; then makes room, and starts it again.
async fn fill_disk(nodes: &mut Nodes, id: u64) {
    let ballast = nodes.directory(id).join("ballast");
    let mut file = std::fs::File::create(&ballast).expect("creates");
    // What is random is not compressed.
    let chunk: Vec<u8> = StdRng::seed_from_u64(id).random_iter().take(64 << 10).collect();
    while file.write_all(&chunk).is_ok() {}
    drop(file);
    // Entries that need space: a log that is written into files that it has already would go on for long.
    let others: Vec<u64> = nodes.ids().into_iter().filter(|other| *other != id).collect();
    let begin = Instant::now();
    while is_running(nodes, id).await {
        assert!(begin.elapsed() < Duration::from_secs(30), "node {id} has not noticed that its disk is full");
        for other in nodes.ids() {
            let put = nodes.client.put(nodes.url(other, "/records/large")).body(chunk.clone());
            _ = put.send().await;
        }
    }
    pause(FAULT_MS).await;
    // A majority goes on without it.
    until("the others go on", async || {
        for other in &others {
            let put = nodes.client.put(nodes.url(*other, "/records/large")).body("small");
            if put.send().await.is_ok_and(|answer| answer.status().is_success()) {
                return Some(());
            }
        }
        None
    })
    .await;
    nodes.kill(id);
    std::fs::remove_file(ballast).expect("removes");
    nodes.start(id, &[]);
}

async fn is_running(nodes: &Nodes, id: u64) -> bool {
    nodes.status(id).await.is_none_or(|status| status["running_state"].get("Err").is_none())
}

/// A cluster in a network of namespaces; nothing, with the reason, where there can be none.
async fn cluster(arguments: &[&str]) -> Option<Nodes> {
    if let Some(reason) = lan::is_missing() {
        println!("skipped: {reason}");
        return None;
    }
    _ = rustls::crypto::ring::default_provider().install_default();
    let mut nodes = Nodes::new(arguments);
    nodes.lan = Some(Lan::new());
    nodes.disk_mib = Some(DISK_MIB);
    nodes.clock_library = clock_library();
    if nodes.clock_library.is_none() {
        println!("clocks do not jump: libfaketime is not installed");
    }
    nodes.begin_three().await;
    Some(nodes)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn histories_are_linearizable_whatever_the_network_does() {
    let rounds = std::env::var("CLUSTER_ROUNDS").map_or(1, |rounds| rounds.parse().expect("a number"));
    let (mut runs, mut operations) = (0, 0);
    for round in 0..rounds {
        let Some(mut nodes) = cluster(&["--snapshot-after", "500"]).await else { return };
        let history = live(&mut nodes, &ALL, round * 100, make).await;
        judge(&nodes, &history, round).await;
        (runs, operations) = (runs + ALL.len(), operations + history.len());
        println!("{runs} histories of {operations} operations so far, none of them without an order");
    }
}

/// The alarm rings: nodes that answer reads from their own state are caught.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_without_the_read_index_are_caught_in_a_network() {
    let Some(mut nodes) = cluster(&["--wrong-reads"]).await else { return };
    // In one of them no read may come between the writes of the others.
    let history = live(&mut nodes, &[Trouble::IsolateLeader; 3], 7, make).await;
    let found = violation(&history).expect("reads of an isolated node are old");
    println!("{}", found.lines().next().unwrap_or_default());
}
