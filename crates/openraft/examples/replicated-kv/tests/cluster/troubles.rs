//! Troubles while clients work, one after the other: their history must be linearizable, nothing acknowledged may be lost, and the nodes must
//! end with the same records.

use crate::client::Load;
use crate::history::{Call, Operation, violation, with_last_reads};
use crate::nodes::{Nodes, until};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

/// Operations of each history, at least, however busy the machine is: all of them together are as many as are judged.
const OPERATIONS: usize = 200;

#[derive(Clone, Copy, Debug)]
enum Trouble {
    None,
    KillLeader,
    KillFollower,
    KillAll,
    StopLeader,
    /// The leader reaches no other node, and none reaches it.
    IsolateLeader,
    /// The leader's messages are lost, those to it are not.
    LeaderIsMute,
    /// What the leader says arrives, and the answers do not.
    LeaderIsDeaf,
    /// Two nodes do not reach one another, and both reach the third.
    Bridge,
    Delays,
    /// A node goes and another comes.
    Members,
}

const ALL: [Trouble; 11] = [
    Trouble::None,
    Trouble::KillLeader,
    Trouble::KillFollower,
    Trouble::KillAll,
    Trouble::StopLeader,
    Trouble::IsolateLeader,
    Trouble::LeaderIsMute,
    Trouble::LeaderIsDeaf,
    Trouble::Bridge,
    Trouble::Delays,
    Trouble::Members,
];

pub async fn pause(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

/// Makes a trouble, and ends it.
async fn make(nodes: &mut Nodes, trouble: Trouble, next: &mut u64) {
    let (ids, leader) = (nodes.ids(), nodes.leader().await);
    let follower = *ids.iter().find(|id| **id != leader).expect("there are three");
    match trouble {
        Trouble::None => pause(1500).await,
        Trouble::KillLeader | Trouble::KillFollower => {
            let id = if matches!(trouble, Trouble::KillLeader) { leader } else { follower };
            nodes.kill(id);
            pause(2500).await;
            nodes.start(id, &[]);
        }
        Trouble::KillAll => {
            ids.iter().for_each(|id| nodes.kill(*id));
            ids.iter().for_each(|id| nodes.start(*id, &[]));
        }
        Trouble::StopLeader => {
            nodes.stop(leader, true);
            pause(2500).await;
            nodes.stop(leader, false);
        }
        Trouble::IsolateLeader => {
            for id in &ids {
                nodes
                    .lose(*id, if *id == leader { &ids } else { std::slice::from_ref(&leader) }, &[], 0)
                    .await;
            }
            pause(2500).await;
        }
        Trouble::LeaderIsMute => {
            nodes.lose(leader, &ids, &[], 0).await;
            pause(2500).await;
        }
        Trouble::LeaderIsDeaf => {
            nodes.lose(leader, &[], &ids, 0).await;
            pause(2500).await;
        }
        Trouble::Bridge => {
            nodes.lose(leader, &[follower], &[], 0).await;
            nodes.lose(follower, &[leader], &[], 0).await;
            pause(2500).await;
        }
        Trouble::Delays => {
            for id in &ids {
                nodes.lose(*id, &[], &[], 150).await;
            }
            pause(2500).await;
        }
        Trouble::Members => {
            nodes.remove(leader).await;
            nodes.forget(leader);
            nodes.start(*next, &[]);
            nodes.add(*next).await;
            *next += 1;
        }
    }
    nodes.heal().await;
    nodes.leader().await;
    pause(500).await;
}

/// Goes through troubles, each with clients and keys of its own. Returns the histories.
pub async fn live<T: Copy + Debug>(
    nodes: &mut Nodes,
    troubles: &[T],
    seed: u64,
    make: impl AsyncFn(&mut Nodes, T, &mut u64),
) -> Vec<Operation> {
    let (mut all, mut next) = (Vec::new(), 4);
    let clients = std::env::var("CLUSTER_CLIENTS").map_or(8, |clients| clients.parse().expect("a number"));
    for (round, trouble) in (0..).zip(troubles) {
        let urls = nodes.ids().into_iter().map(|id| nodes.url(id, "")).collect();
        let load = Load::start(&nodes.client, urls, &format!("round-{round}"), clients, seed + round);
        pause(300).await;
        make(nodes, *trouble, &mut next).await;
        until("there is a history", async || (load.operations() >= OPERATIONS).then_some(())).await;
        let history = load.end().await;
        let count = |f: fn(&&Operation) -> bool| history.iter().filter(f).count();
        let (reads, unknown) = (
            count(|operation| matches!(operation.call, Call::Get { .. })),
            count(|operation| operation.returned.is_none()),
        );
        println!("{trouble:?}: {} operations, {reads} reads, {unknown} of unknown end", history.len());
        all.extend(history);
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn histories_are_linearizable_whatever_happens() {
    let rounds = std::env::var("CLUSTER_ROUNDS").map_or(1, |rounds| rounds.parse().expect("a number"));
    for round in 0..rounds {
        let mut nodes = Nodes::cluster(&["--faults", "--snapshot-after", "500"]).await;
        let history = live(&mut nodes, &ALL, round * 100, make).await;
        judge(&nodes, &history, round).await;
    }
}

/// The history is linearizable, with what the nodes have in the end, and long enough to tell, and the nodes end with the same records.
pub async fn judge(nodes: &Nodes, history: &[Operation], round: u64) {
    assert!(history.len() > 2000, "{} operations", history.len());
    let records = nodes.same_records().await;
    let number = |line: &str| {
        let mut parts = line.split('\t');
        // Beside the clients' records there are some that are no numbers.
        Some((parts.next()?.to_owned(), parts.nth(1)?.parse::<u64>().ok()?))
    };
    let found: BTreeMap<String, u64> = records.lines().filter_map(number).collect();
    assert!(found.len() > 40, "{records}");
    let in_the_end = |key: &str| found.get(key).copied().unwrap_or(0);
    let whole = with_last_reads(history, in_the_end);
    let broken = violation(&whole);
    assert!(broken.is_none(), "round {round}: {}", broken.unwrap_or_default());
    judge_by_porcupine(nodes, &whole);
}

/// If `PORCUPINE` says so.
fn judge_by_porcupine(nodes: &Nodes, history: &[Operation]) {
    if std::env::var_os("PORCUPINE").is_none() {
        return;
    }
    let path = nodes.dir.path().join("history.json");
    std::fs::write(&path, serde_json::to_vec(history).expect("encodes")).expect("writes");
    let judge = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/porcupine");
    let judged = std::process::Command::new("go").args(["run", "."]).arg(&path).current_dir(judge).output();
    let judged = judged.expect("go is there");
    let answer = String::from_utf8_lossy(&judged.stdout);
    assert!(judged.status.success(), "{answer}{}", String::from_utf8_lossy(&judged.stderr));
    println!("porcupine: {}", answer.trim());
}

/// The alarm rings: nodes that answer reads from their own state are caught.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_without_the_read_index_are_caught() {
    let mut nodes = Nodes::cluster(&["--faults", "--wrong-reads"]).await;
    // In one of them no read may come between the writes of the others.
    let history = live(&mut nodes, &[Trouble::IsolateLeader; 3], 7, make).await;
    let found = violation(&history).expect("reads of an isolated node are old");
    println!("{}", found.lines().next().unwrap_or_default());
}
