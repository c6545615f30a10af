//! What is too much for a node is refused, and stops none.

use crate::nodes::{Nodes, until};
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

/// However long the records are, an answer is not, and says how to go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scan_comes_in_parts() {
    _ = rustls::crypto::ring::default_provider().install_default();
    let mut nodes = Nodes::new(&[]);
    nodes.start(1, &[]);
    nodes.begin(1).await;
    // Keys of all kinds, also such as are no text.
    let mut keys: Vec<Vec<u8>> = vec![
        vec![0],
        vec![255, 254],
        b"a&b=c d+e%f".to_vec(),
        "\u{e9}t\u{e9}".into(),
        vec![b'k', 0],
        vec![200; 40],
    ];
    keys.sort();
    for key in &keys {
        let put = json!({ "Put": { "key": key, "value": vec![b'v'; 700_000] } });
        let command = json!({ "conditions": [], "writes": [put] });
        let done = nodes.client.post(nodes.url(1, "/commands")).json(&command).send().await;
        assert_eq!(done.expect("it answers").status(), StatusCode::OK);
    }
    let scan = async |query: &str| {
        let read = nodes.client.get(nodes.url(1, &format!("/records?{query}"))).send().await;
        read.expect("it answers")
    };
    let first = scan("").await;
    assert!(first.headers().contains_key("sapwood-next"));
    let first = first.text().await.expect("text");
    assert!(first.len() < 2_000_000, "{} bytes", first.len());
    let all = nodes.records(1).await;
    let found: Vec<_> = all.lines().map(|line| line.split('\t').next().expect("a key")).collect();
    let expected: Vec<_> = keys.iter().map(|key| key.escape_ascii().to_string()).collect();
    assert_eq!(found, expected);
    // By the number of records as well, and not behind the last.
    let two = scan("limit=2&from=a").await;
    assert_eq!(two.headers()["sapwood-next"], "k%00%00", "what comes first behind the last one");
    let last = scan("from=%FF").await;
    assert!(!last.headers().contains_key("sapwood-next"));
    assert_eq!(last.text().await.expect("text").lines().count(), 1);
}

/// A leader that has stopped is confirmed by nobody any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_has_stopped_does_not_say_how_old_its_state_is() {
    _ = rustls::crypto::ring::default_provider().install_default();
    let mut nodes = Nodes::new(&[]);
    nodes.start(1, &[]);
    nodes.begin(1).await;
    let put = nodes.client.put(nodes.url(1, "/records/fram")).body("1892").send().await;
    assert!(put.expect("it answers").status().is_success());
    let age = async || {
        let read = nodes.client.get(nodes.url(1, "/records/fram?read=own")).send().await.ok()?;
        Some(read.headers().get("sapwood-age-ms")?.to_str().ok()?.to_owned())
    };
    until("it is confirmed", async || age().await?.parse::<u64>().ok()).await;
    // It cannot write a snapshot.
    std::fs::remove_dir_all(nodes.directory(1).join("snapshots")).expect("is removed");
    let made = nodes.client.post(nodes.url(1, "/snapshot")).send().await;
    assert!(made.expect("it answers").status().is_success());
    until("it has stopped", async || {
        let metrics = nodes.client.get(nodes.url(1, "/metrics")).send().await.ok()?.text().await.ok()?;
        metrics.contains("\nsapwood_raft_is_running 0\n").then_some(())
    })
    .await;
    assert_eq!(age().await.as_deref(), Some("unknown"));
}
