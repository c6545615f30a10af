//! LMDB, through heed.

use super::doing;
use arena::{Change, Disk, Engine, Level, Modify, Result, Session, Settings};
use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions, RwTxn};

/// Map beyond what is needed; it costs address space only.
const MAP_FACTOR: u64 = 6;

pub(super) fn open(settings: &Settings) -> Result<Box<dyn Engine>> {
    let mut flags = EnvFlags::NO_READ_AHEAD;
    if settings.level == Level::Buffered {
        flags |= EnvFlags::NO_SYNC;
    }
    if settings.disk == Disk::Second {
        // Pages are changed where they are mapped, and not copied and written.
        flags |= EnvFlags::WRITE_MAP;
    }
    let map = (settings.bytes * MAP_FACTOR + (1 << 30)).next_multiple_of(1 << 20);
    let mut options = EnvOpenOptions::new();
    options.map_size(map as usize).max_readers(126);
    // SAFETY: NO_SYNC gives up durability against loss of power and nothing else; NO_LOCK is not set; and nothing in this process writes
    // to memory that is not its own, which WRITE_MAP would bring to the file.
    unsafe { options.flags(flags) };
    // SAFETY: the files of the map belong to the race; no other process touches them while it runs.
    let env = unsafe { options.open(&settings.dir) }.map_err(doing("open"))?;
    let mut transaction = env.write_txn().map_err(doing("begin"))?;
    let records = env.create_database(&mut transaction, None).map_err(doing("open the database"))?;
    transaction.commit().map_err(doing("commit"))?;
    Ok(Box::new(Lmdb { env, records }))
}

struct Lmdb {
    env: Env,
    records: Database<Bytes, Bytes>,
}

impl Engine for Lmdb {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Hand(self)))
    }

    fn sync(&self) -> Result<()> {
        self.env.force_sync().map_err(doing("sync"))
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.sync()?;
        self.env.prepare_for_closing().wait();
        Ok(())
    }
}

struct Hand<'a>(&'a Lmdb);

impl Hand<'_> {
    fn begin(&self) -> Result<RwTxn<'_>> {
        self.0.env.write_txn().map_err(doing("begin"))
    }
}

impl Session for Hand<'_> {
    fn get(&mut self, key: &[u8], show: &mut dyn FnMut(&[u8])) -> Result<()> {
        let transaction = self.0.env.read_txn().map_err(doing("begin"))?;
        if let Some(value) = self.0.records.get(&transaction, key).map_err(doing("get"))? {
            show(value);
        }
        Ok(())
    }

    /// One transaction for all keys; in their order, so that neighbours find their way in the processor's cache.
    fn multi_get(&mut self, keys: &[Vec<u8>], show: &mut dyn FnMut(usize, &[u8])) -> Result<()> {
        let transaction = self.0.env.read_txn().map_err(doing("begin"))?;
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_unstable_by_key(|at| &keys[*at]);
        for at in order {
            if let Some(value) = self.0.records.get(&transaction, &keys[at]).map_err(doing("get"))? {
                show(at, value);
            }
        }
        Ok(())
    }

    fn scan(&mut self, from: &[u8], _: u64, show: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let transaction = self.0.env.read_txn().map_err(doing("begin"))?;
        let bounds = (std::ops::Bound::Included(from), std::ops::Bound::Unbounded);
        for record in self.0.records.range(&transaction, &bounds).map_err(doing("scan"))? {
            let (key, value) = record.map_err(doing("scan"))?;
            if !show(key, value) {
                break;
            }
        }
        Ok(())
    }

    fn write(&mut self, changes: &[Change<'_>]) -> Result<()> {
        let mut transaction = self.begin()?;
        for change in changes {
            match *change {
                Change::Put(key, value) => {
                    self.0.records.put(&mut transaction, key, value).map_err(doing("put"))?;
                }
                Change::Remove(key) => {
                    self.0.records.delete(&mut transaction, key).map_err(doing("delete"))?;
                }
            }
        }
        transaction.commit().map_err(doing("commit"))
    }

    /// Of those that write there is one at a time.
    fn modify(&mut self, keys: &[Vec<u8>], change: &mut Modify<'_>) -> Result<u64> {
        let mut transaction = self.begin()?;
        for (at, key) in keys.iter().enumerate() {
            let value = change(at, self.0.records.get(&transaction, key).map_err(doing("get"))?)?;
            self.0.records.put(&mut transaction, key, &value).map_err(doing("put"))?;
        }
        transaction.commit().map_err(doing("commit"))?;
        Ok(0)
    }
}
