//! Bodies of requests: read whole before anything is done with them, in a bounded time, and with bounded memory for all of them together.
//!
//! Invariants:
//! 1. Nothing has happened when a body is not taken. So the answer is none of those of which that is unknown.
//! 2. A body has its part of the room until its request is answered: what a handler makes of it, and waits with, is no longer for long. Of a room
//!    that is [`kept`](Room::kept) also when whoever sent it has gone meanwhile.

use crate::server::Failure;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::BytesMut;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};

/// How long the beginning of a body may take to come: longer than a network that works stands still.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes a second that come at least behind it: less than any link on which a cluster is of use has, and enough that whoever sends a byte now and then
/// does not keep a part of the room.
const PACE: u32 = 16 << 10;
/// Bytes that a short body counts as: what is made of it, and waits, has about as many.
const LEAST: u64 = 4 << 10;

/// The room for bodies of some requests.
#[derive(Clone, Debug)]
pub struct Room {
    bytes: Arc<Semaphore>,
    /// Of one body.
    longest: usize,
    is_kept: bool,
}

impl Room {
    pub fn new(bytes: usize, longest: usize) -> Self {
        Self { bytes: Arc::new(Semaphore::new(bytes)), longest, is_kept: false }
    }

    /// Requests are gone through with when whoever sent them has gone: for handlers that give away what they wait for.
    pub fn kept(self) -> Self {
        Self { is_kept: true, ..self }
    }
}

/// Reads the body, then lets the request pass.
pub async fn read(State(room): State<Room>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    // One that does not say how long it is may be as long as any.
    let len = body.size_hint().upper().unwrap_or(u64::MAX).min(room.longest as u64);
    let part = if len == 0 { 0 } else { len.max(LEAST) };
    let Ok(held) = room.bytes.try_acquire_many_owned(u32::try_from(part).unwrap_or(u32::MAX)) else {
        // A client that is still sending would see a connection that breaks, and no answer.
        _ = timeout(PATIENCE, discard(body)).await;
        return Failure::new(
            StatusCode::TOO_MANY_REQUESTS,
            "too many requests at once: nothing has happened, try again",
        )
        .into_response();
    };
    let body = match whole(body, room.longest).await {
        Ok(body) => body,
        Err(failure) => return failure.into_response(),
    };
    let answering = next.run(Request::from_parts(parts, Body::from(body)));
    let answering = async move {
        let answer = answering.await;
        drop(held);
        answer
    };
    if !room.is_kept {
        return answering.await;
    }
    // The server drops what it is doing when a connection ends.
    tokio::spawn(answering).await.unwrap_or_else(|error| Failure::broken(error).into_response())
}

/// A body, if it has `longest` bytes at most and comes in time.
async fn whole(mut body: Body, longest: usize) -> Result<Bytes, Failure> {
    let begin = Instant::now();
    let expected = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let mut whole = BytesMut::with_capacity(expected.min(longest));
    loop {
        let end = begin + PATIENCE + Duration::from_secs(whole.len() as u64) / PACE;
        let frame = poll_fn(|context| Pin::new(&mut body).poll_frame(context));
        let late = |_| {
            Failure::new(StatusCode::REQUEST_TIMEOUT, "the body has not come in time: nothing has happened")
        };
        match timeout_at(end, frame).await.map_err(late)? {
            None => return Ok(whole.freeze()),
            Some(frame) => {
                // Others are of trailers.
                let Ok(data) = frame.map_err(Failure::bad)?.into_data() else { continue };
                if data.len() > longest - whole.len() {
                    let reason = format!("the body is longer than {longest} bytes");
                    return Err(Failure::new(StatusCode::PAYLOAD_TOO_LARGE, reason));
                }
                whole.extend_from_slice(&data);
            }
        }
    }
}

async fn discard(mut body: Body) {
    while let Some(Ok(_)) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::middleware::from_fn_with_state;
    use axum::routing::post;
    use http_body::Frame;
    use std::convert::Infallible;
    use std::task::{Context, Poll};
    use tokio::time::{Interval, interval};
    use tower_service::Service;

    /// So many pieces, one at each tick.
    struct Slow(usize, Bytes, Interval);

    impl HttpBody for Slow {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            if self.0 == 0 {
                return Poll::Ready(None);
            }
            std::task::ready!(self.2.poll_tick(context));
            self.0 -= 1;
            Poll::Ready(Some(Ok(Frame::data(self.1.clone()))))
        }
    }

    async fn came(pieces: usize, bytes: usize, every: Duration) -> Result<usize, StatusCode> {
        let body = Body::new(Slow(pieces, vec![7; bytes].into(), interval(every)));
        whole(body, 1 << 20).await.map(|body| body.len()).map_err(|failure| failure.status)
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_may_be_slow_and_has_to_come() {
        let second = Duration::from_secs(1);
        // A minute, at 17 KiB a second.
        assert_eq!(came(60, 17 << 10, second).await, Ok(60 * (17 << 10)));
        assert_eq!(came(60, 8 << 10, second).await, Err(StatusCode::REQUEST_TIMEOUT));
        assert_eq!(came(60, 1, 9 * second).await, Err(StatusCode::REQUEST_TIMEOUT));
        assert_eq!(came(2, 1, 11 * second).await, Err(StatusCode::REQUEST_TIMEOUT));
        assert_eq!(came(16, 64 << 10, second).await, Ok(1 << 20));
        assert_eq!(came(17, 64 << 10, second).await, Err(StatusCode::PAYLOAD_TOO_LARGE));
    }

    /// Statuses of requests of 1000 bytes each, which are given up after a while.
    async fn statuses(room: Room) -> Vec<Option<StatusCode>> {
        let for_ever = |_: Bytes| std::future::pending::<()>();
        let mut routes = Router::new().route("/", post(for_ever)).layer(from_fn_with_state(room, read));
        let mut statuses = Vec::new();
        for _ in 0..6 {
            let request = Request::post("/").body(Body::from(vec![7; 1000])).expect("a request");
            let answer = timeout(Duration::from_millis(100), routes.call(request)).await;
            statuses.push(answer.ok().map(|answer| answer.expect("infallible").status()));
        }
        statuses
    }

    #[tokio::test]
    async fn what_was_given_away_keeps_its_part_when_its_sender_has_gone() {
        // For four: short ones count as more.
        let room = || Room::new(4 * LEAST as usize, 1 << 20);
        assert_eq!(statuses(room()).await, [None; 6]);
        let refused = Some(StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(statuses(room().kept()).await, [None, None, None, None, refused, refused]);
    }
}
