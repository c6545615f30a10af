//! What the manifest says of the change feed: how much of the log is kept for it, since when, and what happened to keyspaces,
//! which the log does not tell.
//!
//! Invariants:
//! 1. Events are numbered one by one, and stand in their order. Of many, the oldest are forgotten; a reader that asks for one of
//!    those is told.
//! 2. An event is part of the edit that it tells of, so it is there exactly if that is.
//! 3. While none is kept, no event is noted. When one is again, `from` and the numbers of events begin behind all before.

use crate::bytecode::{Reader, put_varint};
use crate::operation::{KeyspaceId, NUMBER_MAX, SeqNo};
use crate::version::trees::NAME_LEN_MAX;
use std::sync::Arc;

/// Events that are remembered (count): all are in memory and in each checkpoint. Keyspaces come and go seldom.
pub(crate) const EVENTS_MAX: usize = 8192;

/// How the log is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keeping {
    /// Bytes of log files that are kept at most after their flush; 0: no change log is kept.
    pub bytes: u64,
    /// All operations behind this one are in the log, unless they were removed for their space.
    pub from: SeqNo,
    /// The number of the first event that follows.
    pub first_event: u64,
}

/// What happened to a keyspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    Created,
    Renamed,
    Dropped,
    /// Sorted records came to its tree without the log.
    Ingested,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyspaceEvent {
    pub kind: EventKind,
    pub keyspace: KeyspaceId,
    /// Operations up to this one are before it.
    pub seq: SeqNo,
    /// By the database's clock, in milliseconds since 1970; 0: unknown.
    pub time: u64,
    /// Whether its records may expire, ...
    pub expires: bool,
    /// ... whether its values are merged, ...
    pub merges: bool,
    /// ... and whether they are large: how they are stored.
    pub large: bool,
    /// The name that it has then.
    pub name: Arc<str>,
}

impl KeyspaceEvent {
    pub fn encode(&self, out: &mut Vec<u8>) {
        let kind = match self.kind {
            EventKind::Created => 1,
            EventKind::Renamed => 2,
            EventKind::Dropped => 3,
            EventKind::Ingested => 4,
        };
        out.push(kind);
        put_varint(out, u64::from(self.keyspace.0));
        put_varint(out, self.seq);
        put_varint(out, self.time);
        out.push(u8::from(self.expires) | u8::from(self.merges) << 1 | u8::from(self.large) << 2);
        put_varint(out, self.name.len() as u64);
        out.extend_from_slice(self.name.as_bytes());
    }

    /// Decodes an event; `has_time`: older ones have none.
    pub fn decode(reader: &mut Reader<'_>, has_time: bool) -> Option<Self> {
        let kind = match reader.u8()? {
            1 => EventKind::Created,
            2 => EventKind::Renamed,
            3 => EventKind::Dropped,
            4 => EventKind::Ingested,
            _ => return None,
        };
        let keyspace = u32::try_from(reader.varint()?).ok().filter(|id| *id <= KeyspaceId::LAST.0)?;
        let seq = reader.varint().filter(|seq| *seq < NUMBER_MAX)?;
        let time = if has_time { reader.varint()? } else { 0 };
        let flags = reader.u8().filter(|flags| *flags < 8)?;
        let len = reader.length().filter(|len| *len <= NAME_LEN_MAX)?;
        let name = std::str::from_utf8(reader.bytes(len)?).ok()?.into();
        let (expires, merges, large) = (flags & 1 > 0, flags & 2 > 0, flags & 4 > 0);
        Some(Self { kind, keyspace: KeyspaceId(keyspace), seq, time, expires, merges, large, name })
    }
}

impl Keeping {
    pub fn encode(&self, out: &mut Vec<u8>) {
        [self.bytes, self.from, self.first_event].into_iter().for_each(|number| put_varint(out, number));
    }

    pub fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        let mut number = || reader.varint().filter(|number| *number < NUMBER_MAX);
        Some(Self { bytes: number()?, from: number()?, first_event: number()? })
    }
}

/// The change log of a version that keeps one, or has kept one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChangeLog {
    pub keeping: Keeping,
    pub events: Vec<KeyspaceEvent>,
}

