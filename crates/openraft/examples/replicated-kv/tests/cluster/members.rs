//! Members that come, go, and come back with nothing, while others are lost.

use crate::nodes::{Nodes, answering, until};
use reqwest::StatusCode;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Longer than a request waits for a majority, and than that the loss of one is noticed.
const LONG: Duration = Duration::from_secs(40);

/// Who votes, as a node has it.
async fn voters(nodes: &Nodes, id: u64) -> Option<Value> {
    Some(nodes.status(id).await?["membership_config"]["membership"]["configs"].clone())
}

async fn is_member(nodes: &Nodes, leader: u64, id: u64) -> Option<()> {
    let status = nodes.status(leader).await?;
    status["membership_config"]["membership"]["nodes"].get(id.to_string()).map(drop)
}

async fn status_of(request: reqwest::RequestBuilder) -> StatusCode {
    request.timeout(LONG).send().await.expect("it answers").status()
}

/// Its disk was not there, say. It would vote for a node that has not what it had confirmed, and what was acknowledged would be lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_comes_back_with_nothing_does_not_vote() {
    let mut nodes = Nodes::cluster(&["--faults"]).await;
    let leader = nodes.leader().await;
    let mut others = nodes.ids().into_iter().filter(|id| *id != leader);
    let (behind, emptied) = (others.next().expect("three"), others.next().expect("three"));
    nodes.lose(leader, &[behind], &[], 0).await;
    let put = nodes.client.put(nodes.url(leader, "/records/fram")).body("1892").send().await;
    assert!(put.expect("it answers").status().is_success(), "the leader and the other one are a majority");
    nodes.kill(emptied);
    std::fs::remove_dir_all(nodes.directory(emptied)).expect("removes");
    nodes.start(emptied, &[]);
    until("it listens", async || nodes.status(emptied).await).await;
    nodes.kill(leader);

    nodes.stands_in_vain(behind).await;
    assert!(nodes.status(emptied).await.expect("it answers")["cluster"].is_null());
    nodes.start(leader, &[]);
    let now = nodes.leader().await;
    let put = nodes.client.put(nodes.url(now, &format!("/cluster/nodes/{emptied}")));
    let refused = put.body(nodes.address(emptied).to_owned()).send().await.expect("it answers");
    assert_eq!(refused.status(), StatusCode::CONFLICT);
    let reason = refused.text().await.expect("text");
    assert!(reason.contains("remove") && reason.contains("new number"), "{reason}");
    nodes.remove(emptied).await;
    let address = nodes.address(emptied).to_owned();
    nodes.forget(emptied);
    std::fs::remove_dir_all(nodes.directory(emptied)).expect("removes");
    nodes.start_at(4, &address);
    nodes.add(4).await;
    assert!(nodes.same_records().await.contains("1892"));
}

/// Nothing else makes a node one of a cluster, and what a leader has not come to the end with it repeats.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_joins_when_it_is_asked_to_and_only_one_cluster() {
    _ = rustls::crypto::ring::default_provider().install_default();
    let mut nodes = Nodes::new(&[]);
    for id in 1..=3 {
        nodes.start(id, &[]);
    }
    nodes.begin(1).await;
    for id in 2..=3 {
        until("it listens", async || nodes.status(id).await).await;
    }
    let cluster = nodes.status(1).await.expect("it answers")["cluster"].as_str().map(str::to_owned);
    let cluster = cluster.expect("it has a number");
    let post = async |id: u64, path: &str| status_of(nodes.client.post(nodes.url(id, path))).await;
    for path in ["/raft/vote", "/raft/append", "/raft/snapshot"] {
        let status = post(2, &format!("{path}?to=2&cluster={cluster}")).await;
        assert_eq!(status, StatusCode::MISDIRECTED_REQUEST, "{path}");
    }
    let number = async |id| nodes.status(id).await.expect("it answers")["cluster"].clone();
    assert!(number(2).await.is_null());
    let join =
        async |id, to, cluster: &str| post(id, &format!("/cluster/join?to={to}&cluster={cluster}")).await;
    assert_eq!(join(2, 3, &cluster).await, StatusCode::MISDIRECTED_REQUEST);
    assert!(number(2).await.is_null());
    // A leader that ends behind this has another one add the node.
    for _ in 0..2 {
        assert_eq!(join(2, 2, &cluster).await, StatusCode::OK);
        assert_eq!(number(2).await, cluster.as_str());
    }
    assert_eq!(join(2, 2, "0000000000000007").await, StatusCode::CONFLICT);
    assert_eq!(number(2).await, cluster.as_str());
    assert_eq!(post(2, "/cluster/init").await, StatusCode::CONFLICT);
    // One that has begun a cluster is of that one.
    nodes.begin(3).await;
    assert_eq!(join(3, 3, &cluster).await, StatusCode::CONFLICT);
    nodes.forget(3);
    nodes.kill(2);
    nodes.start(2, &[]);
    nodes.add(2).await;
    until("it votes", async || voters(&nodes, 1).await.filter(|voters| *voters == json!([[1, 2]]))).await;
    // Each entry of members has all snapshots begun anew that are being sent.
    let members = async || nodes.status(1).await.expect("it answers")["membership_config"]["log_id"].clone();
    let before = members().await;
    nodes.add(2).await;
    assert_eq!(members().await, before, "it votes already, and nothing is appended");
}

