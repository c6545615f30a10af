//! Nodes as processes: started, killed, stopped, cut off from one another.

use crate::lan::Lan;
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long anything may take, at most.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Nodes {
    pub dir: TempDir,
    pub client: Client,
    /// More arguments of each.
    arguments: Vec<String>,
    addresses: BTreeMap<u64, String>,
    running: BTreeMap<u64, Child>,
    /// The network of namespaces in which they are; otherwise they are in that of this process.
    pub lan: Option<Lan>,
    /// A library that gives each node a clock of its own, which [`Nodes::set_clock`] sets.
    pub clock_library: Option<PathBuf>,
    /// MiB of a disk of its own for each node, in memory; otherwise they share that of this process.
    pub disk_mib: Option<u64>,
    disks: BTreeSet<u64>,
}

impl Nodes {
    /// Nodes that are to be started yet, with more arguments.
    pub fn new(arguments: &[&str]) -> Self {
        let client = Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .tls_certs_only([])
            .connect_timeout(Duration::from_secs(1))
            .timeout(Duration::from_secs(3))
            .build();
        Self {
            dir: tempfile::tempdir().expect("a directory"),
            client: client.expect("a client"),
            arguments: arguments.iter().map(ToString::to_string).collect(),
            addresses: BTreeMap::new(),
            running: BTreeMap::new(),
            lan: None,
            clock_library: None,
            disk_mib: None,
            disks: BTreeSet::new(),
        }
    }

    /// Three nodes that are a cluster.
    pub async fn cluster(arguments: &[&str]) -> Self {
        _ = rustls::crypto::ring::default_provider().install_default();
        let mut nodes = Self::new(arguments);
        nodes.begin_three().await;
        nodes
    }

    /// Starts three nodes, and makes them a cluster.
    pub async fn begin_three(&mut self) {
        for id in 1..=3 {
            self.start(id, &[]);
        }
        self.begin(1).await;
        for id in 2..=3 {
            self.add(id).await;
        }
    }

    pub fn directory(&self, id: u64) -> PathBuf {
        self.dir.path().join(format!("node-{id}"))
    }

