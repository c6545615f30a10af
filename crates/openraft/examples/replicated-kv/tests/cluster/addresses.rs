//! Addresses at which another node is than is thought.

use crate::nodes::{Nodes, until};
use reqwest::StatusCode;
use std::time::{Duration, Instant};

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

    // Elections take half a second to a second.
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(5) {
        let read = nodes.client.get(nodes.url(behind, "/records/fram")).send().await;
        let status = read.map(|answer| answer.status());
        assert!(
            !matches!(status, Ok(StatusCode::OK | StatusCode::NOT_FOUND)),
            "{status:?} without a majority"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    nodes.start(leader, &[]);
    nodes.add(4).await;
    nodes.remove(lost).await;
    assert!(nodes.same_records().await.contains("1892"));
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
    // A message for another is not taken; one that does not say for whom it is comes from an older program.
    let post = async |path: &str| nodes.client.post(nodes.url(2, path)).send().await.expect("it answers");
    for path in ["/raft/vote", "/raft/append", "/raft/snapshot"] {
        assert_eq!(post(&format!("{path}?to=4")).await.status(), StatusCode::MISDIRECTED_REQUEST, "{path}");
        for path in [path.to_owned(), format!("{path}?to=2")] {
            let answer = post(&path).await;
            assert_eq!(answer.status(), StatusCode::BAD_REQUEST, "{path}");
            assert!(answer.text().await.expect("text").contains("a message of openraft"), "{path}");
        }
    }
}