/// As a voter that has nothing it would be of no use where another one is lost, and with one that takes no messages the majority may be missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_added_votes_once_it_has_the_log() {
    _ = rustls::crypto::ring::default_provider().install_default();
    let mut nodes = Nodes::new(&["--faults"]);
    for id in 1..=2 {
        nodes.start(id, &[]);
    }
    nodes.begin(1).await;
    let write = async || status_of(nodes.client.put(nodes.url(1, "/records/fram")).body("1892")).await;
    assert_eq!(write().await, StatusCode::OK);
    until("it listens", async || nodes.status(2).await).await;
    nodes.lose(1, &[2], &[], 0).await;
    let add = nodes.client.put(nodes.url(1, "/cluster/nodes/2")).body(nodes.address(2).to_owned());
    // Whoever has asked for it goes.
    add.timeout(Duration::from_secs(3)).send().await.expect_err("it has not come to the end");
    assert_eq!(voters(&nodes, 1).await, Some(json!([[1]])));
    assert_eq!(write().await, StatusCode::OK, "it is a majority alone");
    nodes.heal().await;
    until("it votes", async || voters(&nodes, 1).await.filter(|voters| *voters == json!([[1, 2]]))).await;
    assert!(nodes.same_records().await.contains("1892"));
}

/// Each of these waited for as long as the other nodes were away, or for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adding_and_removing_end_although_others_are_lost() {
    let mut nodes = Nodes::cluster(&["--faults"]).await;
    let leader = nodes.leader().await;
    let others: Vec<_> = nodes.ids().into_iter().filter(|id| *id != leader).collect();
    nodes.start(4, &[]);
    until("it listens", async || nodes.status(4).await).await;
    nodes.lose(leader, &[4], &[], 0).await;
    // The one that is added is lost.
    let put = nodes.client.put(nodes.url(leader, "/cluster/nodes/4")).body(nodes.address(4).to_owned());
    let adding = tokio::spawn(status_of(put));
    until("it is a member", async || is_member(&nodes, leader, 4).await).await;
    nodes.kill(4);
    assert_eq!(adding.await.expect("no panic"), StatusCode::GATEWAY_TIMEOUT);
    let add = nodes.client.put(nodes.url(leader, "/cluster/nodes/4")).body(nodes.address(4).to_owned());
    assert_eq!(status_of(add).await, StatusCode::CONFLICT, "it does not vote, and does not answer");
    nodes.start(4, &[]);
    until("it listens", async || nodes.status(4).await).await;

    // A change that needs the majority of what is left: the other two are none.
    nodes.kill(others[0]);
    let remove = nodes.client.delete(nodes.url(leader, &format!("/cluster/nodes/{}", others[1])));
    assert_eq!(status_of(remove).await, StatusCode::GATEWAY_TIMEOUT);
    nodes.start(others[0], &[]);
    nodes.remove(others[1]).await;
    nodes.forget(others[1]);
    nodes.heal().await;

    // The majority is lost, while one that answers is sent nothing.
    let now = nodes.leader().await;
    let other = if now == others[0] { leader } else { others[0] };
    nodes.start(5, &[]);
    until("it listens", async || nodes.status(5).await).await;
    nodes.lose(now, &[5], &[], 0).await;
    let put = nodes.client.put(nodes.url(now, "/cluster/nodes/5")).body(nodes.address(5).to_owned());
    let adding = tokio::spawn(status_of(put));
    until("it is a member", async || is_member(&nodes, now, 5).await).await;
    nodes.kill(other);
    assert_eq!(adding.await.expect("no panic"), StatusCode::GATEWAY_TIMEOUT);
    nodes.start(other, &[]);
    nodes.heal().await;
    for id in 4..=5 {
        nodes.add(id).await;
    }
    nodes.same_records().await;
}

