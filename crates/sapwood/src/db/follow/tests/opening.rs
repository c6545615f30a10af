//! Followers that come while a writer opens.

use super::*;

/// Does something before the first hole is made.
struct Releasing {
    inner: Simulated,
    work: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl PassThrough for Releasing {
    fn inner(&self) -> &dyn Volume {
        &self.inner
    }

    fn release(&self, file: FileId, range: std::ops::Range<u64>) -> psync::Result<()> {
        self.work.lock().unwrap().take().into_iter().for_each(|work| work());
        self.inner().release(file, range)
    }
}

/// It read the version of before, whose places became holes under it.
#[test]
fn a_follower_that_comes_before_holes_are_made_reads_nothing_there() {
    let mut holes = 0;
    for nth in 1..20 {
        let mut ground = Ground::new(3);
        ground.db = None;
        ground.volume = Simulated::new(nth).without_direct();
        ground.open();
        let main = ground.main();
        // So much that some segments have nothing else, and are let go with the edit that follows.
        let write = |byte: u8| (0..KEYS).try_for_each(|number| main.insert(key(number), [byte; 900]));
        write(b'a').and_then(|()| ground.db().compact()).unwrap();
        let syncs = Filter::kinds([OperationKind::Sync]).file("manifest-");
        ground.volume.fail_nth(syncs, nth, Fault::Error, Repeat::Once);
        let is_whole = write(b'b').and_then(|()| ground.db().compact()).is_ok();
        drop(main);
        ground.db = None;
        let volume = ground.volume.crash();
        let came = Arc::new(Mutex::new(None));
        let work = {
            let (volume, came) = (volume.clone(), Arc::clone(&came));
            move || *came.lock().unwrap() = Some(follow(&volume))
        };
        let releasing = Releasing { inner: volume, work: Mutex::new(Some(Box::new(work))) };
        let writer = builder().open_on(Arc::new(releasing)).unwrap();
        if let Some(follower) = came.lock().unwrap().take() {
            holes += 1;
            let main = follower.keyspace("main").unwrap();
            let records: crate::Result<Vec<_>> = main.iter().collect();
            assert_eq!(records.unwrap_or_else(|error| panic!("{nth}: {error}")).len(), KEYS as usize);
        }
        drop(writer);
        if is_whole {
            break;
        }
    }
    assert!(holes > 0, "no opening made holes");
}
