//! What is too much for a node is refused, and stops none.

use crate::nodes::{Nodes, PATIENCE, until};
use openraft::raft::AppendEntriesRequest;
use openraft::{BasicNode, CommittedLeaderId, Entry, EntryPayload, LogId, Membership, Vote};
use reqwest::StatusCode;
use sapwood_openraft::KvBatchConfig;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

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

/// What says how to go on fits into an address, whatever the keys are, and where to end as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scan_goes_on_behind_the_longest_keys() {
    _ = rustls::crypto::ring::default_provider().install_default();
    let mut nodes = Nodes::new(&[]);
    nodes.start(1, &[]);
    nodes.begin(1).await;
    let run = async |write| {
        let command = json!({ "conditions": [], "writes": [write] });
        let done = nodes.client.post(nodes.url(1, "/commands")).json(&command).send().await;
        done.expect("it answers").status()
    };
    let put = |len: usize, end: u8| {
        let mut key = vec![0xFF; len - 1];
        key.push(end);
        json!({ "Put": { "key": key, "value": [] } })
    };
    assert_eq!(run(put((10 << 10) + 1, 1)).await, StatusCode::BAD_REQUEST);
    let put_at =
        nodes.client.put(nodes.url(1, &format!("/records/{}", "k".repeat((10 << 10) + 1)))).body("1");
    assert_eq!(put_at.send().await.expect("it answers").status(), StatusCode::BAD_REQUEST);
    for end in 0..3 {
        assert_eq!(run(put(10 << 10, end)).await, StatusCode::OK);
    }
    let scan = async |query: &str| {
        let read = nodes.client.get(nodes.url(1, &format!("/records?{query}"))).send().await;
        read.expect("it answers")
    };
    let to = "%FF".repeat(10 << 10);
    let (mut next, mut parts) = (Some(String::new()), 0);
    while let Some(from) = next {
        let answer = scan(&format!("limit=1&read=own&from={from}&to={to}")).await;
        assert_eq!(answer.status(), StatusCode::OK);
        next = answer.headers().get("sapwood-next").map(|next| next.to_str().expect("text").to_owned());
        assert_eq!(answer.text().await.expect("text").lines().count(), 1);
        parts += 1;
    }
    assert_eq!(parts, 3);
    // Longer ones, of a program from before, can be removed.
    assert_eq!(run(json!({ "Delete": { "key": vec![0; 60_000] } })).await, StatusCode::OK);
    // Nothing, and no way to go on.
    assert_eq!(scan("limit=0").await.status(), StatusCode::BAD_REQUEST);
    // A name is escaped, too.
    assert_eq!(run(json!({ "Put": { "key": b"a", "value": [] } })).await, StatusCode::OK);
    let all = scan("").await.text().await.expect("text").lines().count();
    let rest = scan("%66rom=b").await.text().await.expect("text").lines().count();
    assert_eq!((all, rest), (4, 3));
}

