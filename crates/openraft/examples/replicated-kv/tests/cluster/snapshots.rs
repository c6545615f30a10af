//! Nodes that have missed what the log does not have any more.

use crate::nodes::{Nodes, until};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// Bytes a second of a slow link.
const SLOW: f64 = 80.0 * 1024.0;

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
    let begin = Instant::now();
    until("its state is newer than that", async || {
        let read = nodes.client.get(nodes.url(3, "/records/key-007?read=own")).send().await.ok()?;
        let age = read.headers().get("sapwood-age-ms")?.to_str().ok()?.parse::<u64>().ok()?;
        (u128::from(age) < begin.elapsed().as_millis()).then_some(())
    })
    .await;
}

/// An address from which a slow link goes to another.
async fn slow_link(to: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let Ok(far) = TcpStream::connect(&to).await else { continue };
            let ((from, back), (answers, there)) = (near.into_split(), far.into_split());
            tokio::spawn(carry(from, there));
            tokio::spawn(carry(answers, back));
        }
    });
    address
}

async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let mut bytes = [0; 4096];
    while let Ok(len @ 1..) = from.read(&mut bytes).await {
        tokio::time::sleep(Duration::from_secs_f64(len as f64 / SLOW)).await;
        if to.write_all(&bytes[..len]).await.is_err() {
            break;
        }
    }
}

/// It is sent in pieces, each of which has its time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_crosses_a_slow_link() {
    _ = rustls::crypto::ring::default_provider().install_default();
    // A message of entries crosses it within a heartbeat.
    let mut nodes = Nodes::new(&["--snapshot-after", "20", "--heartbeat", "5000"]);
    nodes.start(1, &[]);
    nodes.begin(1).await;
    for number in 0..60 {
        // Which is not compressed.
        let value: Vec<u8> = (0..20 << 10).map(|_| rand::random()).collect();
        let put = nodes.client.put(nodes.url(1, &format!("/records/key-{number}"))).body(value);
        assert!(put.send().await.expect("it answers").status().is_success());
    }
    until("there is a snapshot of all", async || {
        // Again, since nothing is begun while another one is being made.
        let made = nodes.client.post(nodes.url(1, "/snapshot")).send().await.expect("it answers");
        assert!(made.status().is_success());
        let status = nodes.status(1).await?;
        let is_whole = status["snapshot"]["index"].as_u64() == status["last_log_index"].as_u64();
        (is_whole && status["purged"]["index"].as_u64() > Some(20)).then_some(())
    })
    .await;
    // It has to listen somewhere before there is a link.
    nodes.start(2, &[]);
    nodes.kill(2);
    let link = slow_link(nodes.address(2).to_owned()).await;
    nodes.start(2, &["--address", &link]);
    until("it listens", async || nodes.status(2).await).await;
    let add = nodes.client.put(nodes.url(1, "/cluster/nodes/2")).timeout(Duration::from_secs(60)).body(link);
    let added = add.send().await.expect("it is there in a minute");
    assert!(added.status().is_success(), "{added:?}");
    assert_eq!(nodes.same_records().await.lines().count(), 60);
}
