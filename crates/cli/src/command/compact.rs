//! `sapwood flush` and `sapwood compact`: take what waits to its place, and give back the space that it took.

use crate::arguments::{Compact, Flush};
use crate::command::Opening;
use crate::failure::Result;
use crate::output::print;
use crate::progress::{Progress, human_bytes};
use sapwood::Database;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often progress is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Bytes that the files of a database take on the disk.
fn disk_use(path: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(path) else { return 0 };
    entries.flatten().filter_map(|entry| entry.metadata().ok()).map(|metadata| allocated(&metadata)).sum()
}

#[cfg(unix)]
fn allocated(metadata: &std::fs::Metadata) -> u64 {
    512 * std::os::unix::fs::MetadataExt::blocks(metadata)
}

#[cfg(not(unix))]
fn allocated(metadata: &std::fs::Metadata) -> u64 {
    metadata.len()
}

/// Does `work` beside somebody who looks how far it is: at `left` of `total`.
fn watched(
    what: &str,
    total: u64,
    left: impl Fn() -> u64 + Sync,
    work: impl FnOnce() -> sapwood::Result<()>,
) -> sapwood::Result<()> {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = std::thread::Builder::new().name("sapwood-progress".into()).spawn_scoped(scope, || {
            let mut progress =
                if total == 0 { Progress::waiting(what) } else { Progress::steps(what, Some(total)) };
            while !is_over.load(Ordering::Acquire) {
                std::thread::park_timeout(LOOK_EVERY);
                if total > 0 {
                    let done = total.saturating_sub(left());
                    progress.at(done, &format!("{done} of {total} changes"));
                }
            }
            progress.finish();
        });
        let done = work();
        is_over.store(true, Ordering::Release);
        // Without a thread for it there is no progress to be seen.
        if let Ok(watcher) = watcher {
            watcher.thread().unpark();
        }
        done
    })
}

/// Flushes. Gives the changes that waited.
fn flush_all(db: &Database) -> Result<u64> {
    let before = db.stats().writes.changes_flushed;
    watched("flushing", 0, || 0, || db.flush())?;
    Ok(db.stats().writes.changes_flushed - before)
}

fn finish(path: &Path, db: Database, before: u64, done: &str) -> Result<()> {
    // Space goes back when it is closed, too.
    db.close()?;
    print(format_args!(
        "{}: {done}; {} on the disk, {} before",
        path.display(),
        human_bytes(disk_use(path)),
        human_bytes(before)
    ))
}

pub(crate) fn flush(options: &Flush, opening: Opening) -> Result<()> {
    let before = disk_use(&options.db);
    let db = opening.to_write(&options.db, false)?;
    let changes = flush_all(&db)?;
    finish(&options.db, db, before, &format!("{changes} changes flushed from the log"))
}

pub(crate) fn compact(options: &Compact, opening: Opening) -> Result<()> {
    let before = disk_use(&options.db);
    let db = opening.to_write(&options.db, false)?;
    let changes = flush_all(&db)?;
    let logged = db.stats().space.logged_changes;
    watched("compacting", logged, || db.stats().space.logged_changes, || db.compact())?;
    let done = format!(
        "{changes} changes flushed from the log, {} taken from log areas to the leaves",
        logged.saturating_sub(db.stats().space.logged_changes)
    );
    finish(&options.db, db, before, &done)
}
