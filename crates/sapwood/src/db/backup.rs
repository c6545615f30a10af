//! Begins backups of an open database.

use crate::backup::{Backup, BackupSource, Refresh, Reword};
use crate::db::database::Database;
use crate::db::large_values::stored::HeadRef;
use std::sync::Arc;

impl Database {
    /// Begins a backup: a copy of the database as of one moment, taken while others read and write. See [`backup`](crate::backup).
    /// A [follower](crate::Builder::follow) is refreshed first.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// use sapwood::backup::Directory;
    ///
    /// db.keyspace("ships")?.insert("fram", "1892")?;
    /// db.backup().run(&Directory::open(dir.path().join("backups"))?)?;
    /// # Ok(()) }
    /// ```
    pub fn backup(&self) -> Backup<'static> {
        let engine = &self.handle.engine;
        let pager = Arc::clone(&engine.pager);
        Backup::new(BackupSource {
            volume: Arc::clone(&engine.volume),
            data: engine.data,
            commits: Arc::clone(&engine.commits),
            health: Arc::clone(&engine.health),
            encryption: engine.encryption.clone(),
            clock: Arc::clone(&engine.clock),
            is_apart: |stored| matches!(HeadRef::decode(stored), Some(HeadRef::Long { .. })),
            memory: engine.shares.memory,
            refresh: self.handle.follower.is_some().then(|| {
                let db = self.clone();
                Box::new(move || db.refresh().map(drop)) as Refresh
            }),
            reword: Box::new(move |error| pager.reader.reword(error)) as Reword,
            open: Arc::clone(&self.handle) as Arc<dyn Send + Sync>,
        })
    }
}
