//! What happens where a follower or its writer cannot write to the directory any more, or not yet.

use super::{Ground, Seen, builder, follow, rewrite};
use crate::durability::Durability;
use crate::error::Error;
use psync::{Access, Fault, FileId, Filter, OperationKind, PassThrough, Repeat, Simulated, Volume};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Refuses to open files with this prefix to write, or to remove them, while it is told to.
struct Refusing {
    inner: Simulated,
    prefix: &'static str,
    opens: AtomicBool,
    removes: AtomicBool,
}

impl Refusing {
    fn new(inner: &Simulated, prefix: &'static str) -> Arc<Self> {
        let (opens, removes) = Default::default();
        Arc::new(Self { inner: inner.clone(), prefix, opens, removes })
    }

    fn refuse(&self, name: &str, refuses: bool, operation: &'static str) -> psync::Result<()> {
        if refuses && name.starts_with(self.prefix) {
            let full = io::Error::from(io::ErrorKind::StorageFull);
            return Err(psync::Error::from_io(operation, name, None, full));
        }
        Ok(())
    }
}

impl PassThrough for Refusing {
    fn inner(&self) -> &dyn Volume {
        &self.inner
    }

    fn open(&self, name: &str, access: Access) -> psync::Result<FileId> {
        self.refuse(name, access.write && self.opens.load(Relaxed), "open")?;
        self.inner.open(name, access)
    }

    fn remove(&self, name: &str) -> psync::Result<()> {
        self.refuse(name, self.removes.load(Relaxed), "remove")?;
        self.inner.remove(name)
    }
}

/// A full disk ends a registration: the follower found no space for another one, and could not refresh.
#[test]
fn a_follower_goes_on_without_registration_and_registers_later() {
    let mut ground = Ground::new(1);
    ground.commit(Durability::Immediate).unwrap();
    let refusing = Refusing::new(&ground.volume, "follower-");
    let db = builder().follow(true).open_on(Arc::clone(&refusing) as Arc<dyn Volume>).unwrap();
    let mut seen = Seen { db, commits: 0, model: Default::default() };
    seen.check(&ground);
    let change = |ground: &mut Ground| {
        for _ in 0..20 {
            ground.commit(Durability::Immediate).unwrap();
            ground.db().compact().unwrap();
        }
    };
    let registered = |ground: &Ground| {
        let entries = ground.volume.list().unwrap();
        entries.iter().filter(|entry| entry.name.starts_with("follower-")).count()
    };
    refusing.opens.store(true, Relaxed);
    // Registered still, but it cannot say what it needs.
    ground.commit(Durability::Immediate).unwrap();
    seen.refresh(&ground);
    assert_eq!(registered(&ground), 1);
    assert!(ground.db().handle.engine.followers.revoke_all());
    for _ in 0..3 {
        change(&mut ground);
        seen.refresh(&ground);
        assert_eq!(registered(&ground), 0);
    }
    refusing.opens.store(false, Relaxed);
    ground.commit(Durability::Immediate).unwrap();
    seen.refresh(&ground);
    assert_eq!(registered(&ground), 1);
    // From here on what it sees is kept.
    let (snapshot, main, model) = seen.held();
    change(&mut ground);
    super::compare_cold(&snapshot, &main, &model);
    seen.db.clone().close().unwrap();
    assert_eq!(registered(&ground), 0);
}

/// A `DURABLE` from before the machine was started says that all is durable that can be read: it stayed where the next writer could not open it.
#[test]
fn a_writer_that_cannot_say_what_is_durable_lets_nobody_see_more() {
    let volume = Simulated::new(1).with_windows();
    let writer = builder().open_on(Arc::new(volume.clone())).unwrap();
    writer.keyspace("main").unwrap().insert("durable", "").unwrap();
    writer.close().unwrap();
    let volume = volume.power_loss(1);
    assert!(volume.read_file("DURABLE").is_ok());
    let refusing = Refusing::new(&volume, "DURABLE");
    let open = || builder().open_on(Arc::clone(&refusing) as Arc<dyn Volume>);
    refusing.opens.store(true, Relaxed);
    refusing.removes.store(true, Relaxed);
    let refused = open();
    assert!(matches!(refused, Err(Error::DiskFull(_))), "{refused:?}");
    refusing.removes.store(false, Relaxed);
    let writer = open().unwrap();
    let main = writer.keyspace("main").unwrap();
    main.with_durability(Durability::Buffered).insert("buffered", "").unwrap();
    let followed = builder().follow(true).open_on(Arc::new(volume.clone()));
    assert!(matches!(followed, Err(Error::NotFollowable { .. })), "{followed:?}");
    // With a later edit they learn it.
    refusing.opens.store(false, Relaxed);
    writer.flush().unwrap();
    main.with_durability(Durability::Buffered).insert("later", "").unwrap();
    let follower = follow(&volume);
    let seen = follower.keyspace("main").unwrap();
    let keys: Vec<_> = seen.iter().map(|item| item.unwrap().0.to_vec()).collect();
    assert_eq!(keys, [b"buffered".to_vec(), b"durable".to_vec()]);
    writer.flush().unwrap();
    assert_eq!(follower.refresh().unwrap().operations, 1);
}

/// It said what was durable long ago: a follower that came then read trees that were gone, or that had parts of commits.
#[test]
fn a_writer_that_can_say_no_more_what_is_durable_says_nothing() {
    let volume = Simulated::new(1);
    let mut ground = Ground::new(1);
    ground.db = None;
    ground.volume = volume.clone();
    ground.open();
    ground.commit(Durability::Immediate).unwrap();
    ground.db().flush().unwrap();
    drop(follow(&volume));
    let writes = Filter::kinds([OperationKind::Write]).file("DURABLE");
    volume.fail_nth(writes, 1, Fault::NoSpace, Repeat::Sticky);
    rewrite(&mut ground);
    let followed = || builder().follow(true).open_on(Arc::new(volume.clone()));
    assert!(matches!(followed(), Err(Error::NotFollowable { .. })), "{:?}", followed());
    // Closed, it has said that for the last time.
    ground.db.take().unwrap().close().unwrap();
    assert!(matches!(followed(), Err(Error::NotFollowable { .. })), "{:?}", followed());
    volume.clear_faults();
    ground.open();
    assert_eq!(
        follow(&volume).keyspace("main").unwrap().get(super::key(7)).unwrap().as_deref(),
        Some(&[b'5'; 150][..])
    );
}
