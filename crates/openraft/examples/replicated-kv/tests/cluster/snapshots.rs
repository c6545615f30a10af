//! Nodes that have missed what the log does not have any more.

use crate::nodes::{Nodes, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_missed_the_log_is_sent_the_state() {
    let mut nodes = Nodes::cluster(&["--snapshot-after", "200"]).await;
    nodes.kill(3);
    let leader = nodes.leader().await;
    for number in 0..1000 {
        let put = nodes.client.put(nodes.url(leader, &format!("/records/key-{:03}", number % 300)));
        let answer = put.body(format!("{number:01000}")).send().await.expect("it answers");
        assert!(answer.status().is_success(), "{answer:?}");
    }
    until("the log is purged", async || {
        let purged = nodes.status(leader).await?["purged"]["index"].as_u64()?;
        (purged > 500).then_some(())
    })
    .await;
    nodes.start(3, &[]);
    let records = nodes.same_records().await;
    assert_eq!(records.lines().count(), 300);
    let status = nodes.status(3).await.expect("it answers");
    assert!(status["snapshot"]["index"].as_u64() > Some(500), "it has installed a snapshot: {status}");
    // And it is as good as the others, also when it starts again.
    nodes.kill(3);
    nodes.start(3, &[]);
    assert!(nodes.same_records().await == records);
    let age = until("an age is known", async || {
        let read = nodes.client.get(nodes.url(3, "/records/key-007?read=own")).send().await.ok()?;
        read.headers().get("sapwood-age-ms")?.to_str().ok()?.parse::<u64>().ok()
    })
    .await;
    assert!(age < 5000, "{age} ms");
}
