//! Long answers: so many bytes of them at most wait for clients that read them slowly, or not at all.
//!
//! Invariant: a long answer has its part of the room until the kernel has its last byte, or the connection has ended: at the latest [`STALLED`] after
//! the client last took anything.

use crate::server::Failure;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of long answers at once: of some tens of the longest values, little beside the memory of a node.
const ROOM: usize = 64 << 20;
/// Answers of no more bytes need no room: those of 900 connections, one each, have 56 MiB.
const SHORT: u64 = 64 << 10;
/// How long a client may take nothing of what it is sent: longer than programs stand still that go on.
const STALLED: Duration = Duration::from_secs(30);

/// Ends connections of a listener on which nothing that was sent has been taken for [`STALLED`]: they have the option from there.
pub fn end_stalled(listener: &TcpListener) -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    socket2::SockRef::from(listener).set_tcp_user_timeout(Some(STALLED))?;
    // Elsewhere they stay.
    #[cfg(not(target_os = "linux"))]
    let _ = (listener, STALLED);
    Ok(())
}

/// The room for long answers.
#[derive(Clone, Debug)]
pub struct Answers(Arc<Semaphore>);

impl Answers {
    pub fn new() -> Self {
        Self(Arc::new(Semaphore::new(ROOM)))
    }
}

/// An answer, and its part of the room.
struct Held {
    answer: Bytes,
    _part: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.answer
    }
}

/// Lets an answer pass if it is short or there is room for it. Answers that say what a write did are short.
pub async fn hold(State(Answers(room)): State<Answers>, request: Request, next: Next) -> Response {
    let answer = next.run(request).await;
    let len = answer.body().size_hint().lower();
    if len <= SHORT {
        return answer;
    }
    let Ok(part) = room.try_acquire_many_owned(u32::try_from(len).unwrap_or(u32::MAX)) else {
        return Failure::new(
            StatusCode::TOO_MANY_REQUESTS,
            "too many long answers at once, which clients have not read yet: try again",
        )
        .into_response();
    };
    let (parts, body) = answer.into_parts();
    // It is there, in one piece.
    match axum::body::to_bytes(body, usize::MAX).await {
        // The server drops a body once it has its last piece, and the piece once it is sent.
        Ok(answer) => {
            Response::from_parts(parts, Body::from(Bytes::from_owner(Held { answer, _part: part })))
        }
        Err(error) => Failure::broken(error).into_response(),
    }
}
