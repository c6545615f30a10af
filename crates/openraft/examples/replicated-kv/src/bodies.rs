//! Bodies of requests: read whole before anything is done with them, in a bounded time, and with bounded memory for all of them together.
//!
//! Invariants:
//! 1. Nothing has happened when a body is not taken. So the answer is none of those of which that is unknown.
//! 2. A body has its part of the room until its request is answered: what a handler makes of it, and waits with, is no longer for long.

use crate::server::Failure;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{FromRequest, Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// How long a body may take to come: 300 KiB a second for the longest that other nodes send, a chunk of a snapshot of 3 MiB.
const PATIENCE: Duration = Duration::from_secs(10);

/// The room for bodies of some requests.
#[derive(Clone, Debug)]
pub struct Room {
    bytes: Arc<Semaphore>,
    /// Of one body.
    longest: usize,
}

impl Room {
    pub fn new(bytes: usize, longest: usize) -> Self {
        Self { bytes: Arc::new(Semaphore::new(bytes)), longest }
    }
}

/// Reads the body, then lets the request pass.
pub async fn read(State(room): State<Room>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    // One that does not say how long it is may be as long as any.
    let len = body.size_hint().upper().unwrap_or(u64::MAX).min(room.longest as u64);
    let Ok(_held) = room.bytes.try_acquire_many_owned(u32::try_from(len).unwrap_or(u32::MAX)) else {
        // A client that is still sending would see a connection that breaks, and no answer.
        _ = timeout(PATIENCE, discard(body)).await;
        return Failure::new(
            StatusCode::TOO_MANY_REQUESTS,
            "too many requests at once: nothing has happened, try again",
        )
        .into_response();
    };
    let reading = Bytes::from_request(Request::from_parts(parts.clone(), body), &());
    match timeout(PATIENCE, reading).await {
        Ok(Ok(body)) => next.run(Request::from_parts(parts, Body::from(body))).await,
        Ok(Err(refused)) => refused.into_response(),
        Err(_) => {
            Failure::new(StatusCode::REQUEST_TIMEOUT, "the body has not come in time: nothing has happened")
                .into_response()
        }
    }
}

async fn discard(mut body: Body) {
    while let Some(Ok(_)) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {}
}