    /// Starts a node, the first time at an address that is free.
    pub fn start(&mut self, id: u64, more: &[&str]) {
        let free = || {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            listener.local_addr().expect("an address").to_string()
        };
        let address = match &self.lan {
            Some(lan) => self.addresses.entry(id).or_insert_with(|| format!("{}:7000", lan.host(id))).clone(),
            None => self.addresses.entry(id).or_insert_with(free).clone(),
        };
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.dir.path().join(format!("log-{id}")));
        if let Some(mib) = self.disk_mib
            && self.disks.insert(id)
        {
            std::fs::create_dir_all(self.directory(id)).expect("creates");
            let mut mount = Command::new("mount");
            mount.args(["-t", "tmpfs", "-o", &format!("size={mib}m"), "tmpfs"]).arg(self.directory(id));
            assert!(mount.status().expect("mount runs").success());
        }
        let program = env!("CARGO_BIN_EXE_sapwood-node");
        let mut command = match &mut self.lan {
            Some(lan) => {
                let mut command = lan.command(id);
                command.arg(program);
                command
            }
            None => Command::new(program),
        };
        if let Some(library) = &self.clock_library {
            self.set_clock(id, "+0");
            command
                .env("LD_PRELOAD", library)
                .env("FAKETIME_TIMESTAMP_FILE", self.clock(id))
                .env("FAKETIME_NO_CACHE", "1")
                // The kernel's monotonic clock does not jump either.
                .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
                .env("DONT_FAKE_MONOTONIC", "1");
        }
        let child = command
            .args(["--id", &id.to_string(), "--listen", &address, "--memory", "16"])
            .arg("--dir")
            .arg(self.directory(id))
            .args(&self.arguments)
            .args(more)
            .stderr(log.expect("a log"))
            .stdout(Stdio::null())
            .spawn();
        self.running.insert(id, child.expect("starts"));
    }

    /// Starts a node at an address that another had.
    pub fn start_at(&mut self, id: u64, address: &str) {
        self.addresses.insert(id, address.to_owned());
        self.start(id, &[]);
    }

    fn clock(&self, id: u64) -> PathBuf {
        self.dir.path().join(format!("clock-{id}"))
    }

    /// Sets the clock of a node: `+3600` is an hour ahead.
    pub fn set_clock(&self, id: u64, offset: &str) {
        // In one step, since it is read at any time.
        let new = self.dir.path().join(format!("clock-{id}.new"));
        std::fs::write(&new, offset).expect("writes");
        std::fs::rename(new, self.clock(id)).expect("renames");
    }

    /// Starts a node that will end by itself, and waits for that.
    pub fn run_to_end(&mut self, id: u64) -> std::process::ExitStatus {
        self.run_to_end_with(id, &[])
    }

    pub fn run_to_end_with(&mut self, id: u64, more: &[&str]) -> std::process::ExitStatus {
        self.start(id, more);
        let begin = Instant::now();
        loop {
            let child = self.running.get_mut(&id).expect("it was started");
            if let Some(status) = child.try_wait().expect("it can be asked") {
                self.running.remove(&id);
                return status;
            }
            assert!(begin.elapsed() < PATIENCE, "node {id} does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn ids(&self) -> Vec<u64> {
        self.addresses.keys().copied().collect()
    }

    pub fn forget(&mut self, id: u64) {
        self.kill(id);
        self.addresses.remove(&id);
    }

    /// Kills a node as a lost power supply of its process would.
    pub fn kill(&mut self, id: u64) {
        if let Some(mut child) = self.running.remove(&id) {
            _ = child.kill();
            _ = child.wait();
        }
    }

    /// Stops a node, or lets it go on: to itself it seems that no time has passed.
    pub fn stop(&self, id: u64, is_stopped: bool) {
        use rustix::process::{Pid, Signal, kill_process};
        let signal = if is_stopped { Signal::STOP } else { Signal::CONT };
        let pid = Pid::from_child(&self.running[&id]);
        kill_process(pid, signal).expect("it is there");
    }

    pub fn url(&self, id: u64, path: &str) -> String {
        format!("http://{}{path}", self.addresses[&id])
    }

    pub fn address(&self, id: u64) -> &str {
        &self.addresses[&id]
    }

    /// Makes a node a cluster, once it listens.
    pub async fn begin(&self, id: u64) {
        let begin = async || self.client.post(self.url(id, "/cluster/init")).send().await.ok();
        until("a node listens", async || begin().await.filter(|answer| answer.status().is_success())).await;
        self.leader().await;
    }

    pub async fn add(&self, id: u64) {
        until("a node is added", async || {
            let leader = self.leader().await;
            let put = self.client.put(self.url(leader, &format!("/cluster/nodes/{id}")));
            let put = put.timeout(Duration::from_secs(20)).body(self.address(id).to_owned());
            put.send().await.ok().filter(|answer| answer.status().is_success())
        })
        .await;
    }

    pub async fn remove(&self, id: u64) {
        until("a node is removed", async || {
            let leader = self.leader().await;
            let delete = self.client.delete(self.url(leader, &format!("/cluster/nodes/{id}")));
            let answer = delete.timeout(Duration::from_secs(20)).send().await.ok();
            answer.filter(|answer| answer.status().is_success())
        })
        .await;
    }

    pub async fn status(&self, id: u64) -> Option<Value> {
        let answer = self.client.get(self.url(id, "/status")).send().await.ok()?;
        answer.json().await.ok()
    }

    /// The leader that a majority follows.
    pub async fn leader(&self) -> u64 {
        until("there is a leader", async || {
            for id in self.ids() {
                let read = self.client.get(self.url(id, "/records/!")).send().await;
                let is_leader = read
                    .is_ok_and(|answer| matches!(answer.status(), StatusCode::OK | StatusCode::NOT_FOUND));
                if is_leader {
                    return Some(id);
                }
            }
            None
        })
        .await
    }

    /// Waits until a node without a majority has stood for election several times.
    pub async fn stands_in_vain(&self, id: u64) {
        let term = async || self.status(id).await?["current_term"].as_u64();
        let before = until("it answers", term).await;
        until("it stands for election", async || {
            let read = self.client.get(self.url(id, "/records/fram")).send().await;
            let status = read.map(|answer| answer.status());
            assert!(
                !matches!(status, Ok(StatusCode::OK | StatusCode::NOT_FOUND)),
                "{status:?} without a majority"
            );
            term().await.filter(|term| *term >= before + 4)
        })
        .await;
    }

    /// Says which messages a node loses.
    pub async fn lose(&self, id: u64, requests_to: &[u64], answers_from: &[u64], delay_ms: u64) {
        let others = |ids: &[u64]| ids.iter().copied().filter(|to| *to != id).collect::<BTreeSet<u64>>();
        let lost = json!({
            "requests_to": others(requests_to), "answers_from": others(answers_from), "delay_ms": delay_ms,
        });
        until("faults are set", async || {
            let post = self.client.post(self.url(id, "/faults")).json(&lost);
            post.send().await.ok().filter(|answer| answer.status().is_success())
        })
        .await;
    }

    pub async fn heal(&self) {
        for id in self.ids() {
            self.lose(id, &[], &[], 0).await;
        }
    }

    /// Waits until all nodes have applied what the leader has.
    pub async fn catch_up(&self) {
        until("all nodes have caught up", async || {
            let leader = self.leader().await;
            let index = self.status(leader).await?["last_applied"]["index"].as_u64()?;
            for id in self.ids() {
                let applied = self.status(id).await?["last_applied"]["index"].as_u64()?;
                if applied < index {
                    return None;
                }
            }
            Some(())
        })
        .await;
    }

    /// All records in the state of a node.
    pub async fn records(&self, id: u64) -> String {
        let (mut records, mut next) = (String::new(), Some(String::new()));
        while let Some(from) = next {
            let read = self.client.get(self.url(id, &format!("/records?read=own&limit=10000&from={from}")));
            let answer = read.send().await.expect("it answers");
            assert_eq!(answer.status(), StatusCode::OK);
            let header = answer.headers().get("sapwood-next");
            next = header.map(|next| next.to_str().expect("text").to_owned());
            records += &answer.text().await.expect("an answer");
        }
        records
    }

    /// Checks that all nodes have the same records, and returns those.
    pub async fn same_records(&self) -> String {
        self.catch_up().await;
        let mut records = Vec::new();
        for id in self.ids() {
            records.push((id, self.records(id).await));
        }
        for pair in records.windows(2) {
            assert!(
                pair[0].1 == pair[1].1,
                "nodes {} and {} differ:\n{}\n{}",
                pair[0].0,
                pair[1].0,
                pair[0].1,
                pair[1].1
            );
        }
        records.pop().expect("there is a node").1
    }
}

/// Asks again and again until there is something.
pub async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = ask().await {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The address of what answers each request with a status, as a node does that does nothing else. It says as well how often it was `asked` what it is.
pub async fn answering(status: Arc<Mutex<Value>>) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            _ = stream.read(&mut request).await;
            let (text, close) = {
                let mut status = status.lock().expect("sound");
                let asked = status["asked"].as_u64().unwrap_or(0);
                status["asked"] = json!(asked + u64::from(request.starts_with(b"GET")));
                (status.to_string(), "connection: close")
            };
            let answer =
                format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n{close}\r\n\r\n{text}", text.len());
            _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    address
}

impl Drop for Nodes {
    fn drop(&mut self) {
        let ids: Vec<_> = self.running.keys().copied().collect();
        for id in ids {
            self.kill(id);
        }
        for id in &self.disks {
            _ = Command::new("umount").arg("--lazy").arg(self.directory(*id)).status();
        }
        if std::thread::panicking() {
            for id in self.ids() {
                let log =
                    std::fs::read_to_string(self.dir.path().join(format!("log-{id}"))).unwrap_or_default();
                let from = log.len().saturating_sub(2000);
                let tail = log.get(from..).unwrap_or(&log);
                eprintln!("node {id}: …{tail}");
            }
        }
    }
}