/// A member in the wrong place was ignored: a condition that was none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_command_does_nothing() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    _ = rustls::crypto::ring::default_provider().install_default();
    let mut nodes = Nodes::new(&[]);
    nodes.start(1, &[]);
    nodes.begin(1).await;
    let (commands, fram) = (nodes.url(1, "/commands"), nodes.url(1, "/records/fram"));
    let put = json!({ "Put": { "key": b"fram", "value": b"1893" } });
    let with_version = json!({ "Put": { "key": b"fram", "value": b"1893", "if-version": 7 } });
    let commands = [
        json!({ "conditions": [], "writes": [with_version] }),
        json!({ "conditions": [], "writes": [put], "if-version": 7 }),
    ]
    .map(|command| (nodes.client.post(&commands).json(&command), StatusCode::UNPROCESSABLE_ENTITY));
    // As curl says it, if nobody says otherwise.
    let form = nodes
        .client
        .post(nodes.url(1, "/commands"))
        .body(json!({ "conditions": [], "writes": [put] }).to_string());
    let form = form.header("content-type", "application/x-www-form-urlencoded");
    let others = [
        (form, StatusCode::UNSUPPORTED_MEDIA_TYPE),
        (nodes.client.put(nodes.url(1, "/records/")).body("1893"), StatusCode::NOT_FOUND),
        (nodes.client.post(&fram).body("1893"), StatusCode::METHOD_NOT_ALLOWED),
        (nodes.client.put(&fram).query(&[("if_version", "7")]).body("1893"), StatusCode::BAD_REQUEST),
    ];
    for (request, status) in commands.into_iter().chain(others) {
        let answer = request.send().await.expect("it answers");
        assert_eq!(answer.status(), status, "{:?}", answer.text().await);
    }
    let mut stream = tokio::net::TcpStream::connect(nodes.address(1)).await.expect("connects");
    let long =
        format!("PUT /records/{} HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n", "k".repeat(65_535));
    stream.write_all(long.as_bytes()).await.expect("sends");
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.expect("it answers");
    assert_eq!(answer, *b"HTTP/1.1 414");
    assert_eq!(nodes.records(1).await, "");
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

/// While a process stands still its Raft does not notice that time passes: what it last said of its followers is no younger for that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_stood_still_does_not_say_that_its_state_is_new() {
    let mut nodes = Nodes::cluster(&[]).await;
    let leader = nodes.leader().await;
    let age = |client: reqwest::Client, url: String| async move {
        let read = client.get(url).timeout(Duration::from_secs(20)).send().await.ok()?;
        Some(read.headers().get("sapwood-age-ms")?.to_str().ok()?.to_owned())
    };
    let url = nodes.url(leader, "/records/fram?read=own");
    let begin = Instant::now();
    until("it is confirmed anew", async || {
        let said = age(nodes.client.clone(), url.clone()).await?.parse::<u64>().ok()?;
        (u128::from(said) < begin.elapsed().as_millis()).then_some(())
    })
    .await;
    for id in nodes.ids().into_iter().filter(|id| *id != leader) {
        nodes.kill(id);
    }
    let alone = Instant::now();
    for round in 0..8 {
        nodes.stop(leader, true);
        // All its threads have stopped.
        tokio::time::sleep(Duration::from_millis(100)).await;
        // It is there before anything that wakes its Raft.
        let asked = tokio::spawn(age(nodes.client.clone(), url.clone()));
        tokio::time::sleep(Duration::from_millis(400)).await;
        let least = alone.elapsed().as_millis() as u64;
        nodes.stop(leader, false);
        let said = asked.await.expect("no panic").expect("it answers");
        assert!(
            said.parse::<u64>().is_ok_and(|millis| millis >= least),
            "round {round}: {said} ms, and it has been alone for {least} ms"
        );
    }
}

