//! Connections: so many at most, each with a time for its first request, and some of them for the other nodes.
//!
//! Invariant: clients keep no place of those that are for other nodes. Who has connected is known by the first request only, so whoever asks for nothing
//! has one until the time for that is over.

use crate::server::Failure;
use axum::Router;
use axum::extract::{Extension, Request};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower_service::Service;

/// Places for other nodes, at most: each has some connections, for votes, entries and a snapshot.
const OF_NODES_MAX: usize = 64;
/// And at most one of so many of all.
const OF_NODES_PART: usize = 4;

/// What answers the requests of a connection, while it has a place.
#[derive(Clone, Debug)]
pub struct Connections {
    routes: Router,
    of_anybody: Arc<Semaphore>,
    of_nodes: Arc<Semaphore>,
}

impl Connections {
    pub fn new(routes: Router, most: usize) -> Self {
        let of_nodes = (most / OF_NODES_PART).min(OF_NODES_MAX);
        let places = |count| Arc::new(Semaphore::new(count));
        let routes = routes.layer(middleware::from_fn(admit));
        Self { routes, of_anybody: places(most - of_nodes), of_nodes: places(of_nodes) }
    }
}

/// The place of a connection.
#[derive(Debug)]
struct Place {
    is_of_nodes: bool,
    _permit: OwnedSemaphorePermit,
}

/// Lets a request pass that is for the place of its connection. Another ends the connection, and so does one that is refused: it is of no node of this cluster, by the
/// token or by what it says, or there is no such message. A node connects again.
async fn admit(Extension(place): Extension<Arc<Place>>, request: Request, next: Next) -> Response {
    if !place.is_of_nodes {
        return next.run(request).await;
    }
    let is_message = request.uri().path().starts_with("/raft/");
    let mut answer = if is_message {
        next.run(request).await
    } else {
        let reason = "there are too many connections: nothing has happened, try again";
        Failure::new(StatusCode::TOO_MANY_REQUESTS, reason).into_response()
    };
    if !is_message || answer.status().is_client_error() {
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

impl Service<SocketAddr> for Connections {
    type Response = Router;
    type Error = &'static str;
    type Future = Ready<Result<Router, &'static str>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
        Poll::Ready(Ok(()))
    }

    /// An error closes the connection.
    fn call(&mut self, _: SocketAddr) -> Self::Future {
        let place = |places: &Arc<Semaphore>, is_of_nodes| {
            let permit = Arc::clone(places).try_acquire_owned().ok()?;
            Some(Arc::new(Place { is_of_nodes, _permit: permit }))
        };
        let place = place(&self.of_anybody, false).or_else(|| place(&self.of_nodes, true));
        let place = place.ok_or("there are too many connections");
        // It goes with the routes of this connection.
        ready(place.map(|place| self.routes.clone().layer(Extension(place))))
    }
}
