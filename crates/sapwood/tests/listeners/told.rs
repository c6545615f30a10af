//! What each flush tells of itself to whoever listens.

use parking_lot::Mutex;
use psync::{Simulated, Volume};
use sapwood::Database;
use std::collections::BTreeMap;
use std::sync::Arc;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Fields of the events of flushes.
#[derive(Clone, Default)]
struct Listener(Arc<Mutex<Vec<Fields>>>);

#[derive(Default)]
struct Fields(BTreeMap<&'static str, u64>);

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name(), value);
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "sapwood::flush" && *metadata.level() <= Level::DEBUG
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        self.0.lock().push(fields);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn each_flush_tells_what_it_has_done() {
    let _alone = crate::ALONE.lock();
    let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
    let db = Database::builder().memory(4 << 20).background_threads(0).open_on(volume).unwrap();
    let keyspace = db.keyspace("main").unwrap();
    keyspace.ingest((0..20_000u32).map(|number| (number.to_be_bytes(), [0; 100]))).unwrap();
    let listener = Listener::default();
    let flushes = 5;
    tracing::subscriber::with_default(listener.clone(), || {
        for flush in 0..flushes {
            let mut batch = db.batch();
            for number in (flush..20_000u32).step_by(100) {
                batch.insert(&keyspace, number.to_be_bytes(), [1; 100]);
            }
            batch.commit().unwrap();
            db.flush().unwrap();
        }
    });
    let told = listener.0.lock();
    assert_eq!(told.len(), flushes as usize);
    let sum = |name| told.iter().map(|fields| fields.0[name]).sum::<u64>();
    assert_eq!(sum("changes"), 200 * u64::from(flushes));
    assert_eq!(sum("bytes"), 104 * 200 * u64::from(flushes));
    let writes = db.stats().writes;
    assert_eq!((sum("appended"), sum("cleansed")), (writes.blocks_appended, writes.blocks_cleansed));
    assert!(writes.blocks_appended > 0 && sum("written") > sum("bytes"));
    assert!(told.iter().all(|fields| fields.0["in_trees_ms"] <= fields.0["took_ms"]));
}
