//! Addresses at which another node is than is thought.

use crate::nodes::{Nodes, answering, until};
use reqwest::StatusCode;
use std::sync::{Arc, Mutex};

/// A lost node's address goes to an empty one with a new number. As the lost one it would vote for a node that has not what the lost one had
/// confirmed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_does_not_vote_as_the_one_that_had_its_address() {
    let mut nodes = Nodes::cluster(&["--faults"]).await;
    let leader = nodes.leader().await;
    let mut others = nodes.ids().into_iter().filter(|id| *id != leader);
    let (behind, lost) = (others.next().expect("three"), others.next().expect("three"));
    nodes.lose(leader, &[behind], &[], 0).await;
    let put = nodes.client.put(nodes.url(leader, "/records/fram")).body("1892").send().await;
    assert!(put.expect("it answers").status().is_success(), "the leader and the lost one are a majority");
    let address = nodes.address(lost).to_owned();
    nodes.forget(lost);
    nodes.start_at(4, &address);
    until("the new one listens", async || nodes.status(4).await).await;
    nodes.kill(leader);

    nodes.stands_in_vain(behind).await;
    nodes.start(leader, &[]);
    nodes.add(4).await;
    nodes.remove(lost).await;
    assert!(nodes.same_records().await.contains("1892"));
}

/// With the vote and the log of one node it would vote as two.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_is_not_started_as_another_node() {
    _ = rustls::crypto::ring::default_provider().install_default();
    let mut nodes = Nodes::new(&[]);
    nodes.start(1, &[]);
    nodes.begin(1).await;
    nodes.kill(1);
    std::fs::rename(nodes.directory(1), nodes.directory(2)).expect("renames");
    let ended = nodes.run_to_end(2);
    assert_eq!(ended.code(), Some(1));
    let log = std::fs::read_to_string(nodes.dir.path().join("log-2")).expect("a log");
    assert!(log.contains("node 1") && log.contains("node 2"), "{log}");
    // As itself it goes on; as the node of a new cluster it may be another.
    std::fs::rename(nodes.directory(2), nodes.directory(1)).expect("renames");
    nodes.start(1, &[]);
    nodes.leader().await;
    nodes.forget(1);
    std::fs::rename(nodes.directory(1), nodes.directory(2)).expect("renames");
    nodes.start(2, &["--force-new-cluster"]);
    assert_eq!(nodes.leader().await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_not_added_at_the_address_of_another() {
    let nodes = Nodes::cluster(&[]).await;
    let leader = nodes.leader().await;
    let put = nodes.client.put(nodes.url(leader, "/cluster/nodes/4")).body(nodes.address(2).to_owned());
    assert_eq!(put.send().await.expect("it answers").status(), StatusCode::CONFLICT);
    let status = nodes.status(leader).await.expect("it answers");
    assert_eq!(
        status["membership_config"]["membership"]["nodes"].as_object().map(|nodes| nodes.len()),
        Some(3)
    );
    // A member at another address would stay at its own.
    let put = async |address: &str| {
        let put = nodes.client.put(nodes.url(leader, "/cluster/nodes/2")).body(address.to_owned());
        put.send().await.expect("it answers")
    };
    let moved = put("127.0.0.1:1").await;
    assert_eq!(moved.status(), StatusCode::CONFLICT);
    let reason = moved.text().await.expect("text");
    assert!(reason.contains(nodes.address(2)) && reason.contains("remove"), "{reason}");
    assert_eq!(put(nodes.address(2)).await.status(), StatusCode::OK, "it is there");
    // A message for another is not taken, nor one of a cluster without a number; one that does not say for whom it is comes from an older program.
    let post = async |path: &str| nodes.client.post(nodes.url(2, path)).send().await.expect("it answers");
    let cluster = status["cluster"].as_str().expect("it has a number");
    for path in ["/raft/vote", "/raft/append", "/raft/snapshot"] {
        for path in [format!("{path}?to=4&cluster={cluster}"), path.to_owned(), format!("{path}?to=2")] {
            assert_eq!(post(&path).await.status(), StatusCode::MISDIRECTED_REQUEST, "{path}");
        }
        for path in [format!("{path}?cluster={cluster}"), format!("{path}?to=2&cluster={cluster}")] {
            let answer = post(&path).await;
            assert_eq!(answer.status(), StatusCode::BAD_REQUEST, "{path}");
            assert!(answer.text().await.expect("text").contains("a message of openraft"), "{path}");
        }
    }
}

/// Its log has entries with the ids of this cluster's and other content: it would confirm what it does not have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_a_cluster_of_its_own_does_not_join_another() {
    _ = rustls::crypto::ring::default_provider().install_default();
    let mut nodes = Nodes::new(&[]);
    for id in 1..=2 {
        nodes.start(id, &[]);
    }
    for id in 1..=2 {
        nodes.begin(id).await;
    }
    let client = nodes.client.clone();
    let put = async |url: String| client.put(url).body("1892").send().await.expect("it answers").status();
    assert_eq!(put(nodes.url(1, "/records/a")).await, StatusCode::OK);
    for number in 0..5 {
        assert_eq!(put(nodes.url(2, &format!("/records/b-{number}"))).await, StatusCode::OK);
    }
    let own = nodes.records(2).await;
    let (add, address) = (nodes.url(1, "/cluster/nodes/2"), nodes.address(2).to_owned());
    let refused = client.put(&add).body(address.clone()).send().await.expect("it answers");
    assert_eq!(refused.status(), StatusCode::CONFLICT);
    let reason = refused.text().await.expect("text");
    assert!(reason.contains("another cluster"), "{reason}");
    // One that does not run cannot be asked, and would be counted in the majority.
    nodes.kill(2);
    let refused = client.put(&add).body(address).send().await.expect("it answers");
    assert_eq!(refused.status(), StatusCode::CONFLICT);
    assert_eq!(put(nodes.url(1, "/records/a")).await, StatusCode::OK, "it is a majority alone");
    nodes.start(2, &[]);
    until("it listens", async || nodes.status(2).await).await;
    // Messages of one are nothing to the other.
    let cluster =
        async |id| nodes.status(id).await.expect("it answers")["cluster"].as_str().map(str::to_owned);
    let (first, second) = (cluster(1).await.expect("it has one"), cluster(2).await.expect("it has one"));
    assert_ne!(first, second);
    for path in ["/raft/vote", "/raft/append", "/raft/snapshot"] {
        let post = async |cluster: &str| {
            let url = nodes.url(2, &format!("{path}?to=2&cluster={cluster}"));
            client.post(url).send().await.expect("it answers").status()
        };
        assert_eq!(post(&first).await, StatusCode::MISDIRECTED_REQUEST, "{path}");
        assert_eq!(post(&second).await, StatusCode::BAD_REQUEST, "{path}: it is empty");
    }
    until("it leads its own", async || {
        (put(nodes.url(2, "/records/b-0")).await == StatusCode::OK).then_some(())
    })
    .await;
    assert_eq!(nodes.records(2).await.lines().count(), own.lines().count());
}

