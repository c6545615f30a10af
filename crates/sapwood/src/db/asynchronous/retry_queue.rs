//! Transactions of tasks that conflict often wait for one another, so that they do not go on making each other conflict.
//!
//! They cannot take a turn ([`crate::commit::turn`]): that holds back all other commits, also one that blocks the thread which would have
//! to poll the task that has the turn.
//!
//! Invariants:
//! 1. At most one permit is out. Tasks get it in the order in which they asked.
//! 2. A permit that is dropped goes to the next, also if it was never taken out of its answer.

use crate::answer::{Answer, Giver};
use crate::lock_order::{RankedMutex, rank};
use std::collections::VecDeque;
use std::sync::Arc;

/// See the module.
#[derive(Default)]
pub(crate) struct RetryQueue {
    /// Tasks that wait while a permit is out.
    waiting: RankedMutex<rank::RetryQueue, Option<VecDeque<Giver<Permit>>>>,
}

/// Allows one task to repeat its transaction.
pub(crate) struct Permit(Arc<RetryQueue>);

impl RetryQueue {
    pub fn permit(self: &Arc<Self>) -> Answer<Permit> {
        let (answer, giver) = Answer::new();
        let mut waiting = self.waiting.lock();
        match &mut *waiting {
            Some(others) => others.push_back(giver),
            None => {
                *waiting = Some(VecDeque::new());
                drop(waiting);
                giver.give(Ok(Permit(Arc::clone(self))));
            }
        }
        answer
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        loop {
            let mut waiting = self.0.waiting.lock();
            let Some(next) = waiting.as_mut().and_then(VecDeque::pop_front) else {
                *waiting = None;
                return;
            };
            drop(waiting);
            // Tasks that have gone are passed over here: permits that are dropped with their answers would recurse.
            if next.is_wanted() {
                return next.give(Ok(Permit(Arc::clone(&self.0))));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::{Context, Poll, Waker};

    fn is_given(answer: &Answer<Permit>) -> Option<Permit> {
        match answer.poll(&Context::from_waker(Waker::noop())) {
            Poll::Ready(permit) => Some(permit.unwrap()),
            Poll::Pending => None,
        }
    }

    #[test]
    fn one_has_the_permit_and_what_is_given_up_goes_on() {
        let queue = Arc::new(RetryQueue::default());
        let [first, second, third, fourth] = [(); 4].map(|()| queue.permit());
        let permit = is_given(&first).unwrap();
        assert!(is_given(&second).is_none());
        drop(second);
        drop(permit);
        // It was given to the third, which did not take it out.
        drop(third);
        let permit = is_given(&fourth).unwrap();
        let fifth = queue.permit();
        assert!(is_given(&fifth).is_none());
        drop(permit);
        drop(is_given(&fifth).unwrap());
        assert!(is_given(&queue.permit()).is_some());
    }
}
