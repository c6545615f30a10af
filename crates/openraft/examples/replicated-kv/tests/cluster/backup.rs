//! A cluster that is backed up, lost, and begun again.

use crate::nodes::{Nodes, until};
use sapwood::backup::{Directory, Restore};
use sapwood::{Database, Durability};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_of_one_node_becomes_a_cluster_again() {
    let mut nodes = Nodes::cluster(&[]).await;
    let backups = nodes.dir.path().join("backups");
    nodes.kill(2);
    nodes.start(2, &["--backups", backups.to_str().expect("text")]);
    let leader = nodes.leader().await;
    for number in 0..50 {
        let put = nodes.client.put(nodes.url(leader, &format!("/records/key-{number}"))).body("1892");
        assert!(put.send().await.expect("it answers").status().is_success());
    }
    let records = nodes.same_records().await;
    let made = nodes.client.post(nodes.url(2, "/backup")).send().await.expect("it answers");
    assert!(made.status().is_success(), "{made:?}");
    // This comes after it.
    let put = nodes.client.put(nodes.url(leader, "/records/later")).body("1893");
    assert!(put.send().await.expect("it answers").status().is_success());
    for id in 1..=3 {
        nodes.forget(id);
    }

    let target = Directory::open(&backups).expect("opens");
    std::fs::create_dir_all(nodes.directory(7)).expect("creates");
    Restore::from(&target).into_directory(nodes.directory(7).join("node.db")).expect("restores");
    nodes.start(7, &["--force-new-cluster"]);
    assert_eq!(nodes.leader().await, 7);
    assert!(nodes.records(7).await == records, "{}", nodes.records(7).await);
    // Once it is a cluster, others come, and it is started without the word.
    nodes.kill(7);
    nodes.start(7, &[]);
    nodes.start(8, &[]);
    nodes.add(8).await;
    let put = nodes.client.put(nodes.url(7, "/records/again")).body("1911");
    assert!(put.send().await.expect("it answers").status().is_success());
    assert_eq!(nodes.same_records().await.lines().count(), records.lines().count() + 1);
}

/// Two of three nodes are lost for good: the third goes on with all that was acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_node_becomes_a_cluster() {
    let mut nodes = Nodes::cluster(&[]).await;
    let leader = nodes.leader().await;
    for number in 0..50 {
        let put = nodes.client.put(nodes.url(leader, &format!("/records/key-{number}"))).body("1892");
        assert!(put.send().await.expect("it answers").status().is_success());
    }
    nodes.catch_up().await;
    let last = nodes.ids().into_iter().find(|id| *id != leader).expect("there are three");
    // What tells which of several is the newest, with the leader: a term may have two.
    let status = nodes.status(last).await.expect("it answers");
    let newest = &status["last_log_id"];
    assert_eq!(
        (&newest["leader_id"]["term"], &newest["leader_id"]["node_id"], &newest["index"]),
        (&status["current_term"], &status["current_leader"], &status["last_log_index"])
    );
    for id in nodes.ids() {
        if id == last {
            nodes.kill(id);
        } else {
            nodes.forget(id);
        }
    }
    nodes.start(last, &["--force-new-cluster"]);
    assert_eq!(nodes.leader().await, last);
    assert_eq!(nodes.records(last).await.lines().count(), 50);
}

/// If they do, they are strangers: a majority of the old cluster takes nothing back that the new one has acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_of_the_old_cluster_are_not_of_the_new_one() {
    old_nodes_are_strangers(Nodes::cluster(&[]).await).await;
}

/// Also if the old cluster was begun by a program from before they had numbers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_of_an_old_cluster_without_a_number_are_not_of_the_new_one() {
    let mut nodes = Nodes::cluster(&[]).await;
    for id in nodes.ids() {
        nodes.kill(id);
        let db = Database::builder().memory(16 << 20).open(nodes.directory(id).join("node.db"));
        let kept = db.expect("opens").keyspace("node").expect("it is there");
        assert!(kept.get("cluster").expect("reads").is_some());
        kept.with_durability(Durability::Immediate).remove("cluster").expect("removes");
    }
    for id in nodes.ids() {
        nodes.start(id, &[]);
    }
    let leader = nodes.leader().await;
    assert!(nodes.status(leader).await.expect("it answers")["cluster"].is_null());
    old_nodes_are_strangers(nodes).await;
}

async fn old_nodes_are_strangers(mut nodes: Nodes) {
    let leader = nodes.leader().await;
    let client = nodes.client.clone();
    let put = async |url: String| client.put(url).body("1892").send().await.expect("it answers").status();
    assert!(put(nodes.url(leader, "/records/early")).await.is_success());
    nodes.catch_up().await;
    let last = nodes.ids().into_iter().find(|id| *id != leader).expect("there are three");
    let old: Vec<_> = nodes.ids().into_iter().filter(|id| *id != last).collect();
    nodes.ids().into_iter().for_each(|id| nodes.kill(id));
    nodes.start(last, &["--force-new-cluster"]);
    assert_eq!(nodes.leader().await, last);
    assert!(put(nodes.url(last, "/records/later")).await.is_success());
    for id in &old {
        nodes.start(*id, &[]);
    }
    // They elect a leader of their own, and it sends what it has.
    let is_led = async || {
        let status = nodes.status(old[0]).await?;
        status["current_leader"].as_u64().filter(|leader| old.contains(leader))
    };
    until("the old ones have a leader", is_led).await;
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    assert!(put(nodes.url(last, "/records/again")).await.is_success(), "it leads on");
    assert_eq!(nodes.records(last).await.lines().count(), 3);
    let add = nodes.client.put(nodes.url(last, &format!("/cluster/nodes/{}", old[0])));
    let added = add.body(nodes.address(old[0]).to_owned()).send().await.expect("it answers");
    assert_eq!(added.status(), reqwest::StatusCode::CONFLICT);
}

/// Without a state there is nothing to begin with, and the node stays what it was: it may join a cluster.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_cluster_that_cannot_begin_changes_nothing() {
    _ = rustls::crypto::ring::default_provider().install_default();
    let mut nodes = Nodes::new(&[]);
    nodes.start(1, &[]);
    nodes.begin(1).await;
    assert_eq!(nodes.run_to_end_with(2, &["--force-new-cluster"]).code(), Some(1));
    nodes.start(2, &[]);
    let status = until("it listens", async || nodes.status(2).await).await;
    assert!(status["cluster"].is_null(), "{status}");
    nodes.add(2).await;
}