/// It takes no message, and has what the member had not, so nothing would come of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adding_ends_when_the_node_has_lost_its_directory_or_its_address() {
    _ = rustls::crypto::ring::default_provider().install_default();
    let mut nodes = Nodes::new(&["--faults"]);
    for id in 1..=2 {
        nodes.start(id, &[]);
    }
    nodes.begin(1).await;
    let client = nodes.client.clone();
    let address = nodes.address(2).to_owned();
    for (id, then) in [(2, 2), (3, 4)] {
        until("it listens", async || nodes.status(id).await).await;
        nodes.lose(1, &[id], &[], 0).await;
        let add = client.put(nodes.url(1, &format!("/cluster/nodes/{id}"))).body(address.clone());
        let adding = tokio::spawn(status_of(add.try_clone().expect("it has text")));
        until("it is a member", async || is_member(&nodes, 1, id).await).await;
        nodes.forget(id);
        if then == id {
            std::fs::remove_dir_all(nodes.directory(id)).expect("removes");
        }
        nodes.start_at(then, &address);
        let ended = adding.await.expect("no panic");
        // Or it had not come up in five seconds.
        assert!(matches!(ended, StatusCode::CONFLICT | StatusCode::GATEWAY_TIMEOUT), "{ended}");
        until("it listens", async || nodes.status(then).await).await;
        assert_eq!(status_of(add).await, StatusCode::CONFLICT);
        nodes.remove(id).await;
        nodes.forget(then);
        nodes.start_at(then + 1, &address);
    }
    nodes.heal().await;
    nodes.add(5).await;
    nodes.same_records().await;
}

/// It voted when it was asked for, and was removed while it was looked for: it got its vote back, without any log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_voter_that_is_removed_while_it_is_added_again_does_not_vote() {
    let nodes = Nodes::cluster(&[]).await;
    let leader = nodes.leader().await;
    // Not the one that is asked first who leads.
    let other = (1..=3).rfind(|id| *id != leader).expect("there are three");
    // It takes connections, and answers nothing.
    nodes.stop(other, true);
    let add = nodes.client.put(nodes.url(leader, &format!("/cluster/nodes/{other}")));
    let adding = tokio::spawn(status_of(add.body(nodes.address(other).to_owned())));
    tokio::time::sleep(Duration::from_millis(200)).await;
    nodes.remove(other).await;
    let added = adding.await.expect("no panic");
    let voters = voters(&nodes, nodes.leader().await).await.expect("it answers").to_string();
    assert!(!voters.contains(&other.to_string()), "{added}: {voters}");
    nodes.stop(other, false);
}

/// Clients give up and repeat it, while a snapshot takes hours. And what answers need not run, or be what it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_added_once_at_a_time_and_as_long_as_it_is_of_use() {
    _ = rustls::crypto::ring::default_provider().install_default();
    let mut nodes = Nodes::new(&[]);
    nodes.start(1, &[]);
    nodes.begin(1).await;
    let mut status = nodes.status(1).await.expect("it answers");
    status["id"] = json!(2);
    let said = Arc::new(Mutex::new(status));
    let say = |what: &str, now: Value| said.lock().expect("sound")[what] = now;
    let address = answering(Arc::clone(&said)).await;
    let add = || nodes.client.put(nodes.url(1, "/cluster/nodes/2")).body(address.clone());
    let last = async || nodes.status(1).await?["last_log_index"].as_u64();

    let adding = tokio::spawn(status_of(add()));
    until("it is a member", async || is_member(&nodes, 1, 2).await).await;
    let before = last().await.expect("it answers");
    for _ in 0..5 {
        add().timeout(Duration::from_millis(300)).send().await.expect_err("an earlier one goes on");
    }
    assert_eq!(status_of(add()).await, StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(last().await, Some(before), "nothing was appended");
    assert!(!adding.is_finished(), "it answers, and has what it was given");
    say("running_state", json!({ "Err": "Stopped" }));
    assert_eq!(adding.await.expect("no panic"), StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(status_of(add()).await, StatusCode::CONFLICT);
    say("running_state", json!({ "Ok": null }));

    let asked = || said.lock().expect("sound")["asked"].as_u64();
    for (what, now) in [("id", json!(3)), ("cluster", Value::Null), ("cluster", json!("0000000000000007"))] {
        let (begun, was) = (asked().expect("it was asked"), said.lock().expect("sound")[what].clone());
        let adding = tokio::spawn(status_of(add()));
        until("it is waited for", async || asked().filter(|asked| *asked >= begun + 3)).await;
        say(what, now);
        assert_eq!(adding.await.expect("no panic"), StatusCode::CONFLICT, "{what}");
        say(what, was);
    }
    assert_eq!(last().await, Some(before), "it was a member");
    assert_eq!(voters(&nodes, 1).await, Some(json!([[1]])));
}
