//! TLS and the token.

use crate::nodes::{Nodes, PATIENCE, until};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use reqwest::{Certificate, Client, StatusCode};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

struct Running(Vec<Child>);

impl Drop for Running {
    fn drop(&mut self) {
        for child in &mut self.0 {
            _ = child.kill();
            _ = child.wait();
        }
    }
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new([]).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority")
}

fn client(authority: Option<&str>) -> Client {
    let certificates = authority.map(|pem| Certificate::from_pem(pem.as_bytes()).expect("a certificate"));
    let client = Client::builder().redirect(reqwest::redirect::Policy::none()).tls_certs_only(certificates);
    client.build().expect("a client")
}

fn write(path: &Path, text: &str) -> String {
    std::fs::write(path, text).expect("writes");
    path.to_str().expect("text").to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_speaks_tls_and_asks_for_the_token() {
    _ = rustls::crypto::ring::default_provider().install_default();
    let dir = tempfile::tempdir().expect("a directory");
    let (own, foreign) = (authority(), authority());
    let ca = write(&dir.path().join("ca.pem"), &own.pem());
    let token = write(&dir.path().join("token"), "a secret\n");
    let (mut running, mut addresses) = (Running(Vec::new()), Vec::new());
    for id in 1..=3 {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(["127.0.0.1".to_owned()]).expect("parameters");
        let certificate = params.signed_by(&key, &own).expect("signs");
        let certificate = write(&dir.path().join(format!("{id}.pem")), &certificate.pem());
        let key = write(&dir.path().join(format!("{id}.key")), &key.serialize_pem());
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = free.local_addr().expect("an address").to_string();
        drop(free);
        let child = Command::new(env!("CARGO_BIN_EXE_sapwood-node"))
            .args(["--id", &id.to_string(), "--listen", &address, "--memory", "16", "--token-file", &token])
            .args(["--tls-cert", &certificate, "--tls-key", &key, "--tls-ca", &ca])
            .arg("--dir")
            .arg(dir.path().join(format!("node-{id}")))
            .stderr(Stdio::null())
            .spawn();
        running.0.push(child.expect("starts"));
        addresses.push(address);
    }
    let trusting = client(Some(&own.pem()));
    let url = |node: usize, path: &str| format!("https://{}{path}", addresses[node]);
    let init = async || {
        let answer = trusting.post(url(0, "/cluster/init")).bearer_auth("a secret").send().await.ok()?;
        answer.status().is_success().then_some(())
    };
    until("the first node listens", init).await;
    for (node, id) in [(1, 2), (2, 3)] {
        let add = async || {
            let put = trusting.put(url(0, &format!("/cluster/nodes/{id}"))).bearer_auth("a secret");
            let answer = put.body(addresses[node].clone()).send().await.ok()?;
            answer.status().is_success().then_some(())
        };
        until("the others join, by TLS and with the token", add).await;
    }
    let put = trusting.put(url(0, "/records/fram")).bearer_auth("a secret").body("1892").send().await;
    assert_eq!(put.expect("it answers").status(), StatusCode::OK);
    let read = async || {
        let read =
            trusting.get(url(2, "/records/fram?read=own")).bearer_auth("a secret").send().await.ok()?;
        (read.status() == StatusCode::OK).then_some(read.text().await.ok()?)
    };
    assert_eq!(until("it is replicated", read).await, "1892");

    // The redirect of a node that is not the leader names the scheme.
    let elsewhere =
        trusting.get(url(1, "/records/fram")).bearer_auth("a secret").send().await.expect("it answers");
    assert_eq!(elsewhere.headers()["location"].to_str().ok(), Some(&*url(0, "/records/fram")));
    // Whoever has no token, or a wrong one, gets nothing, not even as another node.
    for path in ["/records/fram", "/status", "/metrics", "/records"] {
        let bare = trusting.get(url(0, path)).send().await.expect("it answers");
        assert_eq!(bare.status(), StatusCode::UNAUTHORIZED, "{path}");
        let wrong = trusting.get(url(0, path)).bearer_auth("a secres").send().await.expect("it answers");
        assert_eq!(wrong.status(), StatusCode::UNAUTHORIZED, "{path}");
    }
    let vote = trusting.post(url(0, "/raft/vote")).body("").send().await.expect("it answers");
    assert_eq!(vote.status(), StatusCode::UNAUTHORIZED);
    let metrics = trusting.get(url(0, "/metrics")).bearer_auth("a secret").send().await.expect("it answers");
    let metrics = metrics.text().await.expect("text");
    assert!(metrics.contains("\nsapwood_raft_is_leader 1\n") && metrics.contains("sapwood_log_syncs_total"));
    assert!(metrics.contains("\nsapwood_raft_millis_since_quorum_ack "), "{metrics}");
    // Nor does it speak to those who trust another authority, or speak without TLS.
    let foreign = client(Some(&foreign.pem()));
    foreign.get(url(0, "/status")).bearer_auth("a secret").send().await.expect_err("it is not trusted");
    let plain =
        client(None).get(url(0, "/status").replace("https", "http")).bearer_auth("a secret").send().await;
    plain.expect_err("it does not answer without TLS");
    let (certificate, address) =
        (AsRef::<rcgen::Certificate>::as_ref(&own).der().clone(), addresses[0].clone());
    let agreed = tokio::task::spawn_blocking(move || {
        let mut roots = RootCertStore::empty();
        roots.add(certificate).expect("it is one");
        let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let name = "127.0.0.1".try_into().expect("a name");
        let mut connection = ClientConnection::new(config.into(), name).expect("a connection");
        let mut stream = TcpStream::connect(address).expect("connects");
        while connection.is_handshaking() {
            connection.complete_io(&mut stream).expect("agrees");
        }
        connection.alpn_protocol().map(<[u8]>::to_vec)
    });
    assert_eq!(agreed.await.expect("no panic").as_deref(), Some(b"http/1.1".as_slice()), "of both");
}

/// A node that was to speak TLS does not speak without.
#[test]
fn a_part_of_what_tls_needs_starts_no_node() {
    let dir = tempfile::tempdir().expect("a directory");
    for option in ["--tls-cert", "--tls-key", "--tls-ca"] {
        let authority = write(&dir.path().join("ca.pem"), &authority().pem());
        let child = Command::new(env!("CARGO_BIN_EXE_sapwood-node"))
            .args(["--id", "1", "--listen", "127.0.0.1:0", "--memory", "16", option, &authority, "--dir"])
            .arg(dir.path().join("node"))
            .stderr(Stdio::null())
            .spawn();
        let mut running = Running(vec![child.expect("starts")]);
        let begin = std::time::Instant::now();
        let ended = loop {
            match running.0[0].try_wait().expect("it is a child") {
                Some(ended) => break ended,
                None if begin.elapsed() > PATIENCE => panic!("it runs with {option} alone"),
                None => std::thread::sleep(std::time::Duration::from_millis(20)),
            }
        };
        assert_eq!(ended.code(), Some(2), "{option}");
        assert!(!dir.path().join("node").exists(), "nothing was made");
    }
}

/// With a key file no value is in the files of the database and of snapshots, and without the key nothing opens them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_with_a_key_file_is_encrypted() {
    _ = rustls::crypto::ring::default_provider().install_default();
    let secret = "what nobody else may read";
    for is_encrypted in [false, true] {
        let mut nodes = Nodes::new(&[]);
        let key = nodes.dir.path().join("key");
        sapwood::EncryptionKey::generate().expect("a key").save(&key).expect("saves");
        let with_key: &[&str] = if is_encrypted { &["--key-file", key.to_str().expect("text")] } else { &[] };
        nodes.start(1, with_key);
        nodes.begin(1).await;
        let put = nodes.client.put(nodes.url(1, "/records/fram")).body(secret).send().await;
        assert!(put.expect("it answers").status().is_success());
        let made = nodes.client.post(nodes.url(1, "/snapshot")).send().await;
        assert!(made.expect("it answers").status().is_success());
        let is_finished = |path: &std::path::PathBuf| path.extension().is_some_and(|it| it == "snapshot");
        let parent = nodes.directory(1);
        let files = |directory| {
            let entries = std::fs::read_dir(parent.join(directory)).expect("lists");
            entries.map(|entry| entry.expect("an entry").path()).collect::<Vec<_>>()
        };
        until("there is a snapshot", async || files("snapshots").iter().any(is_finished).then_some(())).await;
        nodes.kill(1);
        for directory in ["node.db", "snapshots"] {
            let has_secret = files(directory).iter().any(|file| {
                let bytes = std::fs::read(file).expect("reads");
                bytes.windows(secret.len()).any(|window| window == secret.as_bytes())
            });
            // The one without a key shows that the search finds it.
            assert_eq!(has_secret, !is_encrypted, "{directory}");
        }
        nodes.start(1, with_key);
        nodes.leader().await;
        assert!(nodes.records(1).await.contains(secret));
        if is_encrypted {
            nodes.kill(1);
            assert!(!nodes.run_to_end(1).success(), "it does not open without the key");
        }
    }
}
