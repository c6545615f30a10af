//! Connections: so many at most, each with a time for its first request.

use axum::Router;
use axum::extract::Extension;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::Semaphore;
use tower_service::Service;

/// What answers the requests of a connection, while it has a place.
#[derive(Clone, Debug)]
pub struct Connections {
    routes: Router,
    places: Arc<Semaphore>,
}

impl Connections {
    pub fn new(routes: Router, most: usize) -> Self {
        Self { routes, places: Arc::new(Semaphore::new(most)) }
    }
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
        let place = Arc::clone(&self.places).try_acquire_owned();
        let place = place.map_err(|_| "there are too many connections");
        // It goes with the routes of this connection.
        ready(place.map(|place| self.routes.clone().layer(Extension(Arc::new(place)))))
    }
}
