//! fjall, an LSM-tree in Rust.

use super::doing;
use arena::{Change, Disk, Engine, Kind, Level, Modify, Result, Session, Settings};
use fjall::compaction::Leveled;
use fjall::config::CompressionPolicy;
use fjall::{
    CompressionType, Conflict, Database, Keyspace, KeyspaceCreateOptions, OptimisticTxDatabase, PersistMode,
    Readable,
};
use std::sync::Arc;

pub(super) fn open(settings: &Settings) -> Result<Box<dyn Engine>> {
    let memtable = (settings.memory / 16).clamp(1 << 20, 64 << 20);
    // A full memtable is put aside by a worker. With as many workers as processors all of them can be compacting: then the
    // memtable grows while writers go on, until the limit kills the process.
    let workers = std::thread::available_parallelism().map_or(2, usize::from) + 2;
    // What needs no transaction goes to the database in it, as if there were none.
    let transactional = OptimisticTxDatabase::builder(&settings.dir)
        // Everything comes through the page cache, which has the more the less this one has.
        .cache_size(match settings.disk {
            Disk::Best => settings.memory / 4,
            Disk::Second => settings.memory / 16,
        })
        .worker_threads(workers)
        .open()
        .map_err(doing("open"))?;
    // A table is written through the page cache and synced when it is whole: until then its pages are dirty and cannot be
    // given back: two compactions of the usual 64 MiB could fill a limit of 128 MiB.
    let table = (settings.memory / 16).clamp(1 << 20, 64 << 20);
    let compression = match settings.values {
        // From the level on from which fjall compresses unless told otherwise.
        Kind::Incompressible => vec![CompressionType::None],
        _ => vec![CompressionType::None, CompressionType::None, CompressionType::Lz4],
    };
    let options = || {
        KeyspaceCreateOptions::default()
            .max_memtable_size(memtable)
            .compaction_strategy(Arc::new(Leveled::default().with_table_target_size(table)))
            .expect_point_read_hits(true)
            .data_block_compression_policy(CompressionPolicy::new(compression))
    };
    let records = transactional.keyspace("records", options).map_err(doing("open the keyspace"))?;
    let (database, records) = (transactional.inner().clone(), records.inner().clone());
    Ok(Box::new(Fjall { transactional, database, records, level: settings.level }))
}

struct Fjall {
    transactional: OptimisticTxDatabase,
    database: Database,
    records: Keyspace,
    level: Level,
}

impl Fjall {
    fn mode(&self) -> PersistMode {
        match self.level {
            Level::Durable => PersistMode::SyncData,
            Level::Buffered => PersistMode::Buffer,
        }
    }
}

impl Engine for Fjall {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Hand(self)))
    }

    fn sync(&self) -> Result<()> {
        self.database.persist(PersistMode::SyncData).map_err(doing("sync"))
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.sync()
    }
}

struct Hand<'a>(&'a Fjall);

impl Session for Hand<'_> {
    fn get(&mut self, key: &[u8], show: &mut dyn FnMut(&[u8])) -> Result<()> {
        if let Some(value) = self.0.records.get(key).map_err(doing("get"))? {
            show(&value);
        }
        Ok(())
    }

    fn scan(&mut self, from: &[u8], _: u64, show: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        // A snapshot, so that a scan sees one moment.
        let snapshot = self.0.database.snapshot();
        for record in snapshot.range(&self.0.records, from..) {
            let (key, value) = record.into_inner().map_err(doing("scan"))?;
            if !show(&key, &value) {
                break;
            }
        }
        Ok(())
    }

    fn write(&mut self, changes: &[Change<'_>]) -> Result<()> {
        let mut batch = self.0.database.batch().durability(Some(self.0.mode()));
        for change in changes {
            match *change {
                Change::Put(key, value) => batch.insert(&self.0.records, key, value),
                Change::Remove(key) => batch.remove(&self.0.records, key),
            }
        }
        batch.commit().map_err(doing("commit"))
    }

    fn modify(&mut self, keys: &[Vec<u8>], change: &mut Modify<'_>) -> Result<u64> {
        let Fjall { transactional, records, .. } = self.0;
        let mut conflicts = 0;
        loop {
            let mut transaction =
                transactional.write_tx().map_err(doing("begin"))?.durability(Some(self.0.mode()));
            for (at, key) in keys.iter().enumerate() {
                let found = transaction.get(records, key).map_err(doing("get"))?;
                transaction.insert(records, &**key, change(at, found.as_deref())?);
            }
            match transaction.commit().map_err(doing("commit"))? {
                Ok(()) => return Ok(conflicts),
                Err(Conflict) => conflicts += 1,
            }
        }
    }
}