/// It would have a log without the number, and take no message any more once it is upgraded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_from_before_clusters_had_numbers_is_not_added() {
    _ = rustls::crypto::ring::default_provider().install_default();
    let mut nodes = Nodes::new(&[]);
    for id in 1..=2 {
        nodes.start(id, &[]);
    }
    nodes.begin(1).await;
    let mut status = until("it listens", async || nodes.status(2).await).await;
    status.as_object_mut().and_then(|status| status.remove("cluster")).expect("this one says so");
    let address = answering(Arc::new(Mutex::new(status))).await;
    let add = nodes.client.put(nodes.url(1, "/cluster/nodes/2")).body(address).send().await;
    let refused = add.expect("it answers");
    assert_eq!(refused.status(), StatusCode::CONFLICT);
    let reason = refused.text().await.expect("text");
    assert!(reason.contains("upgrade"), "{reason}");
    nodes.add(2).await;
}

/// Whoever does not lead does not know who is a member.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_does_not_lead_removes_nothing_and_says_so() {
    let mut nodes = Nodes::cluster(&["--faults"]).await;
    let leader = nodes.leader().await;
    let follower = nodes.ids().into_iter().find(|id| *id != leader).expect("three");
    nodes.lose(leader, &[follower], &[], 0).await;
    nodes.lose(follower, &nodes.ids(), &[], 0).await;
    nodes.start(4, &[]);
    nodes.add(4).await;
    let delete = nodes.client.delete(nodes.url(follower, "/cluster/nodes/4")).send().await;
    let status = delete.expect("it answers").status();
    assert!(!status.is_success(), "{status}");
    let status = nodes.status(leader).await.expect("it answers");
    let members = status["membership_config"]["membership"]["nodes"].as_object().map(|nodes| nodes.len());
    assert_eq!(members, Some(4));
    nodes.heal().await;
    nodes.remove(4).await;
    // Its leader says so of one that is not there.
    nodes.remove(4).await;
}
