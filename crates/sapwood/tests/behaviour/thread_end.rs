//! A database that is used by destructors at the end of a thread, when other variables of the thread may be gone already.

use psync::Simulated;
use sapwood::{Database, EncryptionKey, Keyspace};
use std::cell::RefCell;
use std::sync::Arc;

/// Reads when it is dropped.
struct Reader(Keyspace);

impl Drop for Reader {
    fn drop(&mut self) {
        for number in 0..100u32 {
            assert!(self.0.get((number * 199).to_be_bytes()).expect("sound").is_some());
        }
    }
}

thread_local! {
    static READER: RefCell<Option<Reader>> = const { RefCell::new(None) };
}

/// The working memory in which nodes are decompressed was gone, and the panic ended the process.
#[test]
fn a_destructor_at_a_threads_end_may_read() {
    for key in [None, Some(EncryptionKey::from_bytes([7; 32]))] {
        let volume = Simulated::new(1);
        let open = || {
            let builder = Database::builder().memory(4 << 20).background_threads(0);
            let builder = key.iter().fold(builder, |builder, key| builder.encryption_key(key.clone()));
            builder.open_on(Arc::new(volume.clone())).expect("opens")
        };
        let db = open();
        let records = (0..20_000u32).map(|number| (number.to_be_bytes(), [number as u8; 300]));
        db.keyspace("main").expect("a keyspace").ingest(records).expect("ingests");
        db.close().expect("closes");
        let db = open();
        let keyspace = db.keyspace("main").expect("a keyspace");
        let thread = std::thread::spawn(move || {
            READER.set(Some(Reader(keyspace.clone())));
            // What reading needs comes to be after that, and goes before.
            assert!(keyspace.get(7u32.to_be_bytes()).expect("sound").is_some());
        });
        thread.join().expect("it ends");
    }
}