/// What a new leader says is committed is what it knows, until an entry of its own is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_does_not_know_what_is_committed_makes_no_state_new() {
    _ = rustls::crypto::ring::default_provider().install_default();
    let mut nodes = Nodes::new(&[]);
    nodes.start(1, &[]);
    let to = "?to=1&cluster=0000000000000007";
    let post = async |path: &str, body: Vec<u8>| {
        let post = nodes.client.post(nodes.url(1, &format!("{path}{to}"))).body(body).send().await.ok()?;
        assert_eq!(post.status(), StatusCode::OK);
        Some(())
    };
    until("it joins", async || post("/cluster/join", Vec::new()).await).await;
    // Of node 9, which alone votes.
    let id = |term| Some(LogId::new(CommittedLeaderId::new(term, 9), term - 1));
    let append = async |term, prev_log_id, payload: Option<EntryPayload<KvBatchConfig>>, leader_commit| {
        let entry = |payload| Entry { log_id: id(term).expect("one"), payload };
        let request = AppendEntriesRequest::<KvBatchConfig> {
            vote: Vote::new_committed(term, 9),
            prev_log_id,
            entries: payload.map(entry).into_iter().collect(),
            leader_commit,
        };
        let sent = Instant::now();
        post("/raft/append", postcard::to_allocvec(&request).expect("encodes")).await.expect("it answers");
        sent
    };
    let age = async || {
        let read = nodes.client.get(nodes.url(1, "/records/fram?read=own")).send().await.ok()?;
        read.headers().get("sapwood-age-ms")?.to_str().ok()?.parse::<u64>().ok()
    };
    let members = [1, 9].map(|id| (id, BasicNode::new("127.0.0.1:1")));
    let members = Membership::new(vec![BTreeSet::from([9])], BTreeMap::from(members));
    append(1, None, Some(EntryPayload::Membership(members)), id(1)).await;
    until("it is applied", age).await;
    let before = Instant::now();
    tokio::time::sleep(Duration::from_millis(500)).await;
    append(2, id(1), None, id(1)).await;
    let least = before.elapsed().as_millis() as u64;
    let said = age().await.expect("it was told once");
    assert!(said >= least, "{said} ms, and it is {least} ms since a leader knew");
    let sent = append(2, id(1), Some(EntryPayload::Blank), id(2)).await;
    until("that is applied", async || age().await.filter(|said| *said <= sent.elapsed().as_millis() as u64))
        .await;
}

/// What clients send at once has a bound for all of them, and a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_and_connections_are_bounded() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    _ = rustls::crypto::ring::default_provider().install_default();
    let mut nodes = Nodes::new(&["--connections", "40"]);
    nodes.start(1, &[]);
    nodes.begin(1).await;
    let connect = async |request: String| {
        let mut stream = tokio::net::TcpStream::connect(nodes.address(1)).await.expect("connects");
        stream.write_all(request.as_bytes()).await.expect("sends");
        stream
    };
    // The longest bodies, of which little comes: they and a shorter one leave 100,000 bytes.
    let (all, longest) = (64 << 20, 4 * (896 << 10));
    let mut lens = vec![longest; all / longest];
    lens.push(all % longest - 100_000);
    let mut slow = Vec::new();
    for len in lens {
        let head = "POST /commands HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\n";
        let mut stream = connect(format!("{head}content-length: {len}\r\n\r\n")).await;
        // It is asked for when it has its part of the room: what comes before that would have the place of the last.
        let mut asked = [0; 25];
        stream.read_exact(&mut asked).await.expect("an answer");
        assert_eq!(asked, *b"HTTP/1.1 100 Continue\r\n\r\n");
        stream.write_all(b"{").await.expect("sends");
        slow.push(stream);
    }
    let put = async |len| {
        let put = nodes.client.put(nodes.url(1, "/records/fram")).body(vec![b'v'; len]).send().await;
        put.expect("it answers").status()
    };
    until("there is no more room", async || {
        (put(900_000).await == StatusCode::TOO_MANY_REQUESTS).then_some(())
    })
    .await;
    let read = nodes.client.get(nodes.url(1, "/records/fram")).send().await.expect("it answers");
    assert!(matches!(read.status(), StatusCode::OK | StatusCode::NOT_FOUND), "it answers what has no body");
    for stream in &mut slow {
        let mut answer = [0; 12];
        let read = tokio::time::timeout(PATIENCE, stream.read_exact(&mut answer)).await;
        read.expect("it does not wait for ever").expect("an answer");
        assert_eq!(answer, *b"HTTP/1.1 408");
    }
    assert_eq!(put(900_000).await, StatusCode::OK, "there is room again");

    // Connections that ask for nothing.
    drop(slow);
    let mut idle = Vec::new();
    for _ in 0..60 {
        idle.push(connect(String::new()).await);
    }
    let mut closed = 0;
    for stream in &mut idle {
        let read = tokio::time::timeout(Duration::from_millis(100), stream.read(&mut [0; 1])).await;
        closed += usize::from(matches!(read, Ok(Ok(0) | Err(_))));
    }
    assert!((20..60).contains(&closed), "{closed} of 60 were closed");
    // Those that were let in have ten seconds.
    until("all are closed", async || {
        let mut is_closed = true;
        for stream in &mut idle {
            let read = tokio::time::timeout(Duration::from_millis(1), stream.read(&mut [0; 1])).await;
            is_closed &= matches!(read, Ok(Ok(0) | Err(_)));
        }
        is_closed.then_some(())
    })
    .await;
    assert_eq!(put(1).await, StatusCode::OK);
}