impl ChangeLog {
    /// Of a version that has had another, or none, and is now to keep it so. If it keeps none, only the numbers of events go on, and
    /// leave one out: whoever asks for that has missed what happened meanwhile.
    pub fn kept(before: Option<Arc<Self>>, keeping: Keeping) -> Arc<Self> {
        let (first_event, events) = match before {
            Some(log) if keeping.bytes == 0 => (log.next_event() + 1, Vec::new()),
            Some(log) => (log.keeping.first_event, log.events.clone()),
            None => (keeping.first_event, Vec::new()),
        };
        Arc::new(Self { keeping: Keeping { first_event, ..keeping }, events })
    }

    /// Begins anew behind this operation, without the events so far: in a copy of the database, in which other things will happen.
    pub fn begin_anew(&mut self, seq: SeqNo) {
        self.keeping.from = seq;
        self.keeping.first_event = self.next_event() + 1;
        self.events.clear();
    }

    pub fn note(&mut self, events: &[KeyspaceEvent]) {
        self.events.extend_from_slice(events);
        let forgotten = self.events.len().saturating_sub(EVENTS_MAX);
        self.events.drain(..forgotten);
        self.keeping.first_event += forgotten as u64;
    }

    /// The number of the event that comes next.
    pub fn next_event(&self) -> u64 {
        self.keeping.first_event + self.events.len() as u64
    }

    /// The event of this number, `None` if it was forgotten; in it, `None` if there is none of this number yet.
    pub fn event(&self, number: u64) -> Option<Option<&KeyspaceEvent>> {
        let index = number.checked_sub(self.keeping.first_event)?;
        Some(usize::try_from(index).ok().and_then(|index| self.events.get(index)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(seq: SeqNo) -> KeyspaceEvent {
        let (kind, keyspace) = (EventKind::Renamed, KeyspaceId(7));
        let (expires, merges, large) = (true, false, true);
        KeyspaceEvent { kind, keyspace, seq, time: 9, expires, merges, large, name: "ships".into() }
    }

    #[test]
    fn the_oldest_events_are_forgotten_and_asked_for_in_vain() {
        let keeping = Keeping { bytes: 1, from: 9, first_event: 5 };
        let mut log = ChangeLog { keeping, events: Vec::new() };
        (0..EVENTS_MAX as u64 + 2).for_each(|seq| log.note(&[event(seq)]));
        assert_eq!((log.events.len(), log.keeping.first_event), (EVENTS_MAX, 7));
        assert_eq!(log.next_event(), 7 + EVENTS_MAX as u64);
        assert!(log.event(6).is_none());
        assert_eq!(log.event(7), Some(Some(&event(2))));
        assert_eq!(log.event(log.next_event()), Some(None));
    }

    /// A reader that had seen everything before the time without a change log believed that it had seen everything.
    #[test]
    fn another_bound_forgets_nothing_and_none_all() {
        let keeping = Keeping { bytes: 1, from: 9, first_event: 0 };
        let mut log = ChangeLog { keeping, events: Vec::new() };
        log.note(&[event(10)]);
        let next = log.next_event();
        let more = ChangeLog::kept(Some(Arc::new(log)), Keeping { bytes: 2, ..keeping });
        assert_eq!((more.keeping.bytes, more.events.len()), (2, 1));
        let none = ChangeLog::kept(Some(more), Keeping { bytes: 0, ..keeping });
        let again = ChangeLog::kept(Some(none), Keeping { from: 20, ..keeping });
        assert_eq!((again.keeping.from, again.events.len()), (20, 0));
        assert!(again.event(next).is_none(), "it was missed");
    }

    #[test]
    fn what_is_no_event_is_refused() {
        let mut bytes = Vec::new();
        event(300).encode(&mut bytes);
        assert_eq!(KeyspaceEvent::decode(&mut Reader::new(&bytes), true), Some(event(300)));
        let older = [&bytes[..4], &bytes[5..]].concat();
        let without = KeyspaceEvent { time: 0, ..event(300) };
        assert_eq!(KeyspaceEvent::decode(&mut Reader::new(&older), false), Some(without));
        for (index, bad) in [(0, 0), (0, 5), (5, 8)] {
            let mut bytes = bytes.clone();
            bytes[index] = bad;
            assert_eq!(KeyspaceEvent::decode(&mut Reader::new(&bytes), true), None, "byte {index}");
        }
        for len in 0..bytes.len() {
            assert_eq!(KeyspaceEvent::decode(&mut Reader::new(&bytes[..len]), true), None);
        }
    }
}
