//! What is too much for a node is refused, and stops none.

use crate::nodes::Nodes;
use reqwest::StatusCode;
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_little_memory_applies_what_it_lets_in() {
    _ = rustls::crypto::ring::default_provider().install_default();
    let mut nodes = Nodes::new(&[]);
    nodes.start(1, &[]);
    nodes.begin(1).await;
    let put = async |len| {
        let put = nodes.client.put(nodes.url(1, "/records/long")).body(vec![b'v'; len]).send().await;
        put.expect("it answers").status()
    };
    // More than a value of this database may have.
    assert_eq!(put(1_000_000).await, StatusCode::BAD_REQUEST);
    assert_eq!(put(900_000).await, StatusCode::OK);
    // Little in the log, and much in the memory of a transaction.
    let write = |number| json!({ "Put": { "key": format!("{number:06}").as_bytes(), "value": [] } });
    let writes: Vec<_> = (0..12_000).map(write).collect();
    let command = json!({ "conditions": [], "writes": writes });
    let done = nodes.client.post(nodes.url(1, "/commands")).json(&command).send().await;
    assert_eq!(done.expect("it answers").status(), StatusCode::OK);
    // A bound that is no key.
    let range = json!({ "DeleteRange": { "from": vec![b'a'; 70_000], "to": null } });
    let command = json!({ "conditions": [], "writes": [range] });
    let done = nodes.client.post(nodes.url(1, "/commands")).json(&command).send().await;
    assert_eq!(done.expect("it answers").status(), StatusCode::BAD_REQUEST);
    assert_eq!(put(1).await, StatusCode::OK, "it goes on");
    nodes.kill(1);
    nodes.start(1, &[]);
    nodes.leader().await;
    let found = nodes.client.get(nodes.url(1, "/records/011999")).send().await;
    assert_eq!(found.expect("it answers").status(), StatusCode::OK);
}