/// Others would look for it on their own machines.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn addresses_where_nobody_reaches_a_node_are_refused() {
    _ = rustls::crypto::ring::default_provider().install_default();
    let mut nodes = Nodes::new(&[]);
    nodes.start(1, &[]);
    nodes.begin(1).await;
    for address in
        ["0.0.0.0:7000", "[::]:7000", "127.0.0.1:0", "127.0.0.1", "node-2", "http://127.0.0.1:7000"]
    {
        let put = nodes.client.put(nodes.url(1, "/cluster/nodes/2")).body(address).send().await;
        assert_eq!(put.expect("it answers").status(), StatusCode::BAD_REQUEST, "{address}");
    }
    for address in ["0.0.0.0:7000", "127.0.0.1"] {
        let status = nodes.run_to_end_with(2, &["--address", address]);
        assert_eq!(status.code(), Some(1), "{address}");
    }
    // Where it is not itself it does not begin a cluster, whose only member would be there.
    for (id, address) in [(3, "127.0.0.1:1".to_owned()), (4, nodes.address(1).to_owned())] {
        nodes.start(id, &["--address", &address]);
        until("it listens", async || nodes.status(id).await).await;
        let begun = nodes.client.post(nodes.url(id, "/cluster/init")).send().await.expect("it answers");
        assert_eq!(begun.status(), StatusCode::CONFLICT, "{address}");
        assert!(nodes.status(id).await.expect("it answers")["cluster"].is_null());
    }
}

/// Clients that keep their connections have some of the places, and the other nodes have the rest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_do_not_keep_the_other_nodes_out() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    _ = rustls::crypto::ring::default_provider().install_default();
    let mut nodes = Nodes::new(&["--connections", "40"]);
    nodes.start(1, &[]);
    nodes.begin(1).await;
    let status = nodes.status(1).await.expect("it answers");
    let cluster = status["cluster"].as_str().expect("it has a number");
    let ask = async |what: &str| {
        let mut stream = tokio::net::TcpStream::connect(nodes.address(1)).await.expect("connects");
        let request = format!("{what} HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("sends");
        let mut answer = [0; 12];
        let answered = stream.read_exact(&mut answer).await;
        (stream, answered.ok().map(|_| String::from_utf8_lossy(&answer).into_owned()))
    };
    let (mut let_in, mut refused) = (Vec::new(), 0);
    for _ in 0..60 {
        match ask("GET /status").await {
            (stream, Some(status)) if status == "HTTP/1.1 200" => let_in.push(stream),
            (_, Some(status)) => {
                assert_eq!(status, "HTTP/1.1 429");
                refused += 1;
            }
            (_, None) => panic!("it was closed without an answer"),
        }
    }
    assert!((20..=30).contains(&let_in.len()), "{} were let in", let_in.len());
    assert_eq!(let_in.len() + refused, 60);
    // It says so to messages for others, which do not keep the places that they have had.
    for number in 0..20 {
        let (stream, status) = ask("POST /raft/vote?to=9").await;
        assert_eq!(status.as_deref(), Some("HTTP/1.1 421"), "message {number}");
        is_closed(stream).await;
    }
    // What is no message, and one that no node sends.
    for refused in ["GET /raft/x", &format!("POST /raft/vote?to=1&cluster={cluster}")] {
        for _ in 0..20 {
            let (stream, status) = ask(refused).await;
            assert!(status.is_some_and(|status| status.starts_with("HTTP/1.1 4")), "{refused}");
            is_closed(stream).await;
        }
    }
    drop(let_in);
    until("clients are let in again", async || (ask("GET /status").await.1? == "HTTP/1.1 200").then_some(()))
        .await;
}

