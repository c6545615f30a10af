//! The spans that a listener sees with the feature `spans`, and which lie within which.

use parking_lot::Mutex;
use psync::{Simulated, Volume};
use sapwood::{Database, Durability};
use std::collections::BTreeSet;
use std::sync::Arc;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Spans by their numbers, those that are entered, and each with the one around it.
#[derive(Clone, Default)]
struct Listener(Arc<Mutex<Spans>>);

#[derive(Default)]
struct Spans {
    names: Vec<&'static str>,
    entered: Vec<&'static str>,
    seen: BTreeSet<(&'static str, &'static str)>,
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.target() == "sapwood"
    }

    fn event(&self, _: &Event<'_>) {}

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut spans = self.0.lock();
        spans.names.push(attributes.metadata().name());
        Id::from_u64(spans.names.len() as u64)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, id: &Id) {
        let mut spans = self.0.lock();
        let name = spans.names[id.into_u64() as usize - 1];
        let around = spans.entered.last().copied().unwrap_or_default();
        spans.seen.insert((around, name));
        spans.entered.push(name);
    }

    fn exit(&self, _: &Id) {
        self.0.lock().entered.pop();
    }
}

fn open() -> Database {
    let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
    let builder = Database::builder().compression(sapwood::Compression::None).memory(4 << 20);
    builder.background_threads(0).open_on(volume).expect("works")
}

#[test]
fn what_takes_long_is_a_span() {
    let _alone = crate::ALONE.lock();
    let listener = Listener::default();
    let seen = |span: (&str, &str)| listener.0.lock().seen.contains(&span);
    tracing::subscriber::with_default(listener.clone(), || {
        let db = open();
        assert!(seen(("", "open")) && !seen(("", "flush")));
        let keyspace = db.keyspace("main").unwrap();
        keyspace.ingest((0..20_000u32).map(|number| (number.to_be_bytes(), [0; 100]))).unwrap();
        assert!(seen(("", "publish")));
        let is_all = || {
            let within = [
                ("publish", "checkpoint"),
                ("flush", "publish"),
                ("collect", "publish"),
                ("cleanse", "publish"),
            ];
            within.into_iter().all(seen)
        };
        for round in 0..2000u32 {
            let mut batch = db.batch();
            for number in (round % 100..20_000).step_by(100) {
                batch.insert(&keyspace, number.to_be_bytes(), [1; 100]);
            }
            batch.durability(Durability::Buffered).commit().unwrap();
            if round % 100 == 99 {
                db.compact().unwrap()
            } else {
                db.flush().unwrap()
            }
            if is_all() {
                break;
            }
        }
        assert!(is_all() && seen(("", "commit")), "{:?}", listener.0.lock().seen);
    });
    assert!(listener.0.lock().entered.is_empty());
}
