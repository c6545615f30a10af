//! Full disks, whose space followers keep.

use super::*;

#[test]
fn a_full_disk_has_the_space_of_what_followers_need() {
    let (mut ground, mut seen, held) = with_snapshot(Duration::from_secs(600));
    rewrite(&mut ground);
    let before = ground.volume.used();
    ground.db().handle.engine.space.reclaim_space();
    assert!(ground.volume.used() < before && ground.db().handle.engine.space.slots.waiting() == 0);
    rewrite(&mut ground);
    is_too_old(&mut seen, &held);
}

/// The write was tried again without end, with the log locked.
#[test]
fn a_full_disk_on_which_no_followers_file_can_be_removed_is_told() {
    let (mut ground, _seen, _held) = with_snapshot(Duration::from_secs(600));
    rewrite(&mut ground);
    assert!(ground.db().handle.engine.space.slots.waiting() > 0);
    let removals = Filter::kinds([OperationKind::Remove]).file("follower-");
    ground.volume.fail_nth(removals, 1, Fault::Error, Repeat::Sticky);
    let writes = Filter::kinds([OperationKind::Write]).file("wal-");
    ground.volume.fail_nth(writes, 1, Fault::NoSpace, Repeat::Sticky);
    let refused = ground.commit(Durability::Buffered).unwrap_err();
    assert!(refused.is_disk_full(), "{refused}");
}
