//! Sapwood, through its public API alone.

use super::doing;
use arena::{Change, Codec, Engine, Failed, Level, Modify, Result, Session, Settings};
use sapwood::{Compression, Database, Durability, Keyspace};

pub(super) fn open(settings: &Settings) -> Result<Box<dyn Engine>> {
    // The budget covers the engine's queues, tables and caches, and the log's pages; the rest is for the allocator and the threads' stacks.
    let memory = (settings.memory / 16 * 15).max(4 << 20);
    let compression = match (settings.values.is_compressible(), settings.codec) {
        (false, _) => Compression::None,
        (true, Codec::Lz4) => Compression::Lz4,
        (true, Codec::Zstd) => Compression::Zstd { level: 3 },
        (true, Codec::Dictionary) => Compression::ZstdDictionary { level: 3 },
    };
    let builder = Database::builder().memory(memory).compression(compression);
    let database = builder.open(&settings.dir).map_err(doing("open"))?;
    let records = database.keyspace("records").map_err(doing("open the keyspace"))?;
    let durability = match settings.level {
        Level::Durable => Durability::Immediate,
        Level::Buffered => Durability::Buffered,
    };
    Ok(Box::new(Sapwood { database, records, durability }))
}

struct Sapwood {
    database: Database,
    records: Keyspace,
    durability: Durability,
}

impl Engine for Sapwood {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Hand(self)))
    }

    fn sync(&self) -> Result<()> {
        self.database.sync().map_err(doing("sync"))
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.database.close().map_err(doing("close"))
    }
}

struct Hand<'a>(&'a Sapwood);

impl Session for Hand<'_> {
    fn get(&mut self, key: &[u8], show: &mut dyn FnMut(&[u8])) -> Result<()> {
        if let Some(value) = self.0.records.get(key).map_err(doing("get"))? {
            show(&value);
        }
        Ok(())
    }

    fn multi_get(&mut self, keys: &[Vec<u8>], show: &mut dyn FnMut(usize, &[u8])) -> Result<()> {
        let values = self.0.records.multi_get(keys).map_err(doing("multi_get"))?;
        for (at, value) in values.iter().enumerate() {
            if let Some(value) = value {
                show(at, value);
            }
        }
        Ok(())
    }

    fn scan(&mut self, from: &[u8], _: u64, show: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let mut records = self.0.records.range(from..);
        while let Some(record) = records.next_ref() {
            let (key, value) = record.map_err(doing("scan"))?;
            if !show(key, value) {
                break;
            }
        }
        Ok(())
    }

    fn write(&mut self, changes: &[Change<'_>]) -> Result<()> {
        let mut batch = self.0.database.batch();
        for change in changes {
            match *change {
                Change::Put(key, value) => batch.insert(&self.0.records, key, value),
                Change::Remove(key) => batch.remove(&self.0.records, key),
            };
        }
        let commit = |error: sapwood::Error| Failed::new("commit", error);
        batch.durability(self.0.durability).commit().map_err(commit)
    }

    /// Reads with one psync. When it conflicts several times, it takes a turn.
    fn modify(&mut self, keys: &[Vec<u8>], change: &mut Modify<'_>) -> Result<u64> {
        let Sapwood { database, records, durability } = self.0;
        let mut runs = 0;
        let done = database.transact(|transaction| {
            runs += 1;
            transaction.durability(*durability);
            let found = transaction.multi_get(records, keys)?;
            let mut values = Vec::with_capacity(keys.len());
            for (at, value) in found.iter().enumerate() {
                match change(at, value.as_deref()) {
                    Ok(value) => values.push(value),
                    // Nothing was written yet, so nothing is committed.
                    Err(refusal) => return Ok(Err(refusal)),
                }
            }
            for (key, value) in keys.iter().zip(&values) {
                transaction.insert(records, key, value)?;
            }
            Ok(Ok(()))
        });
        done.map_err(doing("transact"))?.map(|()| runs - 1)
    }
}
