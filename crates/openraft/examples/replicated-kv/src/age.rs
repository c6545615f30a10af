//! How long ago a majority confirmed the leader, and since when a follower has applied what the leader had committed.
//!
//! openraft counts these milliseconds once a turn of its loop, and its loop stands still while an append waits for a sync; all stands still while
//! the process is stopped. What it said then is no younger for that.
//!
//! Invariant: the time that is kept is not later than that of the last confirmation.

use openraft::{BasicNode, LogId, RaftMetrics, Vote};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// When a majority last confirmed this node as the leader, or before that.
#[derive(Clone, Debug, Default)]
pub struct Confirmed(Arc<Mutex<Option<Instant>>>);

impl Confirmed {
    /// Follows what openraft says, until it ends.
    pub fn watch(mut metrics: watch::Receiver<RaftMetrics<u64, BasicNode>>) -> Self {
        let confirmed = Self::default();
        let kept = confirmed.clone();
        let mut looked = Instant::now();
        // When this was said is not known.
        metrics.mark_unchanged();
        tokio::spawn(async move {
            while metrics.changed().await.is_ok() {
                // It was said after the last look, and maybe long ago.
                let said = std::mem::replace(&mut looked, Instant::now());
                let millis = metrics.borrow_and_update().millis_since_quorum_ack;
                let at = millis.and_then(|millis| said.checked_sub(Duration::from_millis(millis)));
                let mut kept = kept.0.lock();
                *kept = at.max(*kept);
            }
        });
        confirmed
    }

    /// Milliseconds since then, or more. `None`: it never was.
    pub fn age(&self) -> Option<u64> {
        let at = *self.0.lock();
        at.map(|at| u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX))
    }
}

/// Messages of the leader that are kept, at most: those of some seconds of heartbeats, or of the time that a busy follower takes to apply a long entry.
const HEARD_MAX: usize = 64;

/// What the leader that this node follows has said is committed, and when. What a message says is applied when the next one may have come: the newest alone
/// would say nothing on a node that has always something to apply.
#[derive(Debug, Default)]
pub struct Heard(Mutex<VecDeque<(Instant, Option<LogId<u64>>)>>);

impl Heard {
    pub fn note(&self, came: Instant, committed: Option<LogId<u64>>) {
        let mut heard = self.0.lock();
        if heard.len() == HEARD_MAX {
            // Every second one, not the last: that nobody asks, or that the state is far behind, takes no memory.
            let mut stays = true;
            heard.retain(|_| {
                stays = !stays;
                stays
            });
        }
        heard.push_back((came, committed));
    }

    /// When the last message came of which all is applied.
    pub fn newest(&self, applied: Option<LogId<u64>>) -> Option<Instant> {
        let mut heard = self.0.lock();
        let all_applied = heard.iter().filter(|(_, committed)| *committed <= applied);
        let newest = all_applied.map(|(came, _)| *came).max()?;
        heard.retain(|(came, _)| *came >= newest);
        Some(newest)
    }
}

/// Whether an entry that is committed is of the leader of a vote. Until one is, the leader does not know what others have committed before it.
pub fn is_of_leader(committed: Option<LogId<u64>>, vote: &Vote<u64>) -> bool {
    committed.is_some_and(|committed| committed.leader_id == vote.leader_id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use openraft::CommittedLeaderId;

    #[test]
    fn a_leader_knows_what_is_committed_once_an_entry_of_its_own_is() {
        let entry = |term, node| Some(LogId::new(CommittedLeaderId::new(term, node), 7));
        let vote = Vote::new_committed(2, 1);
        assert!(!is_of_leader(None, &vote));
        assert!(!is_of_leader(entry(1, 1), &vote));
        assert!(!is_of_leader(entry(2, 3), &vote));
        assert!(is_of_leader(entry(2, 1), &vote));
    }

    #[test]
    fn a_state_that_is_always_behind_the_last_message_has_an_age() {
        let entry = |index| Some(LogId::new(CommittedLeaderId::new(1, 1), index));
        let (heard, begin) = (Heard::default(), Instant::now());
        let came = |message| begin + Duration::from_millis(message);
        assert_eq!(heard.newest(entry(1000)), None);
        // Of each message all is applied when the next has come.
        for message in 1..1000 {
            heard.note(came(message), entry(message));
            let expected = (message > 1).then(|| came(message - 1));
            assert_eq!(heard.newest(entry(message - 1)), expected);
        }
        // Nobody asks for long, or it is far behind: not much is kept, and the last messages are.
        for message in 1000..5000 {
            heard.note(came(message), entry(message));
        }
        assert!(heard.0.lock().len() <= HEARD_MAX);
        for behind in 0..HEARD_MAX as u64 / 2 - 1 {
            let heard = Heard(Mutex::new(heard.0.lock().clone()));
            let newest = heard.newest(entry(4999 - behind)).expect("something is applied");
            assert!(newest <= came(4999 - behind) && newest >= came(4999 - 2 * behind), "{behind}");
        }
        assert_eq!(heard.newest(entry(4999)), Some(came(4999)));
        // An age is no less for a message that comes late.
        heard.note(came(4000), entry(4000));
        assert_eq!(heard.newest(entry(4999)), Some(came(4999)));
    }

    #[tokio::test]
    async fn what_was_said_grows_old() {
        let (say, heard) = watch::channel(RaftMetrics::new_initial(1));
        let begin = Instant::now();
        let confirmed = Confirmed::watch(heard);
        let watched = Instant::now();
        // What is said counts from the last look, however long this machine takes.
        let is_between = |age: u64, least: Duration, most: Duration| {
            (least.as_millis()..=most.as_millis()).contains(&u128::from(age))
        };
        let pause = || tokio::time::sleep(Duration::from_millis(50));
        let ago =
            |millis| RaftMetrics { millis_since_quorum_ack: Some(millis), ..RaftMetrics::new_initial(1) };
        pause().await;
        assert_eq!(confirmed.age(), None);
        let said = Instant::now();
        say.send(ago(2000)).expect("it is heard");
        pause().await;
        let heard = Instant::now();
        let (least, said_before) = (watched.elapsed(), Duration::from_secs(2));
        let before = confirmed.age().expect("it was confirmed");
        assert!(is_between(before, least + said_before, begin.elapsed() + said_before), "{before} ms");
        // Nothing is said, as while the loop stands still.
        pause().await;
        assert!(confirmed.age().expect("it was") >= before + 50);
        // It is said just before this task stands still as well.
        say.send(ago(0)).expect("it is heard");
        std::thread::sleep(Duration::from_millis(300));
        tokio::task::yield_now().await;
        let least = heard.elapsed();
        let after = confirmed.age().expect("it was");
        assert!(is_between(after, least, said.elapsed()), "{after} ms");
        // Another leader, and this one again: no majority has confirmed it later.
        say.send(RaftMetrics::new_initial(1)).expect("it is heard");
        pause().await;
        assert!(confirmed.age().expect("it was") >= after + 50);
    }
}