/// Reads what is left of an answer. The connection ends behind it.
async fn is_closed(mut stream: tokio::net::TcpStream) {
    let mut rest = Vec::new();
    let end = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut rest);
    tokio::time::timeout(Duration::from_secs(10), end).await.expect("it is closed").expect("reads");
}

/// Also whoever has no token, and says that it is a node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_no_token_keeps_no_place_of_the_other_nodes() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    _ = rustls::crypto::ring::default_provider().install_default();
    let dir = tempfile::tempdir().expect("a directory");
    let token = dir.path().join("token");
    std::fs::write(&token, "a secret").expect("writes");
    let mut nodes = Nodes::new(&["--connections", "40", "--token-file", token.to_str().expect("text")]);
    nodes.start(1, &[]);
    let ask = async || {
        let mut stream = tokio::net::TcpStream::connect(nodes.address(1)).await.ok()?;
        let request = b"POST /raft/vote?to=1 HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n";
        stream.write_all(request).await.ok()?;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.ok()?;
        assert_eq!(answer, *b"HTTP/1.1 401");
        Some(stream)
    };
    let mut of_anybody = vec![until("it listens", ask).await];
    while of_anybody.len() < 30 {
        of_anybody.push(ask().await.expect("there is a place"));
    }
    for _ in 0..20 {
        is_closed(ask().await.expect("there is a place")).await;
    }
}

/// What waits for clients that read nothing has a bound, and a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_nobody_reads_are_bounded() {
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpSocket;
    _ = rustls::crypto::ring::default_provider().install_default();
    let mut nodes = Nodes::new(&[]);
    nodes.start(1, &[]);
    nodes.begin(1).await;
    // Escaped they have 6.4 MB, which the buffers of the kernel do not take.
    for key in ["a", "b"] {
        let put = nodes.client.put(nodes.url(1, &format!("/records/{key}"))).body(vec![0xFF; 800_000]);
        assert_eq!(put.send().await.expect("it answers").status(), StatusCode::OK);
    }
    let mut stalled = Vec::new();
    for _ in 0..30 {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(8 << 10).expect("sets");
        let mut stream = socket.connect(nodes.address(1).parse().expect("one")).await.expect("connects");
        stream.write_all(b"GET /records?read=own HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sends");
        stalled.push(stream);
    }
    let get = async |path: &str| {
        let get = nodes.client.get(nodes.url(1, path)).timeout(Duration::from_secs(20)).send().await;
        get.expect("it answers").status()
    };
    until("there is no more room", async || {
        (get("/records?read=own").await == StatusCode::TOO_MANY_REQUESTS).then_some(())
    })
    .await;
    assert_eq!(get("/records/c?read=own").await, StatusCode::NOT_FOUND, "short ones need none");
    until("there is room again", async || (get("/records?read=own").await == StatusCode::OK).then_some(()))
        .await;
}

/// There, one connection has any number of requests at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_2_is_not_spoken() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    _ = rustls::crypto::ring::default_provider().install_default();
    let mut nodes = Nodes::new(&[]);
    nodes.start(1, &[]);
    nodes.begin(1).await;
    let mut stream = tokio::net::TcpStream::connect(nodes.address(1)).await.expect("connects");
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let begin = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &settings].concat();
    stream.write_all(&begin).await.expect("sends");
    let mut answer = Vec::new();
    let end = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut answer)).await;
    end.expect("it ends").ok();
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"), "{answer:?}");
}
