//! The server: routes, the token, TLS, what goes wrong.

use crate::answers::{self, Answers};
use crate::bodies::{self, Room};
use crate::connections::Connections;
use crate::node::Node;
use crate::{CLOSING, cluster, peers, records};
use anyhow::Context;
use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum_server::Server;
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use rustls::ServerConfig;
use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

/// Bytes of a message of another node, at most: a snapshot's chunk has 256 KiB, and so have entries, or they come one by one. Programs from before send longer ones.
const MESSAGE_MAX: usize = 64 << 20;
/// Bytes of messages at once: of some tens of nodes.
const MESSAGES_MAX: usize = 2 * MESSAGE_MAX;
/// Bytes of the body of another request, at most: JSON of bytes is up to four times as long as they are.
const REQUEST_MAX: usize = 4 * records::COMMAND_MAX;
/// Bytes of such bodies at once: of as many of the longest commands as wait to be proposed.
const REQUESTS_MAX: usize = 64 << 20;
/// How long a new connection may take until its first request is there.
const FIRST_PATIENCE: Duration = Duration::from_secs(10);
/// How long any other request may take to begin, and to say what it asks for. Longer than clients keep connections that they do not use (90 seconds is usual), so
/// that it is not this end that closes one while it is used again.
const NEXT_PATIENCE: Duration = Duration::from_secs(100);

/// Why a request is not answered as it was meant.
#[derive(Debug)]
pub struct Failure {
    pub status: StatusCode,
    pub reason: String,
    pub headers: Box<HeaderMap>,
}

impl Failure {
    pub fn new(status: StatusCode, reason: impl Display) -> Self {
        Self { status, reason: reason.to_string(), headers: Box::default() }
    }

    /// The request is wrong. Nothing has happened.
    pub fn bad(reason: impl Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, reason)
    }

    /// Another node is the leader, or maybe none. Nothing has happened.
    pub fn elsewhere(node: &Node, leader: Option<String>) -> Self {
        let Some(leader) = leader.filter(|leader| *leader != node.address) else {
            return Self::new(StatusCode::MISDIRECTED_REQUEST, "no leader is known: try again");
        };
        let mut failure = Self::new(StatusCode::TEMPORARY_REDIRECT, format!("the leader is at {leader}"));
        if let Ok(leader) = HeaderValue::from_str(&leader) {
            failure.headers.insert("sapwood-leader", leader);
        }
        failure
    }

    /// What was asked for may happen or not.
    pub fn unknown(reason: impl Display) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, format!("{reason}: it may have happened, or may still"))
    }

    /// The same, after a time.
    pub fn late(reason: impl Display) -> Self {
        Self::new(StatusCode::GATEWAY_TIMEOUT, format!("{reason}: it may have happened, or may still"))
    }

    /// The node is broken.
    pub fn broken(reason: impl Display) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, reason)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.status, *self.headers, format!("{}\n", self.reason)).into_response()
    }
}

/// Lets requests with the token pass. A redirect gets the rest of its address here, where the path is known.
async fn guard(State(node): State<Arc<Node>>, request: Request, next: Next) -> Response {
    if let Some(token) = &node.network.token {
        let given = request.headers().get(header::AUTHORIZATION);
        let given = given.and_then(|given| given.as_bytes().strip_prefix(b"Bearer ")).unwrap_or_default();
        if !is_same(given, token.as_bytes()) {
            return Failure::new(StatusCode::UNAUTHORIZED, "the token is missing or wrong").into_response();
        }
    }
    let path = request.uri().path_and_query().map_or_else(|| "/".into(), ToString::to_string);
    let mut response = next.run(request).await;
    if let Some(leader) = response.headers().get("sapwood-leader").and_then(|leader| leader.to_str().ok()) {
        let location = format!("{}://{leader}{path}", node.network.scheme);
        if let Ok(location) = HeaderValue::from_str(&location) {
            response.headers_mut().insert(header::LOCATION, location);
        }
    }
    response
}

/// Compares in a time that does not tell how much is the same.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

/// With times for requests to come. HTTP/1 alone: one request of a connection is under way at a time, and there is a time for each head.
fn bounded<A>(server: Server<SocketAddr, A>) -> Server<SocketAddr, A> {
    let mut server = server.http1_only().first_request_timeout(FIRST_PATIENCE);
    server.http_builder().http1().header_read_timeout(NEXT_PATIENCE);
    server
}

/// Answers requests until Ctrl-C or SIGTERM, then closes.
pub async fn serve(node: Arc<Node>) -> anyhow::Result<()> {
    let messages = Router::new()
        .route("/raft/append", post(peers::append))
        .route("/raft/snapshot", post(peers::snapshot))
        .route("/raft/vote", post(peers::vote))
        // openraft takes them into a queue.
        .layer(middleware::from_fn_with_state(Room::new(MESSAGES_MAX, MESSAGE_MAX).kept(), bodies::read))
        .layer(middleware::from_fn_with_state(Arc::clone(&node), peers::receive))
        .layer(DefaultBodyLimit::max(MESSAGE_MAX));
    let rest = Router::new()
        .route("/records", get(records::scan))
        .route("/records/{key}", get(records::get).put(records::put).delete(records::delete))
        .route("/commands", post(records::run))
        .route("/cluster/init", post(cluster::init))
        .route("/cluster/join", post(peers::join))
        .route("/cluster/nodes/{id}", delete(cluster::remove).put(cluster::add))
        .route("/status", get(cluster::status))
        .route("/metrics", get(cluster::metrics))
        .route("/snapshot", post(cluster::snapshot))
        .route("/backup", post(cluster::backup))
        .route("/faults", post(cluster::faults))
        .layer(middleware::from_fn_with_state(Room::new(REQUESTS_MAX, REQUEST_MAX), bodies::read))
        .layer(middleware::from_fn_with_state(Answers::new(), answers::hold))
        .layer(DefaultBodyLimit::max(REQUEST_MAX));
    let routes = messages
        .merge(rest)
        .layer(middleware::from_fn_with_state(Arc::clone(&node), guard))
        .with_state(Arc::clone(&node));

    let handle = axum_server::Handle::new();
    let stopping = handle.clone();
    tokio::spawn(async move {
        stop().await;
        stopping.graceful_shutdown(Some(Duration::from_secs(1)));
    });
    let listen = node.arguments.listen;
    let connections = Connections::new(routes, node.arguments.connections);
    let serving = async {
        let listener = TcpListener::bind(listen).await?;
        answers::end_stalled(&listener)?;
        let server = Server::<SocketAddr>::from_listener(listener).handle(handle);
        match (&node.arguments.tls_cert, &node.arguments.tls_key) {
            (Some(certificate), Some(key)) => {
                let tls = RustlsConfig::from_pem_file(certificate, key).await;
                let tls = tls.with_context(|| format!("reading {}", certificate.display()))?;
                let mut config = ServerConfig::clone(&tls.get_inner());
                config.alpn_protocols = vec![b"http/1.1".to_vec()];
                let tls = RustlsAcceptor::new(RustlsConfig::from_config(Arc::new(config)));
                bounded(server.acceptor(tls)).serve(connections).await?;
            }
            _ => bounded(server).serve(connections).await?,
        }
        anyhow::Ok(())
    };
    serving.await.with_context(|| format!("listening on {listen}"))?;
    // It may wait in its storage for a snapshot that is installed.
    if let Ok(stopped) = tokio::time::timeout(CLOSING, node.raft.shutdown()).await {
        stopped?;
    }
    node.db.sync()?;
    Ok(())
}

async fn stop() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminated) = signal(SignalKind::terminate()) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminated.recv() => {}
    }
}
